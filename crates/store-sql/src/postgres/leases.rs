//! Leases, as their owner and a rescuer read them.

use super::arrays::{arrays, numbered};
use super::claim::{int_at, spec_cells};
use super::link::Link;
use super::replicas::replica_cells;
use crate::columns::{HELD_COLUMNS, HELD_SPEC, REPLICA_COLUMNS, SPEC_COLUMNS};
use crate::decode::{HeldCells, Policies, count, readable};
use crate::encode::limit;
use everbeat_model::lease::Shown;
use everbeat_model::{ReplicaId, RunId, Token};
use everbeat_store::{Held, Result, Which};
use std::sync::LazyLock;
use tokio_postgres::Row;
use uuid::Uuid;

arrays! {
    /// Leases by their secrets.
    Secrets of Secret {
        run_id: Uuid as "uuid",
        token: Uuid as "uuid",
    }
}

static WAS_SETTLED: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select coalesce(\
           (select true from done d where d.run_id = g.run_id and d.token = g.token limit 1), \
           (select true from attempt a where a.run_id = g.run_id and a.token = g.token limit 1), false) \
         from ({}) g order by g.nth",
        numbered(Secrets::COLUMNS)
    )
});

pub(super) async fn was_settled(link: &Link, leases: &[(RunId, Token)]) -> Result<Vec<bool>> {
    let mut secrets = Secrets::default();
    leases.iter().for_each(|(run, token)| secrets.push(Secret { run_id: run.0, token: token.0 }));
    let rows = link.query(&WAS_SETTLED, &secrets.params()).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

pub(super) async fn cancel_asked(link: &Link, replica: ReplicaId) -> Result<Vec<Shown>> {
    let sql = "select run_id, attempt, token, replica_id from lease \
               where replica_id = $1 and cancel_requested_at is not null order by run_id";
    let rows = link.query(sql, &[&replica.0]).await?;
    Ok(rows.iter().map(shown).collect())
}

pub(super) async fn lease_index(
    link: &Link,
    replica: ReplicaId,
    after: Option<RunId>,
    most: usize,
) -> Result<Vec<Shown>> {
    // A bound that is always there is one that the key's index can begin at, whoever made the plan.
    let sql = "select run_id, attempt, token, replica_id from lease \
               where replica_id = $1 and run_id > $2 order by run_id limit $3";
    let rows = link.query(sql, &[&replica.0, &beyond(after), &limit(most)]).await?;
    Ok(rows.iter().map(shown).collect())
}

/// Where a page of ids begins.
fn beyond(after: Option<RunId>) -> Uuid {
    after.map_or(Uuid::nil(), |after| after.0)
}

fn shown(row: &Row) -> Shown {
    Shown {
        run_id: RunId(row.get(0)),
        attempt: count(int_at(row, 1)),
        token: Token(row.get(2)),
        replica_id: ReplicaId(row.get(3)),
        rescue: false,
    }
}

pub(super) async fn held(link: &Link, which: &Which) -> Result<Vec<Held>> {
    let columns = format!("{HELD_COLUMNS}, {REPLICA_COLUMNS}, 0::bigint");
    // By key, whatever the planner believes about tables that fill and empty all the time.
    let run = "cross join lateral (select * from run r where r.id = l.run_id offset 0) r";
    let of_the_gone = "from lease l left join replica p on p.id = l.replica_id \
         where (p.state is null or p.state not in ('active', 'draining'))";
    let rows = match which {
        Which::Orphaned(after, most) => {
            let sql = format!(
                "select {columns} from (\
                   select l.* {of_the_gone} and not l.detached and l.run_id > $1 order by l.run_id limit $2) l \
                 {run} left join replica p on p.id = l.replica_id order by l.run_id"
            );
            link.query(&sql, &[&beyond(*after), &limit(*most)]).await?
        }
        Which::Detached(after, most) => {
            let sql = format!(
                "select {columns} from (\
                   select l.* {of_the_gone} and l.detached and l.run_id > $1 order by l.run_id limit $2) l \
                 {run} left join replica p on p.id = l.replica_id order by l.run_id"
            );
            link.query(&sql, &[&beyond(*after), &limit(*most)]).await?
        }
        Which::Of(runs) => {
            let sql = format!(
                "select {columns} from unnest($1::uuid[]) with ordinality as g(run_id, nth) \
                 cross join lateral (select * from lease l where l.run_id = g.run_id offset 0) l \
                 {run} left join replica p on p.id = l.replica_id order by g.nth"
            );
            let runs: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
            link.query(&sql, &[&runs]).await?
        }
    };
    let mut policies = Policies::default();
    Ok(readable(rows.iter().map(|row| held_cells(row).read(&mut policies))))
}

pub(super) fn held_cells(row: &Row) -> HeldCells {
    const OWNER: usize = HELD_SPEC + SPEC_COLUMNS;
    HeldCells {
        run_id: row.get(0),
        replica_id: row.get(1),
        attempt: int_at(row, 2),
        tries: int_at(row, 3),
        losses: int_at(row, 4),
        token: row.get(5),
        granted_at: row.get(6),
        last_heartbeat_at: row.get(7),
        cancel_requested_at: row.get(8),
        tenure: int_at(row, 9),
        spec: spec_cells(row, HELD_SPEC),
        owner: row.get::<_, Option<Uuid>>(OWNER).is_some().then(|| replica_cells(row, OWNER)),
    }
}
