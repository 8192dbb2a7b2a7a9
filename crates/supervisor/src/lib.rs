//! The only home of operating-system processes and kernel locks.

mod locks;

pub use locks::HostLocks;
