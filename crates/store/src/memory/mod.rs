//! The in-memory store: the contract in executable form. The SQL stores must answer as it does.

mod cancel;
mod checks;
mod claim;
mod enqueue;
mod executions;
mod forget;
mod graphs;
mod ids;
mod outputs;
mod runs;
mod schedules;
mod sessions;
mod settle;
mod state;
mod traits;
mod workers;

pub use outputs::OutputRow;
pub use state::{DoneRow, ExecutionRow, LeaseRow, RunRow, State, ValueRow};

use crate::Clock;
use everbeat_model::{Planted, StoreTime, Token};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;
use uuid::Uuid;

/// A store that lives and dies with its process.
pub struct Memory {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    random: Box<dyn Fn() -> u128 + Send + Sync>,
    wakes: watch::Sender<u64>,
    hole: Planted,
}

impl Memory {
    pub fn new(clock: Arc<dyn Clock>) -> Memory {
        Memory::with(clock, Box::new(|| Uuid::new_v4().as_u128()), Planted::default())
    }

    /// For the simulation: chance is given, and a hole may be planted.
    pub fn with(clock: Arc<dyn Clock>, random: Box<dyn Fn() -> u128 + Send + Sync>, hole: Planted) -> Memory {
        Memory { state: Mutex::default(), clock, random, wakes: watch::Sender::new(0), hole }
    }

    /// A copy of everything, to compare with or to come back to.
    pub fn snapshot(&self) -> State {
        self.lock().clone()
    }

    /// Looks at everything in place.
    pub fn inspect<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock())
    }

    /// Goes back to an earlier copy, as a failover to a lagging standby does.
    pub fn restore(&self, state: State) {
        *self.lock() = state;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn now(&self) -> StoreTime {
        self.clock.now()
    }

    fn token(&self) -> Token {
        Token(Uuid::from_u128((self.random)()))
    }
}
