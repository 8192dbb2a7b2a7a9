use everbeat_model::Reason;
use everbeat_model::verdict::Judgement;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What happened in one world, or in many: enough to see that a pass was not a pass by doing nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub seeds: u64,
    pub steps: u64,
    pub simulated_ms: u64,
    pub store_calls: u64,
    /// Times that the whole stored state was checked after a change.
    pub checks: u64,
    /// How often each fault fired.
    pub faults: BTreeMap<&'static str, u64>,
    pub submitted: u64,
    /// Submissions whose answer never came, or was an error.
    pub unacknowledged: u64,
    pub attempts: u64,
    /// Items that attempts streamed.
    pub items: u64,
    pub succeeded: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub reopened: u64,
    /// Lost attempts whose run went on elsewhere.
    pub taken_over: u64,
    pub released: u64,
    /// Verdicts that a late write counted for nothing.
    pub fenced: u64,
    /// Accepted runs that a lossy failover took.
    pub lost_to_failover: u64,
    pub executions: u64,
    /// Sets, unsets and other commands that clients had answered.
    pub commands: u64,
    /// Values that runs computed.
    pub computed: u64,
    /// Computations that failed for good.
    pub failed_nodes: u64,
    /// Runs of nodes that their execution no longer wanted.
    pub superseded: u64,
    pub ticks_fired: u64,
    /// Executions looked at because a note was due.
    pub looks: u64,
    /// Executions that only the net found.
    pub stranded: u64,
    /// Calls after a value was saved.
    pub callbacks: u64,
    /// Values that clients waited for and got.
    pub awaited: u64,
    /// Detached commands that began.
    pub jobs_started: u64,
    /// Taken over by another replica of their host while they ran.
    pub jobs_reattached: u64,
    /// Taken over after they had ended.
    pub jobs_recovered: u64,
    pub jobs_lost: u64,
    /// Of the lost: those whose host stayed away.
    pub jobs_given_up: u64,
    /// Hung shims that their owners killed.
    pub jobs_killed: u64,
    /// What became of workers.
    pub workers: BTreeMap<&'static str, u64>,
    /// What became of schedules and their occurrences.
    pub schedules: BTreeMap<&'static str, u64>,
    /// Verdicts by judgement and reason.
    pub verdicts: BTreeMap<String, u64>,
    /// The fingerprint of the whole history.
    pub history: u64,
}

impl Report {
    pub fn fault(&mut self, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
    }

    pub fn worker(&mut self, what: &'static str) {
        *self.workers.entry(what).or_default() += 1;
    }

    pub fn schedule(&mut self, what: &'static str) {
        *self.schedules.entry(what).or_default() += 1;
    }

    pub fn finished(&self) -> u64 {
        self.succeeded + self.failed + self.cancelled
    }

