//! A worker process as its kernel sees it: its number, what it does, how it ends, what it leaves behind. What was done to
//! it is written down, so that a judgement on it can be compared with that.

use crate::executor::{Owner, WORLD};
use crate::shared::Shared;
use crate::truth::{Window, WindowKind};
use everbeat_engine::pools::{Ended, FromWorker, OutputLine, ProcessLook, ProcessState, ToWorker, WorkerExit};
use everbeat_model::{RunId, Token, WorkerId};
use futures_util::FutureExt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

const MS: u64 = 1000;
/// Owners from here on are workers, guardians, and workers of no pool.
pub(crate) const FIRST_WORKER: Owner = 1_000_000;
pub(crate) const FIRST_GUARDIAN: Owner = 2_000_000;
pub(crate) const FIRST_REMOTE: Owner = 3_000_000;

pub(crate) struct Process {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Owner,
    /// The boot of the replica in whose pool it is; none for a worker of no pool.
    pub(crate) server: Option<Owner>,
    /// The guardian that started it.
    pub(crate) guardian: Option<Owner>,
    /// The place of that replica among the hosts.
    pub(crate) place: usize,
    pub(crate) machine: usize,
    pub(crate) pid: u32,
    /// Of a worker of no pool; none means all.
    pub(crate) queues: Vec<String>,
    state: Mutex<State>,
    changed: Notify,
    /// The kernel's timer was set anew.
    armed: Notify,
}

pub(crate) struct State {
    started_at: u64,
    pub(crate) hello_at: Option<u64>,
    pub(crate) death: Option<Death>,
    exit: Option<WorkerExit>,
    emptied_at: Option<u64>,
    condition: Condition,
    /// Counts conditions, so that a late recovery does not end a later one.
    conditions: u64,
    condition_since: u64,
    /// CPU time so far, besides that of the condition.
    cpu: u64,
    pub(crate) troubles: Vec<Trouble>,
    /// Attempts that it was asked to end: when, and when it said that they had.
    asked: BTreeMap<Token, (u64, Option<u64>)>,
    drains: bool,
    /// Somebody had the right to end it.
    condemned: bool,
    /// A polite signal reached it.
    pub(crate) terminated: bool,
    lines: VecDeque<OutputLine>,
    /// When it last got a valid ping, or its welcome.
    pub(crate) pinged_at: u64,
    /// Until then what it performs is vouched for.
    pub(crate) vouched_until: u64,
    /// How many attempts it performs that must have stopped by then.
    pub(crate) strict: usize,
    /// Heartbeats that its server was handed and has not answered.
    pub(crate) beats: BTreeMap<(Token, u64), Beaten>,
}

/// A heartbeat on its way.
#[derive(Clone, Copy)]
pub(crate) struct Beaten {
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
    pub(crate) handed_at: u64,
    pub(crate) epoch: u64,
    pub(crate) checkpoint: Option<u64>,
    /// For so long nobody may call the attempt silent, or stalled.
    pub(crate) silence: Option<u64>,
    pub(crate) stall: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    pub(crate) at: u64,
    pub(crate) cause: Cause,
}

/// Why a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Somebody killed it.
    Killed,
    OutOfMemory,
    /// Its work took it along.
    Panicked,
    /// It was not pinged for its time to live.
    NoPing,
    /// Nobody vouched for its work any more.
    Isolated,
    ServerGone,
    /// It was not let in.
    Refused,
    GuardianGone,
    /// Its guardian ended it, after its server's death or on request.
    Guardian,
    /// Its server signalled it.
    Signalled,
    /// It had nothing left to do.
    Drained,
    Swept,
    Reboot,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Well,
    /// As by SIGSTOP.
    Stopped,
    /// It sleeps, and nothing in it goes on.
    Hung,
    /// It computes, and nothing else in it gets a turn.
    Busy,
    /// It wants a processor, and gets none.
    Starved,
}

/// Trouble of its own, or of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Did(Condition),
    Cut,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: Kind,
    pub(crate) from: u64,
    /// When it was over.
    pub(crate) to: u64,
}

