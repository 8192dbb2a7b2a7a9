//! Verdicts: recording, finding and forgetting them.

use super::Sqlite;
use super::fault::Outcome;
use super::runs::uuid;
use super::writer::Tx;
use crate::columns::VERDICT_COLUMNS;
use crate::decode::{VerdictCells, readable};
use crate::encode::{limit, micros};
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::{Verdict, VerdictId};
use everbeat_store::{Result, VerdictFilter, Verdicts};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::time::Duration;
use uuid::Uuid;

#[async_trait]
impl Verdicts for Sqlite {
    async fn record(&self, verdicts: Vec<Verdict>) -> Result<()> {
        self.writer
            .write(move |tx| {
                let mut lines = Vec::with_capacity(verdicts.len());
                for verdict in &verdicts {
                    insert_verdict(tx, verdict)?;
                    let kind = EventKind::judged(verdict.judgement);
                    lines.push(line(kind, &verdict.subject.id, verdict.attempt, None));
                }
                tx.append_events(&lines)
            })
            .await
    }

    async fn verdict(&self, id: VerdictId) -> Result<Option<Verdict>> {
        self.readers
            .read(move |connection| {
                let mut select =
                    connection.prepare_cached(&format!("select {VERDICT_COLUMNS} from verdict where id = ?1"))?;
                let cells = select.query_row([id.0.into_bytes()], verdict_cells).optional()?;
                Ok(cells.map(VerdictCells::read).transpose()?)
            })
            .await
    }

    async fn verdicts(&self, filter: VerdictFilter) -> Result<Vec<Verdict>> {
        self.readers.read(move |connection| verdicts(connection, &filter)).await
    }

    async fn forget_verdicts(&self, keep: Duration, most: usize) -> Result<usize> {
        self.writer
            .write(move |tx| {
                let mut delete = tx.connection.prepare_cached(
                    "delete from verdict where id in (select id from verdict where at < ?1 order by id limit ?2)",
                )?;
                Ok(delete.execute(params![tx.now.0.saturating_sub(micros(keep)), limit(most)])?)
            })
            .await
    }
}

/// Writes a verdict; its time is the store's.
pub(super) fn insert_verdict(tx: &Tx<'_>, verdict: &Verdict) -> Outcome<()> {
    let mut insert = tx.connection.prepare_cached(
        "insert or replace into verdict (id, at, subject_kind, subject_id, judgement, reason, evidence, judged_by,
           run_id, attempt, followed_by)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?;
    insert.execute(params![
        verdict.id.0.into_bytes(),
        tx.now.0,
        verdict.subject.kind.as_str(),
        verdict.subject.id,
        verdict.judgement.as_str(),
        verdict.reason,
        verdict.evidence.as_str(),
        verdict.judged_by.0.into_bytes(),
        verdict.run_id.map(|run| run.0.into_bytes()),
        verdict.attempt,
        verdict.then,
    ])?;
    Ok(())
}

fn verdicts(connection: &Connection, filter: &VerdictFilter) -> Outcome<Vec<Verdict>> {
    // One statement for each way in, so that each goes through its own index.
    let by = match (filter.run_id, &filter.subject) {
        (Some(_), _) => "run_id = ?2 and (?3 is null or subject_id = ?3)",
        (None, Some(_)) => "subject_id = ?3 and ?2 is null",
        (None, None) => "?2 is null and ?3 is null",
    };
    let mut select = connection.prepare_cached(&format!(
        "select {VERDICT_COLUMNS} from verdict where {by} and (?1 is null or id < ?1) order by id desc limit ?4"
    ))?;
    let before = filter.before.map(|before| before.0.into_bytes());
    let run = filter.run_id.map(|run| run.0.into_bytes());
    let found = select.query_map(params![before, run, filter.subject, limit(filter.limit)], verdict_cells)?;
    let cells = found.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(readable(cells.into_iter().map(VerdictCells::read)))
}

fn verdict_cells(row: &Row<'_>) -> rusqlite::Result<VerdictCells> {
    Ok(VerdictCells {
        id: Uuid::from_bytes(row.get(0)?),
        at: row.get(1)?,
        subject_kind: row.get(2)?,
        subject_id: row.get(3)?,
        judgement: row.get(4)?,
        reason: row.get(5)?,
        evidence: row.get(6)?,
        judged_by: Uuid::from_bytes(row.get(7)?),
        run_id: uuid(row, 8)?,
        attempt: row.get(9)?,
        followed_by: row.get(10)?,
    })
}
