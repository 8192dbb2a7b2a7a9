//! Attempts end: their run is finished, or goes back to its lane now or later.

use super::fault::Outcome;
use super::verdicts::insert_verdict;
use super::writer::Tx;
use super::{agenda, schedule_notes};
use crate::columns::lane;
use crate::encode::micros;
use everbeat_model::event::{EventKind, line};
use everbeat_model::{Next, RunState, Settled, Settlement};
use everbeat_store::AT_ONCE;
use rusqlite::{CachedStatement, OptionalExtension, params};

pub(super) fn settle(tx: &Tx<'_>, settlements: &[&Settlement]) -> Outcome<Vec<Settled>> {
    let mut statements = Statements::prepare(tx)?;
    let mut lines = Vec::with_capacity(settlements.len());
    let mut answers = Vec::with_capacity(settlements.len());
    for settlement in settlements {
        answers.push(statements.settle(tx, settlement, &mut lines)?);
    }
    tx.append_events(&lines)?;
    Ok(answers)
}

struct Statements<'a> {
    find: CachedStatement<'a>,
    unlease: CachedStatement<'a>,
    finish: CachedStatement<'a>,
}

struct Ended {
    attempt: u32,
    replica_id: [u8; 16],
    granted_at: i64,
    last_heartbeat_at: i64,
}

impl<'a> Statements<'a> {
    fn prepare(tx: &Tx<'a>) -> Outcome<Statements<'a>> {
        Ok(Statements {
            find: tx.connection.prepare_cached(
                "select attempt, replica_id, granted_at, last_heartbeat_at, cancel_requested_at is not null
                 from lease where run_id = ?1 and token = ?2 and replica_id = ?3",
            )?,
            unlease: tx.connection.prepare_cached("delete from lease where run_id = ?1")?,
            finish: tx.connection.prepare_cached(
                "insert into done (run_id, state, finished_at, attempt, tries, losses, result, error, outcome,
                   replica_id, worker_id, token, started_at, last_heartbeat_at, verdict_id)
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            )?,
        })
    }

    fn settle(&mut self, tx: &Tx<'_>, settlement: &Settlement, lines: &mut Vec<String>) -> Outcome<Settled> {
        let id = settlement.shown.run_id.0.into_bytes();
        let shown = [id, settlement.shown.token.0.into_bytes(), settlement.shown.replica_id.0.into_bytes()];
        let found = self.find.query_row(shown, |row| {
            let ended = Ended {
                attempt: row.get(0)?,
                replica_id: row.get(1)?,
                granted_at: row.get(2)?,
                last_heartbeat_at: row.get(3)?,
            };
            Ok((ended, row.get::<_, bool>(4)?))
        });
        let Some((ended, cancel_asked)) = found.optional()? else { return Ok(Settled::Fenced) };
        if cancel_asked && settlement.unless_cancelled() {
            return Ok(Settled::CancelAsked);
        }
        self.unlease.execute([id])?;
        if let Some(verdict) = &settlement.verdict {
            insert_verdict(tx, verdict)?;
        }
        let subject = settlement.shown.run_id.to_string();
        match settlement.next {
            Next::Finish(to) => {
                lines.push(line(EventKind::run(to), &subject, Some(ended.attempt), None));
                self.finish(tx, settlement, &ended, to)?;
            }
            Next::Ready | Next::After(_) => {
                let kind = EventKind::attempt(settlement.ending.outcome);
                lines.push(line(kind, &subject, Some(ended.attempt), None));
                return_to_line(tx, settlement, &ended)?;
            }
        }
        Ok(Settled::Done)
    }

    fn finish(&mut self, tx: &Tx<'_>, settlement: &Settlement, ended: &Ended, to: RunState) -> Outcome<()> {
        let id = settlement.shown.run_id.0.into_bytes();
        self.finish.execute(params![
            id,
            to.as_str(),
            tx.now.0,
            ended.attempt,
            settlement.standing.tries,
            settlement.standing.losses,
            settlement.ending.result.as_ref().map(|json| json.as_str()),
            settlement.ending.error.as_ref().map(|json| json.as_str()),
            settlement.ending.outcome.as_str(),
            ended.replica_id,
            settlement.worker_id.map(|worker| worker.to_string()),
            settlement.shown.token.0.into_bytes(),
            ended.granted_at,
            settlement.last_heartbeat_at.map_or(ended.last_heartbeat_at, |at| at.0),
            settlement.verdict.as_ref().map(|verdict| verdict.id.0.into_bytes()),
        ])?;
        if let Some(key) = &settlement.spec.unique_key {
            free_key(tx, key, id)?;
        }
        if let Some(parent) = &settlement.spec.parent {
            agenda::note(tx, parent.execution, AT_ONCE)?;
        }
        if let Some(occurrence) = settlement.spec.occurrence {
            schedule_notes::note(tx, occurrence.schedule)?;
        }
        Ok(())
    }
}

fn return_to_line(tx: &Tx<'_>, settlement: &Settlement, ended: &Ended) -> Outcome<()> {
    let id = settlement.shown.run_id.0.into_bytes();
    tx.connection
        .prepare_cached(
            "insert or replace into attempt (run_id, attempt, outcome, replica_id, worker_id, token, started_at,
               ended_at, last_heartbeat_at, error, verdict_id)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute(params![
            id,
            ended.attempt,
            settlement.ending.outcome.as_str(),
            ended.replica_id,
            settlement.worker_id.map(|worker| worker.to_string()),
            settlement.shown.token.0.into_bytes(),
            ended.granted_at,
            tx.now.0,
            settlement.last_heartbeat_at.map_or(ended.last_heartbeat_at, |at| at.0),
            settlement.ending.error.as_ref().map(|json| json.as_str()),
            settlement.verdict.as_ref().map(|verdict| verdict.id.0.into_bytes()),
        ])?;
    let (tries, losses) = (settlement.standing.tries, settlement.standing.losses);
    match settlement.next {
        Next::After(delay) => tx
            .connection
            .prepare_cached(
                "insert into scheduled (run_id, run_at, attempt, tries, losses, host)
                 select r.id, ?2, ?3, ?4, ?5, r.host from run r where r.id = ?1",
            )?
            .execute(params![id, tx.now.0.saturating_add(micros(delay)), ended.attempt, tries, losses])?,
        _ => put_ready(tx, id, ended.attempt, tries, losses)?,
    };
    Ok(())
}

/// The lane comes from the run's own row, which says where it belongs by now.
pub(super) fn put_ready(tx: &Tx<'_>, id: [u8; 16], attempt: u32, tries: u32, losses: u32) -> Outcome<usize> {
    let mut insert = tx.connection.prepare_cached(concat!(
        "insert into ready (queue, task, rank, run_id, attempt, tries, losses) select r.queue, ",
        lane!("r"),
        ", -r.priority, r.id, ?2, ?3, ?4 from run r where r.id = ?1"
    ))?;
    Ok(insert.execute(params![id, attempt, tries, losses])?)
}

pub(super) fn free_key(tx: &Tx<'_>, key: &str, run: [u8; 16]) -> Outcome<()> {
    tx.connection
        .prepare_cached("delete from unique_key where key = ?1 and run_id = ?2")?
        .execute(params![key, run])?;
    Ok(())
}
