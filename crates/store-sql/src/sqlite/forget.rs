//! Finished runs and old idempotency keys are forgotten.

use super::fault::Outcome;
use super::writer::Tx;
use crate::decode::whole;
use crate::encode::{limit, micros};
use everbeat_model::{StoreTime, idempotency};
use everbeat_store::FORGET_ITEMS;
use rusqlite::{Connection, params};
use std::time::Duration;

pub(super) fn finished_before(
    connection: &Connection,
    now: StoreTime,
    keep: Duration,
    most: usize,
) -> Outcome<Vec<[u8; 16]>> {
    // A run whose end its execution has not taken note of yet stays.
    let mut select = connection.prepare_cached(
        "select d.run_id, coalesce((select o.last - o.first + 1 from output_tally o where o.run_id = d.run_id), 0)
         from done d where d.finished_at < ?1
           and not exists (select 1 from computation c where c.run_id = d.run_id and c.status = 'running')
         order by d.run_id limit ?2",
    )?;
    let mut found = select.query(params![now.0.saturating_sub(micros(keep)), limit(most)])?;
    let (mut runs, mut items) = (Vec::new(), 0);
    while items < FORGET_ITEMS
        && let Some(row) = found.next()?
    {
        runs.push(row.get(0)?);
        items += whole(row.get(1)?);
    }
    Ok(runs)
}

/// Forgets those that are still finished: one may have been reopened since it was found.
pub(super) fn forget(tx: &Tx<'_>, runs: &[[u8; 16]], now: StoreTime, keep: Duration) -> Outcome<usize> {
    let mut done = tx.connection.prepare_cached("delete from done where run_id = ?1 and finished_at < ?2")?;
    let mut forgotten = 0;
    for id in runs {
        if done.execute(params![id, now.0.saturating_sub(micros(keep))])? == 0 {
            continue;
        }
        forget_rest(tx, *id)?;
        forgotten += 1;
    }
    tx.connection
        .prepare_cached("delete from idempotency where created_at < ?1")?
        .execute([tx.now.0.saturating_sub(micros(idempotency::KEEP))])?;
    Ok(forgotten)
}

pub(super) fn forget_one(tx: &Tx<'_>, run: [u8; 16]) -> Outcome<bool> {
    let mut done = tx.connection.prepare_cached(
        "delete from done where run_id = ?1
           and not exists (select 1 from computation c where c.run_id = ?1 and c.status = 'running')",
    )?;
    let over = done.execute([run])? > 0;
    if over {
        forget_rest(tx, run)?;
    }
    Ok(over)
}

/// All that is kept of a run besides its end.
fn forget_rest(tx: &Tx<'_>, run: [u8; 16]) -> Outcome<()> {
    for sql in [
        "delete from run where id = ?1",
        "delete from run_sign where run_id = ?1",
        "delete from output where run_id = ?1",
        "delete from output_tally where run_id = ?1",
        "delete from attempt where run_id = ?1",
    ] {
        tx.connection.prepare_cached(sql)?.execute([run])?;
    }
    Ok(())
}
