//! The end of an attempt whose shim is gone: nobody may start it any more, and nothing of it may be left.

use super::folder::{JobFolder, Problem, SOCKET};
use super::kernel_lock;
use super::past::Past;
use super::processes::{self, SHIM_TAG};
use super::records::{ExitRecord, FenceRecord, Record, Started};
use super::remains::{self, Remains, until};
use super::sentinel;
use super::spec::{Identity, Spec};
use everbeat_engine::Fenced;
use rustix::process::Signal;
use std::io;

/// Takes the lock, forbids the attempt for good, kills whatever is left of it, and judges. An error is no
/// verdict: try again. Doing it twice is harmless.
pub fn fence(folder: &JobFolder, identity: &Identity) -> io::Result<Fenced> {
    if let Err(copied) = kernel_lock::in_place(folder) {
        let fence: Option<FenceRecord> = Record::read(folder, identity).map_err(Problem::into_error)?;
        // Only a person's word ends it here: see `destroy`.
        return fence.map(|_| Fenced::Lost).ok_or_else(|| copied.into_error());
    }
    if let Some(verdict) = replaced(folder, identity)? {
        return Ok(verdict);
    }
    let Some(lock) = kernel_lock::take(folder)? else {
        return Ok(match ExitRecord::read(folder, identity) {
            Ok(Some(record)) => Fenced::Exited(record.exit()),
            _ => Fenced::StillHeld,
        });
    };
    let started: Option<Started> = Record::read(folder, identity).map_err(Problem::into_error)?;
    let exited = ExitRecord::read(folder, identity).map_err(Problem::into_error)?;
    let remains = Remains::of(folder, identity, started.as_ref())?;
    // A shim that ended in order has taken its socket away, after everything else.
    let untidy = exited.is_none() || folder.exists(SOCKET);
    let verdict = match exited {
        Some(record) => {
            if untidy {
                remains.kill()?;
            }
            Fenced::Exited(record.exit())
        }
        None => {
            // Without a record, what lives and bears its marks is the only witness: noted before it is killed.
            // A shim alone is none: it starts its command under the lock, which is taken here.
            let command = Remains::of_command(folder, identity);
            let ran = started.is_some() || has_left_signs(folder, identity)? || command.any()?;
            FenceRecord::forbid(folder, identity, ran)?;
            remains.kill()?;
            if ran { Fenced::Lost } else { Fenced::NeverStarted }
        }
    };
    if untidy {
        folder.unlink(SOCKET)?;
        folder.remove_temporaries()?;
    }
    remains::remove_cgroup(folder, identity);
    drop(lock);
    Ok(verdict)
}

/// The verdict on an attempt whose place another one has taken: that came after its end. Whoever has the lock now is not
/// its to end.
pub fn replaced(folder: &JobFolder, identity: &Identity) -> io::Result<Option<Fenced>> {
    match Spec::read(folder) {
        Ok(spec) if spec.identity() != *identity => {
            Ok(Past::read(folder).map_err(Problem::into_error)?.verdict(identity))
        }
        Ok(_) | Err(_) => Ok(None),
    }
}

/// Kills a hung shim and everything it owns. Afterwards the lock is free, and [`fence`] judges.
pub fn kill(folder: &JobFolder, identity: &Identity) -> io::Result<()> {
    kernel_lock::in_place(folder).map_err(Problem::into_error)?;
    // The records may be gone: what lives is a witness that the command ran.
    if Remains::of_command(folder, identity).any()? {
        let _then_the_records_must_tell = FenceRecord::forbid(folder, identity, true);
    }
    if let Some(cgroup) = remains::cgroup(folder, identity) {
        cgroup.kill_all()?;
    }
    let tag = identity.shim_tag();
    let tags = [(SHIM_TAG, tag.as_str())];
    until(|| {
        let is_ours = |pid: i32| processes::has_tag(pid, &tags);
        Ok(processes::signal(processes::tagged(&tags), Signal::KILL, is_ours) == 0)
    })?;
    // The kernel takes a dead process' memory, by which it was found, before its locks.
    until(|| {
        let held = kernel_lock::state(folder).map_err(Problem::into_error)? == kernel_lock::State::Held;
        Ok(!held || kernel_lock::note(folder, identity).is_none())
    })
}

fn has_left_signs(folder: &JobFolder, identity: &Identity) -> io::Result<bool> {
    let fence: Option<FenceRecord> = Record::read(folder, identity).map_err(Problem::into_error)?;
    Ok(fence.is_some_and(|fence| fence.may_have_run)
        || Past::read(folder).map_err(Problem::into_error)?.may_have_run(identity)
        || sentinel::read(folder).is_ok_and(|sentinel| sentinel.is_of(identity)))
}
