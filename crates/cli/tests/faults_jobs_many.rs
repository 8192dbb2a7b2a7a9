//! Many jobs, and many deaths of servers and shims: at random moments, and at every point of a job's life.

mod common;
mod job;

use common::{Server, pause, quick, stopwatch, until};
use job::{Host, Jobs, LONG, SOON};
use serde_json::{Value, json};
use std::time::Duration;

/// The same sequence every time, spread over the time that the jobs take.
fn moments(count: u64) -> impl Iterator<Item = Duration> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(100 + (state >> 33) % 900)
    })
}

#[test]
fn a_thousand_jobs_under_twenty_kills_each_end_once_and_rightly() {
    const JOBS: usize = 1000;
    let host = Host::with(quick().env("EVERBEAT_JOBS__SLOTS", "40"));
    let mut server = host.start();
    let address = server.address();
    // Each leaves one mark per execution, and ends as its number says.
    let command = |n: usize| {
        let end = match n % 3 {
            0 => "exit 0",
            1 => "exit 7",
            _ => "kill -SEGV $$",
        };
        json!({ "command": ["sh", "-c", format!("echo x >> marks; sleep 0.0{}; {end}", n % 10)] })
    };
    let mut jobs: Vec<String> = Vec::with_capacity(JOBS);
    let mut kills = moments(20);
    let mut next = kills.next();
    let mut since = stopwatch();
    let mut killed = 0;
    let mut down = |server: &mut Server, since: &mut std::time::Instant| {
        if next.is_some_and(|next| since.elapsed() >= next) {
            server.kill9();
            *server = host.start_at(&address);
            next = kills.next();
            *since = stopwatch();
            killed += 1;
        }
        next.is_some()
    };
    while jobs.len() < JOBS {
        let key = format!("job-{}", jobs.len());
        let body = command(jobs.len());
        let (status, job) = server.post_with("/api/v1/jobs", &body, &[("idempotency-key", key.as_str())]);
        assert!([200, 201].contains(&status), "{job}");
        jobs.push(job["job_id"].as_str().unwrap().to_string());
        down(&mut server, &mut since);
    }
    while down(&mut server, &mut since) {
        pause(Duration::from_millis(10));
    }
    assert_eq!(killed, 20);
    let mut ended = vec![None; JOBS];
    until(LONG * 5, "the end of all jobs", || {
        for (n, job) in jobs.iter().enumerate() {
            if ended[n].is_none() {
                let found = server.look(job);
                ended[n] = ["succeeded", "failed"].iter().any(|state| found["state"] == *state).then_some(found);
            }
        }
        ended.iter().all(Option::is_some).then_some(())
    });
    for (n, found) in ended.iter().enumerate() {
        let found = found.as_ref().unwrap();
        let exit = (found["state"].clone(), found["exit_code"].clone(), found["exit_signal"].clone());
        let right = match n % 3 {
            0 => (json!("succeeded"), json!(0), Value::Null),
            1 => (json!("failed"), json!(7), Value::Null),
            _ => (json!("failed"), Value::Null, json!(11)),
        };
        assert_eq!(exit, right, "job {n}: {found}");
        let marks = std::fs::read_to_string(host.workspace(&jobs[n]).join("marks")).unwrap();
        assert_eq!(marks, "x\n", "job {n} ran once");
        let outcomes = server.get(&format!("/api/v1/runs/{}/attempts", jobs[n]));
        let counted = outcomes["items"].as_array().unwrap().iter().filter(|attempt| attempt["outcome"] != "released");
        assert_eq!(counted.count(), 1, "{outcomes}");
    }
    let checked = server.assert_sound();
    assert_eq!(checked["checked"]["runs"], JOBS, "{checked}");
}

