//! Scheduled runs that are due become ready.

use super::fault::Outcome;
use super::settle::put_ready;
use super::writer::Tx;
use crate::encode::limit;
use everbeat_model::StoreTime;
use everbeat_store::Promoted;
use rusqlite::{OptionalExtension, params};

pub(super) fn promote(tx: &Tx<'_>, most: usize) -> Outcome<Promoted> {
    let mut due = tx.connection.prepare_cached(
        "select run_id, attempt, tries, losses from scheduled where run_at <= ?1 order by run_at, run_id limit ?2",
    )?;
    let due = due
        .query_map(params![tx.now.0, limit(most)], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<rusqlite::Result<Vec<([u8; 16], u32, u32, u32)>>>()?;
    let mut delete = tx.connection.prepare_cached("delete from scheduled where run_id = ?1")?;
    for (id, attempt, tries, losses) in &due {
        delete.execute([id])?;
        put_ready(tx, *id, *attempt, *tries, *losses)?;
    }
    let mut next = tx.connection.prepare_cached("select run_at from scheduled order by run_at limit 1")?;
    let next: Option<i64> = next.query_row([], |row| row.get(0)).optional()?;
    Ok(Promoted { moved: due.len(), next_in: next.map(|at| StoreTime(at).since(tx.now)) })
}
