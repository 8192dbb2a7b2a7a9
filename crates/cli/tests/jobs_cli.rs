//! The verbs of jobs, as a person at a terminal uses them.

mod common;
mod job;

use common::{Options, code, json, pause, stderr, stdout, until};
use job::{Host, Jobs, SOON, signal};
use serde_json::json;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn run_follows_its_job_and_ends_as_it_does() {
    let host = Host::new();
    let server = host.start();
    let seven = server.cli(&["run", "--", "sh", "-c", "echo hi; echo oh >&2; exit 7"]);
    assert_eq!((code(&seven), stdout(&seven).as_str()), (7, "hi\n"), "{}", stderr(&seven));
    assert!(stderr(&seven).contains("oh\n"), "{}", stderr(&seven));
    assert_eq!(code(&server.cli(&["run", "--", "true"])), 0);
    assert_eq!(code(&server.cli(&["run", "--", "sh", "-c", "kill -SEGV $$"])), 128 + 11);
    let missing = server.cli(&["run", "--", "no-such-program"]);
    assert_eq!(code(&missing), 127, "{}", stderr(&missing));
    assert!(stderr(&missing).contains("no-such-program"), "{}", stderr(&missing));
    let forbidden = server.cli(&["run", "--", "/etc/passwd"]);
    assert_eq!(code(&forbidden), 126, "{}", stderr(&forbidden));
    let folder = server.cli(&["run", "--cwd", "/no/such/folder", "--", "true"]);
    assert_eq!(code(&folder), 125, "{}", stderr(&folder));
    assert!(stderr(&folder).contains("/no/such/folder"), "{}", stderr(&folder));
    let codes = |body: serde_json::Value| server.ended(&server.job_with(body))["exit_code"].clone();
    assert_eq!(codes(json!({ "command": ["no-such-program"] })), 127, "the API says the same");
    assert_eq!(codes(json!({ "command": ["/etc/passwd"] })), 126);
    assert_eq!(codes(json!({ "command": ["true"], "cwd": "/no/such/folder" })), 125);
    let literal = server.cli(&["run", "--", "printf", "%s|", "; rm -rf x", "$(id)", "a\nb", "-n", "*"]);
    assert_eq!(stdout(&literal), "; rm -rf x|$(id)|a\nb|-n|*|", "{}", stderr(&literal));
    let nothing = server.cli(&["run"]);
    assert_eq!(code(&nothing), 2, "{}", stderr(&nothing));
    let late = server.cli(&["run", "--deadline", "300ms", "--", "sleep", "30"]);
    assert_ne!(code(&late), 0);
    assert!(stderr(&late).contains("deadline"), "{}", stderr(&late));
}

