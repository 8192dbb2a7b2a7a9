//! Figures that several loops count.

use crate::Engine;
use crate::engine::lock;
use everbeat_model::verdict::Judgement;
use everbeat_model::{BootInstant, Reason, RunId};
use everbeat_store::Audit;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Whose death or silence is measured.
#[derive(Clone, Copy)]
pub(crate) enum Watched {
    Replica,
    Shim,
}

impl Watched {
    pub(crate) const ALL: [Watched; 2] = [Watched::Replica, Watched::Shim];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Watched::Replica => "replica",
            Watched::Shim => "shim",
        }
    }
}

pub(crate) fn judged(judgement: Judgement, reason: Reason) {
    let (judgement, reason) = (judgement.as_str(), reason.as_str());
    metrics::counter!("everbeat_verdicts_total", "judgement" => judgement, "reason" => reason).increment(1);
}

/// From the last sign of life to the verdict.
pub(crate) fn detected(watched: Watched, after: std::time::Duration) {
    metrics::histogram!("everbeat_detection_seconds", "subject" => watched.as_str()).record(after.as_secs_f64());
}

/// Counts suspects that have shown that they live.
pub(crate) fn refuted(watched: Watched, times: u64) {
    metrics::counter!("everbeat_suspicions_refuted_total", "subject" => watched.as_str()).increment(times);
}

/// Runs whose attempt was found lost by this replica, and when, until their next attempt begins here. One that begins
/// elsewhere is not measured.
#[derive(Default)]
pub(crate) struct Losses(Mutex<BTreeMap<RunId, BootInstant>>);

/// More are not measured.
const MOST_LOSSES: usize = 10_000;

impl Losses {
    pub(crate) fn lost(&self, run: RunId, now: BootInstant) {
        let mut losses = lock(&self.0);
        if losses.len() >= MOST_LOSSES {
            // Runs that were first lost have begun elsewhere by now, or never will.
            losses.pop_first();
        }
        losses.insert(run, now);
    }

    pub(crate) fn claimed(&self, runs: impl Iterator<Item = RunId>, now: BootInstant) {
        let mut losses = lock(&self.0);
        if losses.is_empty() {
            return;
        }
        for lost in runs.filter_map(|run| losses.remove(&run)) {
            metrics::histogram!("everbeat_recovery_seconds").record(now.since(lost).as_secs_f64());
        }
    }
}

impl Engine {
    /// Checks the guarantees over all that is stored.
    pub async fn audit(&self) -> crate::Result<Audit> {
        let audit = self.store().audit().await?;
        metrics::gauge!("everbeat_invariant_violations").set(audit.violations.len() as f64);
        Ok(audit)
    }
}
