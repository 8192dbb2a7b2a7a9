mod ticks;

use super::*;
use crate::id::RunId;
use crate::time::StoreTime;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// An execution with its runs, performed by hand.
struct Machine {
    graph: Graph,
    execution: Execution,
    now: StoreTime,
    runs: BTreeMap<RunId, Start>,
    last_run: u128,
    ticks: Ticks,
}

impl Machine {
    fn new(definition: Value) -> Machine {
        let graph = Graph::parse(&definition).expect("a valid graph");
        let mut machine = Machine {
            graph,
            execution: Execution::default(),
            now: StoreTime(1_000_000_000_000_000),
            runs: BTreeMap::new(),
            last_run: 0,
            ticks: Ticks::new(),
        };
        machine.look();
        machine
    }

    fn tell(&mut self, command: Command) -> Changes {
        self.tell_all(vec![command])
    }

    /// Time has passed.
    fn look(&mut self) -> Changes {
        self.tell_all(Vec::new())
    }

    fn tell_all(&mut self, commands: Vec<Command>) -> Changes {
        let mut last = self.last_run;
        let mut new_run = || {
            last += 1;
            RunId(Uuid::from_u128(last))
        };
        let changes = decide(&self.graph, self.execution.clone(), commands, self.now, &mut new_run);
        self.last_run = last;
        assert!(changes.execution.revision >= self.execution.revision, "revisions never fall");
        for run in &changes.stop {
            assert!(self.runs.remove(run).is_some(), "only what runs is stopped, once");
        }
        for start in &changes.start {
            self.runs.insert(start.run, start.clone());
        }
        let running: BTreeSet<RunId> = self.execution_runs(&changes.execution);
        assert_eq!(running, self.runs.keys().copied().collect(), "what runs is what the execution says runs");
        self.execution = changes.execution.clone();
        self.ticks = changes.ticks.clone();
        changes
    }

    fn execution_runs(&self, execution: &Execution) -> BTreeSet<RunId> {
        execution.nodes.keys().filter_map(|node| execution.running(node)).collect()
    }

    fn set(&mut self, values: Value) -> Changes {
        let Value::Object(values) = values else { panic!("an object") };
        self.tell(Command::Set { values: values.into_iter().collect(), metadata: None })
    }

    fn unset(&mut self, node: &str) -> Changes {
        self.tell(Command::Unset(BTreeSet::from([node.to_string()])))
    }

    fn running(&self) -> Vec<&str> {
        self.runs.values().map(|start| start.node.as_str()).collect()
    }

    /// Ends the run of a node.
    fn compute(&mut self, node: &str, result: Value) -> Changes {
        let run = self.execution.running(node).unwrap_or_else(|| panic!("{node} does not run"));
        self.runs.remove(&run);
        self.tell(Command::Computed { node: node.to_string(), run, result })
    }

    fn fail(&mut self, node: &str) {
        let run = self.execution.running(node).expect("it runs");
        self.runs.remove(&run);
        self.tell(Command::Failed { node: node.to_string(), run, error: "no".to_string() });
    }

    fn value(&self, node: &str) -> Option<Value> {
        self.execution.cell(node).map(|cell| cell.value.clone())
    }

    /// Performs everything until nothing runs.
    fn perform(&mut self, result: impl Fn(&str, &Value) -> Value) {
        for _ in 0..1000 {
            let Some(start) = self.runs.values().next().cloned() else { return };
            let value = result(&start.node, &given(&start));
            self.compute(&start.node, value);
        }
        panic!("it never comes to rest");
    }
}

fn given(start: &Start) -> Value {
    start.input.read().expect("an object")
}

fn sum() -> Value {
    json!({"name": "sum", "version": 1, "nodes": [
        {"name": "a", "kind": "input"},
        {"name": "b", "kind": "input"},
        {"name": "total", "kind": "compute", "gate": ["a", "b"], "task": "jq", "args": {"program": ".a + .b"}},
    ]})
}

fn add(input: &Value) -> Value {
    json!(input["a"].as_i64().unwrap() + input["b"].as_i64().unwrap())
}

