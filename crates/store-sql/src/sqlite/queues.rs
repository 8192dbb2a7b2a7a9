//! Queues: what stands in them, and pausing them.

use super::Sqlite;
use super::fault::Outcome;
use crate::decode::whole;
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::queue::Queue;
use everbeat_model::run::Spec;
use everbeat_model::{RunId, StoreTime};
use everbeat_store::{MOST_LINES, Queues, Result};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use std::time::Duration;

#[async_trait]
impl Queues for Sqlite {
    async fn queues(&self) -> Result<Vec<Queue>> {
        self.readers.read(queues).await
    }

    async fn ahead(&self, spec: &Spec, run: RunId, most: usize) -> Result<u64> {
        let (queue, lane, rank) = (spec.queue.clone(), spec.lane().into_owned(), -i64::from(spec.priority));
        self.readers
            .read(move |connection| {
                let mut select = connection.prepare_cached(
                    "select count(*) from (select 1 from ready
                     where queue = ?1 and task = ?2 and (rank, run_id) < (?3, ?4) limit ?5)",
                )?;
                let id = run.0.into_bytes();
                Ok(whole(select.query_row(params![queue, lane, rank, id, limit(most)], |row| row.get(0))?))
            })
            .await
    }

    async fn ready_ages(&self) -> Result<BTreeMap<String, Duration>> {
        let now = self.clock.now();
        self.readers.read(move |connection| ready_ages(connection, now)).await
    }

    async fn pause(&self, queue: &str, paused: bool) -> Result<bool> {
        let queue = queue.to_string();
        self.writer
            .write(move |tx| {
                let mut select = tx.connection.prepare_cached("select paused from queue where name = ?1")?;
                let before = select.query_row([&queue], |row| row.get(0)).optional()?.unwrap_or(false);
                if before != paused {
                    tx.connection
                        .prepare_cached("insert or replace into queue (name, paused) values (?1, ?2)")?
                        .execute(params![queue, paused])?;
                    let kind = if paused { EventKind::QueuePaused } else { EventKind::QueueResumed };
                    tx.append_events(&[line(kind, &queue, None, None)])?;
                }
                Ok(before != paused)
            })
            .await
    }
}

fn queues(connection: &Connection) -> Outcome<Vec<Queue>> {
    let mut select = connection.prepare_cached(
        "select name, max(paused), sum(scheduled), sum(ready), sum(running) from (
           select name, paused, 0 as scheduled, 0 as ready, 0 as running from queue
           union all select r.queue, 0, count(*), 0, 0 from scheduled x join run r on r.id = x.run_id group by r.queue
           union all select queue, 0, 0, count(*), 0 from ready group by queue
           union all select r.queue, 0, 0, 0, count(*) from lease x join run r on r.id = x.run_id group by r.queue)
         group by name order by name",
    )?;
    let found = select.query_map([], |row| {
        Ok(Queue {
            name: row.get(0)?,
            paused: row.get(1)?,
            scheduled: whole(row.get(2)?),
            ready: whole(row.get(3)?),
            running: whole(row.get(4)?),
        })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

/// From the head of one line to the next, by the index.
fn ready_ages(connection: &Connection, now: StoreTime) -> Outcome<BTreeMap<String, Duration>> {
    let mut next = connection.prepare_cached(
        "select x.queue, x.task, x.rank, coalesce(a.ended_at, max(r.created_at, coalesce(r.run_at, 0)))
         from (select * from ready where (queue, task, rank) > (?1, ?2, ?3)
               order by queue, task, rank, run_id limit 1) x
           join run r on r.id = x.run_id
           left join attempt a on a.run_id = x.run_id and a.attempt = x.attempt",
    )?;
    let mut ages: BTreeMap<String, Duration> = BTreeMap::new();
    // Names are not empty, so that every line comes after this.
    let mut line = (String::new(), String::new(), i64::MIN);
    for _ in 0..MOST_LINES {
        let row = |row: &rusqlite::Row<'_>| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), StoreTime(row.get(3)?)));
        let Some((head, since)) = next.query_row(params![line.0, line.1, line.2], row).optional()? else { break };
        line = head;
        let oldest = ages.entry(line.0.clone()).or_default();
        *oldest = now.since(since).max(*oldest);
    }
    Ok(ages)
}
