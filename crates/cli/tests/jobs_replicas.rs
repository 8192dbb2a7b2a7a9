//! Jobs of several replicas: on one host they are adopted, a host that stays away is given up.

mod common;
mod job;
mod postgres;

use common::{Options, Server, pause, quick, until};
use job::{Host, Jobs, SOON, signal};
use postgres::Postgres;
use serde_json::{Value, json};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn options(postgres: &Postgres) -> Options {
    quick()
        .store(postgres.url())
        .env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "200ms")
        .env("EVERBEAT_JOBS__REATTACH_WINDOW", "4s")
        .env("EVERBEAT_JOBS__STOP_GRACE", "1s")
}

/// The job as it is once this server owns it.
fn owned_by(server: &Server, job: &str) -> Value {
    let owner = server.replica_id();
    until(SOON, "the job has passed on", || {
        let found = server.look(job);
        (found["replica_id"] == owner.as_str()).then_some(found)
    })
}

#[test]
fn the_other_replica_of_a_host_adopts_jobs_as_they_are() {
    let postgres = Postgres::start();
    let host = Host::with(options(&postgres));
    let mut first = host.start();
    let jobs: Vec<String> = (0..5).map(|_| first.shell("echo begun; sleep 6; echo done; exit 3")).collect();
    jobs.iter().for_each(|job| drop(first.runs(job)));
    let shims: Vec<Option<u32>> = jobs.iter().map(|job| host.shim(job)).collect();
    let second = host.start();
    assert_eq!(second.look(&jobs[0])["replica_id"], first.replica_id().as_str(), "a living owner keeps it");

    first.kill9();
    for job in &jobs {
        let found = owned_by(&second, job);
        assert_eq!(
            (&found["state"], &found["attempt"], &found["reattached"]),
            (&json!("running"), &json!(1), &json!(true))
        );
    }
    assert_eq!(jobs.iter().map(|job| host.shim(job)).collect::<Vec<_>>(), shims, "the same shims");
    for job in &jobs {
        let ended = second.ended(job);
        assert_eq!((&ended["exit_code"], &ended["attempt"]), (&json!(3), &json!(1)), "{ended}");
        assert_eq!(second.output(job), "begun\ndone\n");
    }
    second.assert_sound();
}

#[test]
fn a_frozen_former_owner_can_neither_cancel_nor_settle() {
    let postgres = Postgres::start();
    let host = Host::with(options(&postgres));
    let first = host.start();
    // One ends while its former owner is frozen, which sees that when it wakes; one goes on.
    let ends = first.shell("sleep 8; exit 5");
    let goes_on = first.shell("sleep 25; exit 4");
    for job in [&ends, &goes_on] {
        first.runs(job);
    }
    let former = first.replica_id();
    let second = host.start();
    second.until_observed(&former);
    first.signal("STOP");
    for job in [&ends, &goes_on] {
        let found = owned_by(&second, job);
        assert_eq!(
            (&found["state"], &found["attempt"], &found["reattached"]),
            (&json!("running"), &json!(1), &json!(true))
        );
    }
    let ended = second.ended(&ends);
    assert_eq!((&ended["state"], &ended["exit_code"]), (&json!("failed"), &json!(5)), "{ended}");
    let retried = second.post(&format!("/api/v1/jobs/{ends}/retry"), &json!({}));
    assert_eq!(retried.0, 200, "{}", retried.1);
    let again = until(SOON, "the second attempt", || {
        let found = second.look(&ends);
        (found["attempt"] == 2 && found["state"] == "running").then_some(found)
    });
    // Now the former owner wakes, with the exit of attempt 1 before its eyes.
    first.signal("CONT");
    until(SOON, "it has joined again", || (first.try_replica_id()? != former).then_some(()));
    let after = second.look(&ends);
    assert_eq!(
        (&after["attempt"], &after["state"]),
        (&json!(2), &again["state"]),
        "its report changed nothing: {after}"
    );
    assert_eq!(after["replica_id"], again["replica_id"]);
    let ended = second.ended(&ends);
    assert_eq!((&ended["attempt"], &ended["exit_code"]), (&json!(2), &json!(5)), "{ended}");
    let attempts = second.get(&format!("/api/v1/runs/{ends}/attempts"));
    assert_eq!(attempts["items"].as_array().unwrap().len(), 2, "{attempts}");
    let ended = second.ended(&goes_on);
    assert_eq!(
        (&ended["state"], &ended["exit_code"], &ended["attempt"]),
        (&json!("failed"), &json!(4), &json!(1)),
        "{ended}"
    );
    second.assert_sound();
}

