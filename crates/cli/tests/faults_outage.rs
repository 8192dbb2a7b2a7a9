//! The database goes away for three timeouts under three servers.

mod common;
mod postgres;

use common::{FINISH, Server, TIMEOUT, pause, quick, until};
use postgres::Postgres;
use serde_json::json;
use std::time::Duration;

/// Three of the replicas' timeouts.
const OUTAGE: Duration = TIMEOUT.saturating_mul(3);

#[test]
fn an_outage_loses_no_attempt_and_results_of_meanwhile_count() {
    let postgres = Postgres::start();
    let servers: Vec<Server> = (0..3).map(|_| Server::start(quick().store(postgres.url()))).collect();
    let sleep = |ms: u64| servers[0].submit("sleep", json!({ "ms": ms }), json!({}));
    // Ten end while the database is away, twenty after it is back.
    let runs: Vec<String> = (0..30).map(|n| sleep(if n < 10 { 3000 } else { 18_000 })).collect();
    runs.iter().for_each(|run| servers[0].until_state(run, "running"));

    postgres.stop();
    let refused = until(FINISH, "a submit is refused", || {
        let (status, problem) = servers[1].post("/api/v1/runs", &json!({ "task": "noop" }));
        (status == 503).then_some(problem)
    });
    assert!(refused["hint"].as_str().unwrap().contains("try again"), "{refused}");
    let unready = until(FINISH, "the servers say that they are not ready", || {
        let (status, problem) = servers[2].try_get("/readyz")?;
        (status == 503).then_some(problem)
    });
    assert!(unready["detail"].as_str().unwrap().starts_with("store: "), "it names the check: {unready}");
    assert_eq!(servers[2].status("/livez"), 200);
    pause(OUTAGE);
    postgres.begin();

    for run in &runs {
        let finished = servers[0].wait(run);
        assert_eq!((&finished["state"], &finished["attempt"]), (&json!("succeeded"), &json!(1)), "{finished}");
    }
    let verdicts = servers[0].get("/api/v1/verdicts");
    assert_eq!(verdicts["items"], json!([]), "nobody is judged for an outage of the database");
    servers[0].assert_sound();
}

#[test]
fn a_login_that_the_database_refuses_meanwhile_is_told_as_such_to_whoever_asks_for_something() {
    let postgres = Postgres::start();
    postgres.query("create role app login superuser");
    let server = Server::start(quick().store(postgres.url().replace("postgres@", "app@")));
    let run = server.submit("sleep", json!({ "ms": 5000 }), json!({}));
    server.until_state(&run, "running");
    postgres.query("alter role app nologin");
    postgres.query("select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = 'app'");
    let told = |what: &str, ask: &dyn Fn() -> Option<(u16, serde_json::Value)>| {
        until(FINISH, what, || {
            let (status, problem) = ask()?;
            assert!(status == 503 || (200..300).contains(&status), "{what}: {status} {problem}");
            let detail = problem["detail"].as_str()?;
            (status == 503 && detail.contains("the database refused the login")).then_some(problem)
        })
    };
    let submit = || server.try_post("/api/v1/runs", &json!({ "task": "noop" }));
    let refused = told("a submit", &submit);
    assert!(refused["hint"].as_str().unwrap().contains("pg_hba.conf"), "{refused}");
    told("a look", &|| server.try_get(&format!("/api/v1/runs/{run}")));
    let unready = told("the readiness", &|| server.try_get("/readyz"));
    assert!(unready["detail"].as_str().unwrap().starts_with("store: "), "{unready}");
    postgres.query("alter role app login");
    let finished = server.wait(&run);
    assert_eq!((&finished["state"], &finished["attempt"]), (&json!("succeeded"), &json!(1)), "{finished}");
    server.assert_sound();
}

#[test]
fn a_replica_that_drains_while_the_database_is_away_ends_within_the_grace_and_says_what_others_conclude() {
    let postgres = Postgres::start();
    let mut server = Server::start(quick().store(postgres.url()).env("EVERBEAT_REPLICA__DRAIN_GRACE", "6s"));
    let long = server.submit("sleep", json!({ "ms": 600_000 }), json!({}));
    let short = server.submit("sleep", json!({ "ms": 500 }), json!({}));
    [&long, &short].into_iter().for_each(|run| server.until_state(run, "running"));
    postgres.stop();
    server.signal("TERM");
    // Far less than the limits of all the calls that are not answered, one after the other.
    assert_eq!(server.exit_code(Duration::from_secs(30)), Some(0));
    let log = server.log();
    assert!(log.contains("draining: waits for"), "{log}");
    let last = log.lines().rev().find(|line| line.contains("left")).unwrap_or_default();
    assert!(last.contains("left without saying so: others conclude it from its silence"), "{log}");
    assert!(last.contains("after=") && last.contains("unstored=2"), "{last}");

    postgres.begin();
    let successor = Server::start(server.options.clone());
    assert_eq!(successor.wait(&short)["state"], "succeeded");
    successor.assert_sound();
}

#[test]
fn work_that_must_stop_when_isolated_is_stopped_by_the_renew_deadline_and_retried() {
    let postgres = Postgres::start();
    let servers: Vec<Server> = (0..3).map(|_| Server::start(quick().store(postgres.url()))).collect();
    let stop = json!({ "when_isolated": "stop" });
    let runs: Vec<String> = (0..6).map(|_| servers[0].submit("sleep", json!({ "ms": 4500 }), stop.clone())).collect();
    runs.iter().for_each(|run| servers[0].until_state(run, "running"));

    postgres.stop();
    pause(OUTAGE);
    postgres.begin();

    for run in &runs {
        let finished = servers[0].wait(run);
        assert_eq!((&finished["state"], &finished["attempt"]), (&json!("succeeded"), &json!(2)), "{finished}");
        let verdicts = servers[0].get(&format!("/api/v1/verdicts?run_id={run}"));
        let verdict = &verdicts["items"][0];
        assert_eq!((&verdict["judgement"], &verdict["reason"]), (&json!("lost"), &json!("isolated")));
        let silent = Duration::from_millis(verdict["evidence"]["renewed_ms_ago"].as_u64().unwrap());
        let deadline = TIMEOUT * 2 / 3;
        assert!((deadline..TIMEOUT).contains(&silent), "stopped {silent:?} after the last renewal");
    }
    servers[0].assert_sound();
}