#[test]
fn a_node_computes_itself_when_its_gate_opens_and_again_when_an_input_changes() {
    let mut machine = Machine::new(sum());
    machine.set(json!({"a": 2}));
    assert!(machine.running().is_empty());
    let gate = machine.graph.node("total").unwrap().gate.clone();
    assert_eq!(gate.waiting_for(&machine.graph, &machine.execution, machine.now), ["b is provided"]);
    machine.set(json!({"b": 3}));
    machine.perform(|_, input| add(input));
    assert_eq!(machine.value("total"), Some(json!(5)));
    let revision = machine.execution.revision;

    machine.set(json!({"a": 2.0}));
    assert_eq!(machine.execution.revision, revision, "the same value bumps nothing");
    machine.set(json!({"a": 10}));
    machine.perform(|_, input| add(input));
    assert_eq!(machine.value("total"), Some(json!(13)));
    assert!(machine.execution.cell("total").unwrap().revision > revision);

    machine.unset("b");
    assert_eq!(machine.value("total"), None, "what lost its gate is cleared");
}

#[test]
fn a_changed_input_stops_the_run_on_the_old_one_and_its_late_result_is_ignored() {
    let mut machine = Machine::new(sum());
    machine.set(json!({"a": 1, "b": 1}));
    let old = machine.execution.running("total").unwrap();
    let changes = machine.set(json!({"a": 2}));
    assert_eq!(changes.stop, [old]);
    machine.tell(Command::Computed { node: "total".to_string(), run: old, result: json!(2) });
    assert_eq!(machine.value("total"), None);
    machine.perform(|_, input| add(input));
    assert_eq!(machine.value("total"), Some(json!(3)));
}

#[test]
fn a_failed_node_is_not_tried_again_until_something_upstream_changes_and_its_old_value_stays() {
    let mut machine = Machine::new(sum());
    machine.set(json!({"a": 1, "b": 1}));
    machine.perform(|_, input| add(input));
    machine.set(json!({"a": 5}));
    machine.fail("total");
    assert!(machine.running().is_empty());
    assert_eq!(machine.value("total"), Some(json!(2)));
    machine.look();
    assert!(machine.running().is_empty());
    machine.set(json!({"b": 7}));
    assert_eq!(machine.running(), ["total"]);
    machine.fail("total");
    machine.tell(Command::Retry("total".to_string()));
    machine.perform(|_, input| add(input));
    assert_eq!(machine.value("total"), Some(json!(12)));
}

fn diamond() -> Value {
    json!({"name": "diamond", "nodes": [
        {"name": "x", "kind": "input"},
        {"name": "left", "kind": "compute", "gate": ["x"], "task": "t"},
        {"name": "right", "kind": "compute", "gate": ["x"], "task": "t"},
        {"name": "join", "kind": "compute", "gate": ["left", "right"], "task": "t"},
        {"name": "after", "kind": "compute", "gate": ["join"], "task": "t"},
    ]})
}

#[test]
fn no_join_is_ever_computed_from_two_different_inputs() {
    let mut machine = Machine::new(diamond());
    let mut random = 0x9e37_79b9_u64;
    let mut below = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    let check = |start: &Start| {
        if start.node == "join" {
            let input = given(start);
            assert_eq!(input["left"], input["right"], "{start:?}");
        }
    };
    for x in 0..10_000 {
        machine.set(json!({"x": x}));
        for _ in 0..below(4) {
            let Some(start) = machine.runs.values().nth(below(machine.runs.len().max(1))).cloned() else { break };
            check(&start);
            if below(20) == 0 && start.node != "join" {
                machine.fail(&start.node);
            } else {
                // Both sides carry x on; what comes after the join carries it too.
                let input = given(&start);
                let carried = input.get(if start.node == "after" {
                    "join"
                } else if start.node == "join" {
                    "left"
                } else {
                    "x"
                });
                machine.compute(&start.node, carried.cloned().unwrap());
            }
        }
    }
    machine.set(json!({"x": "last"}));
    machine.perform(|node, input| {
        input[if node == "after" {
            "join"
        } else if node == "join" {
            "left"
        } else {
            "x"
        }]
        .clone()
    });
    assert_eq!(machine.value("after"), Some(json!("last")));
}

#[test]
fn an_unchanged_result_wakes_nobody_downstream() {
    let mut machine = Machine::new(diamond());
    machine.set(json!({"x": 1}));
    machine.perform(|_, _| json!("same"));
    machine.set(json!({"x": 2}));
    assert_eq!(machine.running().len(), 2, "left and right");
    machine.compute("left", json!("same"));
    machine.compute("right", json!("same"));
    assert!(machine.running().is_empty(), "the join has nothing new to see");
}

