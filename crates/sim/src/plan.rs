//! What one seed's world is like. Each seed turns on its own random subset of faults with its own
//! intensities, so that rare combinations are not drowned by frequent ones.

use crate::Focus;
use crate::network::Rates;
use crate::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Crash,
    Freeze,
    FreezeSeveral,
    Partition,
    Outage,
    RenewalsFail,
    Failover,
    HostClock,
    StoreClock,
    SlowReplica,
    Drain,
    PauseQueue,
    /// A machine boots anew, with all that is on it.
    Reboot,
    /// All replicas of a machine are gone for a while; its shims are not.
    HostAway,
    /// All replicas of a machine leave in order, and their processes stay.
    HostDrains,
    /// All replicas of a machine are gone, come back, and go again at once.
    HostFlaps,
    ShimDies,
    ShimHangs,
    /// Somebody takes the folder of a job away whose command does not run.
    FolderGone,
}

const ALL: [Fault; 19] = [
    Fault::Crash,
    Fault::Freeze,
    Fault::FreezeSeveral,
    Fault::Partition,
    Fault::Outage,
    Fault::RenewalsFail,
    Fault::Failover,
    Fault::HostClock,
    Fault::StoreClock,
    Fault::SlowReplica,
    Fault::Drain,
    Fault::PauseQueue,
    Fault::Reboot,
    Fault::HostAway,
    Fault::HostDrains,
    Fault::HostFlaps,
    Fault::ShimDies,
    Fault::ShimHangs,
    Fault::FolderGone,
];

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Places for replicas, spread over so many machines.
    pub(crate) hosts: usize,
    pub(crate) machines: usize,
    pub(crate) slots: usize,
    /// Whether replicas of a host know each other's kernel locks.
    pub(crate) locks: bool,
    pub(crate) rates: Rates,
    pub(crate) faults: Vec<Fault>,
    /// The mean pause between two faults, in microseconds.
    pub(crate) pause: u64,
    /// How long things break before they are healed.
    pub(crate) trouble: u64,
    pub(crate) submissions: u64,
    pub(crate) commands: u64,
    /// Hints stay unreliable after the healing, when nothing else does.
    pub(crate) wakes_stay_lossy: bool,
    /// Whether clients use graphs.
    pub(crate) graphs: bool,
    /// Executions that clients start, and what they ask of them.
    pub(crate) starts: u64,
    pub(crate) requests: u64,
    /// Whether clients use schedules and flows.
    pub(crate) schedules: bool,
    /// Whether replicas look at flows that are due by themselves, or leave that to calls from outside.
    pub(crate) flow_ticker: bool,
    /// Whether replicas perform detached commands, and how many clients ask for.
    pub(crate) performs_jobs: bool,
    pub(crate) jobs: u64,
    /// Whether replicas have pools of workers.
    pub(crate) workers: bool,
    /// A worker is replaced after so many attempts.
    pub(crate) max_runs: Option<u64>,
    pub(crate) focus: Option<Focus>,
}

impl Plan {
    pub(crate) fn of(seed: u64, focus: Option<Focus>) -> Plan {
        let plan = Plan { focus, ..Plan::of_everything(seed) };
        let faults = match focus {
            None => return plan,
            Some(Focus::Absence) => [
                [Fault::HostAway, Fault::HostDrains, Fault::HostDrains, Fault::HostFlaps],
                [Fault::HostFlaps, Fault::ShimHangs, Fault::ShimHangs, Fault::ShimHangs],
            ],
            Some(Focus::Failover) => {
                [[Fault::Failover; 4], [Fault::Failover, Fault::Failover, Fault::Crash, Fault::Freeze]]
            }
            Some(Focus::Workers) => return of_workers(plan),
            Some(Focus::TakeOver) => [[Fault::Crash; 4], [Fault::Crash, Fault::Crash, Fault::Freeze, Fault::ShimDies]],
        };
        Plan {
            faults: faults.concat(),
            machines: match focus {
                Some(Focus::Absence) => plan.hosts,
                Some(Focus::TakeOver) => 1,
                _ => plan.machines,
            },
            // A crash is proven at once.
            locks: plan.locks || focus == Some(Focus::TakeOver),
            rates: Rates { shims: plan.rates.shims.max(0.06), ..plan.rates },
            performs_jobs: true,
            graphs: false,
            schedules: false,
            // Those of the one are long, and must all be done in the end.
            jobs: if focus == Some(Focus::Absence) { 10 } else { 24 },
            submissions: 2,
            trouble: 9_000_000,
            ..plan
        }
    }

