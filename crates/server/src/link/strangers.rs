//! Connections on which no worker was welcomed yet: how many there may be, and which one goes when one more comes.

use everbeat_engine::{Env, within};
use everbeat_model::BootInstant;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Each is closed after a few seconds, and earlier if somebody else comes.
const MOST_STRANGERS: usize = 256;
/// A connection gets so long to say hello before it may have to go for another: when many workers come at once, those
/// that came first are not sent away while they speak.
const SHORTEST_HELLO: Duration = Duration::from_secs(1);
/// So often it is looked whether a connection has been silent for long enough.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub(super) struct Strangers {
    env: Arc<dyn Env>,
    places: Arc<Semaphore>,
    silent: Mutex<Silent>,
}

/// Those that have not said hello, in the order in which they came.
#[derive(Default)]
struct Silent {
    next: u64,
    of: BTreeMap<u64, (BootInstant, Arc<Notify>)>,
}

impl Strangers {
    pub(super) fn new(env: Arc<dyn Env>) -> Arc<Strangers> {
        Arc::new(Strangers { env, places: Arc::new(Semaphore::new(MOST_STRANGERS)), silent: Mutex::default() })
    }

    /// Waits for a place. While there is none, whoever has been silent for longest has to go.
    pub(super) async fn place(self: &Arc<Strangers>) -> Stranger {
        loop {
            if let Ok(place) = self.places.clone().try_acquire_owned() {
                return self.enter(place);
            }
            self.send_away();
            if let Some(Ok(place)) = within(&*self.env, LOOK_AGAIN, self.places.clone().acquire_owned()).await {
                return self.enter(place);
            }
        }
    }

    fn enter(self: &Arc<Strangers>, place: OwnedSemaphorePermit) -> Stranger {
        let stranger = Stranger { strangers: self.clone(), id: Mutex::new(None), leave: Arc::default(), _place: place };
        stranger.is_silent();
        stranger
    }

    fn send_away(&self) {
        let now = self.env.boot();
        let mut silent = self.silent();
        if silent.of.first_key_value().is_some_and(|(_, (since, _))| now.since(*since) >= SHORTEST_HELLO)
            && let Some((_, (_, leave))) = silent.of.pop_first()
        {
            leave.notify_one();
            metrics::counter!("everbeat_worker_connections_evicted_total").increment(1);
        }
    }

    fn silent(&self) -> MutexGuard<'_, Silent> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One such connection, until a worker is welcomed on it or it ends.
pub(super) struct Stranger {
    strangers: Arc<Strangers>,
    /// Its place among those that are silent.
    id: Mutex<Option<u64>>,
    leave: Arc<Notify>,
    _place: OwnedSemaphorePermit,
}

impl Stranger {
    /// Nothing was said yet, or what was said was refused: it may have to go for another.
    pub(super) fn is_silent(&self) {
        let now = self.strangers.env.boot();
        let mut id = self.id.lock().unwrap_or_else(PoisonError::into_inner);
        if id.is_none() {
            let mut silent = self.strangers.silent();
            let next = silent.next;
            silent.next += 1;
            silent.of.insert(next, (now, self.leave.clone()));
            *id = Some(next);
        }
    }

    /// It has said hello: it stays until that is answered.
    pub(super) fn spoke(&self) {
        let id = self.id.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(id) = id {
            self.strangers.silent().of.remove(&id);
        }
    }

    /// Resolves when it has to go.
    pub(super) async fn has_to_go(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.spoke();
    }
}
