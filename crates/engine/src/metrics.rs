//! Every family of figures that this program counts, of the whole binary: the only place that names, describes and
//! types them. A test compares it with the source.

use crate::figures::Watched;
use everbeat_model::check::PingKind;
use everbeat_model::verdict::Judgement;
use everbeat_model::{Outcome, Reason};
use metrics::{Label, Unit};

/// Figures of one name, told apart by labels.
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub help: &'static str,
    pub series: Series,
}

#[derive(Clone, Copy)]
pub enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// Which figures of a family there are from the start.
#[derive(Clone, Copy)]
pub enum Series {
    One,
    /// A figure for each value of a label.
    Each(&'static str, fn() -> Vec<&'static str>),
    /// A figure for each of these rows of values.
    Rows(&'static [&'static str], fn() -> Vec<Vec<&'static str>>),
    /// Read at the moment when the figures are shown; with these labels.
    Read(&'static [&'static str]),
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}

/// Requests are answered, and calls return, within these, in seconds.
const SHORT: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Work waits, and the dead are found, within these.
const LONG: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0];

const fn counter(name: &'static str, help: &'static str, series: Series) -> Family {
    Family { name, kind: Kind::Counter, unit: Unit::Count, help, series }
}

const fn gauge(name: &'static str, help: &'static str, series: Series) -> Family {
    Family { name, kind: Kind::Gauge, unit: Unit::Count, help, series }
}

const fn seconds(name: &'static str, buckets: &'static [f64], help: &'static str, series: Series) -> Family {
    Family { name, kind: Kind::Histogram(buckets), unit: Unit::Seconds, help, series }
}

use Series::{Each, One, Read, Rows};

