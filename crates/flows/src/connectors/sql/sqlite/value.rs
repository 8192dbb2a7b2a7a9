//! Cells of SQLite as JSON values.

use super::super::cell::{base64, unbase64};
use super::bind::Kind;
use crate::Trouble;
use rusqlite::types::{Value as Cell, ValueRef};
use serde_json::{Number, Value};

/// The value, and about how many bytes it takes.
pub(super) fn value_of(kind: Kind, cell: ValueRef<'_>) -> (Value, usize) {
    match cell {
        ValueRef::Null => (Value::Null, 4),
        ValueRef::Integer(truth @ (0 | 1)) if kind == Kind::Boolean => (Value::Bool(truth == 1), 5),
        ValueRef::Integer(integer) => (Value::from(integer), 8),
        ValueRef::Real(real) => (number(real), 8),
        ValueRef::Text(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            let json = if kind == Kind::Json { serde_json::from_str(&text).ok() } else { None };
            (json.unwrap_or_else(|| Value::String(text.into_owned())), bytes.len())
        }
        ValueRef::Blob(bytes) => (Value::String(base64(bytes)), bytes.len() * 2),
    }
}

/// JSON has no infinities.
fn number(real: f64) -> Value {
    Number::from_f64(real).map_or_else(|| Value::String(real.to_string()), Value::Number)
}

/// A cell of a column that rows are read in the order of, so that `of_key` gives the same cell again.
pub(super) fn key_value(cell: ValueRef<'_>) -> Value {
    match cell {
        ValueRef::Blob(bytes) => serde_json::json!({ "bytes": base64(bytes) }),
        cell => value_of(Kind::Any, cell).0,
    }
}

pub(super) fn of_key(value: &Value) -> Result<Cell, Trouble> {
    let refused = || Trouble::permanent(format!("{value} is no value of a column; use a number or text"));
    Ok(match value {
        Value::Null => Cell::Null,
        Value::Bool(truth) => Cell::Integer(i64::from(*truth)),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => Cell::Integer(integer),
            None => Cell::Real(number.as_f64().ok_or_else(refused)?),
        },
        Value::String(text) => Cell::Text(text.clone()),
        Value::Object(fields) => {
            let bytes = fields.get("bytes").and_then(Value::as_str).and_then(unbase64);
            Cell::Blob(bytes.ok_or_else(refused)?)
        }
        Value::Array(_) => return Err(refused()),
    })
}
