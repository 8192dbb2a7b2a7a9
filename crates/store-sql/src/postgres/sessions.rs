//! Which replica keeps which session.

use super::Postgres;
use super::arrays::{after, arrays, unnest};
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::{ReplicaId, SessionId};
use everbeat_store::{Error, KeptSession, Result, Sessions};
use std::sync::LazyLock;
use tokio_postgres::Row;
use uuid::Uuid;

/// Takes the row, unless another replica keeps it that may hold leases: then nothing is answered. An insert locks the row
/// that it meets, so that of two replicas one is told of the other.
const KEEP: &str = "\
    insert into session as s (pool, key, replica_id, id) values ($1, $2, $3, $4) \
    on conflict (pool, key) do update set replica_id = excluded.replica_id, \
        id = case when s.replica_id = excluded.replica_id then greatest(s.id, excluded.id) else excluded.id end \
      where s.replica_id = excluded.replica_id or not exists (\
        select 1 from replica p where p.id = s.replica_id and p.state in ('active', 'draining')) \
    returning s.replica_id";

const KEEPER: &str = "select replica_id from session where pool = $1 and key = $2";

/// Between the two statements the other one may have let go.
const LOOKS: usize = 5;

arrays! {
    /// Sessions that are over.
    Over of Ended<'a> {
        pool: &'a str as "text",
        key: &'a str as "text",
        id: Uuid as "uuid",
    }
}

/// The replica follows the arrays.
static LET_GO: LazyLock<String> = LazyLock::new(|| {
    format!(
        "delete from session s using {over} as g(pool, key, id) \
         where s.pool = g.pool and s.key = g.key and s.id = g.id and s.replica_id = {replica}",
        over = unnest(Over::COLUMNS),
        replica = after(Over::COLUMNS),
    )
});

const KEEP_ONLY: &str = "\
    with gone as (delete from session s \
      where s.pool = $1 and s.replica_id = $2 and s.id < $3 and s.id <> all($4::uuid[]) returning 1) \
    select count(*) from gone";

const FORGET: &str = "\
    with orphaned as materialized (select s.ctid as at from session s left join replica p on p.id = s.replica_id \
        where p.id is null or p.state not in ('active', 'draining') limit $1 for update of s skip locked), \
      gone as (delete from session s where s.ctid = any(array(select at from orphaned)) returning 1) \
    select count(*) from gone";

#[async_trait]
impl Sessions for Postgres {
    async fn keep_session(&self, kept: KeptSession, replica: ReplicaId) -> Result<ReplicaId> {
        for _ in 0..LOOKS {
            let taken = self.command.query(KEEP, &[&kept.pool, &kept.key, &replica.0, &kept.id.0]).await?;
            if !taken.is_empty() {
                return Ok(replica);
            }
            if let Some(row) = self.command.query(KEEPER, &[&kept.pool, &kept.key]).await?.first() {
                return Ok(ReplicaId(row.get(0)));
            }
        }
        Err(Error::no_answer())
    }

    async fn let_go_sessions(&self, over: Vec<KeptSession>, replica: ReplicaId) -> Result<()> {
        let mut ended = Over::default();
        over.iter().for_each(|kept| ended.push(Ended { pool: &kept.pool, key: &kept.key, id: kept.id.0 }));
        let mut params = ended.params();
        params.push(&replica.0);
        self.command.query(&LET_GO, &params).await?;
        Ok(())
    }

    async fn keep_only(
        &self,
        pool: String,
        replica: ReplicaId,
        before: SessionId,
        ids: Vec<SessionId>,
    ) -> Result<usize> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        Ok(counted(&self.command.query(KEEP_ONLY, &[&pool, &replica.0, &before.0, &ids]).await?))
    }

    async fn forget_sessions(&self, most: usize) -> Result<usize> {
        Ok(counted(&self.command.query(FORGET, &[&limit(most)]).await?))
    }
}

fn counted(rows: &[Row]) -> usize {
    rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0))
}
