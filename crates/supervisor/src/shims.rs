//! The engine's port to the shims of this host. What waits for a disk or a shim waits on threads of its own.

use crate::job::client::Error as ClientError;
use crate::job::protocol::Refusal;
use crate::job::shim::server_kill_point as kill_point;
use crate::job::{self, Client, FoundState, Identity, JobFolder, Problem, Spec};
use crate::place::Place;
use async_trait::async_trait;
use everbeat_engine::{
    Fenced, Finding, Following, JobAttempt, LAST_WORD, Lock, LogChunk, LogFrom, Order, Removed, SentinelReading, Shims,
    StartError, StopReason, Stream, Traces, WithoutFolder,
};
use everbeat_model::{Json, RunId, Shortage, Token};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use uuid::Uuid;

mod archive;
mod attempts;
mod follow;
mod starts;
mod threads;

use follow::{Followed, watched};
use threads::Places;

/// The shims below one data folder: `jobs/` with a folder each, `archive/` with workspaces of jobs that were
/// cleaned, and the log of starts.
#[derive(Clone)]
pub struct HostShims {
    host: Arc<Host>,
    runtime: Handle,
    places: Arc<Places>,
}

struct Host {
    data_dir: PathBuf,
    root: PathBuf,
    /// The program that becomes a shim, and what it is told for that.
    exe: PathBuf,
    args: Vec<OsString>,
    /// What every job gets of this process's environment.
    env: BTreeMap<String, String>,
}

/// A shim answers at once, or it hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Of the server's environment a job gets what says where and who it is; secrets it must be given.
const INHERITED: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR"];
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl HostShims {
    /// Must be called inside a Tokio runtime. `exe args… FOLDER` must become a shim: see [`job::shim::main`].
    pub fn open(place: &Place, exe: PathBuf, args: Vec<OsString>) -> io::Result<HostShims> {
        let data_dir = place.folder().to_path_buf();
        let root = data_dir.join("jobs");
        make_folder(&root)?;
        std::fs::File::open(&data_dir)?.sync_all()?;
        let own =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let mut env: BTreeMap<String, String> =
            own.filter(|(name, _)| INHERITED.contains(&name.as_str()) || name.starts_with("LC_")).collect();
        env.entry("PATH".to_string()).or_insert_with(|| DEFAULT_PATH.to_string());
        let host = Arc::new(Host { data_dir, root, exe, args, env });
        Ok(HostShims { host, runtime: Handle::current(), places: Arc::new(Places::new()) })
    }
}

#[async_trait]
impl Shims for HostShims {
    async fn prepare(&self, job: RunId) -> io::Result<()> {
        self.deed(move |host| JobFolder::create(&host.root, &job.to_string()).map(|_| ())).await?
    }

    async fn start(&self, attempt: &JobAttempt, order: &Order) -> Result<(), StartError> {
        let (attempt, order) = (attempt.clone(), order.clone());
        match self.deed(move |host| host.start(&attempt, &order)).await {
            Ok(started) => started,
            // There was no thread for it.
            Err(error) if Shortage::of(&error).is_some() => Err(StartError::Never(error)),
            Err(error) => Err(StartError::Unclear(error)),
        }
    }

    async fn probe(&self) -> io::Result<()> {
        self.deed(Host::probe).await?
    }

    async fn examine(&self, attempt: &JobAttempt) -> Finding {
        let attempt = attempt.clone();
        let found = self.look(move |host| host.examine(&attempt)).await;
        if matches!(found, Ok(Finding::Exited(_))) {
            kill_point("exit-seen");
        }
        found.unwrap_or_else(|error| Finding::Unknown(error.to_string()))
    }

    async fn follow(&self, attempt: &JobAttempt) -> io::Result<Box<dyn Following>> {
        let attempt = attempt.clone();
        let subscribe = move |host: &Host| host.client(&attempt)?.subscribe();
        let subscription = self.look(subscribe).await?.map_err(io::Error::other)?;
        let _inside = self.runtime.enter();
        Ok(Box::new(Followed::new(subscription)?))
    }

    async fn changed(&self, job: RunId) {
        let watch = self.look(move |host| host.open(job).and_then(|folder| folder.watch())).await;
        let watch = watch.and_then(|watch| {
            let _inside = self.runtime.enter();
            watched(watch?)
        });
        match watch {
            Ok(watch) => _ = watch.readable().await,
            Err(_) => std::future::pending().await,
        }
    }

