//! The task `jq` on a real server: whatever a program does, the server goes on.

mod common;

use common::{Options, Server, until};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// It computes for years, in little memory.
const ENDLESS: &str = "last(range(1e15))";
/// Well below the processor time that a program has: whatever ends within it was ended.
const SOON: Duration = Duration::from_secs(60);

fn start() -> Server {
    Server::start(Options::default())
}

fn submit(server: &Server, program: &str) -> String {
    server.submit("jq", json!({ "program": program }), json!({}))
}

fn message(run: &Value) -> &str {
    run["error"]["message"].as_str().unwrap_or_default()
}

/// The processes that a process started and has not buried yet.
fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.filter(|pid| stat(*pid).is_some_and(|(_, found)| found == parent)).collect()
}

/// The state and the parent of a process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before them stands in brackets and may hold anything.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn until_evaluating(server: &Server) -> u32 {
    until(SOON, "a child that evaluates", || {
        let child = children(server.pid()).into_iter().next()?;
        fs::read_to_string(format!("/proc/{child}/cmdline")).ok()?.contains("jq-evaluate").then_some(child)
    })
}

/// No child is left, not even a dead one, and the server works.
fn assert_unharmed(server: &Server) {
    until(SOON, "the end of every child", || children(server.pid()).is_empty().then_some(()));
    let run = server.wait(&server.submit("echo", json!("still here"), json!({})));
    assert_eq!((&run["state"], &run["result"]), (&json!("succeeded"), &json!("still here")));
}

#[test]
fn programs_compute_and_their_errors_are_final() {
    let server = start();
    let run = server.wait(&server.submit("jq", json!({"program": ".a + .b", "input": {"a": 2, "b": 3}}), json!({})));
    assert_eq!((&run["state"], &run["result"]), (&json!("succeeded"), &json!(5)), "{run}");
    let run = server.wait(&server.submit("jq", json!({"program": ".x[]", "x": [1, "é"]}), json!({})));
    assert_eq!(run["result"], json!([1, "é"]), "{run}");
    for (program, said) in [("error(\"no\")", "no"), (".a +", "cannot be parsed"), ("$ENV", "not defined")] {
        let run = server.wait(&submit(&server, program));
        assert_eq!((&run["state"], &run["attempt"]), (&json!("failed"), &json!(1)), "{run}");
        assert!(message(&run).contains(said), "{run}");
    }
    let run = server.wait(&server.submit("jq", json!("no object"), json!({})));
    assert!(run["attempt"] == 1 && message(&run).contains("write it like"), "{run}");
    assert_unharmed(&server);
}

#[test]
fn a_hostile_program_ends_its_own_process_only() {
    let server = start();
    let (pid, replica) = (server.pid(), server.replica_id());
    for (program, said) in [
        ("def f: 1+f; f".to_string(), "overflowed its stack"),
        ("[range(1e10)] | length".to_string(), "more than 512 MiB of memory"),
        ("reduce range(40) as $_ (\"x\"; . + .) | length".to_string(), "more than 512 MiB of memory"),
        ("reduce range(1e7) as $_ (null; [.])".to_string(), "more than 512 MiB of memory"),
        (format!("{}1", "[".repeat(1_000_000)), "overflowed its stack"),
        ("\"x\" * 5000000".to_string(), "more than 4 MiB"),
        ("repeat(1)".to_string(), "too many outputs"),
    ] {
        let run = server.wait(&submit(&server, &program));
        let shown: String = program.chars().take(40).collect();
        assert_eq!((&run["state"], &run["attempt"]), (&json!("failed"), &json!(1)), "{shown}: {run}");
        assert!(message(&run).contains(said), "{shown}: {}", message(&run));
        assert_unharmed(&server);
    }
    assert_eq!((server.pid(), server.replica_id()), (pid, replica), "the same life all the while");
    server.assert_sound();
}

#[test]
fn a_program_that_computes_for_ever_uses_up_its_processor_time() {
    let server = start();
    // Its children inherit a limit below their own, so that this takes seconds; itself it needs less.
    let pid = Pid::from_raw(server.pid().cast_signed()).unwrap();
    prlimit(Some(pid), Resource::Cpu, Rlimit { current: Some(4), maximum: Some(4) }).unwrap();
    let run = server.wait(&submit(&server, ENDLESS));
    assert_eq!((&run["state"], &run["attempt"]), (&json!("failed"), &json!(1)), "{run}");
    assert!(message(&run).contains("processor time"), "{run}");
    assert_unharmed(&server);
}

#[test]
fn a_run_past_its_deadline_leaves_no_process() {
    let server = start();
    let policy = json!({ "deadline": "1s", "max_attempts": 1 });
    let run = server.submit("jq", json!({ "program": ENDLESS }), policy);
    until_evaluating(&server);
    assert_eq!(server.wait(&run)["state"], "failed");
    let attempts = server.get(&format!("/api/v1/runs/{run}/attempts"));
    assert_eq!(attempts["items"][0]["outcome"], "timed_out", "{attempts}");
    assert_unharmed(&server);
}

#[test]
fn a_cancelled_run_leaves_no_process() {
    let server = start();
    let run = submit(&server, ENDLESS);
    until_evaluating(&server);
    let (status, answer) = server.post(&format!("/api/v1/runs/{run}/cancel"), &json!({}));
    assert!((200..300).contains(&status), "{status} {answer}");
    assert_eq!(server.wait(&run)["state"], "cancelled");
    assert_unharmed(&server);
}

#[test]
fn a_killed_server_takes_its_evaluations_along() {
    let mut server = start();
    submit(&server, ENDLESS);
    let child = until_evaluating(&server);
    server.kill9();
    // Whoever inherits it may be slow to bury it.
    until(SOON, "the end of the orphan", || stat(child).is_none_or(|(state, _)| state == 'Z').then_some(()));
}
