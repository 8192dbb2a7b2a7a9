//! Which replica keeps which session.

use super::Sqlite;
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::{ReplicaId, SessionId};
use everbeat_store::{KeptSession, Result, Sessions};
use rusqlite::{OptionalExtension, params};
use std::collections::BTreeSet;
use uuid::Uuid;

#[async_trait]
impl Sessions for Sqlite {
    async fn keep_session(&self, kept: KeptSession, replica: ReplicaId) -> Result<ReplicaId> {
        self.writer
            .write(move |tx| {
                let mut keeps = tx.connection.prepare_cached(
                    "select s.replica_id from session s join replica p on p.id = s.replica_id
                     where s.pool = ?1 and s.key = ?2 and p.state in ('active', 'draining')",
                )?;
                let keeper = keeps.query_row([&kept.pool, &kept.key], |row| row.get::<_, [u8; 16]>(0)).optional()?;
                if let Some(other) = keeper.map(Uuid::from_bytes).filter(|other| *other != replica.0) {
                    return Ok(ReplicaId(other));
                }
                tx.connection
                    .prepare_cached(
                        "insert into session as s (pool, key, replica_id, id) values (?1, ?2, ?3, ?4)
                         on conflict (pool, key) do update set replica_id = excluded.replica_id,
                           id = iif(s.replica_id = excluded.replica_id, max(s.id, excluded.id), excluded.id)",
                    )?
                    .execute(params![kept.pool, kept.key, replica.0.into_bytes(), kept.id.0.into_bytes()])?;
                Ok(replica)
            })
            .await
    }

    async fn let_go_sessions(&self, over: Vec<KeptSession>, replica: ReplicaId) -> Result<()> {
        self.writer
            .write(move |tx| {
                let mut delete = tx.connection.prepare_cached(
                    "delete from session where pool = ?1 and key = ?2 and replica_id = ?3 and id = ?4",
                )?;
                for KeptSession { pool, key, id } in &over {
                    delete.execute(params![pool, key, replica.0.into_bytes(), id.0.into_bytes()])?;
                }
                Ok(())
            })
            .await
    }

    async fn keep_only(
        &self,
        pool: String,
        replica: ReplicaId,
        before: SessionId,
        ids: Vec<SessionId>,
    ) -> Result<usize> {
        self.writer
            .write(move |tx| {
                let mut select = tx
                    .connection
                    .prepare_cached("select key, id from session where pool = ?1 and replica_id = ?2 and id < ?3")?;
                let found = select.query_map(params![pool, replica.0.into_bytes(), before.0.into_bytes()], |row| {
                    Ok((row.get::<_, String>(0)?, Uuid::from_bytes(row.get(1)?)))
                })?;
                let found = found.collect::<rusqlite::Result<Vec<_>>>()?;
                let named: BTreeSet<Uuid> = ids.iter().map(|id| id.0).collect();
                let mut delete = tx.connection.prepare_cached("delete from session where pool = ?1 and key = ?2")?;
                let mut over = 0;
                for (key, _) in found.iter().filter(|(_, id)| !named.contains(id)) {
                    over += delete.execute([&pool, key])?;
                }
                Ok(over)
            })
            .await
    }

    async fn forget_sessions(&self, most: usize) -> Result<usize> {
        self.writer
            .write(move |tx| {
                let mut delete = tx.connection.prepare_cached(
                    "delete from session where (pool, key) in (
                       select s.pool, s.key from session s left join replica p on p.id = s.replica_id
                       where p.id is null or p.state not in ('active', 'draining') limit ?1)",
                )?;
                Ok(delete.execute([limit(most)])?)
            })
            .await
    }
}
