//! The cursor of a run, in the database that the run writes to.

use super::super::sink::{CURSORS, KEPT_RUNS, fenced};
use super::fault::{Fault, trouble};
use crate::{Committed, Surroundings, Trouble, Written, outcome};
use serde_json::Value;
use tokio_postgres::{Client, Statement};

/// Takes the run's row for this attempt. Waits until a transaction of an earlier attempt is over.
pub(super) async fn take(client: &Client, around: &Surroundings) -> Result<(), Trouble> {
    let failed = |error: tokio_postgres::Error| trouble(&error);
    let exists = format!("select to_regclass('{CURSORS}') is not null");
    if !client.query_one(&exists, &[]).await.map_err(failed)?.get::<_, bool>(0) {
        let created = client
            .batch_execute(&format!(
                "create table if not exists {CURSORS} (flow text not null, run text not null, fence bigint not null, \
                 cursor text, outcome text, at timestamptz not null default clock_timestamp(), primary key (flow, run))"
            ))
            .await;
        match created.map_err(Fault::from) {
            // Somebody else has created it at the same moment.
            Ok(()) | Err(Fault::Data(_)) => {}
            Err(Fault::Trouble(trouble)) => return Err(trouble),
            Err(Fault::Twice) => {}
        }
    }
    let sql = format!(
        "insert into {CURSORS} as c (flow, run, fence) values ($1, $2, $3) \
         on conflict (flow, run) do update set fence = excluded.fence where c.fence <= excluded.fence"
    );
    let taken = client.execute(&sql, &[&&*around.flow, &&*around.run, &fence_of(around)]).await.map_err(failed)?;
    if taken == 0 {
        return Err(fenced(around));
    }
    let sql = format!(
        "delete from {CURSORS} where flow = $1 and run <> $2 and run not in \
         (select run from {CURSORS} where flow = $1 order by at desc limit $3)"
    );
    client.execute(&sql, &[&&*around.flow, &&*around.run, &KEPT_RUNS]).await.map_err(failed)?;
    Ok(())
}

/// The row's cursor and outcome: of this run, else of the flow's last run that has one.
pub(super) async fn committed(
    client: &Client,
    around: &Surroundings,
) -> Result<Option<(Committed, Option<Written>)>, Trouble> {
    let sql = format!(
        "select run, cursor, outcome from {CURSORS} where flow = $1 and cursor is not null \
         order by run = $2 desc, at desc limit 1"
    );
    let row = client.query_opt(&sql, &[&&*around.flow, &&*around.run]).await.map_err(|error| trouble(&error))?;
    Ok(row.and_then(|row| {
        let (run, cursor, written): (String, String, Option<String>) = (row.get(0), row.get(1), row.get(2));
        let cursor = serde_json::from_str(&cursor).ok()?;
        let written = written.as_deref().and_then(outcome::from_text).filter(|_| *run == *around.run);
        Some((Committed { run, cursor }, written))
    }))
}

/// What each batch does with the run's row, prepared once.
pub(super) struct Held {
    lock: Statement,
    commit: Statement,
}

impl Held {
    pub(super) async fn prepare(client: &Client) -> Result<Held, Trouble> {
        let lock = format!("select 1 from {CURSORS} where flow = $1 and run = $2 and fence = $3 for update");
        let commit = format!(
            "update {CURSORS} set cursor = $3, outcome = $4, at = clock_timestamp() where flow = $1 and run = $2"
        );
        let (lock, commit) = tokio::join!(client.prepare(&lock), client.prepare(&commit));
        let failed = |error: tokio_postgres::Error| trouble(&error);
        Ok(Held { lock: lock.map_err(failed)?, commit: commit.map_err(failed)? })
    }

    /// Locks the row until the transaction's end, if it is still this attempt's.
    pub(super) async fn lock(&self, client: &Client, around: &Surroundings) -> Result<(), Trouble> {
        let fence = fence_of(around);
        let row = client.query_opt(&self.lock, &[&&*around.flow, &&*around.run, &fence]).await;
        row.map_err(|error| trouble(&error))?.map(|_| ()).ok_or_else(|| fenced(around))
    }

    pub(super) async fn commit(
        &self,
        client: &Client,
        around: &Surroundings,
        cursor: &Value,
        written: &Written,
    ) -> Result<(), Trouble> {
        let (cursor, written) = (cursor.to_string(), outcome::to_text(written));
        let updated = client.execute(&self.commit, &[&&*around.flow, &&*around.run, &cursor, &written]).await;
        updated.map(|_| ()).map_err(|error| trouble(&error))
    }
}

fn fence_of(around: &Surroundings) -> i64 {
    i64::try_from(around.fence).unwrap_or(i64::MAX)
}
