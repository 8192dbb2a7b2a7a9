//! Has claimed runs performed, whoever performs them, and hands their endings on to be settled.

use super::conclusion::Conclusion;
use super::performer::Beats;
use super::settle::Unstored;
use super::work::Work;
use crate::replica::Life;
use everbeat_model::run::Claimed;
use everbeat_model::{Hole, StoreTime};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

impl Life {
    /// Begins to perform a claimed run.
    pub(crate) fn perform(self: &Arc<Life>, crew: usize, claimed: Claimed) {
        self.enter_table(crew, claimed, None);
    }

    /// Goes on with an attempt that has begun, or may have: under another replica, or unnoticed under this one.
    pub(crate) fn take_up(self: &Arc<Life>, crew: usize, claimed: Claimed, cancel_asked: bool) {
        self.enter_table(crew, claimed, Some(cancel_asked));
    }

    /// `taken_over`: of an attempt that has begun before, or may have, whether it was asked to cancel.
    fn enter_table(self: &Arc<Life>, crew: usize, claimed: Claimed, taken_over: Option<bool>) {
        if self.crew(crew).is_closed() {
            return;
        }
        let now = self.core.env.boot();
        let terms = self.crew(crew).performer.terms(&claimed.spec);
        let work = Arc::new(Work::new(claimed, crew, terms, now, taken_over.is_some()));
        if taken_over == Some(true) {
            work.ask_cancel(now);
        }
        if terms.isolation && now >= self.pulse().renewed + self.core.settings.renew_deadline() {
            // The claim's answer came so late that others may have taken the run over; if not,
            // reconciliation releases the lease.
            return;
        }
        self.crew(crew).performer.entered(&work);
        let watched = work.next_check().is_some() || terms.isolation;
        self.table().insert(work.clone());
        if watched {
            self.rearmed.notify_one();
        }
        let (life, performed) = (self.clone(), work.clone());
        let task = self.core.env.spawn("perform", async move { life.performed(performed).await }.boxed());
        work.own(task);
    }

    async fn performed(self: Arc<Life>, work: Arc<Work>) {
        let crew = self.crew(work.crew);
        work.begins(self.core.env.boot());
        let post = self.post(work.crew);
        let performing = AssertUnwindSafe(crew.performer.perform(&post, &work)).catch_unwind();
        let (conclusion, killed) = tokio::select! {
            biased;
            () = work.killed() => (None, true),
            done = performing => (done.unwrap_or_else(|panic| {
                // Nothing is known of the attempt by that; reconciliation looks at its lease again.
                tracing::error!(run = %work.claimed.lease.run_id, "{}", panic_message(&*panic));
                work.forsake();
                self.table().settled(&work);
                None
            }), false),
        };
        if killed && !self.core.settings.hole.is(Hole::EndUnawaited) {
            crew.performer.end(&post, &work).await;
        }
        let concluded = conclusion.is_some();
        // What was decided of the attempt before goes first, now that the attempt has ended.
        let counts = match conclusion {
            Some(conclusion) => {
                work.conclude();
                if work.decide() { Some(conclusion) } else { work.take_sentence() }
            }
            None => work.take_sentence(),
        };
        if let Some(conclusion) = counts {
            self.settle(&work, conclusion);
        }
        if concluded {
            crew.performer.afterwards(&work).await;
        }
        if self.table().ended(&work) {
            crew.freed.notify_one();
        }
    }

    /// Hands the ending of an attempt to the settling loop.
    pub(crate) fn settle(&self, work: &Arc<Work>, conclusion: Conclusion) {
        let _life_is_over = self.endings.send(Unstored::new(work.clone(), conclusion));
    }

    /// The last sign of life of an attempt: its own, or its replica's.
    pub(crate) fn last_heartbeat_at(&self, work: &Work) -> StoreTime {
        let own = work.vital().last_beat;
        let last = match work.terms.beats {
            Beats::ByHand | Beats::Performer => own,
            Beats::Replica => own.max(self.pulse().renewed),
        };
        self.core.clock.at(last, &*self.core.env)
    }
}

pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().map(ToString::to_string).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the task panicked: {}", text.unwrap_or_else(|| "no message".to_string()))
}
