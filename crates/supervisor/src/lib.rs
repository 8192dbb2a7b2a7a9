//! The only home of operating-system processes and kernel locks.

mod birth;
mod cgroups;
pub mod contained;
pub mod descriptors;
mod exec;
pub mod job;
mod locks;
mod ofd_lock;
mod place;
pub mod pool;
mod shims;
mod signals;

pub use locks::HostLocks;
pub use place::{Misplaced, Place, PlaceError, machine};
pub use pool::HostGuardians;
pub use shims::HostShims;
