//! Detached commands. A shim owns each, and outlives the replica; a replica watches those of its host, and
//! takes over what another one of that host left.

mod absent;
mod admin;
mod adopt;
mod ask;
mod check;
mod clean;
mod performer;
mod shims;
mod shortage;
mod strays;
mod view;
mod watch;

pub use admin::{Cleaning, FailedJob, Health, Heartbeat, RecoveryMetrics, RecoveryStatus, Resumed, Sentinel, StaleJob};
pub use ask::SubmitJob;
pub use shims::{
    Beat as JobBeat, Fenced, Finding, Following, JobAttempt, JobEvent, LAST_WORD, Lock, LogChunk, LogFrom, Order,
    Removed, SentinelReading, Shims, StartError, StopReason, Stream, Traces, WithoutFolder,
};
pub use view::{HeartbeatStatus, JobView};

pub(crate) use performer::Commands;

use crate::engine::lock;
use everbeat_model::{Outcome, RunId, StoreTime, Token};
use shims::Beat;
use shortage::Shortages;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// The jobs of this host: who owns them, and what this process knows of them besides what it performs.
#[derive(Default)]
pub(crate) struct Jobs {
    /// Without shims this replica performs no commands, and only gives up those of hosts that stay away.
    shims: Option<Arc<dyn Shims>>,
    /// The jobs that an earlier replica left were looked at: new ones may begin.
    recovered: AtomicBool,
    recovery: Mutex<Recovery>,
    found: Notify,
    /// Attempts in a row that never began, by run.
    never_started: Mutex<BTreeMap<RunId, u32>>,
    /// What is missing to begin any.
    shortages: Shortages,
    counts: Counts,
    /// Sentinel ages at the last check: whoever is not fresh.
    silent: Mutex<BTreeMap<RunId, HeartbeatStatus>>,
}

#[derive(Default)]
struct Counts {
    heartbeat_writes: AtomicU64,
    heartbeat_write_failures: AtomicU64,
    stale_detected: AtomicU64,
    dead_detected: AtomicU64,
    reattached: AtomicU64,
    lost: AtomicU64,
    check_us: AtomicU64,
}

/// What became of the jobs that were found when this replica began, or when another of its host went.
#[derive(Clone, Debug, Default)]
struct Recovery {
    started_at: Option<StoreTime>,
    completed_at: Option<StoreTime>,
    /// Taken over, and not looked at yet.
    pending: BTreeSet<Token>,
    counts: BTreeMap<&'static str, u64>,
    failed: u64,
    /// The first of them, by name.
    found: Vec<(RunId, Found, String)>,
}

/// What a job that was taken over was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It goes on.
    Reattached,
    /// It ended meanwhile, and is settled with its true exit.
    Ended(Outcome),
    /// Neither: it is looked at again and again.
    Unknown,
    /// Nobody's any more: told to stop.
    Stray,
}

/// The log of one start names so many jobs; the counts are of all.
const MOST_NAMED: usize = 1000;

impl Jobs {
    pub(crate) fn new(shims: Option<Arc<dyn Shims>>) -> Jobs {
        Jobs { shims, ..Jobs::default() }
    }

    fn recovered(&self) -> bool {
        self.recovered.load(Ordering::SeqCst)
    }

    /// A replica begins: what was left behind is looked at before anything else.
    fn begin(&self) {
        self.recovered.store(false, Ordering::SeqCst);
    }

    /// A job was taken over and is about to be looked at.
    fn taken(&self, token: Token) {
        lock(&self.recovery).pending.insert(token);
    }

    /// What it was found to be; only the first answer after it was taken over counts.
    fn found(&self, token: Token, job: RunId, found: Found, detail: impl Into<String>) {
        let mut recovery = lock(&self.recovery);
        if !recovery.pending.remove(&token) && found != Found::Stray {
            return;
        }
        tracing::info!(%job, ?found, "a job that was left behind was looked at");
        *recovery.counts.entry(found.as_str()).or_default() += 1;
        recovery.failed += u64::from(found.failed());
        if recovery.found.len() < MOST_NAMED {
            recovery.found.push((job, found, detail.into()));
        }
        drop(recovery);
        match found {
            Found::Reattached => _ = self.counts.reattached.fetch_add(1, Ordering::Relaxed),
            Found::Ended(_) | Found::Unknown | Found::Stray => {}
        }
        self.found.notify_waiters();
    }

    /// Counts what the writer of a sentinel did since it was last heard.
    fn heard(&self, before: &Beat, now: &Beat) {
        let counts = &self.counts;
        counts.heartbeat_writes.fetch_add(now.seq.saturating_sub(before.seq), Ordering::Relaxed);
        let failures = now.write_failures.saturating_sub(before.write_failures);
        counts.heartbeat_write_failures.fetch_add(failures, Ordering::Relaxed);
    }

    fn lost(&self) {
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an attempt that never began; answers how many there were in a row.
    fn never_started(&self, job: RunId) -> u32 {
        let mut all = lock(&self.never_started);
        let count = all.entry(job).or_default();
        *count += 1;
        *count
    }

    fn has_started(&self, job: RunId) {
        lock(&self.never_started).remove(&job);
    }
}
