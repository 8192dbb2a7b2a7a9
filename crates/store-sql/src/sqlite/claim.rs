//! Ready runs become leases.

use super::fault::Outcome;
use super::writer::Tx;
use crate::columns::{SPEC_COLUMNS, spec_columns};
use crate::decode::{Policies, SpecCells};
use crate::encode::limit;
use crate::pick::{Candidate, Lane, lane_limit, pick};
use everbeat_model::lease::Lease;
use everbeat_model::run::Claimed;
use everbeat_model::{Json, RunId, Standing, StoreTime};
use everbeat_store::Claim;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use uuid::Uuid;

pub(super) fn claim(tx: &Tx<'_>, request: &Claim) -> Outcome<Vec<Claimed>> {
    if request.limit == 0 || !is_active(tx, request.replica.0)? {
        return Ok(Vec::new());
    }
    let lanes = open_lanes(tx, request)?;
    let mut candidates = Vec::new();
    let mut standings = BTreeMap::new();
    for (index, lane) in lanes.iter().enumerate() {
        let most = lane_limit(lane, &request.tasks, &request.queues, request.limit);
        first_of(tx, lane, index, most, &mut candidates, &mut standings)?;
    }
    let picked = pick(candidates, &lanes, &request.tasks, &request.queues, request.limit);
    take_from_ready(tx, &lanes, &picked)?;
    lease(tx, request, &lanes, &picked, &standings)
}

fn is_active(tx: &Tx<'_>, replica: Uuid) -> Outcome<bool> {
    let mut select = tx.connection.prepare_cached("select state = 'active' from replica where id = ?1")?;
    Ok(select.query_row([replica.into_bytes()], |row| row.get(0)).optional()?.unwrap_or(false))
}

/// The lanes that have something to claim, in order.
fn open_lanes(tx: &Tx<'_>, request: &Claim) -> Outcome<Vec<Lane>> {
    let mut paused = tx.connection.prepare_cached("select paused from queue where name = ?1")?;
    let mut lanes = Vec::new();
    let mut last = None;
    while let Some(lane) = next_lane(tx.connection, last.as_ref())? {
        let offered = request.tasks.contains_key(&lane.task) && request.takes_from(&lane.queue);
        if offered && !paused.query_row([&lane.queue], |row| row.get(0)).optional()?.unwrap_or(false) {
            lanes.push(Lane { queue: lane.queue.clone(), task: lane.task.clone() });
        }
        last = Some(lane);
    }
    Ok(lanes)
}

/// Steps from lane to lane through the key, without reading what stands in them. Two statements, each
/// beyond one column: beyond a pair, SQLite would read through the whole lane.
pub(super) fn next_lane(connection: &Connection, last: Option<&Lane>) -> Outcome<Option<Lane>> {
    let (queue, task) = last.map_or(("", ""), |lane| (&lane.queue, &lane.task));
    let mut same_queue =
        connection.prepare_cached("select task from ready where queue = ?1 and task > ?2 order by task limit 1")?;
    if let Some(task) = same_queue.query_row([queue, task], |row| row.get(0)).optional()? {
        return Ok(Some(Lane { queue: queue.to_string(), task }));
    }
    let mut next_queue =
        connection.prepare_cached("select queue, task from ready where queue > ?1 order by queue, task limit 1")?;
    Ok(next_queue.query_row([queue], |row| Ok(Lane { queue: row.get(0)?, task: row.get(1)? })).optional()?)
}

type Standings = BTreeMap<Uuid, Standing>;

fn first_of(
    tx: &Tx<'_>,
    lane: &Lane,
    index: usize,
    most: usize,
    candidates: &mut Vec<Candidate>,
    standings: &mut Standings,
) -> Outcome<()> {
    let mut select = tx.connection.prepare_cached(
        "select rank, run_id, attempt, tries, losses from ready where queue = ?1 and task = ?2
         order by rank, run_id limit ?3",
    )?;
    let mut rows = select.query(params![lane.queue, lane.task, limit(most)])?;
    while let Some(row) = rows.next()? {
        let run_id = Uuid::from_bytes(row.get(1)?);
        candidates.push(Candidate { rank: row.get(0)?, run_id, lane: index });
        let standing = Standing { attempt: row.get(2)?, tries: row.get(3)?, losses: row.get(4)? };
        // A run that was never tried is what a lane mostly holds.
        if standing != Standing::default() {
            standings.insert(run_id, standing);
        }
    }
    Ok(())
}