#[test]
fn the_order_of_equal_events_does_not_matter() {
    let finish = |order: [&str; 2]| {
        let mut machine = Machine::new(diamond());
        machine.set(json!({"x": 1}));
        for node in order {
            machine.compute(node, json!({"of": node}));
        }
        machine.perform(|node, _| json!({"of": node}));
        let names = ["left", "right", "join", "after"];
        names.map(|name| machine.value(name))
    };
    assert_eq!(finish(["left", "right"]), finish(["right", "left"]));
}

#[test]
fn a_mutation_leaves_the_revision_alone_unless_asked() {
    let graph = |option: bool| {
        json!({"name": "scrub", "nodes": [
            {"name": "ssn", "kind": "input"},
            {"name": "other", "kind": "input"},
            {"name": "seen", "kind": "compute", "gate": ["other"], "task": "t"},
            {"name": "scrub", "kind": "mutate", "gate": [if option { "ssn" } else { "other" }], "task": "t", "mutates": if option { "other" } else { "ssn" },
             "options": if option { json!({"update_revision_on_change": true}) } else { json!({}) }},
        ]})
    };
    let mut machine = Machine::new(graph(false));
    machine.set(json!({"ssn": "123", "other": 1}));
    let before = machine.execution.cell("ssn").unwrap().revision;
    machine.perform(|node, _| if node == "scrub" { json!("redacted") } else { json!(1) });
    assert_eq!(machine.value("ssn"), Some(json!("redacted")));
    assert_eq!(machine.execution.cell("ssn").unwrap().revision, before);

    let mut machine = Machine::new(graph(true));
    machine.set(json!({"ssn": "123", "other": 1}));
    machine.perform(|node, input| if node == "scrub" { json!(2) } else { input["other"].clone() });
    assert_eq!(machine.value("seen"), Some(json!(2)), "a bumped target sets off what depends on it");
}

#[test]
fn a_historian_is_newest_first_within_its_limit_also_for_a_batch() {
    let mut machine = Machine::new(json!({"name": "h", "nodes": [
        {"name": "a", "kind": "input"}, {"name": "b", "kind": "input"},
        {"name": "log", "kind": "historian", "gate": {"or": ["a", "b"]}, "options": {"max_entries": 3}},
    ]}));
    machine.set(json!({"a": 1}));
    machine.set(json!({"a": 2, "b": 3}));
    machine.set(json!({"b": 4}));
    let log = machine.value("log").unwrap();
    let values: Vec<&Value> = log.as_array().unwrap().iter().map(|entry| &entry["value"]).collect();
    assert_eq!(values, [&json!(4), &json!(3), &json!(2)]);
    machine.unset("a");
    machine.unset("b");
    assert_eq!(machine.value("log"), Some(log), "what was seen stays seen");
}

#[test]
fn ticks_fire_once_when_due_and_recurring_ones_are_armed_again() {
    for (kind, again) in [("tick_once", false), ("tick_recurring", true)] {
        let mut machine = Machine::new(json!({"name": "t", "nodes": [
            {"name": "go", "kind": "input"},
            {"name": "tick", "kind": kind, "gate": ["go"], "task": "next"},
            {"name": "remind", "kind": "compute", "gate": ["tick"], "task": "mail"},
        ]}));
        machine.set(json!({"go": true}));
        let at = |machine: &Machine, seconds: i64| machine.now.0 / 1_000_000 + seconds;
        let due = at(&machine, 60);
        machine.compute("tick", json!(due));
        assert_eq!(machine.ticks.get("tick"), Some(&StoreTime(due * 1_000_000)));
        assert!(machine.running().is_empty(), "not due yet");
        machine.now = StoreTime(due * 1_000_000);
        machine.look();
        let expected: &[&str] = if again { &["remind", "tick"] } else { &["remind"] };
        let mut running = machine.running();
        running.sort_unstable();
        assert_eq!(running, expected, "{kind}");
        machine.compute("remind", json!("mailed"));
        if again {
            let next = at(&machine, 60);
            machine.compute("tick", json!(next));
            assert_eq!(machine.value("remind"), Some(json!("mailed")), "armed again, it takes nothing away");
            machine.look();
            assert!(machine.running().is_empty());
            machine.now = StoreTime(next * 1_000_000);
            machine.look();
            assert!(machine.running().contains(&"remind"), "it fires again");
        } else {
            machine.look();
            assert!(machine.running().is_empty(), "once");
        }
        machine.tell(Command::Archive);
        assert!(machine.ticks.is_empty(), "an archived execution waits for nothing");
    }
}

