//! Measures the raw batched rates of both stores:
//!
//!     cargo run --release -p everbeat-store-sql --example raw -- [runs] [batch] [postgres URL]

use everbeat_model::StoreTime;
use everbeat_store_sql::raw::{RawRates, raw_rates};
use everbeat_store_sql::{Postgres, PostgresOptions, Sqlite};
use std::sync::Arc;
use uuid::Uuid;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let runs = arguments.next().and_then(|runs| runs.parse().ok()).unwrap_or(100_000);
    let batch = arguments.next().and_then(|batch| batch.parse().ok()).unwrap_or(1000);
    let url = arguments.next();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let random = Arc::new(|| Uuid::new_v4().as_u128());
    let sqlite = Sqlite::open(&folder.path().join("raw.db"), Arc::new(wall_clock), random).expect("SQLite opens");
    for _ in 0..2 {
        report("sqlite", raw_rates(&sqlite, runs, batch).await.expect("SQLite works"));
    }
    if let Some(url) = url {
        let options = PostgresOptions { schema: "raw".to_string(), ..PostgresOptions::default() };
        let postgres = Postgres::open(&url, options).await.expect("PostgreSQL opens");
        for _ in 0..3 {
            report("postgres", raw_rates(&postgres, runs, batch).await.expect("PostgreSQL works"));
        }
    }
}

fn report(store: &str, rates: RawRates) {
    println!(
        "{store}: insert {:.0}/s, claim {:.0}/s, settle {:.0}/s, claim and settle {:.0}/s",
        rates.insert_per_s,
        rates.claim_per_s,
        rates.settle_per_s,
        rates.claim_and_settle_per_s()
    );
}

#[allow(clippy::disallowed_methods, reason = "a real clock for a real store")]
fn wall_clock() -> StoreTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    StoreTime(i64::try_from(since.as_micros()).expect("before 294,000"))
}
