//! Watches over one attempt of a detached command, from its start, or from when it was taken over, to its
//! end. What is watched goes on without the watcher.

mod begin;
mod doubt;
mod exit;

use super::Found;
use super::shims::{Beat, Finding, JobAttempt, JobEvent, Shims, StopReason};
use crate::attempts::{Conclusion, Work};
use crate::figures::{self, Watched};
use crate::replica::Life;
use crate::{Liveness, Stop};
use begin::SHIM_DIED;
use everbeat_model::policy::WhenIsolated;
use everbeat_model::run::Claimed;
use everbeat_model::{BootInstant, Ending, Hole, Outcome, Reason};
use std::sync::Arc;
use std::time::Duration;

pub(super) fn attempt_of(claimed: &Claimed) -> JobAttempt {
    let lease = &claimed.lease;
    JobAttempt { job: lease.run_id, attempt: lease.attempt, token: lease.token, tenure: lease.tenure }
}

pub(super) async fn perform(life: &Life, shims: &Arc<dyn Shims>, work: &Arc<Work>) -> Conclusion {
    let attempt = attempt_of(&work.claimed);
    let mut watch = Watch {
        life,
        work,
        shims,
        attempt,
        heard: None,
        parted: None,
        hung: None,
        unclear: None,
        asked: None,
        start_before: None,
        placed: false,
    };
    let ended = if work.taken_over { watch.look_until_end().await } else { watch.begin().await };
    let outcome = ended.ending.outcome;
    if outcome == Outcome::Lost {
        life.core.jobs.lost();
    }
    if outcome != Outcome::Released {
        life.core.jobs.has_started(watch.attempt.job);
    }
    watch.found(Found::Ended(outcome), || message(&ended.ending));
    ended
}

struct Watch<'a> {
    life: &'a Life,
    work: &'a Arc<Work>,
    shims: &'a Arc<dyn Shims>,
    attempt: JobAttempt,
    heard: Option<Beat>,
    /// When its shim let go of the connection.
    parted: Option<BootInstant>,
    /// Its shim does not answer: what its sentinel said, since when that stands, and when it was last seen.
    hung: Option<Silence>,
    /// Since when it cannot be understood.
    unclear: Option<BootInstant>,
    /// When its start was asked for, if it was here.
    asked: Option<BootInstant>,
    /// From then on its shim does not begin it any more.
    start_before: Option<BootInstant>,
    /// It was noted here that its run belongs to this host.
    placed: bool,
}

struct Silence {
    seq: Option<u64>,
    since: BootInstant,
    seen: BootInstant,
}

/// So often whoever cannot be followed is looked at, besides hints.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// A shim that is followed says so at every beat; after so many without a word it is asked.
const QUIET_BEATS: u32 = 3;

