//! Finished runs are opened again.

use super::enqueue::holder_of;
use super::fault::Outcome;
use super::settle::put_ready;
use super::writer::Tx;
use everbeat_model::RunId;
use everbeat_model::event::{EventKind, line};
use everbeat_store::Reopened;
use rusqlite::{OptionalExtension, params};

pub(super) fn reopen(tx: &Tx<'_>, run: RunId, attempt: u32) -> Outcome<Reopened> {
    let id = run.0.into_bytes();
    let mut select = tx.connection.prepare_cached("select unique_key from run where id = ?1")?;
    let found: Option<Option<String>> = select.query_row([id], |row| row.get(0)).optional()?;
    let Some(unique_key) = found else { return Ok(Reopened::NotFound) };
    let mut finished = tx.connection.prepare_cached("select 1 from done where run_id = ?1 and attempt = ?2")?;
    if !finished.exists(params![id, attempt])? {
        return Ok(Reopened::NotFinished);
    }
    if let Some(key) = unique_key {
        if let Some(holder) = holder_of(tx, &key)? {
            return Ok(Reopened::KeyTaken(RunId(holder)));
        }
        tx.connection
            .prepare_cached("insert into unique_key (key, run_id) values (?1, ?2)")?
            .execute(params![key, id])?;
    }
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
    put_ready(tx, id, attempt, 0, 0)?;
    tx.append_events(&[line(EventKind::RunReopened, &run.to_string(), None, None)])?;
    Ok(Reopened::Ready)
}
