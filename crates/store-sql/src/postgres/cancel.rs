//! Runs that somebody asked to end.

use super::link::Link;
use super::sql::{append_event, now};
use crate::columns::lane;
use everbeat_model::RunId;
use everbeat_model::event::{EventKind, line};
use everbeat_store::{Cancelled, Error, Result};

/// A run may move between the snapshot and the write; then it is looked for again.
const LOOKS: usize = 20;

const CANCEL: &str = concat!(
    "with ",
    now!(),
    ", lane as materialized (select r.id, r.queue, ",
    lane!("r"),
    " as task, -r.priority as rank, r.unique_key, r.execution_id, r.schedule_id from run r where r.id = $1), \
     asked as (update lease l set cancel_requested_at = coalesce(l.cancel_requested_at, t.now) from t \
       where l.run_id = $1 returning 1), \
     unready as (delete from ready r where r.queue = (select queue from lane) \
         and r.task = (select task from lane) and r.rank = (select rank from lane) and r.run_id = $1 \
       returning r.attempt, r.tries, r.losses), \
     unscheduled as (delete from scheduled s where s.run_id = $1 returning s.attempt, s.tries, s.losses), \
     waited as materialized (select * from unready union all select * from unscheduled), \
     ended as (insert into done (run_id, state, finished_at, attempt, tries, losses) \
       select $1, 'cancelled', t.now, w.attempt, w.tries, w.losses from waited w, t returning 1), \
     freed as (delete from unique_key k where k.key = (select unique_key from lane) and k.run_id = $1 \
       and exists (select 1 from waited)), \
     noted as (insert into agenda (execution_id, due_at) \
       select l.execution_id, 0 from lane l, waited where l.execution_id is not null), \
     schedule_noted as (insert into schedule_note (schedule_id) \
       select s.id from lane l cross join waited cross join lateral (\
         select s.id from schedule s where s.id = l.schedule_id offset 0) s), \
     logged as (",
    append_event!(),
    "t.now, $2 from waited, t) \
     select case when not exists (select 1 from lane) then 'not_found' \
       when exists (select 1 from ended) then 'ended' \
       when exists (select 1 from asked) then 'asked' \
       when exists (select 1 from done where run_id = $1) then 'finished' \
       else 'moved' end"
);

pub(super) async fn cancel(link: &Link, run: RunId) -> Result<Cancelled> {
    let event = line(EventKind::RunCancelled, &run.to_string(), None, None);
    for _ in 0..LOOKS {
        let rows = link.query(CANCEL, &[&run.0, &event]).await?;
        match rows.first().map(|row| row.get::<_, &str>(0)) {
            Some("not_found") => return Ok(Cancelled::NotFound),
            Some("ended") => return Ok(Cancelled::Ended),
            Some("asked") => return Ok(Cancelled::Asked),
            Some("finished") => return Ok(Cancelled::AlreadyFinished),
            _ => {}
        }
    }
    Err(Error::Bug(format!("run {run} is in none of scheduled, ready, running and finished")))
}
