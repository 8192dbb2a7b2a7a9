//! What each node of an execution is doing and what it waits for, in words for people.

use super::execution::{Computation, Execution, Now, Status, due_at};
use super::gate::Gate;
use super::kind::NodeKind;
use super::node::{Graph, Node};
use crate::id::RunId;
use crate::time::StoreTime;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

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
    let looker = Looker { graph, execution, now };
    let mut unsettled: BTreeMap<&str, BTreeSet<Cause>> = BTreeMap::new();
    let mut views = BTreeMap::new();
    for node in graph.in_order() {
        let upstreams = node.gate.upstreams();
        let above = upstreams.iter().filter_map(|name| unsettled.get(name)).flatten().copied();
        // The first few tell enough; a wide graph would make them many.
        let above: BTreeSet<Cause> = above.collect::<BTreeSet<Cause>>().into_iter().take(MOST_CAUSES).collect();
        let ground = looker.ground(node);
        views.insert(node.name.clone(), looker.view(node, ground, &above));
        let causes = looker.causes(node, ground, above);
        if !causes.is_empty() {
            unsettled.insert(&node.name, causes);
        }
    }
    views
}

const MOST_CAUSES: usize = 3;

/// Why a node is held back although its gate holds: the nearest node above it that will have another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause<'a> {
    /// First, since it does not pass by itself.
    Failed(&'a str),
    Uncomputed(&'a str),
}

/// What a node's next or last computation stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    /// Its gate does not hold.
    Shut,
    /// It has not been computed with what is there now.
    Stale,
    Current,
}

struct Looker<'a> {
    graph: &'a Graph,
    execution: &'a Execution,
    now: StoreTime,
}

