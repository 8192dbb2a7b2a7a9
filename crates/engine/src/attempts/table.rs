//! All attempts that a replica performs, and what is counted of them.

use super::held::{HeldEnding, room};
use super::performer::Parting;
use super::timers::Timers;
use super::work::{Close, Work};
use everbeat_model::{BootInstant, RunId, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All attempts of one life of a replica.
#[derive(Default)]
pub(crate) struct Table {
    all: BTreeMap<Token, Arc<Work>>,
    by_run: BTreeMap<RunId, Token>,
    by_crew: BTreeMap<usize, BTreeSet<Token>>,
    by_task: BTreeMap<String, usize>,
    by_queue: BTreeMap<String, usize>,
    timers: Timers,
    /// How many must stop when the store does not acknowledge this replica.
    isolating: usize,
    /// Attempts that have ended, but whose endings the store could not take yet.
    held: BTreeMap<Token, HeldEnding>,
    held_bytes: usize,
    /// The attempts among `held` that take no slot meanwhile.
    slotless: BTreeSet<Token>,
}

impl Table {
    pub(crate) fn insert(&mut self, work: Arc<Work>) {
        let (spec, token) = (&work.claimed.spec, work.token());
        *self.by_task.entry(spec.task.clone()).or_default() += 1;
        *self.by_queue.entry(spec.queue.clone()).or_default() += 1;
        self.isolating += usize::from(work.terms.isolation);
        self.by_crew.entry(work.crew).or_default().insert(token);
        if let Some(at) = work.next_check() {
            self.timers.arm(at, token);
        }
        self.by_run.insert(work.claimed.lease.run_id, token);
        self.all.insert(token, work);
    }

    pub(crate) fn get(&self, token: Token) -> Option<Arc<Work>> {
        self.all.get(&token).cloned()
    }

    /// The latest attempt at a run that this replica performs.
    pub(crate) fn of_run(&self, run: RunId) -> Option<Arc<Work>> {
        self.by_run.get(&run).and_then(|token| self.get(*token))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Work>> {
        self.all.values().cloned().collect()
    }

    /// The attempts of one performer.
    pub(crate) fn of_crew(&self, crew: usize) -> impl Iterator<Item = &Arc<Work>> {
        self.by_crew.get(&crew).into_iter().flatten().filter_map(|token| self.all.get(token))
    }

    /// How many slots of a performer are taken: those that only wait for the store take none.
    pub(crate) fn taken(&self, crew: usize) -> usize {
        self.by_crew.get(&crew).map_or(0, |of| of.len() - self.slotless.intersection(of).count())
    }

    /// The attempts that part from their replica in this way.
    pub(crate) fn parting(&self, parting: Parting) -> Vec<Arc<Work>> {
        self.all.values().filter(|work| work.terms.parting == parting).cloned().collect()
    }

    pub(crate) fn of_task(&self, task: &str) -> usize {
        self.by_task.get(task).copied().unwrap_or_default()
    }

    pub(crate) fn of_queue(&self, queue: &str) -> usize {
        self.by_queue.get(queue).copied().unwrap_or_default()
    }

    pub(crate) fn any_stops_when_isolated(&self) -> bool {
        self.isolating > 0
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = &HeldEnding> {
        self.held.values()
    }

    /// Why the ending of this run's attempt is not stored, if it is held.
    pub(crate) fn held_of(&self, run: RunId) -> Option<&HeldEnding> {
        self.by_run.get(&run).and_then(|token| self.held.get(token))
    }

    /// Notes that an ending could not be stored. Answers whether that freed a slot: work that is over should not keep
    /// others from beginning, as long as the memory for it is bounded.
    pub(crate) fn hold(&mut self, work: &Work, held: HeldEnding) -> bool {
        let token = work.token();
        if !self.all.contains_key(&token) {
            return false;
        }
        self.held_bytes += held.bytes;
        let before = self.held.insert(token, held);
        self.held_bytes -= before.map_or(0, |before| before.bytes);
        let frees = work.over() && room(self.held.len(), self.held_bytes) && self.slotless.insert(token);
        if frees {
            self.uncount(work);
        }
        frees
    }

    /// Notes that the ending is stored (or fenced). Answers whether the slot is free now.
    pub(crate) fn settled(&mut self, work: &Work) -> bool {
        self.close(work, Close::Settled)
    }

    /// Notes that the performer has really ended.
    pub(crate) fn ended(&mut self, work: &Work) -> bool {
        self.close(work, Close::Ended)
    }

    fn close(&mut self, work: &Work, by: Close) -> bool {
        let token = work.token();
        if !work.close(by) || self.all.remove(&token).is_none() {
            return false;
        }
        self.timers.disarm(token);
        if let Some(of) = self.by_crew.get_mut(&work.crew) {
            of.remove(&token);
        }
        self.held_bytes -= self.held.remove(&token).map_or(0, |held| held.bytes);
        if !self.slotless.remove(&token) {
            self.uncount(work);
        }
        let run = work.claimed.lease.run_id;
        if self.by_run.get(&run) == Some(&token) {
            self.by_run.remove(&run);
        }
        self.isolating -= usize::from(work.terms.isolation);
        true
    }

    /// The attempt counts no more for the limits of its task and its queue.
    fn uncount(&mut self, work: &Work) {
        let spec = &work.claimed.spec;
        for (counts, name) in [(&mut self.by_task, &spec.task), (&mut self.by_queue, &spec.queue)] {
            if let Some(count) = counts.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(name);
                }
            }
        }
    }

    /// Looks at an attempt at `at`, or earlier if it is already to be looked at earlier.
    pub(crate) fn arm(&mut self, at: BootInstant, token: Token) {
        self.timers.arm(at, token);
    }

    pub(crate) fn next_timer(&self) -> Option<BootInstant> {
        self.timers.next()
    }

    /// Takes the attempts whose timers are due; those that are gone are passed over.
    pub(crate) fn take_due(&mut self, now: BootInstant) -> Vec<Arc<Work>> {
        self.timers.take_due(now).into_iter().filter_map(|token| self.get(token)).collect()
    }
}
