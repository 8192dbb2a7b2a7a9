//! jq programs. They are strangers' code: each is evaluated in a process of its own, which may die of it.

mod evaluator;
mod limits;
mod program;
mod serve;

pub use evaluator::Evaluator;
pub use serve::serve;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The first line to an evaluator. The answer is an [`Answer`] without outputs.
#[derive(Serialize, Deserialize)]
struct Hello {
    program: String,
}

/// The line about one record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ok(Vec<Value>),
    Error(String),
}
