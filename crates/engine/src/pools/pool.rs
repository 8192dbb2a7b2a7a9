//! One pool: its workers, how many there should be, and how it is.

use super::guardian::{Containment, Guardian};
use super::keep::Retiring;
use super::sessions::Sessions;
use super::settings::{PoolSettings, Protocol};
use super::worker::{Going, Phase, Worker};
use crate::engine::lock;
use everbeat_model::worker::Crashes;
use everbeat_model::{BootInstant, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

pub(crate) struct Pool {
    pub(super) settings: PoolSettings,
    /// The queues of the settings.
    pub(super) queues: BTreeSet<String>,
    /// Whether its workers come by themselves, from elsewhere.
    pub(super) remote: bool,
    /// Counts what was offered, so that workers of different queues take turns.
    pub(super) turn: AtomicUsize,
    /// The same, so that the lines of a task with a limit of its own take turns.
    pub(super) line_turn: AtomicUsize,
    pub(super) sessions: Sessions,
    state: Mutex<State>,
    /// Something of it changed: a worker died, another size is wanted.
    pub(super) changed: Notify,
    /// A worker may have room that had none.
    pub(super) room: Notify,
    /// There is a worker to watch.
    pub(super) appeared: Notify,
    /// The start of a worker has come to its end.
    pub(super) started: Notify,
    /// A first worker has said what it performs, or none will for now.
    pub(super) introduced: Notify,
}

pub(super) struct State {
    pub(super) workers: BTreeMap<WorkerId, Arc<Worker>>,
    /// The secret of the worker that is being started: it may say hello before its guardian says that it runs.
    pub(super) starting: Option<String>,
    /// How many workers there should be.
    pub(super) size: usize,
    /// It takes no work, by a person's wish.
    pub(super) paused: bool,
    /// The server ends: nobody is started any more.
    pub(super) stopping: bool,
    pub(super) guardian: Option<Arc<dyn Guardian>>,
    pub(super) containment: Option<Containment>,
    pub(super) crashes: Crashes,
    /// Why the pool is not well.
    pub(super) trouble: Option<String>,
    /// Workers that took the place of others.
    pub(super) restarts: u64,
    /// How the last worker ended, in words.
    pub(super) last_exit: Option<String>,
    /// Tasks that its workers have ever offered.
    pub(super) tasks: BTreeSet<String>,
    /// Which tasks they are is known: a worker has said hello, or the settings say so.
    pub(super) heard: bool,
}

impl Pool {
    pub(super) fn new(settings: PoolSettings, remote: bool) -> Pool {
        let state = State {
            workers: BTreeMap::new(),
            starting: None,
            size: settings.size,
            paused: false,
            stopping: false,
            guardian: None,
            containment: None,
            crashes: Crashes::default(),
            trouble: None,
            restarts: 0,
            last_exit: None,
            tasks: settings.tasks.iter().cloned().collect(),
            heard: settings.protocol == Protocol::Lines,
        };
        Pool {
            queues: settings.queues.iter().cloned().collect(),
            settings,
            remote,
            turn: AtomicUsize::new(0),
            line_turn: AtomicUsize::new(0),
            sessions: Sessions::default(),
            state: Mutex::new(state),
            changed: Notify::new(),
            room: Notify::new(),
            appeared: Notify::new(),
            started: Notify::new(),
            introduced: Notify::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// For figures and people; none for workers that belong to no pool.
    pub(super) fn name(&self) -> Option<&str> {
        (!self.remote).then_some(self.settings.name.as_str())
    }

    /// Its workers offer these tasks. Answers whether some of them are new.
    pub(super) fn offers(&self, tasks: &[String]) -> bool {
        let mut state = self.state();
        let before = state.tasks.len();
        state.tasks.extend(tasks.iter().cloned());
        state.heard = true;
        let new = state.tasks.len() > before;
        drop(state);
        self.introduced.notify_waiters();
        new
    }

    /// Returns when its tasks are known, or when no worker is about to tell them.
    pub(super) async fn until_introduced(&self) {
        loop {
            let introduced = self.introduced.notified();
            tokio::pin!(introduced);
            introduced.as_mut().enable();
            if !self.state().introduces_itself() {
                return;
            }
            introduced.await;
        }
    }

    pub(super) fn speaks_lines(&self) -> bool {
        self.settings.protocol == Protocol::Lines
    }

    pub(super) fn workers(&self) -> Vec<Arc<Worker>> {
        self.state().workers.values().cloned().collect()
    }

    pub(super) fn add(&self, worker: &Arc<Worker>) {
        self.state().workers.insert(worker.id, worker.clone());
        self.appeared.notify_one();
    }

    /// Returns when no worker of this secret is being started.
    pub(super) async fn until_started(&self, secret: &str) {
        loop {
            let started = self.started.notified();
            tokio::pin!(started);
            started.as_mut().enable();
            if self.state().starting.as_deref() != Some(secret) {
                return;
            }
            started.await;
        }
    }

    pub(super) fn worker(&self, id: WorkerId) -> Option<Arc<Worker>> {
        self.state().workers.get(&id).cloned()
    }

    pub(super) fn degraded(&self) -> Option<String> {
        let state = self.state();
        state.trouble.clone().filter(|_| state.crashes.degraded() || state.guardian.is_none())
    }
}

/// What is to be done so that a pool has its size.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Upkeep {
    pub(super) start: usize,
    pub(super) drain: Vec<WorkerId>,
    /// When to look again, if nothing happens before.
    pub(super) again: Option<BootInstant>,
}

impl State {
    /// Its first workers are on their way: nothing is known of what they perform, and nothing went wrong so far.
    fn introduces_itself(&self) -> bool {
        !self.heard && self.size > 0 && !self.stopping && self.trouble.is_none()
    }

    /// Where there are more workers than wanted, the youngest are let go.
    pub(super) fn let_go(&mut self) {
        let staying = |worker: &&Arc<Worker>| {
            let state = worker.state();
            state.retiring.is_none()
                && state.sentence.is_none()
                && matches!(state.phase, Phase::Starting | Phase::Serving)
        };
        let staying: Vec<&Arc<Worker>> = self.workers.values().filter(staying).collect();
        let many = staying.len().saturating_sub(self.size);
        for worker in staying.into_iter().rev().take(many) {
            worker.state().retiring = Some(Retiring::TooMany);
        }
    }

    /// Replacements are started before those that they replace are let go, a few at a time.
    pub(super) fn upkeep(&self, now: BootInstant) -> Upkeep {
        let mut upkeep = Upkeep::default();
        if self.stopping {
            return upkeep;
        }
        let (mut fresh, mut ready, mut old, mut going): (usize, usize, _, usize) = (0, 0, Vec::new(), 0);
        for worker in self.workers.values() {
            let worker_state = worker.state();
            if !matches!(worker_state.phase, Phase::Starting | Phase::Serving) || worker_state.sentence.is_some() {
                let unasked = worker_state.going != Some(Going::Asked);
                going += usize::from(worker_state.phase != Phase::Dead && unasked);
                continue;
            }
            if worker_state.retiring.is_some() {
                old.push(worker.id);
                continue;
            }
            fresh += 1;
            ready += usize::from(worker_state.phase == Phase::Serving);
        }
        let surge = (self.size / 4).max(1);
        let missing = self.size.saturating_sub(fresh);
        let room = (self.size + surge).saturating_sub(fresh + old.len());
        // However many go by themselves or are being ended, and take long: so many processes in all.
        let room = room.min((self.size * 2 + surge).saturating_sub(fresh + old.len() + going));
        let wanted = self.crashes.at_once(missing.min(room), fresh - ready);
        match self.crashes.may_start(now) {
            true => upkeep.start = wanted,
            false if wanted > 0 => upkeep.again = self.crashes.hold_until,
            false => {}
        }
        let spare = (ready + old.len()).saturating_sub(self.size);
        upkeep.drain = old.into_iter().take(spare).collect();
        upkeep
    }
}