    pub fn add(&mut self, other: &Report) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.simulated_ms += other.simulated_ms;
        self.store_calls += other.store_calls;
        self.checks += other.checks;
        self.submitted += other.submitted;
        self.unacknowledged += other.unacknowledged;
        self.attempts += other.attempts;
        self.items += other.items;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.reopened += other.reopened;
        self.taken_over += other.taken_over;
        self.released += other.released;
        self.fenced += other.fenced;
        self.lost_to_failover += other.lost_to_failover;
        self.executions += other.executions;
        self.commands += other.commands;
        self.computed += other.computed;
        self.failed_nodes += other.failed_nodes;
        self.superseded += other.superseded;
        self.ticks_fired += other.ticks_fired;
        self.looks += other.looks;
        self.stranded += other.stranded;
        self.callbacks += other.callbacks;
        self.awaited += other.awaited;
        self.jobs_started += other.jobs_started;
        self.jobs_reattached += other.jobs_reattached;
        self.jobs_recovered += other.jobs_recovered;
        self.jobs_lost += other.jobs_lost;
        self.jobs_given_up += other.jobs_given_up;
        self.jobs_killed += other.jobs_killed;
        self.history = crate::rng::mix(self.history ^ other.history);
        other.faults.iter().for_each(|(name, times)| *self.faults.entry(name).or_default() += times);
        other.workers.iter().for_each(|(name, times)| *self.workers.entry(name).or_default() += times);
        other.schedules.iter().for_each(|(name, times)| *self.schedules.entry(name).or_default() += times);
        other.verdicts.iter().for_each(|(name, times)| *self.verdicts.entry(name.clone()).or_default() += times);
    }

    /// What is too rare in this report for its pass to mean anything.
    pub fn too_little(&self) -> Vec<String> {
        let seeds = self.seeds;
        let mut wanting = Vec::new();
        let mut least = |name: &str, is: u64, share: f64| {
            let wanted = (seeds as f64 * share) as u64;
            if is < wanted {
                wanting.push(format!("{name}: {is}, at least {wanted} are wanted"));
            }
        };
        least("submitted", self.submitted, 10.0);
        least("finished", self.finished(), 10.0);
        least("items streamed", self.items, 5.0);
        least("succeeded", self.succeeded, 5.0);
        least("failed", self.failed, 0.3);
        least("cancelled", self.cancelled, 0.2);
        least("taken over", self.taken_over, 0.5);
        least("fenced", self.fenced, 0.2);
        least("released", self.released, 0.2);
        least("reopened", self.reopened, 0.1);
        least("executions", self.executions, 2.0);
        least("commands", self.commands, 4.0);
        least("computed", self.computed, 20.0);
        least("failed nodes", self.failed_nodes, 0.3);
        least("superseded", self.superseded, 3.0);
        least("ticks fired", self.ticks_fired, 1.0);
        least("looks", self.looks, 10.0);
        least("callbacks", self.callbacks, 2.0);
        least("awaited", self.awaited, 2.0);
        least("jobs started", self.jobs_started, 8.0);
        least("jobs reattached", self.jobs_reattached, 0.2);
        least("jobs recovered", self.jobs_recovered, 0.5);
        least("jobs lost", self.jobs_lost, 0.5);
        least("jobs given up", self.jobs_given_up, 0.02);
        least("jobs killed", self.jobs_killed, 0.05);
        for fault in FAULTS {
            least(fault, self.faults.get(fault).copied().unwrap_or_default(), 0.1);
        }
        let rare = RARE.map(|verdict| (verdict, 0.005));
        for ((judgement, reason), share) in rare.into_iter().chain(PASSED.map(|verdict| (verdict, 0.02))) {
            let name = passed(judgement, reason.as_str());
            least(&name, self.verdicts.get(&name).copied().unwrap_or_default(), share);
        }
        for (what, share) in WORKERS {
            least(what, self.workers.get(what).copied().unwrap_or_default(), share);
        }
        for (what, share) in SCHEDULES {
            least(what, self.schedules.get(what).copied().unwrap_or_default(), share);
        }
        wanting
    }
}

/// Every fault there is; each must have fired.
pub const FAULTS: [&str; 50] = [
    "crash",
    "freeze",
    "freeze of several",
    "partition",
    "outage",
    "renewals fail for all",
    "failover that loses commits",
    "wall clock of a host jumps",
    "wall clock of the store jumps",
    "slow replica",
    "drain",
    "pause of a queue",
    "error before",
    "error after",
    "hang before",
    "hang after",
    "late call",
    "wake lost",
    "wake doubled",
    "restart",
    "reboot of a machine",
    "host without replicas",
    "host whose replicas leave",
    "host that comes back for a moment",
    "death of a shim",
    "shim that hangs",
    "folder of a job taken away",
    "call to a shim fails before",
    "call to a shim fails after",
    "death of a worker",
    "worker out of memory",
    "worker that is stopped",
    "worker that hangs",
    "worker that computes",
    "worker that is starved",
    "worker that is cut off",
    "worker that is cut off one way",
    "link that is lost",
    "link whose loss is seen late",
    "end said twice",
    "death of a guardian",
    "server and guardian killed together",
    "server that stalls",
    "watcher that stalls",
    "worker that cannot be started",
    "worker slow to start",
    "signal that fails",
    "worker that dies of being asked",
    "no room for some",
    "store that breaks on some",
];

/// What must have become of workers, and how often in each world.
const WORKERS: [(&str, f64); 17] = [
    ("started", 3.0),
    ("came back", 0.1),
    ("item said again", 0.01),
    ("result of a worker", 1.0),
    ("failure of a worker", 0.1),
    ("stop of a worker", 0.1),
    ("killed", 0.05),
    ("out of memory", 0.02),
    ("taken along by its work", 0.02),
    ("not pinged", 0.1),
    ("isolated", 0.01),
    ("without its server", 0.02),
    ("without its guardian", 0.02),
    ("ended by its guardian", 0.01),
    ("ended by its server", 0.2),
    ("orphan swept", 0.02),
    ("computed for longer than its timeout, and went on", 0.02),
];

