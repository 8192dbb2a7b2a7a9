//! The settings of a replica, and the times that follow from them.

use crate::pools::PoolSettings;
use crate::{Error, Result};
use everbeat_model::time::format_duration;
use everbeat_model::{Invalid, Planted, Policy};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How a replica lives and works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The machine: outlives restarts, so that a successor can recognise its predecessor.
    pub host: String,
    /// A name of the machine, which two servers on it have in common. Without a name, servers cannot tell whether they
    /// share a machine.
    pub machine: Option<String>,
    /// Hosts that this one's data folder stood for before it was copied here. Into a store that is ours alone they never
    /// return.
    pub former_hosts: BTreeSet<String>,
    pub version: String,
    pub heartbeat_interval: Duration,
    pub heartbeat_timeout: Duration,
    pub sweep_interval: Duration,
    pub poll_interval: Duration,
    /// Flows are looked at when they are due; otherwise somebody outside calls for that.
    pub flow_ticker: bool,
    /// Schedules are looked for at least that often.
    pub tick_interval: Duration,
    /// How long rows of dead and left replicas stay.
    pub retention: Duration,
    pub clean_interval: Duration,
    pub drain_grace: Duration,
    /// An ending that cannot be stored for so long, while others can, gives way to a failure with that reason.
    pub store_patience: Duration,
    pub slots: usize,
    /// What a run's own policy is laid over.
    pub runs: Policy,
    pub keep_finished: Duration,
    /// Bytes that are kept of what a run streams: the newest.
    pub output_limit: u64,
    pub keep_verdicts: Duration,
    /// Batches of events.
    pub keep_events: u64,
    /// Limits of this replica by queue and by task.
    pub queues: BTreeMap<String, QueueLimit>,
    pub tasks: BTreeMap<String, usize>,
    pub jobs: JobSettings,
    pub pools: Vec<PoolSettings>,
    /// How workers are watched that belong to no pool.
    pub remote_workers: PoolSettings,
    #[doc(hidden)]
    pub hole: Planted,
}

/// How detached commands are watched and kept.
#[derive(Clone, Debug)]
pub struct JobSettings {
    /// Apart from the slots of other work.
    pub slots: usize,
    /// How often a shim writes its sentinel.
    pub heartbeat_interval: Duration,
    /// How often the ages of sentinels are looked at.
    pub check_interval: Duration,
    pub stale_after: Duration,
    pub dead_after: Duration,
    /// So long the jobs of a host without any replica wait for one to come back.
    pub reattach_window: Duration,
    pub stop_grace: Duration,
    /// How long folders of finished jobs stay.
    pub keep: Duration,
    /// Bytes that each stream of a job's output may take.
    pub log_limit: u64,
}

impl Default for JobSettings {
    fn default() -> JobSettings {
        JobSettings {
            slots: 16,
            heartbeat_interval: Duration::from_secs(30),
            check_interval: Duration::from_secs(60),
            stale_after: Duration::from_secs(120),
            dead_after: Duration::from_secs(600),
            reattach_window: Duration::from_secs(300),
            stop_grace: Duration::from_secs(10),
            keep: Duration::from_secs(86_400) * 30,
            log_limit: 1 << 30,
        }
    }
}

impl JobSettings {
    /// A shim whose work must not go on unfenced stops by itself before anybody may give its host up.
    pub(crate) fn isolated_after(&self) -> Duration {
        self.reattach_window * 2 / 3
    }

