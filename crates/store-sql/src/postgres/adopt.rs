//! Leases of detached runs pass on to another replica of their host.

use super::leases::held_cells;
use super::link::Link;
use crate::columns::{HELD_COLUMNS, REPLICA_COLUMNS};
use crate::decode::{Policies, readable};
use crate::encode::limit;
use everbeat_model::ReplicaId;
use everbeat_store::{Held, Result};

/// What is seen through the index of detached leases is locked by key, passing over what somebody else is
/// writing. A locked lease is looked at once more, as it is by then: another replica may just have adopted it.
/// Its run is locked too, to be read as it is by then: the former owner may just have placed it.
/// A replica that may hold no leases has no host here, and nothing is found for it.
fn adopt_sql() -> String {
    format!(
        "with gone as materialized (select p.id from replica p where p.state not in ('active', 'draining') \
           and p.host = (select host from replica where id = $1 and state in ('active', 'draining'))), \
         seen as materialized (select l.run_id, l.replica_id from lease l where l.detached), \
         left_behind as materialized (select s.run_id from seen s where s.replica_id = any(array(select id from gone))), \
         locked as materialized (select l.run_id from lease l \
           where l.run_id = any(array(select run_id from left_behind)) \
             and l.replica_id = any(array(select id from gone)) order by l.run_id limit $2 for update skip locked), \
         adopted as (update lease l set replica_id = $1, tenure = l.tenure + 1 \
           where l.run_id = any(array(select run_id from locked)) returning l.*) \
         select {HELD_COLUMNS}, {REPLICA_COLUMNS}, 0::bigint from adopted l \
         cross join lateral (select * from run r where r.id = l.run_id offset 0 for share) r \
         left join replica p on p.id = l.replica_id order by l.run_id"
    )
}

pub(super) async fn adopt(link: &Link, to: ReplicaId, most: usize) -> Result<Vec<Held>> {
    let rows = link.query(&adopt_sql(), &[&to.0, &limit(most)]).await?;
    let mut policies = Policies::default();
    Ok(readable(rows.iter().map(|row| held_cells(row).read(&mut policies))))
}
