//! JSON values as text that PostgreSQL reads as a column's type, and back.

use super::super::cell::{base64, decimal, kind, unbase64};
use serde_json::{Number, Value};
use std::borrow::Cow;
use std::fmt::Write;

/// What the type of a column means for JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Integer,
    Float,
    Decimal,
    Boolean,
    Text,
    Json,
    Bytes,
    /// With a time zone, or without.
    Timestamp,
    List,
    /// Its text is what is read and written.
    Other,
}

impl Kind {
    /// By the name in `pg_type`.
    pub(super) fn named(name: &str) -> Kind {
        match name {
            "int2" | "int4" | "int8" | "oid" => Kind::Integer,
            "float4" | "float8" => Kind::Float,
            "numeric" => Kind::Decimal,
            "bool" => Kind::Boolean,
            "text" | "varchar" | "bpchar" | "name" | "citext" => Kind::Text,
            "json" | "jsonb" => Kind::Json,
            "bytea" => Kind::Bytes,
            "timestamp" | "timestamptz" => Kind::Timestamp,
            name if name.starts_with('_') => Kind::List,
            _ => Kind::Other,
        }
    }
}

/// The text to write, or what is wrong with the value. None is null.
pub(super) fn to_text(kind_of: Kind, value: &Value) -> Result<Option<Cow<'_, str>>, String> {
    let text: Cow<'_, str> = match (kind_of, value) {
        (_, Value::Null) => return Ok(None),
        (Kind::Json, value) => value.to_string().into(),
        (Kind::Bytes, Value::String(text)) => match unbase64(text) {
            Some(bytes) => hex(&bytes).into(),
            None => return Err("is not base64, as bytes are written in JSON".to_string()),
        },
        (Kind::Integer, Value::Number(number)) if number.is_f64() => match number.as_f64() {
            Some(whole) if whole.fract() == 0.0 && whole.abs() < 9e15 => format!("{whole:.0}").into(),
            _ => return Err(format!("is {number} where the column takes integers")),
        },
        (Kind::List, Value::Array(items)) => list(items)?.into(),
        (_, Value::String(text)) => text.into(),
        (_, Value::Number(number)) => number.to_string().into(),
        (_, Value::Bool(truth)) => (if *truth { "true" } else { "false" }).into(),
        (_, Value::Array(_) | Value::Object(_)) => {
            return Err(format!("is {}, which fits only into a column of type json or jsonb", kind(value)));
        }
    };
    if text.contains('\0') {
        return Err("holds a NUL, which PostgreSQL cannot store in text".to_string());
    }
    Ok(Some(text))
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + bytes.len() * 2);
    text.push_str("\\x");
    for byte in bytes {
        let _cannot_fail = write!(text, "{byte:02x}");
    }
    text
}

/// A list as PostgreSQL writes arrays.
fn list(items: &[Value]) -> Result<String, String> {
    let mut parts = Vec::with_capacity(items.len());
    for item in items {
        parts.push(match item {
            Value::Null => "NULL".to_string(),
            Value::Array(items) => list(items)?,
            Value::String(text) => escaped(text),
            Value::Object(_) => escaped(&item.to_string()),
            other => other.to_string(),
        });
    }
    Ok(format!("{{{}}}", parts.join(",")))
}

fn escaped(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// What is selected for a column, so that its text can be read below.
pub(super) fn selected(kind: Kind, column: &str) -> String {
    match kind {
        Kind::List => format!("to_json({column})::text"),
        _ => format!("{column}::text"),
    }
}

/// The value that a text of PostgreSQL stands for.
pub(super) fn from_text(kind: Kind, text: &str) -> Value {
    let plain = || Value::String(text.to_string());
    match kind {
        Kind::Integer | Kind::Decimal => decimal(text),
        Kind::Float => text.parse().ok().and_then(Number::from_f64).map_or_else(plain, Value::Number),
        Kind::Boolean => Value::Bool(text == "true"),
        Kind::Json | Kind::List => serde_json::from_str(text).unwrap_or_else(|_| plain()),
        Kind::Bytes => unhex(text).map_or_else(plain, |bytes| Value::String(base64(&bytes))),
        Kind::Timestamp => Value::String(timestamp(text)),
        Kind::Text | Kind::Other => plain(),
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("\\x")?.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(pair).collect()
}

/// RFC 3339; without a zone if the column has none. What is no point in time ("infinity") stays.
fn timestamp(text: &str) -> String {
    let text = text.replacen(' ', "T", 1);
    text.strip_suffix("+00").map_or_else(|| text.clone(), |time| format!("{time}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_become_what_a_column_takes() {
        let check = |kind: Kind, value: Value, text: &str| assert_eq!(to_text(kind, &value).unwrap().unwrap(), text);
        check(Kind::Integer, json!(9_007_199_254_740_993_u64), "9007199254740993");
        check(Kind::Integer, json!(2.0), "2");
        check(Kind::Text, json!(1.5), "1.5");
        check(Kind::Json, json!({"a": ["b"]}), r#"{"a":["b"]}"#);
        check(Kind::Bytes, json!("Zm8="), "\\x666f");
        check(Kind::List, json!(["a\"b", null, "c,d"]), r#"{"a\"b",NULL,"c,d"}"#);
        check(Kind::Boolean, json!(true), "true");
        for (kind, value) in [
            (Kind::Integer, json!(1.5)),
            (Kind::Text, json!({"a": 1})),
            (Kind::Bytes, json!("no")),
            (Kind::Text, json!("a\u{0}b")),
        ] {
            assert!(to_text(kind, &value).is_err(), "{kind:?} {value}");
        }
    }

    #[test]
    fn texts_become_values() {
        for (kind, text, value) in [
            (Kind::Integer, "9007199254740993", json!(9_007_199_254_740_993_u64)),
            (Kind::Decimal, "1.10", json!(1.1)),
            (Kind::Float, "NaN", json!("NaN")),
            (Kind::Timestamp, "2026-11-15 08:00:00.25+00", json!("2026-11-15T08:00:00.25Z")),
            (Kind::Timestamp, "2026-11-15 08:00:00", json!("2026-11-15T08:00:00")),
            (Kind::Timestamp, "infinity", json!("infinity")),
            (Kind::Bytes, "\\x666f", json!("Zm8=")),
            (Kind::Json, "{\"a\":1}", json!({"a": 1})),
        ] {
            assert_eq!(from_text(kind, text), value);
        }
    }
}
