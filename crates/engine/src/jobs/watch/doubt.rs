//! What is done where it is not known how it stands with a command: nothing is judged without proof, and nothing is
//! killed that is not owned.

use super::super::Found;
use super::super::shims::{Fenced, Finding, WithoutFolder};
use super::super::strays::end;
use super::begin::SHIM_DIED;
use super::{FIRST_PAUSE, LOOK_AGAIN, QUIET_BEATS, Silence, Watch};
use crate::Liveness;
use crate::attempts::Conclusion;
use everbeat_model::{Hole, Reason, Shortage};
use everbeat_store::{Held, Which};

impl Watch<'_> {
    pub(super) fn without_folder(&self) -> WithoutFolder {
        let leave = self.was_placed() && !self.life.core.settings.hole.is(Hole::MissingIsNew);
        if leave { WithoutFolder::LeaveIt } else { WithoutFolder::MakeOne }
    }

    /// Whether its folder has been made: that comes before a run is placed.
    pub(super) fn was_placed(&self) -> bool {
        self.work.claimed.spec.host.is_some() || !self.work.taken_over
    }

    /// Somebody has taken its folder away: that nothing is known of it is no proof that it never ran.
    pub(super) async fn taken_away(&mut self) -> Option<Conclusion> {
        let message = "its folder is gone, and with it all that was known of it";
        // Not merely fenced: whoever comes next would find a folder again, in which nothing says that it ran.
        match self.shims.destroy(&self.attempt).await {
            Ok(()) => Some(self.lost(Reason::FolderGone, message)),
            Err(error) => {
                tracing::warn!(job = %self.attempt.job, %error, "a job whose folder is gone could not be ended yet");
                self.pause().await;
                None
            }
        }
    }

    /// What is there cannot be understood: it is left alone, unless somebody wants it to end.
    pub(super) async fn unclear(&mut self, why: &str) -> Option<Conclusion> {
        let env = &self.life.core.env;
        let since = *self.unclear.get_or_insert_with(|| {
            tracing::warn!(job = %self.attempt.job, why, "a job cannot be understood; it is left alone");
            env.boot()
        });
        let asked = self.work.vital().cancel_asked;
        let patience = self.work.claimed.spec.policy.cancel_grace + LOOK_AGAIN * 5;
        let over = asked.is_some_and(|asked| env.boot().since(asked.max(since)) >= patience);
        if !over || !self.owns().await {
            self.pause().await;
            return None;
        }
        match self.shims.destroy(&self.attempt).await {
            Ok(()) => {
                Some(self.lost(Reason::Unreadable, &format!("it was ended although it could not be understood: {why}")))
            }
            Err(error) => {
                tracing::warn!(job = %self.attempt.job, %error, "a job that cannot be understood could not be ended yet");
                self.pause().await;
                None
            }
        }
    }

    /// A later owner or attempt has its place. Where the store says that this one still stands, it has forgotten
    /// the later one, as a failover may: what that does counts for nothing, and how this one ended is gone.
    pub(super) async fn forgotten(&mut self) -> Option<Conclusion> {
        let lease = &self.work.claimed.lease;
        let asked = self.life.core.store.held(Which::Of(vec![lease.run_id]));
        let stands = self.life.call(asked).await.is_ok_and(|held| held.iter().any(|held| held.lease == *lease));
        let held = if stands { self.shims.held().await.ok() } else { None };
        let Some(held) = held.filter(|held| held.iter().all(|attempt| attempt.token != lease.token)) else {
            // Its shim lives, and obeys a later owner: its end will be seen.
            self.pause().await;
            return None;
        };
        // Whoever spoke last to its shim may have ended it.
        if let Finding::Exited(exit) = self.shims.examine(&self.attempt).await {
            return Some(self.exited(exit).await);
        }
        for later in held.iter().filter(|attempt| attempt.job == lease.run_id) {
            let grace = self.work.claimed.spec.policy.cancel_grace;
            end(&*self.life.core.env, &**self.shims, later, grace).await;
        }
        Some(self.lost(Reason::Forgotten, "a later attempt that the store has forgotten took its place"))
    }

    /// Its shim does not answer. Only a sentinel that did not change for the whole time, as watched here,
    /// is silence; a watcher that was away itself begins anew.
    pub(super) async fn silent(&mut self) -> Option<Conclusion> {
        let env = &self.life.core.env;
        let patience = match self.work.vital().cancel_asked {
            // Somebody waits for its end.
            Some(_) => {
                let beats = self.life.core.settings.jobs.heartbeat_interval * QUIET_BEATS;
                (self.work.claimed.spec.policy.cancel_grace + LOOK_AGAIN * 5).max(beats)
            }
            None => self.life.core.settings.jobs.dead_after,
        };
        // Where many hang at once, the watcher or the machine may be at fault.
        let patience = if self.many_hang() { patience * 2 } else { patience };
        let seq = self.shims.sentinels(vec![self.attempt.job]).await.first().and_then(|sentinel| sentinel.seq);
        let now = env.boot();
        let fresh = Silence { seq, since: now, seen: now };
        let silence = self.hung.get_or_insert_with(|| {
            tracing::warn!(job = %self.attempt.job, "a job's shim holds its lock and does not answer");
            metrics::counter!("everbeat_jobs_hung_total").increment(1);
            Silence { seq, since: now, seen: now }
        });
        // What cannot be read is no evidence.
        if silence.seq != seq || seq.is_none() || now.since(silence.seen) > patience / 2 + LOOK_AGAIN * 10 {
            *silence = fresh;
        }
        silence.seen = now;
        let silent_for = now.since(silence.since);
        if silent_for < patience {
            self.found(Found::Unknown, || "its shim holds its lock and does not answer".to_string());
            self.pause().await;
            return None;
        }
        if !self.owns().await {
            self.pause().await;
            return None;
        }
        if let Err(error) = self.shims.kill(&self.attempt).await {
            tracing::warn!(job = %self.attempt.job, %error, "a hung shim could not be killed yet");
            self.pause().await;
            return None;
        }
        let said = format!("its shim did not answer for {} ms and was killed", silent_for.as_millis());
        self.fence_and_judge(Reason::ShimHung, &said).await
    }

    /// Whether so many of the jobs that are watched here hang that it is hardly their own doing.
    pub(super) fn many_hang(&self) -> bool {
        let (mut all, mut hung) = (0, 0);
        for work in self.life.table().of_crew(self.work.crew) {
            all += 1;
            hung += usize::from(work.vital().doubt == Some(Liveness::Suspect));
        }
        hung >= 3 && hung * 10 > all * 3
    }

    /// Whether the store knows this replica as its owner, just now. A shim that hangs cannot say whose it is.
    pub(super) async fn owns(&self) -> bool {
        let life = self.life;
        let held = life.call(life.core.store.held(Which::Of(vec![self.attempt.job]))).await;
        let mine = |held: &Held| held.lease.replica_id == life.id && held.lease.token == self.attempt.token;
        held.is_ok_and(|held| held.iter().any(mine))
    }

    /// Forbids the attempt, and says what that makes of it. Nothing, if its shim lives after all.
    pub(super) async fn fence_and_judge(&mut self, reason: Reason, message: &str) -> Option<Conclusion> {
        Some(match self.fence().await {
            Fenced::StillHeld => {
                self.pause().await;
                return None;
            }
            Fenced::Missing => return self.taken_away().await,
            Fenced::Exited(exit) => self.exited(exit).await,
            Fenced::Lost => self.lost(reason, message),
            Fenced::NeverStarted => self.never_started(SHIM_DIED).await,
        })
    }

    /// Until it is fenced: an error is no verdict.
    pub(super) async fn fence(&self) -> Fenced {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.shims.fence(&self.attempt, self.without_folder()).await {
                Ok(fenced) => return fenced,
                Err(error) => {
                    // What was killed and is not gone yet is neither alive nor lost.
                    self.work.vital().doubt = Some(Liveness::Unknown);
                    tracing::warn!(job = %self.attempt.job, %error, "a job could not be fenced yet");
                    if let Some(what) = Shortage::of(&error) {
                        self.life.core.jobs.shortages.met(self.life, what, &error.to_string());
                    }
                }
            }
            self.life.core.env.sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN * 10);
        }
    }
}
