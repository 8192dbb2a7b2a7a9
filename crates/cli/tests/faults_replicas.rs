//! Two real servers on a real PostgreSQL: one is killed, frozen, or told to leave.

mod common;
mod postgres;

use common::{FINISH, Options, Server, TIMEOUT, pause, quick, until};
use postgres::Postgres;
use serde_json::json;

#[test]
fn a_killed_replicas_run_goes_on_at_the_other_and_the_verdict_names_it() {
    let postgres = Postgres::start();
    let mut first = Server::start(quick().store(postgres.url()));
    let run = first.submit("sleep", json!({ "ms": 1500 }), json!({}));
    first.until_state(&run, "running");
    let second = Server::start(quick().store(postgres.url()));
    let (dead, judge) = (first.replica_id(), second.replica_id());
    second.until_observed(&dead);

    first.kill9();
    let moved = until(FINISH, "the run is at the other replica", || {
        let found = second.get(&format!("/api/v1/runs/{run}"));
        (found["state"] == "running" && found["replica_id"] == judge.as_str()).then_some(found)
    });
    assert_eq!(moved["attempt"], 2);

    let attempts = second.get(&format!("/api/v1/runs/{run}/attempts"));
    assert_eq!(attempts["items"][0]["outcome"], "lost");
    let verdict = second.get(&format!("/api/v1/verdicts/{}", attempts["items"][0]["verdict_id"].as_str().unwrap()));
    assert_eq!(verdict["judgement"], "lost");
    assert_eq!(verdict["reason"], "replica_silent");
    assert_eq!(verdict["judged_by"], judge.as_str());
    assert_eq!(verdict["evidence"]["replica_id"], dead.as_str());
    assert!(verdict["evidence"]["last_heartbeat_at"].is_string(), "{verdict}");
    assert!(verdict["then"].as_str().unwrap().contains("attempt 2"), "{verdict}");

    assert_eq!(second.wait(&run)["state"], "succeeded");
    let explained = second.cli(&["explain", &run]);
    let text = String::from_utf8_lossy(&explained.stdout).to_string();
    assert!(text.contains(&dead) && text.contains("lost"), "{text}");
    second.assert_sound();
}

#[test]
fn a_frozen_replica_is_fenced_when_it_wakes_and_joins_again_as_another() {
    let postgres = Postgres::start();
    let first = Server::start(quick().store(postgres.url()));
    let frozen = first.replica_id();
    let run = first.submit("sleep", json!({ "ms": 2500 }), json!({}));
    first.until_state(&run, "running");
    let second = Server::start(quick().store(postgres.url()));
    second.until_observed(&frozen);

    first.signal("STOP");
    let moved = until(FINISH, "the run has moved", || {
        let found = second.get(&format!("/api/v1/runs/{run}"));
        (found["attempt"] == 2 && found["state"] == "running").then_some(found)
    });
    assert_eq!(moved["replica_id"], second.replica_id().as_str());
    // Frozen for three timeouts at least, and past the end of its own sleep.
    pause(TIMEOUT * 2);
    first.signal("CONT");

    let reborn = until(FINISH, "it has joined again", || {
        let id = first.try_replica_id()?;
        (id != frozen).then_some(id)
    });
    let replicas = second.get("/api/v1/replicas");
    let state = |id: &str| {
        replicas["items"].as_array().unwrap().iter().find(|replica| replica["id"] == id).unwrap()["state"].clone()
    };
    assert_eq!(state(&frozen), "dead");
    assert_eq!(state(&reborn), "active");

    let finished = second.wait(&run);
    assert_eq!((&finished["state"], &finished["attempt"]), (&json!("succeeded"), &json!(2)));
    let fenced = until(FINISH, "the late result is recorded as fenced", || {
        let verdicts = second.get(&format!("/api/v1/verdicts?run_id={run}"));
        verdicts["items"].as_array().unwrap().iter().find(|verdict| verdict["judgement"] == "fenced").cloned()
    });
    assert_eq!(fenced["attempt"], 1);
    assert_eq!(fenced["evidence"]["replica_id"], frozen.as_str());
    let attempts = second.get(&format!("/api/v1/runs/{run}/attempts"));
    let outcomes: Vec<_> =
        attempts["items"].as_array().unwrap().iter().map(|attempt| attempt["outcome"].clone()).collect();
    assert_eq!(outcomes, [json!("lost"), json!("succeeded")]);
    second.assert_sound();
}

