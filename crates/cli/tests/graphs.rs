//! Graphs through a real server's interface, on SQLite and on PostgreSQL.

mod common;
mod graph;
mod postgres;

use common::{FINISH, Server, until};
use graph::{each_store, input, jq, with};
use serde_json::{Value, json};

fn sum() -> Value {
    json!({ "name": "sum", "nodes": [input("a"), input("b"), jq("total", json!(["a", "b"]), ".a + .b")] })
}

#[test]
fn a_sum_computes_itself_again_when_an_input_changes() {
    each_store(|options| {
        let server = Server::start(options);
        server.apply(&sum());
        let execution = server.execute("sum", json!({}));
        assert_eq!(execution.ask("total", "").0, 404);
        execution.set(json!({ "a": 2 }));
        let waiting = execution.node("total")["waiting_for"].as_str().unwrap().to_string();
        assert!(waiting.contains("b is not set") && waiting.contains("gate: "), "{waiting}");
        let (status, problem) = execution.ask("total", "?wait=any&timeout=200ms");
        assert_eq!(status, 408, "{problem}");
        assert!(problem["type"].as_str().unwrap().ends_with("/wait-timed-out"), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("b is not set"), "{problem}");

        execution.set(json!({ "b": 3 }));
        let total = execution.any("total");
        assert_eq!(total["value"], 5, "{total}");
        let revision = execution.show()["revision"].as_u64().unwrap();
        assert_eq!(execution.set(json!({ "a": 2 })), revision, "the same value bumps nothing");
        execution.set(json!({ "a": 10 }));
        let newer = execution.newer_than("total", total["revision"].as_u64().unwrap());
        assert_eq!(newer["value"], 13);
        assert!(newer["revision"].as_u64() > total["revision"].as_u64());

        execution.unset("b");
        let (status, problem) = execution.ask("total", "");
        assert_eq!(status, 404, "{problem}");
        assert!(problem["type"].as_str().unwrap().ends_with("/not-set"), "{problem}");
        server.assert_sound();
    });
}

#[test]
fn a_computation_outlives_many_heartbeats_and_ends_at_its_deadline_even_while_it_beats() {
    each_store(|options| {
        let server = Server::start(options);
        let quick = json!({ "heartbeat_interval": "50ms", "heartbeat_timeout": "200ms", "deadline": "1h" });
        let late = json!({
            "heartbeat_interval": "50ms", "heartbeat_timeout": "200ms", "abandon_after_seconds": 1, "max_attempts": 1,
            "cancel_grace": "100ms", "on_save": "echo",
        });
        let sleep = |name: &str, ms: u64| json!({ "name": name, "kind": "compute", "gate": ["go"], "task": "sleep", "args": { "ms": ms } });
        server.apply(&json!({ "name": "beats", "nodes": [
            input("go"), with(sleep("long", 1500), quick), with(sleep("late", 60_000), late),
        ]}));
        let execution = server.execute("beats", json!({ "go": true }));
        let long = execution.any("long");
        assert_eq!(long["value"], json!({ "slept_ms": 1500 }));
        assert_eq!(execution.runs("long")[0]["attempt"], 1, "it was never taken for dead");

        let (status, problem) = execution.ask("late", "?wait=any&timeout=30s");
        assert_eq!(status, 409, "{problem}");
        assert!(problem["type"].as_str().unwrap().ends_with("/computation-failed"), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("deadline"), "{problem}");
        let run = execution.runs("late")[0]["id"].as_str().unwrap().to_string();
        let attempts = server.get(&format!("/api/v1/runs/{run}/attempts"));
        assert_eq!(attempts["items"][0]["outcome"], "timed_out", "{attempts}");
        assert_eq!(called(&server), [json!("failed")], "the callback is called once");
        assert_eq!(execution.node("late")["state"], "failed");
        server.assert_sound();
    });
}

/// What the callback was told, by its runs.
fn called(server: &Server) -> Vec<Value> {
    let runs = server.get("/api/v1/runs?task=echo&limit=100");
    runs["items"].as_array().unwrap().iter().map(|run| run["input"]["status"].clone()).collect()
}

