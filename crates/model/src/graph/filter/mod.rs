//! What lists of executions are filtered and sorted by.
//!
//! Stores answer these questions in SQL. The functions here say what the right answer is, so that every
//! store can be tested against them.

mod condition;
mod sort;

#[cfg(test)]
mod tests;

pub use condition::{Condition, Operator};
use serde_json::Value;
pub use sort::{Direction, Field, Sort, compare, sort_class};
use std::borrow::Cow;
use std::cmp::Ordering;

/// A text as it is searched and ordered: SQL texts cannot hold U+0000, so U+FFFD stands for it.
pub fn searchable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// A text as it is searched whatever its case: `searchable`, then Rust's `to_lowercase`, which knows all of
/// Unicode and no locale. The `lower` of a database differs.
pub fn folded(text: &str) -> String {
    searchable(text).to_lowercase()
}

/// Numbers as `f64`, so that whole ones above 2^53 may tie; texts by the bytes of what is `searchable`. Other
/// pairs have no order.
fn order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64()?.partial_cmp(&b.as_f64()?),
        (Value::String(a), Value::String(b)) => Some(searchable(a).cmp(&searchable(b))),
        _ => None,
    }
}