    fn check(&self) -> Result<()> {
        let complain = |field: &str, span: Duration, problem: String, hint: String| {
            let shown = format!("{:?}", format_duration(span));
            Err(Error::Invalid(Invalid::new(field, shown, problem, hint)))
        };
        if self.heartbeat_interval.is_zero() || self.heartbeat_interval > self.stale_after / 2 {
            let most = format_duration(self.stale_after / 2);
            let problem = format!("is over half of jobs.stale_after ({:?})", format_duration(self.stale_after));
            let hint = format!("set it to at most {most:?}, or raise jobs.stale_after");
            return complain("jobs.heartbeat_interval", self.heartbeat_interval, problem, hint);
        }
        if self.stale_after > self.dead_after {
            let problem = format!("is longer than jobs.dead_after ({:?})", format_duration(self.dead_after));
            return complain("jobs.stale_after", self.stale_after, problem, "set it below jobs.dead_after".to_string());
        }
        if self.check_interval.is_zero() {
            let hint = "use a duration above zero".to_string();
            return complain("jobs.check_interval", self.check_interval, "is zero".to_string(), hint);
        }
        if self.slots > MOST_SLOTS {
            let hint = format!("use a whole number up to {MOST_SLOTS}");
            return Err(Error::Invalid(Invalid::new("jobs.slots", self.slots, "is out of range", hint)));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueLimit {
    pub concurrency: Option<usize>,
    /// Starts per second.
    pub rate: Option<f64>,
}

impl Default for Settings {
    fn default() -> Settings {
        let day = Duration::from_secs(86_400);
        Settings {
            host: "localhost".to_string(),
            machine: None,
            former_hosts: BTreeSet::new(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            heartbeat_interval: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(60),
            sweep_interval: Duration::from_secs(30),
            poll_interval: Duration::from_secs(1),
            flow_ticker: true,
            tick_interval: Duration::from_secs(1),
            retention: Duration::from_secs(3600),
            clean_interval: Duration::from_secs(3600),
            drain_grace: Duration::from_secs(30),
            store_patience: Duration::from_secs(600),
            slots: 64,
            runs: Policy::BASELINE,
            keep_finished: day * 30,
            output_limit: 16 << 20,
            keep_verdicts: day * 30,
            keep_events: 100_000,
            queues: BTreeMap::new(),
            tasks: BTreeMap::new(),
            jobs: JobSettings::default(),
            pools: Vec::new(),
            remote_workers: PoolSettings::default(),
            hole: Planted::default(),
        }
    }
}

impl Settings {
    /// The rules that bind several settings to each other.
    pub fn check(&self) -> Result<()> {
        if self.heartbeat_interval > self.heartbeat_timeout / 3 || self.heartbeat_interval.is_zero() {
            return Err(Error::Invalid(Invalid::new(
                "replica.heartbeat_interval",
                format!("{:?}", format_duration(self.heartbeat_interval)),
                format!(
                    "is not within a third of replica.heartbeat_timeout ({:?})",
                    format_duration(self.heartbeat_timeout)
                ),
                format!("set it to at most {:?}, or raise the timeout", format_duration(self.heartbeat_timeout / 3)),
            )));
        }
        for (field, span) in [
            ("replica.sweep_interval", self.sweep_interval),
            ("replica.poll_interval", self.poll_interval),
            ("replica.clean_interval", self.clean_interval),
        ] {
            if span.is_zero() {
                return Err(Error::Invalid(Invalid::new(field, "\"0s\"", "is zero", "use a duration above zero")));
            }
        }
        if self.slots == 0 || self.slots > MOST_SLOTS {
            let hint = format!("use a whole number from 1 to {MOST_SLOTS}");
            return Err(Error::Invalid(Invalid::new("replica.slots", self.slots, "is out of range", hint)));
        }
        self.jobs.check()
    }

    /// No single store call of a loop takes longer; so every loop turns well within half a timeout.
    pub(crate) fn call_limit(&self) -> Duration {
        self.heartbeat_timeout / 3
    }

    /// How long a loop may idle before it looks again.
    pub(crate) fn idle_limit(&self) -> Duration {
        self.poll_interval.min(self.heartbeat_timeout / 4)
    }

    /// How long folders of finished jobs stay: they go before their runs are forgotten, for nobody would
    /// know whose they are afterwards.
    pub(crate) fn keep_jobs(&self) -> Duration {
        self.jobs.keep.min(self.keep_finished.saturating_sub(self.clean_interval * 2))
    }

    /// Counted from when the last acknowledged renewal was sent; whoever takes over waits longer.
    pub(crate) fn renew_deadline(&self) -> Duration {
        self.heartbeat_timeout * 2 / 3
    }
}

const MOST_SLOTS: usize = 1_000_000;
