//! All processes of pools, and those that they serve.

use super::Process;
use crate::executor::Owner;
use everbeat_model::WorkerId;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct Processes {
    pub(crate) rng: crate::rng::Rng,
    /// By owner: all that are not known to be gone.
    pub(crate) all: BTreeMap<Owner, Arc<Process>>,
    pub(crate) by_worker: BTreeMap<WorkerId, Arc<Process>>,
    pub(crate) guardians: BTreeMap<Owner, Arc<crate::guardians::Warden>>,
    /// Whom workers can reach.
    pub(crate) servers: BTreeMap<Owner, everbeat_engine::Engine>,
    pub(crate) wires: Vec<(Owner, std::sync::Weak<crate::wire::Wire>)>,
    /// Things go wrong by chance.
    pub(crate) troubled: bool,
    last: Owner,
}

impl Processes {
    pub(crate) fn new(seed: u64) -> Processes {
        Processes {
            rng: crate::rng::Rng::new(seed, 21),
            all: BTreeMap::new(),
            by_worker: BTreeMap::new(),
            guardians: BTreeMap::new(),
            servers: BTreeMap::new(),
            wires: Vec::new(),
            troubled: true,
            last: 0,
        }
    }

    pub(crate) fn next(&mut self, first: Owner) -> Owner {
        self.last += 1;
        first + self.last
    }

    /// The lowest number that no process of that machine has: numbers come back soon.
    pub(crate) fn free_pid(&self, machine: usize) -> u32 {
        let taken = |pid: u32| self.all.values().any(|at| at.machine == machine && at.pid == pid && at.is_alive());
        (100..).find(|pid| !taken(*pid)).unwrap_or(100)
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        self.troubled && self.rng.chance(share)
    }
}
