//! The only home of operating-system processes and kernel locks.

pub mod contained;
mod locks;

pub use locks::HostLocks;
