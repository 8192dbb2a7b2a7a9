//! Makes decisions happen: claim, dispatch, heartbeat, settle, sweep, and a replica's whole life.
//!
//! Time, chance and task spawning enter through [`Env`] alone, so that the same code runs in a server
//! and in the simulation. A replica owns its tasks: dropping them is its crash.

mod advance;
mod attend;
mod batch;
mod builtin;
mod claim;
mod commands;
mod ctx;
mod engine;
mod enqueue;
mod env;
mod error;
mod executions;
mod explain;
mod figures;
mod find;
mod graphs;
mod handler;
mod held;
mod jobs;
mod judge;
mod life;
mod locks;
pub mod metrics;
mod perform;
mod readiness;
mod renew;
mod settings;
mod settle;
mod shims;
mod sign;
mod sweep;
mod view;
mod waiters;
mod waits;

pub use builtin::builtin;
pub use commands::{Submission, Submit};
pub use ctx::{Beat, Ctx, Stop};
pub use engine::{Engine, Host};
pub use env::{Env, Task, within};
pub use error::Error;
pub use executions::{ExecutionView, Got, StartExecution, Wait};
pub use explain::Explanation;
pub use find::{FIND_WINDOW, Findable, Match, Matches, SHORTEST_PART};
pub use handler::{Failure, Handler, Tasks};
pub use jobs::{
    Cleaning, FailedJob, Health, Heartbeat, HeartbeatStatus, JobView, RecoveryMetrics, RecoveryStatus, Resumed,
    Sentinel, StaleJob, SubmitJob,
};
pub use locks::{LockGuard, Locks};
pub use readiness::{Check, CheckName, CheckStatus, Readiness};
pub use settings::{JobSettings, QueueLimit, Settings};
pub use shims::{
    Beat as JobBeat, Fenced, Finding, Following, JobAttempt, JobEvent, LAST_WORD, LogChunk, LogFrom, Order, Removed,
    SentinelReading, Shims, StartError, StopReason, Stream, Traces, WithoutFolder,
};
pub use view::{Liveness, RunView};

pub type Result<T> = std::result::Result<T, Error>;
