//! Wall clocks an hour off, of a server and of the database, change no verdict.

mod common;
mod job;
mod postgres;

use common::{FINISH, Server, TIMEOUT, pause, quick, until};
use job::{Host, Jobs};
use postgres::{Postgres, libfaketime};
use serde_json::json;
use std::time::Duration;

const HOUR_MS: i64 = 3_600_000;

#[test]
fn servers_an_hour_ahead_and_behind_judge_nobody_and_are_not_judged() {
    let postgres = Postgres::start();
    let folder = common::scratch();
    let faked = |name: &str, shift: &str| {
        let clock = folder.path().join(name);
        std::fs::write(&clock, shift).unwrap();
        let server = Server::start(
            quick()
                .store(postgres.url())
                .env("LD_PRELOAD", libfaketime().display())
                .env("FAKETIME_TIMESTAMP_FILE", clock.display())
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        );
        (server, clock)
    };
    let honest = Server::start(quick().store(postgres.url()));
    let (ahead, ahead_clock) = faked("ahead", "+3600");
    let (behind, behind_clock) = faked("behind", "-3600");

    let replicas = honest.get("/api/v1/replicas");
    let skew = |server: &Server| {
        let id = server.replica_id();
        replicas["items"].as_array().unwrap().iter().find(|replica| replica["id"] == id.as_str()).unwrap()["clock_skew_ms"].as_i64().unwrap()
    };
    assert!((skew(&honest)).abs() < 60_000, "{replicas}");
    assert!((skew(&ahead) - HOUR_MS).abs() < 60_000, "the process saw the faked time: {replicas}");
    assert!((skew(&behind) + HOUR_MS).abs() < 60_000, "the process saw the faked time: {replicas}");

    let runs: Vec<String> = (0..12).map(|_| honest.submit("sleep", json!({ "ms": 8000 }), json!({}))).collect();
    runs.iter().for_each(|run| honest.until_state(run, "running"));
    // Both jump to the other side while they work.
    std::fs::write(ahead_clock, "-3600").unwrap();
    std::fs::write(behind_clock, "+3600").unwrap();
    for run in &runs {
        assert_eq!(honest.wait(run)["attempt"], 1);
    }
    assert_eq!(honest.get("/api/v1/verdicts")["items"], json!([]));
    assert_eq!(honest.get("/api/v1/replicas?state=active")["items"].as_array().unwrap().len(), 3);
    honest.assert_sound();
}

#[test]
fn a_database_clock_that_jumps_an_hour_changes_no_verdict() {
    let postgres = Postgres::start_with_clock();
    let servers: Vec<Server> = (0..2).map(|_| Server::start(quick().store(postgres.url()))).collect();
    let epoch = || postgres.query("select extract(epoch from clock_timestamp())::bigint").parse::<i64>().unwrap();
    let runs: Vec<String> = (0..8).map(|_| servers[0].submit("sleep", json!({ "ms": 16_000 }), json!({}))).collect();
    runs.iter().for_each(|run| servers[0].until_state(run, "running"));
    for (shift, least) in [("+3600", 3000), ("-3600", -8000)] {
        let before = epoch();
        postgres.shift_clock(shift);
        until(FINISH, "the database saw the new time", || {
            let moved = epoch() - before;
            (if least > 0 { moved > least } else { moved < least + 1000 }).then_some(())
        });
        // Long enough for a wrong verdict: two timeouts.
        pause(TIMEOUT * 2);
    }
    for run in &runs {
        let finished = servers[1].wait(run);
        assert_eq!((&finished["state"], &finished["attempt"]), (&json!("succeeded"), &json!(1)), "{finished}");
    }
    assert_eq!(servers[0].get("/api/v1/verdicts")["items"], json!([]));
    assert_eq!(servers[0].get("/api/v1/replicas?state=active")["items"].as_array().unwrap().len(), 2);
    servers[0].assert_sound();
}

#[test]
fn a_servers_clock_that_jumps_an_hour_changes_nothing_about_its_jobs() {
    let folder = common::scratch();
    let clock = folder.path().join("clock");
    std::fs::write(&clock, "+0").unwrap();
    let host = Host::with(
        quick()
            .env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "200ms")
            .env("EVERBEAT_JOBS__CHECK_INTERVAL", "200ms")
            .env("LD_PRELOAD", libfaketime().display())
            .env("FAKETIME_TIMESTAMP_FILE", clock.display())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    );
    let mut server = host.start();
    let job = server.shell("sleep 8; exit 5");
    server.runs(&job);
    for shift in ["+3600", "-3600"] {
        std::fs::write(&clock, shift).unwrap();
        pause(Duration::from_secs(1));
        let found = server.look(&job);
        assert_eq!(
            (&found["state"], &found["heartbeat_status"]),
            (&json!("running"), &json!("fresh")),
            "{shift}: {found}"
        );
        server.kill9();
        server = host.start();
        server.runs(&job);
    }
    let ended = server.ended(&job);
    assert_eq!((&ended["exit_code"], &ended["attempt"]), (&json!(5), &json!(1)), "{ended}");
    let metrics = server.get("/api/admin/recovery/jobs/metrics");
    assert_eq!((&metrics["staleDetected"], &metrics["deadDetected"]), (&json!(0), &json!(0)), "{metrics}");
    let verdicts = server.get(&format!("/api/v1/verdicts?run_id={job}"));
    assert_eq!(verdicts["items"], json!([]));
}
