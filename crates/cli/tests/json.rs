//! What a command prints becomes a value by the same rules as every other JSON.

mod common;

use common::{Options, Server, stderr, until};
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn what_a_nodes_command_prints_is_json_or_text_or_refused_for_a_bound() {
    let server = Server::start(Options::default().env("EVERBEAT_RUNS__BACKOFF", "{\"initial\":\"10ms\"}"));
    let (deep, deeper) = (nested(100), nested(101));
    let cases = [
        ("{\"a\": [1, 2]}", Ok(json!({"a": [1, 2]}))),
        ("just text", Ok(json!("just text"))),
        ("{\"a\": ", Ok(json!("{\"a\":"))),
        (&deep, Ok(serde_json::from_str::<Value>(&deep).unwrap())),
        (&deeper, Err("nested too deeply")),
        ("[1e999]", Err("a number that is too large")),
        ("\"\\ud800\"", Err("half of a surrogate pair")),
    ];
    let nodes = cases.iter().enumerate().map(|(number, (printed, _))| {
        json!({"name": format!("n{number}"), "kind": "compute", "gate": ["go"], "options": {"max_attempts": 1},
            "command": ["printf", "%s", printed]})
    });
    let nodes: Vec<Value> = [json!({"name": "go", "kind": "input"})].into_iter().chain(nodes).collect();
    let (status, applied) = server.post("/api/v1/graphs", &json!({"name": "g", "nodes": nodes}));
    assert_eq!(status, 201, "{applied}");
    let (_, execution) = server.post("/api/v1/executions", &json!({"graph": "g", "values": {"go": 1}}));
    let path = format!("/api/v1/executions/{}", execution["id"].as_str().unwrap());
    for (number, (printed, expected)) in cases.iter().enumerate() {
        let node = format!("n{number}");
        let shown = until(Duration::from_secs(60), "the node", || {
            let execution = server.get(&path);
            let state = execution["nodes"][&node]["state"].as_str()?.to_string();
            ["succeeded", "failed", "computed", "set"].contains(&&*state).then_some(execution)
        });
        match expected {
            Ok(value) => assert_eq!(&shown["values"][&node]["value"], value, "{printed}: {}", shown["nodes"][&node]),
            Err(why) => {
                let said = shown["nodes"][&node]["error"].to_string();
                assert!(said.contains(why), "{printed}: {said}");
            }
        }
    }
}

#[test]
fn the_command_line_refuses_the_same_json_before_it_asks() {
    let server = Server::start(Options::default());
    for (input, why) in [
        (nested(101), "is nested too deeply"),
        ("1e999".to_string(), "has a number that is too large"),
        ("\"\\ud800\"".to_string(), "has half of a surrogate pair"),
    ] {
        let refused = server.cli(&["submit", "echo", "--input", &input]);
        assert_eq!(common::code(&refused), 2, "{}", stderr(&refused));
        assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
    }
}

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}
