//! What follows from a change by itself: values that lost their gate go, histories grow, the execution
//! is archived.

use super::decide::Work;
use super::execution::{Computation, Standing, Status};
use super::kind::NodeKind;
use super::node::Node;
use super::options::DEFAULT_ENTRIES;
use serde_json::Value;
use std::collections::BTreeMap;

impl Work<'_> {
    /// Until nothing changes any more.
    pub(super) fn come_to_rest(&mut self) {
        loop {
            let before = self.changes.changed.len();
            self.clear_what_lost_its_gate();
            self.remember();
            self.archive();
            if self.changes.changed.len() == before {
                return;
            }
        }
    }

    fn clear_what_lost_its_gate(&mut self) {
        for node in self.graph.in_order().filter(|node| node.kind.clears()) {
            let state = self.next.nodes.get(&node.name);
            if state.is_some_and(|state| state.cell.is_some() || state.computation.is_some()) && !self.may_stay(node) {
                self.clear(&node.name);
                self.forget(&node.name);
            }
        }
    }

    fn may_stay(&self, node: &Node) -> bool {
        let none = BTreeMap::new();
        let computed_with = self.next.computation(&node.name).map_or(&none, |computation| &computation.computed_with);
        node.gate.holds(&Standing { now: self.view(), computed_with })
    }

    /// A historian notes what is newer than what it noted last, also what came while its gate was shut.
    fn remember(&mut self) {
        for node in self.graph.in_order().filter(|node| node.kind == NodeKind::Historian) {
            if !node.gate.holds(&self.view()) {
                continue;
            }
            let noted = self.next.computation(&node.name).map(|computation| &computation.computed_with);
            let new =
                |name: &str, revision: u64| noted.and_then(|noted| noted.get(name)).is_none_or(|at| *at < revision);
            let upstreams = node.gate.upstreams();
            let mut news: Vec<(u64, &str)> = upstreams
                .iter()
                .filter_map(|name| self.next.cell(name).map(|cell| (cell.revision, *name)))
                .filter(|(revision, name)| new(name, *revision))
                .collect();
            if news.is_empty() {
                continue;
            }
            // The last one set is the newest, also within one change.
            news.sort_unstable_by(|a, b| b.cmp(a));
            let mut entries: Vec<Value> = news.iter().filter_map(|(_, name)| self.entry(name)).collect();
            if let Some(Value::Array(earlier)) = self.next.cell(&node.name).map(|cell| &cell.value) {
                entries.extend(earlier.iter().cloned());
            }
            if let Some(most) = node.options.max_entries.unwrap_or(Some(DEFAULT_ENTRIES)) {
                entries.truncate(most);
            }
            let mut computed_with = noted.cloned().unwrap_or_default();
            computed_with.extend(news.iter().map(|(revision, name)| (name.to_string(), *revision)));
            self.set(&node.name, Value::Array(entries), None, true, None);
            let computation = Computation { computed_with, ..Computation::of(None, Status::Done) };
            self.begin(&node.name, computation);
        }
    }

    fn entry(&self, node: &str) -> Option<Value> {
        let cell = self.next.cell(node)?;
        Some(serde_json::json!({
            "value": cell.value,
            "node": node,
            "timestamp": cell.set_at,
            "metadata": cell.metadata,
            "revision": cell.revision,
        }))
    }

    fn archive(&mut self) {
        for node in self.graph.in_order().filter(|node| node.kind == NodeKind::Archive) {
            if self.next.archived_at.is_none() && self.next.cell(&node.name).is_none() && node.gate.holds(&self.view())
            {
                self.next.archived_at = Some(self.now);
                let at = self.now.to_string();
                self.set(&node.name, Value::from(at), None, true, None);
            }
        }
    }
}
