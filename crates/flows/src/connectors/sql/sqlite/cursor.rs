//! The cursor of a run, in the database that the run writes to.

use super::super::sink::{CURSORS, KEPT_RUNS, fenced};
use crate::{Committed, Surroundings, Trouble, Written, outcome};
use rusqlite::{Connection, OptionalExtension, Transaction};
use serde_json::Value;

const NOW: &str = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')";

/// Takes the run's row for this attempt.
pub(super) fn take(
    transaction: &Transaction<'_>,
    around: &Surroundings,
) -> Result<Result<(), Trouble>, rusqlite::Error> {
    transaction.execute_batch(&format!(
        "create table if not exists {CURSORS} (flow text not null, run text not null, fence integer not null, \
         cursor text, outcome text, at text not null, primary key (flow, run))"
    ))?;
    let fence = fence_of(around);
    let taken = transaction.execute(
        &format!(
            "insert into {CURSORS} (flow, run, fence, at) values (?1, ?2, ?3, {NOW}) \
             on conflict (flow, run) do update set fence = excluded.fence where fence <= excluded.fence"
        ),
        (&*around.flow, &*around.run, fence),
    )?;
    if taken == 0 {
        return Ok(Err(fenced(around)));
    }
    transaction.execute(
        &format!(
            "delete from {CURSORS} where flow = ?1 and run <> ?2 and rowid not in \
             (select rowid from {CURSORS} where flow = ?1 order by at desc, rowid desc limit ?3)"
        ),
        (&*around.flow, &*around.run, KEPT_RUNS),
    )?;
    Ok(Ok(()))
}

/// The row's cursor and outcome: of this run, else of the flow's last run that has one.
pub(super) fn committed(
    connection: &Connection,
    around: &Surroundings,
) -> Result<Option<(Committed, Option<Written>)>, rusqlite::Error> {
    let sql = format!(
        "select run, cursor, outcome from {CURSORS} where flow = ?1 and cursor is not null \
         order by run = ?2 desc, at desc, rowid desc limit 1"
    );
    let row = connection
        .query_row(&sql, (&*around.flow, &*around.run), |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, Option<String>>(2)?))
        })
        .optional()?;
    Ok(row.and_then(|(run, cursor, written)| {
        let cursor = serde_json::from_str(&cursor).ok()?;
        let written = written.as_deref().and_then(outcome::from_text).filter(|_| *run == *around.run);
        Some((Committed { run, cursor }, written))
    }))
}

/// Whether the row is still this attempt's.
pub(super) fn holds(transaction: &Transaction<'_>, around: &Surroundings) -> Result<bool, rusqlite::Error> {
    let sql = format!("select 1 from {CURSORS} where flow = ?1 and run = ?2 and fence = ?3");
    transaction.prepare_cached(&sql)?.exists((&*around.flow, &*around.run, fence_of(around)))
}

pub(super) fn commit(
    transaction: &Transaction<'_>,
    around: &Surroundings,
    cursor: &Value,
    written: &Written,
) -> Result<(), rusqlite::Error> {
    let sql = format!("update {CURSORS} set cursor = ?3, outcome = ?4, at = {NOW} where flow = ?1 and run = ?2");
    let parameters = (&*around.flow, &*around.run, cursor.to_string(), outcome::to_text(written));
    transaction.prepare_cached(&sql)?.execute(parameters).map(|_| ())
}

fn fence_of(around: &Surroundings) -> i64 {
    i64::try_from(around.fence).unwrap_or(i64::MAX)
}
