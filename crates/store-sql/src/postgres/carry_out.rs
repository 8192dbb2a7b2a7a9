//! Writes what was decided over a batch of executions: a few statements for all of them together.

use super::chunk::chunks;
use super::enqueue;
use super::fault::{Fault, Outcome};
use super::link::Params;
use super::snapshot::Read;
use super::stop::stop;
use super::transaction::Transaction;
use crate::cells::{ComputationCells, ValueCells, stored};
use crate::encode::{int, limit};
use everbeat_model::event::{EventKind, line};
use everbeat_model::graph::{Change, Graph, Plan};
use everbeat_model::{Json, NewRun, RunId, StoreTime};
use everbeat_store::{cuts, events, recorded};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_postgres::types::ToSql;
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

macro_rules! executions {
    () => {
        "insert into execution as e (id, graph, definition, seen, singleton, revision, archived_at, stamp, place, \
           created_at, updated_at) \
         select * from unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::boolean[], $6::bigint[], \
           $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[]) "
    };
}

/// One that is there already, or another one of a singleton graph, keeps it out.
const BEGIN: &str = concat!(executions!(), "on conflict do nothing returning id");

/// By key, without a join that could be planned badly.
const CHANGE: &str = concat!(
    executions!(),
    "on conflict (id) do update set definition = excluded.definition, seen = excluded.seen, \
       revision = excluded.revision, archived_at = excluded.archived_at, stamp = excluded.stamp, \
       place = excluded.place, updated_at = excluded.updated_at"
);

const VALUES: &str = "\
    insert into value as v (execution_id, node, value, revision, set_at, metadata, changes, first_set_at, class, \
      number, text, folded) \
    select * from unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], \
      $8::bigint[], $9::smallint[], $10::float8[], $11::text[], $12::text[]) \
    on conflict (execution_id, node) do update set value = excluded.value, revision = excluded.revision, \
      set_at = excluded.set_at, metadata = excluded.metadata, changes = excluded.changes, \
      first_set_at = coalesce(v.first_set_at, excluded.first_set_at), class = excluded.class, \
      number = excluded.number, text = excluded.text, folded = excluded.folded";

const HISTORY: &str = "\
    insert into value_history (execution_id, place, node, value, revision, at, metadata, run_id) \
    select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], \
      $8::uuid[])";

/// What a silent change replaced is gone from the history too.
const REPLACE: &str = "\
    update value_history h set value = g.value, metadata = null \
    from unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[]) as g(execution_id, node, revision, value) \
    where h.execution_id = g.execution_id and h.node = g.node and h.revision = g.revision";

/// Of each node what is older than the last `keep` up to a place.
const CUT: &str = "\
    with given as materialized (select * from unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[]) \
      as g(execution_id, node, place, keep)), \
    oldest as materialized (select g.execution_id, g.node, o.place from given g cross join lateral (\
      select h.place from value_history h where h.execution_id = g.execution_id and h.node = g.node \
        and h.place <= g.place order by h.place desc offset g.keep - 1 limit 1) o) \
    delete from value_history h where h.ctid = any(array(\
      select x.at from oldest o cross join lateral (select h.ctid as at from value_history h \
        where h.execution_id = o.execution_id and h.node = o.node and h.place < o.place offset 0) x))";

const COMPUTATIONS: &str = "\
    insert into computation as c (execution_id, node, status, run_id, computed_with, iterations, state, error) \
    select * from unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::int[], $7::text[], \
      $8::text[]) \
    on conflict (execution_id, node) do update set status = excluded.status, run_id = excluded.run_id, \
      computed_with = excluded.computed_with, iterations = excluded.iterations, state = excluded.state, \
      error = excluded.error";

const FORGOTTEN: &str = "\
    delete from computation c where c.execution_id = any($1::uuid[]) \
      and ((c.execution_id, c.node) in (select * from unnest($1::uuid[], $2::text[])) or false)";

