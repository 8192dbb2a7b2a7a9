//! Parts of executions, read without the rest.

use super::fault::Outcome;
use super::graphs::by_serial;
use super::runs::uuid;
use super::snapshot::text;
use crate::cells::{ComputationCells, Definitions, cell, number, stored};
use crate::encode::limit;
use everbeat_model::graph::Status;
use everbeat_model::{ExecutionId, Json, RunId, StoreTime};
use everbeat_store::{Peek, Remembered};
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

pub(super) fn value(
    connection: &Connection,
    definitions: &Definitions,
    id: ExecutionId,
    node: &str,
) -> Outcome<Option<Peek>> {
    let mut select = connection.prepare_cached(
        "select e.stamp, e.definition, v.value, v.revision, v.set_at, v.metadata, c.status, c.run_id, c.error
         from execution e
         left join value v on v.execution_id = e.id and v.node = ?2
         left join computation c on c.execution_id = e.id and c.node = ?2
         where e.id = ?1",
    )?;
    let found = select.query_row(params![id.0.into_bytes(), node], |row| {
        let cell = match text(row, 2)? {
            Some(value) => Some(cell(value, row.get(3)?, row.get(4)?, text(row, 5)?)),
            None => None,
        };
        let peek = Peek { stamp: number(row.get(0)?), known: false, cell, failed: failure(row)? };
        Ok((peek, number(row.get(1)?)))
    });
    let Some((peek, definition)) = found.optional()? else { return Ok(None) };
    let known = by_serial(connection, definitions, definition)?.node(node).is_some();
    Ok(Some(Peek { known, ..peek }))
}

fn failure(row: &Row<'_>) -> rusqlite::Result<Option<String>> {
    let Some(status) = row.get(6)? else { return Ok(None) };
    let cells = ComputationCells {
        status,
        run_id: uuid(row, 7)?,
        computed_with: "{}".to_string(),
        iterations: 0,
        state: None,
        error: row.get(8)?,
    };
    Ok(match cells.read().status {
        Status::Failed(error) => Some(error),
        Status::Running(_) | Status::Next | Status::Done => None,
    })
}

pub(super) fn stamps(connection: &Connection, executions: Vec<ExecutionId>) -> Outcome<Vec<(ExecutionId, u64)>> {
    let mut select = connection.prepare_cached("select stamp from execution where id = ?1")?;
    let mut stamps = Vec::with_capacity(executions.len());
    for id in executions {
        let stamp = select.query_row([id.0.into_bytes()], |row| row.get(0)).optional()?;
        stamps.extend(stamp.map(|stamp| (id, number(stamp))));
    }
    Ok(stamps)
}

pub(super) fn history(connection: &Connection, id: ExecutionId, after: u64, most: usize) -> Outcome<Vec<Remembered>> {
    let mut select = connection.prepare_cached(
        "select place, node, value, revision, at, metadata, run_id from value_history
         where execution_id = ?1 and place > ?2 order by place limit ?3",
    )?;
    let found = select.query_map(params![id.0.into_bytes(), stored(after), limit(most)], |row| {
        let json = |column: usize| row.get::<_, Option<String>>(column).map(|text| text.map(Json::stored));
        Ok(Remembered {
            place: number(row.get(0)?),
            node: row.get(1)?,
            value: json(2)?,
            revision: number(row.get(3)?),
            at: StoreTime(row.get(4)?),
            metadata: json(5)?,
            run: uuid(row, 6)?.map(RunId),
        })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

/// Executions whose computation counts as running although its run is over or unknown.
pub(super) fn stranded(connection: &Connection, most: usize) -> Outcome<Vec<ExecutionId>> {
    let mut select = connection.prepare_cached(
        "select distinct c.execution_id from computation c
         where c.status = 'running' and c.run_id is not null
           and (exists (select 1 from done d where d.run_id = c.run_id)
             or not exists (select 1 from run r where r.id = c.run_id))
         order by c.execution_id limit ?1",
    )?;
    let found = select.query_map([limit(most)], |row| Ok(ExecutionId(Uuid::from_bytes(row.get(0)?))))?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}
