//! Which revisions a node should be computed with, and which values are not what they will be. Whatever starts
//! computations and whatever describes them reads it here.

use super::execution::{Computation, Execution, Now, Standing, Status, due_at};
use super::kind::NodeKind;
use super::node::{Graph, Node};
use crate::time::StoreTime;
use std::collections::{BTreeMap, BTreeSet};

/// Of each upstream of a node, the revision that counts.
pub(super) type Revisions = BTreeMap<String, u64>;

/// Nodes that have a value which is not what it will be: it is being computed anew, has yet to be,
/// could not be, or rests on such a one. To compute from it would mix old and new. A node without a
/// value cannot be mixed with anything: whoever can do without it need not wait for it.
pub(super) fn stale<'g>(graph: &'g Graph, execution: &Execution, now: StoreTime) -> Stale<'g> {
    let at = Now { graph, execution, now };
    let mut stale = Stale::default();
    for node in graph.in_order().filter(|node| node.kind.has_task() && execution.cell(&node.name).is_some()) {
        let Some(wanted) = at.wanted(node) else { continue };
        let causes = at.causes(node, &wanted, || stale.above(node));
        if !causes.is_empty() {
            stale.0.insert(&node.name, causes);
        }
    }
    stale
}

/// The nodes whose value is not what it will be, and why.
#[derive(Default)]
pub(super) struct Stale<'g>(BTreeMap<&'g str, Causes<'g>>);

pub(super) type Causes<'g> = BTreeSet<Cause<'g>>;

/// A node that has to be computed before a value is what it will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause<'g> {
    /// Comes first, since it does not pass by itself.
    Failed(&'g str),
    Uncomputed(&'g str),
}

/// The first few causes tell enough; a wide graph would make them many.
const MOST_CAUSES: usize = 3;

impl<'g> Stale<'g> {
    /// Whether the node must not be computed yet.
    pub(super) fn holds_back(&self, node: &Node) -> bool {
        node.gate.upstreams().iter().any(|name| self.0.contains_key(name))
    }

    /// What the node has to wait for: the nearest nodes above it that will have another value.
    pub(super) fn above(&self, node: &Node) -> Causes<'g> {
        let upstreams = node.gate.upstreams();
        let causes: Causes<'_> = upstreams.iter().filter_map(|name| self.0.get(name)).flatten().copied().collect();
        causes.into_iter().take(MOST_CAUSES).collect()
    }
}

/// What a node's next or last computation stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// The gate does not hold.
    Shut,
    /// The node has not been computed with what is there now.
    Stale,
    Current,
}