#[test]
fn attempts_used_up_are_told_at_once_and_earlier_results_stay() {
    each_store(|options| {
        let server = Server::start(options);
        let flaky = jq("result", json!(["x"]), "if .x == 2 then error(\"two is too much\") else .x * 10 end");
        let options = json!({ "max_attempts": 2, "backoff": { "initial": "10ms" }, "on_save": "echo" });
        let worn =
            json!({ "name": "worn", "kind": "compute", "gate": ["x"], "task": "fail", "args": { "message": "worn" } });
        server.apply(&json!({ "name": "flaky", "nodes": [
            input("x"), with(flaky, options), jq("after", json!(["result"]), ".result + 1"),
            with(worn, json!({ "max_attempts": 2, "backoff": { "initial": "10ms" } })),
        ]}));
        let execution = server.execute("flaky", json!({ "x": 1 }));
        assert_eq!(execution.any("after")["value"], 11);
        assert_eq!(execution.ask("worn", "?wait=any&timeout=30s").0, 409);
        assert_eq!(execution.runs("worn")[0]["attempt"], 2, "all attempts are used");
        let revision = execution.set(json!({ "x": 2 }));
        let (status, problem) = execution.ask("result", &format!("?wait=newer_than&revision={revision}&timeout=30s"));
        assert_eq!(status, 409, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("two is too much"), "{problem}");
        assert_eq!(execution.ask("result", "").1["value"], 10, "the earlier result stays");
        assert_eq!(execution.ask("after", "").1["value"], 11);
        assert_eq!(execution.runs("result")[0]["attempt"], 1, "what fails for good is not tried again");
        until(FINISH, "both callbacks", || (called(&server).len() == 2).then_some(()));
        assert_eq!(called(&server), [json!("failed"), json!("saved")]);

        let (status, _) = execution.post("/nodes/result/retry");
        assert_eq!(status, 200);
        until(FINISH, "it failed again", || (called(&server).len() == 3).then_some(()));
        execution.set(json!({ "x": 3 }));
        execution.until_value("after", &json!(31));
        server.assert_sound();
    });
}

#[test]
fn mutate_historian_archive_and_loop_do_what_they_say() {
    each_store(|options| {
        let server = Server::start(options);
        let mutate = |name: &str, target: &str, options: Value| {
            json!({
                "name": name, "kind": "mutate", "mutates": target, "gate": ["used"], "task": "jq",
                "args": { "program": "\"scrubbed\"" }, "options": options,
            })
        };
        server.apply(&json!({ "name": "personal", "nodes": [
            input("secret"), input("other"), input("stop"),
            jq("used", json!(["secret"]), ".secret | length"),
            mutate("scrub", "secret", json!({})),
            mutate("scrub_other", "other", json!({ "update_revision_on_change": true })),
            { "name": "log", "kind": "historian", "gate": { "or": ["secret", "other"] }, "options": { "max_entries": 3 } },
            { "name": "bye", "kind": "archive", "gate": [ "stop" ] },
            { "name": "count", "kind": "loop", "gate": ["used"], "task": "jq", "options": { "max_iterations": 5 },
              "args": { "program": "(.count // 0) as $n | if $n >= 3 then {done: $n} else {continue: ($n + 1)} end" } },
            { "name": "endless", "kind": "loop", "gate": ["used"], "task": "jq",
              "options": { "max_iterations": 4, "fallback": "gave up" }, "args": { "program": "{continue: 1}" } },
            { "name": "hopeless", "kind": "loop", "gate": ["used"], "task": "jq",
              "options": { "max_iterations": 2 }, "args": { "program": "{continue: 1}" } },
        ]}));
        let execution = server.execute("personal", json!({ "secret": "1234", "other": "x" }));
        execution.any("scrub");
        execution.any("scrub_other");
        let shown = execution.show();
        assert_eq!(shown["values"]["secret"]["value"], "scrubbed");
        assert_eq!(shown["values"]["secret"]["revision"], 1, "left alone");
        assert_eq!(shown["values"]["other"]["value"], "scrubbed");
        assert!(shown["values"]["other"]["revision"].as_u64() > Some(1), "bumped, as asked");
        assert_eq!(shown["values"]["used"]["value"], 4, "nothing was computed anew");
        assert_eq!(execution.any("count")["value"], 3);
        assert_eq!(execution.any("endless")["value"], "gave up");
        let (status, problem) = execution.ask("hopeless", "?wait=any&timeout=30s");
        assert_eq!(status, 409);
        assert!(problem["detail"].as_str().unwrap().contains("max_iterations"), "{problem}");
        assert_eq!(execution.runs("endless").len(), 4, "each iteration is a run");

        execution.set(json!({ "secret": "a", "other": "b" }));
        let log = execution.ask("log", "").1["value"].as_array().unwrap().clone();
        assert!(log.len() <= 3);
        let revisions: Vec<u64> = log.iter().map(|entry| entry["revision"].as_u64().unwrap()).collect();
        assert!(revisions.is_sorted_by(|a, b| a >= b), "newest first: {log:?}");
        assert_eq!((&log[0]["node"], &log[1]["node"]), (&json!("secret"), &json!("other")), "also within a batch");

        execution.set(json!({ "stop": true }));
        assert!(execution.show()["archived_at"].is_string());
        let listed = |query: &str| server.get(&format!("/api/v1/executions{query}"))["items"].as_array().unwrap().len();
        assert_eq!((listed("?graph=personal"), listed("?graph=personal&archived=true")), (0, 1));
        let (status, problem) = server.put(&execution.path("/values"), &json!({ "values": { "other": 1 } }));
        assert_eq!(status, 409, "{problem}");
        assert_eq!(execution.post("/unarchive").0, 200);
        assert_eq!(listed("?graph=personal"), 1);
        server.assert_sound();
    });
}

