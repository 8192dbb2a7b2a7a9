//! The table that a sink writes to, as it is in the database.

use super::super::names::{Table, list, quoted};
use super::super::sink::Writing;
use super::cell::Kind;
use super::fault::trouble;
use crate::{Record, Trouble};
use serde_json::Value;
use std::collections::BTreeMap;
use tokio_postgres::Client;

pub(super) struct Column {
    pub(super) name: String,
    /// As it is written in a cast.
    pub(super) cast: String,
    pub(super) kind: Kind,
    /// Has no operator for equality: its text is compared.
    pub(super) compares_as_text: bool,
    /// The database makes its values, and takes others only if told so.
    pub(super) identity: bool,
    pub(super) has_zone: bool,
}

/// The columns of a table.
pub(super) struct Columns {
    pub(super) columns: Vec<Column>,
    pub(super) primary: Vec<String>,
}

/// Types without an operator for equality.
const INCOMPARABLE: [&str; 4] = ["json", "xml", "point", "polygon"];

impl Columns {
    /// None if there is no such table.
    pub(super) async fn read(client: &Client, table: &Table) -> Result<Option<Columns>, Trouble> {
        let failed = |error: tokio_postgres::Error| trouble(&error);
        let name = table.quoted();
        // Without a modifier in the cast, the column itself refuses what is too long; a cast would cut it.
        let sql = "select a.attname::text, format_type(a.atttypid, -1), coalesce(b.typname, t.typname)::text, \
                   a.attidentity = 'a' from pg_attribute a join pg_type t on t.oid = a.atttypid \
                   left join pg_type b on b.oid = t.typbasetype and t.typtype = 'd' \
                   where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' \
                   order by a.attnum";
        let rows = client.query(sql, &[&name]).await.map_err(failed)?;
        let columns: Vec<Column> = rows
            .iter()
            .map(|row| {
                let (name, cast, base): (String, String, String) = (row.get(0), row.get(1), row.get(2));
                Column {
                    name,
                    cast,
                    kind: Kind::named(&base),
                    compares_as_text: INCOMPARABLE.contains(&base.as_str()),
                    identity: row.get(3),
                    has_zone: base == "timestamptz",
                }
            })
            .collect();
        let sql = "select a.attname::text from pg_index i join pg_attribute a on a.attrelid = i.indrelid \
                   and a.attnum = any (i.indkey) where i.indrelid = to_regclass($1) and i.indisprimary \
                   order by array_position(i.indkey::int2[], a.attnum)";
        let primary = client.query(sql, &[&name]).await.map_err(failed)?;
        let primary = primary.iter().map(|row| row.get(0)).collect();
        Ok((!columns.is_empty()).then_some(Columns { columns, primary }))
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

/// PostgreSQL cuts longer names.
const LONGEST_NAME: usize = 63;

/// Creates the table for records like these.
pub(super) fn create(writing: &Writing, records: &[Record]) -> Result<String, Trouble> {
    let mut types: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for (name, value) in records.iter().filter_map(|record| record.value.as_object()).flatten() {
        if name.len() > LONGEST_NAME || name.is_empty() || name.contains('\0') {
            let said = "cannot be the name of a column in PostgreSQL: use 1 to 63 bytes";
            return Err(Trouble::permanent(format!("the field {name:?} {said}")));
        }
        let found = match value {
            Value::Null => None,
            Value::Bool(_) => Some("boolean"),
            Value::Number(number) if number.is_f64() => Some("double precision"),
            Value::Number(_) => Some("bigint"),
            Value::String(_) => Some("text"),
            Value::Array(_) | Value::Object(_) => Some("jsonb"),
        };
        let known = types.entry(name).or_default();
        *known = both(*known, found);
    }
    let column = |(name, kind): (&&str, &Option<&str>)| format!("{} {}", quoted(name), kind.unwrap_or("text"));
    let mut parts: Vec<String> = types.iter().map(column).collect();
    if let Some(key) = &writing.key {
        parts.push(format!("primary key ({})", list(key.iter().map(String::as_str))));
    }
    Ok(format!("create table {} ({})", writing.table.quoted(), parts.join(", ")))
}

/// A type that holds what both hold.
fn both(one: Option<&'static str>, other: Option<&'static str>) -> Option<&'static str> {
    match (one, other) {
        (None, known) | (known, None) => known,
        (Some(one), Some(other)) => Some(match (one, other) {
            (one, other) if one == other => one,
            ("bigint" | "double precision", "bigint" | "double precision") => "double precision",
            ("jsonb", _) | (_, "jsonb") => "jsonb",
            _ => "text",
        }),
    }
}
