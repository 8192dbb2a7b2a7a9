//! Executions, as they are asked for and read.

use super::filter::{Page, counting, page};
use super::link::Link;
use super::snapshot::{COMPUTATIONS, DEFINITIONS, EXECUTION_COLUMNS, NEXT_COLUMN, Read, VALUES, already, definition};
use super::sql::now;
use super::{Postgres, advance, start};
use crate::cells::{Definitions, cell, number, stored};
use crate::columns::lane;
use crate::decode::{count, readable};
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::graph::Graph;
use everbeat_model::{ExecutionId, Json, RunId, StoreTime};
use everbeat_store::{
    Advance, Advanced, Analytics, ExecutionFilter, Executions, Looked, Peek, Planner, Remembered, Result, Start,
    Started, Stored,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Row;
use uuid::Uuid;

const PEEK: &str = "\
    select e.stamp, e.definition, v.value, v.revision, v.set_at, v.metadata, c.status, c.error from execution e \
    left join value v on v.execution_id = e.id and v.node = $2 and v.value is not null \
    left join computation c on c.execution_id = e.id and c.node = $2 where e.id = $1";

const STAMPS: &str = "\
    select e.id, e.stamp from unnest($1::uuid[]) with ordinality as g(id, nth) cross join lateral (\
      select e.id, e.stamp from execution e where e.id = g.id offset 0) e order by g.nth";

const HISTORY: &str = "\
    select place, node, value, revision, at, metadata, run_id from value_history \
    where execution_id = $1 and place > $2 order by place limit $3";

const NOTE_STRANDED: &str = concat!(
    "with ",
    now!(),
    ", stranded as materialized (select distinct c.execution_id from computation c where c.status = 'running' \
       and (exists (select 1 from done d where d.run_id = c.run_id offset 0) \
         or not exists (select 1 from run r where r.id = c.run_id offset 0)) \
       order by c.execution_id limit $1), \
     noted as (insert into agenda (execution_id, due_at) select s.execution_id, 0 from stranded s) \
     select count(*) from stranded"
);

/// All executions and the archived ones; of each node how often it was reached and in how long; for how
/// many it was the last one that changed.
const ANALYTICS: &str = "\
    with mine as materialized (select e.id, e.created_at, e.archived_at from execution e where e.graph = $1) \
    select 'all', '', count(*), count(archived_at) from mine \
    union all \
    select 'reached', v.node, count(*), sum(greatest(v.first_set_at - m.created_at, 0))::bigint \
      from mine m join value v on v.execution_id = m.id where v.first_set_at is not null group by v.node \
    union all \
    select 'ended', h.node, count(*), 0 from mine m cross join lateral (\
      select h.node from value_history h where h.execution_id = m.id order by h.place desc limit 1) h group by h.node";

#[async_trait]
impl Executions for Postgres {
    async fn start(&self, starts: Vec<Start>, planner: Arc<dyn Planner>) -> Result<Vec<Started>> {
        start::start(self, &starts, &*planner).await
    }

    async fn advance(&self, advances: Vec<Advance>, planner: Arc<dyn Planner>) -> Result<Vec<Advanced>> {
        advance::advance(self, &advances, &*planner).await
    }

    async fn advance_due(&self, limit: usize, planner: Arc<dyn Planner>) -> Result<Looked> {
        advance::advance_due(self, limit, &*planner).await
    }

    async fn note_stranded(&self, most: usize) -> Result<usize> {
        let rows = self.slow.query(NOTE_STRANDED, &[&limit(most)]).await?;
        Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
    }

    async fn execution(&self, id: ExecutionId) -> Result<Option<Stored>> {
        let link = self.read();
        let rows = link.query(&stored_sql("select $1::uuid"), &[&id.0]).await?;
        let graphs = graphs(link, &self.definitions, &rows).await?;
        rows.first().map(|row| read(row, &graphs)).transpose()
    }

    async fn value(&self, id: ExecutionId, node: &str) -> Result<Option<Peek>> {
        let link = self.read();
        let rows = link.query(PEEK, &[&id.0, &node]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let serial = number(row.get(1));
        let graphs = load(link, &self.definitions, &BTreeSet::from([serial])).await?;
        let value: Option<&str> = row.get(2);
        let failed = row.get::<_, Option<&str>>(6) == Some("failed");
        Ok(Some(Peek {
            stamp: number(row.get(0)),
            known: definition(&graphs, serial)?.node(node).is_some(),
            cell: value.map(|value| cell(value, row.get(3), row.get(4), row.get(5))),
            failed: failed.then(|| row.get::<_, Option<String>>(7).unwrap_or_default()),
        }))
    }

    async fn executions(&self, filter: ExecutionFilter) -> Result<Vec<Stored>> {
        let link = self.read();
        let Page { sql, params } = page(&filter);
        let rows = link.query_once(&stored_sql(&sql), &params.given()).await?;
        let graphs = graphs(link, &self.definitions, &rows).await?;
        Ok(readable(rows.iter().map(|row| read(row, &graphs))))
    }

    async fn count(&self, filter: ExecutionFilter) -> Result<u64> {
        let Page { sql, params } = counting(&filter);
        let rows = self.slow.query_once(&sql, &params.given()).await?;
        Ok(rows.first().map_or(0, |row| number(row.get(0))))
    }

    async fn stamps(&self, executions: Vec<ExecutionId>) -> Result<Vec<(ExecutionId, u64)>> {
        let ids: Vec<Uuid> = executions.iter().map(|id| id.0).collect();
        let rows = self.read().query(STAMPS, &[&ids]).await?;
        Ok(rows.iter().map(|row| (ExecutionId(row.get(0)), number(row.get(1)))).collect())
    }

    async fn history(&self, id: ExecutionId, after: u64, most: usize) -> Result<Vec<Remembered>> {
        let rows = self.read().query(HISTORY, &[&id.0, &stored(after), &limit(most)]).await?;
        let remembered = |row: &Row| Remembered {
            place: number(row.get(0)),
            node: row.get(1),
            value: row.get::<_, Option<&str>>(2).map(Json::stored),
            revision: number(row.get(3)),
            at: StoreTime(row.get(4)),
            metadata: row.get::<_, Option<&str>>(5).map(Json::stored),
            run: row.get::<_, Option<Uuid>>(6).map(RunId),
        };
        Ok(rows.iter().map(remembered).collect())
    }

    async fn analytics(&self, graph: &str) -> Result<Analytics> {
        let rows = self.slow.query(ANALYTICS, &[&graph]).await?;
        let mut analytics = Analytics::default();
        for row in &rows {
            let (sort, node): (&str, &str) = (row.get(0), row.get(1));
            let (many, other) = (number(row.get(2)), number(row.get(3)));
            match sort {
                "all" => (analytics.executions, analytics.archived) = (many, other),
                "ended" => analytics.nodes.entry(node.to_string()).or_default().ended = many,
                _ => {
                    let reach = analytics.nodes.entry(node.to_string()).or_default();
                    reach.reached = many;
                    reach.average = Duration::from_micros(other) / u32::try_from(many).unwrap_or(u32::MAX).max(1);
                }
            }
        }
        Ok(analytics)
    }
}

impl Postgres {
    /// How the server goes about a list, for tests.
    #[doc(hidden)]
    pub async fn explain_executions(&self, filter: &ExecutionFilter) -> Result<String> {
        let Page { sql, params } = page(filter);
        let explain = format!("explain (analyze, timing off) {}", stored_sql(&sql));
        let rows = self.read().query_once(&explain, &params.given()).await?;
        Ok(rows.iter().map(|row| row.get::<_, &str>(0)).collect::<Vec<_>>().join("\n"))
    }
}

/// Executions in the order in which a query gives their ids, all as of one moment.
fn stored_sql(ids: &str) -> String {
    let lane = lane!("r");
    format!(
        "select {EXECUTION_COLUMNS}, c.attempts \
         from unnest(array({ids})) with ordinality as i(id, nth) \
         cross join lateral (select * from execution e where e.id = i.id offset 0) e \
         {VALUES} \
         left join lateral (\
           select {COMPUTATIONS}, array_agg(case when c.status = 'running' then (\
             select coalesce((select l.attempt from lease l where l.run_id = r.id), \
               (select d.attempt from done d where d.run_id = r.id), \
               (select q.attempt from ready q where q.queue = r.queue and q.task = {lane} and q.rank = -r.priority \
                 and q.run_id = r.id), \
               (select s.attempt from scheduled s where s.run_id = r.id), 0) \
             from run r where r.id = c.run_id) end) as attempts \
           from computation c where c.execution_id = e.id) c on true order by i.nth"
    )
}

async fn graphs(link: &Link, known: &Definitions, rows: &[Row]) -> Result<BTreeMap<u64, Arc<Graph>>> {
    load(link, known, &rows.iter().map(|row| number(row.get(2))).collect()).await
}

async fn load(link: &Link, known: &Definitions, serials: &BTreeSet<u64>) -> Result<BTreeMap<u64, Arc<Graph>>> {
    let (mut found, unknown) = already(known, serials);
    if !unknown.is_empty() {
        for row in link.query(DEFINITIONS, &[&unknown]).await? {
            let serial = number(row.get(0));
            // A definition that cannot be read leaves out its executions, not the whole list.
            match known.read(serial, row.get(1)) {
                Ok(graph) => _ = found.insert(serial, graph),
                Err(error) => tracing::error!(%error, "a stored definition is left out"),
            }
        }
    }
    Ok(found)
}

fn read(row: &Row, graphs: &BTreeMap<u64, Arc<Graph>>) -> Result<Stored> {
    let read = Read::of(row);
    let nodes: Option<Vec<&str>> = row.get(17);
    let attempts: Option<Vec<Option<i32>>> = row.get(NEXT_COLUMN);
    let attempts = nodes.into_iter().flatten().zip(attempts.into_iter().flatten());
    Ok(Stored {
        id: read.id,
        graph: definition(graphs, read.course.definition)?,
        attempts: attempts
            .filter_map(|(node, attempt)| Some((node.to_string(), count(i64::from(attempt?)))))
            .filter(|(node, _)| read.execution.running(node).is_some())
            .collect(),
        execution: read.execution,
        stamp: read.stamp,
        created_at: read.created_at,
        updated_at: read.updated_at,
    })
}
