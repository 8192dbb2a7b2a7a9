//! What can be told from the state of a worker.

use super::{Phase, State};
use crate::pools::link::LeaseShown;
use everbeat_model::session::Keeper;
use everbeat_model::{BootInstant, RunId, SessionId, Token, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::mpsc;

/// Whoever served for so long, or finished anything, did not crash at its start.
const SERVED: Duration = Duration::from_secs(10);

impl State {
    /// Whether it is not known to have got any welcome: it may say its first hello again.
    pub(in crate::pools) fn unwelcomed(&self) -> bool {
        self.phase == Phase::Starting || (self.phase == Phase::Serving && self.keys.unheard())
    }

    /// Whether it has shown that it does its work.
    pub(in crate::pools) fn serves_well(&self, uptime: Duration) -> bool {
        self.phase != Phase::Starting && (self.finished > 0 || uptime >= SERVED)
    }

    /// Whether it could begin an attempt at this task now.
    pub(in crate::pools) fn takes(&self, task: &str) -> bool {
        self.room() > 0 && self.hello.tasks.contains(task)
    }

    /// How many more attempts it could begin now.
    pub(in crate::pools) fn room(&self) -> usize {
        let serves = self.phase == Phase::Serving
            && self.line.is_some()
            && self.keys.is_confirmed()
            && self.sentence.is_none()
            && !self.attempts.values().any(|route| route.ending);
        if serves { self.hello.slots.saturating_sub(self.attempts.len()).min(self.runs_left()) } else { 0 }
    }

    /// How many more attempts it may be given before it is replaced.
    pub(in crate::pools) fn runs_left(&self) -> usize {
        let left = self.most_runs.map(|most| most.saturating_sub(self.finished + self.attempts.len() as u64));
        left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Whether there is a slot that it cannot use any more, since it has been given as many attempts as it may.
    pub(in crate::pools) fn is_used_up(&self) -> bool {
        self.runs_left() == 0 && self.attempts.len() < self.hello.slots
    }

    /// Whether it performs what it must end by itself when nobody vouches for it.
    pub(in crate::pools) fn needs_vouching(&self) -> bool {
        self.attempts.values().any(|route| route.vouched)
    }

    /// How many more attempts it could begin now, besides those of `claimed` that have waited for this very worker.
    pub(in crate::pools) fn spare(&self, id: WorkerId, claimed: &BTreeMap<Token, WorkerId>) -> usize {
        let others = claimed.iter().filter(|(token, worker)| **worker == id && !self.attempts.contains_key(token));
        self.room().saturating_sub(others.count())
    }

    /// What it is to its sessions. `able`: it performs such runs; `room`: how many it could begin.
    pub(in crate::pools) fn keeper(&self, able: bool, room: usize) -> Keeper {
        match self.phase {
            Phase::Dead => Keeper::Ends,
            Phase::Starting | Phase::Serving if able && self.sentence.is_none() => Keeper::Serves { room },
            _ => Keeper::Leaves,
        }
    }

    /// The sessions that it performs something in.
    pub(in crate::pools) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.attempts.values().filter_map(|route| route.session)
    }

    pub(in crate::pools) fn in_session(&self, id: SessionId) -> bool {
        self.sessions().any(|session| session == id)
    }

    /// The attempts that the server has given it, and whose end it awaits.
    pub(in crate::pools) fn given(&self) -> impl Iterator<Item = &Token> {
        self.attempts.keys()
    }

    pub(in crate::pools) fn running(&self) -> usize {
        self.attempts.len()
    }

    pub(in crate::pools) fn performs(&self) -> Vec<RunId> {
        self.attempts.values().map(|route| route.run).collect()
    }

    /// Whoever did not look has not heard: a stall of the watcher is not the worker's silence.
    pub(in crate::pools) fn excuse(&mut self, lag: Duration, now: BootInstant) {
        self.awaited_since = (self.awaited_since + lag).min(now);
        self.cut_since = self.cut_since.map(|since| (since + lag).min(now));
        self.pulse.excuse(lag, now);
    }

    /// One more full timeout, from now on.
    pub(in crate::pools) fn reprieve(&mut self, now: BootInstant) {
        self.cut_since = self.cut_since.map(|_| now);
        self.pulse.reprieve(now);
    }

    /// For how long its link has been cut, if it is.
    pub(in crate::pools) fn cut_for(&self, now: BootInstant) -> Option<Duration> {
        match self.line {
            Some(_) => None,
            None => Some(self.cut_since.map_or(Duration::ZERO, |since| now.since(since))),
        }
    }

    /// The attempts among these that the server does not await, and those that the worker was handed and does not know
    /// of.
    pub(in crate::pools) fn compare(&self, shown: &[LeaseShown]) -> (Vec<LeaseShown>, Vec<Token>) {
        let strange = shown.iter().filter(|lease| !self.attempts.contains_key(&lease.token)).copied().collect();
        let known: BTreeSet<Token> = shown.iter().map(|lease| lease.token).collect();
        let handed = self.attempts.iter().filter(|(_, route)| route.handed).map(|(token, _)| token);
        let forgotten = handed.filter(|token| !known.contains(token)).copied().collect();
        (strange, forgotten)
    }

    /// The attempt will not be heard of again: whoever performs it learns so by the end of its channel.
    pub(in crate::pools) fn forget(&mut self, token: Token) {
        if let Some(route) = self.attempts.get_mut(&token) {
            (route.to, _) = mpsc::channel(1);
        }
    }
}