pub(super) const NOTE: &str = "\
    insert into agenda (execution_id, due_at) select * from unnest($1::uuid[], $2::bigint[])";

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
    if ticks.is_empty() {
        return Ok(());
    }
    let (execution_id, due_at): (Vec<Uuid>, Vec<i64>) = ticks.iter().copied().unzip();
    transaction.query(NOTE, &[&execution_id, &due_at]).await.map(|_| ())
}

async fn write_piece(transaction: &Transaction<'_>, piece: &[Decided], write: Write) -> Outcome<()> {
    let executions = Rows::of(piece);
    let values = Values::of(piece);
    let history = History::of(piece);
    let (computations, forgotten) = computations(piece);
    let runs: Vec<&NewRun> = piece.iter().flat_map(|decided| &decided.plan.runs).collect();
    // One execution may make many runs with large inputs: they go in pieces of their own.
    let runs: Vec<_> =
        chunks(&runs, |run| run.bytes()).into_iter().map(|runs| enqueue::Columns::of(runs.iter().copied())).collect();
    let executions_params = executions.params();
    let values_params = values.params();
    let history_params = history.params();
    let cut_params = history.cut_params();
    let computations_params = computations.params();
    let runs_params: Vec<_> = runs.iter().map(|runs| runs.params()).collect();
    let forgotten_params: [&(dyn ToSql + Sync); 2] = [&forgotten.0, &forgotten.1];
    let replaced_params = history.replaced_params();
    let statements: [(bool, &str, Params<'_>); 7] = [
        (true, if write == Write::Begun { BEGIN } else { CHANGE }, &executions_params),
        (!values.node.is_empty(), VALUES, &values_params),
        (!history.replaced_node.is_empty(), REPLACE, &replaced_params),
        (!history.node.is_empty(), HISTORY, &history_params),
        (!history.cut_node.is_empty(), CUT, &cut_params),
        (!computations.node.is_empty(), COMPUTATIONS, &computations_params),
        (!forgotten.0.is_empty(), FORGOTTEN, &forgotten_params),
    ];
    let mut wanted: Vec<(&str, Params<'_>)> =
        statements.into_iter().filter(|(wanted, ..)| *wanted).map(|(_, sql, params)| (sql, params)).collect();
    wanted.extend(runs_params.iter().map(|params| (enqueue::INSERT, &params[..])));
    let answers = transaction.all(&wanted).await?;
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

#[derive(Default)]
struct Rows<'a> {
    id: Vec<Uuid>,
    graph: Vec<&'a str>,
    definition: Vec<i64>,
    seen: Vec<i64>,
    singleton: Vec<bool>,
    revision: Vec<i64>,
    archived_at: Vec<Option<i64>>,
    stamp: Vec<i64>,
    place: Vec<i64>,
    created_at: Vec<i64>,
    updated_at: Vec<i64>,
}

impl<'a> Rows<'a> {
    fn of(piece: &'a [Decided]) -> Rows<'a> {
        let mut rows = Rows::default();
        for Decided { read, plan, now, graph } in piece {
            rows.id.push(read.id.0);
            rows.graph.push(&read.graph);
            rows.definition.push(stored(read.definition));
            rows.seen.push(stored(read.seen));
            rows.singleton.push(read.singleton);
            rows.revision.push(stored(plan.changes.execution.revision));
            rows.archived_at.push(plan.changes.execution.archived_at.map(|at| at.0));
            rows.stamp.push(stored(read.stamp + 1));
            rows.place.push(stored(read.place + recorded(graph, plan).count() as u64));
            rows.created_at.push(read.created_at.0);
            rows.updated_at.push(now.0);
        }
        rows
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 11] {
        [
            &self.id,
            &self.graph,
            &self.definition,
            &self.seen,
            &self.singleton,
            &self.revision,
            &self.archived_at,
            &self.stamp,
            &self.place,
            &self.created_at,
            &self.updated_at,
        ]
    }
}

/// What each changed value is in the end.
#[derive(Default)]
struct Values<'a> {
    execution_id: Vec<Uuid>,
    node: Vec<&'a str>,
    value: Vec<Option<String>>,
    revision: Vec<i64>,
    set_at: Vec<i64>,
    metadata: Vec<Option<String>>,
    changes: Vec<i64>,
    first_set_at: Vec<Option<i64>>,
    class: Vec<Option<i16>>,
    number: Vec<Option<f64>>,
    text: Vec<Option<String>>,
    folded: Vec<Option<String>>,
}

impl<'a> Values<'a> {
    fn of(piece: &'a [Decided]) -> Values<'a> {
        let mut values = Values::default();
        for decided in piece {
            let mut nodes: BTreeMap<&str, (u64, bool, &Change)> = BTreeMap::new();
            for change in &decided.plan.changes.changed {
                let before = decided.read.changes.get(&change.node).copied().unwrap_or(0);
                let (changes, set, last) = nodes.entry(&change.node).or_insert((before, false, change));
                *changes += 1;
                *set |= change.cell.is_some();
                *last = change;
            }
            for (node, (changes, set, last)) in nodes {
                values.push(decided, node, changes, set, last);
            }
        }
        values
    }

    fn push(&mut self, decided: &Decided, node: &'a str, changes: u64, set: bool, last: &Change) {
        let cell = last.cell.as_ref();
        let cells = ValueCells::of(cell.map(|cell| &cell.value));
        self.execution_id.push(decided.read.id.0);
        self.node.push(node);
        self.value.push(cells.value);
        self.revision.push(stored(cell.map_or(last.revision, |cell| cell.revision)));
        self.set_at.push(cell.map_or(decided.now, |cell| cell.set_at).0);
        self.metadata.push(metadata(last));
        self.changes.push(stored(changes));
        self.first_set_at.push(set.then_some(decided.now.0));
        self.class.push(cells.class);
        self.number.push(cells.number);
        self.text.push(cells.text);
        self.folded.push(cells.folded);
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 12] {
        [
            &self.execution_id,
            &self.node,
            &self.value,
            &self.revision,
            &self.set_at,
            &self.metadata,
            &self.changes,
            &self.first_set_at,
            &self.class,
            &self.number,
            &self.text,
            &self.folded,
        ]
    }
}

fn metadata(change: &Change) -> Option<String> {
    let metadata = change.cell.as_ref().and_then(|cell| cell.metadata.as_ref());
    metadata.map(|metadata| Json::of(metadata).as_str().to_string())
}

/// Every change, and where that makes too many of a node.
#[derive(Default)]
struct History<'a> {
    execution_id: Vec<Uuid>,
    place: Vec<i64>,
    node: Vec<&'a str>,
    value: Vec<Option<String>>,
    revision: Vec<i64>,
    at: Vec<i64>,
    metadata: Vec<Option<String>>,
    run_id: Vec<Option<Uuid>>,
    replaced_execution_id: Vec<Uuid>,
    replaced_node: Vec<&'a str>,
    replaced_revision: Vec<i64>,
    replaced_value: Vec<String>,
    cut_execution_id: Vec<Uuid>,
    cut_node: Vec<&'a str>,
    cut_place: Vec<i64>,
    cut_keep: Vec<i64>,
}

impl<'a> History<'a> {
    fn of(piece: &'a [Decided]) -> History<'a> {
        let mut history = History::default();
        for decided in piece {
            let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
            for (place, change) in (decided.read.place + 1..).zip(recorded(&decided.graph, &decided.plan)) {
                let before = decided.read.changes.get(&change.node).copied().unwrap_or(0);
                let count = counts.entry(&change.node).or_insert(before);
                *count += 1;
                history.push(decided, place, change, *count);
            }
        }
        history
    }

    fn push(&mut self, decided: &Decided, place: u64, change: &'a Change, changes: u64) {
        if let Some(cell) = change.cell.as_ref().filter(|_| change.silent) {
            self.replace(decided.read.id.0, &change.node, stored(cell.revision), Json::of(&cell.value).as_str());
        }
        self.execution_id.push(decided.read.id.0);
        self.place.push(stored(place));
        self.node.push(&change.node);
        self.value.push(change.cell.as_ref().map(|cell| Json::of(&cell.value).as_str().to_string()));
        self.revision.push(stored(change.revision));
        self.at.push(decided.now.0);
        self.metadata.push(metadata(change));
        self.run_id.push(change.run.map(|run| run.0));
        let keep = decided.graph.keep(&change.node);
        if cuts(changes, keep) {
            self.cut_execution_id.push(decided.read.id.0);
            self.cut_node.push(&change.node);
            self.cut_place.push(stored(place));
            self.cut_keep.push(limit(keep.max(1)));
        }
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.execution_id,
            &self.place,
            &self.node,
            &self.value,
            &self.revision,
            &self.at,
            &self.metadata,
            &self.run_id,
        ]
    }

    /// Among what is written now, and among what was written before.
    fn replace(&mut self, execution: Uuid, node: &'a str, revision: i64, value: &str) {
        for at in 0..self.node.len() {
            if self.execution_id[at] == execution && self.node[at] == node && self.revision[at] == revision {
                self.value[at] = Some(value.to_string());
                self.metadata[at] = None;
            }
        }
        let same = |at: &usize| {
            self.replaced_execution_id[*at] == execution
                && self.replaced_node[*at] == node
                && self.replaced_revision[*at] == revision
        };
        if let Some(at) = (0..self.replaced_node.len()).find(same) {
            // A row is updated once by a statement: the last one counts.
            self.replaced_value[at] = value.to_string();
            return;
        }
        self.replaced_execution_id.push(execution);
        self.replaced_node.push(node);
        self.replaced_revision.push(revision);
        self.replaced_value.push(value.to_string());
    }

    fn replaced_params(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.replaced_execution_id, &self.replaced_node, &self.replaced_revision, &self.replaced_value]
    }

    fn cut_params(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.cut_execution_id, &self.cut_node, &self.cut_place, &self.cut_keep]
    }
}