#[test]
fn a_gate_turned_false_clears_what_depended_on_it() {
    each_store(|options| {
        let server = Server::start(options);
        let gate = json!({ "and": [
            { "or": [{ "gt": ["x", 10] }, { "is_true": "force" }] }, { "not": { "eq": ["mode", "off"] } },
        ]});
        server.apply(&json!({ "name": "gated", "nodes": [
            input("x"), input("force"), input("mode"),
            jq("one", gate, ".x"), jq("two", json!(["one"]), ".one + 1"), jq("three", json!(["two"]), ".two + 1"),
            jq("false_only", json!({ "is_false": "force" }), "\"no\""),
        ]}));
        let execution = server.execute("gated", json!({ "x": 5, "mode": "on" }));
        let waiting = execution.node("one")["waiting_for"].as_str().unwrap().to_string();
        assert!(waiting.contains("x > 10") && waiting.contains("force"), "{waiting}");
        execution.set(json!({ "force": true }));
        assert_eq!(execution.any("three")["value"], 7);
        execution.set(json!({ "mode": "off" }));
        for node in ["one", "two", "three"] {
            assert_eq!(execution.ask(node, "").0, 404, "{node} is cleared with the change itself");
        }
        execution.set(json!({ "mode": "on", "x": 20 }));
        assert_eq!(execution.any("three")["value"], 22);
        execution.set(json!({ "force": false }));
        assert_eq!(execution.any("false_only")["value"], "no");
        assert_eq!(execution.ask("three", "").1["value"], 22, "the other side of the gate still holds");
        server.assert_sound();
    });
}

#[test]
fn a_new_version_reaches_running_executions_and_a_node_removed_in_flight_breaks_nothing() {
    each_store(|options| {
        let server = Server::start(options);
        let slow = json!({ "name": "slow", "kind": "compute", "gate": ["a"], "task": "sleep", "args": { "ms": 700 } });
        let graph = |version: u32, nodes: Value| json!({ "name": "grows", "version": version, "nodes": nodes });
        server.apply(&graph(1, json!([input("a"), slow, jq("leaf", json!(["a"]), ".a")])));
        let execution = server.execute("grows", json!({ "a": 1 }));
        let finished = server.execute("grows", json!({ "a": 2 }));
        execution.any("leaf");
        finished.any("slow");
        let again = server.execute("grows", json!({ "a": 3 }));
        server.apply(&graph(2, json!([input("a"), jq("added", json!(["a"]), ".a * 100")])));
        for (execution, expected) in [(&execution, 100), (&finished, 200), (&again, 300)] {
            assert_eq!(execution.any("added")["value"], expected);
            let shown = execution.show();
            assert_eq!(shown["version"], "2");
            assert!(shown["nodes"].get("leaf").is_none(), "{shown}");
        }
        assert_eq!(execution.ask("leaf", "").1["value"], 1, "a removed leaf keeps its value");
        execution.set(json!({ "a": 5 }));
        execution.until_value("added", &json!(500));
        assert_eq!(execution.ask("leaf", "").1["value"], 1, "and is inert");
        until(FINISH, "what ran has ended", || {
            let runs = server.get("/api/v1/runs?kind=node&state=running&limit=10");
            runs["items"].as_array().unwrap().is_empty().then_some(())
        });
        server.assert_sound();
    });
}

