//! An execution read from its rows.

use super::fault::Outcome;
use super::graphs::by_serial;
use super::runs::uuid;
use crate::cells::{ComputationCells, Definitions, cell, number};
use crate::columns::lane;
use crate::decode::count;
use everbeat_model::graph::{Computation, Course, Ended, Execution, NodeState, Status};
use everbeat_model::{ExecutionId, Json, RunId, RunState, StoreTime};
use everbeat_store::Stored;
use rusqlite::{Connection, OptionalExtension, Row};
use std::collections::BTreeMap;

/// A row of `execution`, and the newest definition of its graph.
pub(super) struct ExecutionRow {
    pub(super) graph: String,
    pub(super) course: Course,
    pub(super) latest: Option<u64>,
    pub(super) singleton: bool,
    revision: u64,
    pub(super) archived_at: Option<StoreTime>,
    stamp: u64,
    pub(super) place: u64,
    created_at: StoreTime,
    updated_at: StoreTime,
}

pub(super) fn row(connection: &Connection, id: ExecutionId) -> Outcome<Option<ExecutionRow>> {
    let mut select = connection.prepare_cached(
        "select graph, definition, seen, (select max(serial) from graph where name = e.graph), singleton, revision,
           archived_at, stamp, place, created_at, updated_at
         from execution e where id = ?1",
    )?;
    let found = select.query_row([id.0.into_bytes()], |row| {
        Ok(ExecutionRow {
            graph: row.get(0)?,
            course: Course { definition: number(row.get(1)?), seen: number(row.get(2)?) },
            latest: row.get::<_, Option<i64>>(3)?.map(number),
            singleton: row.get(4)?,
            revision: number(row.get(5)?),
            archived_at: row.get::<_, Option<i64>>(6)?.map(StoreTime),
            stamp: number(row.get(7)?),
            place: number(row.get(8)?),
            created_at: StoreTime(row.get(9)?),
            updated_at: StoreTime(row.get(10)?),
        })
    });
    Ok(found.optional()?)
}

/// The execution as its transaction sees it, and which of its runs are over.
pub(super) fn snapshot(
    connection: &Connection,
    id: ExecutionId,
    row: &ExecutionRow,
) -> Outcome<(Execution, Vec<Ended>)> {
    let mut nodes = values(connection, id)?;
    let mut ended = Vec::new();
    let mut select = connection.prepare_cached(
        "select node, status, run_id, computed_with, iterations, state, error from computation
         where execution_id = ?1 order by node",
    )?;
    let mut rows = select.query([id.0.into_bytes()])?;
    while let Some(row) = rows.next()? {
        let (node, computation) = computation(row)?;
        if let Status::Running(run) = computation.status {
            ended.extend(end(connection, &node, run)?);
        }
        nodes.entry(node).or_default().computation = Some(computation);
    }
    Ok((Execution { revision: row.revision, archived_at: row.archived_at, nodes }, ended))
}

/// How the run that computes a node ended, if it is over or unknown. Asked for each that runs, which are
/// few, instead of joined to all.
fn end(connection: &Connection, node: &str, run: RunId) -> Outcome<Option<Ended>> {
    let (id, node) = (run.0.into_bytes(), node.to_string());
    let mut done = connection.prepare_cached(
        "select state, result, case when state <> 'succeeded' then error end from done where run_id = ?1",
    )?;
    let found = done.query_row([id], |row| {
        let json = |column: usize| row.get::<_, Option<String>>(column).map(|text| text.map(Json::stored));
        Ok((row.get::<_, String>(0)?, json(1)?, json(2)?))
    });
    if let Some((state, result, error)) = found.optional()? {
        let state = RunState::parse(&state).unwrap_or(RunState::Failed);
        return Ok(Some(Ended { node, run, state, result, error }));
    }
    if connection.prepare_cached("select 1 from run where id = ?1")?.exists([id])? {
        return Ok(None);
    }
    Ok(Some(Ended::unknown(node, run)))
}

/// An execution for lists and for whoever looks.
pub(super) fn stored(connection: &Connection, definitions: &Definitions, id: ExecutionId) -> Outcome<Option<Stored>> {
    let Some(row) = row(connection, id)? else { return Ok(None) };
    let mut nodes = values(connection, id)?;
    let mut attempts = BTreeMap::new();
    let mut select = connection.prepare_cached(concat!(
        "select c.node, c.status, c.run_id, c.computed_with, c.iterations, c.state, c.error,
           case when r.id is not null then coalesce(l.attempt, d.attempt, q.attempt, s.attempt, 0) end
         from computation c
         left join run r on r.id = case when c.status = 'running' then c.run_id end
         left join lease l on l.run_id = r.id
         left join done d on d.run_id = r.id
         left join ready q on q.queue = r.queue and q.task = ",
        lane!("r"),
        " and q.rank = -r.priority and q.run_id = r.id
         left join scheduled s on s.run_id = r.id
         where c.execution_id = ?1"
    ))?;
    let mut rows = select.query([id.0.into_bytes()])?;
    while let Some(row) = rows.next()? {
        let (node, computation) = computation(row)?;
        attempts.extend(row.get::<_, Option<i64>>(7)?.map(|attempt| (node.clone(), count(attempt))));
        nodes.entry(node).or_default().computation = Some(computation);
    }
    Ok(Some(Stored {
        id,
        graph: by_serial(connection, definitions, row.course.definition)?,
        execution: Execution { revision: row.revision, archived_at: row.archived_at, nodes },
        stamp: row.stamp,
        created_at: row.created_at,
        updated_at: row.updated_at,
        attempts,
    }))
}

fn values(connection: &Connection, id: ExecutionId) -> Outcome<BTreeMap<String, NodeState>> {
    let mut select = connection.prepare_cached(
        "select node, value, revision, set_at, metadata from value where execution_id = ?1 and value is not null",
    )?;
    let mut rows = select.query([id.0.into_bytes()])?;
    let mut nodes = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let cell = cell(text(row, 1)?.unwrap_or_default(), row.get(2)?, row.get(3)?, text(row, 4)?);
        nodes.insert(row.get(0)?, NodeState { cell: Some(cell), computation: None });
    }
    Ok(nodes)
}

/// A column's text where SQLite keeps it, without a copy.
pub(super) fn text<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<Option<&'a str>> {
    Ok(row.get_ref(column)?.as_str_or_null()?)
}

/// From the first seven columns, the node first.
fn computation(row: &Row<'_>) -> rusqlite::Result<(String, Computation)> {
    let cells = ComputationCells {
        status: row.get(1)?,
        run_id: uuid(row, 2)?,
        computed_with: row.get(3)?,
        iterations: row.get(4)?,
        state: row.get(5)?,
        error: row.get(6)?,
    };
    Ok((row.get(0)?, cells.read()))
}
