//! Executions go on: load, let the planner decide, write what it decided.

use super::carry_out::carry_out;
use super::enqueue::{remember, seen};
use super::fault::Outcome;
use super::snapshot::{self, ExecutionRow};
use super::writer::Tx;
use super::{agenda, graphs};
use crate::cells::{Definitions, stored};
use everbeat_model::ExecutionId;
use everbeat_model::graph::{
    Command, Course, Execution, Opening, Refusal, Snapshot, must_be_alone, not_alone, opening, repeated,
};
use everbeat_store::{Advance, Advanced, Definition, Looked, Planner, Start, Started, events};
use rusqlite::{OptionalExtension, params};
use uuid::Uuid;

/// One write of several executions.
pub(super) struct Work<'t, 'c> {
    pub(super) tx: &'t Tx<'c>,
    pub(super) definitions: &'t Definitions,
    pub(super) planner: &'t dyn Planner,
    pub(super) lines: Vec<String>,
}

impl Work<'_, '_> {
    pub(super) fn start_all(mut self, starts: &[&Start]) -> Outcome<Vec<Started>> {
        let answers = starts.iter().map(|start| self.start(start)).collect::<Outcome<_>>()?;
        self.tx.append_events(&self.lines)?;
        Ok(answers)
    }

    pub(super) fn advance_all(mut self, advances: &[&Advance]) -> Outcome<Vec<Advanced>> {
        let advance = |advance: &&Advance| self.advance(advance.execution, advance.commands.clone());
        let answers = advances.iter().map(advance).collect::<Outcome<_>>()?;
        self.tx.append_events(&self.lines)?;
        Ok(answers)
    }

    pub(super) fn advance_due(mut self, most: usize) -> Outcome<Looked> {
        let executions = agenda::due(self.tx, most)?;
        for id in &executions {
            self.advance(*id, Vec::new())?;
        }
        self.tx.append_events(&self.lines)?;
        looked(self.tx, executions)
    }

    fn start(&mut self, start: &Start) -> Outcome<Started> {
        let kept = match &start.idempotency {
            Some(idempotency) => seen(self.tx, &idempotency.key)?,
            None => None,
        };
        let kept =
            kept.as_ref().map(|(fingerprint, ids)| (fingerprint.as_str(), ids.first().copied().map(ExecutionId)));
        let sent = repeated(start.id, known(self.tx, start.id)?, start.idempotency.as_ref(), kept);
        if let Some(earlier) = Started::earlier(sent) {
            return Ok(earlier);
        }
        let found = graphs::find(self.tx.connection, self.definitions, &start.graph, start.version.as_deref())?;
        let Some(definition) = found else { return Ok(Started::NoGraph) };
        let standing = if definition.graph.singleton { standing_one(self.tx, &start.graph)? } else { None };
        let answer = match opening(&definition.graph, standing) {
            Opening::Stands(id) => Started::Exists(id),
            Opening::Begin => self.begin(start, &definition)?,
        };
        if let (Some(idempotency), Some(id)) = (&start.idempotency, answer.kept()) {
            remember(self.tx, idempotency, id.0.as_bytes())?;
        }
        Ok(answer)
    }

