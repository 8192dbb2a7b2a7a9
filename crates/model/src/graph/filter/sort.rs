//! Orders of lists, and of the values that they are sorted by.

use super::order;
use crate::error::Invalid;
use crate::run::check_name;
use serde_json::Value;
use std::cmp::Ordering;

/// What a list of executions is sorted by. Whoever sorts breaks ties with the execution's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sort {
    Field(Field, Direction),
    Node(String, Direction),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    CreatedAt,
    UpdatedAt,
    Revision,
    Id,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Ascending,
    Descending,
}

impl Sort {
    /// Reads `created_at` or `-created_at`, with a field or the name of a node. A field wins over a node
    /// of that name, and the first `-` is always the direction.
    pub fn parse(text: &str) -> Result<Sort, Invalid> {
        let (name, direction) = match text.strip_prefix('-') {
            Some(name) => (name, Direction::Descending),
            None => (text, Direction::Ascending),
        };
        if let Some(field) = Field::parse(name) {
            return Ok(Sort::Field(field, direction));
        }
        check_name("sort", name).map_err(|error| {
            let fields = Field::ALL.map(Field::as_str).join(", ");
            Invalid { hint: format!("use one of {fields} or the name of a node, with - before it to reverse"), ..error }
        })?;
        Ok(Sort::Node(name.to_string(), direction))
    }

    /// The form that `parse` reads.
    pub fn to_text(&self) -> String {
        let (name, direction) = match self {
            Sort::Field(field, direction) => (field.as_str(), direction),
            Sort::Node(node, direction) => (node.as_str(), direction),
        };
        match direction {
            Direction::Ascending => name.to_string(),
            Direction::Descending => format!("-{name}"),
        }
    }
}

impl Field {
    pub const ALL: [Field; 4] = [Field::CreatedAt, Field::UpdatedAt, Field::Revision, Field::Id];

    pub fn as_str(self) -> &'static str {
        match self {
            Field::CreatedAt => "created_at",
            Field::UpdatedAt => "updated_at",
            Field::Revision => "revision",
            Field::Id => "id",
        }
    }

    pub fn parse(text: &str) -> Option<Field> {
        Field::ALL.into_iter().find(|field| field.as_str() == text)
    }
}

/// Values of different kinds are sorted by kind: numbers, texts, booleans, the rest, unset.
pub fn sort_class(value: Option<&Value>) -> u8 {
    match value {
        Some(Value::Number(_)) => 0,
        Some(Value::String(_)) => 1,
        Some(Value::Bool(_)) => 2,
        Some(Value::Null | Value::Array(_) | Value::Object(_)) => 3,
        None => 4,
    }
}

/// The order of two values of a node: first by class; numbers then as `f64`, texts by the bytes of what is
/// `searchable`, `false` before `true`; the rest are all equal. `Descending` is the exact reverse, but
/// unset is last in both directions.
pub fn compare(a: Option<&Value>, b: Option<&Value>, direction: Direction) -> Ordering {
    let (Some(left), Some(right)) = (a, b) else { return a.is_none().cmp(&b.is_none()) };
    let within = match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        _ => order(left, right).unwrap_or(Ordering::Equal),
    };
    let ascending = sort_class(a).cmp(&sort_class(b)).then(within);
    match direction {
        Direction::Ascending => ascending,
        Direction::Descending => ascending.reverse(),
    }
}
