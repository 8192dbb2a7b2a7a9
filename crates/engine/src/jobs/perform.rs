//! Watches over one attempt of a detached command, from its start, or from when it was taken over, to its
//! end. What is watched goes on without the watcher.

use super::recover::end;
use super::{FOLDER_GONE, Found, shortage};
use crate::env::within;
use crate::figures::{self, Watched};
use crate::life::Life;
use crate::perform::Entry;
use crate::settle::Draft;
use crate::shims::{
    Beat, Fenced, Finding, JobAttempt, JobEvent, LogFrom, Order, Shims, StartError, StopReason, Stream, WithoutFolder,
};
use crate::{Liveness, Stop, ctx};
use everbeat_model::job::{self, Command, Exit};
use everbeat_model::policy::WhenIsolated;
use everbeat_model::run::{Claimed, Kind};
use everbeat_model::verdict::Judgement;
use everbeat_model::{BootInstant, Ending, Hole, Json, NotJson, Outcome, Shortage};
use everbeat_store::{Held, Which};
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How an attempt ended, with the verdict on it if it needs one.
pub(crate) type Ended = (Ending, Option<Draft>);

pub(crate) fn attempt_of(claimed: &Claimed) -> JobAttempt {
    let lease = &claimed.lease;
    JobAttempt { job: lease.run_id, attempt: lease.attempt, token: lease.token, tenure: lease.tenure }
}

