//! What all parts of one simulated world share.

use crate::executor::{Executor, Sleep};
use crate::network::Network;
use crate::process::Processes;
use crate::truth::Truth;
use everbeat_model::{Planted, StoreTime};
use everbeat_store::Memory;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Shared {
    pub(crate) seed: u64,
    pub(crate) hole: Planted,
    pub(crate) executor: Arc<Executor>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) clocks: Arc<Clocks>,
    network: Mutex<Network>,
    truth: Mutex<Truth>,
    pools: Mutex<Processes>,
}

impl Shared {
    pub(crate) fn new(seed: u64, hosts: usize, hole: Planted, network: Network, truth: Truth) -> Arc<Shared> {
        let executor = Executor::new();
        let clocks = Arc::new(Clocks::new(hosts));
        let (time, store_clocks) = (executor.clone(), clocks.clone());
        let store_clock = move || store_clocks.store(time.now());
        let chance = Mutex::new(crate::rng::Rng::new(seed, 2));
        let random = Box::new(move || chance.lock().unwrap_or_else(PoisonError::into_inner).wide());
        let memory = Arc::new(Memory::with(Arc::new(store_clock), random, hole));
        Arc::new(Shared {
            seed,
            hole,
            executor,
            memory,
            clocks,
            network: Mutex::new(network),
            truth: Mutex::new(truth),
            pools: Mutex::new(Processes::new(seed)),
        })
    }

    /// Worker processes and their guardians. Not to be held while the truth is asked, or told.
    pub(crate) fn pools(&self) -> MutexGuard<'_, Processes> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> u64 {
        self.executor.now()
    }

    pub(crate) fn network(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sleep(&self, micros: u64) -> Sleep {
        self.executor.sleep_until(self.now() + micros)
    }

    /// Adds a line to the history, if somebody reads it.
    pub(crate) fn trace(&self, line: impl FnOnce(&mut Truth) -> String) {
        let mut truth = self.truth();
        if truth.tracing {
            let now = self.now();
            let line = line(&mut truth);
            truth.trace.push(format!("{:>10.3} ms  {line}", now as f64 / 1000.0));
        }
    }
}

/// Wall clocks, which jump; each is the common time plus its own offset.
pub(crate) struct Clocks {
    hosts: Vec<AtomicI64>,
    store: AtomicI64,
    store_furthest: AtomicI64,
}

const EPOCH_US: i64 = 1_800_000_000_000_000;

impl Clocks {
    fn new(hosts: usize) -> Clocks {
        let hosts = (0..hosts).map(|host| AtomicI64::new(host as i64 * 1234)).collect();
        Clocks { hosts, store: AtomicI64::new(0), store_furthest: AtomicI64::new(0) }
    }

    pub(crate) fn wall(&self, host: usize, now: u64) -> StoreTime {
        StoreTime(EPOCH_US + now as i64 + self.hosts[host].load(Ordering::Relaxed))
    }

    pub(crate) fn store(&self, now: u64) -> StoreTime {
        StoreTime(EPOCH_US + now as i64 + self.store.load(Ordering::Relaxed))
    }

    pub(crate) fn jump_host(&self, host: usize, by: i64) {
        self.hosts[host].fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn jump_store(&self, by: i64) {
        let offset = self.store.fetch_add(by, Ordering::Relaxed) + by;
        self.store_furthest.fetch_max(offset, Ordering::Relaxed);
    }

    /// Whoever corrects the store's clock sets it to the furthest it ever showed: due times that were
    /// stored meanwhile then come when they should, and not an hour late.
    pub(crate) fn mend_store(&self) {
        self.store.store(self.store_furthest.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
