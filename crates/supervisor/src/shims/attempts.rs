//! Starting attempts and ending them.

use super::{Host, identity, kill_point, millis, of_identity, unclear};
use crate::job::client::Error as ClientError;
use crate::job::protocol::Refusal;
use crate::job::{self, CancelRecord, Identity, JobFolder, Problem, Spec};
use everbeat_engine::{
    Fenced, Finding, JobAttempt, LAST_WORD, Lock, Order, StartError, StopReason, Stream, WithoutFolder,
};
use everbeat_model::Shortage;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use uuid::Uuid;

/// So long an ended shim may take to leave once it is acknowledged.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// So long an ended shim waits to be acknowledged; its record outlives it.
const LINGER: Duration = Duration::from_secs(600);
/// Who waits for an attempt that nobody owns does not wait longer, whatever it was promised.
const MOST_END_GRACE: Duration = Duration::from_secs(60);
/// Of an attempt that nobody can say it of any more.
const UNKNOWN_GRACE: Duration = Duration::from_secs(10);
/// A folder, a spec and some records: as much as a start needs, and more.
const PROBE_BYTES: usize = 64 << 10;
const END_LOOK: Duration = Duration::from_millis(20);

impl Host {
    pub(super) fn start(&self, attempt: &JobAttempt, order: &Order) -> Result<(), StartError> {
        // What is not for want of something may be that it was begun before.
        let unready = |error: io::Error| match Shortage::of(&error) {
            Some(_) => StartError::Never(error),
            None => StartError::Unclear(error),
        };
        let begun = self.ready(attempt, order).map_err(unready).and_then(|folder| {
            job::shim::spawn(&self.exe, &self.args, &folder)?;
            kill_point("spawned");
            Ok(())
        });
        if let Err(StartError::Never(_)) = &begun
            && let Ok(folder) = self.open(attempt.job)
        {
            // Where that cannot be noted it is true all the same: nobody else would start it.
            let _only_for_who_looks_later = job::fence(&folder, &identity(attempt));
        }
        begun
    }

    /// Everything that comes before the shim.
    fn ready(&self, attempt: &JobAttempt, order: &Order) -> io::Result<JobFolder> {
        kill_point("claimed");
        in_time(order)?;
        let folder = JobFolder::create(&self.root, &attempt.job.to_string())?;
        self.end_earlier(&folder, attempt)?;
        let mut spec = self.spec(attempt, order)?;
        spec.stdout_from = job::logs::read_from(&folder, Stream::Stdout, u64::MAX, 0).map_err(unclear)?.end;
        if let Some(input) = &order.input {
            spec.stdin = Some(folder.write_input(input.as_bytes())?);
        }
        // What came before may have taken long, or this process may have been frozen: somebody else may own it by now.
        in_time(order)?;
        job::install(&folder, &spec)?;
        kill_point("spec-written");
        in_time(order)?;
        Ok(folder)
    }

    /// Room for what a start writes, and a process.
    pub(super) fn probe(&self) -> io::Result<()> {
        let file = self.root.join(format!("{}probe-{}", job::LEFTOVER, Uuid::new_v4().simple()));
        let written = std::fs::write(&file, [0_u8; PROBE_BYTES]);
        let _there_may_be_none = std::fs::remove_file(&file);
        written?;
        job::shim::probe(&self.exe, &self.args)
    }

    fn spec(&self, attempt: &JobAttempt, order: &Order) -> io::Result<Spec> {
        let Identity { attempt: number, token } = identity(attempt);
        let command = &order.command;
        let mut env = self.env.clone();
        env.extend(command.env.clone());
        Ok(Spec {
            nonce: token,
            tenure: attempt.tenure,
            start_before_ms: Some(millis(order.start_before.0)),
            env,
            cwd: command.cwd.as_ref().map(PathBuf::from),
            session_id: command.session_id.clone(),
            agent_engine: command.agent_engine.clone(),
            interval_ms: millis(order.heartbeat_interval),
            stop_grace_ms: millis(order.stop_grace),
            deadline_ms: order.deadline.map(millis),
            isolated_after_ms: order.isolated_after.map(millis),
            log_limit_bytes: order.log_limit,
            linger_ms: millis(LINGER),
            ..Spec::new(&attempt.job.to_string(), number, command.command.clone())?
        })
    }

