//! The trait of runs, one file for each of its verbs; reading runs.

use super::claim::{int_at, spec_cells};
use super::{Postgres, adopt, cancel, claim, enqueue, forget, leases, place, promote, reopen, settle, sign, unbind};
use crate::columns::{RUN_COLUMNS, RUN_JOINS, attempts_sql, run_page};
use crate::decode::{AttemptCells, Policies, RunCells, readable};
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::lease::Shown;
use everbeat_model::run::Claimed;
use everbeat_model::{Attempt, ReplicaId, Run, RunId, Settled, Settlement, Token};
use everbeat_store::{
    Cancelled, Claim, Enqueue, Enqueued, Held, LIST_BYTES, Part, Promoted, Reopened, Result, RunFilter, Runs, Sign,
    Signed, Which,
};
use std::time::Duration;
use tokio_postgres::Row;
use uuid::Uuid;

/// Each run is looked up by key: `limit` keeps the planner from reading whole tables into a hash instead.
const FINISHED: &str = "\
    select g.run_id from unnest($1::uuid[]) with ordinality as g(run_id, nth) \
    where coalesce((select true from done d where d.run_id = g.run_id limit 1), \
      (select false from run r where r.id = g.run_id limit 1), true) order by g.nth";

#[async_trait]
impl Runs for Postgres {
    async fn enqueue(&self, requests: Vec<Enqueue>) -> Result<Vec<Result<Vec<Enqueued>>>> {
        enqueue::enqueue(self, &requests).await
    }

    async fn claim(&self, request: Claim) -> Result<Vec<Claimed>> {
        let claimed = claim::claim(&self.claim, &self.exclusive, &request).await?;
        self.tidy.claimed(claimed.len());
        Ok(claimed)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        settle::settle(&self.settle, &settlements).await
    }

    async fn was_settled(&self, leases: Vec<(RunId, Token)>) -> Result<Vec<bool>> {
        leases::was_settled(&self.settle, &leases).await
    }

    async fn sign(&self, signs: Vec<Sign>) -> Result<Vec<Signed>> {
        sign::sign(&self.settle, &signs).await
    }

    async fn cancel(&self, run: RunId) -> Result<Cancelled> {
        cancel::cancel(&self.command, run).await
    }

    async fn cancel_asked(&self, replica: ReplicaId) -> Result<Vec<Shown>> {
        leases::cancel_asked(self.read(), replica).await
    }

    async fn reopen(&self, run: RunId, attempt: u32) -> Result<Reopened> {
        reopen::reopen(&self.exclusive, run, attempt).await
    }

    async fn place(&self, shown: Shown, host: Option<String>) -> Result<bool> {
        place::place(&self.command, shown, host.as_deref()).await
    }

    async fn bound_hosts(&self) -> Result<Vec<String>> {
        unbind::bound_hosts(&self.command).await
    }

    async fn unbind(&self, host: String, limit: usize) -> Result<usize> {
        unbind::unbind(&self.command, &host, limit).await
    }

    async fn adopt(&self, to: ReplicaId, limit: usize) -> Result<Vec<Held>> {
        adopt::adopt(&self.command, to, limit).await
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        promote::promote(&self.claim, limit).await
    }

    async fn lease_index(&self, replica: ReplicaId, after: Option<RunId>, limit: usize) -> Result<Vec<Shown>> {
        leases::lease_index(self.read(), replica, after, limit).await
    }

    async fn held(&self, which: Which) -> Result<Vec<Held>> {
        leases::held(self.read(), &which).await
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>> {
        let sql = format!("select {RUN_COLUMNS} from run r {RUN_JOINS} where r.id = $1");
        let rows = self.read().query(&sql, &[&id.0]).await?;
        rows.first().map(|row| run_cells(row).read(&mut Policies::default())).transpose()
    }

    async fn finished(&self, runs: Vec<RunId>) -> Result<Vec<RunId>> {
        let runs: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let rows = self.read().query(FINISHED, &[&runs]).await?;
        Ok(rows.iter().map(|row| RunId(row.get(0))).collect())
    }

    async fn runs(&self, filter: RunFilter) -> Result<Part<Run>> {
        let (from, key) = run_page(filter.state, filter.schedule.map(|_| "$6"), "join");
        let sql = format!(
            "select * from (\
               select {RUN_COLUMNS}, count(*) over (), {BYTES_BEFORE} as bytes_before from (\
               select r.* from {from} and ($1::uuid is null or {key} < $1) and ($2::text is null or r.task = $2) \
                 and ($3::text is null or r.queue = $3) and ($4::text is null or r.kind = $4) \
                 and ($6::uuid is null or r.schedule_id = $6) \
               order by {key} desc limit $5) r \
             {RUN_JOINS}) page where bytes_before < {LIST_BYTES} order by 1 desc"
        );
        let (before, kind) = (filter.before.map(|before| before.0), filter.kind.map(|kind| kind.as_str()));
        let (most, schedule) = (limit(filter.limit), filter.schedule.map(|schedule| schedule.0));
        let rows = self.read().query(&sql, &[&before, &filter.task, &filter.queue, &kind, &most, &schedule]).await?;
        let mut policies = Policies::default();
        let found: i64 = rows.first().map_or(0, |row| row.get(FOUND));
        let cut_short = (rows.len() as i64) < found;
        Ok(Part { items: readable(rows.iter().map(|row| run_cells(row).read(&mut policies))), cut_short })
    }

    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>> {
        let rows = self.read().query(&attempts_sql("$1"), &[&run.0]).await?;
        Ok(readable(rows.iter().map(|row| attempt_cells(row).read(run.0))))
    }

    async fn forget(&self, run: RunId) -> Result<bool> {
        forget::forget(&self.slow, run).await
    }

    async fn forget_runs(&self, keep: Duration, limit: usize) -> Result<usize> {
        forget::forget_runs(&self.slow, keep, limit).await
    }
}

/// Where the number of runs on the page stands, after all columns of a run.
const FOUND: usize = 32;

/// What all newer runs of the page hold, as `Run::bytes` counts. A length is known without reading what is long.
const BYTES_BEFORE: &str = "coalesce(sum(octet_length(r.input) + coalesce(octet_length(r.args), 0) \
  + coalesce(octet_length(d.result), 0) + coalesce(octet_length(s.checkpoint), 0)) \
  over (order by r.id desc rows between unbounded preceding and 1 preceding), 0)";

fn attempt_cells(row: &Row) -> AttemptCells {
    AttemptCells {
        attempt: int_at(row, 0),
        outcome: row.get(1),
        replica_id: row.get(2),
        worker_id: row.get(3),
        started_at: row.get(4),
        ended_at: row.get(5),
        last_heartbeat_at: row.get(6),
        error: row.get(7),
        verdict_id: row.get(8),
    }
}

pub(super) fn run_cells(row: &Row) -> RunCells {
    RunCells {
        id: row.get(0),
        spec: spec_cells(row, 1),
        created_at: row.get(15),
        run_at: row.get(16),
        state: row.get(17),
        attempt: int_at(row, 18),
        started_at: row.get(19),
        finished_at: row.get(20),
        replica_id: row.get(21),
        worker_id: row.get(22),
        last_heartbeat_at: row.get(23),
        owner_heartbeat_at: row.get(24),
        cancel_requested_at: row.get(25),
        result: row.get(26),
        error: row.get(27),
        progress: row.get(28),
        checkpoint: row.get(29),
        tenure: int_at(row, 30),
        tries: int_at(row, 31),
    }
}
