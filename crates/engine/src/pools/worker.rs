//! One worker, as this server knows it: its process, its link, what it performs, and its pulse.

mod state;

use super::end::NO_LIMIT;
use super::guardian::{WorkerExit, WorkerProcess};
use super::keep::Retiring;
use super::keys::Keys;
use super::link::{Assignment, FromWorker, Hello, LeaseShown, ToWorker};
use super::pulse::Pulse;
use super::settings::PoolSettings;
use crate::engine::lock;
use crate::env::{Env, Task};
use everbeat_model::policy::WhenIsolated;
use everbeat_model::run::Spec;
use everbeat_model::worker::Class;
use everbeat_model::{BootInstant, Reason, RunId, SessionId, StoreTime, Token, WorkerId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// So many of its last words on standard error are kept, for whoever asks why it died.
const LAST_LINES: usize = 20;
/// How much may wait for a worker that does not read.
pub(super) const TO_WORKER: usize = 64;
/// How much an attempt may leave unheard before its worker has to wait.
const ATTEMPT_BACKLOG: usize = 64;

pub(crate) struct Worker {
    pub(super) id: WorkerId,
    /// None for a worker elsewhere, which no guardian owns.
    pub(super) process: Option<Arc<dyn WorkerProcess>>,
    pub(super) started: BootInstant,
    pub(super) started_at: StoreTime,
    /// What its process was told, which nobody else knows.
    pub(super) secret: String,
    state: Mutex<State>,
    changed: Notify,
    /// Tasks that look after this worker alone.
    tasks: Mutex<Vec<Task>>,
}

pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) hello: Said,
    /// None while its link is cut.
    pub(super) line: Option<Line>,
    pub(super) cut_since: Option<BootInstant>,
    /// What proves a worker that comes back.
    pub(super) keys: Keys,
    /// Since when its hello is awaited.
    pub(super) awaited_since: BootInstant,
    /// Until when this server has vouched for its work, by the latest of what it was told.
    pub(super) vouched_until: BootInstant,
    attempts: BTreeMap<Token, Route>,
    pub(super) pulse: Pulse,
    /// Attempts that it has brought to an end.
    pub(super) finished: u64,
    /// It is given no more attempts than this.
    pub(super) most_runs: Option<u64>,
    /// It is to be replaced: it takes nothing new once another can.
    pub(super) retiring: Option<Retiring>,
    pub(super) last_lines: VecDeque<String>,
    /// By whose wish it goes, once it drains.
    pub(super) going: Option<Going>,
    /// Why this server ends it, if it does.
    pub(super) sentence: Option<Sentenced>,
    pub(super) exit: Option<WorkerExit>,
    /// Nothing of it and of what it started is left.
    pub(super) emptied: bool,
}

/// How far a worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has not said hello.
    Starting,
    Serving,
    /// It finishes what it has.
    Draining,
    Dead,
}

/// By whose wish a worker goes. One that says so while it is ended for a fault goes for that fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Going {
    Asked,
    ByItself,
    /// By itself, and before it had served: that counted as a crash when it said so.
    Early,
}

/// What its hello said.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    pub(super) sdk: String,
    pub(super) host: String,
    pub(super) tasks: BTreeSet<String>,
    pub(super) queues: BTreeSet<String>,
    pub(super) slots: usize,
}

pub(super) struct Line {
    pub(super) to: mpsc::Sender<ToWorker>,
    pub(super) epoch: u64,
}

/// Where what is said of an attempt goes.
struct Route {
    run: RunId,
    attempt: u32,
    to: mpsc::Sender<FromWorker>,
    /// The session that it is performed in.
    session: Option<SessionId>,
    /// The attempt was handed to its worker, over some link.
    handed: bool,
    /// The worker ends the attempt by itself when nobody vouches for it any more.
    vouched: bool,
    /// The attempt is judged, and its worker is asked to end it.
    ending: bool,
    /// Its worker has said that it ended.
    over: bool,
}

/// What is left of an attempt whose performer here is gone.
pub(super) enum Left {
    /// Its worker does not know of it.
    Nothing,
    /// It ended, and its worker waits to be told that this was heard.
    Answer,
    /// It goes on, and is heard here.
    Goes(mpsc::Receiver<FromWorker>),
}

/// Why this server ends a worker, and what was seen of it then.
#[derive(Clone, Debug)]
pub(super) struct Sentenced {
    pub(super) reason: Reason,
    pub(super) message: String,
    pub(super) class: Class,
    pub(super) stacks: Option<String>,
}

