//! The port to the shims of a host: what the engine asks of them, and what they answer.

use async_trait::async_trait;
use everbeat_model::job::{Command, Exit};
use everbeat_model::{BootInstant, Json, RunId, Token};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The detached commands of this host. Each is owned by a shim, a process that outlives this one; what is
/// known of it comes from kernel locks, its socket and the records in its folder, never from a process's
/// number.
#[async_trait]
pub trait Shims: Send + Sync + 'static {
    /// Makes the job's folder, durably. Before the run is placed here: where a run was placed and there is no folder,
    /// somebody has taken it away.
    async fn prepare(&self, _job: RunId) -> io::Result<()> {
        Ok(())
    }

    /// Ends what earlier attempts left, writes durably what this one is to do, and starts its shim. When it
    /// answers, the command has begun and ended or goes on, or its shim is dead: `examine` tells which.
    async fn start(&self, attempt: &JobAttempt, order: &Order) -> Result<(), StartError>;

    /// Whether a shim could be started now: looks for room on the disk, a process, descriptors.
    async fn probe(&self) -> io::Result<()> {
        Ok(())
    }

    /// What has become of an attempt.
    async fn examine(&self, attempt: &JobAttempt) -> Finding;

    /// Follows a live attempt.
    async fn follow(&self, attempt: &JobAttempt) -> io::Result<Box<dyn Following>>;

    /// Resolves when something changed in a job's folder. A hint: it may come too often, or never.
    async fn changed(&self, job: RunId);

    /// Asks for the end: a signal, and after the grace another that nobody survives. If the shim cannot be
    /// reached, the wish is left where it will look.
    async fn stop(&self, attempt: &JobAttempt, why: StopReason, grace: Duration) -> io::Result<()>;

    /// Says that a replica the store acknowledges owns the attempt.
    async fn vouch(&self, attempt: &JobAttempt) -> io::Result<()>;

    /// Forbids the attempt for good, kills what is left of it, and says what it had come to.
    async fn fence(&self, attempt: &JobAttempt, without: WithoutFolder) -> io::Result<Fenced>;

    /// Kills a shim that does not answer, and its job with it. `fence` must follow.
    async fn kill(&self, attempt: &JobAttempt) -> io::Result<()>;

    /// Ends an attempt whose records cannot be understood, whatever they say: kills all that bears its marks, and
    /// forbids it for good.
    async fn destroy(&self, attempt: &JobAttempt) -> io::Result<()> {
        self.kill(attempt).await?;
        self.fence(attempt, WithoutFolder::MakeOne).await.map(|_| ())
    }

    /// Its end is stored: the shim need not linger.
    async fn acknowledge(&self, attempt: &JobAttempt);

    /// Attempts whose shims hold their locks, whoever they belong to. One bad folder hides no other.
    async fn held(&self) -> io::Result<Vec<JobAttempt>>;

    /// The sentinels of jobs, in the order given.
    async fn sentinels(&self, jobs: Vec<RunId>) -> Vec<SentinelReading>;

    /// What there is of a job on this host.
    async fn traces(&self, job: RunId) -> Traces;

    /// Output from `from` on, at most `limit` bytes.
    async fn output(&self, job: RunId, stream: Stream, from: LogFrom, limit: usize) -> io::Result<LogChunk>;

    /// What bears a job's id among the folders of jobs on this host, whatever it is; all else is left out.
    async fn folders(&self) -> io::Result<Vec<RunId>>;

    /// Removes a job's folder; with `archive`, its workspace is kept elsewhere first. Refuses whatever is
    /// live, unknown or not ours. A dry run only counts.
    async fn remove(&self, job: RunId, archive: bool, dry_run: bool) -> io::Result<Removed>;

    /// Removes archives older than this, and what an interrupted removal left.
    async fn forget_archives(&self, keep: Duration) -> io::Result<usize>;

    /// The folder that holds the folders of all jobs.
    fn root(&self) -> PathBuf;

    /// Where a job's workspace is, or would be.
    fn workspace(&self, job: RunId) -> String;

    /// Adds to this host's log of starts, which outlives the process.
    async fn log_start(&self, entry: &Json) -> io::Result<()>;

    /// The log of starts, newest first.
    async fn starts(&self) -> io::Result<Vec<Json>>;
}

/// Why an attempt was not started.
#[derive(Debug)]
pub enum StartError {
    /// Its command has not begun, and never will.
    Never(io::Error),
    /// It may have begun all the same: `fence` makes sure.
    Unclear(io::Error),
}

impl StartError {
    fn error(&self) -> &io::Error {
        match self {
            StartError::Never(error) | StartError::Unclear(error) => error,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.error())
    }
}

