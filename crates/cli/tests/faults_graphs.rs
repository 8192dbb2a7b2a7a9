//! A server killed at random moments while executions are carried on.

mod common;
mod graph;
mod postgres;

use common::{FINISH, Options, Server, pause, quick, until};
use graph::{input, jq};
use postgres::Postgres;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

const EXECUTIONS: usize = 200;
const KILLS: u64 = 12;

/// Ten nodes: a diamond, a mutation, a history, two ticks.
fn graph() -> Value {
    json!({ "name": "ten", "nodes": [
        input("x"), input("note"),
        jq("left", json!(["x"]), ".x * 2"),
        jq("right", json!(["x"]), ".x * 3"),
        jq("join", json!(["left", "right"]), "{left: .left, right: .right}"),
        { "name": "scrub", "kind": "mutate", "mutates": "note", "gate": ["join"], "task": "jq",
          "args": { "program": "\"scrubbed\"" } },
        { "name": "log", "kind": "historian", "gate": ["join"] },
        { "name": "due", "kind": "tick_once", "gate": ["join"], "task": "jq", "args": { "program": "now + 0.2" } },
        jq("done", json!(["due", "join"]), ".join.left + .join.right"),
        { "name": "again", "kind": "tick_recurring", "gate": ["done"], "task": "jq",
          "args": { "program": "if (.beats // 0) >= 2 then null else now + 0.1 end" } },
        jq("beats", json!(["again"]), "(.beats // 0) + 1"),
    ]})
}

#[test]
fn executions_survive_kills_on_sqlite() {
    survive(&quick());
}

#[test]
fn executions_survive_kills_on_postgresql() {
    let postgres = Postgres::start();
    survive(&quick().store(postgres.url()));
}

fn survive(options: &Options) {
    let options = options.clone().env("EVERBEAT_RUNS__MAX_ATTEMPTS", "1000");
    let server = Server::start(options.clone());
    server.apply(&graph());
    let executions: Vec<String> = (0..EXECUTIONS).map(|n| server.execute("ten", json!({ "note": n })).id).collect();
    let mut server = Some(server);
    // What each execution was last told, by changes that were answered.
    let last: Mutex<BTreeMap<usize, u64>> = Mutex::default();
    for kill in 0..KILLS {
        let mut living = server.take().unwrap();
        std::thread::scope(|scope| {
            for part in 0..2 {
                let (living, executions, last) = (&living, &executions, &last);
                scope.spawn(move || change(living, executions, last, part, kill));
            }
            // A different moment each time, from a fixed sequence.
            pause(Duration::from_millis(150 + (kill * 113) % 700));
            living.kill9_shared();
        });
        living.forget();
        server = Some(Server::start(living.options.clone()));
    }
    let server = server.unwrap();
    let xs: Vec<u64> = (0..EXECUTIONS as u64).map(|n| 1000 + n).collect();
    for (id, x) in executions.iter().zip(&xs) {
        server.execution(id).set(json!({ "x": x }));
    }
    for (id, x) in executions.iter().zip(&xs) {
        settled(&server, id, *x);
    }
    until(FINISH, "nothing runs any more", || {
        let runs = server.get("/api/v1/runs?kind=node&state=running&limit=1");
        runs["items"].as_array().unwrap().is_empty().then_some(())
    });
    executions.iter().for_each(|id| check_history(&server.execution(id).history()));
    server.assert_sound();
}

/// Sets x of one execution after the other until the server is gone.
fn change(server: &Server, executions: &[String], last: &Mutex<BTreeMap<usize, u64>>, part: usize, kill: u64) {
    for (n, id) in executions.iter().enumerate().skip(part).step_by(2).cycle() {
        let x = kill * 1000 + n as u64;
        let path = format!("/api/v1/executions/{id}/values");
        match server.try_put(&path, &json!({ "values": { "x": x } })) {
            Some((200, _)) => _ = last.lock().unwrap().insert(n, x),
            Some((503, _)) => {}
            Some((status, problem)) => panic!("{status}: {problem}"),
            None => return,
        }
    }
}

/// All of it is computed with the final input.
fn settled(server: &Server, id: &str, x: u64) {
    let execution = server.execution(id);
    execution.until_value("join", &json!({ "left": x * 2, "right": x * 3 }));
    execution.until_value("done", &json!(x * 5));
    execution.until_value("note", &json!("scrubbed"));
    until(FINISH, "the recurring tick has come to rest", || {
        let node = execution.node("again");
        (node["state"] == "paused").then_some(())
    });
    let log = execution.any("log");
    assert_eq!(log["value"][0]["value"], json!({ "left": x * 2, "right": x * 3 }), "{log}");
}

fn check_history(history: &[Value]) {
    let revisions: Vec<u64> = history.iter().map(|entry| entry["revision"].as_u64().unwrap()).collect();
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    for entry in history {
        if let Some(run) = entry["run_id"].as_str() {
            *seen.entry((entry["node"].as_str().unwrap().to_string(), run.to_string())).or_default() += 1;
        }
        if entry["node"] == "join" && entry["kind"] == "set" {
            let (left, right) = (entry["value"]["left"].as_u64().unwrap(), entry["value"]["right"].as_u64().unwrap());
            assert_eq!(left * 3, right * 2, "a join of two different x: {entry}");
        }
    }
    assert!(seen.values().all(|count| *count == 1), "a result was recorded twice: {seen:?}");
    // Silent mutations show the revision of their target; all others rise.
    let loud =
        history.iter().zip(&revisions).filter(|(entry, _)| entry["node"] != "note").map(|(_, revision)| revision);
    assert!(loud.is_sorted(), "{history:?}");
}
