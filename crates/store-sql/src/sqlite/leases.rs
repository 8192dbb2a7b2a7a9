//! Leases, as their owner and a rescuer read them.

use super::claim::spec_cells;
use super::fault::Outcome;
use super::replicas::replica_cells;
use crate::columns::{HELD_COLUMNS, HELD_SPEC, REPLICA_COLUMNS, SPEC_COLUMNS};
use crate::decode::{HeldCells, Policies, readable};
use crate::encode::limit;
use everbeat_model::lease::Shown;
use everbeat_model::{ReplicaId, RunId, Token};
use everbeat_store::{Held, Which};
use rusqlite::{Connection, Row, params};
use uuid::Uuid;

pub(super) fn was_settled(connection: &Connection, leases: &[(RunId, Token)]) -> Outcome<Vec<bool>> {
    let mut select = connection.prepare_cached(
        "select 1 from done where run_id = ?1 and token = ?2
         union all select 1 from attempt where run_id = ?1 and token = ?2",
    )?;
    let mut answers = Vec::with_capacity(leases.len());
    for (run, token) in leases {
        answers.push(select.exists([run.0.into_bytes(), token.0.into_bytes()])?);
    }
    Ok(answers)
}

pub(super) fn cancel_asked(connection: &Connection, replica: ReplicaId) -> Outcome<Vec<Shown>> {
    let mut select = connection.prepare_cached(
        "select run_id, attempt, token, replica_id from lease
         where replica_id = ?1 and cancel_requested_at is not null order by run_id",
    )?;
    let found = select.query_map([replica.0.into_bytes()], shown)?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn lease_index(
    connection: &Connection,
    replica: ReplicaId,
    after: Option<RunId>,
    most: usize,
) -> Outcome<Vec<Shown>> {
    let mut select = connection.prepare_cached(
        "select run_id, attempt, token, replica_id from lease where run_id > ?2 and replica_id = ?1
         order by run_id limit ?3",
    )?;
    let found = select.query_map(params![replica.0.into_bytes(), beyond(after), limit(most)], shown)?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

/// Where a page of ids begins: the empty blob sorts before every one.
fn beyond(after: Option<RunId>) -> Vec<u8> {
    after.map_or_else(Vec::new, |after| after.0.into_bytes().to_vec())
}

fn shown(row: &Row<'_>) -> rusqlite::Result<Shown> {
    Ok(Shown {
        run_id: RunId(Uuid::from_bytes(row.get(0)?)),
        attempt: row.get(1)?,
        token: Token(Uuid::from_bytes(row.get(2)?)),
        replica_id: ReplicaId(Uuid::from_bytes(row.get(3)?)),
        rescue: false,
    })
}

pub(super) fn held(connection: &Connection, which: &Which) -> Outcome<Vec<Held>> {
    let columns = format!("{HELD_COLUMNS}, {REPLICA_COLUMNS}, 0");
    // In this order: the run is read only if the owner is one to look for.
    let tables = "left join replica p on p.id = l.replica_id cross join run r on r.id = l.run_id";
    let gone = "(p.state is null or p.state not in ('active', 'draining'))";
    let mut cells = Vec::new();
    match which {
        Which::Orphaned(after, most) => {
            let mut select = connection.prepare_cached(&format!(
                "select {columns} from lease l {tables}
                 where not l.detached and l.run_id > ?1 and {gone} order by l.run_id limit ?2"
            ))?;
            let mut rows = select.query(params![beyond(*after), limit(*most)])?;
            while let Some(row) = rows.next()? {
                cells.push(held_cells(row)?);
            }
        }
        Which::Detached(after, most) => {
            let mut select = connection.prepare_cached(&format!(
                "select {columns} from lease l indexed by lease_detached {tables}
                 where l.detached and l.run_id > ?1 and {gone} order by l.run_id limit ?2"
            ))?;
            let mut rows = select.query(params![beyond(*after), limit(*most)])?;
            while let Some(row) = rows.next()? {
                cells.push(held_cells(row)?);
            }
        }
        Which::Of(runs) => {
            let mut select =
                connection.prepare_cached(&format!("select {columns} from lease l {tables} where l.run_id = ?1"))?;
            for run in runs {
                let mut rows = select.query([run.0.into_bytes()])?;
                while let Some(row) = rows.next()? {
                    cells.push(held_cells(row)?);
                }
            }
        }
    }
    let mut policies = Policies::default();
    Ok(readable(cells.into_iter().map(|held| held.read(&mut policies))))
}

fn held_cells(row: &Row<'_>) -> rusqlite::Result<HeldCells> {
    const OWNER: usize = HELD_SPEC + SPEC_COLUMNS;
    let owned = row.get::<_, Option<[u8; 16]>>(OWNER)?.is_some();
    Ok(HeldCells {
        run_id: Uuid::from_bytes(row.get(0)?),
        replica_id: Uuid::from_bytes(row.get(1)?),
        attempt: row.get(2)?,
        tries: row.get(3)?,
        losses: row.get(4)?,
        token: Uuid::from_bytes(row.get(5)?),
        granted_at: row.get(6)?,
        last_heartbeat_at: row.get(7)?,
        cancel_requested_at: row.get(8)?,
        tenure: row.get(9)?,
        spec: spec_cells(row, HELD_SPEC)?,
        owner: if owned { Some(replica_cells(row, OWNER)?) } else { None },
    })
}
