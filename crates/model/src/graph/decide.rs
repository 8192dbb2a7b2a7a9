//! What a change in an execution leads to, decided over a snapshot.
//!
//! | command             | first                                     | then, to a fixed point                     |
//! |---------------------|-------------------------------------------|--------------------------------------------|
//! | set, unset          | changed values get the next revision      | clear what lost its gate; histories grow;  |
//! | computed            | its value, unless it is the same as before | archive; start what is open and stale;     |
//! | failed              | the node failed, until something changes  | stop what runs on what is no longer so     |
//! | due                 | nothing: time itself has passed           |                                            |
//! | archive, unarchive  | the mark                                  | an archived execution starts nothing       |
//! | retry, abandon      | the last computation is forgotten, failed |                                            |

use super::execution::{Cell, Computation, Execution, Now, Standing, Status, due_at};
use super::gate::{Gate, equal};
use super::kind::NodeKind;
use super::node::{Graph, Node};
use super::options::DEFAULT_ENTRIES;
use crate::id::RunId;
use crate::time::StoreTime;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// What happened, or is asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Set {
        values: BTreeMap<String, Value>,
        metadata: Option<Value>,
    },
    Unset(BTreeSet<String>),
    /// A run of the node ended with this result.
    Computed {
        node: String,
        run: RunId,
        result: Value,
    },
    Failed {
        node: String,
        run: RunId,
        error: String,
    },
    /// Time has passed.
    Due,
    Archive,
    Unarchive,
    Retry(String),
    Abandon(String),
}

/// What becomes of the execution, and what must be started and stopped with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    pub execution: Execution,
    /// Values that were set (with their new content) or cleared (none), in this order.
    pub changed: Vec<(String, Option<Cell>)>,
    pub start: Vec<Start>,
    /// Runs on inputs that are no longer so: their leases are fenced.
    pub stop: Vec<RunId>,
    /// The moments at which somebody should look again.
    pub ticks: Ticks,
}

/// When each armed tick is due.
pub type Ticks = BTreeMap<String, StoreTime>;

/// A run to be made for a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub node: String,
    pub run: RunId,
    /// `{node: value}` of everything that is set.
    pub input: Value,
}

/// Decides. `new_run` gives ids for the runs to be made; the same ones for the same snapshot are not
/// needed, since only the decision that is committed counts.
pub fn decide(
    graph: &Graph,
    execution: &Execution,
    command: Command,
    now: StoreTime,
    new_run: &mut dyn FnMut() -> RunId,
) -> Changes {
    let mut work = Work { graph, now, next: execution.clone(), bumped: false, changes: Changes::default() };
    work.apply(command);
    work.come_to_rest();
    if work.next.archived_at.is_none() {
        work.start_and_stop(new_run);
    }
    work.arm();
    Changes { execution: work.next, ..work.changes }
}

struct Work<'a> {
    graph: &'a Graph,
    now: StoreTime,
    next: Execution,
    /// All changes of one command share one revision.
    bumped: bool,
    changes: Changes,
}

