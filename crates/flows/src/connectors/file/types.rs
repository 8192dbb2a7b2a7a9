use crate::Fields;
use everbeat_model::Invalid;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What the text in a column stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Number,
    Integer,
    Boolean,
    Json,
}

/// The types of columns; the others are text.
pub(super) type Types = BTreeMap<String, Type>;

const NAMES: [(&str, Type); 4] =
    [("number", Type::Number), ("integer", Type::Integer), ("boolean", Type::Boolean), ("json", Type::Json)];

pub(super) fn read(fields: &mut Fields<'_>) -> Result<Types, Invalid> {
    let Some(value) = fields.get("types") else { return Ok(Types::new()) };
    let none = Map::new();
    let example = "write it like {\"price\": \"number\"}";
    let columns = value.as_object().unwrap_or(&none);
    if columns.is_empty() {
        return Err(Invalid::new("types", value, "names no types of columns", example));
    }
    let read = |(column, name): (&String, &Value)| match NAMES.iter().find(|(known, _)| name.as_str() == Some(known)) {
        Some((_, found)) => Ok((column.clone(), *found)),
        None => {
            let hint = "use \"number\", \"integer\", \"boolean\" or \"json\"; leave text out";
            Err(Invalid::new(column, name, "is not a type of column", hint).within("types"))
        }
    };
    columns.iter().map(read).collect()
}

impl Type {
    /// Nothing is null.
    pub(super) fn value(self, text: &str) -> Result<Value, String> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(Value::Null);
        }
        let read = match self {
            Type::Number => serde_json::from_str(trimmed).ok().filter(Value::is_number),
            Type::Integer => {
                serde_json::from_str(trimmed).ok().filter(|value: &Value| value.is_i64() || value.is_u64())
            }
            Type::Boolean => match trimmed.to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "1" => Some(Value::Bool(true)),
                "false" | "f" | "no" | "0" => Some(Value::Bool(false)),
                _ => None,
            },
            Type::Json => serde_json::from_str(trimmed).ok(),
        };
        read.ok_or_else(|| format!("is not {}", self.name()))
    }

    fn name(self) -> &'static str {
        match self {
            Type::Number => "a number",
            Type::Integer => "an integer",
            Type::Boolean => "true or false",
            Type::Json => "JSON",
        }
    }
}