impl Now<'_> {
    /// What has to be computed before a node with a value has the one that it will have. `above` is what the node rests
    /// on.
    fn causes<'g>(&self, node: &'g Node, wanted: &Revisions, above: impl FnOnce() -> Causes<'g>) -> Causes<'g> {
        let last = self.execution.computation(&node.name);
        let current = last.is_some_and(|last| last.is_current(wanted));
        match last.map(|last| &last.status) {
            Some(Status::Done) if current => above(),
            Some(_) if self.is_rearmed(node, wanted) => above(),
            Some(Status::Running(_)) => BTreeSet::from([Cause::Uncomputed(&node.name)]),
            Some(Status::Failed(_)) if current => BTreeSet::from([Cause::Failed(&node.name)]),
            _ => Some(above()).filter(|above| !above.is_empty()).unwrap_or([Cause::Uncomputed(&node.name)].into()),
        }
    }

    /// Whether a tick is only armed anew, since it was due: its value is as good as it was.
    fn is_rearmed(&self, tick: &Node, wanted: &Revisions) -> bool {
        let (cell, last) = (self.execution.cell(&tick.name), self.execution.computation(&tick.name));
        tick.kind.is_tick()
            && cell.zip(last).is_some_and(|(cell, last)| {
                self.same_but_for_ticks(&last.computed_with, wanted)
                    && (last.status == Status::Done || last.computed_with.get(&tick.name) == Some(&cell.revision))
            })
    }

    /// What the node's next or last computation stands on. The node's own revision is left out: a tick that is about to
    /// be armed anew stands where it stood.
    pub(super) fn ground(&self, node: &Node) -> Ground {
        if !node.gate.holds(self) && !self.stands(node) {
            return Ground::Shut;
        }
        if !node.kind.has_task() {
            return Ground::Current;
        }
        let wanted = self.revisions(node);
        let others = |revisions: &Revisions| -> Revisions {
            revisions.iter().filter(|(name, _)| **name != node.name).map(|(name, at)| (name.clone(), *at)).collect()
        };
        let is_current =
            |last: &Computation| last.status != Status::Next && others(&last.computed_with) == others(&wanted);
        if self.execution.computation(&node.name).is_some_and(is_current) { Ground::Current } else { Ground::Stale }
    }

    /// The revisions that the node should be computed with now; none while its gate is shut.
    pub(super) fn wanted(&self, node: &Node) -> Option<Revisions> {
        self.stands(node).then(|| self.revisions(node))
    }

    /// Whether the node's gate holds; a tick that fired for the node counts although it is armed again by now.
    pub(super) fn stands(&self, node: &Node) -> bool {
        let none = BTreeMap::new();
        let before = self.execution.computation(&node.name).map_or(&none, |last| &last.computed_with);
        node.gate.holds(&Standing { now: *self, computed_with: before })
    }

    /// The revisions that the node should be computed with if its gate holds. An upstream tick counts anew only when
    /// it is due.
    pub(super) fn revisions(&self, node: &Node) -> Revisions {
        let none = BTreeMap::new();
        let before = self.execution.computation(&node.name).map_or(&none, |last| &last.computed_with);
        let mut revisions = BTreeMap::new();
        for upstream in node.gate.upstreams() {
            let Some(cell) = self.execution.cell(upstream) else { continue };
            let tick = self.is_tick(upstream);
            let due = tick && due_at(&cell.value).is_some_and(|due| due <= self.now);
            match (tick && !due, before.get(upstream)) {
                (true, Some(revision)) => _ = revisions.insert(upstream.to_string(), *revision),
                (true, None) => {}
                (false, _) => _ = revisions.insert(upstream.to_string(), cell.revision),
            }
        }
        if node.kind == NodeKind::TickRecurring && self.fired(&node.name) {
            // Armed anew once everything that waited for it has been started with it.
            revisions.insert(node.name.clone(), self.execution.cell(&node.name).map_or(0, |cell| cell.revision));
        } else if let Some(own) = before.get(&node.name) {
            revisions.insert(node.name.clone(), *own);
        }
        revisions
    }

    pub(super) fn same_but_for_ticks(&self, a: &Revisions, b: &Revisions) -> bool {
        let plain = |revisions: &'_ Revisions| -> Vec<(String, u64)> {
            revisions.iter().filter(|(name, _)| !self.is_tick(name)).map(|(name, at)| (name.clone(), *at)).collect()
        };
        plain(a) == plain(b)
    }

    pub(super) fn is_tick(&self, name: &str) -> bool {
        self.graph.node(name).is_some_and(|node| node.kind.is_tick())
    }

    /// Whether a recurring tick is due, and all that depends on it has taken note.
    fn fired(&self, tick: &str) -> bool {
        let Some(cell) = self.execution.cell(tick) else { return false };
        if due_at(&cell.value).is_none_or(|due| due > self.now) {
            return false;
        }
        self.graph.dependants(tick).filter(|node| node.kind.has_task()).all(|node| {
            let noted = self.execution.computation(&node.name).and_then(|last| last.computed_with.get(tick));
            let failed = |name: &&str| {
                self.execution.computation(name).is_some_and(|last| matches!(last.status, Status::Failed(_)))
            };
            // One that a failure holds back must not keep the others from the next time.
            let held_back = || node.gate.upstreams().iter().any(failed);
            noted == Some(&cell.revision) || !node.gate.holds(self) || held_back()
        })
    }
}