#[derive(Default)]
struct Computations<'a> {
    execution_id: Vec<Uuid>,
    node: Vec<&'a str>,
    status: Vec<String>,
    run_id: Vec<Option<Uuid>>,
    computed_with: Vec<String>,
    iterations: Vec<i32>,
    state: Vec<Option<String>>,
    error: Vec<Option<String>>,
}

/// Those that are another than before, and those that are forgotten.
fn computations(piece: &[Decided]) -> (Computations<'_>, (Vec<Uuid>, Vec<&str>)) {
    let mut kept = Computations::default();
    let mut forgotten = (Vec::new(), Vec::new());
    for Decided { read, plan, .. } in piece {
        for node in &plan.changes.computations {
            let Some(computation) = plan.changes.execution.computation(node) else {
                forgotten.0.push(read.id.0);
                forgotten.1.push(node.as_str());
                continue;
            };
            let cells = ComputationCells::of(computation);
            kept.execution_id.push(read.id.0);
            kept.node.push(node);
            kept.status.push(cells.status);
            kept.run_id.push(cells.run_id);
            kept.computed_with.push(cells.computed_with);
            kept.iterations.push(int(cells.iterations));
            kept.state.push(cells.state);
            kept.error.push(cells.error);
        }
    }
    (kept, forgotten)
}

impl Computations<'_> {
    fn params(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.execution_id,
            &self.node,
            &self.status,
            &self.run_id,
            &self.computed_with,
            &self.iterations,
            &self.state,
            &self.error,
        ]
    }
}
