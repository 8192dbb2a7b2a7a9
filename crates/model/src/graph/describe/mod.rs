//! What each node of an execution is doing and what it waits for, in words for people.

mod summary;
mod words;

#[cfg(test)]
mod tests;

use super::execution::{Execution, Now, Status, due_at};
use super::kind::NodeKind;
use super::node::{Graph, Node};
use super::staleness::{Cause, Causes, Ground, stale};
use crate::id::RunId;
use crate::time::StoreTime;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
pub use summary::summary;
use words::change_of;
pub(super) use words::{phrase, shorten};

/// A node of an execution as people see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeView {
    pub kind: NodeKind,
    pub state: ViewState,
    /// What has to happen for it to get a value, or a newer one.
    pub waiting_for: Option<String>,
    pub error: Option<String>,
    /// The run of its latest computation.
    pub run: Option<RunId>,
    /// Of a loop: iterations that ended.
    pub iterations: Option<u32>,
    /// Of a tick that is armed or due.
    pub due_at: Option<StoreTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ViewState {
    /// An input without a value.
    NotSet,
    /// An input with a value.
    Set,
    /// Its gate is shut, or what it depends on is not what it will be. It may have an older value.
    Waiting,
    /// A run computes it. It may have an older value.
    Computing,
    Computed,
    Failed,
    /// A tick that is due at no time.
    Paused,
}

impl ViewState {
    pub const ALL: [ViewState; 7] = [
        ViewState::NotSet,
        ViewState::Set,
        ViewState::Waiting,
        ViewState::Computing,
        ViewState::Computed,
        ViewState::Failed,
        ViewState::Paused,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            ViewState::NotSet => "not_set",
            ViewState::Set => "set",
            ViewState::Waiting => "waiting",
            ViewState::Computing => "computing",
            ViewState::Computed => "computed",
            ViewState::Failed => "failed",
            ViewState::Paused => "paused",
        }
    }
}

/// Describes the nodes of the graph. Nodes that only the execution still has are left out.
pub fn describe(graph: &Graph, execution: &Execution, now: StoreTime) -> BTreeMap<String, NodeView> {
    let at = Now { graph, execution, now };
    let stale = stale(graph, execution, now);
    graph.in_order().map(|node| (node.name.clone(), view(&at, node, &stale.above(node)))).collect()
}

fn view(at: &Now<'_>, node: &Node, above: &Causes<'_>) -> NodeView {
    let cell = at.execution.cell(&node.name);
    let computation = at.execution.computation(&node.name);
    let archived = at.execution.archived_at.is_some();
    let due_at = cell.filter(|_| node.kind.is_tick()).and_then(|cell| due_at(&cell.value));
    let ground = at.ground(node);
    let mut error = None;
    let (state, waiting_for) = match (node.kind, computation.map(|computation| &computation.status)) {
        (NodeKind::Input, _) if cell.is_some() => (ViewState::Set, None),
        (NodeKind::Input, _) => (ViewState::NotSet, Some("to be set".to_string())),
        (_, Some(Status::Running(_))) => (ViewState::Computing, None),
        (_, Some(Status::Failed(reason))) => {
            error = Some(reason.clone());
            (ViewState::Failed, None)
        }
        _ if ground == Ground::Shut && archived => {
            (ViewState::Waiting, Some(format!("the execution is archived; {}", at.shut(&node.gate))))
        }
        _ if ground == Ground::Shut => (ViewState::Waiting, Some(at.shut(&node.gate))),
        _ if cell.is_none() || held_back(node, ground, above) => {
            (ViewState::Waiting, Some(held(at, node, ground, above)))
        }
        _ if node.kind.is_tick() && due_at.is_none() => (ViewState::Paused, Some(change_of(node))),
        _ => (ViewState::Computed, None),
    };
    NodeView {
        kind: node.kind,
        state,
        waiting_for,
        error,
        run: computation.and_then(|computation| computation.run),
        iterations: computation.filter(|_| node.kind == NodeKind::Loop).map(|computation| computation.iterations),
        due_at: due_at.filter(|_| !archived),
    }
}

/// Whether an open node is yet to be computed. Historians and archives follow in the same change as what
/// they depend on, so nothing holds them back.
fn held_back(node: &Node, ground: Ground, above: &Causes<'_>) -> bool {
    node.kind.has_task() && (ground == Ground::Stale || !above.is_empty())
}

/// Why a node with an open gate has no value, or only an old one.
fn held(at: &Now<'_>, node: &Node, ground: Ground, above: &Causes<'_>) -> String {
    if at.execution.archived_at.is_some() {
        return "the execution is archived".to_string();
    }
    if !held_back(node, ground, above) {
        return change_of(node);
    }
    let again = at.execution.computation(&node.name).filter(|last| last.status == Status::Next);
    let again = again.filter(|_| node.kind.is_tick()).and_then(|last| due_at(last.state.as_ref()?));
    if let Some(at) = again {
        return format!("to be asked again at {at}: the time it gave is not after the one that was due");
    }
    if above.is_empty() {
        return "to be started".to_string();
    }
    let causes = above.iter().map(|cause| match cause {
        Cause::Uncomputed(name) => format!("waits until {name} is computed"),
        Cause::Failed(name) => format!(
            "{name} failed, and {} waits until {name} is retried or something that it depends on changes",
            node.name
        ),
    });
    causes.collect::<Vec<_>>().join("; ")
}
