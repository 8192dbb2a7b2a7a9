//! What a change in an execution leads to, decided over a snapshot.
//!
//! | command             | first                                      | then, to a fixed point                     |
//! |---------------------|--------------------------------------------|--------------------------------------------|
//! | set, unset          | changed values get the next revision       | clear what lost its gate; histories grow;  |
//! | computed            | its value, unless it is the same as before | archive; start what is open and stale;     |
//! | failed              | the node failed, until something changes   | stop what runs on what is no longer so     |
//! | archive, unarchive  | the mark                                   | an archived execution starts nothing       |
//! | retry, abandon      | the last computation is forgotten, failed  |                                            |
//! | none at all         | time itself has passed                     | arm ticks that have a schedule             |
//!
//! Commands that arrive together are applied one after the other, each with a revision of its own;
//! what they start and stop is decided once, at the end.

use super::execution::{Cell, Computation, Execution, Now, Status, due_at};
use super::gate::equal;
use super::kind::NodeKind;
use super::node::{Graph, Node};
use crate::hole::Planted;
use crate::id::RunId;
use crate::json::Json;
use crate::time::StoreTime;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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
    Archive,
    Unarchive,
    Retry(String),
    Abandon(String),
}

impl Command {
    fn is_result(&self) -> bool {
        matches!(self, Command::Computed { .. } | Command::Failed { .. })
    }
}

/// What becomes of the execution, and what must be started and stopped with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    pub execution: Execution,
    /// The execution's revision after each command, in the order given.
    pub revisions: Vec<u64>,
    /// Values that were set or cleared, in this order; a node may be among them more than once.
    pub changed: Vec<Change>,
    /// Nodes whose computation is another than before, or was removed.
    pub computations: BTreeSet<String>,
    /// Nodes whose computation failed for good just now, with the reason.
    pub failed: Vec<(String, String)>,
    pub start: Vec<Start>,
    /// Runs on inputs that are no longer so: whatever they still report is ignored.
    pub stop: Vec<RunId>,
    /// The moments at which somebody should look again.
    pub ticks: Ticks,
    /// It was archived, or brought back.
    pub archived: bool,
}

impl Changes {
    /// Whether there is nothing to write, apart from when to look again.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
            && self.computations.is_empty()
            && self.start.is_empty()
            && self.stop.is_empty()
            && !self.archived
    }

    /// When somebody should look again; never if nothing is armed.
    pub fn next_look(&self) -> Option<StoreTime> {
        self.ticks.values().min().copied()
    }
}

/// One value that changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub node: String,
    /// Its new content; none if it was cleared.
    pub cell: Option<Cell>,
    /// The execution's revision with it.
    pub revision: u64,
    /// The run whose result it is.
    pub run: Option<RunId>,
    /// It took the place of what was there, without a revision of its own: what was there is gone from the
    /// history too.
    pub silent: bool,
}

/// When each armed tick is due.
pub type Ticks = BTreeMap<String, StoreTime>;

/// A run to be made for a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub node: String,
    pub run: RunId,
    /// `{node: value}` of everything that is set.
    pub input: Json,
}

/// Decides. `new_run` gives ids for the runs to be made; the same ones for the same snapshot are not
/// needed, since only the decision that is committed counts.
pub fn decide(
    graph: &Graph,
    execution: Execution,
    commands: Vec<Command>,
    now: StoreTime,
    new_run: &mut dyn FnMut() -> RunId,
) -> Changes {
    decide_with(Planted::default(), graph, execution, commands, now, new_run)
}

/// Decides with a mistake, if one is planted.
pub(super) fn decide_with(
    hole: Planted,
    graph: &Graph,
    execution: Execution,
    commands: Vec<Command>,
    now: StoreTime,
    new_run: &mut dyn FnMut() -> RunId,
) -> Changes {
    let archived_before = execution.archived_at;
    let changes = Changes::default();
    let mut work = Work { graph, now, next: execution, bumped: false, input: None, changes, hole };
    let mut commands = commands.into_iter().peekable();
    while let Some(command) = commands.next() {
        let result = command.is_result();
        work.bumped = false;
        work.apply(command);
        // Results that come together come to rest together: each by itself would cost a look at all nodes.
        if !(result && commands.peek().is_some_and(Command::is_result)) {
            work.come_to_rest();
        }
        work.changes.revisions.push(work.next.revision);
    }
    // Time, or a new version of the graph, may have changed what holds.
    work.bumped = false;
    work.come_to_rest();
    // A tick that is armed by its schedule is a change, and something may follow from that.
    while work.start_and_stop(new_run) {
        work.come_to_rest();
    }
    work.arm();
    work.changes.archived = work.next.archived_at != archived_before;
    Changes { execution: work.next, ..work.changes }
}

