//! One attempt that this replica performs, from its claim until its end is stored and its performer has really ended.
//! Nothing here knows how the attempt is performed.

use super::conclusion::Conclusion;
use super::performer::Terms;
use crate::env::Task;
use crate::{Liveness, Stop};
use everbeat_model::run::Claimed;
use everbeat_model::{BootInstant, Json, Token};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// One attempt in progress.
pub struct Work {
    pub(crate) claimed: Claimed,
    pub(crate) started: BootInstant,
    pub(crate) terms: Terms,
    /// The place of its performer among those of the replica.
    pub(crate) crew: usize,
    /// The attempt began under another replica, or this one lost track of it.
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
    /// Why the attempt may not be alive, if its performer doubts that.
    pub(crate) doubt: Option<Liveness>,
    /// Its performer is starting the attempt: nothing of it has been seen yet.
    pub(crate) starting: bool,
    /// Why the attempt's last sign of life was not written, by its own word.
    pub(crate) write_error: Option<String>,
    stop: Option<Stop>,
    killed: bool,
    /// When a judged performer's grace is over.
    pub(crate) kill_at: Option<BootInstant>,
    /// It waits in the signer's queue.
    pub(crate) queued: bool,
    /// How many checkpoints wait for the store.
    pub(crate) checkpoints_waiting: usize,
    /// How the attempt ends is decided; whatever else is said of it is late.
    pub(crate) decided: bool,
    /// What was decided from outside, and is written once the performer has ended.
    sentence: Option<Conclusion>,
    /// Its performer has said how the attempt ended.
    concluded: bool,
    /// Its ending was refused: the lease is another's.
    pub(crate) fenced: bool,
    settled: bool,
    ended: bool,
    task: Option<Task>,
}

impl Work {
    pub(crate) fn new(claimed: Claimed, crew: usize, terms: Terms, now: BootInstant, taken_over: bool) -> Work {
        let vital = Vital {
            last_beat: now,
            promised: None,
            last_progress: now,
            progress: None,
            dirty: false,
            cancel_asked: None,
            doubt: None,
            starting: false,
            write_error: None,
            stop: None,
            killed: false,
            kill_at: None,
            queued: false,
            checkpoints_waiting: 0,
            decided: false,
            sentence: None,
            concluded: false,
            fenced: false,
            settled: false,
            ended: false,
            task: None,
        };
        Work { claimed, started: now, terms, crew, taken_over, vital: Mutex::new(vital), changed: Notify::new() }
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

    /// Its performer begins: whatever it waited for here until now is not its silence.
    pub(super) fn begins(&self, now: BootInstant) {
        let mut vital = self.vital();
        vital.last_beat = vital.last_beat.max(now);
        vital.last_progress = vital.last_progress.max(now);
    }

    pub(crate) fn awaits_store(self: &Arc<Work>) -> AwaitsStore {
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

    /// Decides how the attempt ends; false if that was decided before.
    pub(crate) fn decide(&self) -> bool {
        !std::mem::replace(&mut self.vital().decided, true)
    }

    /// Gives up an attempt whose lease does not stand any more. False if its ending is on its way to the store, or
    /// there; a judgement that only waits for its performer's end is void.
    pub(crate) fn forsake(&self) -> bool {
        let mut vital = self.vital();
        let decided = std::mem::replace(&mut vital.decided, true);
        vital.sentence.take().is_some() || !decided
    }

    /// Decides from outside how the attempt ends. Answers what to write now: nothing if that was decided already, and
    /// nothing yet if no successor may begin before its performer has ended.
    pub(crate) fn condemn(&self, conclusion: Conclusion) -> Condemned {
        let mut vital = self.vital();
        if std::mem::replace(&mut vital.decided, true) {
            return Condemned::Already;
        }
        if self.terms.verdict_waits && !vital.ended {
            vital.sentence = Some(conclusion);
            return Condemned::AfterItsEnd;
        }
        Condemned::Now(conclusion)
    }

    /// What its performer's end lets be written.
    pub(crate) fn take_sentence(&self) -> Option<Conclusion> {
        self.vital().sentence.take()
    }

    /// Its performer has said how the attempt ended.
    pub(crate) fn conclude(&self) {
        self.vital().concluded = true;
    }

    /// Whether the attempt is over, although its performer may still have something to do for it.
    pub(crate) fn over(&self) -> bool {
        let vital = self.vital();
        vital.ended || vital.concluded
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
        if vital.decided {
            return vital.kill_at.filter(|_| !vital.killed);
        }
        let terms = &self.terms;
        let checks = [
            terms.silence.map(|timeout| vital.last_beat + timeout.max(vital.promised.unwrap_or_default())),
            terms.stall.map(|timeout| vital.last_progress + timeout),
            terms.deadline.map(|deadline| self.started + deadline),
            vital.cancel_asked.zip(terms.grace).map(|(asked, grace)| asked + grace),
        ];
        checks.into_iter().flatten().min()
    }

    /// Notes that the ending is stored, or that the performer has ended. True when both are so.
    pub(super) fn close(&self, by: Close) -> bool {
        let mut vital = self.vital();
        match by {
            Close::Settled => vital.settled = true,
            Close::Ended => vital.ended = true,
        }
        let closed = vital.settled && vital.ended;
        // The performer is past its last await: dropping its handle ends nothing.
        let done = if closed { vital.task.take() } else { None };
        drop(vital);
        drop(done);
        self.changed.notify_waiters();
        closed
    }

    /// Until its ending is stored, or fenced.
    pub(crate) async fn settled(&self) {
        self.until(|vital| vital.settled.then_some(())).await;
    }
}

/// What an attempt was waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Close {
    Settled,
    Ended,
}

/// When a judgement is written.
pub(crate) enum Condemned {
    Already,
    AfterItsEnd,
    Now(Conclusion),
}

/// Held while an attempt waits for its checkpoint to be committed.
pub(crate) struct AwaitsStore(Arc<Work>);

impl Drop for AwaitsStore {
    fn drop(&mut self) {
        self.0.vital().checkpoints_waiting -= 1;
    }
}
