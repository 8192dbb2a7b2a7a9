//! What users ask of checks, and what outside jobs say.

use crate::{Engine, Error, Result};
use everbeat_model::check::{Check, MOST_CHECKS, Ping, Signal};
use everbeat_store::{CheckFilter, CheckPut, CheckRow, Deleted, Expected, NewPing, Pinged, PutCheck};

/// A check to be written.
#[derive(Clone, Debug)]
pub struct WriteCheck {
    pub check: Check,
    pub expected: Expected,
}

impl Engine {
    /// Writes a check; true if it is new.
    pub async fn write_check(&self, write: WriteCheck) -> Result<(CheckRow, bool)> {
        let name = write.check.name.clone();
        let put = PutCheck { check: write.check, expected: write.expected, most: MOST_CHECKS };
        let put = self.core.bounded(self.core.store.put_check(put)).await?;
        // Its state may change sooner than that of any other.
        self.core.schedules_noted.notify_one();
        match put {
            CheckPut::Created(row) => Ok((row, true)),
            CheckPut::Replaced(row) | CheckPut::Unchanged(row) => Ok((row, false)),
            CheckPut::Conflict(None) => Err(not_found(&name)),
            CheckPut::Conflict(Some(version)) if write.expected == Expected::Nothing => Err(Error::Precondition {
                problem: format!("check {name:?} exists, with version {version}"),
                hint: "leave If-None-Match out to replace it, or choose another name".to_string(),
            }),
            CheckPut::Conflict(Some(version)) => Err(conflict(&name, version)),
            CheckPut::TooMany => Err(too_many(&name)),
        }
    }

    pub async fn check(&self, name: &str) -> Result<CheckRow> {
        self.core.store.check(name).await?.ok_or_else(|| not_found(name))
    }

    /// By name.
    pub async fn checks(&self, filter: CheckFilter) -> Result<Vec<CheckRow>> {
        Ok(self.core.store.checks(filter).await?)
    }

    pub async fn pause_check(&self, name: &str, paused: bool) -> Result<CheckRow> {
        let row = self.core.bounded(self.core.store.pause_check(name, paused)).await?;
        self.core.schedules_noted.notify_one();
        row.ok_or_else(|| not_found(name))
    }

    pub async fn delete_check(&self, name: &str, version: Option<u64>) -> Result<()> {
        match self.core.bounded(self.core.store.delete_check(name, version)).await? {
            Deleted::Done => Ok(()),
            Deleted::NotFound => Err(not_found(name)),
            Deleted::Conflict(version) => Err(conflict(name, version)),
        }
    }

    /// Takes a ping; true if that has made the check. What a start makes due is found by the next tick.
    pub async fn ping(&self, name: &str, signal: Signal, body: Option<String>) -> Result<(CheckRow, bool)> {
        let ping = NewPing { check: Check::by_default(name)?, signal, body, most: MOST_CHECKS };
        match self.core.bounded(self.core.store.ping_check(ping)).await? {
            Pinged::Done { check, created } => {
                metrics::counter!("everbeat_pings_total", "kind" => signal.kind.as_str()).increment(1);
                Ok((check, created))
            }
            Pinged::TooMany => Err(too_many(name)),
        }
    }

    /// The pings of a check that are kept, newest first.
    pub async fn pings(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Ping>> {
        self.core.store.pings(name, before, limit).await?.ok_or_else(|| not_found(name))
    }
}

fn not_found(name: &str) -> Error {
    Error::NotFound { what: "check", id: format!("{name:?}") }
}

fn conflict(name: &str, version: u64) -> Error {
    Error::Precondition {
        problem: format!("check {name:?} has version {version} by now"),
        hint: "read it again, and send its version in If-Match".to_string(),
    }
}

fn too_many(name: &str) -> Error {
    Error::Conflict {
        problem: format!("check {name:?} would be new, and there are {MOST_CHECKS} already"),
        hint: "check the name, or delete checks that nobody needs: `everbeat check rm NAME`".to_string(),
    }
}
