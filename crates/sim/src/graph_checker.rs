//! Compares every execution, after every change of it, with what it was: histories are replayed entry by
//! entry, so that each value is held against what was set at that very moment.

use crate::graph_clients::graph_of;
use crate::graphs::SINGLE;
use crate::truth::Truth;
use everbeat_model::graph::Status;
use everbeat_model::{ExecutionId, RunId, RunState};
use everbeat_store::Remembered;
use everbeat_store::memory::{ExecutionRow, State};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct GraphChecker {
    seen: BTreeMap<ExecutionId, Seen>,
    /// Notes and finished runs at the last look.
    sizes: (usize, usize),
}

/// An execution at the last look.
#[derive(Default)]
struct Seen {
    stamp: u64,
    revision: u64,
    place: u64,
    /// What is set, as the history tells it.
    values: BTreeMap<String, Value>,
    /// Which nodes each run's result was recorded for.
    recorded: BTreeMap<RunId, BTreeSet<String>>,
    /// The run that each firing of a tick led to, by the node that waits for it and the tick's revision.
    fired: BTreeMap<(&'static str, u64), RunId>,
    failed: BTreeMap<String, RunId>,
}

type Checked = Result<(), String>;

/// Nodes that wait for a tick.
const WAITING: [(&str, &str); 3] = [("rung", "once"), ("counted", "pulse"), ("roused", "dawn")];

impl GraphChecker {
    pub(crate) fn look(&mut self, state: &State, truth: &mut Truth, now: u64) {
        for (id, row) in &state.executions {
            let known = self.seen.contains_key(id);
            let seen = self.seen.entry(*id).or_default();
            if known && seen.stamp == row.stamp {
                continue;
            }
            truth.report.executions += u64::from(!known);
            if let Err(detail) = seen.carry_on(state, truth, *id, row, now) {
                truth.violate("graph", format!("execution {id}: {detail}"));
            }
        }
        let sizes = (state.agenda.len(), state.done.len());
        if std::mem::replace(&mut self.sizes, sizes) != sizes
            && let Some(detail) = stranded(state)
        {
            truth.violate("graph", detail);
        }
        let lost = truth.executions.iter().find(|id| !state.executions.contains_key(id)).copied();
        if let Some(id) = lost {
            truth.violate("graph", format!("execution {id} was acknowledged, and is gone"));
        }
        let stands = |id: &ExecutionId, row: &ExecutionRow| {
            row.execution.archived_at.is_none() && graph_of(state, *id).is_some_and(|graph| graph.name == SINGLE)
        };
        let standing = state.executions.iter().filter(|(id, row)| stands(id, row)).count();
        if standing > 1 {
            truth.violate("graph", format!("{standing} executions of a singleton stand at once"));
        }
    }

    /// Starts from what a failover left.
    pub(crate) fn rebased(state: &State, truth: &mut Truth, now: u64) -> GraphChecker {
        truth.executions.retain(|id| state.executions.contains_key(id));
        truth.started.clear();
        truth.value_since.clear();
        truth.callbacks.retain(|_, run| state.runs.contains_key(run));
        let seen = state.executions.iter().map(|(id, row)| (*id, Seen::of(row))).collect();
        for (id, row) in &state.executions {
            let set = row.execution.nodes.iter().filter(|(_, state)| state.cell.is_some());
            truth.value_since.extend(set.map(|(node, _)| ((*id, node.clone()), now)));
        }
        GraphChecker { seen, sizes: (0, 0) }
    }
}

impl Seen {
    fn of(row: &ExecutionRow) -> Seen {
        let mut seen = Seen {
            stamp: row.stamp,
            revision: row.execution.revision,
            place: row.place,
            fired: firings(row).collect(),
            failed: failures(row).map(|(node, run)| (node.clone(), run)).collect(),
            ..Seen::default()
        };
        row.history.iter().for_each(|entry| seen.take(entry));
        seen
    }

    fn carry_on(&mut self, state: &State, truth: &mut Truth, id: ExecutionId, row: &ExecutionRow, now: u64) -> Checked {
        let revision = row.execution.revision;
        if revision < self.revision || row.stamp < self.stamp || row.place < self.place {
            return Err(format!("it went back from revision {} to {revision}", self.revision));
        }
        let new = row.history.partition_point(|entry| entry.place <= self.place);
        for entry in &row.history[new..] {
            if truth.tracing {
                let by = entry.run.map(|run| truth.name(run));
                let value = entry.value.as_ref().map_or("nothing", |value| value.as_str());
                let line = format!(
                    "{} of {} becomes {value} with revision {}, by {by:?}",
                    entry.node,
                    truth.execution(id),
                    entry.revision
                );
                truth.trace.push(format!("{:>10.3} ms  {line}", now as f64 / 1000.0));
            }
            self.check_entry(state, truth, id, entry)?;
            self.take(entry);
            match &entry.value {
                Some(_) => _ = truth.value_since.insert((id, entry.node.clone()), now),
                None => _ = truth.value_since.remove(&(id, entry.node.clone())),
            }
        }
        (self.stamp, self.revision, self.place) = (row.stamp, revision, row.place);
        for (key, run) in firings(row) {
            match self.fired.insert(key, run) {
                None => truth.report.ticks_fired += 1,
                Some(before) if before != run => {
                    return Err(format!("{} was computed twice for the tick of revision {}", key.0, key.1));
                }
                Some(_) => {}
            }
        }
        for (node, run) in failures(row) {
            if self.failed.insert(node.clone(), run) != Some(run) {
                truth.report.failed_nodes += 1;
            }
        }
        for (node, state) in &row.execution.nodes {
            if state.cell.as_ref().map(|cell| &cell.value) != self.values.get(node) {
                return Err(format!("the value of {node} is not the last one in its history"));
            }
        }
        Ok(())
    }

