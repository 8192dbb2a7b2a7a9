//! The engine's port to the shims of one machine, for one boot of one replica. Its calls belong to that boot:
//! they freeze with it and die with it, but go on when whoever waited for them does not wait any more. They
//! may be slow, and fail before or after they did something.

use crate::env::booted;
use crate::executor::{Owner, WORLD};
use crate::job_checker;
use crate::machine::{Folder, Lack, Machine, Phase, Spec, Told, as_stray};
use crate::shared::Shared;
use crate::shim::{self, ShimLife, Short};
use async_trait::async_trait;
use everbeat_engine::{
    Fenced, Finding, Following, JobAttempt, JobEvent, Lock, LogChunk, LogFrom, Order, Removed, SentinelReading, Shims,
    StartError, StopReason, Stream, Traces, WithoutFolder,
};
use everbeat_model::job::Stopped;
use everbeat_model::{Hole, Json, RunId};
use futures_util::FutureExt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

#[derive(Clone)]
pub(crate) struct FaultyShims {
    pub(crate) shared: Arc<Shared>,
    pub(crate) machine: Arc<Machine>,
    pub(crate) owner: Owner,
}

const MS: u64 = 1000;
const ENOSPC: i32 = 28;
/// A shim answers within that, or it hangs.
const ANSWER_WITHIN: u64 = 60 * MS;
const LOOK: u64 = 10 * MS;

/// What will become of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Through,
    FailsBefore,
    FailsAfter,
}

