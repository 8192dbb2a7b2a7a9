//! The host where a detached run has begun.

use super::fault::Outcome;
use super::writer::Tx;
use everbeat_model::lease::Shown;
use rusqlite::params;

pub(super) fn place(tx: &Tx<'_>, shown: Shown, host: Option<&str>) -> Outcome<bool> {
    let mut update = tx.connection.prepare_cached(
        "update run set host = ?4 where id = ?1
           and exists (select 1 from lease where run_id = ?1 and token = ?2 and replica_id = ?3)",
    )?;
    let (run, token, owner) = (shown.run_id.0, shown.token.0, shown.replica_id.0);
    Ok(update.execute(params![run.into_bytes(), token.into_bytes(), owner.into_bytes(), host])? > 0)
}
