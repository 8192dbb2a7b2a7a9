//! What may be left of a guardian and its workers: found by their cgroup and by their tags.

use super::cgroup::PoolCgroup;
use super::environment::{GUARDIAN_TAG, WORKER_TAG};
use super::folder::GuardianFolder;
use crate::job::remains::until;
use crate::job::{clock, processes};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io;

#[derive(Debug)]
pub(super) struct Leftovers {
    cgroup: Option<PoolCgroup>,
    tag: String,
}

impl Leftovers {
    /// None if the guardian was of another boot: nothing outlives one.
    pub(super) fn of(folder: &GuardianFolder) -> io::Result<Option<Leftovers>> {
        let tag = folder.tag().to_owned();
        let note = folder.note();
        if note.as_ref().is_some_and(|note| clock::boot_id().is_ok_and(|boot_id| boot_id != note.boot_id)) {
            return Ok(None);
        }
        let cgroup = note.and_then(|note| PoolCgroup::noted(&note.cgroup?, &tag));
        Ok(Some(Leftovers { cgroup, tag }))
    }

    /// Kills until nothing is left. Answers how many processes there were.
    pub(super) fn end(&self) -> io::Result<usize> {
        let tags = [(GUARDIAN_TAG, self.tag.as_str()), (WORKER_TAG, self.tag.as_str())];
        let mut found = BTreeSet::new();
        until(|| {
            let mut empty = true;
            if let Some(cgroup) = &self.cgroup {
                found.extend(cgroup.pids());
                cgroup.kill()?;
                empty = cgroup.is_empty()?;
            }
            let tagged = processes::tagged(&tags);
            found.extend(&tagged);
            let killed = processes::signal(tagged, Signal::KILL, |pid| processes::has_tag(pid, &tags));
            Ok(killed == 0 && empty)
        })?;
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
        Ok(found.len())
    }
}
