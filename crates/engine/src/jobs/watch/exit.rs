//! The end of a command: its exit, its output, and what it left behind.

use super::super::shims::{JobEvent, LogFrom, Stream, WithoutFolder};
use super::begin::NOT_STARTED;
use super::{FIRST_PAUSE, LOOK_AGAIN, Watch};
use crate::attempts::{Conclusion, Draft, MOST_VALUE_BYTES};
use crate::env::within;
use crate::figures::{self, Watched};
use everbeat_model::job::{self, Exit};
use everbeat_model::run::Kind;
use everbeat_model::verdict::Judgement;
use everbeat_model::{Ending, Json, NotJson, Outcome, Reason, Shortage};
use everbeat_store::Which;
use serde_json::json;
use std::time::Duration;

/// So long what a command left behind may take to be gone: only the kernel can hold it up.
const CLEAR_WITHIN: Duration = Duration::from_secs(10);
/// So often what a node printed is read again if it cannot be.
const MOST_READS: u32 = 5;

impl Watch<'_> {
    pub(super) fn lost(&self, reason: Reason, message: &str) -> Conclusion {
        let seen = self.parted.unwrap_or_else(|| self.work.vital().last_beat);
        figures::detected(Watched::Shim, self.life.core.env.boot().since(seen));
        let evidence = json!({
            "lock": "free",
            "exit_record": "none",
            "exit": "unknown",
            "last_seq": self.heard.as_ref().map(|heard| heard.seq),
            "tenure": self.attempt.tenure,
            "host": self.life.core.settings.host,
        });
        Conclusion::judged(job::lost(reason, message), Draft { judgement: Judgement::Lost, reason, evidence })
    }

    pub(super) async fn exited(&self, exit: Exit) -> Conclusion {
        if let Some(what) = exit.shortage().filter(|_| !self.shortage_fails()) {
            return self.short(what, exit.start_error.as_deref().unwrap_or(NOT_STARTED)).await;
        }
        self.begun();
        self.cleared().await;
        let mut cancel_asked = self.work.vital().cancel_asked.is_some();
        if exit.stopped == Some(job::Stopped::Requested) && !cancel_asked {
            cancel_asked = self.was_cancelled().await;
        }
        let (spec, reattached) = (&self.work.claimed.spec, self.attempt.tenure > 0);
        let report = || {
            Json::of(&json!({
                "exit_code": exit.exit_code,
                "exit_signal": exit.exit_signal,
                "output_bytes": exit.output_bytes,
                "dropped_bytes": exit.dropped_bytes,
                "reattached": reattached,
            }))
        };
        let mut ending = job::ending(&exit, &spec.policy, cancel_asked, reattached, report);
        // A node that is cancelled is not wanted any more, however it ended.
        ending.own &= spec.kind == Kind::Job;
        if ending.outcome == Outcome::Succeeded && spec.kind == Kind::Node {
            return self.computed(&exit).await.into();
        }
        let draft = draft(&ending, &exit);
        Conclusion { ending, draft }
    }

    /// A node's command gives a value, or it has failed.
    pub(super) async fn computed(&self, exit: &Exit) -> Ending {
        if exit.dropped_bytes > 0 {
            let message = format!("{} bytes of its output had no room; what is left is no value", exit.dropped_bytes);
            return Ending::failed(&message, false);
        }
        match self.value().await {
            Ok(value) => Ending::succeeded(value),
            Err(why) => Ending::failed(&why, true),
        }
    }

    /// Whether somebody asked to cancel, as the store knows: whoever stopped it may be gone.
    pub(super) async fn was_cancelled(&self) -> bool {
        let life = self.life;
        let mut pause = FIRST_PAUSE;
        loop {
            match life.call(life.core.store.held(Which::Of(vec![self.attempt.job]))).await {
                Ok(held) => return held.iter().any(|held| held.lease.token == self.attempt.token && held.cancel_asked),
                Err(error) => tracing::debug!(%error, "cannot look yet whether a job was cancelled"),
            }
            life.core.env.sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN);
        }
    }

    /// Until nothing of the command is left and its output is complete, as far as that can be awaited.
    pub(super) async fn cleared(&self) {
        let env = &*self.life.core.env;
        if let Ok(mut following) = self.shims.follow(&self.attempt).await {
            let over = async { while following.next().await != JobEvent::Over {} };
            if within(env, CLEAR_WITHIN, over).await.is_none() {
                tracing::warn!(job = %self.attempt.job, "what a job left behind is not gone yet");
            }
        } else if let Err(error) = self.shims.fence(&self.attempt, WithoutFolder::LeaveIt).await {
            tracing::warn!(job = %self.attempt.job, %error, "what a job left behind could not be cleared");
        }
    }

    /// What a node's command computed: what it printed, as JSON if it is that, and as text if not.
    pub(super) async fn value(&self) -> Result<Json, String> {
        let (most, job) = (MOST_VALUE_BYTES, self.attempt.job);
        let mut tries = 0;
        let chunk = loop {
            match self.shims.output(job, Stream::Stdout, LogFrom::Attempt, most + 1).await {
                Ok(chunk) => break chunk,
                // What cannot be read for want of something is there all the same.
                Err(error) if tries >= MOST_READS && Shortage::of(&error).is_none() => {
                    return Err(format!("what it printed cannot be read: {error}"));
                }
                Err(_) => tries += 1,
            }
            self.life.core.env.sleep(LOOK_AGAIN).await;
        };
        if chunk.bytes.len() > most {
            return Err("it printed more than 4 MiB; store it elsewhere and print where".to_string());
        }
        let text = String::from_utf8_lossy(&chunk.bytes);
        let text = text.trim();
        match Json::read_text(text) {
            Ok(value) => Ok(value),
            Err(NotJson::Syntax(_)) => Ok(Json::of(text)),
            // It is JSON; as text it would be something else than what was meant.
            Err(beyond) => Err(format!("what it printed {}: {}", beyond.problem(), beyond.hint())),
        }
    }
}

/// Every lost or timed-out attempt is explained.
fn draft(ending: &Ending, exit: &Exit) -> Option<Draft> {
    let (judgement, reason) = match (ending.outcome, exit.stopped) {
        (Outcome::TimedOut, _) => (Judgement::TimedOut, Reason::Deadline),
        (Outcome::Stalled, _) => (Judgement::Stalled, Reason::NoProgress),
        (Outcome::Lost, Some(job::Stopped::Isolated)) => (Judgement::Lost, Reason::Isolated),
        (Outcome::Lost, _) => (Judgement::Lost, Reason::ShimTerminated),
        _ => return None,
    };
    Some(Draft { judgement, reason, evidence: json!({ "exit": exit, "judged_by_shim": true }) })
}