impl<'a> Looker<'a> {
    fn values(&self) -> Now<'a> {
        Now { graph: self.graph, execution: self.execution, now: self.now }
    }

    fn view(&self, node: &Node, ground: Ground, above: &BTreeSet<Cause>) -> NodeView {
        let cell = self.execution.cell(&node.name);
        let computation = self.execution.computation(&node.name);
        let archived = self.execution.archived_at.is_some();
        let due_at = cell.filter(|_| node.kind.is_tick()).and_then(|cell| due_at(&cell.value));
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
                (ViewState::Waiting, Some(format!("the execution is archived; {}", self.shut(&node.gate))))
            }
            _ if ground == Ground::Shut => (ViewState::Waiting, Some(self.shut(&node.gate))),
            _ if cell.is_none() || held_back(node, ground, above) => {
                (ViewState::Waiting, Some(self.held(node, ground, above)))
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

    fn ground(&self, node: &Node) -> Ground {
        let open = node.gate.holds(&self.values()) || self.values().stands(node);
        if !open {
            return Ground::Shut;
        }
        if !node.kind.has_task() {
            return Ground::Current;
        }
        let Some(last) = self.execution.computation(&node.name) else { return Ground::Stale };
        if self.is_current(node, last) && last.status != Status::Next { Ground::Current } else { Ground::Stale }
    }

    /// Whether the node was computed with what is there now. Its own revision is left out: a tick that is about to be
    /// armed anew is as good as it was.
    fn is_current(&self, node: &Node, last: &Computation) -> bool {
        let revisions = self.values().revisions(node);
        let [wanted, used] =
            [&revisions, &last.computed_with].map(|revisions| revisions.iter().filter(|(name, _)| **name != node.name));
        wanted.eq(used)
    }

    /// Whether a tick is only armed anew, since it was due: it is as good as it was.
    fn is_rearmed(&self, node: &Node) -> bool {
        let (cell, last) = (self.execution.cell(&node.name), self.execution.computation(&node.name));
        node.kind.is_tick()
            && cell.zip(last).is_some_and(|(cell, last)| {
                self.is_current(node, last) && last.computed_with.get(&node.name) == Some(&cell.revision)
            })
    }

    /// What whoever depends on the node has to wait for. A node without a value holds nobody back: whoever
    /// needs it has a shut gate.
    fn causes<'n>(&self, node: &'n Node, ground: Ground, above: BTreeSet<Cause<'n>>) -> BTreeSet<Cause<'n>> {
        if self.is_rearmed(node) {
            return above;
        }
        if !node.kind.has_task() || ground == Ground::Shut || self.execution.cell(&node.name).is_none() {
            return BTreeSet::new();
        }
        match self.execution.computation(&node.name).map(|computation| &computation.status) {
            Some(Status::Running(_)) => BTreeSet::from([Cause::Uncomputed(&node.name)]),
            Some(Status::Failed(_)) if ground == Ground::Current => BTreeSet::from([Cause::Failed(&node.name)]),
            _ if ground == Ground::Stale && above.is_empty() => BTreeSet::from([Cause::Uncomputed(&node.name)]),
            _ => above,
        }
    }

    /// Why a node with an open gate has no value, or only an old one.
    fn held(&self, node: &Node, ground: Ground, above: &BTreeSet<Cause>) -> String {
        if self.execution.archived_at.is_some() {
            return "the execution is archived".to_string();
        }
        if !held_back(node, ground, above) {
            return change_of(node);
        }
        let again = self.execution.computation(&node.name).filter(|last| last.status == Status::Next);
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

    /// What a shut gate lacks, and the gate itself unless that has been said.
    fn shut(&self, gate: &Gate) -> String {
        let lacks = self.lacks(gate);
        let whole = phrase(gate);
        let whole = match gate {
            Gate::All(gates) | Gate::Any(gates) if gates.len() > 1 => &whole[1..whole.len() - 1],
            _ => &whole,
        };
        if lacks.starts_with(whole) {
            return shorten(&lacks, LONGEST_WORDS);
        }
        format!("{} (gate: {})", shorten(&lacks, LONGEST_WORDS), shorten(whole, LONGEST_WORDS))
    }

    fn lacks(&self, gate: &Gate) -> String {
        let values = self.values();
        let shut = |gates: &'_ [Gate]| -> Vec<String> {
            gates.iter().filter(|gate| !gate.holds(&values)).map(|gate| self.lacks(gate)).collect()
        };
        match gate {
            Gate::All(gates) => shut(gates).join(" and "),
            Gate::Any(gates) if gates.is_empty() => "nothing can open it".to_string(),
            Gate::Any(gates) if gates.len() == 1 => shut(gates).join(""),
            Gate::Any(gates) => format!("either {}", shut(gates).join(", or ")),
            Gate::Not(inner) => self.must_not(inner),
            Gate::Provided(name) => self.content(name),
            Gate::IsTrue(name) | Gate::IsFalse(name) | Gate::Compare(_, name, _) => {
                format!("{} does not hold: {}", phrase(gate), self.content(name))
            }
        }
    }

    /// What stands in the way of a gate that asks for the opposite.
    fn must_not(&self, inner: &Gate) -> String {
        match inner {
            Gate::Provided(name) if self.values().is_tick(name) => format!("{name} is due and must not be"),
            Gate::Provided(name) => format!("{name} is set and must not be"),
            Gate::IsTrue(name) | Gate::IsFalse(name) | Gate::Compare(_, name, _) => {
                format!("{} holds and must not: {}", phrase(inner), self.content(name))
            }
            Gate::Not(gate) => self.lacks(gate),
            Gate::All(_) | Gate::Any(_) => format!("{} holds and must not", phrase(inner)),
        }
    }

    /// What is known of a node's value.
    fn content(&self, name: &str) -> String {
        let Some(cell) = self.execution.cell(name) else {
            return match self.execution.computation(name).map(|computation| &computation.status) {
                Some(Status::Running(_)) => format!("{name} is not set until its computation ends"),
                Some(Status::Failed(_)) => format!("{name} is not set because it failed"),
                _ => format!("{name} is not set"),
            };
        };
        match (self.values().is_tick(name), due_at(&cell.value)) {
            (false, _) => format!("{name} is {}", echo(&cell.value, LONGEST_ECHO)),
            (true, Some(due)) => format!("{name} is due at {due}"),
            (true, None) => format!("{name} is paused"),
        }
    }
}