/// In alphabetical order. Counters end in `_total`; units are seconds and bytes, and stand in the name.
pub const FAMILIES: &[Family] = &[
    counter("everbeat_attempts_total", "Attempts that ended", Each("outcome", outcomes)),
    gauge("everbeat_checks", "Checks, by how they stand", Read(&["state"])),
    seconds(
        "everbeat_detection_seconds",
        LONG,
        "Time from the last sign of life of a replica or a job's shim to the verdict that it is lost",
        Each("subject", watched),
    ),
    gauge(
        "everbeat_endings_held",
        "Ended attempts whose endings the store could not take yet, while it takes others",
        One,
    ),
    Family {
        name: "everbeat_endings_held_oldest_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        help: "How long the oldest of these has waited",
        series: One,
    },
    counter("everbeat_execution_looks_total", "Executions looked at since something of theirs was due", One),
    counter("everbeat_fenced_writes_total", "Results of attempts that no longer held their lease", One),
    gauge("everbeat_http_connections", "Open connections", One),
    counter("everbeat_http_connections_evicted_total", "Idle connections that were closed to make room", One),
    seconds(
        "everbeat_http_request_duration_seconds",
        SHORT,
        "Time until a request was answered",
        Rows(&["method", "path"], || vec![vec!["GET", "/metrics"]]),
    ),
    counter(
        "everbeat_http_requests_total",
        "Requests answered",
        Rows(&["method", "path", "status"], || vec![vec!["GET", "/metrics", "200"]]),
    ),
    gauge("everbeat_invariant_violations", "Broken guarantees that the last check through this server found", One),
    counter("everbeat_job_exits_total", "Attempts of jobs and of other commands that ended", Each("outcome", outcomes)),
    gauge("everbeat_jobs_dead", "Jobs watched over here whose sentinels are older than jobs.dead_after", One),
    counter(
        "everbeat_jobs_false_starts_total",
        "Attempts of jobs whose command did not begin, apart from shortages",
        One,
    ),
    counter("everbeat_jobs_hung_total", "Shims that held their lock and did not answer", One),
    gauge("everbeat_jobs_running", "Jobs that this replica watches over", One),
    gauge("everbeat_jobs_short", "1 while no jobs are begun here, since the machine lacks something they need", One),
    gauge("everbeat_jobs_stale", "Jobs watched over here whose sentinels are older than jobs.stale_after", One),
    counter(
        "everbeat_occurrences_total",
        "Due times of schedules and flows on which this replica decided",
        Each("became", || BECAME.to_vec()),
    ),
    Family {
        name: "everbeat_outputs_unwritten_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        help: "What attempts have streamed and the store does not hold yet",
        series: One,
    },
    counter("everbeat_pings_total", "Pings of checks that this replica took", Each("kind", pings)),
    gauge("everbeat_queues_paused", "Queues from which nothing is claimed", Read(&[])),
    Family {
        name: "everbeat_ready_age_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        help: "For how long the run that waits longest could have been claimed",
        series: Read(&["queue"]),
    },
    seconds(
        "everbeat_recovery_seconds",
        LONG,
        "Time from the verdict that an attempt is lost to the beginning of the next one on the same replica",
        One,
    ),
    counter("everbeat_renewal_failures_total", "Renewals of this replica that the store did not acknowledge", One),
    gauge("everbeat_replicas", "Replicas; those that are gone until they are forgotten", Read(&["state"])),
    seconds(
        "everbeat_run_wait_seconds",
        LONG,
        "Time that runs waited for their first attempt since they were due",
        One,
    ),
    gauge("everbeat_runs", "Unfinished runs", Read(&["queue", "state"])),
    counter("everbeat_runs_claimed_total", "Runs that this replica took", One),
    counter("everbeat_runs_enqueued_total", "Runs that were accepted here", One),
    gauge("everbeat_schedules_late", "Schedules and flows that are late by their late_after", Read(&["kind"])),
    gauge("everbeat_sessions", "Sessions that the workers of this replica hold", Read(&["pool"])),
    gauge("everbeat_slots", "Runs that this replica performs at most", Read(&[])),
    gauge("everbeat_slots_taken", "Runs that hold a slot here", Read(&[])),
    gauge("everbeat_store_up", "Whether the store answered this scrape", Read(&[])),
    counter(
        "everbeat_suspicions_refuted_total",
        "Replicas and shims that were silent, suspected, and heard of again",
        Each("subject", watched),
    ),
    Family {
        name: "everbeat_uptime_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        help: "For how long this server has answered",
        series: Read(&[]),
    },
    counter("everbeat_verdicts_total", "Judgements of this replica", Rows(&["judgement", "reason"], verdicts)),
    counter(
        "everbeat_watchdog_activations_total",
        "Guardians that saw their server die, as the next server on the host found",
        One,
    ),
    seconds(
        "everbeat_worker_cleanup_seconds",
        LONG,
        "Time from the end of a worker until nothing of it and of what it had started was left",
        One,
    ),
    counter(
        "everbeat_worker_connections_evicted_total",
        "Connections without a hello that were closed to make room",
        One,
    ),
    counter("everbeat_worker_exits_total", "Worker processes that ended", Each("reason", exits)),
    counter("everbeat_worker_orphans_total", "Processes of pools that a dead server had left behind", One),
    counter("everbeat_worker_ping_timeouts_total", "Workers that did not answer for longer than ping_timeout", One),
    counter(
        "everbeat_worker_pings_missed_total",
        "Times that ping_interval passed and the pong that a worker owed had not come",
        One,
    ),
    counter("everbeat_worker_pings_total", "Pings sent to workers", One),
    counter("everbeat_worker_pongs_total", "Pings that workers answered", One),
    counter(
        "everbeat_worker_restarts_total",
        "Workers of a pool that ended although nobody had asked them to, and were replaced",
        Read(&["pool"]),
    ),
    seconds("everbeat_worker_round_trip_seconds", SHORT, "Time from a ping to its pong", One),
    counter("everbeat_worker_starts_total", "Worker processes that were started", One),
    seconds("everbeat_worker_startup_seconds", LONG, "Time from the start of a worker to its hello", One),
    gauge("everbeat_workers", "Workers of this replica", Read(&["pool", "state"])),
];

/// Why worker processes end.
fn exits() -> Vec<&'static str> {
    use Reason::*;
    let judged = [WorkerHung, WorkerStopped, WorkerOutOfMemory, WorkerUnresponsive, WorkerNotReady];
    judged.iter().map(|reason| reason.as_str()).chain(["clean", "nonzero", "signal", "unknown"]).collect()
}

/// What pings say.
fn pings() -> Vec<&'static str> {
    PingKind::ALL.iter().map(|kind| kind.as_str()).collect()
}

/// What becomes of a due time.
pub(crate) const BECAME: [&str; 2] = ["run", "skipped"];

fn watched() -> Vec<&'static str> {
    Watched::ALL.map(Watched::as_str).to_vec()
}

fn outcomes() -> Vec<&'static str> {
    Outcome::ALL.map(Outcome::as_str).to_vec()
}

/// Every reason with the judgement that is passed for it.
fn verdicts() -> Vec<Vec<&'static str>> {
    let row = |reason: &Reason| Some(vec![judgement(*reason)?.as_str(), reason.as_str()]);
    Reason::ALL.iter().filter_map(row).collect()
}