/// From each lane a prefix was picked, so one range per lane goes.
fn take_from_ready(tx: &Tx<'_>, lanes: &[Lane], picked: &[Candidate]) -> Outcome<()> {
    let mut last: BTreeMap<usize, &Candidate> = BTreeMap::new();
    picked.iter().for_each(|candidate| _ = last.insert(candidate.lane, candidate));
    let mut delete = tx
        .connection
        .prepare_cached("delete from ready where queue = ?1 and task = ?2 and (rank, run_id) <= (?3, ?4)")?;
    for (lane, candidate) in last {
        let lane = &lanes[lane];
        delete.execute(params![lane.queue, lane.task, candidate.rank, candidate.run_id.into_bytes()])?;
    }
    Ok(())
}

fn lease(
    tx: &Tx<'_>,
    request: &Claim,
    lanes: &[Lane],
    picked: &[Candidate],
    standings: &Standings,
) -> Outcome<Vec<Claimed>> {
    let mut insert = tx.connection.prepare_cached(
        "insert into lease (run_id, replica_id, attempt, tries, losses, token, granted_at, last_heartbeat_at,
           detached)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8)",
    )?;
    let mut select = tx.connection.prepare_cached(concat!(
        "select ",
        spec_columns!(),
        ", s.checkpoint, max(r.created_at, coalesce(r.run_at, 0)) from run r left join run_sign s on s.run_id = r.id where r.id = ?1"
    ))?;
    let mut policies = Policies::default();
    let mut claimed = Vec::with_capacity(picked.len());
    let replica = request.replica.0.into_bytes();
    for candidate in picked {
        let id = candidate.run_id.into_bytes();
        let before = standings.get(&candidate.run_id).copied().unwrap_or_default();
        let standing = Standing { attempt: before.attempt.saturating_add(1), ..before };
        let token = tx.token();
        insert.execute(params![
            id,
            replica,
            standing.attempt,
            standing.tries,
            standing.losses,
            token.0.into_bytes(),
            tx.now.0,
            lanes[candidate.lane].detached(),
        ])?;
        let found = select.query_row([id], |row| {
            let checkpoint: Option<String> = row.get(SPEC_COLUMNS)?;
            Ok((spec_cells(row, 0)?, checkpoint.map(Json::stored), StoreTime(row.get(SPEC_COLUMNS + 1)?)))
        });
        let spec = found
            .optional()?
            .map(|(cells, checkpoint, due_at)| (cells.read(candidate.run_id, &mut policies), checkpoint, due_at));
        // A run that cannot be read stays leased; its owner's reconciliation finds it. The others go on.
        let Some((Ok(spec), checkpoint, due_at)) = spec else {
            tracing::error!(run = %candidate.run_id, "a claimed run cannot be read and is not performed");
            continue;
        };
        let lease = Lease {
            run_id: RunId(candidate.run_id),
            attempt: standing.attempt,
            token,
            replica_id: request.replica,
            tenure: 0,
            granted_at: tx.now,
        };
        claimed.push(Claimed { lease, spec, standing, checkpoint, due_at });
    }
    Ok(claimed)
}

/// Reads the columns of a spec that begin at `first`.
pub(super) fn spec_cells(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<SpecCells> {
    Ok(SpecCells {
        kind: row.get(first)?,
        task: row.get(first + 1)?,
        queue: row.get(first + 2)?,
        priority: row.get(first + 3)?,
        input: row.get(first + 4)?,
        policy: row.get(first + 5)?,
        unique_key: row.get(first + 6)?,
        args: row.get(first + 7)?,
        execution_id: row.get::<_, Option<[u8; 16]>>(first + 8)?.map(Uuid::from_bytes),
        node: row.get(first + 9)?,
        host: row.get(first + 10)?,
        session: row.get(first + 11)?,
        schedule_id: row.get::<_, Option<[u8; 16]>>(first + 12)?.map(Uuid::from_bytes),
        due_at: row.get(first + 13)?,
    })
}
