//! Schedules and flows of real servers: heartbeats at once, kills in the middle, a clock that is off, the command line.

mod common;
mod postgres;

use common::{FINISH, Options, Server, code, json as parsed, quick, stderr, stdout, until};
use postgres::{Postgres, libfaketime};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

fn put(server: &Server, path: &str, body: &Value) {
    let (status, answer) = server.put(path, body);
    assert!([200, 201].contains(&status), "{answer}");
}

fn items(server: &Server, path: &str) -> Vec<Value> {
    server.get(path)["items"].as_array().cloned().unwrap_or_default()
}

fn micros(time: &Value) -> i64 {
    everbeat_model::StoreTime::parse(time.as_str().expect("a time")).expect("a time").0
}

#[test]
fn concurrent_heartbeats_on_three_replicas_make_each_run_once() {
    const FLOWS: usize = 200;
    let postgres = Postgres::start();
    let outside = || quick().store(postgres.url()).env("EVERBEAT_FLOWS__TICKER", "false");
    let servers = [Server::start(outside()), Server::start(outside()), Server::start(outside())];
    for number in 0..FLOWS {
        let flow = json!({ "run_interval": 3600, "configuration": { "task": "noop" } });
        put(&servers[0], &format!("/api/v1/flows/flow-{number}"), &flow);
    }
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let call = |n: usize| {
            let server = &servers[n % servers.len()];
            scope.spawn(move || server.post("/dataflow/heartbeat", &json!({})).1)
        };
        let calls: Vec<_> = (0..32).map(call).collect();
        calls.into_iter().map(|call| call.join().expect("a call")).collect()
    });
    let sum = |field: &str| answers.iter().map(|answer| answer[field].as_u64().expect("a count")).sum::<u64>();
    assert_eq!(sum("flows_triggered"), FLOWS as u64, "{answers:?}");
    assert!(answers.iter().all(|answer| answer["status"] == "Heartbeat processed"));
    let made = until(FINISH, "all runs", || {
        let runs = items(&servers[1], "/api/v1/runs?kind=flow&limit=1000");
        runs.iter().all(|run| run["state"] == "succeeded").then_some(runs)
    });
    assert_eq!(made.len(), FLOWS);
    let of: BTreeSet<&str> = made.iter().filter_map(|run| run["args"]["flow"].as_str()).collect();
    assert_eq!(of.len(), FLOWS, "one of each");
    servers[2].assert_sound();
}

/// Whatever is killed when, the due times that were decided are those of the interval, each once, without a gap.
fn kills_lose_and_double_no_due_time(options: impl Fn() -> Options) {
    let mut server = Server::start(options());
    let body = json!({ "task": "noop", "schedule": { "every": "1s" }, "catch_up": "all", "overlap": "allow" });
    put(&server, "/api/v1/schedules/beat", &body);
    for round in 0..6 {
        let seen = items(&server, "/api/v1/schedules/beat/runs").len();
        until(FINISH, "another due time", || {
            (items(&server, "/api/v1/schedules/beat/runs").len() > seen).then_some(())
        });
        // At another moment of the second each time.
        common::pause(Duration::from_millis(150 * round));
        server = server.restart();
    }
    let seen = items(&server, "/api/v1/schedules/beat/runs").len();
    until(FINISH, "what was missed", || (items(&server, "/api/v1/schedules/beat/runs").len() > seen + 1).then_some(()));
    let (status, answer) = server.post("/api/v1/schedules/beat/disable", &json!({}));
    assert_eq!(status, 200, "{answer}");
    let runs = until(FINISH, "all runs", || {
        let runs = items(&server, "/api/v1/schedules/beat/runs?limit=1000");
        runs.iter().all(|run| run["status"] == "success").then_some(runs)
    });
    let due: BTreeSet<i64> = runs.iter().map(|run| micros(&run["due_at"])).collect();
    assert_eq!(due.len(), runs.len(), "each due time once");
    let (first, last) = (due.first().expect("one"), due.last().expect("one"));
    assert_eq!(due.len() as i64, (last - first) / 1_000_000 + 1, "none is missing: {due:?}");
    assert!(due.iter().all(|at| (at - first) % 1_000_000 == 0), "it does not drift: {due:?}");
    server.assert_sound();
}

#[test]
fn kills_lose_and_double_no_due_time_on_sqlite() {
    kills_lose_and_double_no_due_time(quick);
}

#[test]
fn kills_lose_and_double_no_due_time_on_postgresql() {
    let postgres = Postgres::start();
    kills_lose_and_double_no_due_time(|| quick().store(postgres.url()));
}