    fn take(&mut self, entry: &Remembered) {
        match &entry.value {
            Some(value) => _ = self.values.insert(entry.node.clone(), value.value()),
            None => _ = self.values.remove(&entry.node),
        }
        if let Some(run) = entry.run {
            self.recorded.entry(run).or_default().insert(entry.node.clone());
        }
    }

    fn check_entry(&self, state: &State, truth: &mut Truth, id: ExecutionId, entry: &Remembered) -> Checked {
        let node = entry.node.as_str();
        if let (Some(run), Some(value)) = (entry.run, &entry.value) {
            truth.report.computed += 1;
            self.check_run(state, node, run)?;
            self.check_value(node, &value.value())?;
        }
        if node == "join" && entry.value.is_some() {
            let called = truth.callbacks.contains_key(&(id.to_string(), node.to_string(), entry.revision));
            if !called {
                return Err(format!("{node} was saved with revision {}, and nobody was called", entry.revision));
            }
        }
        Ok(())
    }

    /// A result counts once, and only that of a run which succeeded; one that sets others sets itself too.
    fn check_run(&self, state: &State, node: &str, run: RunId) -> Checked {
        let others = self.recorded.get(&run);
        let mutation = |name: &str| matches!(name, "memo" | "note");
        if let Some(other) = others.and_then(|others| others.iter().find(|other| *other == node || !mutation(other))) {
            return Err(format!("the result of one run was recorded for {other} and for {node}"));
        }
        match state.done.get(&run).map(|done| done.state) {
            Some(RunState::Succeeded) => Ok(()),
            other => Err(format!("{node} has the result of a run that is {other:?}")),
        }
    }

    /// What a value says that it was computed from is what is set.
    fn check_value(&self, node: &str, value: &Value) -> Checked {
        let set = |name: &str| self.values.get(name).unwrap_or(&Value::Null);
        let pairs: Vec<(&Value, &Value)> = match node {
            "a" | "b" => vec![(&value["x"], set("x"))],
            "spin" => vec![(&value["x"], set("x")), (&value["began"], set("x"))],
            "either" => vec![(&value["x"], set("x")), (&value["flag"], set("flag"))],
            "join" => {
                if value["left"] != value["right"] {
                    return Err(format!("join mixes old and new: {value}"));
                }
                vec![(&value["left"], &set("a")["x"]), (&value["right"], &set("b")["x"])]
            }
            "after" | "extra" => vec![(&value["x"], &set("join")["left"])],
            "memo" | "c" => vec![(&value["x"], &set("a")["x"])],
            "d" => vec![(&value["x"], &set("c")["x"])],
            "echo" => vec![(&value["memo"], set("memo"))],
            "picky" | "doomed" => vec![(&value["y"], set("y"))],
            _ => Vec::new(),
        };
        match pairs.into_iter().find(|(from, is)| from != is) {
            None => Ok(()),
            Some((from, is)) => Err(format!("{node} was recorded as computed from {from}, and there is {is}")),
        }
    }
}

/// Whoever waits for a run that is over is in somebody's notes.
fn stranded(state: &State) -> Option<String> {
    state.executions.iter().find_map(|(id, row)| {
        let over = |node: &&String| row.execution.running(node).is_some_and(|run| state.done.contains_key(&run));
        let node = row.execution.nodes.keys().find(over)?;
        let noted = state.agenda.iter().any(|(_, noted)| noted == id);
        (!noted).then(|| format!("execution {id}: the run of {node} is over, and nobody will look"))
    })
}

fn firings(row: &ExecutionRow) -> impl Iterator<Item = ((&'static str, u64), RunId)> {
    WAITING.into_iter().filter_map(|(node, tick)| {
        let computation = row.execution.computation(node)?;
        Some(((node, *computation.computed_with.get(tick)?), computation.run?))
    })
}

fn failures(row: &ExecutionRow) -> impl Iterator<Item = (&String, RunId)> {
    row.execution.nodes.iter().filter_map(|(node, state)| {
        let computation = state.computation.as_ref()?;
        matches!(computation.status, Status::Failed(_)).then_some((node, computation.run?))
    })
}
