//! What passes over the link between this server and a worker, in the engine's own words.

use everbeat_model::{Json, RunId, SessionId, Token, WorkerId};
use std::time::Duration;

/// The first word of a worker.
#[derive(Clone, Debug, Default)]
pub struct Hello {
    /// None for a worker of no pool.
    pub pool: Option<String>,
    /// What the server handed to the worker that it started. A remote worker was admitted by its token before.
    pub secret: String,
    pub sdk: String,
    pub tasks: Vec<String>,
    pub slots: usize,
    /// Of a worker of no pool; none means all.
    pub queues: Vec<String>,
    /// Of a worker that was connected before.
    pub returning: Option<Returning>,
    /// Definitions, each as JSON text.
    pub graphs: Vec<String>,
    pub flows: Vec<String>,
    pub schedules: Vec<String>,
    pub host: String,
}

/// A worker that connects again.
#[derive(Clone, Debug)]
pub struct Returning {
    pub worker: WorkerId,
    pub key: Token,
    /// What it still performs, or has ended and not been answered.
    pub leases: Vec<LeaseShown>,
}

/// What every message about an attempt shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseShown {
    pub run_id: RunId,
    pub attempt: u32,
    pub token: Token,
}

/// What a worker says after its hello.
#[derive(Clone, Debug)]
pub enum FromWorker {
    Pong(Pong),
    Heartbeat {
        lease: LeaseShown,
        done: Option<u64>,
        total: Option<u64>,
        note: Option<String>,
        checkpoint: Option<String>,
        next_within: Option<Duration>,
        /// 0: no answer is wanted.
        sequence: u64,
    },
    Output {
        lease: LeaseShown,
        sequence: u64,
        item: String,
    },
    Log {
        lease: LeaseShown,
        level: String,
        text: String,
    },
    Ended {
        lease: LeaseShown,
        how: Ended,
    },
    /// It takes nothing new and exits when it is done.
    Draining,
    Stacks {
        sequence: u64,
        text: String,
    },
}

/// How an attempt ended, by its worker's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// JSON text, not looked at yet.
    Result(String),
    Failure {
        message: String,
        permanent: bool,
        detail: String,
    },
    /// Because it was told to.
    Stopped,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pong {
    pub sequence: u64,
    pub running: u32,
    pub lag: Duration,
    pub progress: u64,
    pub resident_bytes: u64,
    pub cpu: Duration,
}

/// What the server says.
#[derive(Clone, Debug)]
pub enum ToWorker {
    Welcome {
        worker: WorkerId,
        epoch: u64,
        ping_interval: Duration,
        /// None: a worker never ends itself.
        worker_ttl: Option<Duration>,
        key: Token,
    },
    Ping {
        sequence: u64,
        epoch: u64,
        vouched: Duration,
    },
    Work(Box<Assignment>),
    HeartbeatAnswer {
        lease: LeaseShown,
        sequence: u64,
        answer: HeartbeatAnswer,
    },
    /// All output of the attempt up to this number is stored, or was refused for good.
    OutputAnswer {
        lease: LeaseShown,
        sequence: u64,
    },
    EndedAnswer {
        lease: LeaseShown,
    },
    Cancel {
        lease: LeaseShown,
        why: Why,
    },
    Drain {
        grace: Duration,
    },
    Dump {
        sequence: u64,
    },
    Declined(Declined),
}

/// A definition that a worker declares, and that cannot be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declined {
    /// `graph`, `flow` or `schedule`.
    pub kind: &'static str,
    /// Empty if the definition has none.
    pub name: String,
    pub problem: String,
}

/// One attempt for a worker.
#[derive(Clone, Debug)]
pub struct Assignment {
    pub lease: LeaseShown,
    pub task: String,
    pub input: Json,
    pub checkpoint: Option<Json>,
    pub deadline: Option<Duration>,
    pub args: Option<Json>,
    /// The execution and the node that the attempt computes.
    pub parent: Option<everbeat_model::Parent>,
    pub stop_when_isolated: bool,
    pub session: Option<SessionShown>,
    pub cancel_grace: Duration,
}

/// What a worker is told of the session that an attempt belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionShown {
    pub key: String,
    /// Another one each time that a session of this key begins: what a worker keeps for another id is old.
    pub id: SessionId,
    /// The attempt is the first of the session.
    pub is_new: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeartbeatAnswer {
    GoOn,
    Cancelled,
    Draining,
    Fenced,
    /// The checkpoint cannot be stored, and why.
    Refused(String),
}

/// Why an attempt should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Cancelled,
    Draining,
    Fenced,
    Judged,
}

/// Why a worker is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its secret is wrong, or it is not the worker that it says it is. It need not try again.
    #[error("{0}")]
    Stranger(String),
    /// What it says is out of bounds.
    #[error("{0}")]
    Invalid(String),
    /// Its time is over: the pool has replaced it, or this server knows nothing of it.
    #[error("{0}")]
    Over(String),
    /// Not now.
    #[error("{0}")]
    Later(String),
}
