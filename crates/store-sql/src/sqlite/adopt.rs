//! Leases of detached runs pass on to another replica of their host.

use super::fault::Outcome;
use super::leases;
use super::writer::Tx;
use crate::encode::limit;
use everbeat_model::{ReplicaId, RunId};
use everbeat_store::{Held, Which};
use rusqlite::params;
use uuid::Uuid;

/// A replica that may hold no leases has no host here, and nothing is found for it.
pub(super) fn adopt(tx: &Tx<'_>, to: ReplicaId, most: usize) -> Outcome<Vec<Held>> {
    let mut update = tx.connection.prepare_cached(
        "update lease set replica_id = ?1, tenure = tenure + 1 where run_id in (
           select l.run_id from lease l indexed by lease_detached cross join replica p on p.id = l.replica_id
           where l.detached and p.state not in ('active', 'draining')
             and p.host = (select host from replica where id = ?1 and state in ('active', 'draining'))
           order by l.run_id limit ?2)
         returning run_id",
    )?;
    let adopted = update.query_map(params![to.0.into_bytes(), limit(most)], |row| row.get(0))?;
    let adopted = adopted.map(|run| run.map(|run| RunId(Uuid::from_bytes(run))));
    let mut adopted = adopted.collect::<rusqlite::Result<Vec<RunId>>>()?;
    // `returning` promises no order.
    adopted.sort_unstable();
    leases::held(tx.connection, &Which::Of(adopted))
}