    /// Whatever an earlier attempt left must be over before this one's spec takes the place of its own. A
    /// later one's, or this one's, forbids the start.
    fn end_earlier(&self, folder: &JobFolder, attempt: &JobAttempt) -> io::Result<()> {
        let mine = identity(attempt);
        let Some((earlier, grace)) = in_the_way(folder).map_err(unclear)? else { return Ok(()) };
        if earlier == mine || earlier.attempt > mine.attempt {
            return Err(io::Error::other("its place is taken by the same or a later attempt"));
        }
        let Some(left) = of_identity(folder.job_id(), &earlier) else {
            return Err(io::Error::other("what an earlier attempt left cannot be understood"));
        };
        self.end(folder, &left, grace)
    }

    /// Ends an attempt that no lease stands for, and waits until its shim has let go.
    fn end(&self, folder: &JobFolder, left: &JobAttempt, grace: Duration) -> io::Result<()> {
        let identity = identity(left);
        let grace = grace.min(MOST_END_GRACE);
        let until = job::boot_ms().saturating_add(millis(grace + LEAVE_WITHIN));
        while job::boot_ms() < until {
            match job::examine(folder, &identity, LAST_WORD) {
                Finding::Live(_) => drop(self.stop(left, StopReason::Fenced, grace)),
                Finding::Exited(_) => {
                    drop(self.client(left).and_then(|mut client| client.ack()));
                    if job::lock_and_exit(folder).0 != Lock::Held {
                        break;
                    }
                }
                _ => break,
            }
            job::pause(millis(END_LOOK));
        }
        if job::lock_and_exit(folder).0 == Lock::Held {
            job::kill(folder, &identity)?;
        }
        match job::fence(folder, &identity)? {
            Fenced::StillHeld => Err(io::Error::other("an earlier attempt still holds the lock")),
            _ => Ok(()),
        }
    }

    pub(super) fn stop(&self, attempt: &JobAttempt, why: StopReason, grace: Duration) -> io::Result<()> {
        match self.client(attempt).and_then(|mut client| client.stop(why, Some(grace))) {
            // Over already: its end says so.
            Ok(_) | Err(ClientError::Refused(Refusal::Untimely, _)) => Ok(()),
            Err(error @ ClientError::Refused(..)) => Err(io::Error::other(error)),
            Err(_) => {
                CancelRecord::leave(&self.open(attempt.job)?, &identity(attempt), attempt.tenure, why, millis(grace))
            }
        }
    }

    pub(super) fn fence(&self, attempt: &JobAttempt, without: WithoutFolder) -> io::Result<Fenced> {
        let folder = match without {
            WithoutFolder::MakeOne => JobFolder::create(&self.root, &attempt.job.to_string())?,
            WithoutFolder::LeaveIt => match self.open(attempt.job) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Fenced::Missing),
                opened => opened?,
            },
        };
        let mine = identity(attempt);
        if job::replaced(&folder, &mine)?.is_none()
            && let Ok(Some((other, grace))) = in_the_way(&folder)
            && other != mine
            && other.attempt <= mine.attempt
            && let Some(left) = of_identity(folder.job_id(), &other)
        {
            self.end(&folder, &left, grace)?;
        }
        Ok(match job::fence(&folder, &mine)? {
            // Somebody takes it away just now, and with it what would say otherwise.
            Fenced::NeverStarted if !(folder.has_workspace() && folder.is_in_place()) => Fenced::Missing,
            verdict => verdict,
        })
    }

    pub(super) fn destroy(&self, attempt: &JobAttempt) -> io::Result<()> {
        // One that is made here must not look as if nothing had ever run in it.
        let folder = JobFolder::create_bare(&self.root, &attempt.job.to_string())?;
        let mine = identity(attempt);
        // Nobody may ask an earlier attempt in words that cannot be read.
        if let Ok(Some(other)) = job::holder(&folder)
            && other != mine
            && other.attempt <= mine.attempt
        {
            job::destroy(&folder, &other)?;
        }
        job::destroy(&folder, &mine)
    }
}

/// The attempt that must be over before another begins, and its grace: whose spec stands there or, where somebody took
/// that away, who holds the lock.
fn in_the_way(folder: &JobFolder) -> Result<Option<(Identity, Duration)>, Problem> {
    match Spec::read(folder) {
        Ok(spec) => Ok(Some((spec.identity(), Duration::from_millis(spec.stop_grace_ms)))),
        Err(Problem::Missing(_)) => Ok(job::holder(folder)?.map(|holder| (holder, UNKNOWN_GRACE))),
        Err(problem) => Err(problem),
    }
}

fn in_time(order: &Order) -> io::Result<()> {
    match job::boot_ms() < millis(order.start_before.0) {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::TimedOut, "it is too late to start it: its owner may have lost it")),
    }
}
