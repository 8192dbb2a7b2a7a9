//! What a person types in place of an id.

mod common;
mod job;

use common::{Server, code, json, quick, stderr, stdout, until};
use job::{Host, Jobs, SOON};
use serde_json::json;

#[test]
fn names_and_parts_of_ids_are_understood_by_every_verb() {
    let host = Host::new();
    let server = host.start();
    let job = server.job_with(json!({ "command": ["sh", "-c", "echo one; sleep 60"], "name": "nightly" }));
    server.runs(&job);
    let (first, last) = (&job[..30], &job[24..]);
    for said in ["nightly", first, last, &job[28..]] {
        let shown = json(&server.cli(&["show", said, "-o", "json"]));
        assert_eq!(shown["id"], job.as_str(), "{said}");
        assert_eq!(code(&server.cli(&["explain", said])), 0, "{said}");
        assert_eq!(stdout(&server.cli(&["logs", said])), "one\n", "{said}");
        assert_eq!(json(&server.cli(&["recovery", "health", said, "-o", "json"]))["jobId"], job.as_str(), "{said}");
    }
    let replica = server.replica_id();
    assert_eq!(json(&server.cli(&["show", &replica[28..], "-o", "json"]))["id"], replica.as_str());
    assert_eq!(code(&server.cli(&["cancel", "nightly"])), 0);
    assert_eq!(code(&server.cli(&["wait", "nightly"])), 5);
    let unknown = server.cli(&["show", "weekly"]);
    assert_eq!(code(&unknown), 3, "{}", stderr(&unknown));
    assert!(stderr(&unknown).contains("weekly") && stderr(&unknown).contains("everbeat ls"), "{}", stderr(&unknown));
}

#[test]
fn what_fits_several_things_is_listed_and_nothing_is_done() {
    let host = Host::new();
    let server = host.start();
    let named = || server.job_with(json!({ "command": ["sleep", "60"], "name": "twin" }));
    let (one, two) = (named(), named());
    let cancel = server.cli(&["cancel", "twin"]);
    assert_eq!(code(&cancel), 2, "{}", stderr(&cancel));
    for part in [&one, &two, "job", "twin"] {
        assert!(stderr(&cancel).contains(part), "{part} is not in:\n{}", stderr(&cancel));
    }
    let shared = &one[..4];
    assert_eq!(code(&server.cli(&["show", shared])), 2, "a replica and two jobs begin with {shared}");
    for job in [&one, &two] {
        assert!(["ready", "running"].contains(&server.look(job)["state"].as_str().expect("a state")));
    }
    assert_eq!(code(&server.cli(&["cancel", &one])), 0);
    server.ended(&one);
    let shown = json(&server.cli(&["show", "twin", "-o", "json"]));
    assert_eq!(shown["id"], two.as_str(), "the only unfinished one of that name");
}

#[test]
fn several_are_cancelled_and_tried_again_by_id() {
    let server = Server::start(quick());
    let later = || server.submit("sleep", json!({"ms": 60000}), json!({}));
    let (one, two) = (later(), later());
    let gone = "00000000-0000-7000-8000-000000000000";
    let cancelled = server.cli(&["cancel", &one, gone, &two]);
    assert_eq!(code(&cancelled), 3, "one of them was refused");
    assert!(stderr(&cancelled).contains(gone) && stderr(&cancelled).contains("2 of 3"), "{}", stderr(&cancelled));
    for run in [&one, &two] {
        assert_eq!(server.wait(run)["state"], "cancelled");
    }
    let again = json(&server.cli(&["retry", &one[28..], &two[28..], "-o", "json"]));
    assert_eq!(again["results"].as_array().map(Vec::len), Some(2), "{again}");
    assert_eq!(again["results"][0]["ok"], true, "{again}");
}

#[test]
fn a_filter_alone_counts_and_with_all_it_acts() {
    let server = Server::start(quick());
    assert_eq!(code(&server.cli(&["queue", "pause", "mail"])), 0);
    for _ in 0..3 {
        assert_eq!(code(&server.cli(&["submit", "noop", "--queue", "mail"])), 0);
    }
    let other = server.submit("sleep", json!({"ms": 60000}), json!({}));
    let dry = server.cli(&["cancel", "--queue", "mail"]);
    assert_eq!((code(&dry), stdout(&dry).as_str()), (0, ""));
    assert!(stderr(&dry).contains("3 jobs and runs would be hit"), "{}", stderr(&dry));
    assert!(stderr(&dry).contains("`everbeat cancel --queue mail --all`"), "{}", stderr(&dry));
    let ready = || server.get("/api/v1/runs?queue=mail&state=ready")["items"].as_array().map(Vec::len);
    assert_eq!(ready(), Some(3), "nothing was done");
    let done = server.cli(&["cancel", "--queue", "mail", "--all"]);
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert_eq!(ready(), Some(0));
    until(SOON, "the other one goes on", || {
        (server.get(&format!("/api/v1/runs/{other}"))["state"] == "running").then_some(())
    });
    let retried = server.cli(&["retry", "--state", "cancelled", "--queue", "mail", "--all"]);
    assert_eq!(code(&retried), 0, "{}", stderr(&retried));
    assert_eq!(ready(), Some(3));
    for wrong in [&["cancel"][..], &["cancel", "--all"], &["cancel", &other, "--queue", "mail"], &["retry"]] {
        assert_eq!(code(&server.cli(wrong)), 2, "{wrong:?}");
    }
}
