//! Detached jobs: a folder, a shim that owns the command, and what a server can learn of both.
//!
//! The kernel lock on `lock` is the truth, the exit record its last word, and the sentinel only a sign of
//! health. Nothing here is judged or signalled by a PID that may have passed on: identity is the lock, the
//! cgroup's name, a tag in the environment, and the attempt's number and token.

mod archive;
mod cgroup;
mod clean;
pub mod client;
pub(crate) mod clock;
mod destroy;
mod examine;
mod fence;
mod folder;
mod health;
mod kernel_lock;
pub mod logs;
mod past;
pub(crate) mod processes;
pub mod protocol;
mod records;
pub(crate) mod remains;
mod root;
mod scan;
pub mod sentinel;
pub mod shim;
mod spec;
mod watch;

pub(crate) use archive::has_results;
pub use archive::{Archived, archive};
pub use clean::{Cleaned, clean, clean_leftovers, clean_with};
pub(crate) use clean::{DOOMED as LEFTOVER, is_leftover};
pub use client::Client;
pub(crate) use clock::{boot_ms, pause};
pub use destroy::destroy;
pub use examine::{examine, examine_within, examine_without_spec, holder};
pub use fence::{fence, kill, replaced};
pub use folder::{JobFolder, Problem};
pub use health::{Health, health, lock_and_exit};
pub use past::install;
pub use records::{CancelRecord, ExitRecord, FenceRecord, StartPart, Started, Stopped};
pub use scan::{Found, FoundState, scan};
pub use sentinel::{Sentinel, sentinels};
pub use spec::{Containment, Identity, Spec, new_token};
pub use watch::FolderWatch;
