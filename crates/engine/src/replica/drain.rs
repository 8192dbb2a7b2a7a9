//! The end of a replica that was asked to go: what it performs may finish, the rest is released or goes on without it.

use super::Life;
use super::life::Phase;
use crate::Stop;
use crate::attempts::{Condemned, Parting};
use crate::engine::lock;
use crate::env::within;
use everbeat_model::time::format_duration;
use everbeat_model::{BootInstant, Ending, Hole, Outcome, Reason};
use everbeat_store::Error as StoreError;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a draining replica says what it waits for, and when first.
const FIRST_TELL: Duration = Duration::from_secs(1);
const DRAIN_TELLS: Duration = Duration::from_secs(5);
/// While the store does not acknowledge this replica, its last words wait no longer.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// How often a draining replica looks, besides being told.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// How far a replica is on its way out.
#[derive(Default)]
pub(super) struct Draining {
    /// The store holds a request to drain.
    asked: AtomicBool,
    /// The replica drains: only one task does that for it.
    begun: AtomicBool,
    tally: Mutex<Tally>,
}

/// What became of the work of a replica that drains.
#[derive(Clone, Copy, Default)]
struct Tally {
    finished: u64,
    released: u64,
}

impl Draining {
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }
}

impl Life {
    /// The store holds a request that this replica drain: it takes no more work from now on.
    pub(crate) fn told_to_drain(&self) {
        if !self.draining.asked.swap(true, Ordering::SeqCst) {
            self.enter(Phase::Draining);
            self.renew_now.notify_one();
        }
    }

    pub(crate) fn was_told_to_drain(&self) -> bool {
        self.draining.asked.load(Ordering::SeqCst)
    }

    /// Lets work finish for the grace period, releases the rest, and leaves. Beating stops last.
    pub(crate) async fn drain(self: &Arc<Life>, grace: Duration) {
        if self.draining.begun.swap(true, Ordering::SeqCst) {
            self.wait_phase(|phase| matches!(phase, Phase::Fenced | Phase::Left)).await;
            return;
        }
        let env = &self.core.env;
        let begun = env.boot();
        self.enter(Phase::Draining);
        let (running, grace_shown) = (self.awaited(), format_duration(grace));
        tracing::info!(replica = %self.id, running, grace = grace_shown, "draining: it takes no more work");
        let awaited = self.table().parting(Parting::Ends);
        awaited.iter().for_each(|work| work.ask_stop(Stop::Draining));
        let tell = async {
            if let Err(error) = self.call(self.core.store.drain(self.id)).await {
                tracing::warn!(replica = %self.id, %error, "others do not know yet that this replica drains");
            }
        };
        let finish = async {
            self.finish(begun, grace).await;
            self.last_wait()
        };
        tokio::pin!(tell, finish);
        tokio::select! {
            biased;
            () = &mut tell => {
                finish.await;
            }
            wait = &mut finish => {
                within(&**env, wait, tell).await;
            }
        }
        self.release();
        within(&**env, self.last_wait() * 2, self.emptied()).await;
        let left_behind = self.leave_behind();
        within(&**env, self.last_wait(), self.settled()).await;
        self.core.store.wake();
        if self.phase() == Phase::Fenced {
            tracing::warn!(replica = %self.id, "judged dead by another replica while it drained");
            return;
        }
        let left = within(&**env, self.last_wait(), self.core.store.leave(self.id)).await;
        self.say_left(left.unwrap_or_else(|| Err(StoreError::no_answer())), left_behind);
        self.enter(Phase::Left);
    }

    /// How many attempts must end before this replica may go.
    pub(crate) fn awaited(&self) -> usize {
        self.table().parting(Parting::Ends).len()
    }

