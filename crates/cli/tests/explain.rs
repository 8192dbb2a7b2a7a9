//! The words that a person gets who asks why.

mod common;
mod job;

use common::{Server, code, quick, stderr, stdout, until};
use job::{Host, Jobs, SOON, signal};
use serde_json::json;

fn explained(server: &Server, id: &str) -> String {
    let output = server.cli(&["explain", id]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn what_waits_is_told_its_place_and_the_reason() {
    let server = Server::start(quick().env("EVERBEAT_REPLICA__SLOTS", "1"));
    let busy = server.submit("sleep", json!({"ms": 60000}), json!({}));
    server.until_state(&busy, "running");
    let first = server.submit("noop", json!(null), json!({}));
    let second = server.submit("noop", json!(null), json!({}));
    let third = server.submit("noop", json!(null), json!({}));
    let said = explained(&server, &first);
    assert!(said.contains("no free slot (1 of 1 taken)") && said.contains("replica.slots"), "{said}");
    assert!(said.contains("no run of task \"noop\" is before it") && said.contains("1 replica is active"), "{said}");
    assert!(explained(&server, &second).contains("1 run of task \"noop\" of higher priority or age is before it"));
    assert!(explained(&server, &third).contains("2 runs of task \"noop\" of higher priority or age are before it"));
    let unknown = server.cli(&["submit", "nobody-knows", "--accept-unknown"]);
    let said = explained(&server, stdout(&unknown).trim());
    assert!(said.contains("nobody has ever offered task \"nobody-knows\""), "{said}");
    assert_eq!(code(&server.cli(&["cancel", &third])), 0);
    let said = explained(&server, &third);
    assert!(said.contains("cancelled") && !said.contains("retry"), "it is as a person wanted it: {said}");
}

#[test]
fn a_limit_that_is_reached_is_named() {
    let server = Server::start(quick().env("EVERBEAT_QUEUE__MAIL__CONCURRENCY", "1"));
    let submit = |task: &str, input: &str| {
        let output = server.cli(&["submit", task, "--input", input, "--queue", "mail"]);
        stdout(&output).trim().to_string()
    };
    let busy = submit("sleep", "{\"ms\": 60000}");
    server.until_state(&busy, "running");
    let said = explained(&server, &submit("noop", "null"));
    assert!(said.contains("its concurrency allows (1)") && said.contains("[[queue]]"), "{said}");
}

#[test]
fn what_runs_is_told_with_progress_and_the_age_of_its_beat() {
    let host = Host::new();
    let server = host.start();
    let script = format!("{} beat --done 3 --total 10 --note 'chapter 3'; sleep 60", common::BINARY);
    let job = server.shell(&script);
    server.runs(&job);
    let said = until(SOON, "its progress", || Some(explained(&server, &job)).filter(|said| said.contains("3/10")));
    assert!(said.contains("progress 3/10 chapter 3") && said.contains("alive, last heartbeat "), "{said}");
    assert!(said.contains(" ago ("), "{said}");
}

#[test]
fn a_suspect_is_told_with_the_time_of_its_judgement_and_what_can_be_done() {
    let host = Host::with(
        quick()
            .env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "200ms")
            .env("EVERBEAT_JOBS__STALE_AFTER", "1s")
            .env("EVERBEAT_JOBS__DEAD_AFTER", "50s"),
    );
    let mut server = host.start();
    let job = server.shell("sleep 60");
    server.runs(&job);
    signal(host.shim(&job).expect("a shim"), "STOP");
    // A connection that stands says nothing about it; a server that begins must ask.
    server.kill9();
    let server = host.start();
    let said = until(SOON, "a suspicion", || Some(explained(&server, &job)).filter(|said| said.contains("suspect")));
    assert!(said.contains("judged after 50s of silence unless it is heard of"), "{said}");
    assert!(said.contains(&format!("everbeat cancel {job}")), "{said}");
}

#[test]
fn replicas_verdicts_and_executions_are_explained_too() {
    let mut server = Server::start(quick());
    let run = server.submit("sleep", json!({"ms": 60000}), json!({"max_attempts": 5}));
    server.until_state(&run, "running");
    let dead = server.replica_id();
    let said = explained(&server, &dead);
    assert!(said.contains("is active, alive") && said.contains("it holds 1 run"), "{said}");
    server.kill9();
    let server = Server::start(server.options.clone());
    until(SOON, "its successor takes it", || {
        let found = server.get(&format!("/api/v1/runs/{run}"));
        (found["attempt"].as_u64() > Some(1)).then_some(())
    });
    let said = explained(&server, &dead);
    assert!(said.contains("is dead") && said.contains("was judged"), "{said}");
    let verdicts = server.get(&format!("/api/v1/verdicts?run_id={run}"));
    let verdict = verdicts["items"][0]["id"].as_str().expect("a verdict").to_string();
    let said = explained(&server, &verdict);
    assert!(said.contains(&run) && said.contains("seen: ") && said.contains("everbeat explain"), "{said}");
    let graph = json!({"name": "g", "version": "1", "nodes": [{"name": "a", "kind": "input"}]});
    assert!(server.post("/api/v1/graphs", &graph).0 < 300);
    let (_, execution) = server.post("/api/v1/executions", &json!({"graph": "g"}));
    let said = explained(&server, execution["id"].as_str().expect("an id"));
    assert!(said.contains("not set") || said.contains("a"), "{said}");
}
