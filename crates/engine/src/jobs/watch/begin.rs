//! The start of a command, and starts that did not happen.

use super::super::shims::{Fenced, Finding, Order, StartError};
use super::super::shortage;
use super::{FIRST_PAUSE, LOOK_AGAIN, Watch};
use crate::Stop;
use crate::attempts::Conclusion;
use everbeat_model::job::{self, Command};
use everbeat_model::run::Kind;
use everbeat_model::{Ending, Hole, Outcome, Reason, Shortage};
use std::io;

pub(super) const NOT_STARTED: &str = "the command could not be started";
pub(super) const SHIM_DIED: &str = "its shim died before it started the command";

impl Watch<'_> {
    pub(super) async fn begin(&mut self) -> Conclusion {
        let command = match self.command() {
            Ok(command) => command,
            Err(why) => return Ending::failed(&why, true).into(),
        };
        self.asked = Some(self.life.core.env.boot());
        if let Err(error) = self.shims.prepare(self.attempt.job).await {
            return self.not_begun("its folder could not be made", &error).await;
        }
        if !self.place().await {
            return Ending::because(Outcome::Released, Reason::NotPerformed, "its lease had passed on").into();
        }
        if self.work.stop() == Some(Stop::Cancelled) {
            return Ending::because(Outcome::Cancelled, Reason::Cancelled, "cancelled before it started").into();
        }
        let order = self.order(command);
        self.start_before = Some(order.start_before);
        let error = match self.shims.start(&self.attempt, &order).await {
            Ok(()) => return self.look_until_end().await,
            Err(StartError::Never(error)) => return self.not_begun(NOT_STARTED, &error).await,
            Err(StartError::Unclear(error)) => error,
        };
        // What was made before is gone: then nobody can say that it did not begin.
        if self.shims.examine(&self.attempt).await == Finding::Missing {
            return self.look_until_end().await;
        }
        match self.fence().await {
            Fenced::NeverStarted => self.not_begun(NOT_STARTED, &error).await,
            Fenced::Exited(exit) => self.exited(exit).await,
            Fenced::Lost => self.lost(Reason::StartUnclear, "its start could not be followed"),
            Fenced::StillHeld | Fenced::Missing => self.look_until_end().await,
        }
    }

    /// Its command has not begun, and never will under this attempt.
    pub(super) async fn not_begun(&self, what: &str, error: &io::Error) -> Conclusion {
        let message = format!("{what}: {error}");
        if let Some(short) = Shortage::of(error) {
            if self.shortage_fails() {
                return Ending::because(Outcome::Failed, Reason::NotStarted, &message).into();
            }
            return self.short(short, &message).await;
        }
        match error.kind() {
            // What is asked for cannot be written down.
            io::ErrorKind::InvalidInput => Ending::because(Outcome::Failed, Reason::NotStarted, &message).into(),
            _ => self.never_started(&message).await,
        }
    }

    /// This machine lacked something to begin it: released, and tried again later, here or where there is more.
    pub(super) async fn short(&self, what: Shortage, message: &str) -> Conclusion {
        let life = self.life;
        tracing::debug!(job = %self.attempt.job, short = what.as_str(), error = message, "a job could not begin yet");
        life.core.jobs.has_started(self.attempt.job);
        let pause = life.core.jobs.shortages.met(life, what, message);
        self.unplace().await;
        job::short(what, message, pause).into()
    }

    /// Nothing of it is here. Where that cannot be noted, it waits for this host.
    pub(super) async fn unplace(&self) {
        if self.placed {
            let placed = self.life.core.store.place(self.work.claimed.lease.shown(), None);
            let _it_is_only_claimed_here = self.life.call(placed).await;
        }
    }

    pub(super) fn shortage_fails(&self) -> bool {
        self.life.core.settings.hole.is(Hole::ShortageFails)
    }

    /// Its command has begun, or ended.
    pub(super) fn begun(&self) {
        let life = self.life;
        life.core.jobs.has_started(self.attempt.job);
        if std::mem::replace(&mut self.work.vital().starting, false) {
            if let Some(asked) = self.asked {
                life.core.jobs.shortages.began(life, asked);
            }
            life.freed([self.work.crew]);
        }
    }

    pub(super) fn command(&self) -> Result<Command, String> {
        let spec = &self.work.claimed.spec;
        let told = spec.orders();
        let command: Command = told.read().map_err(|error| format!("it does not say what to run: {error}"))?;
        command.check().map_err(|invalid| invalid.to_string())?;
        Ok(command)
    }

    pub(super) fn order(&self, mut command: Command) -> Order {
        let stdin = command.stdin.take();
        let spec = &self.work.claimed.spec;
        let settings = &self.life.core.settings.jobs;
        let isolated = self.stops_when_isolated();
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
    pub(super) async fn place(&mut self) -> bool {
        let (life, claimed) = (self.life, &self.work.claimed);
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

    /// A false start uses no try, and however often it happens, the command has done nothing wrong: it is tried again
    /// after pauses that grow, here or elsewhere.
    pub(super) async fn never_started(&self, why: &str) -> Conclusion {
        let life = self.life;
        let release = |message: &str, pause| {
            let ending = Ending::because(Outcome::Released, Reason::NeverStarted, message);
            Conclusion::from(Ending { pause, ..ending })
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
}
