//! The settings of one pool.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How the workers of a pool are started, watched and ended.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSettings {
    pub name: String,
    /// The program of a worker and its arguments; never a shell line.
    pub command: Vec<String>,
    /// How many workers there should be.
    pub size: usize,
    /// How many attempts each performs at once.
    pub slots: usize,
    /// The queues from which the pool takes work.
    pub queues: Vec<String>,
    /// The tasks of workers that speak lines, which cannot name theirs.
    pub tasks: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
    pub protocol: Protocol,
    pub containment: WantedContainment,
    /// Whether workers are pinged at all.
    pub heartbeat: bool,
    pub ping_interval: Duration,
    /// A worker that says nothing for so long, and owes `max_missed` pongs, is judged by what its process does.
    pub ping_timeout: Duration,
    pub max_missed: u32,
    /// Whether a worker that does not answer is ended, and one that is not pinged ends itself.
    pub dependent: bool,
    /// How often the process of a worker is looked at.
    pub check_interval: Duration,
    /// From its start to its hello a worker may take so long.
    pub startup_grace: Duration,
    /// Without a valid ping for so long, a worker stops its work and exits.
    pub worker_ttl: Duration,
    /// From the polite signal to the one that nobody survives, when a worker is ended for a fault.
    pub grace_period: Duration,
    /// A worker that is drained may take so long to finish its work.
    pub stop_grace: Duration,
    /// After that signal, nothing of a worker may be left for so long before it is told.
    pub kill_grace: Duration,
    /// A worker is replaced after so long, so many attempts, or when it takes so much memory.
    pub max_age: Option<Duration>,
    pub max_runs: Option<u64>,
    pub max_memory: Option<u64>,
    /// A session is over after so long without a run, unless its runs say otherwise.
    pub session_ttl: Duration,
    /// More sessions than this are not held at once.
    pub max_sessions: usize,
}

/// How a worker is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The worker opens a stream; see `proto/everbeat/worker/v1/worker.proto`.
    #[default]
    Grpc,
    /// One line of JSON for each piece of work on its standard input, and one back on its standard output.
    Lines,
}

/// What must hold the processes of a pool together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WantedContainment {
    /// The best that there is on this machine.
    #[default]
    Auto,
    /// Nothing a worker starts may escape: without such a containment the pool does not start.
    Strict,
}

impl Default for PoolSettings {
    fn default() -> PoolSettings {
        PoolSettings {
            name: String::new(),
            command: Vec::new(),
            size: 4,
            slots: 1,
            queues: vec!["default".to_string()],
            tasks: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            protocol: Protocol::Grpc,
            containment: WantedContainment::Auto,
            heartbeat: true,
            ping_interval: Duration::from_secs(2),
            ping_timeout: Duration::from_secs(10),
            max_missed: 3,
            dependent: true,
            check_interval: Duration::from_secs(1),
            startup_grace: Duration::from_secs(30),
            worker_ttl: Duration::from_secs(30),
            grace_period: Duration::from_secs(3),
            stop_grace: Duration::from_secs(30),
            kill_grace: Duration::from_secs(5),
            max_age: None,
            max_runs: None,
            max_memory: None,
            session_ttl: everbeat_model::session::DEFAULT_TTL,
            max_sessions: 10_000,
        }
    }
}