#[test]
fn every_invalid_definition_is_refused_with_the_nodes_name_and_nothing_is_stored() {
    let server = Server::start(common::quick());
    let bad = |nodes: Value| json!({ "name": "bad", "nodes": nodes });
    let compute = |fields: Value| {
        let mut node = jq("culprit", json!(["a"]), ".a");
        fields.as_object().unwrap().iter().for_each(|(name, value)| node[name] = value.clone());
        bad(json!([input("a"), node]))
    };
    let cases = [
        (bad(json!([input("culprit"), input("culprit")])), "twice"),
        (compute(json!({ "gate": ["nowhere"] })), "not a node"),
        (bad(json!([jq("culprit", json!(["other"]), "."), jq("other", json!(["culprit"]), ".")])), "depends on itself"),
        (compute(json!({ "options": { "max_atempts": 3 } })), "max_attempts"),
        (compute(json!({ "kind": "computer" })), "compute"),
        (compute(json!({ "task": null })), "task"),
        (compute(json!({ "task": "jqq" })), "jq"),
        (compute(json!({ "options": { "deadline": "soon" } })), "soon"),
        (compute(json!({ "options": { "heartbeat_interval": "40s", "heartbeat_timeout": "60s" } })), "40s"),
        (compute(json!({ "gate": { "nand": ["a"] } })), "unknown word"),
        (
            bad(json!([input("a"), { "name": "culprit", "kind": "loop", "gate": ["a"], "task": "jq" }])),
            "max_iterations",
        ),
        (
            bad(json!([input("a"), {
                "name": "culprit", "kind": "mutate", "mutates": "a", "gate": ["a"], "task": "jq",
                "options": { "update_revision_on_change": true },
            }])),
            "upstream",
        ),
    ];
    for (graph, words) in cases {
        let (status, problem) = server.post("/api/v1/graphs", &graph);
        assert!((400..500).contains(&status), "{status} {problem} for {graph}");
        let text = problem.to_string();
        assert!(text.contains("culprit") && text.contains(words), "{text} for {graph}");
        assert!(problem["hint"].is_string(), "{problem}");
    }
    assert_eq!(server.get("/api/v1/graphs")["items"], json!([]));
}

#[test]
fn the_examples_of_the_documentation_run() {
    let server = Server::start(common::quick());
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let run = |args: &[&str]| {
        let output = server.cli(args);
        assert_eq!(common::code(&output), 0, "{args:?}: {}", common::stderr(&output));
        common::stdout(&output).trim().to_string()
    };
    run(&["graph", "apply", &format!("{root}/greeting.json")]);
    let id = run(&["execution", "start", "greeting"]);
    run(&["execution", "set", &id, "name=\"Ada\""]);
    assert_eq!(run(&["execution", "get", &id, "greeting", "--wait", "any"]), "\"Hello, Ada!\"");

    run(&["graph", "apply", &format!("{root}/application.toml")]);
    let id = run(&["execution", "start", "application", "--set", "name=\"Ada\"", "--set", "amount=25000"]);
    let execution = server.execution(&id);
    execution.any("reminder");
    execution.set(json!({ "ssn": "123-45-6789" }));
    execution.any("scrub_ssn");
    let shown = execution.show();
    assert_eq!(shown["values"]["ssn"]["value"], "removed", "{shown}");
    assert!(shown["values"].get("reminder").is_none(), "nothing is to be reminded of any more");
    assert!(shown["nodes"]["decision"]["waiting_for"].as_str().unwrap().contains("approved"), "{shown}");
    execution.set(json!({ "approved": true }));
    assert_eq!(execution.any("letter")["value"], "Dear Ada, we are glad to grant your loan.");
    assert!(execution.show()["archived_at"].is_string());
    assert_eq!(execution.show()["values"]["history"]["value"][0]["node"], "decision");
    assert!(run(&["execution", "summary", &id]).contains("letter"));
}
