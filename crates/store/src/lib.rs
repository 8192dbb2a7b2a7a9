//! The storage contract: a few small traits by noun, the in-memory store that specifies them, and the
//! conformance suite that every store must pass.
//!
//! No transaction handle leaves a store. Every call is atomic by itself: it happened wholly or not at
//! all. An `Unavailable` answer says nothing about which of the two; callers look, they do not guess.

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod memory;

mod audit;
mod check_row;
mod checks;
mod declared;
mod error;
mod events;
mod executions;
mod graphs;
mod ids;
mod outputs;
mod queues;
mod replicas;
mod runs;
mod schedule_row;
mod schedules;
mod sessions;
mod tasks;
mod verdicts;
mod wakes;
mod workers;

pub use audit::{Audit, Audits, Violation};
pub use check_row::{CheckRow, CheckWritten, check_deleted};
pub use checks::{CheckFilter, CheckPut, Checks, DueChecks, Expected, NewPing, Pinged, PutCheck};
pub use declared::{Author, Declared};
pub use error::{Cause, Class, Error, Obstacle};
pub use events::{EventPage, Events, News, TRIM_LIMIT};
pub use executions::{
    AT_ONCE, Advance, Advanced, Analytics, CUT_EVERY, ExecutionFilter, Executions, Looked, Peek, Planner, Reach,
    Remembered, Start, Started, Stored, cuts, events, recorded, superseded,
};
pub use graphs::{Applied, Definition, Graphs};
pub use ids::{Ids, Noun};
pub use memory::Memory;
pub use outputs::{FORGET_ITEMS, Keep, OutputFilter, OutputPage, Outputs, Piece, Streamed};
pub use queues::{MOST_LINES, Queues};
pub use replicas::{Joined, Renewal, Replicas, Sweeps};
pub use runs::{
    Cancelled, Claim, Held, LIST_BYTES, Part, Promoted, RunFilter, Runs, Sign, Signed, Which, last_heartbeat,
};
pub use schedule_row::{ScheduleRow, Written, schedule_deleted, schedule_written, stored_definition};
pub use schedules::{
    Deleted, DueSchedule, DueSchedules, LeftOut, LookedAt, LookedSchedule, MOST_LEFT, Put, PutSchedule, ScheduleFilter,
    Scheduler, Schedules, StoredSchedule, schedule_events,
};
pub use sessions::{KeptSession, Sessions};
pub use tasks::Tasks;
pub use verdicts::{VerdictFilter, Verdicts};
pub use wakes::{WakeSignal, Wakes};
pub use workers::{Told, WorkerFilter, WorkerRow, Workers};

use everbeat_model::StoreTime;
pub use everbeat_model::{Enqueue, Enqueued, Idempotency, Reopened};

pub type Result<T> = std::result::Result<T, Error>;

/// Everything that a store does.
pub trait Store:
    Runs
    + Checks
    + Outputs
    + Graphs
    + Executions
    + Ids
    + Replicas
    + Schedules
    + Sweeps
    + Queues
    + Tasks
    + Sessions
    + Verdicts
    + Events
    + Audits
    + Wakes
    + Workers
    + Send
    + Sync
    + 'static
{
}

impl<T> Store for T where
    T: Runs
        + Checks
        + Outputs
        + Graphs
        + Executions
        + Ids
        + Replicas
        + Schedules
        + Sweeps
        + Queues
        + Tasks
        + Sessions
        + Verdicts
        + Events
        + Audits
        + Wakes
        + Workers
        + Send
        + Sync
        + 'static
{
}

/// The wall clock of stores that have none of their own (memory, SQLite).
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> StoreTime;
}

impl<F: Fn() -> StoreTime + Send + Sync + 'static> Clock for F {
    fn now(&self) -> StoreTime {
        self()
    }
}
