//! The log of events.

use super::Sqlite;
use super::fault::Outcome;
use crate::decode::whole;
use crate::encode::{limit, lines};
use async_trait::async_trait;
use everbeat_model::StoreTime;
use everbeat_model::event::{PER_BATCH, expand};
use everbeat_store::{EventPage, Events, News, Result, TRIM_LIMIT};
use rusqlite::{Connection, OptionalExtension, params};

#[async_trait]
impl Events for Sqlite {
    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        self.readers.read(move |connection| events(connection, after, limit)).await
    }

    async fn announce(&self, news: Vec<News>) -> Result<()> {
        self.writer.write(move |tx| tx.append_events(&lines(&news))).await
    }

    async fn last_event(&self) -> Result<u64> {
        self.readers
            .read(|connection| {
                let mut select =
                    connection.prepare_cached("select batch, at, body from event order by batch desc limit 1")?;
                let newest = select.query_row([], |row| {
                    let (batch, at, body): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
                    Ok(expand(whole(batch), StoreTime(at), &body).last().map_or(0, |event| event.id))
                });
                Ok(newest.optional()?.unwrap_or(0))
            })
            .await
    }

    async fn trim_events(&self, keep: u64) -> Result<usize> {
        self.writer
            .write(move |tx| {
                let mut delete = tx.connection.prepare_cached(
                    "delete from event where batch in (
                       select batch from event where batch <= (select max(batch) from event) - ?1
                       order by batch limit ?2)",
                )?;
                Ok(delete.execute([i64::try_from(keep).unwrap_or(i64::MAX), limit(TRIM_LIMIT)])?)
            })
            .await
    }
}

fn events(connection: &Connection, after: u64, most: usize) -> Outcome<EventPage> {
    let first = after / PER_BATCH;
    let mut page = EventPage { events: Vec::new(), gap: after > 0 && oldest_batch(connection)? > first + 1 };
    let mut select =
        connection.prepare_cached("select batch, at, body from event where batch >= ?1 order by batch limit ?2")?;
    // Every batch holds an event, and of the first one all may have been seen.
    let rows = limit(most.saturating_add(1)).max(2);
    let mut rows = select.query(params![i64::try_from(first).unwrap_or(i64::MAX), rows])?;
    while let Some(row) = rows.next()? {
        let (batch, at, body): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let batch = expand(whole(batch), StoreTime(at), &body);
        page.events.extend(batch.into_iter().filter(|event| event.id > after));
        if page.events.len() >= most.max(1) {
            break;
        }
    }
    Ok(page)
}

/// The oldest batch that is kept; the next one to come, if none is.
fn oldest_batch(connection: &Connection) -> Outcome<u64> {
    let mut select = connection.prepare_cached(
        "select coalesce((select min(batch) from event),
           (select seq + 1 from sqlite_sequence where name = 'event'), 1)",
    )?;
    Ok(whole(select.query_row([], |row| row.get(0))?))
}
