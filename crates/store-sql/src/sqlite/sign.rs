//! Progress, checkpoints and heartbeats of attempts.

use super::fault::{Outcome, is_data};
use super::writer::Tx;
use everbeat_store::{Sign, Signed};
use rusqlite::{OptionalExtension, params};

pub(super) fn sign(tx: &Tx<'_>, signs: &[Sign]) -> Outcome<Vec<Signed>> {
    let mut find = tx.connection.prepare_cached(
        "select cancel_requested_at is not null from lease where run_id = ?1 and token = ?2 and replica_id = ?3",
    )?;
    let mut beat = tx.connection.prepare_cached("update lease set last_heartbeat_at = ?2 where run_id = ?1")?;
    let mut report = tx.connection.prepare_cached(
        "insert into run_sign (run_id, progress, checkpoint) values (?1, ?2, ?3)
         on conflict (run_id) do update set
           progress = coalesce(excluded.progress, progress), checkpoint = coalesce(excluded.checkpoint, checkpoint)",
    )?;
    let mut answers = Vec::with_capacity(signs.len());
    for sign in signs {
        let id = sign.shown.run_id.0.into_bytes();
        let shown = [id, sign.shown.token.0.into_bytes(), sign.shown.replica_id.0.into_bytes()];
        let held = find.query_row(shown, |row| row.get(0)).optional()?;
        let Some(cancel_asked) = held else {
            answers.push(Signed::Fenced);
            continue;
        };
        if sign.progress.is_some() || sign.checkpoint.is_some() {
            let progress = sign.progress.as_ref().map(|json| json.as_str());
            let checkpoint = sign.checkpoint.as_ref().map(|json| json.as_str());
            match report.execute(params![id, progress, checkpoint]) {
                // SQLite has undone that one statement, and the transaction goes on.
                Err(error) if is_data(&error) => {
                    tracing::warn!(run = %sign.shown.run_id, %error, "a sign cannot be stored");
                    answers.push(Signed::Unstorable);
                    continue;
                }
                written => _ = written?,
            }
        }
        beat.execute(params![id, tx.now.0])?;
        answers.push(Signed::Accepted { cancel_asked });
    }
    Ok(answers)
}
