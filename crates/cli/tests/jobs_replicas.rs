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
        .env("EVERBEAT_JOBS__REATTACH_WINDOW", "3s")
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
    let jobs: Vec<String> = (0..5).map(|_| first.shell("echo begun; sleep 3; echo done; exit 3")).collect();
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
    // One is to be judged as stalled, one would be cancelled: both by the first, while it cannot.
    let stalls =
        first.job_with(json!({ "command": ["sh", "-c", "sleep 12; exit 4"], "policy": { "stall_timeout": "5s" } }));
    let plain = first.shell("sleep 12; exit 5");
    first.runs(&stalls);
    first.runs(&plain);
    let second = host.start();
    second.until_observed(&first.replica_id());
    first.signal("STOP");
    for job in [&stalls, &plain] {
        let found = owned_by(&second, job);
        assert_eq!((&found["state"], &found["attempt"]), (&json!("running"), &json!(1)));
    }
    // The new owner watches for stalls anew; it reports progress, so that only the old one would judge.
    let frozen_for = Duration::from_secs(4);
    pause(frozen_for);
    let address = first.address();
    first.signal("CONT");
    // Whatever it still has in hand comes to nothing: both go on under the second.
    until(SOON, "it has joined again", || {
        let id = first.try_replica_id()?;
        (id != second.look(&plain)["replica_id"].as_str()?).then_some(())
    });
    let ended = second.ended(&plain);
    assert_eq!(
        (&ended["state"], &ended["exit_code"], &ended["attempt"]),
        (&json!("failed"), &json!(5), &json!(1)),
        "{ended}"
    );
    let judged = second.ended(&stalls);
    let attempts = second.get(&format!("/api/v1/runs/{stalls}/attempts"));
    assert_eq!(attempts["items"].as_array().unwrap().len(), 1, "{attempts}");
    if judged["error"]["reason"] == "no_progress" {
        let verdicts = second.get(&format!("/api/v1/verdicts?run_id={stalls}"));
        assert_eq!(verdicts["items"][0]["judged_by"], second.replica_id().as_str(), "only its owner may judge");
    }
    assert!(!address.is_empty());
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
        let job = first.shell("echo one >> $EVERBEAT_WORKSPACE/marks; sleep 20; exit 6");
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
