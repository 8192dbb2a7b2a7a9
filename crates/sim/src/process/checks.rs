//! What a server says to a worker, and whether what it does to it, and says of it, is right.

use super::{Cause, Condition, Kind, MS, Process, State, Trouble};
use crate::truth::{Window, WindowKind};
use everbeat_engine::pools::{Ended, FromWorker, ToWorker};
use everbeat_model::Token;

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

impl Process {
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
