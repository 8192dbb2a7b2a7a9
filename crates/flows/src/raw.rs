//! What sinks take without a flow: rows that are in memory already, in batches, each a transaction. Flows are measured next to it.

use crate::Trouble;
use crate::blocking::blocking;
use crate::timely::Stopwatch;
use async_nats::jetstream;
use serde_json::{Value, json};
use std::path::PathBuf;
use tokio_postgres::NoTls;

/// The table that rows are written to, in SQLite and PostgreSQL.
pub const TABLE: &str = "create table orders \
    (id bigint primary key, customer text, amount double precision, paid boolean, note text)";

type Row = (i64, String, f64, bool, &'static str);

fn row(id: usize) -> Row {
    let amount = (id % 500) as f64 + 0.25;
    (id as i64, format!("customer {}", id % 1000), amount, id.is_multiple_of(2), "a note of some length")
}

/// The record of which a sink makes the row with this id.
pub fn record(id: usize) -> Value {
    let (id, customer, amount, paid, note) = row(id);
    json!({"id": id, "customer": customer, "amount": amount, "paid": paid, "note": note})
}

/// Rows per second into a new SQLite file, with the durability that flows have.
pub async fn sqlite(path: PathBuf, rows: usize, batch: usize) -> Result<f64, Trouble> {
    let write = move || -> Result<f64, rusqlite::Error> {
        let mut database = rusqlite::Connection::open(&path)?;
        database.execute_batch(TABLE)?;
        let begun = Stopwatch::start();
        for first in (0..rows).step_by(batch) {
            let transaction = database.transaction()?;
            {
                let mut insert = transaction.prepare_cached(
                    "insert into orders values (?1, ?2, ?3, ?4, ?5) on conflict (id) do update set \
                     customer = excluded.customer, amount = excluded.amount, paid = excluded.paid, note = excluded.note",
                )?;
                for id in first..(first + batch).min(rows) {
                    insert.execute(row(id))?;
                }
            }
            transaction.commit()?;
        }
        Ok(rows as f64 / begun.elapsed().as_secs_f64())
    };
    blocking(move || write().map_err(failed)).await
}

/// Rows per second into the table `orders` of PostgreSQL, which is made anew.
pub async fn postgres(url: &str, rows: usize, batch: usize) -> Result<f64, Trouble> {
    let mut client = connect(url).await?;
    client.batch_execute(&anew()).await.map_err(failed)?;
    let upsert = "insert into orders select * from unnest($1::bigint[], $2::text[], $3::float8[], $4::boolean[], $5::text[]) \
         on conflict (id) do update set customer = excluded.customer, amount = excluded.amount, paid = excluded.paid, \
         note = excluded.note";
    let upsert = client.prepare(upsert).await.map_err(failed)?;
    let begun = Stopwatch::start();
    for first in (0..rows).step_by(batch) {
        let all: Vec<Row> = (first..(first + batch).min(rows)).map(row).collect();
        let ids: Vec<i64> = all.iter().map(|row| row.0).collect();
        let customers: Vec<&str> = all.iter().map(|row| row.1.as_str()).collect();
        let amounts: Vec<f64> = all.iter().map(|row| row.2).collect();
        let paid: Vec<bool> = all.iter().map(|row| row.3).collect();
        let notes: Vec<&str> = all.iter().map(|row| row.4).collect();
        let transaction = client.transaction().await.map_err(failed)?;
        transaction.execute(&upsert, &[&ids, &customers, &amounts, &paid, &notes]).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
    }
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
}

/// Makes the table `orders` of PostgreSQL anew, and answers how many rows it had.
pub async fn clear_postgres(url: &str) -> Result<i64, Trouble> {
    let client = connect(url).await?;
    let counted = client.query_one("select count(*) from orders", &[]).await.map_err(failed)?;
    client.batch_execute(&anew()).await.map_err(failed)?;
    Ok(counted.get(0))
}

/// Removes what a measurement made in PostgreSQL.
pub async fn drop_postgres(url: &str) -> Result<(), Trouble> {
    connect(url).await?.batch_execute(GONE).await.map_err(failed)
}

/// A stream of NATS for one subject, which has its name.
pub async fn nats_stream(url: &str, name: &str) -> Result<(), Trouble> {
    let context = jetstream::new(nats(url).await?);
    let config = jetstream::stream::Config {
        name: name.to_string(),
        subjects: vec![name.to_string()],
        ..jetstream::stream::Config::default()
    };
    context.create_stream(config).await.map_err(failed)?;
    Ok(())
}

pub async fn delete_nats_stream(url: &str, name: &str) -> Result<(), Trouble> {
    jetstream::new(nats(url).await?).delete_stream(name).await.map_err(failed)?;
    Ok(())
}

async fn nats(url: &str) -> Result<async_nats::Client, Trouble> {
    let parsed = url::Url::parse(url).map_err(failed)?;
    let (user, password) = (parsed.username().to_string(), parsed.password().unwrap_or_default().to_string());
    let options = match user.is_empty() {
        true => async_nats::ConnectOptions::new(),
        false => async_nats::ConnectOptions::with_user_and_password(user, password),
    };
    options.connect(url).await.map_err(failed)
}

const GONE: &str = "drop table if exists orders, everbeat_flow_cursor";

fn anew() -> String {
    format!("{GONE}; {TABLE}")
}

#[expect(clippy::disallowed_methods, reason = "no engine is there whose clock and chance it could use")]
async fn connect(url: &str) -> Result<tokio_postgres::Client, Trouble> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(failed)?;
    tokio::spawn(connection);
    Ok(client)
}

fn failed(error: impl std::fmt::Display) -> Trouble {
    Trouble::permanent(error.to_string())
}
