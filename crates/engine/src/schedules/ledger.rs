//! The ledger of a flow or schedule: each of its runs, with what became of it.

use crate::{Engine, Result};
use everbeat_model::schedule::{Occurrence, ScheduleKind};
use everbeat_model::{Run, RunId};
use everbeat_store::{LeftOut, RunFilter};

/// A part of a ledger.
#[derive(Clone, Debug)]
pub struct LedgerPage {
    /// What waits for its turn, oldest first; only in the first part.
    pub waiting: Vec<Occurrence>,
    /// Newest first.
    pub runs: Vec<Run>,
    /// There would be more, had they not been so large.
    pub cut_short: bool,
}

impl Engine {
    /// The runs of a flow or schedule.
    pub async fn ledger(
        &self,
        kind: ScheduleKind,
        name: &str,
        before: Option<RunId>,
        limit: usize,
    ) -> Result<LedgerPage> {
        let stored = self.stored_schedule(kind, name).await?;
        let store = &self.core.store;
        let waiting = match before {
            None => store.waiting_occurrences(stored.id).await?,
            Some(_) => Vec::new(),
        };
        let filter = RunFilter { schedule: Some(stored.id), before, limit, ..RunFilter::default() };
        let runs = store.runs(filter).await?;
        Ok(LedgerPage { waiting, runs: runs.items, cut_short: runs.cut_short })
    }

    /// Due times of a flow or schedule that were left out, newest first.
    pub async fn left_out(&self, kind: ScheduleKind, name: &str, limit: usize) -> Result<Vec<LeftOut>> {
        let stored = self.stored_schedule(kind, name).await?;
        Ok(self.core.store.left_occurrences(stored.id, limit).await?)
    }
}
