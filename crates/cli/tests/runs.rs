//! The client against a real server on SQLite.

mod common;

use common::{FINISH, Server, client, code, json, quick, stderr, stdout, until};
use serde_json::{Value, json};
use std::process::{Output, Stdio};

fn start() -> Server {
    Server::start(quick())
}

fn runs(server: &Server) -> usize {
    server.get("/api/v1/runs")["items"].as_array().expect("a list").len()
}

fn outcomes(server: &Server, id: &str) -> Vec<Value> {
    let attempts = server.get(&format!("/api/v1/runs/{id}/attempts"));
    attempts["items"].as_array().expect("a list").iter().map(|attempt| attempt["outcome"].clone()).collect()
}

#[test]
fn a_run_is_submitted_awaited_and_printed() {
    let server = start();
    let output =
        server.cli(&["submit", "echo", "--input", "{\"a\": [1.0, 12345678901234567890123]}", "--wait", "-o", "json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let run = json(&output);
    assert_eq!(run["state"], "succeeded");
    assert_eq!(run["result"]["a"][0], 1.0);
    assert!(stdout(&output).contains("12345678901234567890123"), "numbers stay as they are");
    let id = run["id"].as_str().expect("an id");

    let listed = json(&server.cli(&["ls", "runs", "-o", "json", "--task", "echo", "--state", "succeeded"]));
    assert_eq!(listed["items"][0]["id"], id);
    let table = stdout(&server.cli(&["ls", "runs"]));
    assert!(table.contains(id) && table.contains("succeeded") && table.contains("ago"), "{table}");
    assert!(!table.contains('\u{1b}'), "no colour without a terminal");
    let shown = stdout(&server.cli(&["show", id]));
    assert!(shown.contains("ATTEMPT") && shown.contains("succeeded"), "{shown}");
    assert_eq!(json(&server.cli(&["show", id, "-o", "json"]))["attempts"][0]["outcome"], "succeeded");
    assert!(stdout(&server.cli(&["explain", id])).contains("succeeded"));
    assert_eq!(code(&server.cli(&["wait", id])), 0);
    assert_eq!(code(&server.cli(&["invariants"])), 0);
}

#[test]
fn input_comes_from_a_file_or_from_stdin() {
    let server = start();
    std::fs::write(server.folder().join("input.json"), "{\"from\": \"file\"}").expect("written");
    let run = json(&server.cli(&["submit", "echo", "--input", "@input.json", "--wait", "-o", "json"]));
    assert_eq!(run["result"], json!({"from": "file"}));
    let mut child = server
        .command(&["submit", "echo", "--input", "-", "--wait", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("stdin"), b"\"from stdin\"").expect("written");
    assert_eq!(json(&child.wait_with_output().expect("it ends"))["result"], "from stdin");
}

#[test]
fn a_failing_run_ends_with_1_after_three_attempts() {
    let server = start();
    let output = server.cli(&["submit", "fail", "--input", "{\"message\":\"no\"}", "--wait", "-o", "json"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let run = json(&output);
    assert_eq!((&run["state"], &run["attempt"], &run["error"]["message"]), (&json!("failed"), &json!(3), &json!("no")));
    let id = run["id"].as_str().expect("an id");
    assert_eq!(outcomes(&server, id), ["failed", "failed", "failed"]);
    let table = stdout(&server.cli(&["show", id]));
    assert_eq!(table.matches("failed").count(), 4, "the run and each attempt:\n{table}");

    let output = server.cli(&["submit", "fail", "--input", "{\"times\": 2}", "--wait"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("attempt 3, tries 3 of 3"), "{}", stderr(&output));
}

#[test]
fn what_cannot_be_accepted_is_named_and_makes_no_run() {
    let server = Server::start(quick().env("EVERBEAT_SERVER__BODY_LIMIT", "64KiB"));
    let refused = |args: &[&str], expected: i32, parts: &[&str]| {
        let output = server.cli(args);
        let said = stderr(&output);
        assert_eq!(code(&output), expected, "{args:?}: {said}");
        assert_eq!(stdout(&output), "", "{args:?}");
        for part in parts {
            assert!(said.contains(part), "{args:?}: {part:?} is not in\n{said}");
        }
    };
    refused(&["submit", "ehco"], 3, &["task", "ehco", "echo", "hint:"]);
    refused(&["submit", "echo", "--policy", "{\"deadline\": \"soon\"}"], 3, &["policy.deadline", "soon", "30s"]);
    let long = "{\"heartbeat_interval\": \"70s\", \"heartbeat_timeout\": \"120s\"}";
    refused(&["submit", "echo", "--policy", long], 3, &["policy.heartbeat_interval", "70s", "2m", "hint:"]);
    refused(&["submit", "echo", "--policy", "{\"dedline\": 1}"], 3, &["policy.dedline", "deadline"]);
    refused(&["submit", "echo", "--queue", "a b"], 3, &["queue", "a b", "hint:"]);
    refused(&["submit", "echo", "--input", "{"], 2, &["--input", "hint:"]);
    refused(&["show", "00000000-0000-7000-8000-000000000000"], 3, &["00000000", "everbeat ls"]);
    refused(&["show", "nonsense"], 3, &["nonsense", "hint:"]);
    for size in [100_000, 5_000_000] {
        std::fs::write(server.folder().join("big.json"), format!("\"{}\"", "x".repeat(size))).expect("written");
        refused(&["submit", "echo", "--input", "@big.json"], 3, &["65536", "server.body_limit"]);
    }
    assert_eq!(runs(&server), 0, "no run was made");
}

#[test]
fn keys_make_no_second_run() {
    let server = start();
    let submit = |args: &[&str]| server.cli(&[&["submit", "sleep", "--input", "{\"ms\": 60000}"], args].concat());
    let first = stdout(&submit(&["--unique-key", "one"]));
    let again = submit(&["--unique-key", "one"]);
    assert_eq!(stdout(&again), first);
    assert!(stderr(&again).contains("already"), "{}", stderr(&again));
    let first = stdout(&submit(&["--idempotency-key", "two"]));
    assert_eq!(stdout(&submit(&["--idempotency-key", "two"])), first);
    assert_eq!(runs(&server), 2);
}

#[test]
fn cancelled_runs_end_with_5_and_waits_that_time_out_with_124() {
    let server = start();
    let id = server.submit("sleep", json!({"ms": 60000}), json!({}));
    let output = server.cli(&["wait", &id, "--timeout", "200ms"]);
    assert_eq!(code(&output), 124, "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    assert_eq!(code(&server.cli(&["cancel", &id])), 0);
    assert_eq!(code(&server.cli(&["wait", &id])), 5);
    let twice = server.cli(&["cancel", &id]);
    assert_eq!(code(&twice), 3);
    assert!(stderr(&twice).contains("already finished"), "{}", stderr(&twice));
    assert_eq!(code(&server.cli(&["retry", &id])), 0);
    assert_eq!(code(&server.cli(&["cancel", &id])), 0);

    let waits = server.cli(&["submit", "sleep", "--input", "{\"ms\": 60000}", "--wait", "--timeout", "100ms"]);
    assert_eq!(code(&waits), 124);
    let later = json(&server.cli(&["submit", "noop", "--run-at", "1h", "--priority", "-5", "-o", "json"]));
    assert_eq!((&later["state"], &later["priority"]), (&json!("scheduled"), &json!(-5)));
}

#[test]
fn queues_are_paused_and_resumed() {
    let server = start();
    assert_eq!(code(&server.cli(&["queue", "pause", "default"])), 0);
    let id = stdout(&server.cli(&["submit", "noop"])).trim().to_string();
    let table = stdout(&server.cli(&["ls", "queues"]));
    assert!(table.contains("paused"), "{table}");
    let explained = stdout(&server.cli(&["explain", &id]));
    assert!(explained.contains("paused") && explained.contains("everbeat queue resume default"), "{explained}");
    assert_eq!(code(&server.cli(&["queue", "resume", "default"])), 0);
    assert_eq!(code(&server.cli(&["wait", &id, "--timeout", "30s"])), 0);
    let tasks = stdout(&server.cli(&["ls", "tasks"]));
    assert!(tasks.contains("echo") && tasks.contains("jq"), "{tasks}");
}

#[test]
fn pages_are_followed_to_the_end() {
    let server = start();
    for _ in 0..5 {
        server.submit("noop", json!(null), json!({}));
    }
    let first = json(&server.cli(&["ls", "runs", "--limit", "2", "-o", "json"]));
    assert_eq!(first["items"].as_array().map(Vec::len), Some(2));
    let cursor = first["next_cursor"].as_str().expect("more");
    let rest = json(&server.cli(&["ls", "runs", "--all", "--cursor", cursor, "-o", "json"]));
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(3));
    assert_eq!(rest["next_cursor"], Value::Null);
}

#[test]
fn events_are_read_and_followed() {
    let server = start();
    let id = stdout(&server.cli(&["submit", "echo", "--wait", "-o", "json"]));
    let id = serde_json::from_str::<Value>(&id).expect("json")["id"].as_str().expect("an id").to_string();
    let kept: Output = server.cli(&["events", "-o", "json"]);
    assert_eq!(code(&kept), 0, "{}", stderr(&kept));
    let events: Vec<Value> = stdout(&kept).lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    let last = events.iter().rfind(|event| event["subject"] == id.as_str()).expect("an event of the run");
    assert_eq!(last["kind"], "run.succeeded");

    let log = server.folder().join("events.log");
    let out = std::fs::File::create(&log).expect("a file");
    let after = last["id"].to_string();
    let mut follower = server.command(&["events", "-f", "--after", &after]).stdout(out).spawn().expect("it runs");
    let next = server.submit("noop", json!(null), json!({}));
    until(FINISH, "the event", || {
        std::fs::read_to_string(&log).ok().filter(|said| said.contains(&format!("run.succeeded {next}")))
    });
    follower.kill().expect("killed");
    follower.wait().expect("gone");

    let mut unread = server.command(&["events", "-f", "--after", "0"]).stdout(Stdio::piped()).spawn().expect("it runs");
    drop(unread.stdout.take());
    let ended = until(FINISH, "its end", || unread.try_wait().expect("it can be asked"));
    assert_eq!(ended.code(), Some(0), "whoever has read enough is no error");
}

#[test]
fn a_wait_outlives_a_restart_of_the_server() {
    let server = start();
    let id = server.submit("sleep", json!({"ms": 1500}), json!({}));
    let mut waiting = server.command(&["wait", &id, "-o", "json"]);
    let waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    server.until_state(&id, "running");
    let server = server.restart();
    let output = waiting.wait_with_output().expect("it ends");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(json(&output)["attempt"], 2);
    assert_eq!(outcomes(&server, &id), ["lost", "succeeded"]);
}

#[test]
fn a_run_whose_last_attempt_was_lost_ends_with_4() {
    let server = start();
    let id = server.submit("sleep", json!({"ms": 60000}), json!({"on_lost": "fail"}));
    server.until_state(&id, "running");
    let server = server.restart();
    let output = server.cli(&["wait", &id, "--timeout", "30s"]);
    assert_eq!(code(&output), 4, "{}", stderr(&output));
    let verdicts = json(&server.cli(&["ls", "verdicts", "--run", &id, "-o", "json"]));
    let verdict = verdicts["items"][0]["id"].as_str().expect("a verdict").to_string();
    assert!(stdout(&server.cli(&["show", &verdict])).contains("lost"));
    let replica = json(&server.cli(&["ls", "replicas", "-o", "json"]))["items"][0]["id"].clone();
    assert!(stdout(&server.cli(&["show", replica.as_str().expect("an id")])).contains("host"));
}

#[test]
fn a_token_is_asked_for_and_shown() {
    // Of "secret".
    let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let tokens = format!("[{{\"name\":\"t\",\"sha256\":\"{hash}\",\"scopes\":[\"admin\"]}}]");
    let server = Server::start(quick().env("EVERBEAT_AUTH__TOKENS", &tokens));
    let without = server.cli(&["ls", "runs"]);
    assert_eq!(code(&without), 3);
    assert!(stderr(&without).to_lowercase().contains("token"), "{}", stderr(&without));
    assert_eq!(code(&server.cli(&["--token", "secret", "ls", "runs"])), 0);
    let by_env = server.command(&["submit", "noop", "--wait"]).env("EVERBEAT_TOKEN", "secret").output();
    assert_eq!(code(&by_env.expect("it runs")), 0);
}

#[test]
fn an_unset_server_is_reached_at_the_default_address_only() {
    let output = client().args(["ls", "runs", "--help"]).output().expect("it runs");
    assert!(stdout(&output).contains("http://127.0.0.1:7117"));
}
