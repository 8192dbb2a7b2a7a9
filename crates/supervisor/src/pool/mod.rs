//! Pools of workers: a guardian per pool, which owns its workers and ends with its server, and what a server does with it.
//!
//! Nothing here is judged or signalled by a PID that may have passed on: identity is a kernel lock, a pidfd, a cgroup's
//! name, or a tag in the environment that is looked at again after a pidfd was opened.

mod cgroup;
mod connection;
mod environment;
mod folder;
pub mod guardian;
mod host;
mod input;
mod leftovers;
mod link;
mod look;
mod order;
mod output;
mod pidfd;
mod protocol;
mod report;
mod socket;
mod stacks;
mod sweep;
mod worker;

pub use host::HostGuardians;
