//! The only home of operating-system processes and kernel locks.

pub mod contained;
pub mod job;
mod locks;
mod shims;

pub use locks::HostLocks;
pub use shims::HostShims;
