//! A database that is restarted, cut off and locked under three servers with load: nothing that was accepted is lost or
//! ends twice, and nobody is judged for it. `EVERBEAT_ATTACK_SECONDS=60` makes the attacks last longer.

mod attack;
mod common;
mod postgres;

use attack::{Ask, Clients, Sent, attack_time, every, pages, reckon, steady};
use common::Server;
use postgres::Postgres;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

#[test]
fn a_database_restarted_every_two_seconds_costs_no_run_and_no_death() {
    withstand("restarts", |postgres| {
        let mut restarts = 0;
        every(Duration::from_secs(2), attack_time(), |turn| {
            // As a crash, and in order, by turns.
            if turn % 2 == 0 {
                postgres.stop()
            } else {
                postgres.stop_in_order()
            }
            postgres.begin();
            restarts += 1;
        });
        restarts
    });
}

#[test]
fn connections_that_are_cut_at_random_cost_no_run_and_no_death() {
    withstand("cut connections", |postgres| {
        let mut cut = 0;
        every(Duration::from_millis(200), attack_time(), |_| {
            let random = "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity
                where backend_type = 'client backend' and pid <> pg_backend_pid() order by random() limit 3) them";
            cut += postgres.query(random).parse::<u32>().unwrap();
        });
        cut
    });
}

/// What runs, executions and replicas are kept in.
const HOT_TABLES: [&str; 14] = [
    "ready",
    "scheduled",
    "lease",
    "done",
    "run",
    "attempt",
    "replica",
    "event",
    "log",
    "idempotency",
    "run_sign",
    "task",
    "verdict",
    "agenda",
];

#[test]
fn tables_that_somebody_locks_cost_no_run_and_no_death() {
    // Ten seconds each when there is time; else as long as fits, and longer than a renewal may take.
    let each = (attack_time() / HOT_TABLES.len() as u32).max(Duration::from_secs(2));
    let each = if attack_time() >= Duration::from_secs(60) { Duration::from_secs(10) } else { each };
    withstand("locks", |postgres| {
        for table in HOT_TABLES {
            let (seconds, schema) = (each.as_secs_f64(), postgres.schema());
            let locked =
                format!("begin; lock table {schema}.{table} in access exclusive mode; select pg_sleep({seconds})");
            postgres.query(&locked);
        }
        HOT_TABLES.len() as u32
    });
}

fn withstand(name: &str, attack: impl FnOnce(&Postgres) -> u32) {
    let postgres = Postgres::start();
    let folder = common::scratch();
    let marks = folder.path().join("marks");
    let servers: Vec<Server> = (0..3).map(|_| Server::start(steady().store(postgres.url()))).collect();
    let replicas: Vec<String> = servers.iter().map(Server::replica_id).collect();
    let clients = Clients::of(&servers);
    let mut strikes = 0;
    let mut sent = clients.load_during(|key, number| what(key, number, &marks), || strikes = attack(&postgres));
    clients.settle_unanswered(&mut sent);

    let runs = reckon(&servers[0], &sent);
    let jobs = attack::assert_each_ran_once(&marks, &sent, is_job);
    assert_nobody_was_judged(&servers[0], &sent);
    let now: BTreeSet<String> = servers.iter().map(Server::replica_id).collect();
    assert_eq!(now, replicas.into_iter().collect(), "no replica had to join again");
    assert!(servers.iter().all(|server| server.status("/readyz") == 200));
    eprintln!(
        "{name}: {strikes} times; {} runs ({jobs} of them jobs), {} requests unanswered",
        runs.len(),
        sent.failures
    );
}

/// Every tenth is a job.
fn what(key: &str, number: u64, marks: &Path) -> Ask {
    match number % 10 {
        0 => Ask::job(key, marks, "0.2"),
        _ => Ask::task(number % 7 * 100, &json!({})),
    }
}

fn is_job(key: &str) -> bool {
    key.ends_with('0')
}

/// A database that is away kills nobody: no verdict, and no attempt that ended otherwise than by success or by being
/// given back unbegun.
fn assert_nobody_was_judged(server: &Server, sent: &Sent) {
    assert_eq!(pages(server, "/api/v1/verdicts"), Vec::<Value>::new());
    for id in sent.accepted.values() {
        let run = server.get(&format!("/api/v1/runs/{id}"));
        if run["attempt"] == 1 {
            continue;
        }
        let attempts = server.get(&format!("/api/v1/runs/{id}/attempts"));
        for attempt in attempts["items"].as_array().unwrap() {
            assert!(["succeeded", "released"].iter().any(|outcome| attempt["outcome"] == *outcome), "{attempts}");
        }
    }
}