    fn begin(&mut self, start: &Start, definition: &Definition) -> Outcome<Started> {
        let (id, now, graph) = (start.id, self.tx.now, definition.graph.clone());
        let plan = self.planner.plan(Snapshot::before(id, graph, now), start.commands());
        if let Some(refusal) = plan.refused_start() {
            return Ok(Started::Refused(refusal));
        }
        // Without a version, the definition is the newest one itself.
        let latest = if start.version.is_some() { self.latest(&start.graph)? } else { None };
        let course = Course::begin(definition.serial, latest);
        self.lines.extend(events(id, &plan, true));
        let place = carry_out(self.tx, id, &definition.graph, 0, &plan, &mut self.lines)?;
        let execution = &plan.changes.execution;
        self.tx
            .connection
            .prepare_cached(
                "insert into execution (id, graph, definition, seen, singleton, revision, archived_at, stamp, place,
                   created_at, updated_at)
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, ?8, ?9, ?9)",
            )?
            .execute(params![
                id.0.into_bytes(),
                definition.graph.name,
                stored(course.definition),
                stored(course.seen),
                definition.graph.singleton,
                stored(execution.revision),
                execution.archived_at.map(|at| at.0),
                stored(place),
                now.0,
            ])?;
        Ok(Started::Created { id, revision: execution.revision })
    }

    /// The serial of the newest definition of a name.
    fn latest(&self, graph: &str) -> Outcome<Option<u64>> {
        let latest = graphs::find(self.tx.connection, self.definitions, graph, None)?;
        Ok(latest.map(|latest| latest.serial))
    }

    fn advance(&mut self, id: ExecutionId, commands: Vec<Command>) -> Outcome<Advanced> {
        let Some(row) = snapshot::row(self.tx.connection, id)? else {
            agenda::take(self.tx, id)?;
            return Ok(Advanced::NotFound);
        };
        if let Some(refusal) = self.refuses_return(&row, &commands)? {
            return Ok(Advanced::refused(&commands, &refusal));
        }
        agenda::take(self.tx, id)?;
        let (course, moved) = row.course.follow(row.latest);
        let graph = graphs::by_serial(self.tx.connection, self.definitions, course.definition)?;
        let (execution, ended) = snapshot::snapshot(self.tx.connection, id, &row)?;
        let snapshot = Snapshot { id, graph: graph.clone(), execution, ended, now: self.tx.now };
        let mut plan = self.planner.plan(snapshot, commands);
        let answers = std::mem::take(&mut plan.answers);
        if !moved && plan.changes.is_empty() {
            if let Some(due) = plan.changes.next_look() {
                agenda::note(self.tx, id, due)?;
            }
            return Ok(Advanced::Done(answers));
        }
        self.lines.extend(events(id, &plan, false));
        let place = carry_out(self.tx, id, &graph, row.place, &plan, &mut self.lines)?;
        update(self.tx, id, &plan.changes.execution, place, course)?;
        Ok(Advanced::Done(answers))
    }

    /// An execution of a singleton graph does not come back while another stands.
    fn refuses_return(&self, row: &ExecutionRow, commands: &[Command]) -> Outcome<Option<Refusal>> {
        if !must_be_alone(row.singleton, row.archived_at, commands) {
            return Ok(None);
        }
        Ok(standing_one(self.tx, &row.graph)?.map(|other| not_alone(&row.graph, other)))
    }
}

fn known(tx: &Tx<'_>, id: ExecutionId) -> Outcome<bool> {
    let mut select = tx.connection.prepare_cached("select 1 from execution where id = ?1")?;
    Ok(select.exists([id.0.into_bytes()])?)
}

/// The execution of a singleton graph that is not archived.
fn standing_one(tx: &Tx<'_>, graph: &str) -> Outcome<Option<ExecutionId>> {
    let mut select = tx.connection.prepare_cached(
        "select id from execution where graph = ?1 and singleton and archived_at is null order by id limit 1",
    )?;
    let found = select.query_row([graph], |row| row.get(0)).optional()?;
    Ok(found.map(|id| ExecutionId(Uuid::from_bytes(id))))
}

fn update(tx: &Tx<'_>, id: ExecutionId, execution: &Execution, place: u64, course: Course) -> Outcome<()> {
    let mut update = tx.connection.prepare_cached(
        "update execution set definition = ?2, seen = ?3, revision = ?4, archived_at = ?5, place = ?6, updated_at = ?7,
           stamp = stamp + 1
         where id = ?1",
    )?;
    update.execute(params![
        id.0.into_bytes(),
        stored(course.definition),
        stored(course.seen),
        stored(execution.revision),
        execution.archived_at.map(|at| at.0),
        stored(place),
        tx.now.0,
    ])?;
    Ok(())
}

pub(super) fn looked(tx: &Tx<'_>, executions: Vec<ExecutionId>) -> Outcome<Looked> {
    // Events that were trimmed count too.
    let mut newest = tx.connection.prepare_cached("select seq from sqlite_sequence where name = 'event'")?;
    let news: Option<i64> = newest.query_row([], |row| row.get(0)).optional()?;
    let next_in = agenda::next(tx)?.map(|due| due.since(tx.now));
    Ok(Looked { executions, next_in, news: news.map_or(0, crate::cells::number) })
}