#[test]
fn a_terminated_replica_finishes_what_it_can_and_hands_on_the_rest_at_no_cost() {
    let postgres = Postgres::start();
    let mut first = Server::start(quick().store(postgres.url()).env("EVERBEAT_REPLICA__DRAIN_GRACE", "2s"));
    let leaving = first.replica_id();
    let once = json!({ "max_attempts": 1 });
    let short = first.submit("sleep", json!({ "ms": 1000 }), once.clone());
    let long = first.submit("sleep", json!({ "ms": 4000 }), once.clone());
    first.until_state(&short, "running");
    first.until_state(&long, "running");
    let second = Server::start(quick().store(postgres.url()));

    first.signal("TERM");
    until(FINISH, "the draining replica is not ready", || (first.status("/readyz") == 503).then_some(()));
    let later = second.submit("echo", json!("elsewhere"), once);
    assert_eq!(second.wait(&later)["replica_id"], second.replica_id().as_str(), "a draining replica claims nothing");

    assert_eq!(first.exit_code(FINISH), Some(0));
    let finished = second.wait(&short);
    assert_eq!(
        (&finished["state"], &finished["attempt"], &finished["replica_id"]),
        (&json!("succeeded"), &json!(1), &json!(leaving))
    );
    let moved = until(FINISH, "the rest has started elsewhere", || {
        let found = second.get(&format!("/api/v1/runs/{long}"));
        (found["state"] == "running").then_some(found)
    });
    assert_eq!((&moved["attempt"], &moved["replica_id"]), (&json!(2), &json!(second.replica_id())));
    assert_eq!(second.wait(&long)["state"], "succeeded", "a release costs no attempt");
    let attempts = second.get(&format!("/api/v1/runs/{long}/attempts"));
    assert_eq!(attempts["items"][0]["outcome"], "released");
    let replicas = second.get("/api/v1/replicas?state=left");
    assert_eq!(replicas["items"][0]["id"], leaving.as_str());
    second.assert_sound();
}

#[test]
fn a_replica_drained_by_another_is_told_before_its_next_beat_and_its_process_ends() {
    let postgres = Postgres::start();
    // It beats less often than this test waits.
    let slow =
        quick().env("EVERBEAT_REPLICA__HEARTBEAT_INTERVAL", "10m").env("EVERBEAT_REPLICA__HEARTBEAT_TIMEOUT", "1h");
    let mut first = Server::start(slow.store(postgres.url()));
    let second = Server::start(quick().store(postgres.url()));
    let drained = second.cli(&["replica", "drain", &first.replica_id()]);
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!(first.exit_code(FINISH), Some(0));
    second.assert_sound();
}

#[test]
fn a_restarted_server_takes_its_runs_back_by_its_kernel_lock_not_by_waiting() {
    let postgres = Postgres::start();
    // The usual timeout of a minute: waiting for it would take far longer than the bound below.
    let options = Options::default().store(postgres.url());
    let mut first = Server::start(options.clone());
    let dead = first.replica_id();
    let run = first.submit("sleep", json!({ "ms": 2000 }), json!({}));
    first.until_state(&run, "running");
    first.kill9();

    let second = Server::start(options);
    let moved = until(FINISH, "the run is back", || {
        let found = second.get(&format!("/api/v1/runs/{run}"));
        (found["attempt"] == 2 && found["state"] == "running").then_some(found)
    });
    assert_eq!(moved["replica_id"], second.replica_id().as_str());
    let verdicts = second.get(&format!("/api/v1/verdicts?subject={dead}"));
    assert_eq!(verdicts["items"][0]["reason"], "lock_released", "{verdicts}");
    assert_eq!(second.wait(&run)["state"], "succeeded");
    second.assert_sound();
}
