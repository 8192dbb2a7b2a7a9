//! The table that a sink writes to, as it is in the database.

use super::super::names::{list, quoted};
use super::super::sink::Writing;
use super::bind::Kind;
use crate::Record;
use rusqlite::Connection;
use serde_json::Value;
use std::collections::BTreeMap;

/// The columns of a table.
pub(super) struct Columns {
    pub(super) names: Vec<String>,
    pub(super) kinds: Vec<Kind>,
    pub(super) primary: Vec<String>,
}

impl Columns {
    /// None if there is no such table.
    pub(super) fn read(connection: &Connection, schema: &str, table: &str) -> Result<Option<Columns>, rusqlite::Error> {
        // Columns that are computed cannot be written.
        let sql = "select name, type, pk from pragma_table_xinfo(?1, ?2) where hidden = 0 order by cid";
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query((table, schema))?;
        let mut columns = Columns { names: Vec::new(), kinds: Vec::new(), primary: Vec::new() };
        let mut primary = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let (name, declared, place): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            if place > 0 {
                primary.insert(place, name.clone());
            }
            columns.names.push(name);
            columns.kinds.push(Kind::declared(&declared));
        }
        columns.primary = primary.into_values().collect();
        Ok((!columns.names.is_empty()).then_some(columns))
    }

    /// Names are compared as SQLite does.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.names
            .iter()
            .position(|known| known == name)
            .or_else(|| self.names.iter().position(|known| known.eq_ignore_ascii_case(name)))
    }
}

/// Creates the table for records like these.
pub(super) fn create(writing: &Writing, records: &[Record]) -> String {
    let mut types: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, value) in records.iter().filter_map(|record| record.value.as_object()).flatten() {
        let found = match value {
            Value::Null => continue,
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "real",
            Value::Number(_) => "integer",
            Value::String(_) => "text",
            Value::Array(_) | Value::Object(_) => "json text",
        };
        types.entry(name).and_modify(|known| *known = both(known, found)).or_insert(found);
    }
    for name in records.iter().filter_map(|record| record.value.as_object()).flat_map(|fields| fields.keys()) {
        types.entry(name).or_insert("text");
    }
    let mut parts: Vec<String> = types.iter().map(|(name, kind)| format!("{} {kind}", quoted(name))).collect();
    if let Some(key) = &writing.key {
        parts.push(format!("primary key ({})", list(key.iter().map(String::as_str))));
    }
    format!("create table {} ({})", writing.table.quoted(), parts.join(", "))
}

/// A type that holds what both hold.
fn both(one: &'static str, other: &'static str) -> &'static str {
    match (one, other) {
        (one, other) if one == other => one,
        ("integer" | "real", "integer" | "real") => "real",
        ("json text", _) | (_, "json text") => "json text",
        _ => "text",
    }
}