/// Whether an open node is yet to be computed. Historians and archives follow in the same change as what
/// they depend on, so nothing holds them back.
fn held_back(node: &Node, ground: Ground, above: &BTreeSet<Cause>) -> bool {
    node.kind.has_task() && (ground == Ground::Stale || !above.is_empty())
}

/// What would compute a node anew that is current.
fn change_of(node: &Node) -> String {
    let upstreams = node.gate.upstreams();
    if upstreams.is_empty() {
        return "to be retried".to_string();
    }
    let names: Vec<&str> = upstreams.into_iter().collect();
    format!("a change of {}", shorten(&names.join(" or "), LONGEST_WORDS))
}

/// The gate in words, with the values that it compares with cut short.
pub(super) fn phrase(gate: &Gate) -> String {
    let all = |gates: &[Gate], word: &str| match gates {
        [gate] => phrase(gate),
        gates => format!("({})", gates.iter().map(phrase).collect::<Vec<_>>().join(word)),
    };
    match gate {
        Gate::All(gates) if !gates.is_empty() => all(gates, " and "),
        Gate::Any(gates) if gates.is_empty() => "never".to_string(),
        Gate::Any(gates) => all(gates, " or "),
        Gate::Not(gate) => format!("not {}", phrase(gate)),
        Gate::Compare(_, _, with) => {
            let words = gate.describe();
            let head = words.strip_suffix(&with.to_string()).unwrap_or_default();
            format!("{head}{}", echo(with, LONGEST_ECHO))
        }
        other => other.describe(),
    }
}

const LONGEST_ECHO: usize = 60;
const LONGEST_WORDS: usize = 400;

fn echo(value: &Value, most: usize) -> String {
    shorten(&value.to_string(), most)
}

/// At most so many characters, the last one an ellipsis if some are missing.
pub(super) fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_string(),
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// The execution as a text to read. Sections without content are left out.
pub fn summary(
    graph: &Graph,
    execution: &Execution,
    views: &BTreeMap<String, NodeView>,
    id: &str,
    created_at: StoreTime,
    updated_at: StoreTime,
) -> String {
    let mut text = format!("Execution {id}\n");
    let mut header = |name: &str, value: String| _ = writeln!(text, "  {name:<9} {value}");
    header("Graph:", format!("{}, version {}", graph.name, graph.version));
    header("Revision:", execution.revision.to_string());
    header("Created:", created_at.to_string());
    header("Updated:", updated_at.to_string());
    if let Some(at) = execution.archived_at {
        header("Archived:", at.to_string());
    }
    section(&mut text, "Values", views, |name, view| {
        let cell = execution.cell(name)?;
        let due = view.due_at.map_or_else(String::new, |due| format!(", due at {due}"));
        let value = echo(&cell.value, LONGEST_LINE);
        Some(format!("{value} (revision {}, set at {}{due})", cell.revision, cell.set_at))
    });
    section(&mut text, "Waiting", views, |_, view| view.waiting_for.clone());
    section(&mut text, "Computing", views, |_, view| {
        let run = view.run.filter(|_| view.state == ViewState::Computing)?;
        let ended = view.iterations.map_or_else(String::new, |iterations| format!(", {iterations} iterations ended"));
        Some(format!("run {run}{ended}"))
    });
    section(&mut text, "Failed", views, |_, view| view.error.as_deref().map(one_line));
    text
}

const LONGEST_LINE: usize = 100;
const LONGEST_ERROR: usize = 300;

fn section(
    text: &mut String,
    title: &str,
    views: &BTreeMap<String, NodeView>,
    line: impl Fn(&str, &NodeView) -> Option<String>,
) {
    let lines = views.iter().filter_map(|(name, view)| Some((name, view.kind.as_str(), line(name, view)?)));
    for (place, (name, kind, line)) in lines.enumerate() {
        if place == 0 {
            _ = writeln!(text, "\n{title}:");
        }
        _ = writeln!(text, "  {name} ({kind}): {line}");
    }
}

