//! What a person at a terminal sees: the id of what is waited for, how far it is, what goes on without them.

mod common;
mod job;
#[path = "common/terminal.rs"]
mod terminal;

use common::{Options, Server, code, json, quick, stderr, stdout, until};
use job::{Host, Jobs, SOON, signal};
use serde_json::{Value, json};
use std::process::Stdio;
use terminal::{COLUMNS, OnTerminal, plain};

#[test]
fn submit_and_wait_leaves_only_the_result_on_stdout() {
    let server = Server::start(quick());
    let output = server.cli(&["submit", "echo", "--input", "{\"a\": [1.0, 12345678901234567890123]}", "--wait"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let result: Value = serde_json::from_str(&stdout(&output)).expect("the result alone");
    assert_eq!(result["a"][0], 1.0);
    assert!(stdout(&output).contains("12345678901234567890123"), "numbers stay as they are");
    let said = stderr(&output);
    assert!(said.contains("waiting for run ") && said.contains("succeeded"), "{said}");
    let failed = server.cli(&["submit", "fail", "--input", "{\"message\":\"no\"}", "--wait"]);
    assert_eq!((code(&failed), stdout(&failed).as_str()), (1, ""));
    assert!(stderr(&failed).contains("no\n"), "{}", stderr(&failed));
    let quiet = server.cli(&["-q", "submit", "echo", "--input", "5", "--wait"]);
    assert_eq!((stdout(&quiet).as_str(), stderr(&quiet).as_str()), ("5\n", ""));
    let data = server.cli(&["submit", "echo", "--input", "5", "--wait", "-o", "json"]);
    assert_eq!((&json(&data)["state"], &json(&data)["result"]), (&json!("succeeded"), &json!(5)));
}

#[test]
fn whoever_interrupts_a_wait_is_told_how_to_come_back() {
    let host = Host::new();
    let server = host.start();
    let job = server.shell("sleep 60");
    let waits: [&[&str]; 4] = [
        &["wait", &job],
        &["logs", "-f", &job],
        &["submit", "sleep", "--input", "{\"ms\": 60000}", "--wait"],
        &["run", "--", "sleep", "60"],
    ];
    for args in waits {
        let mut command = server.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let waiting = OnTerminal::start(command);
        let expected = if args[0] == "logs" { "logs" } else { "everbeat: " };
        if args[0] == "logs" {
            // It says nothing before: it listens once the output is open, which the spinner shows.
            until(SOON, expected, || waiting.seen().contains("running").then_some(()));
        } else {
            until(SOON, expected, || waiting.seen().contains(expected).then_some(()));
        }
        signal(waiting.child.id(), "INT");
        let (status, seen) = waiting.end();
        assert_eq!(status.code(), Some(130), "{args:?}: {seen}");
        assert!(seen.contains("goes on") && seen.contains("`everbeat "), "{args:?}: {seen}");
        assert!(seen.contains("cancel "), "{args:?}: {seen}");
    }
    assert_eq!(server.look(&job)["state"], "running", "nothing was stopped");
}

#[test]
fn the_way_back_speaks_to_the_same_server() {
    let server = Server::start(quick());
    let run = server.submit("sleep", json!({"ms": 60000}), json!({}));
    let mut command = common::client();
    command.args(["--url", &server.url, "wait", &run]).stdin(Stdio::null());
    let waiting = OnTerminal::start(command);
    until(SOON, "the id", || waiting.seen().contains(&run).then_some(()));
    signal(waiting.child.id(), "INT");
    let (_, seen) = waiting.end();
    assert!(seen.contains(&format!("`everbeat --url {} wait {run}`", server.url)), "{seen}");
}

#[test]
fn who_waits_sees_how_far_the_work_is_and_a_pipe_does_not() {
    let host = Host::new();
    let server = host.start();
    let script = format!("{} beat --done 3 --total 10 --note 'chapter 3'; sleep 60", common::BINARY);
    let job = server.shell(&script);
    server.runs(&job);
    let waiting = OnTerminal::start(server.command(&["wait", &job]));
    until(SOON, "the bar", || waiting.seen().contains("3/10 chapter 3").then_some(()));
    assert!(waiting.seen().contains('█') && waiting.seen().contains(&job[28..]), "{}", waiting.seen());
    server.cli(&["cancel", &job]);
    let (status, seen) = waiting.end();
    assert_eq!(status.code(), Some(5), "{seen}");
    assert!(plain(seen.rsplit('\r').next().unwrap_or_default()).lines().count() <= 3, "the line is gone: {seen}");
    let piped = server.cli(&["wait", &job]);
    assert!(!stderr(&piped).contains('\r'), "{}", stderr(&piped));
}

#[test]
fn logs_end_with_the_jobs_own_code_if_asked_to() {
    let host = Host::new();
    let server = host.start();
    let job = server.shell("echo one; exit 7");
    let followed = server.cli(&["logs", "-f", "--exit-code", &job]);
    assert_eq!((code(&followed), stdout(&followed).as_str()), (7, "one\n"), "{}", stderr(&followed));
    assert_eq!(code(&server.cli(&["logs", "-f", &job])), 0);
    assert_eq!(code(&server.cli(&["logs", "--exit-code", &job])), 2, "it must follow for that");
}

#[test]
fn lists_fit_eighty_columns_and_are_whole_in_a_pipe() {
    // Nothing here is about time: on a busy machine no call and no start may be late.
    let host = Host::with(Options::default());
    let server = host.start();
    let empty = server.cli(&["ls", "jobs"]);
    assert_eq!((code(&empty), stdout(&empty).as_str()), (0, ""), "{}", stderr(&empty));
    assert!(stderr(&empty).contains("none") && stderr(&empty).contains("everbeat run"), "{}", stderr(&empty));
    let name = "a-name-that-is-much-too-long-for-a-table-of-eighty-columns-and-goes-on";
    let job = server.job_with(json!({ "command": ["true"], "name": name }));
    let ended = server.ended(&job);
    assert_eq!(ended["state"], "succeeded", "{ended}");
    for what in ["runs", "jobs", "replicas", "queues", "tasks"] {
        for line in plain(&listed(&server, &["ls", what])).lines() {
            assert!(line.chars().count() <= usize::from(COLUMNS), "{what}: {line:?}");
        }
    }
    let seen = listed(&server, &["ls", "jobs"]);
    assert!(seen.contains(&job[28..]) && !seen.contains(&job), "ids are folded: {seen}");
    assert!(seen.contains("✓ succeeded") && seen.contains('\x1b'), "{seen}");
    let wide = listed(&server, &["ls", "jobs", "--wide"]);
    assert!(wide.contains(&job) && wide.contains(name), "{wide}");
    let piped = stdout(&server.cli(&["ls", "jobs"]));
    assert!(piped.contains(&job) && piped.contains(name) && !piped.contains('\x1b'), "{piped}");
}

/// What a person sees of a list. An error that is shown instead is not one.
fn listed(server: &Server, args: &[&str]) -> String {
    let (status, seen) = OnTerminal::start(server.command(args)).end();
    assert!(status.success(), "{args:?} ended with {status}: {seen}");
    seen
}

#[test]
fn a_state_is_never_cut_however_long_names_and_notes_are() {
    let host = Host::with(Options::default());
    let server = host.start();
    let beat = format!("{} beat --done 531 --total 1000 --note 'all chapters of a long book'", common::BINARY);
    let script = format!("{beat}; until [ -e go ]; do sleep 0.05; done; kill -KILL $$");
    let name = "a-name-that-is-much-too-long-for-a-table-of-eighty-columns-and-goes-on";
    let command = |script: &str| json!({ "command": ["sh", "-c", script], "name": name });
    let killed = server.job_with(command(&script));
    until(SOON, "its progress", || (server.look(&killed)["progress"]["done"] == 531).then_some(()));
    std::fs::write(host.workspace(&killed).join("go"), "").expect("it may end");
    let ended = server.ended(&killed);
    assert_eq!(ended["exit_signal"], 9, "{ended}");
    assert_eq!(server.ended(&server.job_with(command("true")))["state"], "succeeded");
    let seen = plain(&listed(&server, &["ls", "jobs"]));
    assert!(
        seen.contains("  ✓ succeeded  ") && seen.contains("  ! failed ") && seen.contains("  signal 9  "),
        "{seen}"
    );
    assert!(seen.lines().all(|line| line.chars().count() <= usize::from(COLUMNS)), "{seen}");
}

#[test]
fn plain_terminals_get_plain_signs() {
    let server = Server::start(quick());
    let run = server.submit("noop", json!(null), json!({}));
    server.wait(&run);
    for (name, value) in [("TERM", "dumb"), ("LC_ALL", "C")] {
        let mut command = server.command(&["ls", "runs"]);
        command.env(name, value);
        let (_, seen) = OnTerminal::start(command).end();
        assert!(seen.contains("+ succeeded") && seen.is_ascii(), "{name}={value}: {seen}");
    }
    let (_, never) = OnTerminal::start(server.command(&["--color", "never", "ls", "runs"])).end();
    assert!(never.contains("✓ succeeded") && !never.contains('\x1b'), "{never}");
    let always = stdout(&server.cli(&["--color", "always", "ls", "runs"]));
    assert!(always.contains('\x1b'), "{always}");
}