#[test]
fn a_paused_tick_is_never_due_until_something_upstream_changes() {
    let mut machine = Machine::new(json!({"name": "t", "nodes": [
        {"name": "go", "kind": "input"},
        {"name": "tick", "kind": "tick_recurring", "gate": ["go"], "task": "next"},
        {"name": "remind", "kind": "compute", "gate": ["tick"], "task": "mail"},
    ]}));
    machine.set(json!({"go": 1}));
    machine.compute("tick", Value::Null);
    assert!(machine.ticks.is_empty());
    machine.now = StoreTime(machine.now.0 * 2);
    machine.look();
    assert!(machine.running().is_empty());
    machine.set(json!({"go": 2}));
    assert_eq!(machine.running(), ["tick"]);
}

#[test]
fn a_loop_keeps_each_iteration_and_ends_at_its_cap() {
    let graph = |options: Value| {
        json!({"name": "l", "nodes": [
            {"name": "a", "kind": "input"},
            {"name": "poll", "kind": "loop", "gate": ["a"], "task": "t", "options": options},
        ]})
    };
    let mut machine = Machine::new(graph(json!({"max_iterations": 3, "fallback": "gave up"})));
    machine.set(json!({"a": 1}));
    machine.compute("poll", json!({"continue": 1}));
    assert_eq!(given(machine.runs.values().next().unwrap())["poll"], json!(1), "the state goes to the next iteration");
    machine.compute("poll", json!({"continue": 2}));
    machine.compute("poll", json!({"continue": 3}));
    assert_eq!(machine.value("poll"), Some(json!("gave up")));
    assert!(machine.running().is_empty());

    let mut machine = Machine::new(graph(json!({"max_iterations": 2})));
    machine.set(json!({"a": 1}));
    machine.compute("poll", json!({"continue": 1}));
    machine.compute("poll", json!({"done": "found"}));
    assert_eq!(machine.value("poll"), Some(json!("found")));
    machine.set(json!({"a": 2}));
    machine.compute("poll", json!({"continue": 1}));
    machine.compute("poll", json!({"continue": 2}));
    assert!(matches!(machine.execution.computation("poll").unwrap().status, Status::Failed(_)));
}

#[test]
fn a_result_that_arrives_together_with_a_new_upstream_is_not_recorded() {
    let mut machine = Machine::new(json!({"name": "g", "nodes": [
        {"name": "x", "kind": "input"},
        {"name": "a", "kind": "compute", "gate": ["x"], "task": "t"},
        {"name": "b", "kind": "compute", "gate": ["a"], "task": "t"},
    ]}));
    machine.set(json!({"x": 1}));
    machine.compute("a", json!(1));
    machine.set(json!({"x": 2}));
    let ended = ["a", "b"].map(|node| (node.to_string(), machine.execution.running(node).expect("it runs")));
    machine.runs.clear();
    let results = [2, 1].map(Value::from);
    let commands =
        ended.into_iter().zip(results).map(|((node, run), result)| Command::Computed { node, run, result }).collect();
    machine.tell_all(commands);
    assert_eq!((machine.value("a"), machine.value("b")), (Some(json!(2)), None), "b was computed from the old a");
    assert_eq!(machine.running(), ["b"]);
    machine.compute("b", json!(2));
    assert_eq!(machine.value("b"), Some(json!(2)));
}

#[test]
fn an_archived_execution_records_no_result_of_inputs_that_changed() {
    let mut machine = Machine::new(json!({"name": "g", "nodes": [
        {"name": "x", "kind": "input"},
        {"name": "done", "kind": "input"},
        {"name": "a", "kind": "compute", "gate": ["x"], "task": "t"},
        {"name": "b", "kind": "compute", "gate": ["a"], "task": "t"},
        {"name": "bye", "kind": "archive", "gate": {"is_true": "done"}},
    ]}));
    machine.set(json!({"x": 1}));
    machine.compute("a", json!(1));
    machine.set(json!({"x": 2}));
    assert_eq!(machine.running(), ["b", "a"]);
    let changes = machine.set(json!({"x": 3, "done": true}));
    assert_eq!((changes.stop.len(), machine.running()), (1, vec!["b"]), "what runs on the old x is stopped");
    machine.compute("b", json!(1));
    machine.set(json!({"done": false}));
    machine.tell(Command::Unarchive);
    assert_eq!(machine.running(), ["a"], "and computed when the execution is back");
}

