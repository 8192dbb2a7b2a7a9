//! What one boot of one replica sees of the world: its clocks, its chance, its tasks, its host's locks.

use crate::executor::Owner;
use crate::rng::Rng;
use crate::shared::Shared;
use everbeat_engine::{Env, LockGuard, Locks, Task};
use everbeat_model::{BootInstant, ReplicaId, StoreTime};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) struct SimEnv {
    shared: Arc<Shared>,
    owner: Owner,
    machine: usize,
    /// Machines booted at different times: the boot clock of one means nothing on another, nor after the next
    /// boot.
    booted: u64,
    rng: Mutex<Rng>,
}

impl SimEnv {
    pub(crate) fn new(shared: Arc<Shared>, owner: Owner, machine: usize, boot: u32) -> SimEnv {
        let rng = Mutex::new(Rng::new(shared.seed, 1000 + u64::from(owner)));
        let booted = booted(machine, boot);
        SimEnv { shared, owner, machine, booted, rng }
    }
}

/// What a machine's boot clock is ahead of the common time.
pub(crate) fn booted(machine: usize, boot: u32) -> u64 {
    if boot == 0 { (machine as u64 + 1) * 7_000_000_000 } else { u64::from(boot) * 1_000_000 }
}

impl Env for SimEnv {
    fn boot(&self) -> BootInstant {
        BootInstant(Duration::from_micros(self.shared.now() + self.booted))
    }

    fn wall(&self) -> StoreTime {
        self.shared.clocks.wall(self.machine, self.shared.now())
    }

    fn random(&self) -> u128 {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).wide()
    }

    fn sleep_until(&self, at: BootInstant) -> BoxFuture<'static, ()> {
        // Rounded up: no timer fires early.
        let micros = u64::try_from(at.0.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        self.shared.executor.sleep_until(micros.saturating_sub(self.booted)).boxed()
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) -> Task {
        let id = self.shared.executor.spawn(self.owner, name, task);
        let executor = Arc::downgrade(&self.shared.executor);
        Task::new(move || {
            if let Some(executor) = executor.upgrade() {
                executor.abort(id);
            }
        })
    }
}

/// The kernel locks of one host. A crash drops the guards with the tasks that held them.
#[derive(Default)]
pub(crate) struct HostLocks(Arc<Mutex<BTreeMap<ReplicaId, bool>>>);

impl Locks for HostLocks {
    fn hold(&self, replica: ReplicaId) -> std::io::Result<LockGuard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(replica, true);
        Ok(LockGuard::new(Held { locks: self.0.clone(), replica }))
    }

    fn released(&self, replica: ReplicaId) -> Option<bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&replica).map(|held| !held)
    }
}

struct Held {
    locks: Arc<Mutex<BTreeMap<ReplicaId, bool>>>,
    replica: ReplicaId,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).insert(self.replica, false);
    }
}