    fn of_everything(seed: u64) -> Plan {
        let mut rng = Rng::new(seed, 1);
        let rng = &mut rng;
        let mut faults: Vec<Fault> = ALL.into_iter().filter(|_| rng.chance(0.4)).collect();
        if faults.is_empty() {
            faults.push(*rng.pick(&ALL));
        }
        // One of them much more often than the others, so that it also meets itself.
        let favourite = *rng.pick(&faults);
        faults.extend(std::iter::repeat_n(favourite, rng.below(4) as usize));
        let mut rates = Rates {
            error_before: rate(rng, 0.1),
            error_after: rate(rng, 0.1),
            hang_before: rate(rng, 0.04),
            hang_after: rate(rng, 0.04),
            slow: rate(rng, 0.08),
            late: rate(rng, 0.06),
            wake_lost: *rng.pick(&[0.0, 0.3, 1.0]),
            wake_doubled: rate(rng, 0.3),
            shims: rate(rng, 0.12),
        };
        let performs_jobs = rng.chance(0.65);
        let mut shared = rng.chance(0.4);
        match rng.below(9) {
            // Take-overs while messages overtake each other.
            0 => {
                faults.extend([Fault::Crash, Fault::Crash, Fault::Freeze, Fault::Partition]);
                rates = Rates { error_after: 0.05, slow: 0.12, late: 0.08, ..rates };
            }
            // Failovers, each of which forgets grants that somebody acts on.
            1 => faults.extend([Fault::Failover; 6]),
            // Shims that hang, and nobody there to notice.
            3 if performs_jobs => {
                faults = vec![Fault::HostAway, Fault::HostDrains, Fault::HostDrains];
                faults.extend([Fault::ShimHangs; 4]);
                shared = false;
            }
            // Hosts without replicas, and shims without hosts.
            2 if performs_jobs => {
                faults = vec![Fault::HostAway, Fault::HostAway, Fault::HostDrains, Fault::ShimHangs, Fault::Reboot];
                faults.extend([Fault::HostFlaps, *rng.pick(&[Fault::HostFlaps, Fault::HostDrains, Fault::FolderGone])]);
                shared = false;
            }
            // Replicas that share a machine, and take jobs from each other that are not gone for good.
            4 | 5 if performs_jobs => {
                faults.extend([Fault::Freeze; 4]);
                faults.extend([Fault::Crash, Fault::Crash, Fault::Partition, Fault::Partition, Fault::ShimHangs]);
                rates = Rates { slow: 0.1, late: 0.06, shims: 0.1, ..rates };
                shared = true;
            }
            _ => {}
        }
        let hosts = rng.between(2, 5) as usize;
        Plan {
            hosts,
            machines: if shared { rng.between(1, hosts as u64 / 2) as usize } else { hosts },
            slots: rng.between(2, 5) as usize,
            locks: rng.chance(0.5),
            rates,
            faults,
            pause: rng.between(150_000, 1_200_000),
            trouble: rng.between(3_000_000, 9_000_000),
            submissions: rng.between(8, 24),
            commands: rng.below(8),
            wakes_stay_lossy: rng.chance(0.5),
            graphs: rng.chance(0.6),
            starts: rng.between(2, 5),
            requests: rng.between(8, 30),
            schedules: Rng::new(seed, 24).chance(0.5),
            flow_ticker: !seed.is_multiple_of(3),
            performs_jobs,
            jobs: rng.between(8, 24),
            workers: Rng::new(seed, 18).chance(0.4),
            max_runs: Rng::new(seed, 22).chance(0.3).then_some(3),
            focus: None,
        }
    }
}

/// Little else goes wrong, so that what workers do is not drowned.
fn of_workers(plan: Plan) -> Plan {
    Plan {
        faults: vec![Fault::Crash, Fault::Crash, Fault::Freeze, Fault::Freeze, Fault::HostClock],
        hosts: plan.hosts.min(3),
        machines: plan.machines.min(3),
        pause: 1_500_000,
        rates: Rates { slow: plan.rates.slow, ..Rates::default() },
        performs_jobs: false,
        graphs: false,
        schedules: false,
        jobs: 0,
        submissions: 2,
        workers: true,
        trouble: 8_000_000,
        ..plan
    }
}

fn rate(rng: &mut Rng, most: f64) -> f64 {
    if rng.chance(0.4) { most * rng.between(1, 10) as f64 / 10.0 } else { 0.0 }
}