impl Watch<'_> {
    /// Looks until there is an end.
    async fn look_until_end(&mut self) -> Conclusion {
        loop {
            let finding = self.shims.examine(&self.attempt).await;
            self.work.vital().doubt = match &finding {
                Finding::Hung => Some(Liveness::Suspect),
                Finding::Unknown(_) | Finding::Fenced => Some(Liveness::Unknown),
                _ => None,
            };
            let ended = match finding {
                Finding::Live(beat) => {
                    if self.hung.take().is_some() {
                        figures::refuted(Watched::Shim, 1);
                    }
                    self.begun();
                    self.found(Found::Reattached, || "it never stopped".to_string());
                    self.hear(beat);
                    self.follow().await;
                    None
                }
                Finding::Exited(exit) => Some(self.exited(exit).await),
                Finding::Missing if self.life.core.settings.hole.is(Hole::MissingIsNew) => {
                    self.fence_and_judge(Reason::NeverStarted, "its shim died before it started").await
                }
                Finding::Missing if self.was_placed() => self.taken_away().await,
                Finding::NotStarted if self.life.core.settings.hole.is(Hole::UnfencedStart) => {
                    Some(self.never_started(SHIM_DIED).await)
                }
                Finding::NotStarted | Finding::Missing => {
                    self.fence_and_judge(Reason::NeverStarted, "its shim died before it started").await
                }
                Finding::Gone => {
                    self.fence_and_judge(Reason::ShimDied, "its shim is gone, and the command with it").await
                }
                Finding::Rebooted => self.fence_and_judge(Reason::Rebooted, "the machine was restarted").await,
                Finding::Hung => self.silent().await,
                Finding::Fenced => self.forgotten().await,
                Finding::Unknown(why) => {
                    self.found(Found::Unknown, || why.clone());
                    self.unclear(&why).await
                }
            };
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    /// Until its end, or until it cannot be followed any more.
    async fn follow(&mut self) {
        let mut following = match self.shims.follow(&self.attempt).await {
            Ok(following) => following,
            Err(error) => {
                tracing::debug!(job = %self.attempt.job, %error, "a live job cannot be followed");
                return self.pause().await;
            }
        };
        let env = self.life.core.env.clone();
        let settings = &self.life.core.settings;
        let vouches = self.stops_when_isolated() && !settings.hole.is(Hole::NeverVouched);
        let mut asked = false;
        let pace = |asked: bool| match (asked, vouches) {
            (true, _) => Some(settings.jobs.heartbeat_interval.min(settings.heartbeat_interval)),
            (false, true) => Some(settings.heartbeat_interval),
            (false, false) => None,
        };
        // Not anew with every word of the shim: one that says much must be spoken to as well.
        let mut speak_at = env.boot();
        let most_quiet = settings.jobs.heartbeat_interval * QUIET_BEATS;
        let mut heard = env.boot();
        loop {
            let quiet = env.sleep_until(heard + most_quiet);
            let again = async {
                match pace(asked) {
                    Some(_) => env.sleep_until(speak_at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                event = following.next() => match event {
                    JobEvent::Beat(beat) => {
                        heard = env.boot();
                        self.hear(beat);
                    }
                    JobEvent::Over => {
                        self.parted = Some(env.boot());
                        return;
                    }
                },
                // A connection may stand although nobody is behind it any more: ask.
                () = quiet => return,
                _why = self.work.cancelled(), if !asked => {
                    self.ask_to_stop().await;
                    asked = true;
                    speak_at = env.boot() + pace(asked).unwrap_or_default();
                }
                () = again => {
                    speak_at = env.boot() + pace(asked).unwrap_or_default();
                    if asked {
                        self.ask_to_stop().await;
                    }
                    if vouches && self.vouches()
                        && let Err(error) = self.shims.vouch(&self.attempt).await
                    {
                        tracing::debug!(job = %self.attempt.job, %error, "cannot vouch for a job");
                    }
                }
            }
        }
    }

    /// Whether this replica may say that the store acknowledges it.
    fn vouches(&self) -> bool {
        if self.life.core.settings.hole.is(Hole::LeftStillVouches) {
            return self.life.pulse().connected();
        }
        self.life.acknowledged()
    }

    async fn ask_to_stop(&self) {
        let grace = self.work.claimed.spec.policy.cancel_grace;
        let why = match self.work.vital().cancel_asked {
            Some(_) => StopReason::Cancelled,
            None => StopReason::Stalled,
        };
        if let Err(error) = self.shims.stop(&self.attempt, why, grace).await {
            tracing::warn!(job = %self.attempt.job, %error, "a job could not be asked to stop yet");
        }
    }

    /// Until something may have changed.
    async fn pause(&self) {
        if self.work.stop().is_some_and(|stop| stop != Stop::Draining) {
            self.ask_to_stop().await;
        }
        let look_again = self.life.core.env.sleep(LOOK_AGAIN);
        tokio::select! {
            biased;
            () = look_again => {}
            () = self.shims.changed(self.attempt.job) => self.life.core.env.sleep(FIRST_PAUSE).await,
        }
    }

    fn hear(&mut self, beat: Beat) {
        let life = self.life;
        // What an adopted one did before is its former owner's to count.
        let first = if self.work.taken_over { beat.clone() } else { Beat::default() };
        let before = self.heard.take().unwrap_or(first);
        life.core.jobs.heard(&before, &beat);
        let advanced = beat.progress_seq > before.progress_seq;
        let progress = if advanced { beat.progress.clone() } else { None };
        self.work.beat(life.core.env.boot(), progress, None);
        if advanced {
            life.signer.nudge(self.work);
        }
        if before.write_error.is_none()
            && let Some(error) = &beat.write_error
        {
            tracing::warn!(job = %self.attempt.job, error, "a job's shim cannot write to its folder; it goes on");
        }
        self.work.vital().write_error.clone_from(&beat.write_error);
        self.heard = Some(beat);
    }

    fn found(&self, found: Found, detail: impl FnOnce() -> String) {
        if self.work.taken_over {
            self.life.core.jobs.found(self.attempt.token, self.attempt.job, found, detail());
        }
    }

    fn stops_when_isolated(&self) -> bool {
        self.work.claimed.spec.policy.when_isolated == WhenIsolated::Stop
    }
}

fn message(ending: &Ending) -> String {
    let said = ending.error.as_ref().map(|error| error.value()["message"].as_str().unwrap_or_default().to_string());
    said.unwrap_or_else(|| "it succeeded".to_string())
}
