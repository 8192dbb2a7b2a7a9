//! Finished runs are opened again.

use super::fault::{Fault, Outcome};
use super::link::{Params, again};
use super::sql::{append_event, now};
use super::transaction::{Exclusive, Transaction};
use crate::columns::lane;
use crate::decode::count;
use crate::encode::int;
use everbeat_model::event::{EventKind, line};
use everbeat_model::reopen::{self as model, Closed};
use everbeat_model::schedule::DueBy;
use everbeat_model::{Reopened, RunId, Standing};
use everbeat_store::Result;
use uuid::Uuid;

const CLOSED: &str = "\
    select d.attempt, k.run_id, r.unique_key, r.schedule_id, r.due_at from run r left join done d on d.run_id = r.id \
      left join unique_key k on k.key = r.unique_key where r.id = $1";

const TAKE_KEY: &str = "insert into unique_key (key, run_id) values ($1, $2) on conflict (key) do nothing returning 1";

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
       select lane.queue, lane.task, lane.rank, lane.id, $4::int, $5::int, $6::int from lane, opened returning 1), \
     logged as (",
    append_event!(),
    "t.now, $3 from opened, t) \
     select 1 from again"
);

/// No look is under way while this lock is held: a look that has seen the run finished forgets its occurrence.
const LOCK_SCHEDULE: &str = "select 1 from schedule s where s.id = $1 for update";

const COUNT_AGAIN: &str = "\
    insert into occurrence (run_id, schedule_id, due_at, due_by, begun) values ($1, $2, $3, $4, true) \
    on conflict (run_id) do update set due_at = excluded.due_at, due_by = excluded.due_by, wish = null, begun = true";

pub(super) async fn reopen(exclusive: &Exclusive, run: RunId, attempt: u32) -> Result<Reopened> {
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let answer = try_reopen(&transaction, run, attempt).await;
        transaction.close(answer).await
    });
    Ok(answer?)
}

/// Whoever loses a race looks again, so that the answer is decided over what the winner left.
async fn try_reopen(transaction: &Transaction<'_>, run: RunId, attempt: u32) -> Outcome<Reopened> {
    let rows = transaction.query(CLOSED, &[&run.0]).await?;
    let closed = rows.first().map(|row| Closed {
        run,
        finished: row.get::<_, Option<i32>>(0).map(|attempt| count(i64::from(attempt))),
        holder: row.get::<_, Option<Uuid>>(1).map(RunId),
    });
    let answer = model::reopen(closed, attempt);
    if answer != Reopened::Ready {
        return Ok(answer);
    }
    let schedule = rows.first().and_then(|row| row.get::<_, Option<Uuid>>(3).zip(row.get::<_, Option<i64>>(4)));
    if let Some((schedule, due)) = schedule {
        count_again(transaction, run, schedule, due).await?;
    }
    let key = rows.first().and_then(|row| row.get::<_, Option<&str>>(2));
    if let Some(key) = key
        && transaction.query(TAKE_KEY, &[&key, &run.0]).await?.is_empty()
    {
        return Err(Fault::Again(format!("the key {key:?} was just taken")));
    }
    let event = line(EventKind::RunReopened, &run.to_string(), None, None);
    let Standing { attempt: last, tries, losses } = model::standing(attempt);
    let params: Params<'_> = &[&run.0, &int(attempt), &event, &int(last), &int(tries), &int(losses)];
    if transaction.query(REOPEN, params).await?.is_empty() {
        return Err(Fault::Again(format!("run {run} was just opened")));
    }
    Ok(answer)
}

/// A run that is opened again counts for its schedule again.
async fn count_again(transaction: &Transaction<'_>, run: RunId, schedule: Uuid, due: i64) -> Outcome<()> {
    if transaction.query(LOCK_SCHEDULE, &[&schedule]).await?.is_empty() {
        return Ok(());
    }
    transaction.query(COUNT_AGAIN, &[&run.0, &schedule, &due, &DueBy::Asked.as_str()]).await.map(|_| ())
}
