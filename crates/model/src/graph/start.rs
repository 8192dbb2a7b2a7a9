//! Which nodes must be computed now, and which computations have lost their ground.

use super::decide::{Start, Work};
use super::execution::{Computation, Execution, Status, due_at};
use super::kind::NodeKind;
use super::node::Node;
use super::staleness::{Revisions, Stale, stale};
use crate::hole::Hole;
use crate::id::RunId;
use crate::json::Json;
use crate::schedule::Rhythm;
use crate::time::StoreTime;
use serde_json::Value;
use std::collections::BTreeMap;

impl Work<'_> {
    /// An archived execution starts nothing; what runs on what is no longer so is stopped all the same.
    /// Until nothing more starts: a recurring tick is armed again once those that waited for it have begun. True if a
    /// tick was armed by its schedule, so that a value is another one.
    pub(super) fn start_and_stop(&mut self, new_run: &mut dyn FnMut() -> RunId) -> bool {
        let values = self.changes.changed.len();
        loop {
            let before = (self.changes.start.len(), self.changes.changed.len());
            self.start_and_stop_once(new_run);
            if (self.changes.start.len(), self.changes.changed.len()) == before {
                return self.changes.changed.len() > values;
            }
        }
    }

    fn start_and_stop_once(&mut self, new_run: &mut dyn FnMut() -> RunId) {
        let mixes = self.hole.is(Hole::MixedInputs);
        let stale = if mixes { Stale::default() } else { stale(self.graph, &self.next, self.now) };
        for node in self.graph.in_order().filter(|node| node.kind.has_task()) {
            let wanted = self.view().wanted(node);
            let last = self.next.computation(&node.name);
            let runs = last.is_some_and(|last| matches!(last.status, Status::Running(_)));
            let current = self.is_current(node, wanted.as_ref());
            if runs && (current || self.may_finish(node, wanted.as_ref())) {
                continue;
            }
            match (runs, &wanted) {
                (true, None) => self.forget(&node.name),
                // What it was started with is no longer so.
                (true, Some(_)) => self.again(&node.name),
                (false, _) => {}
            }
            let wanted = wanted.filter(|_| !current && self.next.archived_at.is_none());
            let Some(wanted) = wanted.filter(|_| self.asked_again_at(node).is_none_or(|at| at <= self.now)) else {
                continue;
            };
            match &node.schedule {
                _ if stale.holds_back(node) => {}
                None => self.start(node, wanted, new_run()),
                Some(rhythm) => self.arm_by(rhythm, node, wanted),
            }
        }
    }

    /// Whether what the run was started with is no longer so. Whatever is decided at once stops such a run;
    /// one that ended together with what it depends on would have been stopped a moment later.
    pub(super) fn outdated(&self, name: &str, run: RunId) -> bool {
        let Some(node) = self.graph.node(name).filter(|_| self.next.running(name) == Some(run)) else { return false };
        let wanted = self.view().wanted(node);
        !self.is_current(node, wanted.as_ref()) && !self.may_finish(node, wanted.as_ref())
    }

    /// Whether the node's last computation is, or will be, what is wanted.
    fn is_current(&self, node: &Node, wanted: Option<&Revisions>) -> bool {
        let Some((wanted, last)) = wanted.zip(self.next.computation(&node.name)) else { return false };
        if self.armed_by_another(node, last) {
            return false;
        }
        if self.hole.is(Hole::TickTwice) && last.status == Status::Done {
            let tick = |name: &&str| self.graph.node(name).is_some_and(|node| node.kind == NodeKind::TickOnce);
            return last.is_current(wanted) && !node.gate.upstreams().iter().any(tick);
        }
        last.is_current(wanted)
    }

    /// Whether a tick with a schedule was armed by another one, or by a task, of an earlier definition. A time that is due
    /// counts all the same: what has fired does not fire again.
    fn armed_by_another(&self, node: &Node, last: &Computation) -> bool {
        let Some(rhythm) = &node.schedule else { return false };
        let due = || self.next.cell(&node.name).and_then(|cell| due_at(&cell.value)).is_some_and(|due| due <= self.now);
        match last.status {
            Status::Running(_) | Status::Failed(_) => true,
            Status::Next => false,
            Status::Done => last.state != Some(rhythm.to_json()) && !due(),
        }
    }

    /// Whether a running computation may go on although it is not what is wanted now: only ticks fired
    /// since it began. It is followed by another one; to stop it each time would starve it.
    fn may_finish(&self, node: &Node, wanted: Option<&Revisions>) -> bool {
        let (Some(wanted), Some(last)) = (wanted, self.next.computation(&node.name)) else { return false };
        if self.hole.is(Hole::ResultOfOldInputs) {
            return true;
        }
        node.schedule.is_none() && self.view().same_but_for_ticks(wanted, &last.computed_with)
    }

    /// When a tick that gave no new time is asked again.
    fn asked_again_at(&self, node: &Node) -> Option<StoreTime> {
        let asked = |last: &&Computation| node.kind.is_tick() && node.schedule.is_none() && last.status == Status::Next;
        let last = self.next.computation(&node.name).filter(asked)?;
        due_at(last.state.as_ref()?)
    }

    fn start(&mut self, node: &Node, computed_with: Revisions, run: RunId) {
        // An iteration that asked for another goes on where it was, unless something changed meanwhile.
        let looped = self.next.computation(&node.name).filter(|last| {
            last.status == Status::Next && self.view().same_but_for_ticks(&last.computed_with, &computed_with)
        });
        let (iterations, state) = looped.map_or((0, None), |last| (last.iterations, last.state.clone()));
        let state = state.filter(|_| node.kind == NodeKind::Loop);
        let input = match &state {
            None => self.input.get_or_insert_with(|| input(&self.next, None)).clone(),
            Some(state) => input(&self.next, Some((&node.name, state))),
        };
        let status = match input.as_str().len() {
            0..=MOST_INPUT_BYTES => Status::Running(run),
            size => {
                Status::Failed(format!("its input is too large: {size} bytes of values are set, and 16 MiB may be"))
            }
        };
        if let Status::Failed(error) = &status {
            self.changes.failed.push((node.name.clone(), error.clone()));
            let computation = Computation { computed_with, ..Computation::of(None, status) };
            return self.begin(&node.name, computation);
        }
        let computation = Computation { computed_with, iterations, state, ..Computation::of(Some(run), status) };
        self.begin(&node.name, computation);
        self.changes.start.push(Start { node: node.name.clone(), run, input });
    }

    /// Arms a tick by its schedule: by the due time that has fired, so that the tick does not drift, else from now on. Of
    /// several due times that nobody looked at one has fired.
    fn arm_by(&mut self, rhythm: &Rhythm, tick: &Node, computed_with: Revisions) {
        let fired = computed_with.get(&tick.name);
        let last = self.next.computation(&tick.name);
        let goes_on = last.is_some_and(|last| {
            last.computed_with.get(&tick.name) != fired
                && self.view().same_but_for_ticks(&last.computed_with, &computed_with)
        });
        let due = self.next.cell(&tick.name).and_then(|cell| due_at(&cell.value)).filter(|due| *due <= self.now);
        let from = due.filter(|_| goes_on).map_or(self.now, |due| rhythm.latest(due, self.now));
        let next = rhythm.after(from).map_or(Value::Null, |next| Value::from(next.to_string()));
        let computation =
            Computation { computed_with, state: Some(rhythm.to_json()), ..Computation::of(None, Status::Done) };
        self.begin(&tick.name, computation);
        // Not the revision of what has begun with the time that fired.
        self.bumped = false;
        self.set(&tick.name, next, None, true, None);
        self.input = None;
    }

    pub(super) fn begin(&mut self, node: &str, computation: Computation) {
        self.next.nodes.entry(node.to_string()).or_default().computation = Some(computation);
        self.changes.computations.insert(node.to_string());
    }

    pub(super) fn arm(&mut self) {
        if self.next.archived_at.is_some() {
            return;
        }
        for node in self.graph.in_order().filter(|node| node.kind.is_tick()) {
            let due = self.next.cell(&node.name).and_then(|cell| due_at(&cell.value));
            let times = [due, self.asked_again_at(node)];
            if let Some(at) = times.into_iter().flatten().filter(|at| *at > self.now).min() {
                self.changes.ticks.insert(node.name.clone(), at);
            }
        }
    }
}

/// The input of a run holds everything that is set; beyond this, the values belong elsewhere.
const MOST_INPUT_BYTES: usize = 16 << 20;

/// Everything that is set, by name; a loop sees what its last iteration handed on under its own name.
fn input(execution: &Execution, own: Option<(&str, &Value)>) -> Json {
    let cells = execution.nodes.iter().filter_map(|(name, state)| Some((name.as_str(), &state.cell.as_ref()?.value)));
    let mut values: BTreeMap<&str, &Value> = cells.collect();
    values.extend(own);
    Json::of(&values)
}