#[test]
fn a_replica_whose_clock_is_an_hour_off_makes_nothing_early_or_twice() {
    let postgres = Postgres::start();
    let off = quick()
        .store(postgres.url())
        .env("LD_PRELOAD", libfaketime().display())
        .env("FAKETIME", "+1h")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let servers = [Server::start(quick().store(postgres.url())), Server::start(off)];
    let hourly = json!({ "task": "noop", "schedule": { "every": "1h" } });
    put(&servers[1], "/api/v1/schedules/hourly", &hourly);
    let often = json!({ "task": "noop", "schedule": { "every": "1s" }, "overlap": "allow", "catch_up": "all" });
    put(&servers[0], "/api/v1/schedules/often", &often);
    let runs = until(FINISH, "five due times", || {
        let runs = items(&servers[0], "/api/v1/schedules/often/runs");
        (runs.len() >= 5).then_some(runs)
    });
    for run in &runs {
        let made = servers[0].get(&format!("/api/v1/runs/{}", run["id"].as_str().expect("an id")));
        assert!(micros(&made["created_at"]) >= micros(&run["due_at"]), "{made}");
    }
    assert_eq!(items(&servers[0], "/api/v1/schedules/hourly/runs").len(), 1, "only the first one is due");
}

#[test]
fn flows_are_written_from_files_compared_and_asked_for() {
    let server = Server::start(quick());
    let folder = common::scratch();
    let file = folder.path().join("flows.toml");
    let text = "[[flow]]\nname = 'nightly'\nschedule = { cron = '30 2 * * *', tz = 'Europe/Berlin' }\n\
        configuration = { task = 'echo', table = 'products' }\n\n[[flow]]\nname = 'chained'\nafter = ['nightly']\n\
        configuration = { task = 'noop' }\n";
    std::fs::write(&file, text).expect("written");
    let file = file.to_str().expect("text");
    let applied = server.cli(&["flow", "apply", file]);
    assert_eq!(code(&applied), 0, "{}", stderr(&applied));
    assert!(stdout(&applied).starts_with("flow nightly is new; next due "), "{}", stdout(&applied));
    assert!(stdout(&server.cli(&["flow", "apply", file])).contains("flow nightly is unchanged"));
    assert_eq!(code(&server.cli(&["flow", "diff", file])), 0);
    std::fs::write(file, text.replace("30 2", "30 3")).expect("written");
    let differs = server.cli(&["flow", "diff", file, "-o", "json"]);
    assert_eq!((code(&differs), parsed(&differs)["items"][0]["field"].clone()), (1, json!("schedule")));
    let next = stdout(&server.cli(&["flow", "next", "nightly", "-n", "3"]));
    assert_eq!(next.lines().count(), 3, "{next}");
    let done = server.cli(&["flow", "trigger", "nightly", "--wait"]);
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    until(FINISH, "the one that comes after", || {
        (items(&server, "/api/v1/flows/chained/runs").first()?["status"] == "success").then_some(())
    });
    assert!(stdout(&server.cli(&["ls", "flows"])).contains("Europe/Berlin"));
    assert_eq!(parsed(&server.cli(&["heartbeat", "-o", "json"]))["flows_due"], 0);
    let late = server.cli(&["schedule", "put", "x", "--task", "noop", "--every", "0s"]);
    assert_eq!(code(&late), 3, "{}", stderr(&late));
    assert!(stderr(&late).contains("schedule.every"), "{}", stderr(&late));
    assert_eq!(code(&server.cli(&["flow", "rm", "nightly"])), 0);
    let gone = server.cli(&["flow", "show", "nightly"]);
    assert_eq!(code(&gone), 3);
    assert!(stderr(&gone).contains("everbeat ls flows"), "{}", stderr(&gone));
}

#[test]
fn a_flood_of_heartbeats_is_answered_and_holds_up_no_renewal() {
    const CLIENTS: usize = 50;
    const CALLS: usize = 100;
    let server = Server::start(quick());
    let replica = server.replica_id();
    for number in 0..50 {
        let flow = json!({ "run_interval": 1, "overlap": "allow", "configuration": { "task": "noop" } });
        put(&server, &format!("/api/v1/flows/flow-{number}"), &flow);
    }
    let refused: Vec<(u16, Value)> = std::thread::scope(|scope| {
        let call = || (0..CALLS).map(|_| server.post("/dataflow/heartbeat", &json!({})));
        let other = |answer: &(u16, Value)| answer.0 != 200 || answer.1["status"] != "Heartbeat processed";
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(move || call().filter(other).collect::<Vec<_>>())).collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    assert!(refused.is_empty(), "{} of {}: {:?}", refused.len(), CLIENTS * CALLS, refused.first());
    let figures = server.get("/metrics");
    let figures = figures.as_str().expect("text");
    assert!(figures.contains("\neverbeat_renewal_failures_total 0\n"), "{figures}");
    assert_eq!(server.replica_id(), replica, "nobody has judged it");
    assert_eq!(items(&server, "/api/v1/verdicts"), Vec::<Value>::new());
    let log = server.log();
    assert!(!log.contains("cannot renew") && !log.contains("withholding"), "{log}");
    assert!(!items(&server, "/api/v1/flows/flow-7/runs").is_empty());
}
