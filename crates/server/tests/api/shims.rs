use async_trait::async_trait;
use everbeat_engine::{
    Fenced, Finding, Following, JobAttempt, JobBeat, JobEvent, Lock, LogChunk, LogFrom, Order, Removed,
    SentinelReading, Shims, StartError, StopReason, Stream, Traces, WithoutFolder,
};
use everbeat_model::job::{Exit, Stopped};
use everbeat_model::{Json, RunId};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;

/// The commands of a host in memory. `true` ends at once, `false` too with code 7; the start of `slow` takes for ever;
/// others run until the test says otherwise.
pub(crate) struct FakeShims {
    folders: Mutex<BTreeMap<RunId, Folder>>,
    starts: Mutex<Vec<Json>>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
pub(crate) struct Folder {
    pub(crate) attempt: u32,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) exit: Option<Exit>,
    pub(crate) gone: bool,
    pub(crate) output: [Log; 2],
    pub(crate) sentinel: SentinelReading,
    pub(crate) session_data: bool,
    pub(crate) no_workspace: bool,
    pub(crate) unremovable: bool,
}

/// What is kept of a stream, and where that begins.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
}

impl FakeShims {
    pub(crate) fn new() -> Arc<FakeShims> {
        Arc::new(FakeShims { folders: Mutex::default(), starts: Mutex::default(), changes: watch::Sender::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RunId, Folder>> {
        self.folders.lock().expect("no test panicked with the lock")
    }

    /// Changes the folder of a job that has begun.
    pub(crate) fn change(&self, id: &str, change: impl FnOnce(&mut Folder)) {
        change(self.lock().get_mut(&id.parse().expect("an id")).expect("it has begun"));
        self.changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn write(&self, id: &str, stream: Stream, bytes: impl AsRef<[u8]>) {
        self.change(id, |folder| folder.output[stream as usize].bytes.extend_from_slice(bytes.as_ref()));
    }

    pub(crate) fn exit(&self, id: &str, code: i32) {
        self.change(id, |folder| folder.exit = Some(Exit { exit_code: Some(code), ..Exit::default() }));
    }

    /// Its shim is gone, and nobody knows how it ended.
    pub(crate) fn lose(&self, id: &str) {
        self.change(id, |folder| folder.gone = true);
    }

    pub(crate) fn age(&self, id: &str, age: Duration) {
        self.change(id, |folder| folder.sentinel.age = Some(age));
    }

    pub(crate) fn env_of(&self, id: &str) -> BTreeMap<String, String> {
        self.lock()[&id.parse().expect("an id")].env.clone()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.lock().contains_key(&id.parse().expect("an id"))
    }
}

fn path(job: RunId, rest: &str) -> String {
    format!("/data/jobs/{job}/{rest}")
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

#[async_trait]
impl Shims for FakeShims {
    async fn start(&self, attempt: &JobAttempt, order: &Order) -> Result<(), StartError> {
        if order.command.command[0] == "slow" {
            std::future::pending::<()>().await;
        }
        let mut folders = self.lock();
        let folder = folders.entry(attempt.job).or_default();
        let code = match order.command.command[0].as_str() {
            "true" => Some(0),
            "false" => Some(7),
            _ => None,
        };
        folder.attempt = attempt.attempt;
        folder.gone = false;
        folder.env = order.command.env.clone();
        folder.exit = code.map(|code| Exit { exit_code: Some(code), ..Exit::default() });
        folder.sentinel = SentinelReading {
            path: path(attempt.job, ".sentinel.json"),
            last_heartbeat: Some("2025-10-15T10:30:45.123Z".to_string()),
            age: Some(Duration::from_millis(15_900)),
            status: Some("running".to_string()),
            seq: Some(3),
            attempt: Some(attempt.attempt),
            lock: Lock::Held,
            ..SentinelReading::default()
        };
        Ok(())
    }

    async fn examine(&self, attempt: &JobAttempt) -> Finding {
        match self.lock().get(&attempt.job) {
            None => Finding::NotStarted,
            Some(Folder { gone: true, .. }) => Finding::Gone,
            Some(Folder { exit: Some(exit), .. }) => Finding::Exited(exit.clone()),
            Some(_) => Finding::Live(JobBeat { seq: 3, ..JobBeat::default() }),
        }
    }

    async fn follow(&self, attempt: &JobAttempt) -> io::Result<Box<dyn Following>> {
        let changes = self.changes.subscribe();
        let over = self.lock().get(&attempt.job).is_none_or(|folder| folder.gone || folder.exit.is_some());
        Ok(Box::new(Follow { over, changes }))
    }

    async fn changed(&self, _job: RunId) {
        std::future::pending().await
    }

    async fn stop(&self, attempt: &JobAttempt, _why: StopReason, _grace: Duration) -> io::Result<()> {
        let stopped = Exit { exit_signal: Some(15), stopped: Some(Stopped::Requested), ..Exit::default() };
        self.change(&attempt.job.to_string(), |folder| _ = folder.exit.get_or_insert(stopped));
        Ok(())
    }

    async fn vouch(&self, _attempt: &JobAttempt) -> io::Result<()> {
        Ok(())
    }

    async fn fence(&self, _attempt: &JobAttempt, _without: WithoutFolder) -> io::Result<Fenced> {
        Ok(Fenced::Lost)
    }

    async fn kill(&self, _attempt: &JobAttempt) -> io::Result<()> {
        Ok(())
    }

    async fn acknowledge(&self, _attempt: &JobAttempt) {}

    async fn held(&self) -> io::Result<Vec<JobAttempt>> {
        Ok(Vec::new())
    }

    async fn sentinels(&self, jobs: Vec<RunId>) -> Vec<SentinelReading> {
        let folders = self.lock();
        let reading = |job: RunId| match folders.get(&job) {
            Some(folder) => SentinelReading { exit_record: folder.exit.is_some(), ..folder.sentinel.clone() },
            None => {
                SentinelReading { problem: Some("is not there".to_string()), lock: Lock::Absent, ..Default::default() }
            }
        };
        jobs.into_iter().map(reading).collect()
    }

    async fn traces(&self, job: RunId) -> Traces {
        self.lock().get(&job).map_or_else(Traces::default, |folder| Traces {
            folder: true,
            sentinel: true,
            workspace: !folder.no_workspace,
            session_data: folder.session_data,
        })
    }

    async fn output(&self, job: RunId, stream: Stream, from: LogFrom, limit: usize) -> io::Result<LogChunk> {
        let folders = self.lock();
        let Log { base, bytes } = &folders.get(&job).ok_or_else(missing)?.output[stream as usize];
        let (base, end) = (*base, base + bytes.len() as u64);
        let offset = match from {
            LogFrom::Offset(offset) => offset.clamp(base, end),
            LogFrom::Attempt => base,
            LogFrom::Tail(lines) => base + tail(bytes, lines) as u64,
        };
        let from = usize::try_from(offset - base).expect("it is in memory");
        let to = from.saturating_add(limit).min(bytes.len());
        Ok(LogChunk { offset, bytes: bytes[from..to].to_vec(), end })
    }

    async fn folders(&self) -> io::Result<Vec<RunId>> {
        Ok(self.lock().keys().copied().collect())
    }

    async fn remove(&self, job: RunId, archive: bool, dry_run: bool) -> io::Result<Removed> {
        let mut folders = self.lock();
        let folder = folders.get(&job).ok_or_else(missing)?;
        if folder.unremovable {
            return Err(io::Error::other("its lock is held"));
        }
        let bytes = folder.output.iter().map(|log| log.bytes.len() as u64).sum();
        if !dry_run {
            folders.remove(&job);
        }
        Ok(Removed { entries: 4, bytes, archived_to: archive.then(|| format!("/data/archive/{job}")) })
    }

    async fn forget_archives(&self, _keep: Duration) -> io::Result<usize> {
        Ok(0)
    }

    fn root(&self) -> PathBuf {
        PathBuf::from("/data/jobs")
    }

    fn workspace(&self, job: RunId) -> String {
        path(job, "workspace")
    }

    async fn log_start(&self, entry: &Json) -> io::Result<()> {
        self.starts.lock().expect("unpoisoned").insert(0, entry.clone());
        Ok(())
    }

    async fn starts(&self) -> io::Result<Vec<Json>> {
        Ok(self.starts.lock().expect("unpoisoned").clone())
    }
}

/// Where the last lines begin.
fn tail(bytes: &[u8], lines: usize) -> usize {
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let Some(before) = lines.checked_sub(1) else { return bytes.len() };
    let newlines = (0..body.len()).rev().filter(|at| body[*at] == b'\n');
    newlines.map(|at| at + 1).nth(before).unwrap_or(0)
}

struct Follow {
    over: bool,
    changes: watch::Receiver<u64>,
}

#[async_trait]
impl Following for Follow {
    async fn next(&mut self) -> JobEvent {
        // Whatever changed: the watcher examines the job again.
        if !self.over && self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        JobEvent::Over
    }
}