    async fn stop(&self, attempt: &JobAttempt, why: StopReason, grace: Duration) -> io::Result<()> {
        let attempt = attempt.clone();
        self.word(move |host| host.stop(&attempt, why, grace)).await?
    }

    async fn vouch(&self, attempt: &JobAttempt) -> io::Result<()> {
        let attempt = attempt.clone();
        let vouch = move |host: &Host| {
            let mut client = host.client(&attempt)?;
            match client.vouch() {
                // A shim from before there was such a word: it takes any for it.
                Err(ClientError::Refused(Refusal::Malformed, _)) => client.hello(),
                vouched => vouched,
            }
            .map(|_| ())
        };
        self.word(vouch).await?.map_err(io::Error::other)
    }

    async fn fence(&self, attempt: &JobAttempt, without: WithoutFolder) -> io::Result<Fenced> {
        let attempt = attempt.clone();
        self.deed(move |host| host.fence(&attempt, without)).await?
    }

    async fn kill(&self, attempt: &JobAttempt) -> io::Result<()> {
        let attempt = attempt.clone();
        self.deed(move |host| job::kill(&host.open(attempt.job)?, &identity(&attempt))).await?
    }

    async fn destroy(&self, attempt: &JobAttempt) -> io::Result<()> {
        let attempt = attempt.clone();
        self.deed(move |host| host.destroy(&attempt)).await?
    }

    async fn acknowledge(&self, attempt: &JobAttempt) {
        kill_point("settled");
        let attempt = attempt.clone();
        let told = self.word(move |host| host.client(&attempt)?.ack()).await;
        if let Ok(Err(error)) = told {
            // It has left already, or will after a while.
            tracing::debug!(%error, "a shim was not told that its end is stored");
        }
    }

    async fn held(&self) -> io::Result<Vec<JobAttempt>> {
        self.look(Host::held).await?
    }

    async fn sentinels(&self, jobs: Vec<RunId>) -> Vec<SentinelReading> {
        let count = jobs.len();
        let read = self.look(move |host| jobs.iter().map(|job| host.sentinel(*job)).collect::<Vec<_>>()).await;
        read.unwrap_or_else(|error| {
            let unread =
                || SentinelReading { problem: Some(error.to_string()), lock: Lock::Unknown, ..Default::default() };
            std::iter::repeat_with(unread).take(count).collect()
        })
    }

    async fn traces(&self, job: RunId) -> Traces {
        let look = move |host: &Host| {
            let health = job::health(&host.root, &job.to_string());
            Traces {
                folder: host.open(job).is_ok(),
                sentinel: health.sentinel_exists,
                workspace: health.workspace_exists,
                session_data: health.session_data_exists,
            }
        };
        self.look(look).await.unwrap_or_default()
    }

    async fn output(&self, job: RunId, stream: Stream, from: LogFrom, limit: usize) -> io::Result<LogChunk> {
        self.look(move |host| host.output(job, stream, from, limit)).await?
    }

    async fn folders(&self) -> io::Result<Vec<RunId>> {
        let found = self.look(|host| job::scan(&host.root)).await??;
        Ok(found.into_iter().filter_map(|found| found.job_id.parse().ok()).collect())
    }

    async fn remove(&self, job: RunId, archive: bool, dry_run: bool) -> io::Result<Removed> {
        self.deed(move |host| host.remove(job, archive, dry_run)).await?
    }

    async fn forget_archives(&self, keep: Duration) -> io::Result<usize> {
        self.deed(move |host| host.forget_archives(keep)).await?
    }

    fn root(&self) -> PathBuf {
        self.host.root.clone()
    }

    fn workspace(&self, job: RunId) -> String {
        self.host.root.join(job.to_string()).join("workspace").display().to_string()
    }

    async fn log_start(&self, entry: &Json) -> io::Result<()> {
        let entry = entry.clone();
        self.look(move |host| host.log_start(&entry)).await?
    }

    async fn starts(&self) -> io::Result<Vec<Json>> {
        self.look(Host::starts).await?
    }
}

impl Host {
    fn open(&self, job: RunId) -> io::Result<JobFolder> {
        JobFolder::open(&self.root, &job.to_string())
    }

