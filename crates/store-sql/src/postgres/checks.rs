//! Checks and their pings, as they are asked for and read.

use super::sql::now;
use super::{Postgres, check_write};
use crate::cells::{number, stored};
use crate::checks::{CHECK_COLUMNS, CheckCells, PingCells};
use crate::decode::{counts, readable};
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::check::{CheckState, Ping};
use everbeat_store::{CheckFilter, CheckPut, CheckRow, Checks, Deleted, DueChecks, NewPing, Pinged, PutCheck, Result};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::Row;

const COUNT: &str = "select c.state, count(*) from checks c group by c.state";

const PINGS: &str = "\
    select p.place, p.at, p.kind, p.exit_code, p.duration, p.body from ping p where p.check_name = $1 and p.place < $2 \
    order by p.place desc limit $3";

const KNOWN: &str = "select 1 from checks c where c.name = $1";

/// The row without a name says how long it is until the next one is due.
const DUE: &str = concat!(
    "with ",
    now!(),
    " (select c.name, 0::bigint from checks c where c.look_at <= (select now from t) \
       order by c.look_at, c.name limit $1) \
     union all \
     select null, (select c.look_at from checks c where c.look_at > (select now from t) \
       order by c.look_at, c.name limit 1) - t.now from t"
);

#[async_trait]
impl Checks for Postgres {
    async fn put_check(&self, request: PutCheck) -> Result<CheckPut> {
        check_write::put(&self.pings, &request).await
    }

    async fn pause_check(&self, name: &str, paused: bool) -> Result<Option<CheckRow>> {
        check_write::change(&self.pings, name, |row, now| row.switched(paused, now)).await
    }

    async fn delete_check(&self, name: &str, version: Option<u64>) -> Result<Deleted> {
        check_write::delete(&self.pings, name, version).await
    }

    async fn check(&self, name: &str) -> Result<Option<CheckRow>> {
        let sql = format!("select {CHECK_COLUMNS} from checks c where c.name = $1");
        let rows = self.read().query(&sql, &[&name]).await?;
        rows.first().map(|row| cells(row).read()).transpose()
    }

    async fn checks(&self, filter: CheckFilter) -> Result<Vec<CheckRow>> {
        let sql = format!(
            "select {CHECK_COLUMNS} from checks c where ($1::text is null or c.name > $1) \
               and ($2::text is null or c.state = $2) order by c.name limit $3"
        );
        let state = filter.state.map(CheckState::as_str);
        let rows = self.read().query(&sql, &[&filter.after, &state, &limit(filter.limit)]).await?;
        Ok(readable(rows.iter().map(|row| cells(row).read())))
    }

    async fn count_checks(&self) -> Result<BTreeMap<CheckState, u64>> {
        let rows = self.read().query(COUNT, &[]).await?;
        Ok(counts(rows.iter().map(|row| (row.get(0), row.get(1))), CheckState::parse))
    }

    async fn ping_check(&self, request: NewPing) -> Result<Pinged> {
        check_write::ping(&self.pings, &request).await
    }

    async fn pings(&self, name: &str, before: Option<u64>, most: usize) -> Result<Option<Vec<Ping>>> {
        let link = self.read();
        if link.query(KNOWN, &[&name]).await?.is_empty() {
            return Ok(None);
        }
        let rows = link.query(PINGS, &[&name, &before.map_or(i64::MAX, stored), &limit(most)]).await?;
        let cells = rows.iter().map(|row| PingCells {
            place: row.get(0),
            at: row.get(1),
            kind: row.get(2),
            exit_code: row.get(3),
            duration: row.get(4),
            body: row.get(5),
        });
        Ok(Some(readable(cells.map(PingCells::read))))
    }

    async fn due_checks(&self, most: usize) -> Result<DueChecks> {
        let rows = self.read().query(DUE, &[&limit(most.saturating_add(1))]).await?;
        let mut names: Vec<String> = rows.iter().filter_map(|row| row.get(0)).collect();
        let ahead = rows.iter().find(|row| row.get::<_, Option<&str>>(0).is_none());
        let ahead =
            ahead.and_then(|row| row.get::<_, Option<i64>>(1)).map(|micros| Duration::from_micros(number(micros)));
        let more = names.len() > most;
        names.truncate(most);
        Ok(DueChecks { names, next_in: if more { Some(Duration::ZERO) } else { ahead } })
    }

    async fn look_at_check(&self, name: &str) -> Result<Option<CheckRow>> {
        check_write::look(&self.pings, name).await
    }
}

pub(super) fn cells(row: &Row) -> CheckCells {
    CheckCells {
        name: row.get(0),
        definition: row.get(1),
        version: row.get(2),
        created_at: row.get(3),
        updated_at: row.get(4),
        state: row.get(5),
        down_since: row.get(6),
        down_why: row.get(7),
        armed_at: row.get(8),
        last_success_at: row.get(9),
        started_at: row.get(10),
        last_ping_at: row.get(11),
        last_duration: row.get(12),
        pings: row.get(13),
    }
}
