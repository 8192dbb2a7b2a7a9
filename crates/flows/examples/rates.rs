//! How fast records go from a file into SQLite and PostgreSQL, next to the raw rate of the same rows in the same batches:
//! `rates [ROWS]`, with `EVERBEAT_TEST_POSTGRES` for PostgreSQL. Prints JSON.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use async_trait::async_trait;
use everbeat_flows::{Attempt, Configuration, Counts, Ledger, PATIENCE, Ports, Settings, Stop, Surroundings, run};
use everbeat_model::StoreTime;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

const BATCH: usize = 1000;
const TABLE: &str =
    "create table orders (id bigint primary key, customer text, amount double precision, paid boolean, note text)";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows: usize = std::env::args().nth(1).map_or(Ok(1_000_000), |rows| rows.parse())?;
    let folder = tempfile::tempdir()?;
    let source = folder.path().join("orders.ndjson");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&source)?);
    for id in 0..rows {
        let (id, customer, amount, paid, note) = row(id);
        let record = json!({"id": id, "customer": customer, "amount": amount, "paid": paid, "note": note});
        writeln!(file, "{record}")?;
    }
    file.flush()?;
    let mut report = json!({"rows": rows, "batch": BATCH});
    for order in ["raw first", "flow first"] {
        report["sqlite"][order] = sqlite(folder.path(), &source, rows, order).await?;
        if let Ok(url) = std::env::var("EVERBEAT_TEST_POSTGRES") {
            report["postgres"][order] = postgres(&url, &source, rows, order).await?;
        }
    }
    report["peak_rss_mib"] = json!(peak_mib());
    println!("{report:#}");
    Ok(())
}

fn compared(rows: usize, raw: f64, flow: f64) -> Value {
    let (raw, flow) = (rows as f64 / raw, rows as f64 / flow);
    json!({"raw_per_s": raw.round(), "flow_per_s": flow.round(), "flow_to_raw": (flow / raw * 100.0).round() / 100.0})
}

/// What is written, without reading it.
fn row(id: usize) -> (i64, String, f64, bool, &'static str) {
    (
        id as i64,
        format!("customer {}", id % 1000),
        (id % 500) as f64 + 0.25,
        id.is_multiple_of(2),
        "a note of some length",
    )
}

async fn flow(source: &Path, sink: Value) -> Result<f64, Box<dyn std::error::Error>> {
    let settings = Settings { allow_private_targets: true, ..Settings::default() };
    let value = json!({"source": {"type": "file", "path": source}, "sink": sink, "batch_size": BATCH});
    let configuration = Configuration::parse(&value, &settings)?;
    let around = Surroundings { flow: "rates".into(), run: "run".into(), fence: 1, range: None };
    let ports = Ports::default();
    let attempt = Attempt {
        configuration: &configuration,
        around,
        ports,
        ledger: &Nobody,
        checkpoint: None,
        previous: None,
        patience: PATIENCE,
    };
    let begun = Instant::now();
    let report = run(&attempt).await?;
    assert_eq!(report.counts.rejected, 0, "{:?}", report.rejected);
    Ok(begun.elapsed().as_secs_f64())
}

async fn sqlite(folder: &Path, source: &Path, rows: usize, order: &str) -> Result<Value, Box<dyn std::error::Error>> {
    let raw = || -> Result<f64, rusqlite::Error> {
        let path = folder.join("raw.db");
        let mut database = rusqlite::Connection::open(&path)?;
        database.execute_batch(TABLE)?;
        let begun = Instant::now();
        for batch in (0..rows).step_by(BATCH) {
            let transaction = database.transaction()?;
            {
                let mut insert = transaction.prepare_cached(
                    "insert into orders values (?1, ?2, ?3, ?4, ?5) on conflict (id) do update set customer = excluded.customer, \
                     amount = excluded.amount, paid = excluded.paid, note = excluded.note",
                )?;
                for id in batch..(batch + BATCH).min(rows) {
                    insert.execute(row(id))?;
                }
            }
            transaction.commit()?;
        }
        let taken = begun.elapsed().as_secs_f64();
        let _gone = std::fs::remove_file(path);
        Ok(taken)
    };
    let before = if order == "raw first" { Some(raw()?) } else { None };
    let path = folder.join("flow.db");
    rusqlite::Connection::open(&path)?.execute_batch(TABLE)?;
    let sink = json!({"type": "sql", "url": format!("sqlite://{}", path.display()), "table": "orders", "key": ["id"]});
    let through = flow(source, sink).await?;
    let _gone = std::fs::remove_file(path);
    let raw = before.map_or_else(raw, Ok)?;
    Ok(compared(rows, raw, through))
}

async fn postgres(url: &str, source: &Path, rows: usize, order: &str) -> Result<Value, Box<dyn std::error::Error>> {
    let (mut client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let fresh = format!("drop table if exists orders, everbeat_flow_cursor; {TABLE}");
    let (mut raw, mut through) = (0.0, 0.0);
    for flow_now in [order != "raw first", order == "raw first"] {
        client.batch_execute(&fresh).await?;
        if flow_now {
            through = flow(source, json!({"type": "sql", "url": url, "table": "orders", "key": ["id"]})).await?;
            continue;
        }
        let begun = Instant::now();
        let insert = client
            .prepare(
                "insert into orders select * from unnest($1::bigint[], $2::text[], $3::float8[], $4::boolean[], $5::text[]) \
                 on conflict (id) do update set customer = excluded.customer, amount = excluded.amount, paid = excluded.paid, \
                 note = excluded.note",
            )
            .await?;
        for batch in (0..rows).step_by(BATCH) {
            let all: Vec<_> = (batch..(batch + BATCH).min(rows)).map(row).collect();
            let ids: Vec<i64> = all.iter().map(|row| row.0).collect();
            let customers: Vec<&str> = all.iter().map(|row| row.1.as_str()).collect();
            let amounts: Vec<f64> = all.iter().map(|row| row.2).collect();
            let paid: Vec<bool> = all.iter().map(|row| row.3).collect();
            let notes: Vec<&str> = all.iter().map(|row| row.4).collect();
            let transaction = client.transaction().await?;
            transaction.execute(&insert, &[&ids, &customers, &amounts, &paid, &notes]).await?;
            transaction.commit().await?;
        }
        raw = begun.elapsed().as_secs_f64();
    }
    client.batch_execute("drop table if exists orders, everbeat_flow_cursor").await?;
    Ok(compared(rows, raw, through))
}

fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}

/// An engine that only takes note.
struct Nobody;

#[async_trait]
impl Ledger for Nobody {
    async fn committed(&self, _: &Value, _: &Counts) -> Result<(), Stop> {
        Ok(())
    }

    fn check(&self) -> Result<(), Stop> {
        Ok(())
    }

    fn beat(&self, note: &str) {
        eprintln!("{note}");
    }

    async fn sleep(&self, span: Duration) -> Result<(), Stop> {
        tokio::time::sleep(span).await;
        Ok(())
    }

    fn now(&self) -> StoreTime {
        StoreTime(0)
    }
}
