//! How many descriptors this process may have open. A server needs many; what it starts gets the limit that the
//! server itself was started with, since programs that use select(2) break beyond 1,024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::sync::OnceLock;

/// No server needs more, and tables of that size cost the kernel something.
const MOST: u64 = 1 << 20;

/// In the environment of a shim: the limit that it gives back to itself.
pub(crate) const VARIABLE: &str = "EVERBEAT_DESCRIPTORS";

static BEFORE: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit of this process to the hard one. Answers what holds now.
pub fn raise() -> io::Result<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let (soft, hard) = (current.unwrap_or(MOST), maximum.unwrap_or(MOST).min(MOST));
    let _the_first_counts = BEFORE.set(soft);
    if soft >= hard {
        return Ok(soft);
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum })?;
    Ok(hard)
}

/// The limit before it was raised, for the environment of a shim; none if it was not.
pub(crate) fn before() -> Option<(&'static str, String)> {
    BEFORE.get().map(|before| (VARIABLE, before.to_string()))
}

/// In a process that is to become a shim: the limit is again what it was.
pub(crate) fn restore() -> io::Result<()> {
    let given = std::env::var(VARIABLE).ok().and_then(|given| given.parse::<u64>().ok());
    let Some(before) = given else { return Ok(()) };
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = maximum.map_or(before, |maximum| maximum.min(before));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum })?)
}
