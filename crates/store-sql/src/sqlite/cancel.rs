//! Runs that somebody asked to end.

use super::fault::Outcome;
use super::runs::uuid;
use super::settle::free_key;
use super::writer::Tx;
use super::{agenda, schedule_notes};
use crate::columns::lane;
use everbeat_model::event::{EventKind, line};
use everbeat_model::{ExecutionId, Json, RunId, ScheduleId};
use everbeat_store::{AT_ONCE, Cancelled};
use rusqlite::{OptionalExtension, Row, params};

pub(super) fn cancel(tx: &Tx<'_>, run: RunId) -> Outcome<Cancelled> {
    let (cancelled, works_for) = end(tx, run, None)?;
    if cancelled == Cancelled::Ended {
        if let Some(execution) = works_for.execution {
            agenda::note(tx, execution, AT_ONCE)?;
        }
        if let Some(schedule) = works_for.schedule {
            schedule_notes::note(tx, schedule)?;
        }
        tx.append_events(&[line(EventKind::RunCancelled, &run.to_string(), None, None)])?;
    }
    Ok(cancelled)
}

/// Who waits for the end of a run.
#[derive(Clone, Copy, Default)]
pub(super) struct WorksFor {
    execution: Option<ExecutionId>,
    schedule: Option<ScheduleId>,
}

/// Ends a run that is not running; asks for the end of one that is. Answers with whom the run works for; who calls notes
/// the end there, and writes the event.
pub(super) fn end(tx: &Tx<'_>, run: RunId, error: Option<&Json>) -> Outcome<(Cancelled, WorksFor)> {
    let id = run.0.into_bytes();
    let Some(found) = find(tx, id)? else { return Ok((Cancelled::NotFound, WorksFor::default())) };
    let works_for = found.works_for;
    let mut finished = tx.connection.prepare_cached("select 1 from done where run_id = ?1")?;
    if finished.exists([id])? {
        return Ok((Cancelled::AlreadyFinished, works_for));
    }
    let asked = tx
        .connection
        .prepare_cached("update lease set cancel_requested_at = coalesce(cancel_requested_at, ?2) where run_id = ?1")?
        .execute(params![id, tx.now.0])?;
    if asked > 0 {
        return Ok((Cancelled::Asked, works_for));
    }
    let (attempt, tries, losses) = take_from_line(tx, id, &found)?.unwrap_or_default();
    tx.connection
        .prepare_cached(
            "insert into done (run_id, state, finished_at, attempt, tries, losses, error)
             values (?1, 'cancelled', ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![id, tx.now.0, attempt, tries, losses, error.map(|error| error.as_str())])?;
    if let Some(key) = found.unique_key {
        free_key(tx, &key, id)?;
    }
    Ok((Cancelled::Ended, works_for))
}

struct Found {
    queue: String,
    lane: String,
    rank: i32,
    unique_key: Option<String>,
    works_for: WorksFor,
}

fn find(tx: &Tx<'_>, id: [u8; 16]) -> Outcome<Option<Found>> {
    let mut select = tx.connection.prepare_cached(concat!(
        "select r.queue, ",
        lane!("r"),
        ", -r.priority, r.unique_key, r.execution_id, r.schedule_id from run r where r.id = ?1"
    ))?;
    let found = select.query_row([id], |row| {
        Ok(Found {
            queue: row.get(0)?,
            lane: row.get(1)?,
            rank: row.get(2)?,
            unique_key: row.get(3)?,
            works_for: WorksFor { execution: uuid(row, 4)?.map(ExecutionId), schedule: uuid(row, 5)?.map(ScheduleId) },
        })
    });
    Ok(found.optional()?)
}

/// Takes a run from where it waits; answers its attempt, tries and losses.
fn take_from_line(tx: &Tx<'_>, id: [u8; 16], found: &Found) -> Outcome<Option<(u32, u32, u32)>> {
    let standing = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let waited = tx
        .connection
        .prepare_cached("delete from scheduled where run_id = ?1 returning attempt, tries, losses")?
        .query_row([id], standing)
        .optional()?;
    if waited.is_some() {
        return Ok(waited);
    }
    let mut delete = tx.connection.prepare_cached(
        "delete from ready where queue = ?1 and task = ?2 and rank = ?3 and run_id = ?4
         returning attempt, tries, losses",
    )?;
    Ok(delete.query_row(params![found.queue, found.lane, found.rank, id], standing).optional()?)
}