impl Process {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        owner: Owner,
        (server, guardian): (Option<Owner>, Option<Owner>),
        (place, machine, pid): (usize, usize, u32),
        queues: Vec<String>,
    ) -> Arc<Process> {
        let now = shared.now();
        let line = OutputLine { error: false, text: "begins".to_string(), cut: false };
        let process = Arc::new(Process {
            shared: shared.clone(),
            owner,
            server,
            guardian,
            place,
            machine,
            pid,
            queues,
            state: Mutex::new(State {
                started_at: now,
                hello_at: None,
                death: None,
                exit: None,
                emptied_at: None,
                condition: Condition::Well,
                conditions: 0,
                condition_since: now,
                cpu: 0,
                troubles: Vec::new(),
                asked: BTreeMap::new(),
                drains: false,
                condemned: false,
                terminated: false,
                lines: VecDeque::from([line]),
                pinged_at: now,
                vouched_until: 0,
                strict: 0,
                beats: BTreeMap::new(),
            }),
            changed: Notify::new(),
            armed: Notify::new(),
        });
        shared.executor.spawn(WORLD, "kernel timer", process.clone().keep_timer().boxed());
        process
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> String {
        format!("worker {} (pid {})", self.owner, self.pid)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.state().death.is_none()
    }

    pub(crate) fn is_emptied(&self) -> bool {
        self.state().emptied_at.is_some()
    }

    pub(crate) fn condition(&self) -> Condition {
        self.state().condition
    }

    pub(crate) fn changed(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) async fn until<T>(&self, mut found: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = found(&mut self.state()) {
                return found;
            }
            changed.await;
        }
    }

    /// Ends it. What it started may live on for a little.
    pub(crate) fn exit(self: &Arc<Process>, cause: Cause) {
        let exit = match cause {
            Cause::Drained => WorkerExit { code: Some(0), ..WorkerExit::default() },
            Cause::NoPing | Cause::Isolated | Cause::ServerGone | Cause::Refused => {
                WorkerExit { code: Some(1), ..WorkerExit::default() }
            }
            Cause::Panicked => WorkerExit { signal: Some(6), ..WorkerExit::default() },
            Cause::OutOfMemory => WorkerExit { signal: Some(9), out_of_memory: true, ..WorkerExit::default() },
            _ => WorkerExit { signal: Some(9), ..WorkerExit::default() },
        };
        let now = self.shared.now();
        {
            let mut state = self.state();
            if state.death.is_some() {
                return;
            }
            close(&mut state, now);
            (state.death, state.exit) = (Some(Death { at: now, cause }), Some(exit));
            let text = format!("ends: {cause:?}");
            state.lines.push_back(OutputLine { error: true, text, cut: false });
        }
        self.shared.truth().stopped.remove(&self.owner);
        self.shared.truth().report.worker(cause.word());
        self.shared.trace(|_| format!("{} ends: {cause:?}", self.name()));
        self.shared.executor.crash(self.owner);
        let children = match cause {
            Cause::Reboot | Cause::Swept => 0,
            _ if self.server.is_none() => {
                // Whoever started it elsewhere does so again.
                crate::worker::start_remote(&self.shared, self.queues.clone(), self.shared.now() % 300_000);
                0
            }
            // With nobody there to end them.
            _ if !self.shared.looked_after(self) => self.shared.pools().rng.between(100, 4000) * MS,
            _ => self.shared.pools().rng.below(60) * MS,
        };
        if children < 10 * MS {
            self.empty();
        } else {
            let process = self.clone();
            let live_on = async move {
                process.shared.sleep(children).await;
                process.empty();
            };
            self.shared.executor.spawn(WORLD, "children", live_on.boxed());
        }
        self.changed();
        self.armed.notify_one();
    }

    /// Nothing of it is left.
    pub(crate) fn empty(&self) {
        let now = self.shared.now();
        let mut state = self.state();
        state.emptied_at = state.emptied_at.or(Some(now));
        drop(state);
        self.changed();
    }

    /// From now on it does something else than its work.
    pub(crate) fn falls(self: &Arc<Process>, condition: Condition, span: u64) {
        let now = self.shared.now();
        let serial = {
            let mut state = self.state();
            if state.death.is_some() || state.condition != Condition::Well {
                return;
            }
            (state.condition, state.condition_since) = (condition, now);
            state.conditions += 1;
            state.conditions
        };
        if condition == Condition::Stopped {
            self.shared.truth().stopped.insert(self.owner);
        }
        self.shared.trace(|_| format!("{} is {condition:?} for {} ms", self.name(), span / MS));
        self.shared.executor.freeze(self.owner);
        let process = self.clone();
        let recover = async move {
            process.shared.sleep(span).await;
            let same = process.state().conditions == serial;
            if same {
                process.recovers();
            }
        };
        self.shared.executor.spawn(WORLD, "recovery", recover.boxed());
    }

    /// It goes on, if it still lives.
    pub(crate) fn recovers(self: &Arc<Process>) {
        let now = self.shared.now();
        let (condition, away, isolated) = {
            let mut state = self.state();
            if state.death.is_some() || state.condition == Condition::Well {
                return;
            }
            let (condition, since) = (state.condition, state.condition_since);
            close(&mut state, now);
            let away = now - since;
            if matches!(condition, Condition::Busy | Condition::Starved) {
                // By its CPU time it knows that it was not stopped: the pings in its inbox count.
                state.pinged_at = (state.pinged_at + away).min(now);
            }
            (condition, away, state.strict > 0 && now >= state.vouched_until)
        };
        {
            let mut truth = self.shared.truth();
            truth.stopped.remove(&self.owner);
            truth.performing_changed = true;
        }
        if isolated {
            // A signal of the kernel's timer waited for it.
            return self.exit(Cause::Isolated);
        }
        self.shared.trace(|_| format!("{} is {condition:?} no more", self.name()));
        if away > TIMEOUT && matches!(condition, Condition::Busy | Condition::Starved) {
            self.shared.truth().report.worker("computed for longer than its timeout, and went on");
        }
        self.shared.executor.thaw(self.owner);
    }

    /// Its link does not carry for so long.
    pub(crate) fn cut(&self, until: u64) {
        let from = self.shared.now();
        self.state().troubles.push(Trouble { kind: Kind::Cut, from, to: until });
    }

    /// The kernel ends it when it performs what it must not any more, whatever else it does.
    async fn keep_timer(self: Arc<Process>) {
        loop {
            let due = {
                let state = self.state();
                if state.death.is_some() {
                    return;
                }
                (state.strict > 0 && state.condition != Condition::Stopped).then_some(state.vouched_until)
            };
            let due = async {
                match due {
                    Some(at) => self.shared.executor.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.armed.notified() => continue,
                () = due => {}
            }
            let now = self.shared.now();
            let over = {
                let state = self.state();
                state.strict > 0 && now >= state.vouched_until && state.condition != Condition::Stopped
            };
            if over {
                return self.exit(Cause::Isolated);
            }
        }
    }

    pub(crate) fn arm(&self) {
        self.armed.notify_one();
    }

    pub(crate) fn look(&self) -> ProcessLook {
        let now = self.shared.now();
        let state = self.state();
        let busy = if state.condition == Condition::Busy { now - state.condition_since } else { 0 };
        let at = match state.condition {
            _ if state.death.is_some() => ProcessState::Dead,
            Condition::Stopped => ProcessState::Stopped,
            Condition::Busy => ProcessState::Running,
            Condition::Starved if now.is_multiple_of(2) => ProcessState::Blocked,
            Condition::Starved => ProcessState::Running,
            Condition::Well | Condition::Hung => ProcessState::Sleeping,
        };
        ProcessLook { state: at, cpu: Duration::from_micros(state.cpu + busy), resident_bytes: 1 << 20 }
    }

    pub(crate) async fn exited(&self) -> WorkerExit {
        self.until(|state| state.exit.clone()).await
    }

    /// When it ended, and when nothing of it was left.
    pub(crate) async fn emptied(&self) -> (u64, u64) {
        self.until(|state| state.death.map(|death| death.at).zip(state.emptied_at)).await
    }

    pub(crate) async fn line(&self) -> Option<OutputLine> {
        self.until(|state| match state.lines.pop_front() {
            Some(line) => Some(Some(line)),
            None => state.death.map(|_| None),
        })
        .await
    }

    /// What its server says passes by on its way to the link.
    pub(crate) fn is_told(&self, word: &ToWorker) {
        let now = self.shared.now();
        match word {
            ToWorker::Cancel { lease, .. } => {
                self.state().asked.entry(lease.token).or_insert((now, None));
            }
            ToWorker::Drain { .. } => self.state().drains = true,
            _ => {}
        }
    }

    /// Whether how an attempt ends may have been decided already, and it may have been told so.
    pub(crate) fn may_be_decided(&self, token: Token) -> bool {
        let now = self.shared.now();
        let state = self.state();
        state.asked.contains_key(&token) || recent(&state, now).any(|trouble| trouble.kind == Kind::Cut)
    }

    /// What it says passes by.
    pub(crate) fn says(&self, word: &FromWorker) {
        let now = self.shared.now();
        if let FromWorker::Ended { lease, how } = word {
            if let Some((_, ended)) = self.state().asked.get_mut(&lease.token) {
                *ended = ended.or(Some(now));
            }
            let how = match how {
                Ended::Result(_) => "result of a worker",
                Ended::Failure { .. } => "failure of a worker",
                Ended::Stopped => "stop of a worker",
            };
            self.shared.truth().report.worker(how);
        }
    }

    /// Whether it has not ended, in time, what it was asked to end.
    fn unresponsive(state: &State, now: u64) -> bool {
        state.asked.values().any(|(at, ended)| {
            now >= at + GRACE && ended.is_none_or(|ended| ended + ON_ITS_WAY > now || ended >= at + GRACE)
        })
    }

    /// Its server signals it: it must have had a reason.
    pub(crate) fn is_signalled(&self) -> Result<(), (&'static str, String)> {
        let now = self.shared.now();
        let (leaves, froze_at) = {
            let truth = self.shared.truth();
            let leaves = self.server.is_some_and(|server| truth.leaving.contains(&server));
            // What its server had decided before it froze, it carries out afterwards.
            let boot = self.server.and_then(|server| truth.boots.get(&server));
            let thawed = |window: &&Window| {
                window.kind == WindowKind::Frozen && window.to.is_some_and(|to| to + 2 * GRACE >= now)
            };
            let froze_at = boot.and_then(|boot| boot.windows.iter().filter(thawed).map(|window| window.from).min());
            (leaves, froze_at.unwrap_or(now))
        };
        let mut state = self.state();
        let hello = state.hello_at.unwrap_or(now);
        let slow = now >= state.started_at + STARTUP && hello + ON_ITS_WAY >= state.started_at + STARTUP;
        let idle = matches!(state.condition, Condition::Stopped | Condition::Hung);
        let computes = |kind: Kind| matches!(kind, Kind::Did(Condition::Busy | Condition::Starved));
        let own =
            idle || [now, froze_at].into_iter().any(|at| recent(&state, at).any(|trouble| !computes(trouble.kind)));
        let rightly = leaves
            || state.condemned
            || state.death.is_some()
            || state.drains
            || slow
            || own
            || Process::unresponsive(&state, now);
        state.condemned |= rightly;
        let busy = matches!(state.condition, Condition::Busy | Condition::Starved);
        let seen = format!("{:?}, asked to end {:?}", state.troubles, state.asked.values());
        drop(state);
        match (rightly, busy) {
            (true, _) => Ok(()),
            (false, true) => Err(("G8", format!("{} is ended, and only computes: {seen}", self.name()))),
            (false, false) => Err(("G3", format!("{} is ended, and nothing is wrong with it: {seen}", self.name()))),
        }
    }

    /// Whether a verdict says what was really done to it.
    pub(crate) fn fits(&self, reason: everbeat_model::Reason, class: &str) -> Result<(), String> {
        use everbeat_model::Reason::*;
        let now = self.shared.now();
        let state = self.state();
        let since = now.saturating_sub(LONG_AGO);
        let did = |kind: Kind| {
            state.troubles.iter().any(|trouble| trouble.kind == kind && trouble.to >= since)
                || Kind::Did(state.condition) == kind
        };
        let cause = state.death.map(|death| death.cause);
        let (fits, expected) = match reason {
            WorkerDied => (cause.is_some_and(|cause| cause != Cause::OutOfMemory), "dead"),
            WorkerOutOfMemory => (cause == Some(Cause::OutOfMemory), "dead"),
            WorkerHung => (did(Kind::Did(Condition::Hung)) || did(Kind::Cut), "hung"),
            WorkerStopped => (did(Kind::Did(Condition::Stopped)), "stopped"),
            WorkerUnresponsive => (!state.asked.is_empty(), "stalled"),
            WorkerCutOff => {
                let troubled = !state.troubles.is_empty() || state.condition != Condition::Well || cause.is_some();
                (self.server.is_none() && troubled, class)
            }
            _ => return Ok(()),
        };
        // One that was cut off is told apart by its process, which may compute.
        let classed = class == expected || (did(Kind::Cut) && reason == WorkerHung);
        if fits && classed {
            return Ok(());
        }
        let (troubles, condition) = (&state.troubles, state.condition);
        Err(format!(
            "{} was {condition:?} ({troubles:?}, {cause:?}), and is judged as {reason:?}, {class}",
            self.name()
        ))
    }
}

