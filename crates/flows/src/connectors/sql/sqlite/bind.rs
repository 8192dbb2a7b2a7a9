//! JSON values as cells of SQLite. SQLite itself takes anything for a column; here a column's declared type counts.

use super::super::cell::{kind, unbase64};
use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};
use serde_json::Value;
use std::borrow::Cow;

/// What a declared type asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Integer,
    Real,
    Text,
    Bytes,
    Boolean,
    Json,
    /// Decimals: numbers, and text that is one.
    Numeric,
    /// Dates, and whatever has no type: numbers or text.
    Any,
}

impl Kind {
    pub(super) fn declared(declared: &str) -> Kind {
        let declared = declared.to_ascii_uppercase();
        let has = |word: &str| declared.contains(word);
        match () {
            () if has("JSON") => Kind::Json,
            () if has("BOOL") => Kind::Boolean,
            () if has("INT") => Kind::Integer,
            () if has("CHAR") || has("CLOB") || has("TEXT") => Kind::Text,
            () if has("BLOB") => Kind::Bytes,
            () if has("REAL") || has("FLOA") || has("DOUB") => Kind::Real,
            () if has("NUMERIC") || has("DECIMAL") => Kind::Numeric,
            () => Kind::Any,
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Kind::Integer => "an integer of 64 bits",
            Kind::Real | Kind::Numeric => "a number",
            Kind::Text => "text",
            Kind::Bytes => "bytes in base64",
            Kind::Boolean => "true or false",
            Kind::Json => "JSON",
            Kind::Any => "text or a number",
        }
    }
}

/// A cell to be bound.
pub(super) enum Cell<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(Cow<'a, str>),
    Bytes(Vec<u8>),
}

impl ToSql for Cell<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Cell::Null => ValueRef::Null,
            Cell::Integer(integer) => ValueRef::Integer(*integer),
            Cell::Real(real) => ValueRef::Real(*real),
            Cell::Text(text) => ValueRef::Text(text.as_bytes()),
            Cell::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// The cell for a value, or what is wrong with the value.
pub(super) fn cell(kind_of: Kind, value: &Value) -> Result<Cell<'_>, String> {
    let found = match (kind_of, value) {
        (_, Value::Null) => Some(Cell::Null),
        (Kind::Json, value) => Some(Cell::Text(value.to_string().into())),
        (Kind::Text, Value::String(text)) => Some(Cell::Text(text.into())),
        (Kind::Text, Value::Number(_) | Value::Bool(_)) => Some(Cell::Text(value.to_string().into())),
        (Kind::Bytes, Value::String(text)) => unbase64(text).map(Cell::Bytes),
        (Kind::Boolean, Value::Bool(truth)) => Some(Cell::Integer(i64::from(*truth))),
        (Kind::Boolean, Value::String(text)) => truth(text).map(|truth| Cell::Integer(i64::from(truth))),
        (Kind::Boolean | Kind::Integer, Value::Number(_)) => integer(value).map(Cell::Integer),
        (Kind::Integer, Value::String(text)) => text.trim().parse().ok().map(Cell::Integer),
        (Kind::Integer, Value::Bool(truth)) => Some(Cell::Integer(i64::from(*truth))),
        (Kind::Real, Value::Number(number)) => number.as_f64().map(Cell::Real),
        (Kind::Real, Value::String(text)) => finite(text).map(Cell::Real),
        (Kind::Numeric | Kind::Any, Value::Number(number)) => {
            integer(value).map(Cell::Integer).or_else(|| number.as_f64().map(Cell::Real))
        }
        // The text keeps digits that a number would lose.
        (Kind::Numeric, Value::String(text)) => finite(text).map(|_| Cell::Text(text.trim().into())),
        (Kind::Any, Value::String(text)) => Some(Cell::Text(text.into())),
        (Kind::Any, Value::Bool(truth)) => Some(Cell::Integer(i64::from(*truth))),
        _ => None,
    };
    found.ok_or_else(|| {
        let shown: String = value.to_string().chars().take(100).collect();
        format!("is {} ({shown}) where the column takes {}", kind(value), kind_of.wanted())
    })
}

fn integer(value: &Value) -> Option<i64> {
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    value.as_i64().or_else(|| value.as_f64().filter(|_| !value.is_u64()).and_then(whole))
}

fn finite(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

fn truth(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "1" => Some(true),
        "false" | "f" | "no" | "0" => Some(false),
        _ => None,
    }
}
