//! What it costs to keep 100,000 leases alive, by the database's own statistics.

mod common;
mod postgres;

use common::{FINISH, Options, Server, pause, until};
use postgres::Postgres;
use serde_json::{Value, json};
use std::time::Duration;

const LEASES: usize = 100_000;
const INTERVALS: u64 = 10;
const MOST_ROW_UPDATES: u64 = 20;
const MOST_WAL_BYTES: u64 = 100_000;

#[test]
fn a_hundred_thousand_leases_cost_a_row_per_interval() {
    let postgres = Postgres::start();
    let server = Server::start(
        Options::default()
            .store(postgres.url())
            .env("EVERBEAT_REPLICA__SLOTS", LEASES)
            .env("EVERBEAT_REPLICA__HEARTBEAT_INTERVAL", "1s")
            .env("EVERBEAT_REPLICA__HEARTBEAT_TIMEOUT", "6s")
            .env("EVERBEAT_REPLICA__SWEEP_INTERVAL", "3s"),
    );
    let sleeper = json!({ "task": "sleep", "input": { "ms": 3_600_000 } });
    let batch = json!({ "runs": vec![sleeper; 1000] });
    for _ in 0..LEASES / 1000 {
        assert_eq!(server.post("/api/v1/runs:batch", &batch).0, 201);
    }
    until(FINISH * 2, "all are leased", || {
        let queues = server.get("/api/v1/queues");
        (queues["items"][0]["running"] == LEASES).then_some(())
    });

    let number = |sql: &str| postgres.query(sql).parse::<u64>().unwrap();
    let beat = || number("select beat from everbeat.replica");
    // Statistics of a finished statement appear within a second; full-page images belong to the checkpoint.
    let rows = || number("select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) from pg_stat_user_tables");
    let quiet = until(FINISH, "the load is over", || {
        let before = rows();
        pause(Duration::from_secs(2));
        let after = rows();
        (after - before <= 4).then_some(after)
    });
    postgres.query("checkpoint");
    let (first_beat, first_rows) = (beat(), quiet.max(rows()));
    let first_lsn = postgres.query("select pg_current_wal_lsn()");
    until(FINISH, "ten intervals have passed", || (beat() >= first_beat + INTERVALS).then_some(()));
    let wal = number(&format!("select pg_wal_lsn_diff(pg_current_wal_lsn(), '{first_lsn}')::bigint"));
    pause(Duration::from_secs(2));
    let updates = rows() - first_rows;
    eprintln!("{LEASES} leases over {INTERVALS} intervals: {updates} row updates, {wal} bytes of WAL");
    assert!(updates <= MOST_ROW_UPDATES, "{updates} row updates");
    assert!(wal <= MOST_WAL_BYTES, "{wal} bytes of WAL");

    let run: Value = server.get("/api/v1/runs?state=running&limit=1")["items"][0].clone();
    assert_eq!(run["liveness"], "alive");
    assert!(run["last_heartbeat_at"].is_string());
    assert_eq!(server.get("/api/v1/verdicts")["items"], json!([]));
    server.assert_sound();
}