#[test]
fn a_run_that_waits_for_a_host_which_is_gone_begins_elsewhere() {
    let postgres = Postgres::start();
    let away = Host::with(options(&postgres));
    let mut first = away.start();
    let job = first.job_with(json!({
        "command": ["sh", "-c", "echo x >> marks; exit 1"],
        "policy": { "max_attempts": 2, "backoff": { "initial": "2s", "jitter": 0.0 } },
    }));
    first.until_state(&job, "scheduled");
    first.kill9();
    let here = Host::with(options(&postgres));
    let second = here.start();
    until(SOON, "it is told what it waits for", || {
        let explained = second.get(&format!("/api/v1/runs/{job}/explain"));
        explained["summary"].as_str()?.contains("belongs to host").then_some(())
    });
    let ended = second.ended(&job);
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("failed"), &json!(2)), "{ended}");
    let marks = |host: &Host| std::fs::read_to_string(host.workspace(&job).join("marks")).unwrap();
    assert_eq!((marks(&away).as_str(), marks(&here).as_str()), ("x\n", "x\n"), "each in a workspace of its own");
    second.assert_sound();
}

#[test]
fn a_host_that_stays_away_is_given_up_and_fenced_when_it_returns() {
    let postgres = Postgres::start();
    let away = Host::with(options(&postgres));
    let here = Host::with(options(&postgres));
    let second = here.start();
    let mut first = away.start();
    // Pinned to the first host: the second performs no jobs until it has them to itself.
    let job = until(SOON, "a job on the first host", || {
        let job = first.shell("echo one >> $EVERBEAT_WORKSPACE/marks; sleep 60; exit 6");
        first.until_state(&job, "running");
        if first.look(&job)["replica_id"] == first.replica_id().as_str() {
            first.runs(&job);
            return Some(job);
        }
        first.post(&format!("/api/v1/jobs/{job}/cancel"), &json!({}));
        None
    });
    let shim = away.shim(&job).expect("a shim");
    first.kill9();

    let lost = second.ended(&job);
    assert_eq!(
        (&lost["state"], &lost["exit_code"], &lost["exit_signal"]),
        (&json!("failed"), &Value::Null, &Value::Null)
    );
    assert_eq!(lost["error"]["reason"], "host_away", "{lost}");
    let verdicts = second.get(&format!("/api/v1/verdicts?run_id={job}"));
    assert_eq!(
        (&verdicts["items"][0]["judgement"], &verdicts["items"][0]["reason"]),
        (&json!("lost"), &json!("host_away"))
    );
    let figures = second.get("/metrics");
    let counted = "everbeat_verdicts_total{judgement=\"lost\",reason=\"host_away\"} 1";
    assert!(figures.as_str().is_some_and(|figures| figures.contains(counted)), "{figures}");
    assert_eq!(away.shim(&job), Some(shim), "it still runs, cut off");

    let first = away.start();
    until(SOON, "its shim was told to stop", || {
        (away.shim(&job).is_none() && away.processes(&job).is_empty()).then_some(())
    });
    let fenced = until(SOON, "a verdict says so", || {
        let verdicts = first.get(&format!("/api/v1/verdicts?run_id={job}"));
        verdicts["items"].as_array()?.iter().find(|verdict| verdict["judgement"] == "fenced").cloned()
    });
    assert_eq!(fenced["reason"], "late_return", "{fenced}");
    assert_eq!(second.look(&job)["error"]["reason"], "host_away", "its result counts for nothing");
    second.assert_sound();
}