#[test]
fn an_archive_node_archives_and_nothing_starts_after_it() {
    let mut machine = Machine::new(json!({"name": "a", "nodes": [
        {"name": "done", "kind": "input"}, {"name": "x", "kind": "input"},
        {"name": "bye", "kind": "archive", "gate": {"is_true": "done"}},
        {"name": "c", "kind": "compute", "gate": ["x"], "task": "t"},
    ]}));
    machine.set(json!({"done": false}));
    assert_eq!(machine.execution.archived_at, None);
    machine.set(json!({"done": true, "x": 1}));
    assert_eq!(machine.execution.archived_at, Some(machine.now));
    assert!(machine.running().is_empty());
    machine.tell(Command::Unarchive);
    assert_eq!(machine.running(), ["c"]);
}

#[test]
fn gates_nest_and_a_gate_turned_false_clears_to_a_fixed_point() {
    let mut machine = Machine::new(json!({"name": "g", "nodes": [
        {"name": "n", "kind": "input"}, {"name": "ok", "kind": "input"},
        {"name": "c", "kind": "compute", "task": "t",
         "gate": {"and": [{"gte": ["n", 5]}, {"or": [{"is_true": "ok"}, {"eq": ["n", 7]}]}, {"not": {"neq": ["n", 7]}}]}},
        {"name": "d", "kind": "compute", "gate": ["c"], "task": "t"},
        {"name": "e", "kind": "compute", "gate": ["d"], "task": "t"},
    ]}));
    for (values, open) in
        [(json!({"n": 4}), false), (json!({"n": 6, "ok": true}), false), (json!({"n": 7, "ok": false}), true)]
    {
        machine.set(values.clone());
        assert_eq!(machine.running() == ["c"], open, "{values}");
    }
    machine.perform(|node, _| json!(node));
    assert_eq!(machine.value("e"), Some(json!("e")));
    machine.set(json!({"n": 8}));
    assert_eq!(["c", "d", "e"].map(|node| machine.value(node)), [None, None, None]);
}

#[test]
fn a_node_that_was_removed_or_added_in_flight_does_no_harm() {
    let mut machine = Machine::new(diamond());
    machine.set(json!({"x": 1}));
    machine.graph = Graph::parse(&json!({"name": "diamond", "version": 2, "nodes": [
        {"name": "x", "kind": "input"},
        {"name": "left", "kind": "compute", "gate": ["x"], "task": "t"},
        {"name": "extra", "kind": "compute", "gate": ["x"], "task": "t"},
    ]}))
    .unwrap();
    machine.compute("right", json!("late"));
    assert_eq!(machine.value("right"), None);
    assert!(machine.running().contains(&"extra"), "an added node appears");
    machine.perform(|node, _| json!(node));
    assert_eq!(machine.value("extra"), Some(json!("extra")));
    // Back in the graph, it is computed anew: what its run gave meanwhile went nowhere.
    machine.graph = Graph::parse(&diamond()).unwrap();
    machine.look();
    assert!(machine.running().contains(&"right"), "a node that came back waits for nothing");
    machine.perform(|node, _| json!(node));
    assert_eq!(machine.value("right"), Some(json!("right")));
}

