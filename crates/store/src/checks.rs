use crate::{CheckRow, Deleted, Result};
use async_trait::async_trait;
use everbeat_model::check::{Check, CheckState, Ping, Signal};
use std::collections::BTreeMap;
use std::time::Duration;

/// Checks and their pings. What a ping, a look or another definition makes of a check is decided by
/// [`Vitals`](everbeat_model::check::Vitals) at the store's time, under the lock of the check, and written with its events
/// in one transaction: each change is told once, whoever pings or looks.
#[async_trait]
pub trait Checks {
    /// Writes a check. Another definition under the same name takes the place of the one before; its pings stay.
    async fn put_check(&self, put: PutCheck) -> Result<CheckPut>;

    /// Pauses or resumes a check; none if there is no such check.
    async fn pause_check(&self, name: &str, paused: bool) -> Result<Option<CheckRow>>;

    /// Forgets a check and its pings.
    async fn delete_check(&self, name: &str, version: Option<u64>) -> Result<Deleted>;

    async fn check(&self, name: &str) -> Result<Option<CheckRow>>;

    /// By name.
    async fn checks(&self, filter: CheckFilter) -> Result<Vec<CheckRow>>;

    /// How many checks are in each state.
    async fn count_checks(&self) -> Result<BTreeMap<CheckState, u64>>;

    /// Takes a ping. The first one of an unknown name makes its check.
    async fn ping_check(&self, ping: NewPing) -> Result<Pinged>;

    /// The pings of a check that are kept, newest first; none if there is no such check.
    async fn pings(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Option<Vec<Ping>>>;

    /// The names of checks that stand otherwise by now, longest due first, at most `limit`.
    async fn due_checks(&self, limit: usize) -> Result<DueChecks>;

    /// Writes what has become of a check by the passing of time; none if there is no such check, or none that can be
    /// read.
    async fn look_at_check(&self, name: &str) -> Result<Option<CheckRow>>;
}

#[derive(Clone, Debug)]
pub struct PutCheck {
    pub check: Check,
    pub expected: Expected,
    /// No new check is made if there are so many.
    pub most: usize,
}

/// What must be there for a check to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Anything,
    Nothing,
    Version(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub enum CheckPut {
    Created(CheckRow),
    Replaced(CheckRow),
    /// The same was written before.
    Unchanged(CheckRow),
    /// Its version is another one; none if there is no such check.
    Conflict(Option<u64>),
    /// There are as many as there may be.
    TooMany,
}

#[derive(Clone, Debug)]
pub struct NewPing {
    /// The check as this ping makes it, should there be none of its name.
    pub check: Check,
    pub signal: Signal,
    pub body: Option<String>,
    /// No new check is made if there are so many.
    pub most: usize,
}

#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly every one is the large one, and is taken apart at once")]
pub enum Pinged {
    Done {
        check: CheckRow,
        created: bool,
    },
    /// The check would be new, and there are as many as there may be.
    TooMany,
}

#[derive(Clone, Debug, Default)]
pub struct CheckFilter {
    pub state: Option<CheckState>,
    /// Only names after this one.
    pub after: Option<String>,
    pub limit: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DueChecks {
    pub names: Vec<String>,
    /// How long until the next one is to be looked at; none if there is none.
    pub next_in: Option<Duration>,
}
