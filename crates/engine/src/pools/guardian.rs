//! The port to the processes of pools: guardians, and the workers that they own.

use super::settings::WantedContainment;
use async_trait::async_trait;
use everbeat_model::WorkerId;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Whoever can start guardians on this host.
#[async_trait]
pub trait Guardians: Send + Sync + 'static {
    /// Ends what earlier servers left of pools on this host, and tells what their guardians saw after those servers
    /// died. Returns when nothing of it is left; comes before the first worker. What belongs to a server that lives is
    /// never touched, and nothing is signalled by a bare number.
    async fn sweep(&self) -> io::Result<Swept>;

    /// Starts the guardian of a pool, which ends with all its workers when this process ends, however it does, and when
    /// nobody holds it any more.
    async fn guard(&self, pool: &str, wanted: WantedContainment) -> io::Result<Arc<dyn Guardian>>;

    /// The socket that workers of pools dial.
    fn socket(&self) -> PathBuf;
}

/// The process that owns the workers of a pool.
#[async_trait]
pub trait Guardian: Send + Sync + 'static {
    fn containment(&self) -> Containment;

    /// Starts a worker. When this answers, its program runs. It lives no longer than somebody holds it; an order that is
    /// given up comes to nothing.
    async fn spawn(&self, order: &WorkerOrder) -> Result<Arc<dyn WorkerProcess>, SpawnError>;

    /// Resolves when the guardian is gone. Its workers die with it.
    async fn gone(&self);

    /// Ends the guardian and all its workers at once, and returns when nothing of them is left.
    async fn end(&self);
}

/// What a guardian is to start.
#[derive(Clone, Debug)]
pub struct WorkerOrder {
    pub worker: WorkerId,
    pub command: Vec<String>,
    /// Beside a few of the server's own variables (`PATH`, `HOME`, `LANG` and the like).
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
    /// What proves a worker to be the one that was started. It never stands in arguments or in the environment.
    pub secret: String,
    /// The standard input and output carry lines; otherwise both outputs are only read.
    pub lines: bool,
}

/// Why a worker could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program is not there, cannot be executed, or its folder is missing.
    #[error("{0}")]
    Command(io::Error),
    /// The machine lacks something: processes, memory, descriptors, room.
    #[error("{0}")]
    Shortage(io::Error),
    /// The guardian is gone.
    #[error("the guardian of the pool is gone")]
    Gone,
}

/// One worker, as the server sees its process. Its descendants belong to it.
#[async_trait]
pub trait WorkerProcess: Send + Sync + 'static {
    /// For people: nothing is judged or signalled by this number.
    fn pid(&self) -> u32;

    /// How the worker ended. Resolves at once when it has; may be asked by many, again and again.
    async fn exited(&self) -> WorkerExit;

    /// Resolves when nothing of the worker and of what it started is left.
    async fn emptied(&self) -> Emptied;

    /// Sends a signal: to the worker alone, or, where nobody shall survive, to all that it started as well.
    async fn signal(&self, signal: WorkerSignal) -> io::Result<()>;

    /// What its process does just now. None if that cannot be known.
    async fn look(&self) -> Option<ProcessLook>;

    /// The next line of its output, at most 16 KiB of it (of the results of a worker that speaks lines, 4 MiB); none at
    /// the end. For one reader. A worker whose lines nobody takes waits.
    async fn line(&self) -> Option<OutputLine>;

    /// Writes a line to its standard input, with its end if it has none. Of workers that speak lines.
    async fn write(&self, line: &[u8]) -> io::Result<()>;

    /// Ends its standard input. Of workers that speak lines.
    async fn close_input(&self);

    /// The stacks of its threads, as far as it can still tell them, or what the kernel knows of where it waits; the first
    /// line says which.
    async fn stacks(&self) -> Option<String>;
}

/// How a worker process ended. With neither code nor signal that is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerExit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub out_of_memory: OutOfMemory,
}

/// Whether the kernel killed a worker for lack of memory, by what counts such kills. It says of no process why it was killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfMemory {
    #[default]
    No,
    /// The machine counted such a kill when the worker was killed, whosever it was.
    Machine,
    /// The cgroup that the worker shares with others counted one.
    SharedCgroup,
    /// The worker's own cgroup counted one.
    OwnCgroup,
}

impl OutOfMemory {
    /// Certain or probable.
    pub fn is_likely(self) -> bool {
        self != OutOfMemory::No
    }

    /// What counted the kill.
    pub fn counted_by(self) -> Option<&'static str> {
        match self {
            OutOfMemory::No => None,
            OutOfMemory::Machine => Some("machine"),
            OutOfMemory::SharedCgroup => Some("shared_cgroup"),
            OutOfMemory::OwnCgroup => Some("own_cgroup"),
        }
    }
}

/// What was left of a worker when it ended, and how that went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// `exited`, `cgroup`, `namespace` or `walk`.
    pub how: &'static str,
    /// From the end of the worker until nothing of it was left.
    pub took: Duration,
    /// How many processes had to be killed.
    pub killed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerSignal {
    /// Finish and exit.
    Terminate,
    /// End at once, with everything that it started.
    Kill,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLook {
    pub state: ProcessState,
    /// CPU time of the worker and of all it started, so far.
    pub cpu: Duration,
    /// Memory of the worker and of all it started.
    pub resident_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// On a CPU, or waiting for one.
    Running,
    Sleeping,
    /// In the kernel, where no signal reaches it.
    Blocked,
    /// By a signal or a debugger.
    Stopped,
    /// Dead, and not yet taken note of.
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    /// Its standard error; otherwise its standard output.
    pub error: bool,
    pub text: String,
    /// There was more on this line than is told.
    pub cut: bool,
}

/// What holds the processes of a pool together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containment {
    Cgroup,
    PidNamespace,
    /// Process groups, a walk through the tree of processes, and a tag in their environment.
    TreeWalk,
}

impl Containment {
    pub fn as_str(self) -> &'static str {
        match self {
            Containment::Cgroup => "cgroup",
            Containment::PidNamespace => "pid_namespace",
            Containment::TreeWalk => "tree_walk",
        }
    }

    /// Whether nothing that a worker starts can escape.
    pub fn complete(self) -> bool {
        matches!(self, Containment::Cgroup | Containment::PidNamespace)
    }
}

/// What a sweep found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Swept {
    /// How many processes earlier servers had left.
    pub orphans: usize,
    pub took: Duration,
    /// What guardians wrote after their servers had died, oldest first.
    pub reports: Vec<GuardianReport>,
}

/// What a guardian saw after the death of its server.
#[derive(Clone, Debug, PartialEq)]
pub struct GuardianReport {
    /// `server_death_detected` or `worker_terminated`.
    pub event: String,
    pub pool: String,
    /// When, by that machine's wall clock, RFC 3339.
    pub at: String,
    /// Measurements and metadata.
    pub detail: Value,
}