    /// Waits for the work, and says now and then what it waits for. Without the store it ends a little earlier, so
    /// that the last words to it, which will not be answered, are within the grace too.
    async fn finish(&self, begun: BootInstant, grace: Duration) {
        let env = &self.core.env;
        let mut silent = FIRST_TELL;
        loop {
            let last_words = if self.pulse().connected() { Duration::ZERO } else { (LAST_WAIT * 4).min(grace / 2) };
            let left = (grace - last_words).saturating_sub(env.boot().since(begun));
            if left.is_zero() {
                return;
            }
            if within(&**env, left.min(silent), self.emptied()).await.is_some() {
                return;
            }
            silent = DRAIN_TELLS;
            let awaited = self.table().parting(Parting::Ends);
            let unstored = awaited.iter().filter(|work| work.ended()).count();
            let performing = awaited.len() - unstored;
            let store = self.pulse().trouble.as_ref().map_or_else(|| "reachable".to_string(), ToString::to_string);
            let spent = format_duration(Duration::from_secs(env.boot().since(begun).as_secs()));
            tracing::info!(replica = %self.id, performing, unstored, store, spent, grace = format_duration(grace),
                "draining: waits for what is performed, and for endings to be stored");
        }
    }

    /// Releases what did not finish in time.
    fn release(&self) {
        let unfinished = self.table().parting(Parting::Ends);
        for work in unfinished {
            let ending = Ending::because(Outcome::Released, Reason::Draining, "released by a draining replica");
            if let Condemned::Now(conclusion) = work.condemn(ending.into()) {
                self.settle(&work, conclusion);
            }
            work.kill(Stop::Draining);
        }
    }

    /// What goes on without this replica is neither awaited nor released: it waits for whoever takes it over. Attempts
    /// whose end is on its way to the store are left to that. Answers how many go on.
    fn leave_behind(&self) -> usize {
        if self.core.settings.hole.is(Hole::LeftStillVouches) {
            return 0;
        }
        self.crews.iter().for_each(super::crew::Crew::close);
        let going_on = self.table().parting(Parting::GoesOn);
        let mut left = 0;
        for work in going_on.iter().filter(|work| work.decide()) {
            work.kill(Stop::Draining);
            self.table().settled(work);
            left += 1;
        }
        left
    }

    /// How long each last word to the store may take: no time is lost on one that does not answer anyway.
    fn last_wait(&self) -> Duration {
        let limit = self.core.settings.call_limit();
        if self.pulse().connected() { limit } else { limit.min(LAST_WAIT) }
    }

    /// The last line of a replica's life: what became of its work, and what others will conclude.
    fn say_left(&self, left: Result<(), StoreError>, jobs: usize) {
        let Tally { finished, released } = *lock(&self.draining.tally);
        let unstored = self.awaited();
        match left {
            Ok(()) if unstored == 0 => tracing::info!(replica = %self.id, finished, released, jobs, "left"),
            Ok(()) => tracing::warn!(replica = %self.id, finished, released, jobs, unstored,
                "left; others take over at once what could not be stored, and perform it again"),
            Err(error) => {
                let after = format_duration(self.core.settings.heartbeat_timeout);
                tracing::warn!(replica = %self.id, finished, released, jobs, unstored, %error, after,
                    "left without saying so: others conclude it from its silence, and take over what it held");
            }
        }
    }

    /// Counts what the drain of this replica brought to an end.
    pub(crate) fn tally(&self, outcome: Outcome) {
        if self.phase() == Phase::Draining {
            let mut tally = lock(&self.draining.tally);
            match outcome {
                Outcome::Released => tally.released += 1,
                _ => tally.finished += 1,
            }
        }
    }

    /// Until all that went on is let go of, or stored.
    async fn settled(&self) {
        while !self.table().parting(Parting::GoesOn).is_empty() {
            self.core.env.sleep(DRAIN_LOOK).await;
        }
    }

    /// Until nothing that is awaited is performed and no claim is unanswered.
    async fn emptied(&self) {
        while self.awaited() > 0 || !self.claims_over(&self.claims_begun()) {
            self.core.env.sleep(DRAIN_LOOK).await;
        }
    }
}
