//! The only home of operating-system processes and kernel locks.

mod birth;
pub mod contained;
pub mod descriptors;
pub mod job;
mod locks;
mod place;
mod shims;

pub use locks::HostLocks;
pub use place::{Misplaced, Place, PlaceError, machine};
pub use shims::HostShims;