#[test]
fn run_works_where_its_caller_stands() {
    let host = Host::new();
    let server = host.start();
    let here = server.cli(&["run", "--", "pwd"]);
    let folder = std::fs::canonicalize(server.folder()).unwrap();
    assert_eq!(stdout(&here).trim(), folder.display().to_string());
    let given =
        server.command(&["run", "-e", "A=1", "-e", "B", "--", "sh", "-c", "echo $A$B"]).env("B", "2").output().unwrap();
    assert_eq!(stdout(&given), "12\n");
    let unreachable = common::client()
        .env("EVERBEAT_URL", "http://127.0.0.1:1")
        .args(["run", "--patience", "0s", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(code(&unreachable), 125, "{}", stderr(&unreachable));
}

#[test]
fn a_detached_job_is_shown_followed_awaited_and_cancelled() {
    let host = Host::new();
    let server = host.start();
    let begun =
        server.cli(&["run", "-d", "--name", "counter", "--", "sh", "-c", "echo one; sleep 1; echo two; exit 3"]);
    assert_eq!(code(&begun), 0, "{}", stderr(&begun));
    let id = stdout(&begun).trim().to_string();
    assert_eq!(id.len(), 36, "only the id: {id:?}");
    server.runs(&id);
    let followed = server.cli(&["logs", "-f", &id]);
    assert_eq!(stdout(&followed), "one\ntwo\n", "{}", stderr(&followed));
    assert_eq!(code(&server.cli(&["wait", &id])), 1, "the work failed");
    let shown = json(&server.cli(&["show", &id, "-o", "json"]));
    assert_eq!(
        (&shown["name"], &shown["exit_code"], &shown["state"]),
        (&json!("counter"), &json!(3), &json!("failed"))
    );
    assert!(stdout(&server.cli(&["show", &id])).contains("counter"));
    assert_eq!(stdout(&server.cli(&["logs", &id, "--tail", "1"])), "two\n");
    assert!(stdout(&server.cli(&["ls", "jobs"])).contains("counter"));

    let long = stdout(&server.cli(&["run", "-d", "--", "sleep", "60"])).trim().to_string();
    server.runs(&long);
    let cancelled = server.cli(&["cancel", &long]);
    assert_eq!(code(&cancelled), 0, "{}", stderr(&cancelled));
    assert_eq!(code(&server.cli(&["wait", &long])), 5);

    let again = server.cli(&["retry", &id]);
    assert_eq!(code(&again), 0, "{}", stderr(&again));
    until(SOON, "the second attempt", || (server.ended(&id)["attempt"] == 2).then_some(()));
    assert_eq!(stdout(&server.cli(&["logs", &id])), "one\ntwo\none\ntwo\n");
}

#[test]
fn a_job_whose_start_is_under_way_is_shown_as_starting() {
    let host = Host::with(Options::default().env("EVERBEAT_SHIM_FREEZE_AT", "before-exec"));
    let server = host.start();
    let job = server.shell("true");
    let shim = until(SOON, "it is about to begin", || host.frozen_shim(&job));
    let shown = stdout(&server.cli(&["show", &job]));
    assert!(shown.contains("running, starting") && !shown.contains("beat trouble"), "{shown}");
    let listed = stdout(&server.cli(&["ls", "jobs"]));
    assert!(listed.contains("starting") && !listed.contains("unknown"), "{listed}");
    let explained = stdout(&server.cli(&["explain", &job]));
    assert!(explained.contains("is starting on"), "{explained}");
    signal(shim, "CONT");
    let ended = server.ended(&job);
    assert_eq!((&ended["state"], &ended["starting"]), (&json!("succeeded"), &json!(false)), "{ended}");
}

#[test]
fn who_waits_for_a_job_is_told_of_a_job() {
    let host = Host::new();
    let server = host.start();
    let job = server.job_with(json!({ "command": ["sleep", "60"], "name": "long" }));
    for given in [job.as_str(), &job[28..], "long"] {
        let over = server.cli(&["wait", given, "--timeout", "200ms"]);
        assert_eq!(code(&over), 124, "{}", stderr(&over));
        let said = stderr(&over);
        assert!(said.contains(&format!("waiting for job {job}\n")), "{given}: {said}");
        assert!(said.contains(&format!("job {job} is not finished after 200ms")), "{given}: {said}");
        assert!(!said.contains("run "), "{given}: {said}");
    }
    let run = server.submit("sleep", json!({"ms": 60000}), json!({}));
    let over = stderr(&server.cli(&["wait", &run, "--timeout", "200ms"]));
    assert!(over.contains(&format!("waiting for run {run}\n")) && !over.contains("job"), "{over}");
    // Nobody can say yet what it is.
    let away =
        common::client().args(["--url", "http://127.0.0.1:1", "wait", &job, "--timeout", "200ms"]).output().unwrap();
    assert!(stderr(&away).contains(&format!("waiting for {job}\n")), "{}", stderr(&away));
}

#[test]
fn a_cancel_sent_while_the_server_is_down_is_carried_out_after_it() {
    let host = Host::new();
    let mut server = host.start();
    let job = server.shell("sleep 60");
    server.runs(&job);
    let address = server.address();
    server.kill9();
    let cancel = server.command(&["cancel", &job]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    pause(Duration::from_millis(500));
    let server = host.start_at(&address);
    let said = cancel.wait_with_output().unwrap();
    assert_eq!(code(&said), 0, "{}", stderr(&said));
    assert_eq!(server.ended(&job)["state"], "cancelled");
    assert!(host.processes(&job).is_empty());
}

#[test]
fn recovery_speaks_to_people_and_to_programs() {
    let host = Host::new();
    let server = host.start();
    let failed = server.shell("exit 7");
    server.ended(&failed);
    let running = server.shell("sleep 60");
    server.runs(&running);
    for verb in ["status", "sentinels", "heartbeats", "metrics", "stale", "failed", "startup-log"] {
        let table = server.cli(&["recovery", verb]);
        assert_eq!(code(&table), 0, "{verb}: {}", stderr(&table));
        let data = json(&server.cli(&["recovery", verb, "-o", "json"]));
        assert!(data.is_object(), "{verb}: {data}");
    }
    let health = json(&server.cli(&["recovery", "health", &running, "-o", "json"]));
    assert_eq!(health["heartbeatStatus"], "fresh");
    let resumed = json(&server.cli(&["recovery", "resume", &failed, "-o", "json"]));
    assert_eq!(resumed["results"][0]["outcome"], "resumed", "{resumed}");
    until(SOON, "the second attempt", || (server.ended(&failed)["attempt"] == 2).then_some(()));
    let dry = server.cli(&["recovery", "clean", "--dry-run", "--older-than", "0s"]);
    assert_eq!(code(&dry), 0, "{}", stderr(&dry));
    assert!(host.folder(&failed).exists());
}

#[test]
fn resume_without_ids_lists_what_failed_and_opens_nothing() {
    let host = Host::new();
    let server = host.start();
    let nothing = server.cli(&["recovery", "resume"]);
    assert_eq!(code(&nothing), 0, "{}", stderr(&nothing));
    assert!(stderr(&nothing).contains("nothing to resume"), "{}", stderr(&nothing));
    let failed = server.shell("exit 7");
    let missing = server.job(&["no-such-program"]);
    server.ended(&failed);
    server.ended(&missing);
    let dry = server.cli(&["recovery", "resume"]);
    assert_eq!(code(&dry), 0, "{}", stderr(&dry));
    assert!(stdout(&dry).contains(&failed) && stdout(&dry).contains("no-such-program"), "{}", stdout(&dry));
    assert!(stdout(&dry).contains("RESUMABLE"), "{}", stdout(&dry));
    assert!(stderr(&dry).contains("2 failed") && stderr(&dry).contains("resume --all"), "{}", stderr(&dry));
    let listed = json(&server.cli(&["recovery", "resume", "-o", "json"]));
    assert_eq!(listed["failedJobs"].as_array().map(Vec::len), Some(2), "{listed}");
    assert_eq!(server.look(&failed)["attempt"], 1, "nothing was opened");
    assert_eq!(code(&server.cli(&["recovery", "resume", "--all", &failed])), 2, "one or the other");
    let all = json(&server.cli(&["recovery", "resume", "--all", "-o", "json"]));
    assert_eq!(all["results"].as_array().map(Vec::len), Some(2), "{all}");
    until(SOON, "the second attempt", || (server.ended(&failed)["attempt"] == 2).then_some(()));
}

#[test]
fn stdin_is_handed_over_with_i_and_its_loss_is_told_without() {
    let host = Host::new();
    let server = host.start();
    let piped = |args: &[&str], input: &str| {
        let file = server.folder().join("input.txt");
        std::fs::write(&file, input).unwrap();
        server.command(args).stdin(std::fs::File::open(&file).unwrap()).output().unwrap()
    };
    let passed = piped(&["run", "-i", "--", "cat"], "one\ntwo \"three\"");
    assert_eq!((code(&passed), stdout(&passed).as_str()), (0, "one\ntwo \"three\""), "{}", stderr(&passed));
    let dropped = piped(&["run", "--", "cat"], "one");
    assert_eq!((code(&dropped), stdout(&dropped).as_str()), (0, ""));
    assert!(stderr(&dropped).contains("with -i"), "{}", stderr(&dropped));
    let nothing = server.cli(&["run", "--", "cat"]);
    assert!(!stderr(&nothing).contains("with -i"), "{}", stderr(&nothing));
    let job = server.job_with(json!({ "command": ["cat"], "stdin": "a secret" }));
    assert_eq!(server.ended(&job)["state"], "succeeded");
    assert_eq!(server.output(&job), "a secret");
    assert!(!server.look(&job).to_string().contains("a secret"), "it is not shown again");
    assert!(!server.get("/api/v1/runs").to_string().contains("a secret"));
}
