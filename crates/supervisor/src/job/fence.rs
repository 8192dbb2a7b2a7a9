//! The end of an attempt whose shim is gone: nobody may start it any more, and nothing of it may be left.

use super::cgroup::Cgroup;
use super::clock;
use super::folder::{JobFolder, Problem, SOCKET};
use super::kernel_lock;
use super::processes::{self, JOB_TAG, SHIM_TAG};
use super::records::{ExitRecord, FenceRecord, Record, Started};
use super::sentinel;
use super::spec::Identity;
use rustix::process::Signal;
use std::io;
use std::time::Duration;

#[derive(Debug)]
pub enum Fenced {
    /// The command was started (or may have been), and how it ended is not known.
    Lost,
    /// The command was never started, and never will be.
    NeverStarted,
    /// It ended after all, with its true status.
    Exited(Box<ExitRecord>),
    /// Somebody holds the lock: nothing was done.
    StillHeld,
}

/// So long the killed may take to be gone. Only the kernel can hold them up.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);

/// Takes the lock, forbids the attempt for good, kills whatever is left of it, and judges. An error is no
/// verdict: try again. Doing it twice is harmless.
pub fn fence(folder: &JobFolder, identity: &Identity) -> io::Result<Fenced> {
    let Some(lock) = kernel_lock::take(folder)? else {
        return Ok(match ExitRecord::read(folder, identity) {
            Ok(Some(record)) => Fenced::Exited(Box::new(record)),
            _ => Fenced::StillHeld,
        });
    };
    let started: Option<Started> = Record::read(folder, identity).map_err(unclear)?;
    let exited = ExitRecord::read(folder, identity).map_err(unclear)?;
    if exited.is_none() && !already(folder, identity)? {
        let fenced_at = clock::now_text();
        FenceRecord { epoch: identity.epoch, nonce: identity.nonce.clone(), fenced_at }.write(folder)?;
    }
    // A shim that ended in order has taken its socket away, after everything else.
    if exited.is_none() || folder.exists(SOCKET) {
        let boot = clock::boot_id()?;
        let may_live = started.as_ref().is_some_and(|started| started.boot_id == boot);
        sweep(noted(folder, identity).as_ref(), identity, may_live)?;
        folder.unlink(SOCKET)?;
        folder.remove_temporaries()?;
    }
    remove_cgroup(folder, identity);
    drop(lock);
    let beat = || sentinel::read(folder).is_ok_and(|beat| beat.epoch == identity.epoch && beat.nonce == identity.nonce);
    Ok(match exited {
        Some(record) => Fenced::Exited(Box::new(record)),
        None if started.is_some() || beat() => Fenced::Lost,
        None => Fenced::NeverStarted,
    })
}

/// Kills a hung shim and everything it owns. Afterwards the lock is free, and [`fence`] judges.
pub fn kill(folder: &JobFolder, identity: &Identity) -> io::Result<()> {
    if let Some(cgroup) = noted(folder, identity) {
        cgroup.kill_all()?;
    }
    let tag = identity.shim_tag();
    until(|| {
        let is_ours = |pid: i32| processes::has_tag(pid, SHIM_TAG, &tag);
        Ok(processes::signal(processes::tagged(SHIM_TAG, &tag), Signal::KILL, is_ours) == 0)
    })?;
    // The kernel takes a dead process' memory, by which it was found, before its locks.
    until(|| {
        let held = kernel_lock::state(folder).map_err(unclear)? == kernel_lock::State::Held;
        Ok(!held || kernel_lock::note(folder, identity).is_none())
    })
}

/// Kills the job's processes until there are none: by cgroup, or by tag where there is none. A command that was
/// not started in this boot has no processes.
fn sweep(cgroup: Option<&Cgroup>, identity: &Identity, may_live: bool) -> io::Result<()> {
    let tag = identity.tag();
    // Nothing leaves a cgroup by itself; looking for tags means to read the environment of every process.
    let may_live = may_live && !cgroup.is_some_and(Cgroup::exists);
    until(|| {
        let mut empty = true;
        if let Some(cgroup) = cgroup {
            cgroup.kill_all()?;
            empty = cgroup.is_empty()?;
        }
        let is_ours = |pid: i32| processes::has_tag(pid, JOB_TAG, &tag);
        let strays = if may_live { processes::tagged(JOB_TAG, &tag) } else { Vec::new() };
        Ok(processes::signal(strays, Signal::KILL, is_ours) == 0 && empty)
    })?;
    Ok(())
}

/// A shim cannot always take away the cgroup it is in itself.
pub(super) fn remove_cgroup(folder: &JobFolder, identity: &Identity) {
    if let Some(cgroup) = noted(folder, identity) {
        cgroup.remove();
    }
}

/// A process that is just starting a program shows no environment for a moment.
const CALM_LOOKS: usize = 2;

fn until(mut done: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let end = clock::boot_ms() + EMPTY_WITHIN.as_millis() as u64;
    let mut calm = 0;
    while calm < CALM_LOOKS {
        calm = if done()? { calm + 1 } else { 0 };
        if clock::boot_ms() > end {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "killed processes are still there"));
        }
        clock::pause(1);
    }
    Ok(())
}

fn noted(folder: &JobFolder, identity: &Identity) -> Option<Cgroup> {
    Cgroup::noted(&kernel_lock::note(folder, identity)?.cgroup?, folder.job_id(), identity)
}

/// A later fence stays: it forbids this attempt too.
fn already(folder: &JobFolder, identity: &Identity) -> io::Result<bool> {
    let fence: Option<FenceRecord> = Record::read_any(folder).map_err(unclear)?;
    Ok(fence.is_some_and(|fence| fence.forbids(identity)))
}

fn unclear(problem: Problem) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_string())
}