#[test]
fn every_invalid_definition_is_refused_with_the_nodes_name() {
    let node = |node: Value| json!({"name": "g", "nodes": [{"name": "a", "kind": "input"}, node]});
    for (definition, named) in [
        (node(json!({"name": "a", "kind": "input"})), "a"),
        (node(json!({"name": "c", "kind": "compute", "gate": ["b"], "task": "t"})), "c.gate"),
        (node(json!({"name": "c", "kind": "compute", "gate": ["c"], "task": "t"})), "c"),
        (node(json!({"name": "c", "kind": "compute", "gate": ["a"]})), "c.task"),
        (node(json!({"name": "c", "kind": "compute", "task": "t"})), "c.gate"),
        (node(json!({"name": "c", "kind": "cumpute", "gate": ["a"], "task": "t"})), "c.kind"),
        (node(json!({"name": "c", "kind": "input", "task": "t"})), "c.task"),
        (
            node(json!({"name": "c", "kind": "compute", "gate": ["a"], "task": "t", "options": {"dedline": "1s"}})),
            "c.options.dedline",
        ),
        (
            node(json!({"name": "c", "kind": "compute", "gate": ["a"], "task": "t", "options": {"deadline": "soon"}})),
            "c.options.deadline",
        ),
        (
            node(json!({"name": "c", "kind": "compute", "gate": ["a"], "task": "t",
            "options": {"heartbeat_interval": "3m", "heartbeat_timeout": "4m"}})),
            "c.options.heartbeat_interval",
        ),
        (node(json!({"name": "c", "kind": "mutate", "gate": ["a"], "task": "t"})), "c.mutates"),
        (
            node(json!({"name": "c", "kind": "mutate", "gate": ["a"], "task": "t", "mutates": "a",
            "options": {"update_revision_on_change": true}})),
            "c.mutates",
        ),
        (node(json!({"name": "c", "kind": "loop", "gate": ["a"], "task": "t"})), "c.options.max_iterations"),
        (node(json!({"name": "c", "kind": "compute", "gate": {"xor": ["a"]}, "task": "t"})), "c.gate"),
        (node(json!({"name": "c", "kind": "compute", "gate": ["a"], "task": "t", "gates": 1})), "nodes[1].gates"),
        (node(json!({"name": "c", "kind": "tick_once"})), "c.task"),
        (node(json!({"name": "c", "kind": "tick_once", "schedule": "daily"})), "c.schedule"),
        (node(json!({"name": "c", "kind": "tick_once", "schedule": {"every": "0s"}})), "c.schedule.every"),
        (node(json!({"name": "c", "kind": "tick_once", "schedule": {"cron": "61 * * * *"}})), "c.schedule.cron"),
        (
            node(json!({"name": "c", "kind": "tick_once", "schedule": {"cron": "@daily", "tz": "Mars"}})),
            "c.schedule.tz",
        ),
        (node(json!({"name": "c", "kind": "tick_once", "schedule": {"crom": "@daily"}})), "c.schedule.crom"),
        (node(json!({"name": "c", "kind": "tick_once", "schedule": {"every": "1h"}, "task": "t"})), "c.task"),
        (node(json!({"name": "c", "kind": "tick_once", "schedule": {"every": "1h"}, "command": ["x"]})), "c.command"),
        (node(json!({"name": "c", "kind": "tick_once", "schedule": {"every": "1h"}, "args": 1})), "c.args"),
        (
            node(json!({"name": "c", "kind": "tick_once", "schedule": {"every": "1h"},
            "options": {"keep_latest": 5, "max_attempts": 5}})),
            "c.options.max_attempts",
        ),
        (node(json!({"name": "c", "kind": "compute", "gate": ["a"], "schedule": {"every": "1h"}})), "c.schedule"),
        (json!({"name": "g", "nodes": []}), "nodes"),
        (json!({"name": "g"}), "nodes"),
        (json!({"name": "g h", "nodes": [{"name": "a", "kind": "input"}]}), "name"),
    ] {
        let error = Graph::parse(&definition).expect_err(named);
        assert_eq!(error.field, named, "{error:?}");
        assert!(!error.hint.is_empty(), "{error:?}");
    }
}

#[test]
fn a_definition_survives_being_written_and_read() {
    let ticking = json!({"name": "t", "nodes": [
        {"name": "tick", "kind": "tick_once", "schedule": {"cron": "@daily", "tz": "UTC"}},
        {"name": "often", "kind": "tick_recurring", "schedule": {"every": "90s"}, "options": {"keep_latest": 5}},
    ]});
    for definition in [sum(), diamond(), ticking] {
        let graph = Graph::parse(&definition).unwrap();
        assert_eq!(Graph::parse(&graph.to_value()).unwrap(), graph);
    }
}

#[test]
fn a_recurring_tick_that_gives_the_same_time_again_is_asked_again_later() {
    let mut machine = Machine::new(json!({"name": "t", "nodes": [
        {"name": "tick", "kind": "tick_recurring", "task": "t"},
        {"name": "after", "kind": "compute", "gate": ["tick"], "task": "t"},
    ]}));
    let second = 1_000_000;
    let due = machine.now.0 / second + 10;
    machine.compute("tick", json!(due));
    machine.now = StoreTime(due * second);
    machine.look();
    assert_eq!(machine.running(), ["after", "tick"]);
    machine.compute("after", json!(1));
    // Its clock lags: it gives the time that was due just now.
    let changes = machine.compute("tick", json!(due));
    assert!(machine.running().is_empty(), "it does not spin");
    assert_eq!(changes.ticks["tick"], StoreTime((due + 1) * second), "it is asked again in a second");
    machine.now = StoreTime((due + 1) * second);
    machine.look();
    assert_eq!(machine.running(), ["tick"], "nothing fires for the same time again");
    machine.compute("tick", json!(due));
    machine.now = StoreTime((due + 3) * second);
    machine.look();
    machine.compute("tick", json!(due + 60));
    assert!(machine.running().is_empty());
    machine.now = StoreTime((due + 60) * second);
    machine.look();
    assert!(machine.running().contains(&"after"), "it goes on");
}

