//! Writes what was decided over a batch of executions: a few statements for all of them together.

mod computations;
mod executions;
mod history;
mod values;

use super::arrays::{arrays, insert};
use super::chunk::chunks;
use super::enqueue;
use super::fault::{Fault, Outcome};
use super::link::Params;
use super::snapshot::Read;
use super::stop::stop;
use super::transaction::Transaction;
use computations::Computations;
use everbeat_model::event::{EventKind, line};
use everbeat_model::graph::{Change, Graph, Plan};
use everbeat_model::{Json, NewRun, RunId, StoreTime};
use everbeat_store::events;
use history::History;
use std::sync::{Arc, LazyLock};
use uuid::Uuid;

/// A plan and the execution that it is for, as it was before.
pub(super) struct Decided {
    pub(super) read: Read,
    pub(super) graph: Arc<Graph>,
    pub(super) plan: Plan,
    pub(super) now: StoreTime,
}

/// Whether the executions are new.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    Begun,
    Changed,
}

arrays! {
    /// When executions should be looked at again.
    Notes of Note {
        execution_id: Uuid as "uuid",
        due_at: i64 as "bigint",
    }
}

static NOTE: LazyLock<String> = LazyLock::new(|| insert("agenda", Notes::COLUMNS));

/// Executions in the order given, then what they no longer want; last the event, whose lock holds up
/// followers until the end.
pub(super) async fn carry_out(transaction: &Transaction<'_>, decided: &[Decided], write: Write) -> Outcome<()> {
    for piece in chunks(decided, size) {
        write_piece(transaction, piece, write).await?;
    }
    let stops: Vec<RunId> = decided.iter().flat_map(|decided| decided.plan.changes.stop.iter().copied()).collect();
    let mut ended = stop(transaction, &stops).await?;
    let mut lines = Vec::new();
    for Decided { read, plan, .. } in decided {
        lines.extend(events(read.id, plan, write == Write::Begun));
        let stopped = plan.changes.stop.iter().filter(|run| ended.remove(run));
        lines.extend(stopped.map(|run| line(EventKind::RunCancelled, &run.to_string(), None, None)));
    }
    if lines.is_empty() {
        return Ok(());
    }
    transaction.query(enqueue::APPEND, &[&lines.join("\n")]).await.map(|_| ())
}

/// Notes when each of these should be looked at again.
pub(super) async fn note(transaction: &Transaction<'_>, ticks: &[(Uuid, i64)]) -> Outcome<()> {
    let mut notes = Notes::default();
    ticks.iter().for_each(|(execution_id, due_at)| notes.push(Note { execution_id: *execution_id, due_at: *due_at }));
    let Some((sql, params)) = notes.statement(&NOTE) else { return Ok(()) };
    transaction.query(sql, &params).await.map(|_| ())
}

async fn write_piece(transaction: &Transaction<'_>, piece: &[Decided], write: Write) -> Outcome<()> {
    let executions = executions::rows(piece);
    let values = values::rows(piece);
    let history = History::of(piece);
    let computations = Computations::of(piece);
    let runs: Vec<&NewRun> = piece.iter().flat_map(|decided| &decided.plan.runs).collect();
    // One execution may make many runs with large inputs: they go in pieces of their own.
    let runs: Vec<_> =
        chunks(&runs, |run| run.bytes()).into_iter().map(|runs| enqueue::rows(runs.iter().copied())).collect();
    let begin_or_change: &str = if write == Write::Begun { &executions::BEGIN } else { &executions::CHANGE };
    let mut statements = vec![(begin_or_change, executions.params())];
    statements.extend(values.statement(&values::WRITE));
    statements.extend(history.statements());
    statements.extend(computations.statements());
    statements.extend(runs.iter().map(|runs| (enqueue::INSERT.as_str(), runs.params())));
    let statements: Vec<(&str, Params<'_>)> = statements.iter().map(|(sql, params)| (*sql, &params[..])).collect();
    let answers = transaction.all(&statements).await?;
    if write == Write::Begun && answers.first().is_none_or(|begun| begun.len() < piece.len()) {
        return Err(Fault::Again("another request has just started the same".to_string()));
    }
    Ok(())
}

/// The text that it takes to write a plan.
fn size(decided: &Decided) -> usize {
    let runs: usize = decided.plan.runs.iter().map(NewRun::bytes).sum();
    // Twice: the value and its history.
    let text = |change: &Change| change.cell.as_ref().map_or(0, |cell| Json::of(&cell.value).as_str().len() + 256);
    runs + decided.plan.changes.changed.iter().map(|change| 2 * text(change)).sum::<usize>()
}

/// The metadata of a change, as it is stored.
fn metadata(change: &Change) -> Option<String> {
    let metadata = change.cell.as_ref().and_then(|cell| cell.metadata.as_ref());
    metadata.map(|metadata| Json::of(metadata).as_str().to_string())
}
