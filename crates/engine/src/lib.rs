//! Makes decisions happen: claim, dispatch, heartbeat, settle, sweep, and a replica's whole life.
//!
//! Time, chance and task spawning enter through [`Env`] alone, so that the same code runs in a server
//! and in the simulation. A replica owns its tasks: dropping them is its crash.

mod attempts;
mod batch;
mod checks;
mod engine;
mod env;
mod error;
mod executions;
mod figures;
mod jobs;
pub mod metrics;
pub mod pools;
mod replica;
mod runs;
mod schedules;
mod settings;

pub use attempts::{
    Beat, Beats, Capacity, Conclusion, Ctx, Failure, Handler, Hindrance, Line, Offer, Parting, Performer, Post, Stop,
    Tasks, Terms, Work, builtin,
};
pub use checks::WriteCheck;
pub use engine::{Engine, Host};
pub use env::{Env, Task, within};
pub use error::Error;
pub use executions::{ExecutionView, Got, StartExecution, Wait};
pub use jobs::{
    Cleaning, FailedJob, Fenced, Finding, Following, Health, Heartbeat, HeartbeatStatus, JobAttempt, JobBeat, JobEvent,
    JobView, LAST_WORD, Lock, LogChunk, LogFrom, Order, RecoveryMetrics, RecoveryStatus, Removed, Resumed, Sentinel,
    SentinelReading, Shims, StaleJob, StartError, StopReason, Stream, SubmitJob, Traces, WithoutFolder,
};
pub use replica::{Check, CheckName, CheckStatus, LockGuard, Locks, Readiness};
pub use runs::{
    Explanation, FIND_WINDOW, Findable, Liveness, Match, Matches, OutputView, RunView, SHORTEST_PART, Submission,
    Submit,
};
pub use schedules::{FlowRules, Heard, LedgerPage, ScheduleView, Tried, Triggered, WriteSchedule};
pub use settings::{JobSettings, QueueLimit, Settings};

pub type Result<T> = std::result::Result<T, Error>;