impl Work<'_> {
    fn apply(&mut self, command: Command) {
        match command {
            Command::Set { values, metadata } => {
                for (node, value) in values {
                    self.set(&node, value, metadata.clone(), true);
                }
            }
            Command::Unset(nodes) => nodes.iter().for_each(|node| self.clear(node)),
            Command::Computed { node, run, result } => self.computed(&node, run, result),
            Command::Failed { node, run, error } => self.end(&node, run, Status::Failed(error)),
            Command::Due => {}
            Command::Archive => _ = self.next.archived_at.get_or_insert(self.now),
            Command::Unarchive => self.next.archived_at = None,
            Command::Retry(node) => {
                if let Some(state) = self.next.nodes.get_mut(&node) {
                    self.changes.stop.extend(running(state.computation.as_ref()));
                    state.computation = None;
                }
            }
            Command::Abandon(node) => {
                if let Some(run) = self.next.running(&node) {
                    self.changes.stop.push(run);
                    self.end(&node, run, Status::Failed("abandoned on request".to_string()));
                }
            }
        }
    }

    fn revision(&mut self) -> u64 {
        self.next.revision += u64::from(!std::mem::replace(&mut self.bumped, true));
        self.next.revision
    }

    /// Sets a value; one that is the same as before changes nothing and wakes nobody.
    fn set(&mut self, node: &str, value: Value, metadata: Option<Value>, bump: bool) {
        let before = self.next.cell(node);
        if before.is_some_and(|cell| equal(&cell.value, &value)) {
            return;
        }
        let silent_revision = before.map_or(0, |cell| cell.revision);
        let revision = if bump { self.revision() } else { silent_revision };
        let cell = Cell { value, revision, set_at: self.now, metadata };
        self.next.nodes.entry(node.to_string()).or_default().cell = Some(cell.clone());
        self.changes.changed.push((node.to_string(), Some(cell)));
    }

    fn clear(&mut self, node: &str) {
        if self.next.cell(node).is_none() {
            return;
        }
        self.revision();
        if let Some(state) = self.next.nodes.get_mut(node) {
            state.cell = None;
        }
        self.changes.changed.push((node.to_string(), None));
    }

    /// Ends the node's computation, if it is the one that `run` performs; a late one changes nothing.
    fn end(&mut self, node: &str, run: RunId, status: Status) {
        if self.next.running(node) == Some(run)
            && let Some(computation) = self.next.nodes.get_mut(node).and_then(|state| state.computation.as_mut())
        {
            computation.status = status;
        }
    }

    fn computed(&mut self, name: &str, run: RunId, result: Value) {
        if self.next.running(name) != Some(run) {
            return;
        }
        let Some(node) = self.graph.node(name) else {
            // Removed while it ran: nothing asks for its value any more.
            return self.end(name, run, Status::Done);
        };
        match node.kind {
            NodeKind::Mutate => self.mutate(node, result),
            NodeKind::Loop => return self.iterate(node, run, result),
            _ => self.set(name, result, None, true),
        }
        self.end(name, run, Status::Done);
    }

    /// One target takes the result itself; several take it by name.
    fn mutate(&mut self, node: &Node, result: Value) {
        let bump = node.options.update_revision_on_change;
        match (node.mutates.as_slice(), &result) {
            ([target], _) => self.set(target, result.clone(), None, bump),
            (targets, Value::Object(values)) => {
                for target in targets {
                    if let Some(value) = values.get(target) {
                        self.set(target, value.clone(), None, bump);
                    }
                }
            }
            _ => {}
        }
        let said = format!("updated {}", node.mutates.join(", "));
        self.set(&node.name, Value::from(said), None, true);
    }

    /// `{"done": value}` ends a loop; `{"continue": state}` asks for another iteration, with an optional
    /// `fallback` for when they are used up. Anything else is its value.
    fn iterate(&mut self, node: &Node, run: RunId, result: Value) {
        let Some(state) = result.get("continue") else {
            let value = result.get("done").cloned().unwrap_or(result);
            self.set(&node.name, value, None, true);
            return self.end(&node.name, run, Status::Done);
        };
        let most = node.options.max_iterations.unwrap_or(1);
        let Some(computation) = self.next.nodes.get_mut(&node.name).and_then(|state| state.computation.as_mut()) else {
            return;
        };
        computation.iterations += 1;
        computation.state = Some(state.clone());
        if computation.iterations < most {
            // Not stale and not running: the next iteration starts below.
            computation.status = Status::Done;
            computation.computed_with.clear();
            return;
        }
        match result.get("fallback").or(node.options.fallback.as_ref()).cloned() {
            Some(fallback) => {
                self.set(&node.name, fallback, None, true);
                self.end(&node.name, run, Status::Done);
            }
            None => self.end(&node.name, run, Status::Failed("max_iterations reached".to_string())),
        }
    }

    /// Clears what lost its gate, lets histories grow, archives: until nothing changes any more.
    fn come_to_rest(&mut self) {
        let mut seen = 0;
        loop {
            let before = self.changes.changed.len();
            for node in self.graph.nodes().iter().filter(|node| node.kind.clears()) {
                if self.next.cell(&node.name).is_some() && !self.may_stay(node) {
                    self.clear(&node.name);
                    if let Some(state) = self.next.nodes.get_mut(&node.name) {
                        self.changes.stop.extend(running(state.computation.as_ref()));
                        state.computation = None;
                    }
                }
            }
            let fresh: Vec<(String, Option<Cell>)> = self.changes.changed[seen..].to_vec();
            seen = self.changes.changed.len();
            self.remember(&fresh);
            self.archive();
            if self.changes.changed.len() == before && fresh.is_empty() {
                return;
            }
        }
    }

    fn may_stay(&self, node: &Node) -> bool {
        let none = BTreeMap::new();
        let computed_with = self.next.computation(&node.name).map_or(&none, |computation| &computation.computed_with);
        node.gate.holds(&Standing { now: self.view(), computed_with })
    }

    fn remember(&mut self, fresh: &[(String, Option<Cell>)]) {
        for node in self.graph.nodes().iter().filter(|node| node.kind == NodeKind::Historian) {
            let upstreams = node.gate.upstreams();
            let mut entries: Vec<Value> = fresh
                .iter()
                .filter(|(name, _)| upstreams.contains(name.as_str()) && *name != node.name)
                .filter_map(|(name, cell)| cell.as_ref().map(|cell| entry(name, cell)))
                .collect();
            if entries.is_empty() || !node.gate.holds(&self.view()) {
                continue;
            }
            // Within one change the last one set is the newest.
            entries.reverse();
            if let Some(Value::Array(earlier)) = self.next.cell(&node.name).map(|cell| &cell.value) {
                entries.extend(earlier.iter().cloned());
            }
            if let Some(most) = node.options.max_entries.unwrap_or(Some(DEFAULT_ENTRIES)) {
                entries.truncate(most);
            }
            self.set(&node.name, Value::Array(entries), None, true);
        }
    }

    fn archive(&mut self) {
        for node in self.graph.nodes().iter().filter(|node| node.kind == NodeKind::Archive) {
            if self.next.archived_at.is_none() && self.next.cell(&node.name).is_none() && node.gate.holds(&self.view())
            {
                self.next.archived_at = Some(self.now);
                let at = self.now.to_string();
                self.set(&node.name, Value::from(at), None, true);
            }
        }
    }

    /// Until nothing more starts: a recurring tick is armed again once those that waited for it have begun.
    fn start_and_stop(&mut self, new_run: &mut dyn FnMut() -> RunId) {
        loop {
            let before = self.changes.start.len();
            self.start_and_stop_once(new_run);
            if self.changes.start.len() == before {
                return;
            }
        }
    }

    fn start_and_stop_once(&mut self, new_run: &mut dyn FnMut() -> RunId) {
        let dirty = self.dirty();
        let nodes: Vec<&Node> = self.graph.nodes().iter().filter(|node| node.kind.has_task()).collect();
        for node in nodes {
            let wanted = self.wanted(node);
            let computation = self.next.computation(&node.name);
            let current =
                wanted.is_some() && computation.map(|computation| &computation.computed_with) == wanted.as_ref();
            if let Some(run) = running(computation)
                && !current
            {
                // What it was started with is no longer so.
                self.changes.stop.push(run);
                if let Some(state) = self.next.nodes.get_mut(&node.name) {
                    state.computation = None;
                }
            }
            let Some(wanted) = wanted.filter(|_| !current) else { continue };
            if dirty.iter().any(|name| node.gate.upstreams().contains(name.as_str())) {
                continue;
            }
            self.start(node, wanted, new_run());
        }
    }

    fn start(&mut self, node: &Node, computed_with: BTreeMap<String, u64>, run: RunId) {
        let looped = self.next.computation(&node.name).filter(|last| {
            // An iteration that asked for another: it goes on where it was.
            node.kind == NodeKind::Loop
                && last.computed_with.is_empty()
                && last.state.is_some()
                && last.status == Status::Done
        });
        let (iterations, state) = looped.map_or((0, None), |last| (last.iterations, last.state.clone()));
        let mut input: Map<String, Value> = self
            .next
            .nodes
            .iter()
            .filter_map(|(name, state)| state.cell.as_ref().map(|cell| (name.clone(), cell.value.clone())))
            .collect();
        if let Some(state) = &state {
            input.insert(node.name.clone(), state.clone());
        }
        let computation = Computation { status: Status::Running(run), computed_with, iterations, state };
        self.next.nodes.entry(node.name.clone()).or_default().computation = Some(computation);
        self.changes.start.push(Start { node: node.name.clone(), run, input: Value::Object(input) });
    }

    /// The revisions that the node should be computed with now; none while its gate is shut. An upstream
    /// tick counts anew only when it is due.
    fn wanted(&self, node: &Node) -> Option<BTreeMap<String, u64>> {
        let last = self.next.computation(&node.name);
        let fires = node.gate.holds(&self.view());
        let none = BTreeMap::new();
        let before = last.map_or(&none, |last| &last.computed_with);
        let stands = last.is_some() && node.gate.holds(&Standing { now: self.view(), computed_with: before });
        if !fires && !stands {
            return None;
        }
        let mut wanted = BTreeMap::new();
        for upstream in node.gate.upstreams() {
            let Some(cell) = self.next.cell(upstream) else { continue };
            let tick = self.graph.node(upstream).is_some_and(|node| node.kind.is_tick());
            let due = due_at(&cell.value).is_some_and(|due| due <= self.now);
            match (tick && !due, before.get(upstream)) {
                (true, Some(revision)) => _ = wanted.insert(upstream.to_string(), *revision),
                (true, None) => {}
                (false, _) => _ = wanted.insert(upstream.to_string(), cell.revision),
            }
        }
        if node.kind == NodeKind::TickRecurring && self.fired(&node.name) {
            // Armed anew once everything that waited for it has been started with it.
            wanted.insert(node.name.clone(), self.next.cell(&node.name).map_or(0, |cell| cell.revision));
        } else if let Some(own) = before.get(&node.name) {
            wanted.insert(node.name.clone(), *own);
        }
        Some(wanted)
    }

    /// Whether a recurring tick is due, and all that depends on it has taken note.
    fn fired(&self, tick: &str) -> bool {
        let Some(cell) = self.next.cell(tick) else { return false };
        if due_at(&cell.value).is_none_or(|due| due > self.now) {
            return false;
        }
        self.graph.nodes().iter().filter(|node| node.kind.has_task() && node.gate.upstreams().contains(tick)).all(
            |node| {
                let noted = self.next.computation(&node.name).and_then(|last| last.computed_with.get(tick));
                noted == Some(&cell.revision) || !node.gate.holds(&self.view())
            },
        )
    }

    /// Nodes whose value is not what it will be: running, stale, failed, or below such a one.
    fn dirty(&self) -> BTreeSet<String> {
        let mut dirty: BTreeSet<String> = BTreeSet::new();
        loop {
            let before = dirty.len();
            for node in self.graph.nodes().iter().filter(|node| node.kind.has_task() && !node.kind.is_tick()) {
                let last = self.next.computation(&node.name);
                let wanted = self.wanted(node);
                let stale = wanted.is_some() && last.map(|last| &last.computed_with) != wanted.as_ref();
                let unsettled = last.is_some_and(|last| !matches!(last.status, Status::Done));
                let below = wanted.is_some() && node.gate.upstreams().iter().any(|name| dirty.contains(*name));
                if stale || unsettled || below {
                    dirty.insert(node.name.clone());
                }
            }
            if dirty.len() == before {
                return dirty;
            }
        }
    }

    fn arm(&mut self) {
        if self.next.archived_at.is_some() {
            return;
        }
        for node in self.graph.nodes().iter().filter(|node| node.kind.is_tick()) {
            if let Some(due) =
                self.next.cell(&node.name).and_then(|cell| due_at(&cell.value)).filter(|due| *due > self.now)
            {
                self.changes.ticks.insert(node.name.clone(), due);
            }
        }
    }

    fn view(&self) -> Now<'_> {
        Now { graph: self.graph, execution: &self.next, now: self.now }
    }
}

fn running(computation: Option<&Computation>) -> Option<RunId> {
    match computation?.status {
        Status::Running(run) => Some(run),
        Status::Done | Status::Failed(_) => None,
    }
}

fn entry(node: &str, cell: &Cell) -> Value {
    serde_json::json!({
        "value": cell.value, "node": node, "timestamp": cell.set_at, "metadata": cell.metadata, "revision": cell.revision,
    })
}

impl Gate {
    /// What a node waits for, in words; empty if its gate holds.
    pub fn waiting_for(&self, graph: &Graph, execution: &Execution, now: StoreTime) -> Vec<String> {
        self.missing(&Now { graph, execution, now })
    }
}
