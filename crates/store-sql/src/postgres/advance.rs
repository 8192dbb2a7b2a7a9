//! Commands for executions, and looks at those that are due: a whole batch in one transaction.
//!
//! First the executions are locked, then their notes are deleted, then all the rest is read, each by a
//! statement of its own. So whatever finished before a deleted note is seen, and a note that was not seen
//! stays for the next look.

use super::Postgres;
use super::carry_out::{Decided, Write, carry_out, note};
use super::fault::{Fault, Outcome};
use super::graphs::{Hold, hold};
use super::link::again;
use super::snapshot::{Locked, definition, definitions, locked_sql};
use super::sql::now;
use super::transaction::Transaction;
use crate::cells::number;
use crate::encode::{UNSTORABLE_PAUSE, limit, micros, unstorable_change};
use crate::halves::Halves;
use everbeat_model::ExecutionId;
use everbeat_model::graph::{Command, Graph, must_be_alone, not_alone};
use everbeat_store::{Advance, Advanced, Looked, Planner, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Locks executions in one order, so that two servers do not lock each other out.
const LOCK: &str = "select 1 from execution e where e.id = any($1::uuid[]) order by e.id for update";

const TAKE_NOTES: &str =
    "delete from agenda a where a.execution_id = any($1::uuid[]) returning a.execution_id, a.due_at";

/// Locks those that are due, passing over what another server looks at; a note of an execution that is
/// unknown is taken all the same.
const PICK: &str = concat!(
    "with ",
    now!(),
    ", noted as materialized (select a.execution_id, a.due_at from agenda a where a.due_at <= (select now from t) \
       order by a.due_at, a.execution_id limit $2), \
     firsts as materialized (select n.execution_id, min(n.due_at) as due_at from noted n group by n.execution_id \
       order by min(n.due_at), n.execution_id) \
     select f.execution_id from firsts f left join lateral (\
       select e.id from execution e where e.id = f.execution_id for update skip locked) e on true \
     where e.id is not null or not exists (select 1 from execution x where x.id = f.execution_id offset 0) limit $1"
);

/// Notes that are looked through for each execution that is wanted: one may have several, and another
/// server may be looking at it.
const NOTES_PER_LOOK: usize = 8;

const NEXT: &str = "\
    select decided_event_batch(), (\
      select greatest(a.due_at - (extract(epoch from clock_timestamp()) * 1000000)::bigint, 0) \
      from agenda a order by a.due_at, a.execution_id limit 1)";

pub(super) const STANDING: &str = "\
    select e.graph, e.id from execution e where e.graph = any($1::text[]) and e.singleton and e.archived_at is null";

const POSTPONE: &str = concat!(
    "with ",
    now!(),
    " update agenda a set due_at = t.now + $2 from t where a.execution_id = $1 and a.due_at < t.now + $2"
);

pub(super) async fn advance(store: &Postgres, advances: &[Advance], planner: &dyn Planner) -> Result<Vec<Advanced>> {
    let mut answers = vec![Advanced::NotFound; advances.len()];
    let mut open = Halves::of((0..advances.len()).collect());
    while let Some(places) = open.next() {
        let batch: Vec<&Advance> = places.iter().map(|place| &advances[*place]).collect();
        match advance_batch(store, &batch, planner).await {
            Ok(advanced) => places.iter().zip(advanced).for_each(|(place, advanced)| answers[*place] = advanced),
            Err(Fault::Data(reason)) => {
                if let Some(place) = open.halve(places) {
                    answers[place] = unstorable(store, &advances[place], &reason).await?;
                }
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(answers)
}

/// Answers a change of which nothing was written. The notes of its execution stand; where there are no commands, the
/// notes are what cannot be carried out, and must not be taken up again and again.
async fn unstorable(store: &Postgres, advance: &Advance, reason: &str) -> Result<Advanced> {
    let refusal = unstorable_change(advance.execution, reason);
    if advance.commands.is_empty() {
        postpone(store, advance.execution).await?;
    }
    Ok(Advanced::refused(&advance.commands, &refusal))
}

async fn postpone(store: &Postgres, execution: ExecutionId) -> Outcome<()> {
    store.command.query(POSTPONE, &[&execution.0, &micros(UNSTORABLE_PAUSE)]).await.map(|_| ())
}

async fn advance_batch(store: &Postgres, batch: &[&Advance], planner: &dyn Planner) -> Outcome<Vec<Advanced>> {
    again!(async {
        let transaction = store.advance.begin().await?;
        let answer = try_advance(&transaction, store, batch, planner).await;
        transaction.close(answer).await
    })
}

async fn try_advance(
    transaction: &Transaction<'_>,
    store: &Postgres,
    batch: &[&Advance],
    planner: &dyn Planner,
) -> Outcome<Vec<Advanced>> {
    let ids: Vec<Uuid> = batch.iter().map(|advance| advance.execution.0).collect();
    let returning = batch.iter().filter(|advance| advance.commands.contains(&Command::Unarchive));
    let returning: Vec<Uuid> = returning.map(|advance| advance.execution.0).collect();
    if !returning.is_empty() {
        // No start of a singleton and no new definition slips past this change.
        let named = "select distinct e.graph from execution e where e.id = any($1::uuid[])";
        let rows = transaction.query(named, &[&returning]).await?;
        let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        hold(transaction, &names, Hold::Alone).await?;
    }
    let load = locked_sql();
    let rows = transaction.all(&[(LOCK, &[&ids]), (TAKE_NOTES, &[&ids]), (&load, &[&ids])]).await?;
    let locked = rows[2].iter().map(Locked::of).collect();
    let taken = rows[1].iter().map(|row| (row.get(0), row.get(1))).collect();
    let wanted = batch.iter().map(|advance| (advance.execution, advance.commands.clone())).collect();
    carry_on(transaction, store, Found { locked, taken }, wanted, planner).await
}

pub(super) async fn advance_due(store: &Postgres, most: usize, planner: &dyn Planner) -> Result<Looked> {
    // Mostly there is nothing to do, which takes one statement to see.
    let ahead = next(store).await?;
    if ahead.next_in != Some(Duration::ZERO) {
        return Ok(ahead);
    }
    let mut executions = Vec::new();
    match look(store, most, planner, &mut executions).await {
        Ok(()) => {}
        Err(Fault::Data(_)) => {
            let alone = executions.iter().map(|id| Advance { execution: *id, commands: Vec::new() });
            advance(store, &alone.collect::<Vec<_>>(), planner).await?;
        }
        Err(fault) => {
            if let [culprit] = executions[..] {
                // Alone, the execution is what cannot be carried out: it must not keep the others waiting for
                // ever. If the server is away, putting it off fails as well.
                tracing::error!(execution = %culprit, ?fault, "an execution cannot be looked at and is put off");
                postpone(store, culprit).await?;
            }
            return Err(fault.into());
        }
    }
    Ok(Looked { executions, ..next(store).await? })
}

async fn next(store: &Postgres) -> Outcome<Looked> {
    let rows = store.read().query(NEXT, &[]).await?;
    let Some(row) = rows.first() else { return Ok(Looked::default()) };
    let next_in = row.get::<_, Option<i64>>(1).map(|micros| Duration::from_micros(number(micros)));
    Ok(Looked { executions: Vec::new(), next_in, news: number(row.get(0)) })
}

async fn look(store: &Postgres, most: usize, planner: &dyn Planner, looked: &mut Vec<ExecutionId>) -> Outcome<()> {
    again!(async {
        let transaction = store.advance.begin().await?;
        let answer = try_look(&transaction, store, most, planner, looked).await;
        transaction.close(answer).await
    })
}

async fn try_look(
    transaction: &Transaction<'_>,
    store: &Postgres,
    most: usize,
    planner: &dyn Planner,
    looked: &mut Vec<ExecutionId>,
) -> Outcome<()> {
    let notes = limit(most.saturating_mul(NOTES_PER_LOOK));
    let rows = transaction.query(PICK, &[&limit(most), &notes]).await?;
    let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    *looked = ids.iter().map(|id| ExecutionId(*id)).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let load = locked_sql();
    let rows = transaction.all(&[(TAKE_NOTES, &[&ids]), (&load, &[&ids])]).await?;
    let found = Found { locked: rows[1].iter().map(Locked::of).collect(), taken: BTreeMap::new() };
    let wanted = looked.iter().map(|id| (*id, Vec::new())).collect();
    carry_on(transaction, store, found, wanted, planner).await.map(|_| ())
}

/// Locked executions, and the last due note of each that was taken.
struct Found {
    locked: Vec<Locked>,
    taken: BTreeMap<Uuid, i64>,
}

/// Decides over each execution in the order asked for, and writes all that was decided.
async fn carry_on(
    transaction: &Transaction<'_>,
    store: &Postgres,
    found: Found,
    wanted: Vec<(ExecutionId, Vec<Command>)>,
    planner: &dyn Planner,
) -> Outcome<Vec<Advanced>> {
    let Found { locked, taken } = found;
    let serials = locked.iter().map(|locked| locked.read.course.follow(locked.latest).0.definition);
    let graphs = definitions(transaction, &store.definitions, &serials.collect()).await?;
    let standing = standing(transaction, &locked, &wanted).await?;
    let mut decisions = Decisions { planner, graphs, standing, taken, decided: Vec::new(), ticks: Vec::new() };
    let mut locked: BTreeMap<ExecutionId, Locked> = locked.into_iter().map(|locked| (locked.read.id, locked)).collect();
    let mut answers = Vec::with_capacity(wanted.len());
    for (id, commands) in wanted {
        answers.push(match locked.remove(&id) {
            Some(locked) => decisions.decide(locked, commands)?,
            None => Advanced::NotFound,
        });
    }
    note(transaction, &decisions.ticks).await?;
    carry_out(transaction, &decisions.decided, Write::Changed).await?;
    Ok(answers)
}

/// Which execution of each singleton graph stands, if one of them is to be brought back.
async fn standing(
    transaction: &Transaction<'_>,
    locked: &[Locked],
    wanted: &[(ExecutionId, Vec<Command>)],
) -> Outcome<BTreeMap<String, ExecutionId>> {
    let returning = wanted.iter().filter(|(_, commands)| commands.contains(&Command::Unarchive));
    let returning: BTreeSet<ExecutionId> = returning.map(|(id, _)| *id).collect();
    let graphs = locked.iter().filter(|locked| locked.read.singleton && returning.contains(&locked.read.id));
    let graphs: Vec<&str> = graphs.map(|locked| locked.read.graph.as_str()).collect();
    if graphs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let rows = transaction.query(STANDING, &[&graphs]).await?;
    Ok(rows.iter().map(|row| (row.get(0), ExecutionId(row.get(1)))).collect())
}

struct Decisions<'a> {
    planner: &'a dyn Planner,
    graphs: BTreeMap<u64, Arc<Graph>>,
    standing: BTreeMap<String, ExecutionId>,
    taken: BTreeMap<Uuid, i64>,
    decided: Vec<Decided>,
    ticks: Vec<(Uuid, i64)>,
}

impl Decisions<'_> {
    fn decide(&mut self, mut locked: Locked, commands: Vec<Command>) -> Outcome<Advanced> {
        let (name, id) = (locked.read.graph.clone(), locked.read.id);
        let returns = must_be_alone(locked.read.singleton, locked.read.execution.archived_at, &commands);
        if let Some(other) = self.standing.get(&name).filter(|_| returns) {
            let refusal = not_alone(&name, *other);
            // What is refused as a whole leaves its note to whoever looks next.
            self.ticks.extend(self.taken.get(&id.0).map(|due| (id.0, *due)));
            return Ok(Advanced::refused(&commands, &refusal));
        }
        let (course, moved) = locked.read.course.follow(locked.latest);
        locked.read.course = course;
        let graph = definition(&self.graphs, course.definition)?;
        let mut plan = self.planner.plan(locked.snapshot(graph.clone()), commands);
        let answers = std::mem::take(&mut plan.answers);
        self.ticks.extend(plan.changes.next_look().map(|due| (id.0, due.0)));
        if plan.changes.archived && locked.read.singleton {
            match plan.changes.execution.archived_at {
                Some(_) => _ = self.standing.remove(&name),
                None => _ = self.standing.insert(name, id),
            }
        }
        if moved || !plan.changes.is_empty() {
            self.decided.push(Decided { read: locked.read, graph, plan, now: locked.now });
        }
        Ok(Advanced::Done(answers))
    }
}
