//! The server is killed in the middle of flows, again and again: every record is in the sink exactly once.

mod common;
mod net;
mod postgres;

use common::{FINISH, Server, quick, until};
use net::{Nats, Redis, fresh};
use postgres::Postgres;
use serde_json::{Value, json};
use std::fs;

const ROWS: usize = 100_000;
const KILLS: usize = 10;

fn records() -> impl Iterator<Item = Value> {
    (0..ROWS).map(|n| json!({"n": n, "name": format!("row {n}")}))
}

/// Performs one run, kills the server ten times while it runs, and answers what the ledger says in the end. The sink has no key:
/// a record that is written twice is there twice.
fn through_ten_kills(mut server: Server, configuration: &Value) -> (Server, Value) {
    let flow = json!({"configuration": configuration});
    let (status, answer) = server.put("/api/v1/flows/moved", &flow);
    assert_eq!(status, 201, "{answer}");
    let (_, asked) = server.post("/api/v1/flows/moved/trigger", &json!({}));
    let id = asked["id"].as_str().expect("an id").to_string();
    let now = |server: &Server| {
        let runs = server.get("/api/v1/flows/moved/runs");
        runs["items"].as_array().into_iter().flatten().find(|run| run["id"] == *id).cloned()
    };
    for kill in 1..=KILLS {
        let far_enough = kill * ROWS / (KILLS + 2);
        until(FINISH, "the flow to come further", || {
            let run = now(&server)?;
            assert!(run["ended_at"].is_null(), "it ended before kill {kill}: {run}");
            let own = run["status"] == "in_progress" && run["attempt"] == kill;
            (own && run["counts"]["read"].as_u64()? as usize >= far_enough).then_some(())
        });
        server = server.restart();
    }
    let done = until(FINISH, "the end of the flow", || now(&server).filter(|run| !run["ended_at"].is_null()));
    assert_eq!(done["status"], "success", "{done}");
    assert_eq!(done["attempt"], KILLS + 1, "{done}");
    // The counts are exact, whatever was lost.
    let counts = &done["counts"];
    assert_eq!((&counts["read"], &counts["written"]), (&json!(ROWS), &json!(ROWS)), "{done}");
    let attempts = server.get(&format!("/api/v1/runs/{id}/attempts"))["items"].as_array().cloned().unwrap_or_default();
    let lost = attempts.iter().filter(|attempt| attempt["outcome"] == "lost").count();
    assert_eq!(lost, KILLS, "{attempts:?}");
    server.assert_sound();
    (server, done)
}

fn assert_in_sqlite(server: &Server) {
    let shop = rusqlite::Connection::open(server.folder().join("shop.db")).expect("a database");
    let counted = "select count(*), count(distinct n), min(n), max(n) from moved";
    let found = shop
        .query_row(counted, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .expect("four numbers");
    let rows = ROWS as i64;
    assert_eq!(found, (rows, rows, 0i64, rows - 1));
}

fn in_sqlite(server: &Server) -> Value {
    let shop = rusqlite::Connection::open(server.folder().join("shop.db")).expect("a database");
    shop.execute_batch("pragma journal_mode = wal; create table moved (n integer, name text)").expect("a table");
    json!({"type": "sql", "url": "sqlite://shop.db", "table": "moved"})
}

#[test]
fn from_a_file_into_sqlite() {
    let server = Server::start(quick());
    let lines: String = records().map(|record| format!("{record}\n")).collect();
    fs::write(server.folder().join("in.ndjson"), lines).expect("a file");
    let sink = in_sqlite(&server);
    let source = json!({"type": "file", "path": "in.ndjson"});
    let (server, _) = through_ten_kills(server, &json!({"source": source, "sink": sink, "batch_size": 200}));
    assert_in_sqlite(&server);
}

#[test]
fn from_sqlite_into_postgres() {
    let postgres = Postgres::start();
    postgres.query("create table moved (n bigint, name text)");
    let connections = json!({"database": postgres.url()});
    let server = Server::start(quick().env("EVERBEAT_FLOWS__CONNECTIONS", &connections));
    let shop = rusqlite::Connection::open(server.folder().join("shop.db")).expect("a database");
    shop.execute_batch(&format!(
        "pragma journal_mode = wal; create table rows (n integer primary key, name text); \
         with recursive c(n) as (select 0 union all select n + 1 from c where n < {ROWS} - 1) \
         insert into rows select n, 'row ' || n from c"
    ))
    .expect("rows");
    let source = json!({"type": "sql", "url": "sqlite://shop.db", "table": "rows", "cursor": "n"});
    let sink = json!({"type": "sql", "connection": "database", "table": "moved"});
    through_ten_kills(server, &json!({"source": source, "sink": sink, "batch_size": 200}));
    let found = postgres.query("select count(*) || ' ' || count(distinct n) || ' ' || max(n) from moved");
    assert_eq!(found, format!("{ROWS} {ROWS} {}", ROWS - 1));
}

#[test]
fn from_redis_into_postgres() {
    let postgres = Postgres::start();
    postgres.query("create table moved (n bigint, name text)");
    let connections = json!({"redis": Redis::url(), "database": postgres.url()});
    let server = Server::start(quick().env("EVERBEAT_FLOWS__CONNECTIONS", &connections));
    let stream = fresh("killed");
    let mut redis = Redis::connect();
    redis.add(&stream, records());
    let source = json!({"type": "redis_stream", "stream_name": stream, "consumer_group": "movers"});
    let sink = json!({"type": "sql", "connection": "database", "table": "moved"});
    through_ten_kills(server, &json!({"source": source, "sink": sink, "batch_size": 200}));
    let found = postgres.query("select count(*) || ' ' || count(distinct n) || ' ' || max(n) from moved");
    assert_eq!(found, format!("{ROWS} {ROWS} {}", ROWS - 1));
    assert_eq!(redis.ask(&["XPENDING", &stream, "movers"])[0], 0, "all are acknowledged");
    redis.ask(&["DEL", &stream]);
}

#[test]
fn from_nats_into_sqlite() {
    let connections = json!({"nats": Nats::url()});
    let server = Server::start(quick().env("EVERBEAT_FLOWS__CONNECTIONS", &connections));
    let stream = fresh("killed");
    Nats::connect().stream(&stream, records());
    let sink = in_sqlite(&server);
    let source = json!({"type": "nats_jetstream", "stream": stream, "durable": "mover", "ack_wait": "2s"});
    let (server, _) = through_ten_kills(server, &json!({"source": source, "sink": sink, "batch_size": 200}));
    assert_in_sqlite(&server);
    Nats::connect().api(&format!("STREAM.DELETE.{stream}"), &json!({}));
}
