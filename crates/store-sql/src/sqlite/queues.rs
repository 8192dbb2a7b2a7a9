use super::Sqlite;
use super::fault::Outcome;
use crate::decode::whole;
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::RunId;
use everbeat_model::event::line;
use everbeat_model::queue::Queue;
use everbeat_model::run::Spec;
use everbeat_store::{Queues, Result};
use rusqlite::{Connection, OptionalExtension, params};

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
                    let kind = if paused { "queue.paused" } else { "queue.resumed" };
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
