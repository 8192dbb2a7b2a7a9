//! One worker, as this server knows it: its process, its link, what it performs, and its pulse.

use super::guardian::{WorkerExit, WorkerProcess};
use super::link::{Assignment, FromWorker, Hello, LeaseShown, ToWorker};
use super::pulse::Pulse;
use super::settings::PoolSettings;
use crate::engine::lock;
use crate::env::{Env, Task};
use everbeat_model::worker::Class;
use everbeat_model::{BootInstant, Reason, RunId, StoreTime, Token, WorkerId};
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
    keys: Keys,
    /// Since when its hello is awaited.
    pub(super) awaited_since: BootInstant,
    /// Until when this server has vouched for its work, by the latest of what it was told.
    pub(super) vouched_until: BootInstant,
    attempts: BTreeMap<Token, Route>,
    pub(super) pulse: Pulse,
    /// Attempts that it has brought to an end.
    pub(super) finished: u64,
    /// It is to be replaced: it takes nothing new once another can.
    pub(super) retiring: Option<Retiring>,
    pub(super) last_lines: VecDeque<String>,
    /// Why this server ends it, if it does.
    pub(super) sentence: Option<Sentenced>,
    pub(super) exit: Option<WorkerExit>,
    /// Nothing of it and of what it started is left.
    pub(super) emptied: bool,
}

/// Each welcome brings another key. A hello that was long under way shows an old one, and what it says of attempts is
/// old as well: it must not replace the link that came after it.
struct Keys {
    latest: Token,
    /// The key before, until the worker is heard over the link of the latest: it may not have got that welcome.
    former: Option<Token>,
    /// The worker is heard over the latest link: it has got the welcome.
    confirmed: bool,
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

/// Why a worker is replaced although it is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retiring {
    Age,
    Runs,
    Memory,
    Asked,
    TooMany,
}

impl Retiring {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Retiring::Age => "max_age",
            Retiring::Runs => "max_runs",
            Retiring::Memory => "max_memory",
            Retiring::Asked => "asked",
            Retiring::TooMany => "scaled_down",
        }
    }
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
    /// The attempt was handed to its worker, over some link.
    handed: bool,
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
                keys: Keys { latest: key, former: None, confirmed: false },
                awaited_since: started,
                vouched_until: started,
                attempts: BTreeMap::new(),
                pulse: Pulse::new(settings, started, visible),
                finished: 0,
                retiring: None,
                last_lines: VecDeque::new(),
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

    /// A worker that was let in, for the first time or again. What it showed and nobody awaits is answered as fenced.
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
    pub(super) fn engage(&self, lease: &LeaseShown, task: &str) -> Option<mpsc::Receiver<FromWorker>> {
        let mut state = self.state();
        if !state.takes(task) {
            return None;
        }
        let (to, heard) = mpsc::channel(ATTEMPT_BACKLOG);
        let (run, attempt) = (lease.run_id, lease.attempt);
        let route = Route { run, attempt, to, handed: false, ending: false, over: false };
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

    /// An attempt is over, and its slot is free.
    pub(super) fn disengage(&self, token: Token) {
        let mut state = self.state();
        if state.attempts.remove(&token).is_some() {
            state.finished += 1;
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

/// Whoever served for so long, or finished anything, did not crash at its start.
const SERVED: Duration = Duration::from_secs(10);

impl State {
    /// Whether a worker that shows this key may come back.
    pub(super) fn admits(&self, key: Token) -> bool {
        key == self.keys.latest || self.keys.former == Some(key)
    }

    /// Whether it is not known to have got any welcome: it may say its first hello again.
    pub(super) fn unwelcomed(&self) -> bool {
        self.phase == Phase::Starting
            || (self.phase == Phase::Serving && self.keys.former.is_none() && !self.keys.confirmed)
    }

    /// It is welcomed anew, with this key.
    pub(super) fn welcomes(&mut self, key: Token) {
        if self.keys.confirmed {
            self.keys.former = Some(self.keys.latest);
        }
        (self.keys.latest, self.keys.confirmed) = (key, false);
    }

    /// It is heard over its latest link. True for the first time: from now on it may be given work.
    pub(super) fn confirms(&mut self) -> bool {
        self.keys.former = None;
        !std::mem::replace(&mut self.keys.confirmed, true)
    }

    /// Whether it was heard over its latest link.
    pub(super) fn is_confirmed(&self) -> bool {
        self.keys.confirmed
    }

    /// Whether it has shown that it does its work.
    pub(super) fn serves_well(&self, uptime: Duration) -> bool {
        self.phase != Phase::Starting && (self.finished > 0 || uptime >= SERVED)
    }

    /// Whether it could begin an attempt at this task now.
    pub(super) fn takes(&self, task: &str) -> bool {
        self.room() > 0 && self.hello.tasks.contains(task)
    }

    /// How many more attempts it could begin now.
    pub(super) fn room(&self) -> usize {
        let serves = self.phase == Phase::Serving
            && self.line.is_some()
            && self.keys.confirmed
            && self.sentence.is_none()
            && !self.attempts.values().any(|route| route.ending);
        if serves { self.hello.slots.saturating_sub(self.attempts.len()) } else { 0 }
    }

    pub(super) fn running(&self) -> usize {
        self.attempts.len()
    }

    pub(super) fn performs(&self) -> Vec<RunId> {
        self.attempts.values().map(|route| route.run).collect()
    }

    /// Whoever did not look has not heard: a stall of the watcher is not the worker's silence.
    pub(super) fn excuse(&mut self, lag: Duration, now: BootInstant) {
        self.awaited_since = (self.awaited_since + lag).min(now);
        self.cut_since = self.cut_since.map(|since| (since + lag).min(now));
        self.pulse.excuse(lag, now);
    }

    /// One more full timeout, from now on.
    pub(super) fn reprieve(&mut self, now: BootInstant) {
        self.cut_since = self.cut_since.map(|_| now);
        self.pulse.reprieve(now);
    }

    /// For how long its link has been cut, if it is.
    pub(super) fn cut_for(&self, now: BootInstant) -> Option<Duration> {
        match self.line {
            Some(_) => None,
            None => Some(self.cut_since.map_or(Duration::ZERO, |since| now.since(since))),
        }
    }

    /// The attempts among these that the server does not await, and those that the worker was handed and does not know
    /// of.
    pub(super) fn compare(&self, shown: &[LeaseShown]) -> (Vec<LeaseShown>, Vec<Token>) {
        let awaited = |lease: &LeaseShown| self.attempts.contains_key(&lease.token);
        let strange = shown.iter().filter(|lease| !awaited(lease)).copied().collect();
        let known: BTreeSet<Token> = shown.iter().map(|lease| lease.token).collect();
        let handed = self.attempts.iter().filter(|(_, route)| route.handed).map(|(token, _)| token);
        let forgotten = handed.filter(|token| !known.contains(token)).copied().collect();
        (strange, forgotten)
    }

    /// The attempt will not be heard of again: whoever performs it learns so by the end of its channel.
    pub(super) fn forget(&mut self, token: Token) {
        if let Some(route) = self.attempts.get_mut(&token) {
            (route.to, _) = mpsc::channel(1);
        }
    }
}
