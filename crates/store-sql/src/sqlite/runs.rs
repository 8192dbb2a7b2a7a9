//! The trait of runs, one file for each of its verbs; reading runs.

use super::claim::spec_cells;
use super::fault::{Fault, Outcome};
use super::writer::Tx;
use super::{Sqlite, adopt, cancel, claim, enqueue, forget, leases, place, promote, reopen, settle, sign, unbind};
use crate::columns::{RUN_COLUMNS, RUN_JOINS, attempts_sql, run_page};
use crate::decode::{AttemptCells, Policies, RunCells, readable};
use crate::encode::{limit, unstorable};
use crate::halves::Halves;
use async_trait::async_trait;
use everbeat_model::lease::Shown;
use everbeat_model::run::Claimed;
use everbeat_model::{Attempt, ReplicaId, Run, RunId, Settled, Settlement, Token};
use everbeat_store::{
    Cancelled, Claim, Enqueue, Enqueued, Error, Held, LIST_BYTES, Part, Promoted, Reopened, Result, RunFilter, Runs,
    Sign, Signed, Which,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

#[async_trait]
impl Runs for Sqlite {
    async fn enqueue(&self, requests: Vec<Enqueue>) -> Result<Vec<Result<Vec<Enqueued>>>> {
        enqueue::enqueue(self, requests).await
    }

    async fn claim(&self, request: Claim) -> Result<Vec<Claimed>> {
        self.writer.write(move |tx| claim::claim(tx, &request)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        let settlements: Arc<[Settlement]> = settlements.into();
        let mut answers = vec![Settled::Fenced; settlements.len()];
        let mut open = Halves::of((0..settlements.len()).collect());
        while let Some(places) = open.next() {
            match self.settle_piece(&settlements, &places).await {
                Ok(settled) => places.iter().zip(settled).for_each(|(place, settled)| answers[*place] = settled),
                Err(Fault::Data(reason)) => {
                    if let Some(place) = open.halve(places) {
                        answers[place] = self.settle_unstorable(&settlements[place], &reason).await?;
                    }
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(answers)
    }

    async fn was_settled(&self, leases: Vec<(RunId, Token)>) -> Result<Vec<bool>> {
        self.readers.read(move |connection| leases::was_settled(connection, &leases)).await
    }

    async fn sign(&self, signs: Vec<Sign>) -> Result<Vec<Signed>> {
        let bytes = signs.iter().map(Sign::bytes).sum();
        self.writer.write_bytes(bytes, move |tx| sign::sign(tx, &signs)).await
    }

    async fn cancel(&self, run: RunId) -> Result<Cancelled> {
        self.writer.write(move |tx| cancel::cancel(tx, run)).await
    }

    async fn cancel_asked(&self, replica: ReplicaId) -> Result<Vec<Shown>> {
        self.readers.read(move |connection| leases::cancel_asked(connection, replica)).await
    }

    async fn reopen(&self, run: RunId, attempt: u32) -> Result<Reopened> {
        self.writer.write(move |tx| reopen::reopen(tx, run, attempt)).await
    }

    async fn place(&self, shown: Shown, host: Option<String>) -> Result<bool> {
        self.writer.write(move |tx| place::place(tx, shown, host.as_deref())).await
    }

    async fn bound_hosts(&self) -> Result<Vec<String>> {
        self.readers.read(unbind::bound_hosts).await
    }

    async fn unbind(&self, host: String, limit: usize) -> Result<usize> {
        self.writer.write(move |tx| unbind::unbind(tx, &host, limit)).await
    }

    async fn adopt(&self, to: ReplicaId, limit: usize) -> Result<Vec<Held>> {
        self.writer.write(move |tx| adopt::adopt(tx, to, limit)).await
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        self.writer.write(move |tx| promote::promote(tx, limit)).await
    }

    async fn lease_index(&self, replica: ReplicaId, after: Option<RunId>, limit: usize) -> Result<Vec<Shown>> {
        self.readers.read(move |connection| leases::lease_index(connection, replica, after, limit)).await
    }

    async fn held(&self, which: Which) -> Result<Vec<Held>> {
        self.readers.read(move |connection| leases::held(connection, &which)).await
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>> {
        self.readers.read(move |connection| run(connection, id)).await
    }

    async fn finished(&self, runs: Vec<RunId>) -> Result<Vec<RunId>> {
        self.readers.read(move |connection| finished(connection, runs)).await
    }

    async fn runs(&self, filter: RunFilter) -> Result<Part<Run>> {
        self.readers.read(move |connection| runs(connection, &filter)).await
    }

    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>> {
        self.readers.read(move |connection| attempts(connection, run)).await
    }

    async fn forget(&self, run: RunId) -> Result<bool> {
        self.writer.write(move |tx| forget::forget_one(tx, run.0.into_bytes())).await
    }

    async fn forget_runs(&self, keep: Duration, limit: usize) -> Result<usize> {
        // Finding is left to a reader: it may look through much, and the writer must not wait for it.
        let now = self.writer.write(|tx| Ok(tx.now)).await?;
        let old = self.readers.read(move |connection| forget::finished_before(connection, now, keep, limit)).await?;
        self.writer.write(move |tx| forget::forget(tx, &old, now, keep)).await
    }
}

impl Sqlite {
    async fn settle_piece(&self, settlements: &Arc<[Settlement]>, places: &[usize]) -> Outcome<Vec<Settled>> {
        let (all, places) = (settlements.clone(), places.to_vec());
        let bytes = places.iter().map(|place| all[*place].ending.bytes()).sum();
        let piece = move |tx: &Tx<'_>| {
            let piece: Vec<&Settlement> = places.iter().map(|place| &all[*place]).collect();
            settle::settle(tx, &piece)
        };
        self.writer.try_write(bytes, piece).await
    }

    /// An ending that cannot be stored gives way to a failure with the reason, so that it neither blocks the others nor is
    /// tried for ever.
    async fn settle_unstorable(&self, settlement: &Settlement, reason: &str) -> Result<Settled> {
        let instead = unstorable(settlement, reason);
        let settled = self.writer.write(move |tx| settle::settle(tx, &[&instead])).await?;
        settled.into_iter().next().ok_or_else(|| Error::Bug("a settlement was not answered".to_string()))
    }
}

pub(super) fn run(connection: &Connection, id: RunId) -> Outcome<Option<Run>> {
    let mut select =
        connection.prepare_cached(&format!("select {RUN_COLUMNS} from run r {RUN_JOINS} where r.id = ?1"))?;
    let cells = select.query_row([id.0.into_bytes()], run_cells).optional()?;
    Ok(cells.map(|cells| cells.read(&mut Policies::default())).transpose()?)
}

fn finished(connection: &Connection, runs: Vec<RunId>) -> Outcome<Vec<RunId>> {
    let mut select = connection.prepare_cached(
        "select exists (select 1 from done where run_id = ?1) or not exists (select 1 from run where id = ?1)",
    )?;
    let mut over = Vec::new();
    for run in runs {
        if select.query_row([run.0.into_bytes()], |row| row.get(0))? {
            over.push(run);
        }
    }
    Ok(over)
}

fn runs(connection: &Connection, filter: &RunFilter) -> Outcome<Part<Run>> {
    let (from, key) = run_page(filter.state, filter.schedule.map(|_| "?6"), "cross join");
    let mut select = connection.prepare_cached(&format!(
        "select {RUN_COLUMNS} from (
           select r.* from {from} and (?1 is null or {key} < ?1) and (?2 is null or r.task = ?2)
             and (?3 is null or r.queue = ?3) and (?4 is null or r.kind = ?4)
             and (?6 is null or r.schedule_id = ?6)
           order by {key} desc limit ?5) r
         {RUN_JOINS} order by r.id desc"
    ))?;
    let before = filter.before.map(|before| before.0.into_bytes());
    let kind = filter.kind.map(|kind| kind.as_str());
    let schedule = filter.schedule.map(|schedule| schedule.0.into_bytes());
    let mut found = select.query(params![before, filter.task, filter.queue, kind, limit(filter.limit), schedule])?;
    let (mut cells, mut bytes) = (Vec::new(), 0);
    while bytes < LIST_BYTES
        && let Some(row) = found.next()?
    {
        let run = run_cells(row)?;
        bytes += run.bytes();
        cells.push(run);
    }
    let cut_short = bytes >= LIST_BYTES && found.next()?.is_some();
    let mut policies = Policies::default();
    Ok(Part { items: readable(cells.into_iter().map(|cells| cells.read(&mut policies))), cut_short })
}

fn attempts(connection: &Connection, run: RunId) -> Outcome<Vec<Attempt>> {
    let mut select = connection.prepare_cached(&attempts_sql("?1"))?;
    let cells = select.query_map([run.0.into_bytes()], |row| {
        Ok(AttemptCells {
            attempt: row.get(0)?,
            outcome: row.get(1)?,
            replica_id: Uuid::from_bytes(row.get(2)?),
            worker_id: row.get(3)?,
            started_at: row.get(4)?,
            ended_at: row.get(5)?,
            last_heartbeat_at: row.get(6)?,
            error: row.get(7)?,
            verdict_id: uuid(row, 8)?,
        })
    })?;
    let cells = cells.collect::<rusqlite::Result<Vec<AttemptCells>>>()?;
    Ok(readable(cells.into_iter().map(|cells| cells.read(run.0))))
}

fn run_cells(row: &Row<'_>) -> rusqlite::Result<RunCells> {
    Ok(RunCells {
        id: Uuid::from_bytes(row.get(0)?),
        spec: spec_cells(row, 1)?,
        created_at: row.get(15)?,
        run_at: row.get(16)?,
        state: row.get(17)?,
        attempt: row.get(18)?,
        started_at: row.get(19)?,
        finished_at: row.get(20)?,
        replica_id: uuid(row, 21)?,
        worker_id: row.get(22)?,
        last_heartbeat_at: row.get(23)?,
        owner_heartbeat_at: row.get(24)?,
        cancel_requested_at: row.get(25)?,
        result: row.get(26)?,
        error: row.get(27)?,
        progress: row.get(28)?,
        checkpoint: row.get(29)?,
        tenure: row.get(30)?,
        tries: row.get(31)?,
    })
}

pub(super) fn uuid(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Uuid>> {
    Ok(row.get::<_, Option<[u8; 16]>>(column)?.map(Uuid::from_bytes))
}
