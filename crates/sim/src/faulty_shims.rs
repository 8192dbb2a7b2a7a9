//! The engine's port to the shims of one machine, for one boot of one replica. Its calls belong to that boot:
//! they freeze with it and die with it, but go on when whoever waited for them does not wait any more. They
//! may be slow, and fail before or after they did something.

mod attempts;

use crate::executor::Owner;
use crate::machine::{Folder, Machine, Phase, Told, as_stray};
use crate::shared::Shared;
use async_trait::async_trait;
use everbeat_engine::{
    Fenced, Finding, Following, JobAttempt, JobEvent, Lock, LogChunk, LogFrom, Order, Removed, SentinelReading, Shims,
    StartError, StopReason, Stream, Traces, WithoutFolder,
};
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