/// What must have become of schedules, and how often in each world.
const SCHEDULES: [(&str, f64); 21] = [
    ("created", 0.8),
    ("changed", 1.0),
    ("written again", 0.2),
    ("conflict of versions", 0.02),
    ("disabled", 0.2),
    ("enabled", 0.2),
    ("deleted", 0.05),
    ("look", 7.0),
    ("trigger", 0.7),
    ("heartbeat", 5.0),
    ("heartbeat that found something due", 0.5),
    ("begun", 2.5),
    ("begun by a heartbeat", 0.15),
    ("waited", 0.5),
    ("begun after it waited", 0.5),
    ("begun after others", 0.1),
    ("left out: overlap", 0.1),
    ("left out: missed", 0.05),
    ("reopened", 0.1),
    ("late", 0.1),
    ("recovered", 0.1),
];

/// Verdicts that must have been passed.
const PASSED: [(Judgement, Reason); 14] = [
    (Judgement::Lost, Reason::ReplicaSilent),
    (Judgement::Lost, Reason::LockReleased),
    (Judgement::Lost, Reason::Isolated),
    (Judgement::Lost, Reason::AttemptSilent),
    (Judgement::TimedOut, Reason::Deadline),
    (Judgement::Stalled, Reason::NoProgress),
    (Judgement::Fenced, Reason::LateResult),
    (Judgement::Lost, Reason::ShimDied),
    (Judgement::Lost, Reason::ShimHung),
    (Judgement::Lost, Reason::Rebooted),
    (Judgement::Lost, Reason::HostAway),
    (Judgement::Lost, Reason::WorkerDied),
    (Judgement::Lost, Reason::WorkerHung),
    (Judgement::Lost, Reason::WorkerCutOff),
];

/// Verdicts that are passed more seldom.
const RARE: [(Judgement, Reason); 4] = [
    // A shim that came back too late.
    (Judgement::Fenced, Reason::LateReturn),
    (Judgement::Lost, Reason::WorkerUnresponsive),
    (Judgement::Lost, Reason::WorkerStopped),
    (Judgement::Lost, Reason::WorkerOutOfMemory),
];

/// What verdicts are counted by.
pub(crate) fn passed(judgement: Judgement, reason: &str) -> String {
    format!("{} {reason}", judgement.as_str())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds, {} steps, {:.1} simulated minutes, {} store calls, {} checks",
            self.seeds,
            self.steps,
            self.simulated_ms as f64 / 60_000.0,
            self.store_calls,
            self.checks
        )?;
        writeln!(
            f,
            "runs: {} submitted ({} unacknowledged), {} succeeded, {} failed, {} cancelled, {} reopened, {} lost to failover",
            self.submitted,
            self.unacknowledged,
            self.succeeded,
            self.failed,
            self.cancelled,
            self.reopened,
            self.lost_to_failover
        )?;
        writeln!(
            f,
            "attempts: {}, of which {} taken over, {} released, {} fenced",
            self.attempts, self.taken_over, self.released, self.fenced
        )?;
        writeln!(
            f,
            "graphs: {} executions, {} commands, {} values computed, {} nodes failed, {} runs superseded, {} ticks fired, {} looks, {} stranded, {} callbacks, {} waits answered",
            self.executions,
            self.commands,
            self.computed,
            self.failed_nodes,
            self.superseded,
            self.ticks_fired,
            self.looks,
            self.stranded,
            self.callbacks,
            self.awaited
        )?;
        writeln!(
            f,
            "jobs: {} started, {} reattached, {} recovered, {} lost, of which {} given up and {} killed",
            self.jobs_started,
            self.jobs_reattached,
            self.jobs_recovered,
            self.jobs_lost,
            self.jobs_given_up,
            self.jobs_killed
        )?;
        let list = |counts: Vec<String>| counts.join(", ");
        writeln!(f, "faults: {}", list(self.faults.iter().map(|(name, times)| format!("{name} {times}")).collect()))?;
        writeln!(f, "workers: {}", list(self.workers.iter().map(|(name, times)| format!("{name} {times}")).collect()))?;
        let schedules = self.schedules.iter().map(|(name, times)| format!("{name} {times}"));
        writeln!(f, "schedules: {}", list(schedules.collect()))?;
        write!(f, "verdicts: {}", list(self.verdicts.iter().map(|(name, times)| format!("{name} {times}")).collect()))
    }
}

/// A guarantee that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    pub seed: u64,
    pub guarantee: String,
    pub detail: String,
    pub at_ms: u64,
    /// The last lines of the history.
    pub trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trace.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        write!(
            f,
            "seed {} breaks {} at {} ms: {}\nreplay it with: cargo run -p everbeat-sim --example sim -- --seed {}",
            self.seed, self.guarantee, self.at_ms, self.detail, self.seed
        )
    }
}
