//! Finished runs are opened again.

use super::fault::{Fault, Outcome};
use super::link::again;
use super::sql::{append_event, now};
use super::transaction::{Exclusive, Transaction};
use crate::columns::lane;
use crate::encode::int;
use everbeat_model::RunId;
use everbeat_model::event::{EventKind, line};
use everbeat_store::{Reopened, Result};

/// The attempt that ended the run moves from `done` to the history.
const REOPEN: &str = concat!(
    "with ",
    now!(),
    ", lane as materialized (select r.id, r.queue, ",
    lane!("r"),
    " as task, -r.priority as rank from run r where r.id = $1), \
     opened as (delete from done where run_id = $1 and attempt = $2 returning *), \
     kept as (insert into attempt (run_id, attempt, outcome, replica_id, worker_id, token, started_at, ended_at, \
         last_heartbeat_at, error, verdict_id) \
       select run_id, attempt, outcome, replica_id, worker_id, token, started_at, finished_at, last_heartbeat_at, \
         error, verdict_id from opened where outcome is not null on conflict do nothing), \
     again as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
       select lane.queue, lane.task, lane.rank, lane.id, $2, 0, 0 from lane, opened returning 1), \
     logged as (",
    append_event!(),
    "t.now, $3 from opened, t) \
     select 1 from again"
);

pub(super) async fn reopen(exclusive: &Exclusive, run: RunId, attempt: u32) -> Result<Reopened> {
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let answer = try_reopen(&transaction, run, attempt).await?;
        match answer {
            Reopened::Ready => transaction.commit().await?,
            _ => transaction.rollback().await?,
        }
        Ok(answer)
    });
    Ok(answer?)
}

async fn try_reopen(transaction: &Transaction<'_>, run: RunId, attempt: u32) -> Outcome<Reopened> {
    let found = "select r.unique_key, d.run_id is not null from run r \
                 left join done d on d.run_id = r.id and d.attempt = $2 where r.id = $1";
    let rows = transaction.query(found, &[&run.0, &int(attempt)]).await?;
    let Some(row) = rows.first() else { return Ok(Reopened::NotFound) };
    if !row.get::<_, bool>(1) {
        return Ok(Reopened::NotFinished);
    }
    if let Some(key) = row.get::<_, Option<&str>>(0) {
        let take = "insert into unique_key (key, run_id) values ($1, $2) on conflict (key) do nothing returning 1";
        if transaction.query(take, &[&key, &run.0]).await?.is_empty() {
            let holder = transaction.query("select run_id from unique_key where key = $1", &[&key]).await?;
            // Its holder has just finished: the key is free after all.
            let Some(row) = holder.first() else { return Err(Fault::Again(format!("the key {key:?} became free"))) };
            let holder = RunId(row.get(0));
            // Held by the run itself: somebody else opened it first.
            return Ok(if holder == run { Reopened::NotFinished } else { Reopened::KeyTaken(holder) });
        }
    }
    let event = line(EventKind::RunReopened, &run.to_string(), None, None);
    let rows = transaction.query(REOPEN, &[&run.0, &int(attempt), &event]).await?;
    Ok(if rows.is_empty() { Reopened::NotFinished } else { Reopened::Ready })
}
