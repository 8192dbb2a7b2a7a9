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
pub(super) fn stale<'g>(graph: &'g Graph, execution: &Execution, now: StoreTime) -> BTreeSet<&'g str> {
    let at = Now { graph, execution, now };
    let mut stale: BTreeSet<&str> = BTreeSet::new();
    for node in graph.in_order().filter(|node| node.kind.has_task()) {
        let Some(cell) = execution.cell(&node.name) else { continue };
        let Some(wanted) = at.wanted(node) else { continue };
        let last = execution.computation(&node.name);
        // A tick that is only armed anew, since it was due, is as good as it was.
        let rearmed = |last: &Computation| {
            node.kind.is_tick()
                && at.same_but_for_ticks(&last.computed_with, &wanted)
                && (last.status == Status::Done || last.computed_with.get(&node.name) == Some(&cell.revision))
        };
        let settled =
            last.is_some_and(|last| (last.status == Status::Done && last.computed_with == wanted) || rearmed(last));
        if !settled || node.gate.upstreams().iter().any(|name| stale.contains(name)) {
            stale.insert(&node.name);
        }
    }
    stale
}

impl Now<'_> {
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
