//! Limits that an evaluator puts itself under, so that a program in it harms nobody.

use rustix::process::{self as kernel, DumpableBehavior, Resource, Rlimit, Signal};
use rustix::time::{ClockId, clock_gettime};
use std::io;

pub(super) const MEMORY_BYTES: u64 = 512 << 20;
/// For one batch.
pub(super) const CPU_SECONDS: u64 = 30;
const MOST_FILES: u64 = 16;
const NICENESS: i32 = 10;

/// Cannot be lifted again by what is evaluated.
pub(super) fn limit_self() -> io::Result<()> {
    // A killed server cannot end its evaluators; otherwise the end of stdin does.
    kernel::set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the machine runs out of memory this process goes first, and it yields to others. Neither is a must.
    let _without_proc = std::fs::write("/proc/self/oom_score_adj", "1000");
    let _as_it_was = kernel::nice(NICENESS);
    kernel::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    lower(Resource::Core, 0)?;
    lower(Resource::Fsize, 0)?;
    lower(Resource::Nofile, MOST_FILES)?;
    lower(Resource::As, MEMORY_BYTES)
}

/// From now on so much processor time is left, until the next call. Then the kernel ends this process.
pub(super) fn grant_batch() -> io::Result<()> {
    let used = u64::try_from(clock_gettime(ClockId::ProcessCPUTime).tv_sec).unwrap_or(0);
    let maximum = kernel::getrlimit(Resource::Cpu).maximum;
    let current = maximum.map_or(used + CPU_SECONDS + 1, |maximum| maximum.min(used + CPU_SECONDS + 1));
    kernel::setrlimit(Resource::Cpu, Rlimit { current: Some(current), maximum })?;
    Ok(())
}

fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = kernel::getrlimit(resource).maximum.map_or(most, |before| before.min(most));
    kernel::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    Ok(())
}
