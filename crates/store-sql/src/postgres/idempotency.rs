//! Idempotency keys: taken in one order, so that no two transactions wait for each other.

use super::arrays::{arrays, given};
use super::fault::{Fault, Outcome};
use super::sql::now;
use super::transaction::Transaction;
use everbeat_model::Sent;
use everbeat_store::{Error, Idempotency, Result};
use std::sync::LazyLock;
use uuid::Uuid;

/// Takes a key. Waits for another request with the same key to end.
pub(super) const TAKE_KEY: &str = concat!(
    "with ",
    now!(),
    " insert into idempotency (key, fingerprint, run_ids, created_at) select $1, $2, '{}', now from t \
      on conflict (key) do nothing returning 1"
);

arrays! {
    /// Idempotency keys of requests that may be the first with them.
    Given of GivenKey<'a> {
        key: &'a str as "text",
        fingerprint: &'a str as "text",
    }
}

/// Takes keys, in one order. Waits for other requests with the same keys to end.
pub(super) static TAKE_KEYS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with {now} insert into idempotency (key, fingerprint, run_ids, created_at) \
           select g.key, g.fingerprint, '{{}}', t.now from ({given}) g, t order by g.key \
         on conflict (key) do nothing returning key",
        now = now!(),
        given = given(Given::COLUMNS),
    )
});

pub(super) const KEPT_KEYS: &str = "select key, fingerprint, run_ids from idempotency where key = any($1::text[])";

/// A key that was neither free nor kept: it was forgotten between two statements, and is free after all.
pub(super) fn expired() -> Fault {
    Fault::Again("an idempotency key just expired".to_string())
}

/// What an earlier request with this key made.
pub(super) async fn seen(transaction: &Transaction<'_>, idempotency: &Idempotency) -> Outcome<Result<Vec<Uuid>>> {
    let sql = "select fingerprint, run_ids from idempotency where key = $1";
    let rows = transaction.query(sql, &[&idempotency.key]).await?;
    let Some(row) = rows.first() else { return Err(expired()) };
    match idempotency.sent(Some((row.get(0), row.get(1)))) {
        Sent::Again(ids) => Ok(Ok(ids)),
        Sent::First | Sent::Reused => Ok(Err(Error::KeyReused { key: idempotency.key.clone() })),
    }
}
