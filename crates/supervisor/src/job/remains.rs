//! What may be left of an attempt: found by its cgroup and by its tags, which need neither folder nor record.

use super::cgroup::Cgroup;
use super::clock;
use super::folder::JobFolder;
use super::kernel_lock;
use super::processes::{self, JOB_TAG, SHIM_TAG};
use super::records::Started;
use super::spec::Identity;
use rustix::process::Signal;
use std::io;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Remains {
    cgroup: Option<Cgroup>,
    tags: Vec<(&'static str, String)>,
}

/// So long the killed may take to be gone. Only the kernel can hold them up.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);
/// A process that is just starting a program shows no environment for a moment.
const CALM_LOOKS: usize = 2;

impl Remains {
    /// Everything that bears its marks, its shim included.
    pub(super) fn all(folder: &JobFolder, identity: &Identity) -> Remains {
        let tags = vec![(JOB_TAG, identity.tag()), (SHIM_TAG, identity.shim_tag())];
        Remains { cgroup: cgroup(folder, identity), tags }
    }

    /// Without its shim.
    pub(super) fn of_command(folder: &JobFolder, identity: &Identity) -> Remains {
        Remains { cgroup: cgroup(folder, identity), tags: vec![(JOB_TAG, identity.tag())] }
    }

    /// Looking for tags means to read the environment of every process; so they are looked for only where something
    /// may be found.
    pub(super) fn of(folder: &JobFolder, identity: &Identity, started: Option<&Started>) -> io::Result<Remains> {
        let mut remains = Remains::all(folder, identity);
        let Some(started) = started else { return Ok(remains) };
        // Nothing outlives a boot, and nothing leaves a cgroup by itself.
        if started.boot_id != clock::boot_id()? || remains.cgroup.as_ref().is_some_and(Cgroup::exists) {
            remains.tags.clear();
        }
        Ok(remains)
    }

    /// Whether there is anything now. A shim in its cgroup, but without a tag, is just dying.
    pub(super) fn any(&self) -> io::Result<bool> {
        let in_cgroup = match &self.cgroup {
            Some(cgroup) => !cgroup.job_is_empty()?,
            None => false,
        };
        Ok(in_cgroup || !processes::tagged(&self.tags()).is_empty())
    }

    /// Kills until nothing is left. Says whether there was anything.
    pub(super) fn kill(&self) -> io::Result<bool> {
        let tags = self.tags();
        let mut found = false;
        until(|| {
            let mut empty = true;
            if let Some(cgroup) = &self.cgroup {
                found |= !cgroup.job_is_empty()?;
                cgroup.kill_all()?;
                empty = cgroup.is_empty()?;
            }
            let is_ours = |pid: i32| processes::has_tag(pid, &tags);
            let killed = processes::signal(processes::tagged(&tags), Signal::KILL, is_ours);
            found |= killed > 0;
            Ok(killed == 0 && empty)
        })?;
        Ok(found)
    }

    fn tags(&self) -> Vec<processes::Tag<'_>> {
        self.tags.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }
}

/// The cgroup that its shim noted; or the one that a shim of this server would have made, if it is there.
pub(super) fn cgroup(folder: &JobFolder, identity: &Identity) -> Option<Cgroup> {
    let noted =
        kernel_lock::note(folder, identity).and_then(|note| Cgroup::noted(&note.cgroup?, folder.job_id(), identity));
    noted.or_else(|| Cgroup::planned(folder.job_id(), identity).ok().filter(Cgroup::exists))
}

/// A shim cannot always take away the cgroup it is in itself.
pub(super) fn remove_cgroup(folder: &JobFolder, identity: &Identity) {
    if let Some(cgroup) = cgroup(folder, identity) {
        cgroup.remove();
    }
}

/// Looks until it has been done for a while.
pub(crate) fn until(mut done: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
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