/// One attempt at a job, as its shim knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobAttempt {
    pub job: RunId,
    pub attempt: u32,
    /// The shim's nonce. It stays when the lease passes on.
    pub token: Token,
    /// A shim obeys the highest that it has heard of.
    pub tenure: u32,
}

/// The tenure of whoever ends an attempt that no lease stands for any more.
pub const LAST_WORD: u32 = u32::MAX;

/// Why an attempt is asked to stop. Its exit record says so; shims are told, and keep, these words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopReason {
    #[default]
    Cancelled,
    /// It made no progress.
    Stalled,
    /// No lease stands for it.
    Fenced,
}

/// What a shim is to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    pub command: Command,
    /// What the command reads from its standard input.
    pub input: Option<String>,
    pub heartbeat_interval: Duration,
    pub stop_grace: Duration,
    pub deadline: Option<Duration>,
    pub log_limit: u64,
    /// Not to be started any more after this: somebody else may own it then.
    pub start_before: BootInstant,
    /// It stops by itself when nobody has vouched for it for so long.
    pub isolated_after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// Its lock is held and its shim answers, whatever the sentinel's age.
    Live(Beat),
    /// Its lock is held and nobody answers.
    Hung,
    /// With its true exit. The shim may linger still.
    Exited(Exit),
    /// Nobody has taken its lock: it never started, or its shim died before.
    NotStarted,
    /// There is no folder at all.
    Missing,
    /// Its lock is free and there is no record: `fence` says whether the command was lost or never started.
    Gone,
    /// The machine has booted since, and there is no record.
    Rebooted,
    /// A later owner has it.
    Fenced,
    /// What is there cannot be understood, or is of another attempt. Never death.
    Unknown(String),
}

/// How a shim and its command do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Beat {
    /// Rises with every sentinel that was written.
    pub seq: u64,
    pub progress: Option<Json>,
    /// Rises with every sign of progress.
    pub progress_seq: u64,
    pub write_error: Option<String>,
    pub write_failures: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum JobEvent {
    Beat(Beat),
    /// Nothing of it is left, and its output is complete; or the connection broke. Examine it.
    Over,
}

/// The events of one shim.
#[async_trait]
pub trait Following: Send {
    /// The next event. Cancel-safe.
    async fn next(&mut self) -> JobEvent;
}

#[derive(Clone, Debug, PartialEq)]
pub enum Fenced {
    /// It ran, or may have, and how it ended is not known.
    Lost,
    /// It never ran, and never will.
    NeverStarted,
    /// It ended after all.
    Exited(Exit),
    /// Its shim still holds the lock: nothing was done.
    StillHeld,
    /// Its folder is gone, and was not to be made: nothing was done.
    Missing,
}

/// What fencing does where the attempt's folder is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutFolder {
    /// It may never have been made; whoever is about to begin must find that it may not.
    MakeOne,
    /// It was made before: a new one would say that nothing ever ran.
    LeaveIt,
}

/// A sentinel, or why it cannot be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SentinelReading {
    pub path: String,
    /// By the writer's wall clock: for people.
    pub last_heartbeat: Option<String>,
    /// By boot time, where it can be known.
    pub age: Option<Duration>,
    pub status: Option<String>,
    pub seq: Option<u64>,
    pub attempt: Option<u32>,
    pub write_error: Option<String>,
    /// Why it is not valid.
    pub problem: Option<String>,
    pub lock: Lock,
    pub exit_record: bool,
}

/// The kernel lock of a job, which whoever owns the job holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Lock {
    Held,
    Free,
    /// Nobody has ever tried to take it.
    Absent,
    /// It cannot be looked at.
    #[default]
    Unknown,
}

impl Lock {
    pub const ALL: [Lock; 4] = [Lock::Held, Lock::Free, Lock::Absent, Lock::Unknown];

    pub fn as_str(self) -> &'static str {
        match self {
            Lock::Held => "held",
            Lock::Free => "free",
            Lock::Absent => "absent",
            Lock::Unknown => "unknown",
        }
    }
}

/// What there is of a job on this host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traces {
    pub folder: bool,
    pub sentinel: bool,
    pub workspace: bool,
    pub session_data: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub const BOTH: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    pub fn as_str(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// Where reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFrom {
    /// Counted from the first byte that the job ever wrote to the stream, across rotation and attempts.
    Offset(u64),
    /// The last so many lines.
    Tail(usize),
    /// What the latest attempt wrote.
    Attempt,
}

/// Bytes of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogChunk {
    /// Where the bytes begin: later than asked for if older ones were rotated away.
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// Where the stream ended when it was looked at.
    pub end: u64,
}

impl LogChunk {
    /// Where to go on.
    pub fn next(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub entries: u64,
    pub bytes: u64,
    /// Where the workspace was kept, if it held anything.
    pub archived_to: Option<String>,
}