    fn client(&self, attempt: &JobAttempt) -> Result<Client, ClientError> {
        Client::connect(&self.open(attempt.job)?, &identity(attempt), attempt.tenure, ANSWER_WITHIN)
    }

    fn held(&self) -> io::Result<Vec<JobAttempt>> {
        let held = job::scan(&self.root)?.into_iter().filter_map(|found| {
            let FoundState::Held(spec) = found.state else { return None };
            // Whoever holds the lock has signed it; the spec may be gone, or another's.
            let holder =
                JobFolder::open(&self.root, &found.job_id).ok().and_then(|folder| job::holder(&folder).ok()?);
            let identity = match (holder, spec) {
                (Some(holder), _) => holder,
                (None, Ok(identity)) => identity,
                (None, Err(problem)) => {
                    tracing::warn!(job = found.job_id, %problem, "a live job's folder cannot be read");
                    return None;
                }
            };
            of_identity(&found.job_id, &identity)
        });
        Ok(held.collect())
    }

    fn examine(&self, attempt: &JobAttempt) -> Finding {
        let folder = match self.open(attempt.job) {
            Ok(folder) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Finding::Missing,
            Err(error) => return Finding::Unknown(error.to_string()),
        };
        match job::examine_without_spec(&folder, &identity(attempt), attempt.tenure) {
            // A folder in which a job may begin has a workspace: this one is the rest of one that was taken away.
            Finding::NotStarted if !folder.has_workspace() => Finding::Missing,
            found => found,
        }
    }

    fn sentinel(&self, job: RunId) -> SentinelReading {
        let id = job.to_string();
        let path = self.root.join(&id).join(".sentinel.json").display().to_string();
        let folder = match self.open(job) {
            Ok(folder) => folder,
            Err(error) => {
                let lock = if error.kind() == io::ErrorKind::NotFound { Lock::Absent } else { Lock::Unknown };
                return SentinelReading { path, lock, problem: Some(error.to_string()), ..SentinelReading::default() };
            }
        };
        let (lock, exit_record) = job::lock_and_exit(&folder);
        let mut reading = SentinelReading { path, lock, exit_record, ..SentinelReading::default() };
        match job::sentinel::read(&folder) {
            Ok(sentinel) => {
                reading.age = sentinel.age();
                reading.last_heartbeat = Some(sentinel.last_heartbeat);
                reading.status =
                    serde_json::to_value(sentinel.status).ok().and_then(|word| Some(word.as_str()?.to_string()));
                reading.seq = Some(sentinel.seq);
                reading.attempt = u32::try_from(sentinel.epoch).ok();
                reading.write_error = sentinel.last_write_error;
            }
            Err(problem) => reading.problem = Some(problem.to_string()),
        }
        reading
    }

    fn output(&self, job: RunId, stream: Stream, from: LogFrom, limit: usize) -> io::Result<LogChunk> {
        let folder = self.open(job)?;
        let chunk = match from {
            LogFrom::Offset(offset) => job::logs::read_from(&folder, stream, offset, limit),
            LogFrom::Tail(lines) => job::logs::tail(&folder, stream, lines),
            LogFrom::Attempt => Spec::read(&folder).and_then(|spec| {
                let chunk = job::logs::read_from(&folder, stream, spec.stdout_from, limit)?;
                let lost = chunk.offset.saturating_sub(spec.stdout_from.min(chunk.end));
                match lost {
                    0 => Ok(chunk),
                    _ => {
                        Err(Problem::TooLarge("stdout.log".into(), chunk.end - spec.stdout_from, spec.log_limit_bytes))
                    }
                }
            }),
        };
        chunk.map_err(unclear)
    }
}

fn identity(attempt: &JobAttempt) -> Identity {
    Identity { attempt: u64::from(attempt.attempt), token: attempt.token.0.simple().to_string() }
}

fn of_identity(job_id: &str, identity: &Identity) -> Option<JobAttempt> {
    Some(JobAttempt {
        job: job_id.parse().ok()?,
        attempt: u32::try_from(identity.attempt).ok()?,
        token: Token(Uuid::try_parse(&identity.token).ok()?),
        tenure: LAST_WORD,
    })
}

fn unclear(problem: Problem) -> io::Error {
    let kind = match problem {
        Problem::Missing(_) => io::ErrorKind::NotFound,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, problem)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn make_folder(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
