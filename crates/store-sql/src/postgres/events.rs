//! The log of events.

use super::Postgres;
use super::enqueue::APPEND;
use super::link::Link;
use crate::decode::whole;
use crate::encode::{limit, lines};
use async_trait::async_trait;
use everbeat_model::StoreTime;
use everbeat_model::event::{PER_BATCH, expand};
use everbeat_store::{EventPage, Events, News, Result, TRIM_LIMIT};
use tokio_postgres::Row;

/// Up to here nothing is still being written. Asked in a statement of its own, before the log is read:
/// a snapshot must be younger than the answer.
const DECIDED: &str = "select decided_event_batch()";

/// Batches read at once: each may be large.
const CHUNK: i64 = 16;

/// Counts by number, so that what is kept need not be read; a number that was never written counts too.
const TRIM: &str = "\
    with old as materialized (select batch from event \
      where batch <= (select max(batch) from event) - $1 order by batch limit $2), \
    dropped as (delete from event e where e.batch = any(array(select batch from old)) returning e.batch), \
    noted as (update log set trimmed_through = d.batch \
      from (select max(batch) as batch from dropped) d where d.batch > trimmed_through) \
    select count(*) from dropped";

#[async_trait]
impl Events for Postgres {
    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        let link = self.read();
        let first = i64::try_from(after / PER_BATCH).unwrap_or(i64::MAX);
        let decided = decided(link).await?;
        let sql = "select batch, at, body, (select trimmed_through from log) from event \
                   where batch between $1 and $2 order by batch limit $3";
        let mut page = EventPage::default();
        let mut next = first;
        loop {
            let rows = link.query(sql, &[&next, &decided, &CHUNK]).await?;
            for row in &rows {
                page.gap |= after > 0 && row.get::<_, i64>(3) > first;
                page.events.extend(expanded(row).into_iter().filter(|event| event.id > after));
                if page.events.len() >= limit.max(1) {
                    return Ok(page);
                }
            }
            match rows.last() {
                Some(row) if rows.len() as i64 == CHUNK => next = row.get::<_, i64>(0).saturating_add(1),
                _ => break,
            }
        }
        if page.events.is_empty() && after > 0 {
            let rows = link.query("select trimmed_through > $1 from log", &[&first]).await?;
            page.gap = rows.first().is_some_and(|row| row.get(0));
        }
        Ok(page)
    }

    async fn announce(&self, news: Vec<News>) -> Result<()> {
        if !news.is_empty() {
            self.command.query(APPEND, &[&lines(&news).join("\n")]).await?;
        }
        Ok(())
    }

    async fn last_event(&self) -> Result<u64> {
        let link = self.read();
        let decided = decided(link).await?;
        let sql = "select batch, at, body from event where batch <= $1 order by batch desc limit 1";
        let rows = link.query(sql, &[&decided]).await?;
        Ok(rows.first().and_then(|row| expanded(row).last().map(|event| event.id)).unwrap_or(0))
    }

    async fn trim_events(&self, keep: u64) -> Result<usize> {
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        let rows = self.slow.query(TRIM, &[&keep, &limit(TRIM_LIMIT)]).await?;
        Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
    }
}

async fn decided(link: &Link) -> Result<i64> {
    let rows = link.query(DECIDED, &[]).await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

fn expanded(row: &Row) -> Vec<everbeat_model::Event> {
    expand(whole(row.get(0)), StoreTime(row.get(1)), row.get(2))
}
