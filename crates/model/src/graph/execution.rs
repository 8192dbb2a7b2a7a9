use super::gate::Values;
use super::node::Graph;
use crate::id::RunId;
use crate::time::StoreTime;
use serde_json::Value;
use std::collections::BTreeMap;

/// A durable instance of a graph, as one transaction sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Execution {
    /// Rises with every change.
    pub revision: u64,
    pub archived_at: Option<StoreTime>,
    /// Of nodes that have a value or a computation; also of nodes that the graph no longer has.
    pub nodes: BTreeMap<String, NodeState>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    pub cell: Option<Cell>,
    pub computation: Option<Computation>,
}

/// A node's content.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub value: Value,
    /// The execution's revision when it was last changed.
    pub revision: u64,
    pub set_at: StoreTime,
    pub metadata: Option<Value>,
}

/// The latest computation of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Computation {
    pub status: Status,
    /// The revisions of the upstreams that it used.
    pub computed_with: BTreeMap<String, u64>,
    /// Of a loop: iterations that ended, and what the last one handed on.
    pub iterations: u32,
    pub state: Option<Value>,
    /// The run that performs or performed it; none for what the engine does by itself.
    pub run: Option<RunId>,
}

impl Computation {
    pub(super) fn of(run: Option<RunId>, status: Status) -> Computation {
        Computation { status, computed_with: BTreeMap::new(), iterations: 0, state: None, run }
    }

    /// Whether it is, or will be, the computation with these revisions.
    pub(super) fn is_current(&self, wanted: &BTreeMap<String, u64>) -> bool {
        self.status != Status::Next && self.computed_with == *wanted
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    Running(RunId),
    /// To be computed again: an iteration of a loop asked for another, what it ran on has changed, or
    /// somebody asked for it. The ticks that fired for it still count.
    Next,
    Done,
    /// For good, until something upstream changes.
    Failed(String),
}

impl Execution {
    pub fn cell(&self, node: &str) -> Option<&Cell> {
        self.nodes.get(node).and_then(|state| state.cell.as_ref())
    }

    pub fn computation(&self, node: &str) -> Option<&Computation> {
        self.nodes.get(node).and_then(|state| state.computation.as_ref())
    }

    pub fn running(&self, node: &str) -> Option<RunId> {
        match self.computation(node)?.status {
            Status::Running(run) => Some(run),
            Status::Next | Status::Done | Status::Failed(_) => None,
        }
    }
}

/// What gates see at a moment: a tick is provided when it is due.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub(super) graph: &'a Graph,
    pub(super) execution: &'a Execution,
    pub(super) now: StoreTime,
}

impl Values for Now<'_> {
    fn provided(&self, node: &str) -> Option<&Value> {
        let value = &self.execution.cell(node)?.value;
        let Some(tick) = self.graph.node(node).filter(|node| node.kind.is_tick()) else { return Some(value) };
        // A tick whose own gate is shut is paused.
        (due_at(value).is_some_and(|due| due <= self.now) && tick.gate.holds(self)).then_some(value)
    }
}

/// What decides whether a computed value may stay: a tick that fired for it counts although it is armed
/// again by now.
pub(super) struct Standing<'a> {
    pub(super) now: Now<'a>,
    pub(super) computed_with: &'a BTreeMap<String, u64>,
}

impl Values for Standing<'_> {
    fn provided(&self, node: &str) -> Option<&Value> {
        let fired =
            self.computed_with.contains_key(node) && self.now.graph.node(node).is_some_and(|node| node.kind.is_tick());
        if fired { self.now.execution.cell(node).map(|cell| &cell.value) } else { self.now.provided(node) }
    }
}

/// When a tick with this value is due; never if it is paused.
pub(super) fn due_at(value: &Value) -> Option<StoreTime> {
    match value {
        Value::Number(seconds) => {
            let seconds = seconds.as_f64().filter(|seconds| *seconds > 0.0 && *seconds < LAST_SECOND)?;
            Some(StoreTime((seconds * 1e6) as i64))
        }
        Value::String(text) => StoreTime::parse(text).ok(),
        _ => None,
    }
}

/// The end of the year 9999: what lies beyond was meant as milliseconds.
const LAST_SECOND: f64 = 253_402_300_800.0;

/// Refuses what is neither a time nor a pause.
pub(super) fn check_due(value: &Value) -> Result<(), String> {
    let paused = matches!(value, Value::Null | Value::Bool(false)) || value.as_f64() == Some(0.0);
    if paused || due_at(value).is_some() {
        return Ok(());
    }
    let shown: String = value.to_string().chars().take(60).collect();
    Err(format!("a tick's task gives epoch seconds, an RFC 3339 time, or null to pause; it gave {shown}"))
}
