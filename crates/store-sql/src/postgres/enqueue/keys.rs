//! The keys of requests in a transaction of several statements.

use crate::postgres::arrays::{Statement, arrays, given, insert, numbered};
use crate::postgres::fault::{Fault, Outcome};
use crate::postgres::idempotency::{Given, GivenKey, KEPT_KEYS, TAKE_KEYS, expired};
use crate::postgres::transaction::Transaction;
use everbeat_model::RunId;
use everbeat_model::enqueue::Intake;
use everbeat_store::Enqueue;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use tokio_postgres::Row;
use uuid::Uuid;

arrays! {
    /// Unique keys, and the runs that are to hold them.
    Holders of Holder<'a> {
        key: &'a str as "text",
        run_id: Uuid as "uuid",
    }
}

/// Takes unique keys, in one order. Waits for others with the same keys to end.
static TAKE_UNIQUE: LazyLock<String> =
    LazyLock::new(|| insert("unique_key", Holders::COLUMNS) + " order by 1 on conflict (key) do nothing returning key");

const HELD: &str = "select key, run_id from unique_key where key = any($1::text[])";

/// Passes unique keys on to the runs that hold them by right.
static PASS_ON: LazyLock<String> = LazyLock::new(|| {
    format!("update unique_key u set run_id = g.run_id from ({}) g where u.key = g.key", given(Holders::COLUMNS))
});

const GIVE_BACK: &str = "delete from unique_key where key = any($1::text[])";

/// Which of these runs are stored.
const STORED: &str = "select id from run where id = any($1::uuid[])";

arrays! {
    /// Idempotency keys, each with the runs that its request was answered, in their order.
    Kept of KeptKey<'a> {
        key: &'a str as "text",
        id: Uuid as "uuid",
    }
}

static KEEP: LazyLock<String> = LazyLock::new(|| {
    format!(
        "update idempotency i set run_ids = k.ids \
         from (select g.key, array_agg(g.id order by g.nth) as ids from ({}) g group by g.key) k where i.key = k.key",
        numbered(Kept::COLUMNS)
    )
});

/// The keys of requests. Those that were free are this transaction's.
pub(super) struct Keys<'a> {
    idempotency: BTreeSet<&'a str>,
    /// With the run that the key was taken for, which need not become its holder.
    unique: BTreeMap<&'a str, RunId>,
}

impl<'a> Keys<'a> {
    /// Takes each key that is free, and reads what is stored of the others and of the runs.
    pub(super) async fn take(transaction: &Transaction<'_>, requests: &[&'a Enqueue]) -> Outcome<(Keys<'a>, Intake)> {
        let mut idempotency: BTreeMap<&str, &str> = BTreeMap::new();
        let mut unique: BTreeMap<&str, RunId> = BTreeMap::new();
        for request in requests {
            if let Some(given) = &request.idempotency {
                idempotency.entry(&given.key).or_insert(&given.fingerprint);
            }
            for run in &request.runs {
                if let Some(key) = &run.spec.unique_key {
                    unique.entry(key).or_insert(run.id);
                }
            }
        }
        let (mut keys, mut holders) = (Given::default(), Holders::default());
        idempotency.iter().for_each(|(key, fingerprint)| keys.push(GivenKey { key, fingerprint }));
        unique.iter().for_each(|(key, run)| holders.push(Holder { key, run_id: run.0 }));
        let runs: Vec<Uuid> = requests.iter().flat_map(|request| &request.runs).map(|run| run.id.0).collect();
        // Idempotency keys before unique keys, as everybody takes them; what is read is read when all are taken.
        let rows = transaction
            .all(&[
                (&TAKE_KEYS, &keys.params()),
                (&TAKE_UNIQUE, &holders.params()),
                (KEPT_KEYS, &[&keys.key]),
                (HELD, &[&holders.key]),
                (STORED, &[&runs]),
            ])
            .await?;
        let [taken, taken_unique, kept, held, stored] = &rows[..] else {
            return Err(Fault::Bug(format!("five statements had {} answers", rows.len())));
        };
        let (taken, taken_unique) = (first_column(taken), first_column(taken_unique));
        let intake = Intake {
            kept: kept
                .iter()
                .filter(|row| !taken.contains(row.get::<_, &str>(0)))
                .map(|row| (row.get(0), (row.get(1), row.get::<_, Vec<Uuid>>(2).into_iter().map(RunId).collect())))
                .collect(),
            holders: held
                .iter()
                .filter(|row| !taken_unique.contains(row.get::<_, &str>(0)))
                .map(|row| (row.get(0), RunId(row.get(1))))
                .collect(),
            stored: stored.iter().map(|row| RunId(row.get(0))).collect(),
        };
        if taken.len() + intake.kept.len() < idempotency.len() {
            return Err(expired());
        }
        if taken_unique.len() + intake.holders.len() < unique.len() {
            return Err(Fault::Again("the run that held a unique key has just finished".to_string()));
        }
        idempotency.retain(|key, _| taken.contains(key));
        unique.retain(|key, _| taken_unique.contains(key));
        Ok((Keys { idempotency: idempotency.into_keys().collect(), unique }, intake))
    }

    /// Leaves with each key what was decided about it.
    pub(super) fn decided(&self, intake: &Intake) -> DecidedKeys<'a> {
        let mut decided = DecidedKeys::default();
        for key in &self.idempotency {
            let runs = intake.kept.get(*key).map(|(_, runs)| &runs[..]).unwrap_or_default();
            runs.iter().for_each(|run| decided.kept.push(KeptKey { key, id: run.0 }));
        }
        for (key, run) in &self.unique {
            match intake.holders.get(*key) {
                None => decided.unused.push(key),
                Some(holder) if holder == run => {}
                Some(holder) => decided.passed_on.push(Holder { key, run_id: holder.0 }),
            }
        }
        decided
    }
}

fn first_column(rows: &[Row]) -> BTreeSet<&str> {
    rows.iter().map(|row| row.get(0)).collect()
}

/// What is written about keys after all is decided.
#[derive(Default)]
pub(super) struct DecidedKeys<'a> {
    kept: Kept<'a>,
    passed_on: Holders<'a>,
    /// Unique keys whose runs are stored and over, or belong to requests that make nothing.
    unused: Vec<&'a str>,
}

impl DecidedKeys<'_> {
    pub(super) fn statements(&self) -> Vec<Statement<'_>> {
        let mut statements = Vec::new();
        statements.extend(self.kept.statement(&KEEP));
        statements.extend(self.passed_on.statement(&PASS_ON));
        if !self.unused.is_empty() {
            statements.push((GIVE_BACK, vec![&self.unused]));
        }
        statements
    }
}
