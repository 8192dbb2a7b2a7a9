//! How far the executions of a graph have come.

use super::fault::Outcome;
use crate::decode::whole;
use everbeat_store::Analytics;
use rusqlite::Connection;
use std::time::Duration;

pub(super) fn analytics(connection: &Connection, graph: &str) -> Outcome<Analytics> {
    let mut select =
        connection.prepare_cached("select count(*), count(archived_at) from execution where graph = ?1")?;
    let (executions, archived) = select.query_row([graph], |row| Ok((whole(row.get(0)?), whole(row.get(1)?))))?;
    let mut analytics = Analytics { executions, archived, ..Analytics::default() };
    reached(connection, graph, &mut analytics)?;
    ended(connection, graph, &mut analytics)?;
    Ok(analytics)
}

fn reached(connection: &Connection, graph: &str, analytics: &mut Analytics) -> Outcome<()> {
    // The cross join keeps the order: through the executions of the graph to their values.
    let mut select = connection.prepare_cached(
        "select v.node, count(*), sum(max(v.first_set_at - e.created_at, 0))
         from execution e cross join value v on v.execution_id = e.id
         where e.graph = ?1 and v.first_set_at is not null group by v.node",
    )?;
    let mut rows = select.query([graph])?;
    while let Some(row) = rows.next()? {
        let reach = analytics.nodes.entry(row.get(0)?).or_default();
        reach.reached = whole(row.get(1)?);
        let total = Duration::from_micros(whole(row.get(2)?));
        reach.average = total / u32::try_from(reach.reached).unwrap_or(u32::MAX).max(1);
    }
    Ok(())
}

/// The last entry that was ever made in a history is never cut from it.
fn ended(connection: &Connection, graph: &str, analytics: &mut Analytics) -> Outcome<()> {
    let mut select = connection.prepare_cached(
        "select h.node, count(*)
         from execution e cross join value_history h on h.execution_id = e.id and h.place = e.place
         where e.graph = ?1 group by h.node",
    )?;
    let mut rows = select.query([graph])?;
    while let Some(row) = rows.next()? {
        analytics.nodes.entry(row.get(0)?).or_default().ended = whole(row.get(1)?);
    }
    Ok(())
}
