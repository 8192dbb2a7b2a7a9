//! What a command prints becomes a value by the same rules as every other JSON.

mod common;
mod job;

use common::{BINARY, Options, Server, stderr, stdout, until};
use job::{Host, Jobs, SOON};
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
fn what_a_jq_program_gives_is_json_within_the_same_bounds_or_refused() {
    let server = Server::start(Options::default());
    let nest = |levels: usize| format!("(reduce range({levels}) as $_ ([]; [.]))");
    let deep = |levels: usize| serde_json::from_str::<Value>(&nested(levels)).unwrap();
    let cases = [
        (nest(99), Ok(deep(100))),
        (format!("{}, 1", nest(98)), Ok(json!([deep(99), 1]))),
        (nest(100), Err("nested too deeply")),
        (format!("{}, 1", nest(99)), Err("nested too deeply")),
        ("[1e999]".to_string(), Err("a number that is too large")),
        ("[infinite]".to_string(), Err("not JSON")),
        (r#""\"\\ud800\"" | fromjson"#.to_string(), Err("surrogate")),
    ];
    for (program, expected) in cases {
        let run = server.wait(&server.submit("jq", json!({ "program": program }), json!({})));
        match expected {
            Ok(result) => {
                assert_eq!((&run["state"], &run["result"]), (&json!("succeeded"), &result), "{program}: {run}")
            }
            Err(why) => {
                assert_eq!((&run["state"], &run["attempt"]), (&json!("failed"), &json!(1)), "{program}: {run}");
                assert!(run["error"]["message"].as_str().is_some_and(|said| said.contains(why)), "{program}: {run}");
            }
        }
    }
}

#[test]
fn the_deepest_value_there_may_be_can_be_computed_with() {
    let server = Server::start(Options::default());
    let nodes = json!([{"name": "a", "kind": "input"},
        {"name": "b", "kind": "compute", "gate": ["a"], "task": "jq", "args": {"program": ".a"}}]);
    let (status, applied) = server.post("/api/v1/graphs", &json!({"name": "g", "nodes": nodes}));
    assert_eq!(status, 201, "{applied}");
    let execution = server.cli(&["-q", "execution", "start", "g", "--set", &format!("a={}", nested(100))]);
    let id = stdout(&execution).trim().to_string();
    let value = server.cli(&["-q", "execution", "get", &id, "b", "--wait", "any", "--timeout", "60s"]);
    assert_eq!(stdout(&value).split_whitespace().collect::<String>(), nested(100), "{}", stderr(&value));
}

#[test]
fn progress_of_a_job_beyond_the_bounds_is_not_taken() {
    let host = Host::with(Options::default());
    let server = host.start();
    let deep = |levels: usize| format!("{{\"deep\": {}}}", nested(levels));
    let refused = [
        deep(100),
        "{\"done\": 1e999}".to_string(),
        "{\"note\": \"\\ud800\"}".to_string(),
        "{\"done\": ".to_string(),
        "[2]".to_string(),
    ];
    // Whoever beats is answered: by then its shim has read the lines before.
    let script = "for line; do printf '%s\\n' \"$line\" >&$EVERBEAT_PROGRESS; done; \"$0\" beat --status waiting; \
        touch told; until [ -e go ]; do sleep 0.05; done";
    let told = |first: &str, then: &[String]| {
        let mut command = vec!["sh", "-c", script, BINARY, first];
        command.extend(then.iter().map(String::as_str));
        let job = server.job(&command);
        until(SOON, "it was told", || host.workspace(&job).join("told").exists().then_some(()));
        let seen =
            until(SOON, "its progress", || Some(server.look(&job)["progress"].clone()).filter(|it| !it.is_null()));
        std::fs::write(host.workspace(&job).join("go"), "").unwrap();
        assert_eq!(server.ended(&job)["progress"], seen, "{first}");
        seen
    };
    assert_eq!(told("{\"done\": 1}", &refused), json!({ "done": 1 }));
    assert_eq!(told(&deep(99), &[]), serde_json::from_str::<Value>(&deep(99)).unwrap());
    assert_eq!(told(&refused[0], &["{\"done\": 2}".to_string()]), json!({ "done": 2 }));
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
