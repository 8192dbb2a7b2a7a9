//! The only home of operating-system processes and kernel locks.

pub mod contained;
pub mod job;
mod locks;

pub use locks::HostLocks;
