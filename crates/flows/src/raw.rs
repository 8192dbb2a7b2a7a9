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

/// A schema of its own in a database that others use, too, and with it all that a measurement makes there.
pub struct Schema {
    name: String,
    database: String,
    /// Of the database, with this schema as the place of every table.
    pub url: String,
}

impl Schema {
    pub async fn create(url: &str, name: &str) -> Result<Schema, Trouble> {
        let mut own = url::Url::parse(url).map_err(failed)?;
        own.query_pairs_mut().append_pair("options", &format!("-csearch_path={name}"));
        connect(url).await?.batch_execute(&format!("create schema \"{name}\"")).await.map_err(failed)?;
        // A query of a URL writes a space as "+", which the driver would not read as one.
        let own = own.to_string().replace('+', "%20");
        Ok(Schema { name: name.to_string(), database: url.to_string(), url: own })
    }

    pub async fn remove(self) -> Result<(), Trouble> {
        let gone = format!("drop schema \"{}\" cascade", self.name);
        connect(&self.database).await?.batch_execute(&gone).await.map_err(failed)
    }

    /// Makes the table `orders` anew, without rows.
    pub async fn clear(&self) -> Result<(), Trouble> {
        let anew = format!("drop table if exists \"{}\".orders; {TABLE}", self.name);
        connect(&self.url).await?.batch_execute(&anew).await.map_err(failed)
    }

    pub async fn rows(&self) -> Result<i64, Trouble> {
        let counted = connect(&self.url).await?.query_one("select count(*) from orders", &[]).await;
        counted.map(|row| row.get(0)).map_err(failed)
    }

    /// Rows per second into the table `orders`, which is made anew.
    pub async fn rate(&self, rows: usize, batch: usize) -> Result<f64, Trouble> {
        self.clear().await?;
        let mut client = connect(&self.url).await?;
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

pub async fn delete_redis_stream(url: &str, name: &str) -> Result<(), Trouble> {
    let client = redis::Client::open(url).map_err(failed)?;
    let mut link = client.get_multiplexed_async_connection().await.map_err(failed)?;
    redis::cmd("DEL").arg(name).query_async::<()>(&mut link).await.map_err(failed)
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

#[expect(clippy::disallowed_methods, reason = "no engine is there whose clock and chance it could use")]
async fn connect(url: &str) -> Result<tokio_postgres::Client, Trouble> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(failed)?;
    tokio::spawn(connection);
    Ok(client)
}

fn failed(error: impl std::fmt::Display) -> Trouble {
    Trouble::permanent(error.to_string())
}
