//! One attempt that this replica performs, from its claim until its end is stored and its performer has really ended.
//! Nothing here knows how the attempt is performed.

use super::conclusion::Conclusion;
use super::performer::Terms;
use super::said::Said;
use crate::env::Task;
use crate::{Liveness, Stop};
use everbeat_model::run::{Claimed, Spec};
use everbeat_model::{BootInstant, Json, Token, WorkerId};
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
    /// What it has streamed. Locked after `vital`, if both are.
    pub(super) said: Mutex<Said>,
    /// The store holds more of what it has streamed.
    pub(super) stored: Notify,
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
    /// The worker that performs the attempt, if one does.
    pub(crate) worker: Option<WorkerId>,
    /// How many checkpoints wait for the store.
    pub(crate) checkpoints_waiting: usize,
    /// How many items that it streams wait for room, or are waited for until the store holds them.
    pub(crate) items_waiting: usize,
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
            worker: None,
            checkpoints_waiting: 0,
            items_waiting: 0,
            decided: false,
            sentence: None,
            concluded: false,
            fenced: false,
            settled: false,
            ended: false,
            task: None,
        };
        Work {
            claimed,
            started: now,
            terms,
            crew,
            taken_over,
            vital: Mutex::new(vital),
            said: Mutex::default(),
            stored: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Proves the lease of this attempt; no other attempt ever has the same.
    pub fn token(&self) -> Token {
        self.claimed.lease.token
    }

    pub fn spec(&self) -> &Spec {
        &self.claimed.spec
    }

    pub(crate) fn vital(&self) -> MutexGuard<'_, Vital> {
        self.vital.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker performs it.
    pub(crate) fn performed_by(&self, worker: WorkerId) {
        self.vital().worker = Some(worker);
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

    /// It has streamed something, which is a sign of life and of progress.
    pub(super) fn advanced(&self, now: BootInstant) {
        let mut vital = self.vital();
        vital.last_beat = now;
        vital.promised = None;
        vital.last_progress = now;
    }

    /// Its performer begins, or goes on: whatever it waited for here until now is not its silence.
    pub(super) fn begins(&self, now: BootInstant) {
        let mut vital = self.vital();
        vital.last_beat = vital.last_beat.max(now);
        vital.last_progress = vital.last_progress.max(now);
    }

    pub(crate) fn awaits_store(self: &Arc<Work>) -> AwaitsStore {
        self.vital().checkpoints_waiting += 1;
        AwaitsStore(self.clone())
    }

    pub(super) fn awaits_room(self: &Arc<Work>) -> AwaitsRoom {
        self.vital().items_waiting += 1;
        AwaitsRoom(self.clone())
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

/// Held while an attempt waits until there is room for what it streams, or until it is stored.
pub(super) struct AwaitsRoom(Arc<Work>);

impl Drop for AwaitsRoom {
    fn drop(&mut self) {
        self.0.vital().items_waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everbeat_model::policy::{Policy, WhenIsolated};
    use everbeat_model::run::{Kind, Standing};
    use everbeat_model::{Ending, Lease, Outcome, Reason, ReplicaId, RunId, StoreTime};
    use futures_util::FutureExt;
    use uuid::Uuid;

    const START: BootInstant = BootInstant(Duration::ZERO);

    fn work(policy: Policy) -> Work {
        let terms = Terms::of(&policy);
        let spec = Spec {
            kind: Kind::Task,
            task: "work".to_string(),
            queue: "default".to_string(),
            priority: 0,
            input: Json::of(&()),
            args: None,
            policy: Arc::new(policy),
            unique_key: None,
            parent: None,
            host: None,
            session: None,
            occurrence: None,
        };
        let lease = Lease {
            run_id: RunId(Uuid::nil()),
            attempt: 1,
            token: Token(Uuid::nil()),
            replica_id: ReplicaId(Uuid::nil()),
            tenure: 1,
            granted_at: StoreTime(0),
        };
        let claimed = Claimed {
            lease,
            spec: Arc::new(spec),
            standing: Standing::default(),
            checkpoint: None,
            due_at: StoreTime(0),
        };
        Work::new(claimed, 0, terms, START, false)
    }

    fn stops() -> Policy {
        Policy { when_isolated: WhenIsolated::Stop, ..Policy::BASELINE }
    }

    fn verdict(outcome: Outcome) -> Conclusion {
        Ending::because(outcome, Reason::Isolated, "words").into()
    }

    #[test]
    fn the_first_decision_on_an_attempt_stands() {
        let work = work(Policy::BASELINE);
        assert!(matches!(work.condemn(verdict(Outcome::Lost)), Condemned::Now(_)));
        assert!(matches!(work.condemn(verdict(Outcome::TimedOut)), Condemned::Already));
        assert!(!work.decide(), "what its performer says is late");
        assert!(!work.forsake(), "its ending is on its way");
    }

    #[test]
    fn a_judgement_that_no_successor_may_meet_waits_for_the_end_of_the_performer() {
        let work = work(stops());
        assert!(matches!(work.condemn(verdict(Outcome::Lost)), Condemned::AfterItsEnd));
        assert!(!work.decide());
        assert!(!work.close(Close::Ended), "its ending is not stored yet");
        let sentence = work.take_sentence().expect("what was decided");
        assert_eq!(sentence.ending.outcome, Outcome::Lost);
        assert!(work.take_sentence().is_none(), "it is written once");
        assert!(work.close(Close::Settled));
    }

    #[test]
    fn after_the_end_of_the_performer_nothing_waits() {
        let work = work(stops());
        work.close(Close::Ended);
        assert!(matches!(work.condemn(verdict(Outcome::Lost)), Condemned::Now(_)));
    }

    #[test]
    fn an_attempt_whose_lease_is_gone_is_given_up_with_the_judgement_that_waits() {
        let work = work(stops());
        assert!(matches!(work.condemn(verdict(Outcome::Lost)), Condemned::AfterItsEnd));
        assert!(work.forsake());
        assert!(work.take_sentence().is_none());
    }

    #[test]
    fn the_first_reason_to_stop_stays_but_fencing_overrides_and_a_drain_gives_way() {
        let work = work(Policy::BASELINE);
        work.ask_stop(Stop::Draining);
        assert!(work.cancelled().now_or_never().is_none(), "a drain lets work finish");
        work.ask_stop(Stop::Cancelled);
        work.ask_stop(Stop::Judged);
        assert_eq!(work.stop(), Some(Stop::Cancelled));
        work.kill(Stop::Fenced);
        assert_eq!(work.stop(), Some(Stop::Fenced));
        assert!(work.killed().now_or_never().is_some());
    }

    #[test]
    fn a_decided_attempt_is_looked_at_only_to_be_killed() {
        let deadline = Some(Duration::from_secs(5));
        let work = work(Policy { deadline, ..Policy::BASELINE });
        assert_eq!(work.next_check(), Some(START + Duration::from_secs(5)));
        assert!(work.decide());
        assert_eq!(work.next_check(), None);
        work.vital().kill_at = Some(START + Duration::from_secs(7));
        assert_eq!(work.next_check(), Some(START + Duration::from_secs(7)));
        work.kill_if_over(START + Duration::from_secs(6));
        assert!(work.killed().now_or_never().is_none());
        work.kill_if_over(START + Duration::from_secs(7));
        assert!(work.killed().now_or_never().is_some());
        assert_eq!(work.next_check(), None);
    }
}
