//! Pools of worker processes, in any language: started by guardians, fed and watched over a link.

mod guardian;
mod link;
mod settings;

pub use guardian::{
    Containment, Emptied, Guardian, GuardianReport, Guardians, OutputLine, ProcessLook, ProcessState, SpawnError,
    Swept, WorkerExit, WorkerOrder, WorkerProcess, WorkerSignal,
};
pub use link::{
    Assignment, Ended, FromWorker, HeartbeatAnswer, Hello, LeaseShown, Pong, Refused, Returning, ToWorker, Why,
};
pub use settings::{PoolSettings, Protocol, WantedContainment};
