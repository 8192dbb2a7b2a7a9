//! What this replica performs: one entry per attempt, from claim until it is settled and its performer
//! has really ended.

use crate::env::Task;
use crate::held::{HeldEnding, room};
use crate::settle::Draft;
use crate::{Liveness, Stop};
use everbeat_model::policy::{HeartbeatMode, WhenIsolated};
use everbeat_model::run::Claimed;
use everbeat_model::{BootInstant, Ending, Json, RunId, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// One attempt in progress.
pub(crate) struct Entry {
    pub(crate) claimed: Claimed,
    pub(crate) started: BootInstant,
    /// It began under another replica, or this one lost track of it.
    pub(crate) taken_over: bool,
    vital: Mutex<Vital>,
    changed: Notify,
}

pub(crate) struct Vital {
    /// The last sign of life by hand; automatic ones are the replica's own.
    pub(crate) last_beat: BootInstant,
    pub(crate) promised: Option<Duration>,
    pub(crate) last_progress: BootInstant,
    pub(crate) progress: Option<Json>,
    /// There is progress that the store does not know.
    pub(crate) dirty: bool,
    pub(crate) cancel_asked: Option<BootInstant>,
    /// Of what is detached: why it may not be alive, if there is a doubt.
    pub(crate) doubt: Option<Liveness>,
    /// Of what is detached: it is being started, and its command has not been seen yet.
    pub(crate) starting: bool,
    /// Of what is detached: why its last sign of life was not written, by its own word.
    pub(crate) write_error: Option<String>,
    stop: Option<Stop>,
    killed: bool,
    /// When a judged performer's grace is over.
    pub(crate) kill_at: Option<BootInstant>,
    /// It waits in the signer's queue.
    pub(crate) queued: bool,
    /// How many checkpoints wait for the store.
    pub(crate) checkpoints_waiting: usize,
    /// An ending is on its way to the store; any other is late.
    pub(crate) judged: bool,
    /// A judged ending that is written once the performer has ended.
    sentence: Option<Sentence>,
    /// Its ending was refused: the lease is another's.
    pub(crate) fenced: bool,
    settled: bool,
    ended: bool,
    task: Option<Task>,
}

type Sentence = (Ending, Option<Draft>);

impl Entry {
    pub(crate) fn new(claimed: Claimed, now: BootInstant, taken_over: bool) -> Entry {
        let vital = Vital {
            last_beat: now,
            promised: None,
            last_progress: now,
            progress: None,
            dirty: false,
            cancel_asked: None,
            // One that is started here is not looked for before its start is over; one that was somewhere is.
            doubt: (claimed.spec.detached() && taken_over).then_some(Liveness::Unknown),
            starting: claimed.spec.detached() && !taken_over,
            write_error: None,
            stop: None,
            killed: false,
            kill_at: None,
            queued: false,
            checkpoints_waiting: 0,
            judged: false,
            sentence: None,
            fenced: false,
            settled: false,
            ended: false,
            task: None,
        };
        Entry { claimed, started: now, taken_over, vital: Mutex::new(vital), changed: Notify::new() }
    }

    pub(crate) fn token(&self) -> Token {
        self.claimed.lease.token
    }

    pub(crate) fn vital(&self) -> MutexGuard<'_, Vital> {
        self.vital.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn own(&self, task: Task) {
        let mut vital = self.vital();
        if !vital.ended {
            vital.task = Some(task);
        }
    }

    pub(crate) fn beat(&self, now: BootInstant, progress: Option<Json>, promised: Option<Duration>) {
        let mut vital = self.vital();
        vital.last_beat = now;
        vital.promised = promised;
        if progress.is_some() {
            vital.dirty = true;
            vital.last_progress = now;
            vital.progress = progress;
        }
    }

    pub(crate) fn awaits_store(self: &Arc<Entry>) -> AwaitsStore {
        self.vital().checkpoints_waiting += 1;
        AwaitsStore(self.clone())
    }

    pub(crate) fn stop(&self) -> Option<Stop> {
        self.vital().stop
    }

    /// Tells the performer to stop. The first reason stays, but fencing overrides: nothing that it
    /// still does can count.
    pub(crate) fn ask_stop(&self, why: Stop) {
        let mut vital = self.vital();
        if vital.stop.is_none_or(|stop| stop == Stop::Draining) || why == Stop::Fenced {
            vital.stop = Some(why);
        }
        drop(vital);
        self.changed.notify_waiters();
    }

    pub(crate) fn ask_cancel(&self, now: BootInstant) -> bool {
        let first = self.vital().cancel_asked.replace(now).is_none();
        self.ask_stop(Stop::Cancelled);
        first
    }

    /// Ends the performer at its next await.
    pub(crate) fn kill(&self, why: Stop) {
        self.vital().killed = true;
        self.ask_stop(why);
    }

    pub(crate) fn kill_if_over(&self, now: BootInstant) {
        let over = self.vital().kill_at.is_some_and(|at| at <= now);
        if over {
            self.kill(Stop::Judged);
        }
    }

    /// Marks the attempt as judged; false if it already was.
    pub(crate) fn judge(&self) -> bool {
        !std::mem::replace(&mut self.vital().judged, true)
    }

    /// Gives up an attempt whose lease does not stand any more. False if its ending is on its way to the store, or
    /// there; a judgement that only waits for its performer's end is void.
    pub(crate) fn forsake(&self) -> bool {
        let mut vital = self.vital();
        let judged = std::mem::replace(&mut vital.judged, true);
        vital.sentence.take().is_some() || !judged
    }

    /// Judges the attempt from outside. Answers what to write now: nothing if it was judged already,
    /// and nothing yet if its side effects are not fenced, for then no successor may begin before its
    /// performer has ended.
    pub(crate) fn condemn(&self, ending: Ending, draft: Option<Draft>) -> Condemned {
        let mut vital = self.vital();
        if std::mem::replace(&mut vital.judged, true) {
            return Condemned::Already;
        }
        if (self.detached() || self.stops_when_isolated()) && !vital.ended {
            vital.sentence = Some((ending, draft));
            return Condemned::AfterItsEnd;
        }
        Condemned::Now(ending, draft)
    }

    /// What its performer's end lets be written.
    pub(crate) fn take_sentence(&self) -> Option<Sentence> {
        self.vital().sentence.take()
    }

    /// Whether its performer has really ended.
    pub(crate) fn ended(&self) -> bool {
        self.vital().ended
    }

    pub(crate) async fn stopped(&self) -> Stop {
        self.until(|vital| vital.stop).await
    }

    /// Like `stopped`, but a draining replica lets work finish.
    pub(crate) async fn cancelled(&self) -> Stop {
        self.until(|vital| vital.stop.filter(|stop| *stop != Stop::Draining)).await
    }

    pub(crate) async fn killed(&self) {
        self.until(|vital| vital.killed.then_some(())).await;
    }

    async fn until<T>(&self, look: impl Fn(&Vital) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Enabled before the look, so that a change in between is not missed.
            changed.as_mut().enable();
            if let Some(found) = look(&self.vital()) {
                return found;
            }
            changed.await;
        }
    }

    /// When this attempt must be looked at next, if ever.
    pub(crate) fn next_check(&self) -> Option<BootInstant> {
        let vital = self.vital();
        if vital.judged {
            return vital.kill_at.filter(|_| !vital.killed);
        }
        let policy = &self.claimed.spec.policy;
        if self.detached() {
            // Its shim keeps all the other times.
            return policy.stall_timeout.map(|timeout| vital.last_progress + timeout);
        }
        let silence = policy.heartbeat_timeout.filter(|_| policy.heartbeat == HeartbeatMode::Manual);
        let checks = [
            silence.map(|timeout| vital.last_beat + timeout.max(vital.promised.unwrap_or_default())),
            policy.stall_timeout.map(|timeout| vital.last_progress + timeout),
            policy.deadline.map(|deadline| self.started + deadline),
            vital.cancel_asked.map(|asked| asked + policy.cancel_grace),
        ];
        checks.into_iter().flatten().min()
    }

    /// Whether it goes on without this replica.
    pub(crate) fn detached(&self) -> bool {
        self.claimed.spec.detached()
    }

    /// Until its ending is stored, or fenced.
    pub(crate) async fn settled(&self) {
        self.until(|vital| vital.settled.then_some(())).await;
    }

    pub(crate) fn stops_when_isolated(&self) -> bool {
        self.claimed.spec.policy.when_isolated == WhenIsolated::Stop
    }
}