pub(crate) async fn perform(life: &Life, entry: &Arc<Entry>) -> Ended {
    let Some(shims) = &life.core.shims else {
        return (Ending::because(Outcome::Released, "task_unknown", "this replica performs no commands"), None);
    };
    let attempt = attempt_of(&entry.claimed);
    let mut watch = Watch {
        life,
        entry,
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
    let ended = if entry.taken_over { watch.go_on().await } else { watch.begin().await };
    let outcome = ended.0.outcome;
    if outcome == Outcome::Lost {
        life.core.jobs.lost();
    }
    if outcome != Outcome::Released {
        life.core.jobs.has_started(watch.attempt.job);
    }
    watch.found(Found::Ended(outcome), || message(&ended.0));
    ended
}

struct Watch<'a> {
    life: &'a Life,
    entry: &'a Arc<Entry>,
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

const NOT_STARTED: &str = "the command could not be started";
const SHIM_DIED: &str = "its shim died before it started the command";
/// So often whoever cannot be followed is looked at, besides hints.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// So long what a command left behind may take to be gone: only the kernel can hold it up.
const CLEAR_WITHIN: Duration = Duration::from_secs(10);
/// A shim that is followed says so at every beat; after so many without a word it is asked.
const QUIET_BEATS: u32 = 3;
/// So often what a node printed is read again if it cannot be.
const MOST_READS: u32 = 5;

impl Watch<'_> {
    async fn begin(&mut self) -> Ended {
        let command = match self.command() {
            Ok(command) => command,
            Err(why) => return (Ending::failed(&why, true), None),
        };
        self.asked = Some(self.life.core.env.boot());
        if let Err(error) = self.shims.prepare(self.attempt.job).await {
            return self.not_begun("its folder could not be made", &error).await;
        }
        if !self.place().await {
            return (Ending::because(Outcome::Released, "not_performed", "its lease had passed on"), None);
        }
        if self.entry.stop() == Some(Stop::Cancelled) {
            return (Ending::because(Outcome::Cancelled, "cancelled", "cancelled before it started"), None);
        }
        let order = self.order(command);
        self.start_before = Some(order.start_before);
        let error = match self.shims.start(&self.attempt, &order).await {
            Ok(()) => return self.go_on().await,
            Err(StartError::Never(error)) => return self.not_begun(NOT_STARTED, &error).await,
            Err(StartError::Unclear(error)) => error,
        };
        // What was made before is gone: then nobody can say that it did not begin.
        if self.shims.examine(&self.attempt).await == Finding::Missing {
            return self.go_on().await;
        }
        match self.fence().await {
            Fenced::NeverStarted => self.not_begun(NOT_STARTED, &error).await,
            Fenced::Exited(exit) => self.exited(exit).await,
            Fenced::Lost => self.lost("start_unclear", "its start could not be followed"),
            Fenced::StillHeld | Fenced::Missing => self.go_on().await,
        }
    }

    /// Its command has not begun, and never will under this attempt.
    async fn not_begun(&self, what: &str, error: &io::Error) -> Ended {
        let message = format!("{what}: {error}");
        if let Some(short) = Shortage::of(error) {
            if self.shortage_fails() {
                return (Ending::because(Outcome::Failed, "not_started", &message), None);
            }
            return self.short(short, &message).await;
        }
        match error.kind() {
            // What is asked for cannot be written down.
            io::ErrorKind::InvalidInput => (Ending::because(Outcome::Failed, "not_started", &message), None),
            _ => self.never_started(&message).await,
        }
    }

    /// This machine lacked something to begin it: released, and tried again later, here or where there is more.
    async fn short(&self, what: Shortage, message: &str) -> Ended {
        let life = self.life;
        tracing::debug!(job = %self.attempt.job, short = what.as_str(), error = message, "a job could not begin yet");
        life.core.jobs.has_started(self.attempt.job);
        let pause = life.core.jobs.shortages.met(life, what, message);
        self.unplace().await;
        (job::short(what, message, pause), None)
    }

    /// Nothing of it is here. Where that cannot be noted, it waits for this host.
    async fn unplace(&self) {
        if self.placed {
            let placed = self.life.core.store.place(self.entry.claimed.lease.shown(), None);
            let _it_is_only_claimed_here = self.life.call(placed).await;
        }
    }

    fn shortage_fails(&self) -> bool {
        self.life.core.settings.hole == Some(Hole::ShortageFails)
    }

    /// Its command has begun, or ended.
    fn begun(&self) {
        let life = self.life;
        life.core.jobs.has_started(self.attempt.job);
        if std::mem::replace(&mut self.entry.vital().starting, false) {
            if let Some(asked) = self.asked {
                life.core.jobs.shortages.began(life, asked);
            }
            life.freed_jobs.notify_one();
        }
    }

    fn command(&self) -> Result<Command, String> {
        let spec = &self.entry.claimed.spec;
        let told = spec.args.as_ref().unwrap_or(&spec.input);
        let command: Command = told.read().map_err(|error| format!("it does not say what to run: {error}"))?;
        command.check().map_err(|invalid| invalid.to_string())?;
        Ok(command)
    }

    fn order(&self, mut command: Command) -> Order {
        let stdin = command.stdin.take();
        let spec = &self.entry.claimed.spec;
        let settings = &self.life.core.settings.jobs;
        let isolated = spec.policy.when_isolated == WhenIsolated::Stop;
        Order {
            command,
            input: if spec.kind == Kind::Node { Some(spec.input.as_str().to_string()) } else { stdin },
            heartbeat_interval: settings.heartbeat_interval,
            // An isolated one must have ended before its host may be given up.
            stop_grace: match isolated {
                true => spec.policy.cancel_grace.min(settings.reattach_window - settings.isolated_after()),
                false => spec.policy.cancel_grace,
            },
            deadline: spec.policy.deadline,
            log_limit: settings.log_limit,
            // Later than that another replica may have taken it over.
            start_before: self.life.pulse().renewed + self.life.core.settings.renew_deadline(),
            isolated_after: isolated.then(|| settings.isolated_after()),
        }
    }

    /// Notes where the run belongs before anything of it is here. False: its lease is another's by now.
    async fn place(&mut self) -> bool {
        let (life, claimed) = (self.life, &self.entry.claimed);
        let host = &life.core.settings.host;
        if claimed.spec.host.as_ref() == Some(host) {
            return true;
        }
        self.placed = true;
        let mut pause = FIRST_PAUSE;
        loop {
            match life.call(life.core.store.place(claimed.lease.shown(), Some(host.clone()))).await {
                Ok(placed) => return placed,
                Err(error) => tracing::debug!(%error, "cannot note yet where a job begins"),
            }
            life.core.env.sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN);
        }
    }

    /// Looks until there is an end.
    async fn go_on(&mut self) -> Ended {
        loop {
            let finding = self.shims.examine(&self.attempt).await;
            self.entry.vital().doubt = match &finding {
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
                Finding::Missing if self.life.core.settings.hole == Some(Hole::MissingIsNew) => {
                    self.judge("never_started", "its shim died before it started").await
                }
                Finding::Missing if self.was_placed() => self.taken_away().await,
                Finding::NotStarted if self.life.core.settings.hole == Some(Hole::UnfencedStart) => {
                    Some(self.never_started(SHIM_DIED).await)
                }
                Finding::NotStarted | Finding::Missing => {
                    self.judge("never_started", "its shim died before it started").await
                }
                Finding::Gone => self.judge("shim_died", "its shim is gone, and the command with it").await,
                Finding::Rebooted => self.judge("rebooted", "the machine was restarted").await,
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

    /// Whether its folder has been made: that comes before a run is placed.
    fn was_placed(&self) -> bool {
        self.entry.claimed.spec.host.is_some() || !self.entry.taken_over
    }

    fn without_folder(&self) -> WithoutFolder {
        let leave = self.was_placed() && self.life.core.settings.hole != Some(Hole::MissingIsNew);
        if leave { WithoutFolder::LeaveIt } else { WithoutFolder::MakeOne }
    }

    /// Somebody has taken its folder away: that nothing is known of it is no proof that it never ran.
    async fn taken_away(&mut self) -> Option<Ended> {
        let message = "its folder is gone, and with it all that was known of it";
        // Not merely fenced: whoever comes next would find a folder again, in which nothing says that it ran.
        match self.shims.destroy(&self.attempt).await {
            Ok(()) => Some(self.lost(FOLDER_GONE, message)),
            Err(error) => {
                tracing::warn!(job = %self.attempt.job, %error, "a job whose folder is gone could not be ended yet");
                self.pause().await;
                None
            }
        }
    }

    /// What is there cannot be understood: it is left alone, unless somebody wants it to end.
    async fn unclear(&mut self, why: &str) -> Option<Ended> {
        let env = &self.life.core.env;
        let since = *self.unclear.get_or_insert_with(|| {
            tracing::warn!(job = %self.attempt.job, why, "a job cannot be understood; it is left alone");
            env.boot()
        });
        let asked = self.entry.vital().cancel_asked;
        let patience = self.entry.claimed.spec.policy.cancel_grace + LOOK_AGAIN * 5;
        let over = asked.is_some_and(|asked| env.boot().since(asked.max(since)) >= patience);
        if !over || !self.owns().await {
            self.pause().await;
            return None;
        }
        match self.shims.destroy(&self.attempt).await {
            Ok(()) => {
                Some(self.lost("unreadable", &format!("it was ended although it could not be understood: {why}")))
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
    async fn forgotten(&mut self) -> Option<Ended> {
        let lease = &self.entry.claimed.lease;
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
            let grace = self.entry.claimed.spec.policy.cancel_grace;
            end(&*self.life.core.env, &**self.shims, later, grace).await;
        }
        Some(self.lost("forgotten", "a later attempt that the store has forgotten took its place"))
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
        let vouches = self.entry.stops_when_isolated() && settings.hole != Some(Hole::NeverVouched);
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
                _why = self.entry.cancelled(), if !asked => {
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
        match self.life.core.settings.hole {
            Some(Hole::LeftStillVouches) => self.life.pulse().connected(),
            _ => self.life.acknowledged(),
        }
    }

    async fn ask_to_stop(&self) {
        let grace = self.entry.claimed.spec.policy.cancel_grace;
        let why = match self.entry.vital().cancel_asked {
            Some(_) => StopReason::Cancelled,
            None => StopReason::Stalled,
        };
        if let Err(error) = self.shims.stop(&self.attempt, why, grace).await {
            tracing::warn!(job = %self.attempt.job, %error, "a job could not be asked to stop yet");
        }
    }

    /// Until something may have changed.
    async fn pause(&self) {
        if self.entry.stop().is_some_and(|stop| stop != Stop::Draining) {
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
        let first = if self.entry.taken_over { beat.clone() } else { Beat::default() };
        let before = self.heard.take().unwrap_or(first);
        life.core.jobs.heard(&before, &beat);
        let advanced = beat.progress_seq > before.progress_seq;
        let progress = if advanced { beat.progress.clone() } else { None };
        self.entry.beat(life.core.env.boot(), progress, None);
        if advanced {
            life.signer.nudge(self.entry);
        }
        if before.write_error.is_none()
            && let Some(error) = &beat.write_error
        {
            tracing::warn!(job = %self.attempt.job, error, "a job's shim cannot write to its folder; it goes on");
        }
        self.entry.vital().write_error.clone_from(&beat.write_error);
        self.heard = Some(beat);
    }

    /// Its shim does not answer. Only a sentinel that did not change for the whole time, as watched here,
    /// is silence; a watcher that was away itself begins anew.
    async fn silent(&mut self) -> Option<Ended> {
        let env = &self.life.core.env;
        let patience = match self.entry.vital().cancel_asked {
            // Somebody waits for its end.
            Some(_) => {
                let beats = self.life.core.settings.jobs.heartbeat_interval * QUIET_BEATS;
                (self.entry.claimed.spec.policy.cancel_grace + LOOK_AGAIN * 5).max(beats)
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
        self.judge("shim_hung", &said).await
    }

    /// Whether so many of the jobs that are watched here hang that it is hardly their own doing.
    fn many_hang(&self) -> bool {
        let (mut all, mut hung) = (0, 0);
        for entry in self.life.table().detached() {
            all += 1;
            hung += usize::from(entry.vital().doubt == Some(Liveness::Suspect));
        }
        hung >= 3 && hung * 10 > all * 3
    }

    /// Whether the store knows this replica as its owner, just now. A shim that hangs cannot say whose it is.
    async fn owns(&self) -> bool {
        let life = self.life;
        let held = life.call(life.core.store.held(Which::Of(vec![self.attempt.job]))).await;
        let mine = |held: &Held| held.lease.replica_id == life.id && held.lease.token == self.attempt.token;
        held.is_ok_and(|held| held.iter().any(mine))
    }

    /// Forbids the attempt, and says what that makes of it. Nothing, if its shim lives after all.
    async fn judge(&mut self, reason: &'static str, message: &str) -> Option<Ended> {
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
    async fn fence(&self) -> Fenced {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.shims.fence(&self.attempt, self.without_folder()).await {
                Ok(fenced) => return fenced,
                Err(error) => {
                    // What was killed and is not gone yet is neither alive nor lost.
                    self.entry.vital().doubt = Some(Liveness::Unknown);
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

    /// A false start uses no try, and however often it happens, the command has done nothing wrong: it is tried again
    /// after pauses that grow, here or elsewhere.
    async fn never_started(&self, why: &str) -> Ended {
        let life = self.life;
        let release = |message: &str, pause| {
            let ending = Ending::because(Outcome::Released, "never_started", message);
            (Ending { pause, ..ending }, None)
        };
        if let Some((lack, left)) = life.core.jobs.shortages.lack(&*life.core.env) {
            return release(&format!("{why}; {}", lack.what), Some(left));
        }
        if self.start_before.is_some_and(|before| life.core.env.boot() >= before) {
            return release("it was held up past the time in which it might begin", None);
        }
        let times = life.core.jobs.never_started(self.attempt.job);
        tracing::warn!(job = %self.attempt.job, times, why, "a job did not begin; it is tried again");
        metrics::counter!("everbeat_jobs_false_starts_total").increment(1);
        self.unplace().await;
        let said = if times == 1 { why.to_string() } else { format!("{why}, {times} times in a row") };
        release(&said, Some(shortage::pause_after(life, times)))
    }

    fn lost(&self, reason: &'static str, message: &str) -> Ended {
        let seen = self.parted.unwrap_or_else(|| self.entry.vital().last_beat);
        figures::detected(Watched::Shim, self.life.core.env.boot().since(seen));
        let evidence = json!({
            "lock": "free",
            "exit_record": "none",
            "exit": "unknown",
            "last_seq": self.heard.as_ref().map(|heard| heard.seq),
            "tenure": self.attempt.tenure,
            "host": self.life.core.settings.host,
        });
        (job::lost(reason, message), Some(Draft { judgement: Judgement::Lost, reason, evidence }))
    }

    async fn exited(&self, exit: Exit) -> Ended {
        if let Some(what) = exit.shortage().filter(|_| !self.shortage_fails()) {
            return self.short(what, exit.start_error.as_deref().unwrap_or(NOT_STARTED)).await;
        }
        self.begun();
        self.cleared().await;
        let mut cancel_asked = self.entry.vital().cancel_asked.is_some();
        if exit.stopped == Some(job::Stopped::Requested) && !cancel_asked {
            cancel_asked = self.was_cancelled().await;
        }
        let (spec, reattached) = (&self.entry.claimed.spec, self.attempt.tenure > 0);
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
            return (self.computed(&exit).await, None);
        }
        let draft = draft(&ending, &exit);
        (ending, draft)
    }

    /// A node's command gives a value, or it has failed.
    async fn computed(&self, exit: &Exit) -> Ending {
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
    async fn was_cancelled(&self) -> bool {
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
    async fn cleared(&self) {
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
    async fn value(&self) -> Result<Json, String> {
        let (most, job) = (ctx::MOST_VALUE_BYTES, self.attempt.job);
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

    fn found(&self, found: Found, detail: impl FnOnce() -> String) {
        if self.entry.taken_over {
            self.life.core.jobs.found(self.attempt.token, self.attempt.job, found, detail());
        }
    }
}

/// Every lost or timed-out attempt is explained.
fn draft(ending: &Ending, exit: &Exit) -> Option<Draft> {
    let (judgement, reason) = match (ending.outcome, exit.stopped) {
        (Outcome::TimedOut, _) => (Judgement::TimedOut, "deadline"),
        (Outcome::Stalled, _) => (Judgement::Stalled, "no_progress"),
        (Outcome::Lost, Some(job::Stopped::Isolated)) => (Judgement::Lost, "isolated"),
        (Outcome::Lost, _) => (Judgement::Lost, "shim_terminated"),
        _ => return None,
    };
    Some(Draft { judgement, reason, evidence: json!({ "exit": exit, "judged_by_shim": true }) })
}

fn message(ending: &Ending) -> String {
    let said = ending.error.as_ref().map(|error| error.value()["message"].as_str().unwrap_or_default().to_string());
    said.unwrap_or_else(|| "it succeeded".to_string())
}