#[test]
fn a_tick_that_is_computed_anew_does_not_fire_at_its_old_time_and_one_with_a_shut_gate_not_at_all() {
    let mut machine = Machine::new(json!({"name": "t", "nodes": [
        {"name": "at", "kind": "input"}, {"name": "on", "kind": "input"},
        {"name": "tick", "kind": "tick_once", "gate": {"and": ["at", {"is_true": "on"}]}, "task": "t"},
        {"name": "after", "kind": "compute", "gate": ["tick"], "task": "t"},
    ]}));
    let second = 1_000_000;
    let due = machine.now.0 / second + 10;
    machine.set(json!({"at": 1, "on": true}));
    machine.compute("tick", json!(due));
    machine.set(json!({"at": 2}));
    machine.now = StoreTime(due * second);
    machine.look();
    assert_eq!(machine.running(), ["tick"], "what is about to be replaced does not fire");
    machine.compute("tick", json!(due + 10));
    assert!(machine.running().is_empty());
    machine.set(json!({"on": false}));
    machine.now = StoreTime((due + 20) * second);
    machine.look();
    assert!(machine.running().is_empty(), "its gate is shut");
    machine.set(json!({"on": true}));
    machine.compute("tick", json!(due + 15));
    assert_eq!(machine.running(), ["after"]);
}

#[test]
fn a_failed_node_does_not_keep_a_recurring_tick_from_its_other_dependants() {
    let mut machine = Machine::new(json!({"name": "t", "nodes": [
        {"name": "x", "kind": "input"},
        {"name": "broken", "kind": "compute", "gate": ["x"], "task": "t"},
        {"name": "tick", "kind": "tick_recurring", "task": "t"},
        {"name": "held", "kind": "compute", "gate": ["tick", "broken"], "task": "t"},
        {"name": "free", "kind": "compute", "gate": ["tick"], "task": "t"},
    ]}));
    machine.set(json!({"x": 1}));
    machine.compute("broken", json!(1));
    machine.set(json!({"x": 2}));
    machine.fail("broken");
    let second = 1_000_000;
    for round in 1..4 {
        let due = machine.now.0 / second + 10;
        machine.compute("tick", json!(due));
        machine.now = StoreTime(due * second);
        machine.look();
        assert!(machine.running().contains(&"free"), "round {round}");
        machine.compute("free", json!(round));
    }
}

#[test]
fn two_mutations_that_set_each_other_off_are_refused() {
    let mutate = |name: &str, gate: &str, target: &str| {
        json!({"name": name, "kind": "mutate", "gate": [gate], "mutates": target, "task": "t",
               "options": {"update_revision_on_change": true}})
    };
    let graph = json!({"name": "g", "nodes": [
        {"name": "x", "kind": "input"}, {"name": "y", "kind": "input"}, mutate("a", "y", "x"), mutate("b", "x", "y"),
    ]});
    let error = Graph::parse(&graph).expect_err("refused");
    assert!(error.problem.contains("upstream"), "{error}");
}

#[test]
fn ten_thousand_results_of_ten_thousand_nodes_are_decided_together() {
    let count = 10_000;
    let mut nodes = vec![json!({"name": "x", "kind": "input"})];
    nodes.extend((1..count).map(|n| json!({"name": format!("n{n}"), "kind": "compute", "gate": ["x"], "task": "t"})));
    let mut machine = Machine::new(json!({"name": "wide", "nodes": nodes}));
    machine.set(json!({"x": 1}));
    let ended: Vec<Command> = machine
        .runs
        .values()
        .map(|start| Command::Computed { node: start.node.clone(), run: start.run, result: json!(1) })
        .collect();
    assert_eq!(ended.len(), count - 1);
    machine.runs.clear();
    let changes = machine.tell_all(ended);
    assert_eq!(changes.changed.len(), count - 1);
}