/// When a judgement is written.
pub(crate) enum Condemned {
    Already,
    AfterItsEnd,
    Now(Ending, Option<Draft>),
}

/// Held while an attempt waits for its checkpoint to be committed.
pub(crate) struct AwaitsStore(Arc<Entry>);

impl Drop for AwaitsStore {
    fn drop(&mut self) {
        self.0.vital().checkpoints_waiting -= 1;
    }
}

/// All entries of a replica's life.
#[derive(Default)]
pub(crate) struct Table {
    entries: BTreeMap<Token, Arc<Entry>>,
    by_run: BTreeMap<RunId, Token>,
    timers: BTreeSet<(BootInstant, Token)>,
    /// The one timer of each attempt that has any, so that it goes when the attempt does.
    armed: BTreeMap<Token, BootInstant>,
    by_task: BTreeMap<String, usize>,
    by_queue: BTreeMap<String, usize>,
    isolating: usize,
    detached: BTreeSet<Token>,
    /// Those that have ended, but whose endings the store could not take yet.
    held: BTreeMap<Token, HeldEnding>,
    held_bytes: usize,
    /// Of these: those that take no slot meanwhile.
    slotless: BTreeSet<Token>,
}

impl Table {
    /// How many attempts take the slots of this replica; what is detached has its own.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.detached.len()
    }

    /// The same without those that only wait for the store.
    pub(crate) fn taken(&self) -> usize {
        self.len() - self.slotless.iter().filter(|token| !self.detached.contains(token)).count()
    }

    pub(crate) fn jobs_taken(&self) -> usize {
        self.detached.len() - self.slotless.intersection(&self.detached).count()
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = &HeldEnding> {
        self.held.values()
    }

    /// Why the ending of this attempt is not stored, if it is held.
    pub(crate) fn held_of(&self, run: RunId) -> Option<&HeldEnding> {
        self.by_run.get(&run).and_then(|token| self.held.get(token))
    }

    /// Notes that an ending could not be stored. Answers whether that freed a slot: work that is over should not keep
    /// others from beginning, as long as the memory for it is bounded.
    pub(crate) fn hold(&mut self, entry: &Entry, held: HeldEnding) -> bool {
        let token = entry.token();
        if !self.entries.contains_key(&token) {
            return false;
        }
        self.held_bytes += held.bytes;
        let before = self.held.insert(token, held);
        self.held_bytes -= before.map_or(0, |before| before.bytes);
        // Whoever watches a job stays until its end is stored; the job itself is over.
        let over = entry.ended() || entry.detached();
        let frees = over && room(self.held.len(), self.held_bytes) && self.slotless.insert(token);
        if frees {
            self.uncount(entry);
        }
        frees
    }

    pub(crate) fn detached(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.detached.iter().filter_map(|token| self.entries.get(token))
    }

    /// How many of the commands that were taken since then are still being started.
    pub(crate) fn starting(&self, since: BootInstant) -> usize {
        self.detached().filter(|entry| entry.started >= since && entry.vital().starting).count()
    }

    pub(crate) fn insert(&mut self, entry: Arc<Entry>) {
        let spec = &entry.claimed.spec;
        *self.by_task.entry(spec.task.clone()).or_default() += 1;
        *self.by_queue.entry(spec.queue.clone()).or_default() += 1;
        self.isolating += usize::from(entry.stops_when_isolated());
        if entry.detached() {
            self.detached.insert(entry.token());
        }
        if let Some(at) = entry.next_check() {
            self.arm(at, entry.token());
        }
        self.by_run.insert(entry.claimed.lease.run_id, entry.token());
        self.entries.insert(entry.token(), entry);
    }

    pub(crate) fn get(&self, token: Token) -> Option<Arc<Entry>> {
        self.entries.get(&token).cloned()
    }

    /// The latest attempt at a run that this replica performs.
    pub(crate) fn of_run(&self, run: RunId) -> Option<Arc<Entry>> {
        self.by_run.get(&run).and_then(|token| self.get(*token))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.entries.values().cloned().collect()
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

    /// Notes that the ending is stored (or fenced). Answers whether the slot is free now.
    pub(crate) fn settled(&mut self, entry: &Entry) -> bool {
        self.close(entry, |vital| vital.settled = true)
    }

    /// Notes that the performer has really ended.
    pub(crate) fn ended(&mut self, entry: &Entry) -> bool {
        self.close(entry, |vital| vital.ended = true)
    }

    fn close(&mut self, entry: &Entry, note: impl FnOnce(&mut Vital)) -> bool {
        let mut vital = entry.vital();
        note(&mut vital);
        entry.changed.notify_waiters();
        if !(vital.settled && vital.ended) {
            return false;
        }
        // The performer is past its last await: dropping its handle ends nothing.
        drop(vital.task.take());
        drop(vital);
        if self.entries.remove(&entry.token()).is_none() {
            return false;
        }
        self.disarm(entry.token());
        self.detached.remove(&entry.token());
        self.held_bytes -= self.held.remove(&entry.token()).map_or(0, |held| held.bytes);
        if !self.slotless.remove(&entry.token()) {
            self.uncount(entry);
        }
        let run = entry.claimed.lease.run_id;
        if self.by_run.get(&run) == Some(&entry.token()) {
            self.by_run.remove(&run);
        }
        self.isolating -= usize::from(entry.stops_when_isolated());
        true
    }

    /// It counts no more for the limits of its task and its queue.
    fn uncount(&mut self, entry: &Entry) {
        let spec = &entry.claimed.spec;
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
        if self.armed.get(&token).is_some_and(|armed| *armed <= at) {
            return;
        }
        self.disarm(token);
        self.armed.insert(token, at);
        self.timers.insert((at, token));
    }

    fn disarm(&mut self, token: Token) {
        if let Some(at) = self.armed.remove(&token) {
            self.timers.remove(&(at, token));
        }
    }

    pub(crate) fn next_timer(&self) -> Option<BootInstant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes the timers that are due; entries that are gone are passed over.
    pub(crate) fn take_due(&mut self, now: BootInstant) -> Vec<Arc<Entry>> {
        let mut due = BTreeMap::new();
        while let Some((at, token)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, token));
            self.armed.remove(&token);
            if let Some(entry) = self.get(token) {
                due.insert(token, entry);
            }
        }
        due.into_values().collect()
    }
}
