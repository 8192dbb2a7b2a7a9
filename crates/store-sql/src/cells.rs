//! Graphs, values and computations between the model and what columns hold, alike for both databases.

use everbeat_model::graph::{Cell, Computation, Graph, Status, folded, searchable, sort_class};
use everbeat_model::{Json, RunId, StoreTime};
use everbeat_store::{Error, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// A value and what filters and orders look at.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ValueCells {
    pub(crate) value: Option<String>,
    pub(crate) class: Option<i16>,
    pub(crate) number: Option<f64>,
    pub(crate) text: Option<String>,
    pub(crate) folded: Option<String>,
}

impl ValueCells {
    pub(crate) fn of(value: Option<&Value>) -> ValueCells {
        let Some(value) = value else { return ValueCells::default() };
        let text = value.as_str().map(|text| searchable(text).into_owned());
        let folded = value.as_str().map(folded).filter(|folded| Some(folded) != text.as_ref());
        ValueCells {
            value: Some(Json::of(value).as_str().to_string()),
            class: Some(i16::from(sort_class(Some(value)))),
            number: value.as_f64(),
            text,
            folded,
        }
    }
}

/// A cell read back. Text of another version that is no JSON reads as a text that shows the damage.
pub(crate) fn cell(value: &str, revision: i64, set_at: i64, metadata: Option<&str>) -> Cell {
    Cell { value: parsed(value), revision: number(revision), set_at: StoreTime(set_at), metadata: metadata.map(parsed) }
}

/// Reads a value in one pass: every look at an execution reads all of its values.
fn parsed(stored: &str) -> Value {
    serde_json::from_str(stored).unwrap_or_else(|_| Value::from(stored))
}

/// A computation as columns hold it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ComputationCells {
    pub(crate) status: String,
    pub(crate) run_id: Option<Uuid>,
    pub(crate) computed_with: String,
    pub(crate) iterations: u32,
    pub(crate) state: Option<String>,
    pub(crate) error: Option<String>,
}

impl ComputationCells {
    pub(crate) fn of(computation: &Computation) -> ComputationCells {
        let status = match computation.status {
            Status::Running(_) => "running",
            Status::Next => "next",
            Status::Done => "done",
            Status::Failed(_) => "failed",
        };
        let error = match &computation.status {
            Status::Failed(error) => Some(error.replace('\0', "\u{fffd}")),
            _ => None,
        };
        ComputationCells {
            status: status.to_string(),
            run_id: computation.run.map(|run| run.0),
            computed_with: Json::of(&computation.computed_with).as_str().to_string(),
            iterations: computation.iterations,
            state: computation.state.as_ref().map(|state| Json::of(state).as_str().to_string()),
            error,
        }
    }

    /// A row of another version that cannot be read counts as failed, and says so.
    pub(crate) fn read(self) -> Computation {
        let run = self.run_id.map(RunId);
        let status = match (self.status.as_str(), run) {
            ("running", Some(run)) => Status::Running(run),
            ("next", _) => Status::Next,
            ("done", _) => Status::Done,
            ("failed", _) => Status::Failed(self.error.unwrap_or_default()),
            (other, _) => Status::Failed(format!("the computation is stored in a state unknown here: {other:?}")),
        };
        Computation {
            status,
            computed_with: Json::stored(self.computed_with).read().unwrap_or_default(),
            iterations: self.iterations,
            state: self.state.map(|state| Json::stored(state).value()),
            run,
        }
    }
}

/// Definitions by serial, read once: a row of `graph` never changes.
#[derive(Default)]
pub(crate) struct Definitions(Mutex<BTreeMap<u64, Arc<Graph>>>);

/// More than any installation has in use at once; beyond it the oldest are read again when needed.
const MOST_DEFINITIONS: usize = 1000;

impl Definitions {
    pub(crate) fn get(&self, serial: u64) -> Option<Arc<Graph>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&serial).cloned()
    }

    pub(crate) fn put(&self, serial: u64, graph: Arc<Graph>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(serial, graph);
        while known.len() > MOST_DEFINITIONS {
            known.pop_first();
        }
    }

    /// Reads a stored definition and keeps it.
    pub(crate) fn read(&self, serial: u64, definition: &str) -> Result<Arc<Graph>> {
        if let Some(graph) = self.get(serial) {
            return Ok(graph);
        }
        let value = Json::stored(definition).value();
        let graph =
            Graph::parse(&value).map_err(|error| Error::Bug(format!("definition {serial} cannot be read: {error}")))?;
        let graph = Arc::new(graph);
        self.put(serial, graph.clone());
        Ok(graph)
    }
}

/// Counters never fall below zero; a damaged row reads as zero.
pub(crate) fn number(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

pub(crate) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