/// What is judged for that reason, if its figure is there from the start.
fn judgement(reason: Reason) -> Option<Judgement> {
    use Reason::*;
    match reason {
        LockReleased | ReplicaSilent | ReplicaDied | ReplicaLeft | ReplicaUnknown | AttemptSilent | Fenced
        | Isolated | ShimDied | ShimHung | ShimTerminated | StartUnclear | Rebooted | FolderGone | Unreadable
        | Forgotten | HostAway => Some(Judgement::Lost),
        LateResult | LateReturn | ReplicaDead => Some(Judgement::Fenced),
        NoProgress => Some(Judgement::Stalled),
        Deadline => Some(Judgement::TimedOut),
        CancelGrace => Some(Judgement::Cancelled),
        // Hardly ever a verdict's; the figure is there once one was passed.
        NotOurs | NeverStarted => None,
        WorkerDied | WorkerUnresponsive | WorkerHung | WorkerStopped | WorkerOutOfMemory | WorkerCutOff => {
            Some(Judgement::Lost)
        }
        // Of performers that no server has, and of workers that perform nothing yet.
        WorkerSilent | WorkerNotReady => None,
        // Never a verdict's.
        Cancelled | Stopped | Superseded | Failed | Panicked | Exited | NotStarted | NotStored | Unstorable
        | Draining | TaskUnknown | WorkerAway | SessionBusy | NotPerformed | Shortage => None,
    }
}

/// The family of that name.
pub fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// Tells the recorder of this process what every family means, and that each is there, at zero. Whoever installs a
/// recorder calls it once.
pub fn describe() {
    for family in FAMILIES {
        match family.kind {
            Kind::Counter => metrics::describe_counter!(family.name, family.unit, family.help),
            Kind::Gauge => metrics::describe_gauge!(family.name, family.unit, family.help),
            Kind::Histogram(_) => metrics::describe_histogram!(family.name, family.unit, family.help),
        }
        for labels in family.start() {
            match family.kind {
                Kind::Counter => metrics::counter!(family.name, labels).increment(0),
                Kind::Gauge => metrics::gauge!(family.name, labels).set(0.0),
                // Being named is enough.
                Kind::Histogram(_) => drop(metrics::histogram!(family.name, labels)),
            }
        }
    }
}

impl Family {
    /// The labels of every figure that is there from the start.
    fn start(&self) -> Vec<Vec<Label>> {
        match self.series {
            Series::One => vec![Vec::new()],
            Series::Each(name, values) => values().into_iter().map(|value| vec![Label::new(name, value)]).collect(),
            Series::Rows(names, rows) => {
                let row = |values: Vec<&'static str>| {
                    names.iter().zip(values).map(|(name, value)| Label::new(*name, value)).collect()
                };
                rows().into_iter().map(row).collect()
            }
            Series::Read(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        assert!(FAMILIES.is_sorted_by_key(|family| family.name));
        for Family { name, kind, unit, help, .. } in FAMILIES {
            assert!(name.starts_with("everbeat_") && !help.is_empty(), "{name}");
            assert_eq!(matches!(kind, Kind::Counter), name.ends_with("_total"), "{name}");
            assert_eq!(*unit == Unit::Seconds, name.trim_end_matches("_total").ends_with("_seconds"), "{name}");
            assert_eq!(*unit == Unit::Bytes, name.trim_end_matches("_total").ends_with("_bytes"), "{name}");
            for part in ["_ms", "_millis", "_minutes", "_count", "_sum", "_bucket"] {
                assert!(!name.ends_with(part), "{name}");
            }
        }
    }

    #[test]
    fn the_figures_that_are_there_from_the_start_have_these_labels() {
        assert_eq!(watched(), ["replica", "shim"]);
        assert_eq!(outcomes(), ["succeeded", "failed", "lost", "timed_out", "stalled", "cancelled", "released"]);
        let rows: Vec<String> = verdicts().iter().map(|row| row.join(" ")).collect();
        assert_eq!(
            rows.join(", "),
            "lost lock_released, lost replica_silent, lost replica_died, lost replica_left, lost replica_unknown, \
             lost attempt_silent, lost fenced, lost isolated, lost shim_died, lost shim_hung, lost shim_terminated, \
             lost start_unclear, lost rebooted, lost folder_gone, lost unreadable, lost forgotten, lost host_away, \
             lost worker_died, lost worker_unresponsive, lost worker_hung, lost worker_stopped, \
             lost worker_out_of_memory, lost worker_cut_off, \
             fenced late_result, fenced late_return, fenced replica_dead, stalled no_progress, timed_out deadline, \
             cancelled cancel_grace"
        );
    }
}