/// Errors come from user code and may hold anything.
fn one_line(error: &str) -> String {
    let words: Vec<&str> =
        error.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).collect();
    shorten(&words.join(" "), LONGEST_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Cell, Command, decide};
    use serde_json::json;
    use uuid::Uuid;

    struct Machine {
        graph: Graph,
        execution: Execution,
        now: StoreTime,
        last_run: u128,
    }

    impl Machine {
        fn new(nodes: Value) -> Machine {
            let graph = Graph::parse(&json!({"name": "g", "nodes": nodes})).expect("a valid graph");
            let now = StoreTime::parse("2026-11-15T08:00:00Z").unwrap();
            let mut machine = Machine { graph, execution: Execution::default(), now, last_run: 0 };
            machine.tell(Vec::new());
            machine
        }

        fn tell(&mut self, commands: Vec<Command>) {
            let last = &mut self.last_run;
            let mut new_run = || {
                *last += 1;
                RunId(Uuid::from_u128(*last))
            };
            self.execution = decide(&self.graph, self.execution.clone(), commands, self.now, &mut new_run).execution;
        }

        /// One decision is a fixed point: a further look changes nothing.
        fn rests(&mut self) {
            let before = self.execution.clone();
            self.tell(Vec::new());
            assert_eq!(self.execution, before);
        }

        fn set(&mut self, values: Value) {
            let values: BTreeMap<String, Value> = serde_json::from_value(values).expect("an object");
            self.tell(vec![Command::Set { values, metadata: None }]);
        }

        fn compute(&mut self, node: &str, result: Value) {
            let run = self.execution.running(node).unwrap_or_else(|| panic!("{node} does not run"));
            self.tell(vec![Command::Computed { node: node.to_string(), run, result }]);
        }

        fn fail(&mut self, node: &str) {
            let run = self.execution.running(node).unwrap_or_else(|| panic!("{node} does not run"));
            self.tell(vec![Command::Failed { node: node.to_string(), run, error: "out of luck".to_string() }]);
        }

        fn views(&self) -> BTreeMap<String, NodeView> {
            describe(&self.graph, &self.execution, self.now)
        }

        fn state(&self, node: &str) -> ViewState {
            self.views()[node].state
        }

        fn waiting(&self, node: &str) -> String {
            self.views()[node].waiting_for.clone().unwrap_or_else(|| panic!("{node} waits for nothing"))
        }
    }

    fn chain() -> Machine {
        Machine::new(json!([
            {"name": "x", "kind": "input"},
            {"name": "one", "kind": "compute", "gate": ["x"], "task": "t"},
            {"name": "two", "kind": "compute", "gate": ["one"], "task": "t"},
            {"name": "three", "kind": "compute", "gate": ["two"], "task": "t"},
            {"name": "log", "kind": "historian", "gate": ["one"]},
        ]))
    }

    fn finish_chain(machine: &mut Machine, value: Value) {
        machine.set(json!({"x": value}));
        for node in ["one", "two", "three"] {
            machine.compute(node, json!([node, value]));
        }
    }

    #[test]
    fn states_are_written_as_they_are_named() {
        for state in ViewState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), json!(state.as_str()));
        }
    }

    #[test]
    fn a_node_goes_from_waiting_to_computing_to_computed() {
        let mut machine = chain();
        assert_eq!(machine.state("x"), ViewState::NotSet);
        assert_eq!(machine.waiting("x"), "to be set");
        assert_eq!(machine.state("one"), ViewState::Waiting);
        assert_eq!(machine.waiting("one"), "x is not set (gate: x is provided)");
        machine.set(json!({"x": 1}));
        assert_eq!(machine.views()["x"].waiting_for, None);
        assert_eq!(machine.state("x"), ViewState::Set);
        let one = &machine.views()["one"];
        assert_eq!((one.state, one.run), (ViewState::Computing, machine.execution.running("one")));
        assert_eq!(machine.waiting("two"), "one is not set until its computation ends (gate: one is provided)");
        machine.compute("one", json!(1));
        assert_eq!(machine.state("one"), ViewState::Computed);
        assert_eq!(machine.state("log"), ViewState::Computed);
        assert_eq!(machine.state("two"), ViewState::Computing);
        machine.fail("two");
        let two = &machine.views()["two"];
        assert_eq!((two.state, two.error.as_deref()), (ViewState::Failed, Some("out of luck")));
        assert_eq!(machine.waiting("three"), "two is not set because it failed (gate: two is provided)");
        assert_eq!(machine.views().len(), 5);
    }

    #[test]
    fn an_old_value_waits_for_whatever_is_unsettled_above_however_far() {
        let mut machine = chain();
        finish_chain(&mut machine, json!(1));
        assert!(machine.views().values().all(|view| view.waiting_for.is_none()));
        machine.set(json!({"x": 2}));
        assert_eq!(machine.state("one"), ViewState::Computing, "although it has an older value");
        assert_eq!(machine.waiting("two"), "waits until one is computed");
        assert_eq!(machine.waiting("three"), "waits until one is computed");
        assert_eq!(machine.state("log"), ViewState::Computed, "a historian has what there is");
        machine.fail("one");
        let words = "one failed, and three waits until one is retried or something that it depends on changes";
        assert_eq!(machine.waiting("three"), words);
        machine.set(json!({"x": 3}));
        machine.compute("one", json!("new"));
        assert_eq!(machine.state("two"), ViewState::Computing);
        assert_eq!(machine.waiting("three"), "waits until two is computed");
    }

    #[test]
    fn a_shut_gate_is_put_into_words() {
        let inputs = ["a", "b", "age", "ok"];
        let long = "y".repeat(100);
        for (gate, values, words) in [
            (json!(["a", "b"]), json!({"a": 1}), "b is not set (gate: a is provided and b is provided)"),
            (json!(["a", "b"]), json!({}), "a is not set and b is not set (gate: a is provided and b is provided)"),
            (json!({"gte": ["age", 18]}), json!({"age": 12}), "age ≥ 18 does not hold: age is 12"),
            (json!({"gte": ["age", 18]}), json!({}), "age ≥ 18 does not hold: age is not set"),
            (json!({"is_true": "ok"}), json!({"ok": "yes"}), "ok is true does not hold: ok is \"yes\""),
            (json!({"is_false": "ok"}), json!({"ok": null}), "ok is false does not hold: ok is null"),
            (
                json!({"and": ["a", {"lt": ["age", 5]}]}),
                json!({"a": 1, "age": 7}),
                "age < 5 does not hold: age is 7 (gate: a is provided and age < 5)",
            ),
            (
                json!({"or": ["a", {"and": ["b", {"eq": ["age", 1]}]}]}),
                json!({"age": 2}),
                "either a is not set, or b is not set and age = 1 does not hold: age is 2 \
                 (gate: a is provided or (b is provided and age = 1))",
            ),
            (json!({"or": ["a"]}), json!({}), "a is not set (gate: a is provided)"),
            (json!({"not": "a"}), json!({"a": 1}), "a is set and must not be (gate: not a is provided)"),
            (
                json!({"not": {"gte": ["age", 18]}}),
                json!({"age": 20}),
                "age ≥ 18 holds and must not: age is 20 (gate: not age ≥ 18)",
            ),
            (
                json!({"not": ["a", "b"]}),
                json!({"a": 1, "b": 2}),
                "(a is provided and b is provided) holds and must not (gate: not (a is provided and b is provided))",
            ),
            (json!({"not": {"not": "a"}}), json!({}), "a is not set (gate: not not a is provided)"),
            (json!({"and": ["a", {"or": []}]}), json!({"a": 1}), "nothing can open it (gate: a is provided and never)"),
            (
                json!({"eq": ["a", long]}),
                json!({"a": [long]}),
                &format!("a = \"{0}… does not hold: a is [\"{1}…", "y".repeat(58), "y".repeat(57)),
            ),
        ] {
            let mut nodes: Vec<Value> = inputs.iter().map(|name| json!({"name": name, "kind": "input"})).collect();
            nodes.push(json!({"name": "c", "kind": "compute", "gate": gate, "task": "t"}));
            let mut machine = Machine::new(Value::Array(nodes));
            machine.set(values);
            assert_eq!(machine.state("c"), ViewState::Waiting, "{gate}");
            assert_eq!(machine.waiting("c"), words, "{gate}");
        }
    }

    #[test]
    fn a_gate_of_a_thousand_nodes_is_told_in_a_few_words() {
        let names: Vec<String> = (0..1000).map(|n| format!("node{n}")).collect();
        let mut nodes: Vec<Value> = names.iter().map(|name| json!({"name": name, "kind": "input"})).collect();
        nodes.push(json!({"name": "all", "kind": "compute", "gate": names, "task": "t"}));
        assert!(Machine::new(Value::Array(nodes)).waiting("all").chars().count() < 900);
    }

    #[test]
    fn only_a_few_causes_are_named() {
        let mut nodes = vec![json!({"name": "x", "kind": "input"})];
        let names: Vec<String> = (0..9).map(|n| format!("c{n}")).collect();
        nodes.extend(names.iter().map(|name| json!({"name": name, "kind": "compute", "gate": ["x"], "task": "t"})));
        nodes.push(json!({"name": "all", "kind": "compute", "gate": names, "task": "t"}));
        let mut machine = Machine::new(Value::Array(nodes));
        machine.set(json!({"x": 1}));
        names.iter().for_each(|name| machine.compute(name, json!(1)));
        machine.compute("all", json!(1));
        machine.set(json!({"x": 2}));
        machine.fail("c8");
        assert_eq!(
            machine.waiting("all"),
            "c8 failed, and all waits until c8 is retried or something that it depends on changes; \
             waits until c0 is computed; waits until c1 is computed"
        );
    }

    fn reminder(kind: &str) -> Machine {
        let mut machine = Machine::new(json!([
            {"name": "go", "kind": "input"},
            {"name": "tick", "kind": kind, "gate": ["go"], "task": "next"},
            {"name": "remind", "kind": "compute", "gate": ["tick"], "task": "mail"},
        ]));
        machine.set(json!({"go": true}));
        machine
    }

    #[test]
    fn a_tick_is_told_with_its_time() {
        let mut machine = reminder("tick_recurring");
        assert_eq!(machine.state("tick"), ViewState::Computing);
        machine.compute("tick", json!("2026-11-15T09:00:00Z"));
        let due = StoreTime::parse("2026-11-15T09:00:00Z").unwrap();
        let tick = &machine.views()["tick"];
        assert_eq!((tick.state, tick.due_at), (ViewState::Computed, Some(due)));
        assert_eq!(machine.waiting("remind"), "tick is due at 2026-11-15T09:00:00.000000Z (gate: tick is provided)");
        assert_eq!(machine.views()["remind"].due_at, None);

        machine.now = due;
        assert_eq!(machine.waiting("remind"), "to be started", "it is due, and nobody has looked yet");
        machine.tell(Vec::new());
        assert_eq!(machine.state("remind"), ViewState::Computing);
        machine.compute("remind", json!("mailed"));
        machine.compute("tick", json!("2026-11-15T10:00:00Z"));
        assert_eq!(machine.state("remind"), ViewState::Computed, "armed again, the tick takes nothing away");
    }

    #[test]
    fn a_tick_without_a_time_is_paused() {
        for value in [json!(null), json!(0)] {
            let mut machine = reminder("tick_once");
            machine.compute("tick", value);
            let tick = &machine.views()["tick"];
            assert_eq!((tick.state, tick.due_at), (ViewState::Paused, None));
            assert_eq!(machine.waiting("tick"), "a change of go");
            assert_eq!(machine.waiting("remind"), "tick is paused (gate: tick is provided)");
        }
    }

    #[test]
    fn a_due_tick_that_must_not_be_is_named() {
        let mut machine = Machine::new(json!([
            {"name": "tick", "kind": "tick_once", "task": "next"},
            {"name": "early", "kind": "compute", "gate": {"not": "tick"}, "task": "t"},
        ]));
        machine.compute("tick", json!(1));
        assert_eq!(machine.waiting("early"), "tick is due and must not be (gate: not tick is provided)");
    }

    #[test]
    fn a_loop_tells_its_iterations() {
        let mut machine = Machine::new(json!([
            {"name": "a", "kind": "input"},
            {"name": "poll", "kind": "loop", "gate": ["a"], "task": "t", "options": {"max_iterations": 5}},
        ]));
        assert_eq!(machine.views()["poll"].iterations, None);
        machine.set(json!({"a": 1}));
        machine.compute("poll", json!({"continue": 1}));
        machine.compute("poll", json!({"continue": 2}));
        let poll = &machine.views()["poll"];
        assert_eq!((poll.state, poll.iterations), (ViewState::Computing, Some(2)));
        assert_eq!(machine.views()["a"].iterations, None);
    }

    #[test]
    fn in_an_archived_execution_nothing_is_awaited_but_its_return() {
        let mut machine = Machine::new(json!([
            {"name": "a", "kind": "input"}, {"name": "b", "kind": "input"},
            {"name": "c", "kind": "compute", "gate": ["a"], "task": "t"},
            {"name": "d", "kind": "compute", "gate": ["b"], "task": "t"},
            {"name": "tick", "kind": "tick_once", "task": "t"},
            {"name": "bye", "kind": "archive", "gate": {"is_true": "a"}},
        ]));
        assert_eq!(machine.waiting("bye"), "a is true does not hold: a is not set");
        machine.compute("tick", json!("2030-01-01T00:00:00Z"));
        machine.set(json!({"a": true}));
        assert_eq!(machine.state("bye"), ViewState::Computed);
        assert_eq!(machine.waiting("c"), "the execution is archived");
        assert_eq!(machine.waiting("d"), "the execution is archived; b is not set (gate: b is provided)");
        assert_eq!(machine.views()["tick"].due_at, None, "nobody looks at it");
        machine.tell(vec![Command::Unarchive]);
        assert_eq!(machine.state("c"), ViewState::Computing);
        assert!(machine.views()["tick"].due_at.is_some());
    }

    #[test]
    fn a_cleared_value_waits_for_a_change_and_a_removed_node_is_left_out() {
        let mut machine = chain();
        finish_chain(&mut machine, json!(1));
        // As if only the value had gone: the computation stands, and nothing would compute it anew.
        machine.execution.nodes.get_mut("three").unwrap().cell = None;
        assert_eq!(machine.state("three"), ViewState::Waiting);
        assert_eq!(machine.waiting("three"), "a change of two");
        let cell = Cell { value: json!(1), revision: 1, set_at: machine.now, metadata: None };
        machine.execution.nodes.entry("gone".to_string()).or_default().cell = Some(cell);
        assert!(!machine.views().contains_key("gone"));
    }

    /// Whatever happens, once a decision is made no node is left that should have been started: what is said
    /// here to be held back is what the decision held back.
    #[test]
    fn the_words_agree_with_the_decisions() {
        let mut machine = Machine::new(json!([
            {"name": "x", "kind": "input"}, {"name": "y", "kind": "input"},
            {"name": "l", "kind": "compute", "gate": ["x"], "task": "t"},
            {"name": "r", "kind": "compute", "gate": {"or": ["x", "y"]}, "task": "t"},
            {"name": "tick", "kind": "tick_recurring", "gate": ["y"], "task": "t"},
            {"name": "j", "kind": "compute", "gate": {"or": ["l", "r"]}, "task": "t"},
            {"name": "k", "kind": "compute", "gate": {"and": ["j", {"or": ["tick", {"not": "l"}]}]}, "task": "t"},
            {"name": "n", "kind": "loop", "gate": {"and": ["k", {"neq": ["y", 2]}]}, "task": "t", "options": {"max_iterations": 3}},
        ]));
        let mut random = 0x9e37_79b9_u64;
        let mut below = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % n
        };
        let mut seen: BTreeSet<ViewState> = BTreeSet::new();
        let mut held = 0;
        for _ in 0..5000 {
            let running: Vec<String> = machine
                .graph
                .nodes()
                .iter()
                .map(|n| n.name.clone())
                .filter(|n| machine.execution.running(n).is_some())
                .collect();
            match below(10) {
                0 => machine.set(json!({"x": below(3)})),
                1 => machine.set(json!({"y": below(3)})),
                2 => machine.tell(vec![Command::Unset(BTreeSet::from([["x", "y"][below(2)].to_string()]))]),
                3 => {
                    machine.now = StoreTime(machine.now.0 + 1_000_000);
                    machine.tell(Vec::new());
                }
                _ if running.is_empty() => {}
                4 => machine.fail(&running[below(running.len())]),
                _ => {
                    let node = &running[below(running.len())];
                    let result = match node.as_str() {
                        "tick" if below(4) == 0 => json!(null),
                        "tick" => json!(machine.now.0 / 1_000_000 + below(3) as i64),
                        "n" if below(2) == 0 => json!({"continue": 1}),
                        _ => json!(below(3)),
                    };
                    machine.compute(node, result);
                }
            }
            machine.rests();
            for (name, view) in machine.views() {
                seen.insert(view.state);
                let runs = machine.execution.running(&name).is_some();
                assert_eq!(view.state == ViewState::Computing, runs, "{name}");
                let waits = matches!(view.state, ViewState::NotSet | ViewState::Waiting | ViewState::Paused);
                assert_eq!(view.waiting_for.is_some(), waits, "{name}: {view:?}");
                let words = view.waiting_for.unwrap_or_default();
                assert_ne!(words, "to be started", "{name} in {:?}", machine.execution);
                held += usize::from(words.starts_with("waits until") || words.contains(" failed, and "));
            }
        }
        assert_eq!(seen, ViewState::ALL.into_iter().collect());
        assert!(held > 100, "{held}");
    }

    #[test]
    fn a_summary_has_the_sections_that_have_content() {
        let mut machine = Machine::new(json!([
            {"name": "a", "kind": "input"}, {"name": "b", "kind": "input"},
            {"name": "bad", "kind": "compute", "gate": ["a"], "task": "t"},
            {"name": "busy", "kind": "compute", "gate": ["a"], "task": "t"},
            {"name": "next", "kind": "compute", "gate": ["b"], "task": "t"},
        ]));
        let text = |machine: &Machine| {
            let updated_at = StoreTime::parse("2026-11-15T08:30:00Z").unwrap();
            summary(&machine.graph, &machine.execution, &machine.views(), "e1", machine.now, updated_at)
        };
        let head = "Execution e1\n  Graph:    g, version 1\n  Revision: 0\n  Created:  2026-11-15T08:00:00.000000Z\n  \
            Updated:  2026-11-15T08:30:00.000000Z\n";
        assert!(
            text(&machine).starts_with(&format!("{head}\nWaiting:\n  a (input): to be set\n")),
            "{}",
            text(&machine)
        );
        assert!(!text(&machine).contains("Values:"));

        machine.set(json!({"a": "z".repeat(200)}));
        let run = machine.execution.running("bad").unwrap();
        let error = format!("first\n\tsecond\u{1b}[31m {}", "e".repeat(1000));
        machine.tell(vec![Command::Failed { node: "bad".to_string(), run, error }]);
        machine.tell(vec![Command::Archive]);
        let busy = machine.execution.running("busy").expect("it goes on");
        assert_eq!(
            text(&machine),
            format!(
                "Execution e1\n  Graph:    g, version 1\n  Revision: {}\n  Created:  2026-11-15T08:00:00.000000Z\n  \
                 Updated:  2026-11-15T08:30:00.000000Z\n  Archived: 2026-11-15T08:00:00.000000Z\n\
                 \nValues:\n  a (input): \"{}… (revision 1, set at 2026-11-15T08:00:00.000000Z)\n\
                 \nWaiting:\n  b (input): to be set\n  \
                 next (compute): the execution is archived; b is not set (gate: b is provided)\n\
                 \nComputing:\n  busy (compute): run {busy}\n\
                 \nFailed:\n  bad (compute): first second [31m {}…\n",
                machine.execution.revision,
                "z".repeat(98),
                "e".repeat(299 - "first second [31m ".len()),
            )
        );
    }
}
