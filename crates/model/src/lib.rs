//! The pure heart of Everbeat: types, policies and decisions.
//!
//! Nothing here does I/O, reads a clock or awaits. What should happen is decided from a snapshot;
//! the engine and the stores carry it out.

pub mod attempt;
pub mod check;
pub mod enqueue;
pub mod error;
pub mod event;
pub mod graph;
pub mod hole;
pub mod id;
pub mod idempotency;
pub mod job;
pub mod json;
pub mod lease;
pub mod output;
pub mod policy;
pub mod queue;
pub mod reason;
pub mod reopen;
pub mod replica;
pub mod run;
pub mod schedule;
pub mod session;
pub mod settle;
pub mod shortage;
mod spelled;
pub mod time;
pub mod verdict;
pub mod watch;
pub mod worker;

pub use attempt::{Attempt, Outcome};
pub use enqueue::{Enqueue, Enqueued};
pub use error::Invalid;
pub use event::Event;
pub use hole::{Hole, Planted};
pub use id::{ExecutionId, ReplicaId, RunId, ScheduleId, SessionId, Token, VerdictId, WorkerId};
pub use idempotency::{Idempotency, Sent};
pub use json::{Json, NotJson};
pub use lease::Lease;
pub use policy::{Policy, PolicyPatch};
pub use reason::Reason;
pub use reopen::Reopened;
pub use replica::Replica;
pub use run::{NewRun, OccurrenceOf, Parent, Run, RunState, Standing};
pub use session::Session;
pub use settle::{Ending, Next, Settled, Settlement};
pub use shortage::Shortage;
pub use time::{BootInstant, StoreTime};
pub use verdict::Verdict;
