//! Runs that belong to a host and wait: which hosts there are, and letting their runs begin anywhere.

use super::claim::next_lane;
use super::fault::Outcome;
use super::settle::put_ready;
use super::writer::Tx;
use crate::encode::limit;
use crate::pick::Lane;
use rusqlite::{Connection, params};
use std::collections::BTreeSet;
use std::rc::Rc;

/// From lane to lane, and from host to host among what waits for its time.
pub(super) fn bound_hosts(connection: &Connection) -> Outcome<Vec<String>> {
    let mut waiting = connection.prepare_cached(
        "with recursive waiting (host) as (
           select * from (select host from scheduled indexed by scheduled_host where host is not null
             order by host limit 1)
           union all
           select (select s.host from scheduled s indexed by scheduled_host where s.host > w.host
             order by s.host limit 1)
           from waiting w where w.host is not null)
         select host from waiting where host is not null",
    )?;
    let mut hosts = waiting.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<BTreeSet<String>>>()?;
    for lane in lanes(connection)? {
        hosts.extend(lane.host().map(str::to_string));
    }
    Ok(hosts.into_iter().collect())
}

pub(super) fn unbind(tx: &Tx<'_>, host: &str, most: usize) -> Outcome<usize> {
    let mut bound = waiting(tx, host, most)?;
    for lane in lanes(tx.connection)?.into_iter().filter(|lane| lane.host() == Some(host)) {
        bound.extend(ready(tx, lane, most)?);
    }
    bound.sort_unstable_by_key(|bound| bound.run);
    bound.truncate(most);
    let mut free = tx.connection.prepare_cached("update run set host = null where id = ?1")?;
    let mut unready = tx.connection.prepare_cached(
        "delete from ready where queue = ?1 and task = ?2 and rank = ?3 and run_id = ?4
         returning attempt, tries, losses",
    )?;
    let mut later = tx.connection.prepare_cached("update scheduled set host = null where run_id = ?1")?;
    for Bound { run, place } in &bound {
        free.execute([run])?;
        match place {
            Place::Ready { lane, rank } => {
                let (attempt, tries, losses) = unready.query_row(params![lane.queue, lane.task, rank, run], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?;
                put_ready(tx, *run, attempt, tries, losses)?;
            }
            Place::Scheduled => _ = later.execute([run])?,
        }
    }
    Ok(bound.len())
}

struct Bound {
    run: [u8; 16],
    place: Place,
}

enum Place {
    Ready { lane: Rc<Lane>, rank: i32 },
    Scheduled,
}

fn lanes(connection: &Connection) -> Outcome<Vec<Lane>> {
    let mut lanes: Vec<Lane> = Vec::new();
    while let Some(lane) = next_lane(connection, lanes.last())? {
        lanes.push(lane);
    }
    Ok(lanes)
}

/// The oldest that stand in the lane.
fn ready(tx: &Tx<'_>, lane: Lane, most: usize) -> Outcome<Vec<Bound>> {
    let mut select = tx
        .connection
        .prepare_cached("select run_id, rank from ready where queue = ?1 and task = ?2 order by run_id limit ?3")?;
    let lane = Rc::new(lane);
    let found = select.query_map(params![lane.queue, lane.task, limit(most)], |row| {
        Ok(Bound { run: row.get(0)?, place: Place::Ready { lane: lane.clone(), rank: row.get(1)? } })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

/// The oldest that wait for their time.
fn waiting(tx: &Tx<'_>, host: &str, most: usize) -> Outcome<Vec<Bound>> {
    let mut select = tx.connection.prepare_cached(
        "select run_id from scheduled indexed by scheduled_host where host = ?1 order by run_id limit ?2",
    )?;
    let found =
        select.query_map(params![host, limit(most)], |row| Ok(Bound { run: row.get(0)?, place: Place::Scheduled }))?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}
