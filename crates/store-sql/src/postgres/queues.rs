//! Queues: what stands in them, and pausing them.

use super::Postgres;
use super::sql::{append_event, now};
use crate::decode::whole;
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::RunId;
use everbeat_model::event::{EventKind, line};
use everbeat_model::queue::Queue;
use everbeat_model::run::Spec;
use everbeat_store::{MOST_LINES, Queues, Result};
use std::collections::BTreeMap;
use std::time::Duration;

const QUEUES: &str = "\
    select name, bool_or(paused), sum(scheduled)::bigint, sum(ready)::bigint, sum(running)::bigint from (\
      select name, paused, 0 as scheduled, 0 as ready, 0 as running from queue \
      union all select r.queue, false, count(*), 0, 0 from scheduled x join run r on r.id = x.run_id group by r.queue \
      union all select queue, false, 0, count(*), 0 from ready group by queue \
      union all select r.queue, false, 0, 0, count(*) from lease x join run r on r.id = x.run_id group by r.queue) x \
    group by name order by name";

/// Counts by primary key, from the first of the lane on.
const AHEAD: &str = "\
    select count(*) from (select 1 from ready \
      where queue = $1 and task = $2 and (rank, run_id) < ($3, $4) limit $5) x";

/// The head of every line, found by the index: the first of a queue, task and rank.
const READY_AGES: &str = concat!(
    "with recursive ",
    now!(),
    ", head as (\
       (select queue, task, rank, run_id, attempt from ready order by queue, task, rank, run_id limit 1) \
       union all \
       select n.* from head h cross join lateral (\
         select r.queue, r.task, r.rank, r.run_id, r.attempt from ready r \
         where (r.queue, r.task, r.rank) > (h.queue, h.task, h.rank) \
         order by r.queue, r.task, r.rank, r.run_id limit 1) n), \
     heads as materialized (select * from head limit $1) \
     select h.queue, max(t.now - coalesce(a.ended_at, greatest(r.created_at, r.run_at))) \
     from t, heads h join run r on r.id = h.run_id \
       left join attempt a on a.run_id = h.run_id and a.attempt = h.attempt \
     group by h.queue"
);

/// Resuming a queue that was never paused changes nothing.
const PAUSE: &str = concat!(
    "with ",
    now!(),
    ", changed as (insert into queue as q (name, paused) \
       select $1, $2::boolean where $2 or exists (select 1 from queue where name = $1) \
       on conflict (name) do update set paused = excluded.paused where q.paused <> excluded.paused returning 1), \
     logged as (",
    append_event!(),
    "t.now, $3 from t, changed) \
     select count(*) > 0 from changed"
);

#[async_trait]
impl Queues for Postgres {
    async fn queues(&self) -> Result<Vec<Queue>> {
        let rows = self.slow.query(QUEUES, &[]).await?;
        let queue = |row: &tokio_postgres::Row| Queue {
            name: row.get(0),
            paused: row.get(1),
            scheduled: whole(row.get(2)),
            ready: whole(row.get(3)),
            running: whole(row.get(4)),
        };
        Ok(rows.iter().map(queue).collect())
    }

    async fn ahead(&self, spec: &Spec, run: RunId, most: usize) -> Result<u64> {
        let (lane, rank) = (spec.lane(), -i32::from(spec.priority));
        let rows = self.read().query(AHEAD, &[&spec.queue, &lane.as_ref(), &rank, &run.0, &limit(most)]).await?;
        Ok(rows.first().map_or(0, |row| whole(row.get(0))))
    }

    async fn ready_ages(&self) -> Result<BTreeMap<String, Duration>> {
        let rows = self.slow.query(READY_AGES, &[&limit(MOST_LINES)]).await?;
        Ok(rows.iter().map(|row| (row.get(0), Duration::from_micros(whole(row.get(1))))).collect())
    }

    async fn pause(&self, queue: &str, paused: bool) -> Result<bool> {
        let kind = if paused { EventKind::QueuePaused } else { EventKind::QueueResumed };
        let event = line(kind, queue, None, None);
        let rows = self.command.query(PAUSE, &[&queue, &paused, &event]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }
}
