use super::fault::Outcome;
use super::settle::free_key;
use super::writer::Tx;
use everbeat_model::RunId;
use everbeat_model::event::line;
use everbeat_store::Cancelled;
use rusqlite::{OptionalExtension, Row, params};

pub(super) fn cancel(tx: &Tx<'_>, run: RunId) -> Outcome<Cancelled> {
    let id = run.0.into_bytes();
    let mut lane = tx.connection.prepare_cached("select queue, task, -priority, unique_key from run where id = ?1")?;
    let found = lane.query_row([id], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, i32>(2)?,
            row.get::<_, Option<String>>(3)?,
        ))
    });
    let Some((queue, task, rank, unique_key)) = found.optional()? else { return Ok(Cancelled::NotFound) };
    let mut finished = tx.connection.prepare_cached("select 1 from done where run_id = ?1")?;
    if finished.exists([id])? {
        return Ok(Cancelled::AlreadyFinished);
    }
    let asked = tx
        .connection
        .prepare_cached("update lease set cancel_requested_at = coalesce(cancel_requested_at, ?2) where run_id = ?1")?
        .execute(params![id, tx.now.0])?;
    if asked > 0 {
        return Ok(Cancelled::Asked);
    }
    let standing = |row: &Row<'_>| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?, row.get::<_, u32>(2)?));
    let waited = tx
        .connection
        .prepare_cached("delete from scheduled where run_id = ?1 returning attempt, tries, losses")?
        .query_row([id], standing)
        .optional()?;
    let waited = match waited {
        Some(waited) => Some(waited),
        None => tx
            .connection
            .prepare_cached(
                "delete from ready where queue = ?1 and task = ?2 and rank = ?3 and run_id = ?4
                 returning attempt, tries, losses",
            )?
            .query_row(params![queue, task, rank, id], standing)
            .optional()?,
    };
    let (attempt, tries, losses) = waited.unwrap_or_default();
    tx.connection
        .prepare_cached(
            "insert into done (run_id, state, finished_at, attempt, tries, losses)
             values (?1, 'cancelled', ?2, ?3, ?4, ?5)",
        )?
        .execute(params![id, tx.now.0, attempt, tries, losses])?;
    if let Some(key) = unique_key {
        free_key(tx, &key, id)?;
    }
    tx.append_events(&[line("run.cancelled", &run.to_string(), None, None)])?;
    Ok(Cancelled::Ended)
}
