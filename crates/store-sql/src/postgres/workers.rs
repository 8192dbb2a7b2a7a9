//! What replicas tell of their workers.

use super::Postgres;
use super::arrays::{arrays, given};
use super::sql::now;
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::{Json, ReplicaId, StoreTime, WorkerId};
use everbeat_store::{Result, Told, WorkerFilter, WorkerRow, Workers};
use std::sync::LazyLock;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

arrays! {
    /// What is told of workers, each once.
    Reports of Report<'a> {
        id: Uuid as "uuid",
        pool: Option<&'a str> as "text",
        state: &'a str as "text",
        report: &'a str as "text",
    }
}

/// The replica and those that are gone come after the arrays of what is told.
static TELL: LazyLock<String> = LazyLock::new(|| {
    let columns = Reports::COLUMNS;
    let (replica, gone) = (columns.len() + 1, columns.len() + 2);
    format!(
        "with {now}, gone as (delete from worker w where w.id = any(${gone}::uuid[]) and w.replica_id = ${replica}) \
         insert into worker (id, replica_id, pool, state, at, report) \
         select g.id, p.id, g.pool, g.state, t.now, g.report from ({given}) g, t, replica p \
         where p.id = ${replica} and p.state in ('active', 'draining') order by g.id \
         on conflict (id) do update set replica_id = excluded.replica_id, pool = excluded.pool, \
           state = excluded.state, at = excluded.at, report = excluded.report",
        now = now!(),
        given = given(columns),
    )
});

const LIST: &str = "\
    select w.id, w.replica_id, w.pool, w.state, w.at, w.report from worker w join replica p on p.id = w.replica_id \
    where p.state in ('active', 'draining') and ($1::uuid is null or w.id = $1) \
      and ($2::uuid is null or w.replica_id <> $2) and ($3::text is null or w.pool = $3) \
      and ($4::text is null or w.state = $4) and ($5::uuid is null or w.id > $5) order by w.id limit $6";

#[async_trait]
impl Workers for Postgres {
    async fn tell_workers(&self, replica: ReplicaId, told: Vec<Told>, gone: Vec<WorkerId>) -> Result<()> {
        let mut reports = Reports::default();
        for told in &told {
            reports.push(Report {
                id: told.id.0,
                pool: told.pool.as_deref(),
                state: &told.state,
                report: told.report.as_str(),
            });
        }
        let gone: Vec<Uuid> = gone.iter().map(|worker| worker.0).collect();
        let mut params = reports.params();
        params.extend([&replica.0 as &(dyn ToSql + Sync), &gone]);
        self.command.query(&TELL, &params).await?;
        Ok(())
    }

    async fn workers(&self, filter: WorkerFilter) -> Result<Vec<WorkerRow>> {
        let id = |id: Option<WorkerId>| id.map(|id| id.0);
        let (only, besides, after) = (id(filter.id), filter.besides.map(|replica| replica.0), id(filter.after));
        let most = limit(filter.limit);
        let params: [&(dyn ToSql + Sync); 6] = [&only, &besides, &filter.pool, &filter.state, &after, &most];
        let rows = self.read().query(LIST, &params).await?;
        Ok(rows.iter().map(read).collect())
    }
}

fn read(row: &Row) -> WorkerRow {
    let (id, report) = (WorkerId(row.get(0)), Json::stored(row.get::<_, String>(5)));
    let told = Told { id, pool: row.get(2), state: row.get(3), report };
    WorkerRow { told, replica_id: ReplicaId(row.get(1)), at: StoreTime(row.get(4)) }
}