impl Worker {
    pub(super) fn new(
        (id, key, secret): (WorkerId, Token, String),
        process: Option<Arc<dyn WorkerProcess>>,
        settings: &PoolSettings,
        env: &dyn Env,
        started_at: StoreTime,
    ) -> Arc<Worker> {
        let (started, visible) = (env.boot(), process.is_some());
        Arc::new(Worker {
            id,
            process,
            started,
            started_at,
            secret,
            state: Mutex::new(State {
                phase: Phase::Starting,
                hello: Said::default(),
                line: None,
                cut_since: None,
                keys: Keys::new(key),
                awaited_since: started,
                vouched_until: started,
                attempts: BTreeMap::new(),
                pulse: Pulse::new(settings, started, visible, env.random()),
                finished: 0,
                most_runs: settings.max_runs,
                retiring: None,
                last_lines: VecDeque::new(),
                going: None,
                sentence: None,
                exit: None,
                emptied: false,
            }),
            changed: Notify::new(),
            tasks: Mutex::default(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn own(&self, task: Task) {
        lock(&self.tasks).push(task);
    }

    /// Lets its tasks go, now that it is dead.
    pub(super) fn disown(&self) -> Vec<Task> {
        std::mem::take(&mut *lock(&self.tasks))
    }

    pub(super) fn changed(&self) {
        self.changed.notify_waiters();
    }

    /// Resolves when this holds of the worker.
    pub(super) async fn until<T>(&self, mut found: impl FnMut(&State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = found(&self.state()) {
                return found;
            }
            changed.await;
        }
    }

    pub(super) async fn dead(&self) {
        self.until(|state| (state.phase == Phase::Dead).then_some(())).await;
    }

    /// A worker that was let in, for the first time or again. What it showed and nobody awaits is answered as fenced. One
    /// that is asked to go is told so over each link: it had none when it was asked, or the word was lost with the link.
    pub(super) fn connected(&self, hello: &Hello, line: Line, now: BootInstant) {
        let mut state = self.state();
        if state.phase == Phase::Starting {
            state.phase = Phase::Serving;
            state.hello = Said {
                sdk: hello.sdk.clone(),
                host: hello.host.clone(),
                tasks: hello.tasks.iter().cloned().collect(),
                queues: hello.queues.iter().cloned().collect(),
                slots: hello.slots,
            };
        }
        state.pulse.connected(now);
        if state.going == Some(Going::Asked) {
            // Under the same lock as the link: whoever asks later finds the link. Only where a server stops is there a
            // limit of time, and then nobody is let in.
            let _there_is_room = line.to.try_send(ToWorker::Drain { grace: NO_LIMIT });
        }
        state.line = Some(line);
        state.cut_since = None;
        drop(state);
        self.changed();
    }

    /// Its link is cut, unless it has a newer one.
    pub(super) fn cut(&self, epoch: u64, now: BootInstant) {
        let mut state = self.state();
        if state.line.as_ref().is_some_and(|line| line.epoch == epoch) {
            state.line = None;
            state.cut_since = Some(now);
            drop(state);
            self.changed();
        }
    }

    /// Takes a slot for an attempt, and answers where it is heard. None: it has no room, or is not the one to ask.
    pub(super) fn engage(
        &self,
        lease: &LeaseShown,
        spec: &Spec,
        session: Option<SessionId>,
    ) -> Option<mpsc::Receiver<FromWorker>> {
        let mut state = self.state();
        if !state.takes(&spec.task) {
            return None;
        }
        let (to, heard) = mpsc::channel(ATTEMPT_BACKLOG);
        let (run, attempt) = (lease.run_id, lease.attempt);
        let vouched = spec.policy.when_isolated == WhenIsolated::Stop;
        let route = Route { run, attempt, to, session, handed: false, vouched, ending: false, over: false };
        state.attempts.insert(lease.token, route);
        Some(heard)
    }

    /// Hands an attempt over, by the link that there is now; waits while its worker does not read. False: the link is
    /// cut, and nothing of the attempt will begin.
    pub(super) async fn assign(&self, assignment: Assignment) -> bool {
        let to = {
            let mut state = self.state();
            let Some(to) = state.line.as_ref().map(|line| line.to.clone()) else { return false };
            // From here on a worker that comes back and does not show the attempt has never got it.
            if let Some(route) = state.attempts.get_mut(&assignment.lease.token) {
                route.handed = true;
            }
            to
        };
        to.send(ToWorker::Work(Box::new(assignment))).await.is_ok()
    }

    /// Hears of an attempt anew, since whoever heard of it before is gone.
    pub(super) fn hear_its_end(&self, token: Token) -> Left {
        let mut state = self.state();
        match state.attempts.get_mut(&token) {
            Some(route) if route.over => Left::Answer,
            Some(route) if route.handed => {
                let (to, heard) = mpsc::channel(ATTEMPT_BACKLOG);
                (route.to, route.ending) = (to, true);
                Left::Goes(heard)
            }
            _ => Left::Nothing,
        }
    }

    /// Its worker says that an attempt ended. Noted before it is passed on: whoever should hear it may be gone.
    pub(super) fn says_ended(&self, token: Token) {
        if let Some(route) = self.state().attempts.get_mut(&token) {
            route.over = true;
        }
    }

    /// Whether its link is there, and which of those that it ever had.
    pub(super) fn epoch(&self) -> Option<u64> {
        self.state().line.as_ref().map(|line| line.epoch)
    }

    /// An attempt is over, and its slot is free. `finished`: the worker did not merely give it back.
    pub(super) fn disengage(&self, token: Token, finished: bool) {
        let mut state = self.state();
        if state.attempts.remove(&token).is_some() {
            state.finished += u64::from(finished);
            drop(state);
            self.changed();
        }
    }

    /// Says something to the worker; waits while it does not read. False: its link is cut.
    pub(super) async fn tell(&self, word: ToWorker) -> bool {
        let to = self.state().line.as_ref().map(|line| line.to.clone());
        match to {
            Some(to) => to.send(word).await.is_ok(),
            None => false,
        }
    }

    /// Says something, if there is room for it just now.
    pub(super) fn tell_now(&self, word: ToWorker) -> bool {
        self.state().line.as_ref().is_some_and(|line| line.to.try_send(word).is_ok())
    }

    /// Where a word about an attempt goes, if this worker performs it.
    pub(super) fn route(&self, lease: &LeaseShown) -> Option<mpsc::Sender<FromWorker>> {
        let state = self.state();
        let route = state.attempts.get(&lease.token)?;
        (route.run == lease.run_id && route.attempt == lease.attempt).then(|| route.to.clone())
    }

    pub(super) fn spoke(&self, line: String) {
        let mut state = self.state();
        if state.last_lines.len() == LAST_LINES {
            state.last_lines.pop_front();
        }
        state.last_lines.push_back(line);
    }

    pub(super) fn uptime(&self, now: BootInstant) -> Duration {
        now.since(self.started)
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.pid())
    }
}
