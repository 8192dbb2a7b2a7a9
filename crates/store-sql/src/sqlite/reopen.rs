//! Finished runs are opened again.

use super::fault::Outcome;
use super::runs::uuid;
use super::settle::put_ready;
use super::writer::Tx;
use everbeat_model::event::{EventKind, line};
use everbeat_model::reopen::{self as model, Closed};
use everbeat_model::schedule::DueBy;
use everbeat_model::{Reopened, RunId};
use rusqlite::{OptionalExtension, params};

pub(super) fn reopen(tx: &Tx<'_>, run: RunId, attempt: u32) -> Outcome<Reopened> {
    let id = run.0.into_bytes();
    let answer = model::reopen(closed(tx, run)?, attempt);
    if answer != Reopened::Ready {
        return Ok(answer);
    }
    tx.connection
        .prepare_cached(
            "insert into unique_key (key, run_id) select unique_key, id from run where id = ?1 and unique_key is not null",
        )?
        .execute([id])?;
    tx.connection
        .prepare_cached(
            "insert or replace into attempt (run_id, attempt, outcome, replica_id, worker_id, token, started_at,
               ended_at, last_heartbeat_at, error, verdict_id)
             select run_id, attempt, outcome, replica_id, worker_id, token, started_at, finished_at,
               last_heartbeat_at, error, verdict_id
             from done where run_id = ?1 and outcome is not null",
        )?
        .execute([id])?;
    tx.connection.prepare_cached("delete from done where run_id = ?1")?.execute([id])?;
    let standing = model::standing(attempt);
    put_ready(tx, id, standing.attempt, standing.tries, standing.losses)?;
    count_again(tx, id)?;
    tx.append_events(&[line(EventKind::RunReopened, &run.to_string(), None, None)])?;
    Ok(answer)
}

/// A run that is opened again counts for its schedule again.
fn count_again(tx: &Tx<'_>, id: [u8; 16]) -> Outcome<()> {
    let mut insert = tx.connection.prepare_cached(
        "insert or replace into occurrence (run_id, schedule_id, due_at, due_by, begun)
         select r.id, s.id, r.due_at, ?2, 1 from run r cross join schedule s on s.id = r.schedule_id where r.id = ?1",
    )?;
    insert.execute(params![id, DueBy::Asked.as_str()])?;
    Ok(())
}

fn closed(tx: &Tx<'_>, run: RunId) -> Outcome<Option<Closed>> {
    let mut select = tx.connection.prepare_cached(
        "select d.attempt, k.run_id from run r left join done d on d.run_id = r.id
         left join unique_key k on k.key = r.unique_key where r.id = ?1",
    )?;
    let found = select.query_row([run.0.into_bytes()], |row| {
        Ok(Closed { run, finished: row.get(0)?, holder: uuid(row, 1)?.map(RunId) })
    });
    Ok(found.optional()?)
}
