//! What replicas tell of their workers.

use super::Sqlite;
use super::fault::Outcome;
use super::writer::Tx;
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::{Json, ReplicaId, StoreTime, WorkerId};
use everbeat_store::{Result, Told, WorkerFilter, WorkerRow, Workers};
use rusqlite::{Connection, Row, params};
use uuid::Uuid;

#[async_trait]
impl Workers for Sqlite {
    async fn tell_workers(&self, replica: ReplicaId, told: Vec<Told>, gone: Vec<WorkerId>) -> Result<()> {
        self.writer.write(move |tx| tell(tx, replica, &told, &gone)).await
    }

    async fn workers(&self, filter: WorkerFilter) -> Result<Vec<WorkerRow>> {
        self.readers.read(move |connection| list(connection, &filter)).await
    }
}

fn tell(tx: &Tx<'_>, replica: ReplicaId, told: &[Told], gone: &[WorkerId]) -> Outcome<()> {
    let replica = replica.0.into_bytes();
    let mut delete = tx.connection.prepare_cached("delete from worker where id = ?1 and replica_id = ?2")?;
    for id in gone {
        delete.execute(params![id.0.into_bytes(), replica])?;
    }
    let mut upsert = tx.connection.prepare_cached(
        "insert into worker (id, replica_id, pool, state, at, report)
         select ?1, p.id, ?3, ?4, ?5, ?6 from replica p where p.id = ?2 and p.state in ('active', 'draining')
         on conflict (id) do update set replica_id = excluded.replica_id, pool = excluded.pool,
           state = excluded.state, at = excluded.at, report = excluded.report",
    )?;
    for told in told {
        let (id, report) = (told.id.0.into_bytes(), told.report.as_str());
        upsert.execute(params![id, replica, told.pool, told.state, tx.now.0, report])?;
    }
    Ok(())
}

fn list(connection: &Connection, filter: &WorkerFilter) -> Outcome<Vec<WorkerRow>> {
    let mut select = connection.prepare_cached(
        "select w.id, w.replica_id, w.pool, w.state, w.at, w.report from worker w join replica p on p.id = w.replica_id
         where p.state in ('active', 'draining') and (?1 is null or w.id = ?1)
           and (?2 is null or w.replica_id <> ?2) and (?3 is null or w.pool = ?3)
           and (?4 is null or w.state = ?4) and (?5 is null or w.id > ?5) order by w.id limit ?6",
    )?;
    let id = |id: Option<WorkerId>| id.map(|id| id.0.into_bytes());
    let besides = filter.besides.map(|replica| replica.0.into_bytes());
    let given = params![id(filter.id), besides, filter.pool, filter.state, id(filter.after), limit(filter.limit)];
    Ok(select.query_map(given, read)?.collect::<rusqlite::Result<_>>()?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<WorkerRow> {
    let (id, report) = (WorkerId(Uuid::from_bytes(row.get(0)?)), Json::stored(row.get::<_, String>(5)?));
    let told = Told { id, pool: row.get(2)?, state: row.get(3)?, report };
    Ok(WorkerRow { told, replica_id: ReplicaId(Uuid::from_bytes(row.get(1)?)), at: StoreTime(row.get(4)?) })
}