/// A decision in the making.
pub(super) struct Work<'a> {
    pub(super) graph: &'a Graph,
    pub(super) now: StoreTime,
    pub(super) next: Execution,
    /// All changes of one command share one revision.
    pub(super) bumped: bool,
    /// What is set, as the input of runs; the same for all that one decision starts.
    pub(super) input: Option<Json>,
    pub(super) changes: Changes,
    pub(super) hole: Planted,
}

impl Work<'_> {
    fn apply(&mut self, command: Command) {
        match command {
            Command::Set { values, metadata } => {
                for (node, value) in values {
                    self.set(&node, value, metadata.clone(), true, None);
                }
            }
            Command::Unset(nodes) => nodes.iter().for_each(|node| self.clear(node)),
            Command::Computed { node, run, .. } | Command::Failed { node, run, .. } if self.outdated(&node, run) => {
                self.again_after_its_end(&node);
            }
            Command::Computed { node, run, result } => self.computed(&node, run, result),
            Command::Failed { node, run, error } => self.fail(&node, run, error),
            Command::Archive => _ = self.next.archived_at.get_or_insert(self.now),
            Command::Unarchive => self.next.archived_at = None,
            Command::Retry(node) => {
                self.again(&node);
                if let Some(computation) = self.computation(&node) {
                    (computation.iterations, computation.state) = (0, None);
                }
            }
            Command::Abandon(node) => {
                if let Some(run) = self.next.running(&node) {
                    self.changes.stop.push(run);
                    self.fail(&node, run, "abandoned on request".to_string());
                }
            }
        }
    }

    fn revision(&mut self) -> u64 {
        self.next.revision += u64::from(!std::mem::replace(&mut self.bumped, true));
        self.next.revision
    }

    /// Sets a value; one that is the same as before changes nothing and wakes nobody.
    pub(super) fn set(&mut self, node: &str, value: Value, metadata: Option<Value>, bump: bool, run: Option<RunId>) {
        let before = self.next.cell(node);
        if before.is_some_and(|cell| equal(&cell.value, &value)) {
            return;
        }
        let silent_revision = before.map_or(self.next.revision, |cell| cell.revision);
        let revision = if bump { self.revision() } else { silent_revision };
        let cell = Cell { value, revision, set_at: self.now, metadata };
        self.next.nodes.entry(node.to_string()).or_default().cell = Some(cell.clone());
        self.changed(node, Some(cell), run, !bump);
    }

    pub(super) fn clear(&mut self, node: &str) {
        if self.next.cell(node).is_none() {
            return;
        }
        self.revision();
        if let Some(state) = self.next.nodes.get_mut(node) {
            state.cell = None;
        }
        self.changed(node, None, None, false);
    }

    fn changed(&mut self, node: &str, cell: Option<Cell>, run: Option<RunId>, silent: bool) {
        let revision = self.next.revision;
        self.changes.changed.push(Change { node: node.to_string(), cell, revision, run, silent });
    }

    /// The node's computation, to be changed.
    pub(super) fn computation(&mut self, node: &str) -> Option<&mut Computation> {
        let computation = self.next.nodes.get_mut(node)?.computation.as_mut()?;
        self.changes.computations.insert(node.to_string());
        Some(computation)
    }

    /// Forgets the node's computation, and stops it if it runs.
    pub(super) fn forget(&mut self, node: &str) {
        self.changes.stop.extend(self.next.running(node));
        if let Some(state) = self.next.nodes.get_mut(node)
            && state.computation.take().is_some()
        {
            self.changes.computations.insert(node.to_string());
        }
    }

    /// Stops the node's computation, if it runs, to have it computed again.
    pub(super) fn again(&mut self, node: &str) {
        self.changes.stop.extend(self.next.running(node));
        if let Some(computation) = self.computation(node) {
            computation.status = Status::Next;
        }
    }

    /// Has the node computed again whose run is over.
    fn again_after_its_end(&mut self, node: &str) {
        if let Some(computation) = self.computation(node) {
            computation.status = Status::Next;
        }
    }

    /// Ends the node's computation, if it is the one that `run` performs; a late one changes nothing.
    fn end(&mut self, node: &str, run: RunId, status: Status) {
        if self.next.running(node) == Some(run)
            && let Some(computation) = self.computation(node)
        {
            computation.status = status;
        }
    }

    fn fail(&mut self, node: &str, run: RunId, error: String) {
        if self.next.running(node) == Some(run) {
            self.changes.failed.push((node.to_string(), error.clone()));
            self.end(node, run, Status::Failed(error));
        }
    }

    fn computed(&mut self, name: &str, run: RunId, result: Value) {
        if self.next.running(name) != Some(run) {
            return;
        }
        let Some(node) = self.graph.node(name) else {
            // Removed while it ran: nothing asks for its value any more. Should it come back, it is computed anew.
            self.end(name, run, Status::Done);
            return self.forget(name);
        };
        match node.kind {
            NodeKind::Mutate => self.mutate(node, run, result),
            NodeKind::Loop => self.iterate(node, run, result),
            NodeKind::TickOnce | NodeKind::TickRecurring => self.schedule(node, run, result),
            _ => {
                self.set(name, result, None, true, Some(run));
                self.end(name, run, Status::Done);
            }
        }
    }

    /// A tick's value is a time, or nothing that could be one: then it is paused.
    fn schedule(&mut self, node: &Node, run: RunId, result: Value) {
        if let Err(problem) = super::execution::check_due(&result) {
            return self.fail(&node.name, run, problem);
        }
        if self.has_fired(node, &result) {
            return self.ask_again(node);
        }
        self.set(&node.name, result, None, true, Some(run));
        self.end(&node.name, run, Status::Done);
    }

    /// Whether a recurring tick, asked for its next time, gave one that is not after the one that was due:
    /// as a clock that lags a little does.
    fn has_fired(&self, node: &Node, result: &Value) -> bool {
        let Some(cell) = self.next.cell(&node.name) else { return false };
        let rearmed = |last: &Computation| last.computed_with.get(&node.name) == Some(&cell.revision);
        let not_after = || due_at(result).zip(due_at(&cell.value)).is_some_and(|(next, due)| next <= due);
        node.kind == NodeKind::TickRecurring && self.next.computation(&node.name).is_some_and(rearmed) && not_after()
    }

    /// Asks a tick for its time again after a while, longer each time.
    fn ask_again(&mut self, node: &Node) {
        let now = self.now;
        if let Some(computation) = self.computation(&node.name) {
            let pause = Duration::from_secs(1 << computation.iterations.min(LONGEST_PAUSE));
            computation.iterations += 1;
            computation.state = Some(Value::from(now.plus(pause).to_string()));
            computation.status = Status::Next;
        }
    }

    /// One target takes the result itself; several take it by name.
    fn mutate(&mut self, node: &Node, run: RunId, result: Value) {
        let bump = node.options.update_revision_on_change;
        match (node.mutates.as_slice(), result) {
            ([target], result) => self.set(target, result, None, bump, Some(run)),
            (targets, Value::Object(mut values)) => {
                for target in targets {
                    if let Some(value) = values.remove(target) {
                        self.set(target, value, None, bump, Some(run));
                    }
                }
            }
            (targets, _) => {
                let error = format!("its result is not an object with some of {}", targets.join(", "));
                return self.fail(&node.name, run, error);
            }
        }
        let said = format!("updated {}", node.mutates.join(", "));
        self.set(&node.name, Value::from(said), None, true, Some(run));
        self.end(&node.name, run, Status::Done);
    }

    /// `{"done": value}` ends a loop; `{"continue": state}` asks for another iteration, with an optional
    /// `fallback` for when they are used up. Anything else is its value.
    fn iterate(&mut self, node: &Node, run: RunId, mut result: Value) {
        let Some(state) = result.get_mut("continue").map(Value::take) else {
            let value = result.get_mut("done").map(Value::take).unwrap_or(result);
            self.set(&node.name, value, None, true, Some(run));
            return self.end(&node.name, run, Status::Done);
        };
        let most = node.options.max_iterations.unwrap_or(1);
        let Some(computation) = self.computation(&node.name) else { return };
        computation.iterations += 1;
        computation.state = Some(state);
        if computation.iterations < most {
            computation.status = Status::Next;
            return;
        }
        match result.get_mut("fallback").map(Value::take).or_else(|| node.options.fallback.clone()) {
            Some(fallback) => {
                self.set(&node.name, fallback, None, true, Some(run));
                self.end(&node.name, run, Status::Done);
            }
            None => self.fail(&node.name, run, format!("max_iterations reached: {most} iterations were not enough")),
        }
    }

    pub(super) fn view(&self) -> Now<'_> {
        Now { graph: self.graph, execution: &self.next, now: self.now }
    }
}

/// A tick that gives no new time is asked at least every 64 seconds.
const LONGEST_PAUSE: u32 = 6;