/// Between claim and spawn, spawn and lock, lock and exec, exit and record, record and settle: for servers.
const SERVER_POINTS: [&str; 6] = ["claimed", "spec-written", "spawning", "spawned", "exit-seen", "settled"];
/// The same for shims.
const SHIM_POINTS: [&str; 7] = [
    "before-lock",
    "after-lock",
    "before-exec",
    "after-spawn",
    "after-exit-before-record",
    "record-before-rename",
    "after-record-before-reap",
];
const HITS: usize = 50;

#[test]
fn a_server_killed_at_every_point_of_a_jobs_life_neither_loses_nor_repeats_it() {
    let host = Host::new();
    let mut server = host.start();
    let address = server.address();
    for point in SERVER_POINTS {
        let mut hits = 0;
        while hits < HITS {
            server.kill9();
            let mut dying = Server::start(host.options.clone().listen(&address).env("EVERBEAT_KILL_AT", point));
            let job = dying.try_post("/api/v1/jobs", &json!({ "command": ["sh", "-c", "echo x >> marks; exit 7"] }));
            let ended = dying.exit_code(SOON);
            assert_eq!(ended, None, "{point}: killed by itself");
            hits += 1;
            server = host.start_at(&address);
            // The answer may not have come; then the newest one is it.
            let job = match job {
                Some((201, job)) => job["job_id"].as_str().unwrap().to_string(),
                _ => server.get("/api/v1/jobs?limit=1")["items"][0]["job_id"].as_str().unwrap().to_string(),
            };
            let ended = server.ended(&job);
            assert_eq!((&ended["state"], &ended["exit_code"]), (&json!("failed"), &json!(7)), "{point}: {ended}");
            let marks = std::fs::read_to_string(host.workspace(&job).join("marks")).unwrap();
            assert_eq!(marks, "x\n", "{point}: it ran once");
            // Nothing of it is left for the next server to die at.
            until(SOON, "its shim has left", || host.shim(&job).is_none().then_some(()));
        }
        println!("{point}: {hits} times");
    }
    server.assert_sound();
}

#[test]
fn a_shim_killed_at_every_point_ends_its_job_once_and_nothing_is_invented() {
    for point in SHIM_POINTS {
        let host = Host::new();
        let server = Server::start(host.options.clone().env("EVERBEAT_SHIM_KILL_AT", point));
        let command = json!({ "command": ["sh", "-c", "echo x >> marks; exit 7"] });
        let jobs: Vec<String> = (0..HITS).map(|_| server.job_with(command.clone())).collect();
        for job in &jobs {
            // Nothing ran, and nothing is blamed on the command, however often it happens.
            if let "before-lock" | "after-lock" = point {
                until(LONG, "the fifth try", || (server.look(job)["attempt"].as_u64()? >= 5).then_some(()));
                assert_eq!(server.post(&format!("/api/v1/runs/{job}/cancel"), &Value::Null).0, 200);
                assert_eq!(server.ended(job)["state"], "cancelled");
                assert!(!host.workspace(job).join("marks").exists(), "{point}: it never ran");
                continue;
            }
            let ended = server.ended(job);
            let marks = std::fs::read_to_string(host.workspace(job).join("marks")).unwrap_or_default();
            assert!(marks.len() <= 2, "{point}: it ran at most once: {marks:?}");
            let exit = (ended["exit_code"].clone(), ended["exit_signal"].clone());
            let reason = ended["error"]["reason"].as_str().unwrap_or_default().to_string();
            assert_eq!(ended["state"], "failed", "{point}: {ended}");
            match point {
                // The record is durable: the exit is known.
                "after-record-before-reap" => assert_eq!((exit, marks.as_str()), ((json!(7), Value::Null), "x\n")),
                _ => {
                    assert_eq!(exit, (Value::Null, Value::Null), "{point}: unknown, never invented: {ended}");
                    assert_eq!(reason, "shim_died", "{point}: {ended}");
                }
            }
            assert_eq!(host.processes(job), Vec::<u32>::new(), "{point}: nothing is left");
        }
        server.assert_sound();
    }
}
