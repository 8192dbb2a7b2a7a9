//! Definitions of graphs.

use super::Sqlite;
use super::enqueue::{remember, seen};
use super::fault::{Fault, Outcome};
use super::writer::Tx;
use crate::cells::{Definitions, number, stored};
use crate::decode::readable;
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::graph::{Graph, is_new};
use everbeat_model::{Json, Sent, StoreTime};
use everbeat_store::{AT_ONCE, Applied, Definition, Error, Graphs, Idempotency, Result};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::sync::Arc;

#[async_trait]
impl Graphs for Sqlite {
    async fn apply(&self, graph: Arc<Graph>, idempotency: Option<Idempotency>) -> Result<Applied> {
        let definitions = self.definitions.clone();
        self.writer.write(move |tx| apply_once(tx, &definitions, graph, idempotency.as_ref())).await
    }

    async fn graph(&self, name: &str, version: Option<&str>) -> Result<Option<Definition>> {
        let definitions = self.definitions.clone();
        let (name, version) = (name.to_string(), version.map(str::to_string));
        self.readers.read(move |connection| find(connection, &definitions, &name, version.as_deref())).await
    }

    async fn graphs(&self, after: Option<&str>, limit: usize) -> Result<Vec<Definition>> {
        let definitions = self.definitions.clone();
        let after = after.unwrap_or_default().to_string();
        self.readers.read(move |connection| graphs(connection, &definitions, &after, limit)).await
    }
}

fn apply_once(
    tx: &Tx<'_>,
    definitions: &Definitions,
    graph: Arc<Graph>,
    idempotency: Option<&Idempotency>,
) -> Outcome<Applied> {
    let Some(idempotency) = idempotency else { return apply(tx, definitions, graph) };
    let kept = seen(tx, &idempotency.key)?;
    let reused = || Error::KeyReused { key: idempotency.key.clone() };
    match idempotency.sent(kept.as_ref().map(|(fingerprint, ids)| (fingerprint.as_str(), ids))) {
        Sent::First => {}
        Sent::Again(ids) => {
            let serial = ids.first().map_or(0, |id| Definition::serial_of(*id));
            let mut select = tx.connection.prepare_cached("select serial, applied_at from graph where serial = ?1")?;
            let found = select.query_row([stored(serial)], serial_and_time).optional()?.ok_or_else(reused)?;
            return Ok(Applied { definition: definition(tx.connection, definitions, found)?, new: false });
        }
        Sent::Reused => return Err(reused().into()),
    }
    let applied = apply(tx, definitions, graph)?;
    remember(tx, idempotency, applied.definition.key_id().as_bytes())?;
    Ok(applied)
}

fn apply(tx: &Tx<'_>, definitions: &Definitions, graph: Arc<Graph>) -> Outcome<Applied> {
    // A definition that cannot be read any more is none.
    let latest = find(tx.connection, definitions, &graph.name, None).ok().flatten();
    if let Some(definition) = latest.filter(|latest| !is_new(&graph, Some(&latest.graph))) {
        return Ok(Applied { definition, new: false });
    }
    let serial: i64 = tx
        .connection
        .prepare_cached("select coalesce(max(serial), 0) + 1 from graph")?
        .query_row([], |row| row.get(0))?;
    let text = Json::of(&graph.to_value());
    tx.connection
        .prepare_cached(
            "insert into graph (serial, name, version, shape, definition, applied_at) values (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![serial, graph.name, graph.version, graph.shape(), text.as_str(), tx.now.0])?;
    // Kept also if this write is not committed in the end: whoever uses the serial next puts another graph here.
    definitions.put(number(serial), graph.clone());
    tx.connection
        .prepare_cached(
            "insert or ignore into agenda (execution_id, due_at)
             select id, ?2 from execution where graph = ?1 and archived_at is null",
        )?
        .execute(params![graph.name, AT_ONCE.0])?;
    tx.append_events(&[line(EventKind::GraphApplied, &graph.name, None, None)])?;
    let definition = Definition { serial: number(serial), graph, applied_at: tx.now };
    Ok(Applied { definition, new: true })
}

/// The latest definition of a name, or of one version of it.
pub(super) fn find(
    connection: &Connection,
    definitions: &Definitions,
    name: &str,
    version: Option<&str>,
) -> Outcome<Option<Definition>> {
    // One statement for each way in, so that each goes through the index as far as it can.
    let found = match version {
        None => connection
            .prepare_cached("select serial, applied_at from graph where name = ?1 order by serial desc limit 1")?
            .query_row([name], serial_and_time),
        Some(version) => connection
            .prepare_cached(
                "select serial, applied_at from graph where name = ?1 and version = ?2 order by serial desc limit 1",
            )?
            .query_row([name, version], serial_and_time),
    };
    let found = found.optional()?;
    found.map(|found| definition(connection, definitions, found)).transpose()
}

fn graphs(connection: &Connection, definitions: &Definitions, after: &str, most: usize) -> Outcome<Vec<Definition>> {
    let mut select = connection.prepare_cached(
        "select g.serial, g.applied_at from graph g
         where g.name > ?1 and g.serial = (select max(serial) from graph x where x.name = g.name)
         order by g.name limit ?2",
    )?;
    let found = select.query_map(params![after, limit(most)], serial_and_time)?;
    let found = found.collect::<rusqlite::Result<Vec<_>>>()?;
    let read = |found| definition(connection, definitions, found).map_err(Error::from);
    Ok(readable(found.into_iter().map(read)))
}

fn serial_and_time(row: &Row<'_>) -> rusqlite::Result<(u64, StoreTime)> {
    Ok((number(row.get(0)?), StoreTime(row.get(1)?)))
}

fn definition(
    connection: &Connection,
    definitions: &Definitions,
    (serial, applied_at): (u64, StoreTime),
) -> Outcome<Definition> {
    Ok(Definition { serial, graph: by_serial(connection, definitions, serial)?, applied_at })
}

pub(super) fn by_serial(connection: &Connection, definitions: &Definitions, serial: u64) -> Outcome<Arc<Graph>> {
    if let Some(graph) = definitions.get(serial) {
        return Ok(graph);
    }
    let mut select = connection.prepare_cached("select definition from graph where serial = ?1")?;
    let text: Option<String> = select.query_row([stored(serial)], |row| row.get(0)).optional()?;
    let text = text.ok_or_else(|| Fault::Data(format!("definition {serial} is missing")))?;
    definitions.read(serial, &text).map_err(|error| Fault::Data(error.to_string()))
}
