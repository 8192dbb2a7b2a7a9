//! Starting attempts, examining them, and ending them.

use super::{ENOSPC, FaultyShims, MS};
use crate::env::booted;
use crate::executor::WORLD;
use crate::job_checker;
use crate::machine::{Folder, Lack, Phase, Spec, as_stray};
use crate::shim::{self, ShimLife, Short};
use everbeat_engine::{Fenced, Finding, JobAttempt, Order, StartError, WithoutFolder};
use everbeat_model::job::Stopped;
use futures_util::FutureExt;
use std::io;
use tokio::sync::oneshot;

/// A shim answers within that, or it hangs.
const ANSWER_WITHIN: u64 = 60 * MS;
const LOOK: u64 = 10 * MS;

impl FaultyShims {
    pub(super) async fn begin(self, attempt: JobAttempt, order: Order) -> Result<(), StartError> {
        if self.machine.disk().lacks(self.now()) == Some(Lack::Shim) {
            return Err(StartError::Never(io::Error::from_raw_os_error(ENOSPC)));
        }
        match self.spawn(attempt, order).await.map_err(StartError::Unclear)? {
            Some(Short) => Err(StartError::Never(io::Error::from_raw_os_error(ENOSPC))),
            None => Ok(()),
        }
    }

    pub(super) async fn spawn(&self, attempt: JobAttempt, order: Order) -> io::Result<Option<Short>> {
        let before = order.start_before.0.as_micros() as u64;
        let start_before = before.saturating_sub(booted(self.machine.place, self.machine.disk().boot));
        let in_time = || match self.now() < start_before {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::TimedOut, "it is too late to start it")),
        };
        in_time()?;
        let earlier = {
            let mut disk = self.machine.disk();
            let spec = disk.folders.entry(attempt.job).or_default().spec.as_ref();
            spec.map(|spec| (spec.attempt.clone(), spec.order.stop_grace))
        };
        if let Some((earlier, grace)) = earlier {
            if earlier.token == attempt.token || earlier.attempt > attempt.attempt {
                return Err(io::Error::other("its place is taken by the same or a later attempt"));
            }
            self.end(&earlier, grace.as_micros() as u64).await?;
        }
        in_time()?;
        let (begun, told) = oneshot::channel();
        {
            let mut disk = self.machine.disk();
            let spec = Spec { attempt: attempt.clone(), order, boot: disk.boot, start_before };
            let folder = disk.folders.entry(attempt.job).or_default();
            folder.workspace = true;
            if folder.shim.is_some() {
                return Err(io::Error::other("an earlier attempt still holds the lock"));
            }
            if folder.past.contains_key(&attempt.token) {
                return Err(io::Error::other("it is over already"));
            }
            if self.keeps_past() {
                folder.keep_past(attempt.token);
            }
            folder.spec = Some(spec.clone());
            let (shared, machine) = (self.shared.clone(), self.machine.clone());
            let life = ShimLife { shared, machine, spec, begun: Some(begun) };
            self.shared.executor.spawn(WORLD, "shim", life.live().boxed());
        }
        self.told(&attempt, "spawns the shim of");
        // Who is not told has a shim that died before it began.
        Ok(told.await.ok().and_then(Result::err))
    }

    /// Ends an attempt that no lease stands for, and waits until its shim has let go.
    async fn end(&self, left: &JobAttempt, grace: u64) -> io::Result<()> {
        let left = as_stray(left);
        let until = self.now() + grace + 10 * LOOK;
        while self.now() < until {
            match self.look(&left).await {
                Finding::Live(_) => _ = self.clone().ask_to_stop(left.clone(), grace).await,
                Finding::Exited(_) => {
                    self.take_leave(&left);
                    break;
                }
                _ => break,
            }
            self.shared.sleep(LOOK).await;
        }
        self.kill_now(&left);
        match self.forbid(&left) {
            Fenced::StillHeld => Err(io::Error::other("an earlier attempt still holds the lock")),
            _ => Ok(()),
        }
    }

    pub(super) async fn look(&self, attempt: &JobAttempt) -> Finding {
        let until = self.now() + ANSWER_WITHIN;
        loop {
            if let Some(finding) = self.glance(attempt) {
                return finding;
            }
            if self.now() >= until {
                return Finding::Hung;
            }
            self.shared.sleep(LOOK).await;
        }
    }

    /// What there is to be seen at once; nothing while a shim holds the lock and does not answer.
    fn glance(&self, attempt: &JobAttempt) -> Option<Finding> {
        let now = self.now();
        let mut disk = self.machine.disk();
        let boot = disk.boot;
        let Some(folder) = disk.folders.get_mut(&attempt.job) else { return Some(Finding::Missing) };
        if let Some(exit) = folder.exit_of(attempt.token) {
            return Some(Finding::Exited(exit.clone()));
        }
        let was_locked = folder.began(attempt.token) || folder.locked == Some(attempt.token);
        let ran_before = folder.ran_before(attempt.token);
        let spec = folder.spec.as_ref().map(|spec| (spec.boot, spec.attempt.attempt, spec.attempt.token));
        let Some((spec_boot, ..)) = spec.filter(|(_, _, token)| *token == attempt.token) else {
            return Some(match spec {
                _ if was_locked => Finding::Gone,
                Some((_, later, _)) if later > attempt.attempt => Finding::Fenced,
                _ if ran_before => Finding::Gone,
                _ if !folder.workspace => Finding::Missing,
                _ => Finding::NotStarted,
            });
        };
        match &mut folder.shim {
            Some(shim) if shim.attempt.token != attempt.token => {
                Some(Finding::Unknown("another attempt's shim holds the lock".to_string()))
            }
            Some(shim) if shim.hangs(now) || shim.phase == Phase::Locked => None,
            Some(shim) => Some(match shim.hears(attempt.tenure) {
                true => Finding::Live(shim.beat()),
                false => Finding::Fenced,
            }),
            None if spec_boot != boot => Some(Finding::Rebooted),
            None if was_locked || ran_before => Some(Finding::Gone),
            None => Some(Finding::NotStarted),
        }
    }

    pub(super) async fn ask_to_stop(self, attempt: JobAttempt, grace: u64) -> io::Result<()> {
        let until = self.now() + ANSWER_WITHIN;
        loop {
            let now = self.now();
            let asked = self.folder(attempt.job, |folder| match folder.shim_of(attempt.token) {
                None => Some(leave_wish(folder, &attempt, grace)),
                Some(shim) if shim.hangs(now) || shim.phase == Phase::Locked => {
                    (now >= until).then(|| leave_wish(folder, &attempt, grace))
                }
                Some(shim) => Some(match shim.hears(attempt.tenure) {
                    true => {
                        shim.stop(Stopped::Requested, grace, now);
                        Ok(())
                    }
                    false => Err(io::Error::other("a later owner has it")),
                }),
            });
            match asked {
                None => return Err(io::Error::from(io::ErrorKind::NotFound)),
                Some(Some(asked)) => {
                    job_checker::stopped(&self.shared, &attempt);
                    return asked;
                }
                Some(None) => self.shared.sleep(LOOK).await,
            }
        }
    }

    pub(super) async fn forbid_at_last(self, attempt: JobAttempt, without: WithoutFolder) -> io::Result<Fenced> {
        let other = {
            let mut disk = self.machine.disk();
            if without == WithoutFolder::LeaveIt && !disk.folders.contains_key(&attempt.job) {
                return Ok(Fenced::Missing);
            }
            let fresh = || Folder { workspace: true, ..Folder::default() };
            let spec = disk.folders.entry(attempt.job).or_insert_with(fresh).spec.as_ref();
            let other = spec.filter(|spec| spec.attempt.token != attempt.token);
            other.map(|spec| (spec.attempt.clone(), spec.order.stop_grace.as_micros() as u64))
        };
        // Its place was taken when it was over: what is there now is not its to end.
        let replaced = other.is_some()
            && self.folder(attempt.job, |folder| folder.past.contains_key(&attempt.token)) == Some(true);
        let other = other.filter(|_| !replaced);
        if let Some((earlier, grace)) = other.as_ref().filter(|(other, _)| other.attempt <= attempt.attempt) {
            self.end(earlier, *grace).await?;
        }
        let fenced = if replaced { self.was(&attempt) } else { self.forbid(&attempt) };
        self.told(&attempt, &format!("fences ({fenced:?})"));
        Ok(fenced)
    }

    /// What is known of an attempt whose place another has taken.
    fn was(&self, attempt: &JobAttempt) -> Fenced {
        let known = self.folder(attempt.job, |folder| {
            folder.exit_of(attempt.token).cloned().map(Fenced::Exited).ok_or_else(|| folder.ran_before(attempt.token))
        });
        match known {
            Some(Ok(exited)) => exited,
            Some(Err(true)) => Fenced::Lost,
            Some(Err(false)) | None => Fenced::NeverStarted,
        }
    }

    pub(super) fn forbid(&self, attempt: &JobAttempt) -> Fenced {
        let mut disk = self.machine.disk();
        let folder = disk.folders.entry(attempt.job).or_default();
        if let Some(exit) = folder.exit_of(attempt.token) {
            return Fenced::Exited(exit.clone());
        }
        if folder.shim.is_some() {
            return Fenced::StillHeld;
        }
        let ran = folder.began(attempt.token) || folder.ran_before(attempt.token);
        folder.forbid(attempt, ran, self.keeps_past());
        match (ran, folder.workspace) {
            (true, _) => Fenced::Lost,
            (false, true) => Fenced::NeverStarted,
            (false, false) => Fenced::Missing,
        }
    }

    pub(super) fn kill_now(&self, attempt: &JobAttempt) {
        let heard = self.folder(attempt.job, |folder| folder.shim_of(attempt.token).map(|shim| shim.tenure));
        let Some(Some(tenure)) = heard else { return };
        self.told(attempt, "kills the shim of");
        job_checker::killed(&self.shared, attempt, tenure);
        shim::kill(&self.shared, &self.machine, attempt.job, attempt.token);
    }

    pub(super) fn take_leave(&self, attempt: &JobAttempt) {
        let now = self.now();
        self.folder(attempt.job, |folder| {
            let exited = |phase: Phase| matches!(phase, Phase::Exited { .. });
            let hears = folder
                .shim_of(attempt.token)
                .is_some_and(|shim| exited(shim.phase) && !shim.hangs(now) && shim.hears(attempt.tenure));
            if hears {
                folder.let_go();
            }
        });
    }
}

/// For a shim that cannot be reached: it looks there. That of a later owner stays.
fn leave_wish(folder: &mut Folder, attempt: &JobAttempt, grace: u64) -> io::Result<()> {
    match folder.wish {
        Some((of, tenure, _)) if of == attempt.token && tenure > attempt.tenure => {
            Err(io::Error::other("the wish of a later owner stands"))
        }
        _ => {
            folder.wish = Some((attempt.token, attempt.tenure, grace));
            Ok(())
        }
    }
}
