//! Descriptions, of executions that are told what happens.

use super::*;
use crate::graph::{Cell, Command, decide};
use serde_json::{Value, json};
use std::collections::BTreeSet;
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
    assert!(text(&machine).starts_with(&format!("{head}\nWaiting:\n  a (input): to be set\n")), "{}", text(&machine));
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