/// So long a worker that is asked to end an attempt may take.
pub(crate) const GRACE: u64 = 60 * MS;
/// A worker that is silent for so long is judged by what it does.
pub(crate) const TIMEOUT: u64 = 400 * MS;
/// From its start to its hello.
pub(crate) const STARTUP: u64 = 400 * MS;
/// What was sent so recently may not have arrived.
const ON_ITS_WAY: u64 = 30 * MS;
/// Trouble that ended so recently may be what a worker is ended for.
const RECENT: u64 = 600 * MS;
/// A verdict may wait for long until it is stored.
const LONG_AGO: u64 = 20_000 * MS;

/// Its troubles that may be what it is ended for. What followed one another without a pause counts together.
fn recent(state: &State, now: u64) -> impl Iterator<Item = &Trouble> {
    let mut since = now.saturating_sub(RECENT);
    if state.condition != Condition::Well {
        since = since.min(state.condition_since.saturating_sub(RECENT));
    }
    for trouble in state.troubles.iter().rev().filter(|trouble| trouble.kind != Kind::Cut) {
        if trouble.to >= since {
            since = since.min(trouble.from.saturating_sub(RECENT));
        }
    }
    state.troubles.iter().filter(move |trouble| trouble.to >= since)
}

impl Cause {
    fn word(self) -> &'static str {
        match self {
            Cause::Killed | Cause::Reboot => "killed",
            Cause::OutOfMemory => "out of memory",
            Cause::Panicked => "taken along by its work",
            Cause::NoPing => "not pinged",
            Cause::Isolated => "isolated",
            Cause::ServerGone => "without its server",
            Cause::Refused => "not let in",
            Cause::GuardianGone => "without its guardian",
            Cause::Guardian => "ended by its guardian",
            Cause::Signalled => "ended by its server",
            Cause::Drained => "drained",
            Cause::Swept => "swept",
        }
    }
}

/// Its condition is over.
fn close(state: &mut State, now: u64) {
    let (condition, from) = (state.condition, state.condition_since);
    if condition != Condition::Well {
        state.troubles.push(Trouble { kind: Kind::Did(condition), from, to: now });
    }
    if condition == Condition::Busy {
        state.cpu += now - from;
    }
    (state.condition, state.condition_since) = (Condition::Well, now);
    state.conditions += 1;
}

/// All processes of pools, and those that they serve.
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
