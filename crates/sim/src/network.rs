//! The way between replicas and the store: what is slow, cut, lost or late on it, by chance per call
//! and by order of the fault driver.

use crate::executor::Owner;
use crate::rng::Rng;
use crate::shortage::Shortage;
use std::collections::BTreeMap;

/// How a call that cannot get through looks to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Fails,
    Hangs,
}

/// Faults that chance deals out call by call, as shares of all calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) error_before: f64,
    pub(crate) error_after: f64,
    pub(crate) hang_before: f64,
    pub(crate) hang_after: f64,
    pub(crate) slow: f64,
    /// The caller sees an error, and the call takes effect later all the same.
    pub(crate) late: f64,
    pub(crate) wake_lost: f64,
    pub(crate) wake_doubled: f64,
    /// Calls to shims, and shims themselves.
    pub(crate) shims: f64,
}

pub(crate) struct Network {
    pub(crate) rng: Rng,
    pub(crate) rates: Rates,
    /// Replicas cut off from the store, one by one.
    pub(crate) cut: BTreeMap<Owner, Manner>,
    /// Nobody reaches the store.
    pub(crate) outage: Option<Manner>,
    /// Renewals fail for everybody, and everything else works.
    pub(crate) renewals: Option<Manner>,
    /// Rises when the store fails over: what was under way to the old one is gone.
    pub(crate) epoch: u64,
    /// How many signs each replica has sent, and the last of them that arrived. They go over one
    /// connection: none overtakes another.
    pub(crate) signs_sent: BTreeMap<Owner, u64>,
    pub(crate) signs_arrived: BTreeMap<Owner, u64>,
    /// Replicas pushed about by the driver: their calls are slow more often.
    pub(crate) slow_owner: Option<Owner>,
    /// The last time that a call to a shim was slow or failed.
    pub(crate) shims_troubled_at: u64,
    /// There is no room for some of what is to be stored.
    pub(crate) shortage: Option<Shortage>,
}

/// What will become of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Through { before: u64, after: u64 },
    ErrorBefore(u64),
    ErrorAfter { before: u64, after: u64 },
    HangBefore,
    HangAfter(u64),
    Late { error: u64, apply: u64 },
}

impl Network {
    pub(crate) fn new(seed: u64, rates: Rates) -> Network {
        Network {
            rng: Rng::new(seed, 3),
            rates,
            cut: BTreeMap::new(),
            outage: None,
            renewals: None,
            epoch: 0,
            signs_sent: BTreeMap::new(),
            signs_arrived: BTreeMap::new(),
            slow_owner: None,
            shims_troubled_at: 0,
            shortage: None,
        }
    }

    pub(crate) fn fate(&mut self, owner: Owner) -> Fate {
        let rates = self.rates;
        let slow = if self.slow_owner == Some(owner) { 0.5 } else { rates.slow };
        let rng = &mut self.rng;
        let before = latency(rng, slow);
        let after = if rng.chance(0.5) { 0 } else { latency(rng, slow) };
        if rng.chance(rates.error_before) {
            Fate::ErrorBefore(before)
        } else if rng.chance(rates.error_after) {
            Fate::ErrorAfter { before, after }
        } else if rng.chance(rates.hang_before) {
            Fate::HangBefore
        } else if rng.chance(rates.hang_after) {
            Fate::HangAfter(before)
        } else if rng.chance(rates.late) {
            Fate::Late { error: before, apply: rng.between(50_000, 3_000_000) }
        } else {
            Fate::Through { before, after }
        }
    }

    /// Whether a shim dies between the exit of its command and the record of it.
    pub(crate) fn dies_with_the_record(&mut self) -> bool {
        let rate = self.rates.shims / 2.0;
        self.rng.chance(rate)
    }

    /// What stands in the way of a message between this replica and the store just now.
    pub(crate) fn obstacle(&self, owner: Owner, renewal: bool) -> Option<Manner> {
        self.cut.get(&owner).copied().or(self.outage).or(if renewal { self.renewals } else { None })
    }

    /// Numbers a sign that is sent.
    pub(crate) fn sign_sent(&mut self, owner: Owner) -> u64 {
        let sent = self.signs_sent.entry(owner).or_default();
        *sent += 1;
        *sent
    }

    /// Whether a sign arrives before all that were sent after it.
    pub(crate) fn sign_arrives(&mut self, owner: Owner, number: u64) -> bool {
        let last = self.signs_arrived.entry(owner).or_default();
        let in_order = number > *last;
        *last = number.max(*last);
        in_order
    }

    /// How often a wake reaches its receiver, each time after how long.
    pub(crate) fn wake(&mut self) -> Vec<u64> {
        if self.rng.chance(self.rates.wake_lost) {
            return Vec::new();
        }
        let times = if self.rng.chance(self.rates.wake_doubled) { 2 } else { 1 };
        (0..times).map(|_| self.rng.between(100, 20_000)).collect()
    }
}

/// Mostly about a millisecond; slow ones up to well beyond every limit of the engine.
fn latency(rng: &mut Rng, slow: f64) -> u64 {
    if rng.chance(slow) { rng.between(20_000, 900_000) } else { rng.between(100, 3_000) }
}
