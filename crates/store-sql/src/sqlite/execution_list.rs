//! Lists of executions: filtered and sorted by the database, then read one by one through their keys.

use super::fault::Outcome;
use super::filter::Sql;
use super::snapshot::stored;
use crate::cells::Definitions;
use crate::decode::{readable, whole};
use crate::encode::limit;
use everbeat_model::ExecutionId;
use everbeat_model::graph::{Direction, Field, Sort};
use everbeat_store::{Error, ExecutionFilter, Stored};
use rusqlite::{Connection, params_from_iter};
use uuid::Uuid;

pub(super) fn executions(
    connection: &Connection,
    definitions: &Definitions,
    filter: &ExecutionFilter,
) -> Outcome<Vec<Stored>> {
    let sql = page(filter);
    let mut select = connection.prepare(&sql.text)?;
    let ids = select.query_map(params_from_iter(sql.parameters()), |row| row.get(0).map(Uuid::from_bytes))?;
    let ids = ids.collect::<rusqlite::Result<Vec<Uuid>>>()?;
    let read = |id| stored(connection, definitions, ExecutionId(id)).map_err(Error::from).transpose();
    Ok(readable(ids.into_iter().filter_map(read)))
}

pub(super) fn count(connection: &Connection, filter: &ExecutionFilter) -> Outcome<u64> {
    let mut sql = Sql::new("select count(*) from execution e");
    narrow(&mut sql, filter);
    let mut select = connection.prepare(&sql.text)?;
    Ok(whole(select.query_row(params_from_iter(sql.parameters()), |row| row.get(0))?))
}

/// How the database would go about a list.
pub(super) fn plan(connection: &Connection, filter: &ExecutionFilter) -> Outcome<Vec<String>> {
    let sql = page(filter);
    let mut explain = connection.prepare(&format!("explain query plan {}", sql.text))?;
    let steps = explain.query_map(params_from_iter(sql.parameters()), |row| row.get(3))?;
    Ok(steps.collect::<rusqlite::Result<_>>()?)
}

/// Selects the ids of a page.
fn page(filter: &ExecutionFilter) -> Sql {
    let mut sql = Sql::new("select e.id from execution e");
    if let Some(Sort::Node(node, _)) = &filter.sort {
        let node = sql.bind(node.clone());
        let join = format!(" left join value s on s.execution_id = e.id and s.node = {node} and s.value is not null");
        sql.text.push_str(&join);
    }
    narrow(&mut sql, filter);
    let (most, skipped) = (sql.bind(limit(filter.limit)), sql.bind(limit(filter.offset)));
    let end = format!(" order by {} limit {most} offset {skipped}", order(filter.sort.as_ref()));
    sql.text.push_str(&end);
    sql
}

fn narrow(sql: &mut Sql, filter: &ExecutionFilter) {
    sql.text.push_str(" where true");
    if let Some(graph) = &filter.graph {
        let graph = sql.bind(graph.clone());
        sql.text.push_str(&format!(" and e.graph = {graph}"));
    }
    if !filter.include_archived {
        sql.text.push_str(" and e.archived_at is null");
    }
    if let Some(before) = filter.before {
        let before = sql.bind(before.0.into_bytes().to_vec());
        sql.text.push_str(&format!(" and e.id < {before}"));
    }
    filter.conditions.iter().for_each(|condition| sql.demand(condition));
}

/// Ties are broken by id, in the same direction. What is not set is last in both.
fn order(sort: Option<&Sort>) -> String {
    let word = |direction: &Direction| match direction {
        Direction::Ascending => "asc",
        Direction::Descending => "desc",
    };
    match sort {
        None => "e.id desc".to_string(),
        Some(Sort::Field(Field::Id, direction)) => format!("e.id {}", word(direction)),
        Some(Sort::Field(field, direction)) => format!("e.{} {1}, e.id {1}", field.as_str(), word(direction)),
        Some(Sort::Node(_, direction)) => format!(
            "s.class is null, s.class {0}, s.number {0}, s.text {0}, case when s.class = 2 then s.value end {0}, \
             e.id {0}",
            word(direction)
        ),
    }
}
