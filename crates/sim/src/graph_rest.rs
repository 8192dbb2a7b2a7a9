//! Whether an execution is at rest: nothing is being computed, and every value is what its inputs make it.

use crate::graph_clients::graph_of;
use crate::nodes::dooms;
use everbeat_model::graph::{Execution, Status};
use everbeat_model::{ExecutionId, StoreTime};
use everbeat_store::memory::{ExecutionRow, State};
use serde_json::{Value, json};

/// What an execution that is not at rest still lacks.
pub(crate) fn restless(state: &State, now: StoreTime) -> Option<String> {
    state.executions.iter().find_map(|(id, row)| {
        let lacks = lacks(state, *id, row, now)?;
        Some(format!("execution {id} is not at rest: {lacks}"))
    })
}

fn lacks(state: &State, id: ExecutionId, row: &ExecutionRow, now: StoreTime) -> Option<String> {
    let execution = &row.execution;
    if let Some(node) = execution.nodes.keys().find(|node| execution.running(node).is_some()) {
        return Some(format!("{node} is being computed"));
    }
    if execution.archived_at.is_some() {
        return None;
    }
    let graph = graph_of(state, id)?;
    let latest = state.graphs.iter().rev().find(|(_, definition)| definition.graph.name == graph.name);
    if latest.is_some_and(|(serial, _)| *serial > row.course.seen) {
        return Some("its graph has a later definition".to_string());
    }
    if let Some(lacks) = historian(row) {
        return Some(lacks);
    }
    let rest = Rest { execution, now };
    graph.nodes().iter().find_map(|node| rest.lacks(&node.name))
}

/// A historian misses nothing.
fn historian(row: &ExecutionRow) -> Option<String> {
    let seen = &row.execution.cell("seen")?.value;
    let noted = seen.as_array().into_iter().flatten().map(|entry| entry["value"].clone());
    let set = row.history.iter().rev().filter(|entry| entry.node == "x");
    let set = set.filter_map(|entry| entry.value.as_ref().map(|value| value.value()));
    (!noted.eq(set)).then(|| format!("its historian has {seen}, which is not what x was"))
}

struct Rest<'a> {
    execution: &'a Execution,
    now: StoreTime,
}

impl Rest<'_> {
    fn value(&self, node: &str) -> Option<&Value> {
        self.execution.cell(node).map(|cell| &cell.value)
    }

    fn lacks(&self, node: &str) -> Option<String> {
        let status = self.execution.computation(node).map(|computation| &computation.status);
        if status == Some(&Status::Next) && !self.paused(node) && !self.held_back(node) {
            return Some(format!("{node} is to be computed again"));
        }
        // Whoever failed for good stays as it is until something changes.
        if matches!(status, Some(Status::Failed(_))) {
            return None;
        }
        let is = self.value(node);
        match self.wanted(node)? {
            Wanted::Nothing if is.is_some() => Some(format!("{node} is {is:?}, and its gate is shut")),
            Wanted::Value(value) if is != Some(&value) => Some(format!("{node} is {is:?} and should be {value}")),
            Wanted::Failure => Some(format!("{node} is {is:?} and should have failed")),
            Wanted::Due if is.is_none() => Some(format!("{node} was never armed")),
            Wanted::Due if is.and_then(moment).is_some_and(|due| due > self.now) => {
                Some(format!("{node} is not due yet"))
            }
            _ => None,
        }
    }

    /// Whether it is a tick whose gate is shut. One that was to be asked for its time again stays so meanwhile:
    /// unlike what is computed, a tick is not forgotten when its gate shuts.
    fn paused(&self, node: &str) -> bool {
        match node {
            "once" | "dawn" => self.value("y").is_none(),
            "pulse" => self.value("go").is_none(),
            _ => false,
        }
    }

    /// Whether something that it rests on failed for good: it waits for that to change.
    fn held_back(&self, node: &str) -> bool {
        let rests_on: &[&str] = match node {
            "join" => &["a", "b"],
            "after" | "extra" => &["a", "b", "join"],
            "note" | "c" => &["a"],
            "d" => &["a", "c"],
            "echo" => &["a", "note"],
            "rung" => &["once"],
            "roused" => &["dawn"],
            "counted" => &["pulse"],
            _ => &[],
        };
        rests_on.iter().any(|name| self.failed(name))
    }

    /// What a node should be; none where nothing is said about it, or what it rests on failed.
    fn wanted(&self, node: &str) -> Option<Wanted> {
        let from = |name: &str, make: &dyn Fn(&Value) -> Value| match self.value(name) {
            None => Wanted::Nothing,
            Some(value) => Wanted::Value(make(value)),
        };
        match node {
            "a" | "b" => Some(from("x", &|x| json!({ "x": x }))),
            "spin" => Some(from("x", &|x| json!({ "x": x, "began": x }))),
            "either" => {
                let (x, flag) = (self.value("x"), self.value("flag"));
                let value = json!({ "x": x, "flag": flag });
                Some(if x.or(flag).is_some() { Wanted::Value(value) } else { Wanted::Nothing })
            }
            "join" => {
                let both = ["a", "b"].map(|name| self.value(name).map(|value| &value["x"]));
                match both {
                    [None, _] | [_, None] => Some(Wanted::Nothing),
                    _ if ["a", "b"].iter().any(|name| self.failed(name)) => None,
                    [Some(left), Some(right)] => Some(Wanted::Value(json!({ "left": left, "right": right }))),
                }
            }
            _ if ["a", "b", "c", "join"].iter().any(|name| self.failed(name)) => None,
            "after" | "extra" => Some(from("join", &|join| json!({ "x": join["left"] }))),
            "c" => Some(from("a", &|a| json!({ "x": a["x"] }))),
            "d" => Some(from("c", &|c| json!({ "x": c["x"] }))),
            "echo" => Some(from("memo", &|memo| json!({ "memo": memo }))),
            "picky" => Some(from("y", &|y| json!({ "y": y }))),
            "doomed" => match self.value("y") {
                Some(y) if y.as_u64().is_some_and(dooms) => Some(Wanted::Failure),
                _ => Some(from("y", &|y| json!({ "y": y }))),
            },
            "once" | "dawn" => self.value("y").map(|_| Wanted::Due),
            "pulse" => self.value("go").map(|_| Wanted::Due),
            "roused" => Some(from("dawn", &|dawn| json!({ "tick": dawn }))),
            "rung" if !self.failed("once") => Some(from("once", &|once| json!({ "tick": once }))),
            _ => None,
        }
    }

    fn failed(&self, node: &str) -> bool {
        let status = self.execution.computation(node).map(|computation| &computation.status);
        matches!(status, Some(Status::Failed(_)))
    }
}

/// The time that a tick holds: epoch seconds of a task, or the text of a schedule.
fn moment(value: &Value) -> Option<StoreTime> {
    match value.as_f64() {
        Some(seconds) => Some(StoreTime((seconds * 1e6) as i64)),
        None => StoreTime::parse(value.as_str()?).ok(),
    }
}

enum Wanted {
    Nothing,
    Value(Value),
    Failure,
    /// A tick whose time has come.
    Due,
}