impl FaultyShims {
    async fn call<T, F>(&self, name: &'static str, body: impl FnOnce(FaultyShims) -> F) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<T>> + Send + 'static,
    {
        let (fate, before, after) = self.fate();
        let (answer, answered) = oneshot::channel();
        let (shims, body) = (self.clone(), body(self.clone()));
        let call = async move {
            shims.shared.sleep(before).await;
            let outcome = match fate {
                Fate::FailsBefore => Err(shims.trouble("call to a shim fails before", name)),
                Fate::Through => body.await,
                Fate::FailsAfter => {
                    let _nobody_is_told = body.await;
                    Err(shims.trouble("call to a shim fails after", name))
                }
            };
            shims.shared.sleep(after).await;
            let _caller_is_gone = answer.send(outcome);
        };
        self.shared.executor.spawn(self.owner, "shim call", call.boxed());
        answered.await.unwrap_or_else(|_| Err(io::Error::other("nobody answers")))
    }

    fn fate(&self) -> (Fate, u64, u64) {
        let mut network = self.shared.network();
        let rate = network.rates.shims;
        let rng = &mut network.rng;
        let mut latency = || if rng.chance(rate) { rng.between(10, 250) * MS } else { rng.between(50, 500) };
        let (before, after) = (latency(), latency());
        let fate = match () {
            () if rng.chance(rate) => Fate::FailsBefore,
            () if rng.chance(rate) => Fate::FailsAfter,
            () => Fate::Through,
        };
        if fate != Fate::Through || before.max(after) > MS {
            network.shims_troubled_at = self.shared.now() + before + after;
        }
        (fate, before, after)
    }

    fn trouble(&self, fault: &'static str, name: &str) -> io::Error {
        self.shared.truth().report.fault(fault);
        self.shared.trace(|truth| format!("{}: {fault}: {name}", truth.label(self.owner)));
        io::Error::other(format!("{name} failed in the simulation"))
    }

    fn now(&self) -> u64 {
        self.shared.now()
    }

    fn folder<T>(&self, job: RunId, look: impl FnOnce(&mut Folder) -> T) -> Option<T> {
        self.machine.disk().folders.get_mut(&job).map(look)
    }

    fn told(&self, attempt: &JobAttempt, what: &str) {
        self.shared.trace(|truth| {
            let (label, attempt) = (truth.label(self.owner), truth.attempt(attempt));
            format!("{label} {what} {attempt}")
        });
    }

    fn keeps_past(&self) -> bool {
        !self.shared.hole.is(Hole::PastForgotten)
    }

    async fn begin(self, attempt: JobAttempt, order: Order) -> Result<(), StartError> {
        if self.machine.disk().lacks(self.now()) == Some(Lack::Shim) {
            return Err(StartError::Never(io::Error::from_raw_os_error(ENOSPC)));
        }
        match self.spawn(attempt, order).await.map_err(StartError::Unclear)? {
            Some(Short) => Err(StartError::Never(io::Error::from_raw_os_error(ENOSPC))),
            None => Ok(()),
        }
    }

    async fn spawn(&self, attempt: JobAttempt, order: Order) -> io::Result<Option<Short>> {
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

    async fn look(&self, attempt: &JobAttempt) -> Finding {
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

    async fn ask_to_stop(self, attempt: JobAttempt, grace: u64) -> io::Result<()> {
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

    async fn forbid_at_last(self, attempt: JobAttempt, without: WithoutFolder) -> io::Result<Fenced> {
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

    fn forbid(&self, attempt: &JobAttempt) -> Fenced {
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

    fn kill_now(&self, attempt: &JobAttempt) {
        let heard = self.folder(attempt.job, |folder| folder.shim_of(attempt.token).map(|shim| shim.tenure));
        let Some(Some(tenure)) = heard else { return };
        self.told(attempt, "kills the shim of");
        job_checker::killed(&self.shared, attempt, tenure);
        shim::kill(&self.shared, &self.machine, attempt.job, attempt.token);
    }

    fn take_leave(&self, attempt: &JobAttempt) {
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

#[async_trait]
impl Shims for FaultyShims {
    async fn prepare(&self, job: RunId) -> io::Result<()> {
        let prepare = |shims: FaultyShims| async move {
            shims.machine.disk().folders.entry(job).or_default().workspace = true;
            Ok(())
        };
        self.call("prepare", prepare).await
    }

    async fn start(&self, attempt: &JobAttempt, order: &Order) -> Result<(), StartError> {
        let (token, attempt, order) = (attempt.token, attempt.clone(), order.clone());
        let begin = |shims: FaultyShims| async move { Ok(shims.begin(attempt, order).await) };
        let started = self.call("start", begin).await.unwrap_or_else(|error| Err(StartError::Unclear(error)));
        if let Err(StartError::Never(_)) = &started {
            self.shared.truth().short.insert(token);
        }
        started
    }

    async fn probe(&self) -> io::Result<()> {
        let probe = |shims: FaultyShims| async move {
            match shims.machine.disk().lacks(shims.now()) {
                Some(_) => Err(io::Error::from_raw_os_error(ENOSPC)),
                None => Ok(()),
            }
        };
        self.call("probe", probe).await
    }

    async fn examine(&self, attempt: &JobAttempt) -> Finding {
        let attempt = attempt.clone();
        let look = |shims: FaultyShims| async move { Ok(shims.look(&attempt).await) };
        self.call("examine", look).await.unwrap_or_else(|error| Finding::Unknown(error.to_string()))
    }

    async fn follow(&self, attempt: &JobAttempt) -> io::Result<Box<dyn Following>> {
        let attempt = attempt.clone();
        let follow = |shims: FaultyShims| async move {
            let now = shims.now();
            let subscribed = shims.folder(attempt.job, |folder| {
                let shim = folder.shim_of(attempt.token).filter(|shim| !shim.hangs(now));
                let shim = shim.filter(|shim| shim.phase != Phase::Locked);
                shim.and_then(|shim| shim.hears(attempt.tenure).then(|| shim.told.subscribe()))
            });
            let told = subscribed.flatten().ok_or_else(|| io::Error::other("it cannot be followed"))?;
            Ok(Box::new(Followed { told, tenure: attempt.tenure }) as Box<dyn Following>)
        };
        self.call("follow", follow).await
    }

    async fn changed(&self, job: RunId) {
        let hint = self.folder(job, |folder| folder.hint.clone());
        match hint {
            Some(hint) => hint.notified().await,
            None => std::future::pending().await,
        }
    }

    async fn stop(&self, attempt: &JobAttempt, _why: StopReason, grace: Duration) -> io::Result<()> {
        let attempt = attempt.clone();
        self.told(&attempt, "asks for the end of");
        self.call("stop", |shims| shims.ask_to_stop(attempt, grace.as_micros() as u64)).await
    }

    async fn vouch(&self, attempt: &JobAttempt) -> io::Result<()> {
        let attempt = attempt.clone();
        let vouch = |shims: FaultyShims| async move {
            match shims.look(&attempt).await {
                Finding::Live(_) => {
                    let now = shims.now();
                    shims.folder(attempt.job, |folder| folder.shim_of(attempt.token).map(|shim| shim.vouched(now)));
                    Ok(())
                }
                other => Err(io::Error::other(format!("it is {other:?}"))),
            }
        };
        self.call("vouch", vouch).await
    }

    async fn fence(&self, attempt: &JobAttempt, without: WithoutFolder) -> io::Result<Fenced> {
        let attempt = attempt.clone();
        self.call("fence", move |shims| shims.forbid_at_last(attempt, without)).await
    }

    async fn kill(&self, attempt: &JobAttempt) -> io::Result<()> {
        let attempt = attempt.clone();
        let kill = |shims: FaultyShims| async move {
            shims.kill_now(&attempt);
            Ok(())
        };
        self.call("kill", kill).await
    }

    async fn destroy(&self, attempt: &JobAttempt) -> io::Result<()> {
        let attempt = attempt.clone();
        let destroy = |shims: FaultyShims| async move {
            shims.kill_now(&attempt);
            let mut disk = shims.machine.disk();
            let folder = disk.folders.entry(attempt.job).or_default();
            if folder.shim.is_some() {
                return Err(io::Error::other("another attempt's shim holds the lock"));
            }
            folder.forbid(&attempt, true, shims.keeps_past());
            drop(disk);
            shims.told(&attempt, "destroys");
            Ok(())
        };
        self.call("destroy", destroy).await
    }

    async fn acknowledge(&self, attempt: &JobAttempt) {
        let attempt = attempt.clone();
        let acknowledge = |shims: FaultyShims| async move {
            shims.take_leave(&attempt);
            Ok(())
        };
        let _it_leaves_after_a_while = self.call("acknowledge", acknowledge).await;
    }

    async fn held(&self) -> io::Result<Vec<JobAttempt>> {
        let held = |shims: FaultyShims| async move {
            let disk = shims.machine.disk();
            let shims = disk.folders.values().filter_map(|folder| folder.shim.as_ref());
            Ok(shims.map(|shim| as_stray(&shim.attempt)).collect())
        };
        self.call("held", held).await
    }

    async fn sentinels(&self, jobs: Vec<RunId>) -> Vec<SentinelReading> {
        let now = self.now();
        let disk = self.machine.disk();
        let read = |job: &RunId| {
            let folder = disk.folders.get(job);
            let sentinel = folder.and_then(|folder| folder.sentinel);
            let lock = match folder {
                None => Lock::Absent,
                Some(folder) if folder.shim.is_some() => Lock::Held,
                Some(_) => Lock::Free,
            };
            SentinelReading {
                path: format!("/jobs/{job}/.sentinel.json"),
                age: sentinel.filter(|seen| seen.boot == disk.boot).map(|seen| Duration::from_micros(now - seen.at)),
                seq: sentinel.map(|seen| seen.seq),
                attempt: sentinel.map(|seen| seen.attempt),
                problem: sentinel.is_none().then(|| "there is none".to_string()),
                lock,
                exit_record: folder.is_some_and(|folder| folder.exit.is_some()),
                ..SentinelReading::default()
            }
        };
        jobs.iter().map(read).collect()
    }

    async fn traces(&self, job: RunId) -> Traces {
        let folder = self.machine.disk().folders.contains_key(&job);
        Traces { folder, sentinel: folder, workspace: folder, session_data: false }
    }

    async fn output(&self, _: RunId, _: Stream, _: LogFrom, _: usize) -> io::Result<LogChunk> {
        Ok(LogChunk::default())
    }

    async fn folders(&self) -> io::Result<Vec<RunId>> {
        Ok(self.machine.disk().folders.keys().copied().collect())
    }

    async fn remove(&self, job: RunId, _archive: bool, dry_run: bool) -> io::Result<Removed> {
        let mut disk = self.machine.disk();
        match disk.folders.get(&job) {
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
            Some(folder) if folder.shim.is_some() => Err(io::Error::other("its shim holds the lock")),
            Some(_) if dry_run => Ok(Removed::default()),
            Some(_) => {
                disk.folders.remove(&job);
                self.shared.truth().folders_gone.insert(job);
                Ok(Removed::default())
            }
        }
    }

    async fn forget_archives(&self, _keep: Duration) -> io::Result<usize> {
        Ok(0)
    }

    fn root(&self) -> PathBuf {
        PathBuf::from("/data/jobs")
    }

    fn workspace(&self, job: RunId) -> String {
        format!("/jobs/{job}/workspace")
    }

    async fn log_start(&self, entry: &Json) -> io::Result<()> {
        self.machine.disk().starts.push(entry.clone());
        Ok(())
    }

    async fn starts(&self) -> io::Result<Vec<Json>> {
        Ok(self.machine.disk().starts.iter().rev().cloned().collect())
    }
}

/// Hears a shim for as long as no later owner has spoken to it. One that hangs says nothing.
struct Followed {
    told: watch::Receiver<Told>,
    tenure: u32,
}

#[async_trait]
impl Following for Followed {
    async fn next(&mut self) -> JobEvent {
        let over = |told: &Told| told.over || told.tenure > self.tenure;
        if over(&self.told.borrow()) || self.told.changed().await.is_err() {
            return JobEvent::Over;
        }
        let told = self.told.borrow_and_update().clone();
        if told.over || told.tenure > self.tenure {
            return JobEvent::Over;
        }
        JobEvent::Beat(told.beat)
    }
}
