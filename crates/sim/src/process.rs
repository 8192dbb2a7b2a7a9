//! A worker process as its kernel sees it: its number, what it does, how it ends, what it leaves behind. What was done to
//! it is written down, so that a judgement on it can be compared with that.

use crate::executor::{Owner, WORLD};
use crate::shared::Shared;
use everbeat_engine::pools::{OutOfMemory, OutputLine, ProcessLook, ProcessState, WorkerExit};
use everbeat_model::{RunId, Token};
use futures_util::FutureExt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

mod all;
mod checks;
mod trouble;

pub(crate) use all::Processes;
pub(crate) use checks::{GRACE, STARTUP, TIMEOUT};
pub(crate) use trouble::{Cause, Condition, Death, Kind, Trouble};

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
            Cause::OutOfMemory => {
                WorkerExit { signal: Some(9), out_of_memory: OutOfMemory::OwnCgroup, ..WorkerExit::default() }
            }
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