#[test]
fn a_job_is_tried_again_where_its_workspace_is() {
    let postgres = Postgres::start();
    let hosts = [Host::with(options(&postgres)), Host::with(options(&postgres))];
    let servers = [hosts[0].start(), hosts[1].start()];
    let jobs: Vec<String> =
        (0..8).map(|n| servers[n % 2].shell("echo x >> marks; [ $(wc -l < marks) -ge 3 ] || exit 9")).collect();
    jobs.iter().for_each(|job| drop(servers[0].ended(job)));
    for _ in 0..2 {
        let (status, resumed) = servers[1].post("/api/admin/recovery/jobs/resume", &json!({}));
        assert_eq!(status, 200, "{resumed}");
        let outcomes = resumed["results"].as_array().unwrap();
        assert!(outcomes.iter().all(|result| result["outcome"] == "resumed"), "{resumed}");
        jobs.iter().for_each(|job| drop(servers[0].ended(job)));
    }
    for job in &jobs {
        let ended = servers[0].look(job);
        assert_eq!((&ended["state"], &ended["attempt"]), (&json!("succeeded"), &json!(3)), "{ended}");
        let kept: Vec<usize> = hosts
            .iter()
            .filter_map(|host| std::fs::read_to_string(host.workspace(job).join("marks")).ok())
            .map(|marks| marks.lines().count())
            .collect();
        assert_eq!(kept, [3], "all three attempts in one workspace");
    }
    servers[0].assert_sound();
}

#[test]
fn a_drained_server_leaves_its_jobs_to_the_next_one() {
    let host = Host::new();
    let mut server = host.start();
    let job = server.shell("sleep 2; exit 8");
    server.runs(&job);
    let shim = host.shim(&job);
    server.signal("TERM");
    assert_eq!(server.exit_code(SOON), Some(0), "it does not wait for the job");
    assert_eq!(host.shim(&job), shim);
    let server = host.start();
    let ended = server.ended(&job);
    assert_eq!((&ended["exit_code"], &ended["attempt"], &ended["reattached"]), (&json!(8), &json!(1), &json!(true)));
}

#[test]
fn a_hung_shim_is_suspected_first_and_killed_after_the_whole_time() {
    let host = Host::with(
        quick()
            .env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "200ms")
            .env("EVERBEAT_JOBS__STALE_AFTER", "1s")
            .env("EVERBEAT_JOBS__DEAD_AFTER", "4s"),
    );
    let mut server = host.start();
    let job = server.shell("sleep 60");
    server.runs(&job);
    signal(host.shim(&job).expect("a shim"), "STOP");
    // A connection that stands says nothing about it; a server that begins must ask.
    server.kill9();
    let server = host.start();
    until(SOON, "it is suspected", || (server.look(&job)["liveness"] == "suspect").then_some(()));
    assert_eq!(server.look(&job)["state"], "running");
    let ended = server.ended(&job);
    assert_eq!((&ended["state"], &ended["error"]["reason"]), (&json!("failed"), &json!("shim_hung")), "{ended}");
    assert!(host.processes(&job).is_empty() && host.shim(&job).is_none());
    pause(SECOND / 10);
    server.assert_sound();
}

#[test]
fn two_data_folders_on_one_machine_are_told_of() {
    let postgres = Postgres::start();
    let (one, other) = (Host::with(options(&postgres)), Host::with(options(&postgres)));
    let first = one.start();
    let same = one.start();
    assert!(!same.log().contains("another data folder"), "{}", same.log());
    let second = other.start();
    until(SOON, "the note", || second.log().contains("the same --data-dir").then_some(()));
    for server in [&first, &second] {
        let replica = server.get(&format!("/api/v1/replicas/{}", server.replica_id()));
        assert!(replica["problem"].as_str().is_some_and(|said| said.contains("--data-dir")), "{replica}");
        assert!(replica["machine"].is_string(), "{replica}");
    }
    let listed = second.cli(&["ls", "replicas"]);
    assert!(common::stderr(&listed).contains("the same --data-dir"), "{}", common::stderr(&listed));
}
