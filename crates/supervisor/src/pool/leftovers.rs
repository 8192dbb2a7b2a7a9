//! What may be left of a guardian and its workers: found by their cgroup and by their tags.

use super::cgroup::PoolCgroup;
use super::environment::{GUARDIAN_TAG, WORKER_TAG};
use super::folder::GuardianFolder;
use crate::job::processes::Tag;
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
            Ok(kill(tagged, &tags) == 0 && empty)
        })?;
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
        Ok(found.len())
    }
}

/// Kills those who bear a tag still, as looked at after their pidfd was opened: the number of one that was found may be
/// another's by now.
fn kill(found: Vec<i32>, tags: &[Tag<'_>]) -> usize {
    processes::signal(found, Signal::KILL, |pid| processes::has_tag(pid, tags))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    const INSIDE: &str = "POOLS_TEST_INSIDE";
    const TAGS: [Tag<'static>; 1] = [(WORKER_TAG, "recycled")];

    /// Runs this test once more in a PID namespace of its own, where numbers can be chosen.
    #[test]
    fn a_number_that_has_become_anothers_is_not_signalled() {
        if std::env::var_os(INSIDE).is_some() {
            return recycle();
        }
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]);
        if !command.arg("true").status().is_ok_and(|status| status.success()) {
            eprintln!("without namespaces no number can be chosen here");
            return;
        }
        let name = "pool::leftovers::tests::a_number_that_has_become_anothers_is_not_signalled";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture", "--test-threads=1"]);
        assert!(command.env(INSIDE, "1").status().unwrap().success());
    }

    fn recycle() {
        let worker = sleeper("recycled");
        let number = worker.id();
        let found = tagged_eventually();
        assert_eq!(found, [number as i32]);
        end(worker);
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).unwrap();
        let mut bystander = sleeper("somebody else's");
        assert_eq!(bystander.id(), number, "the number has become another's");
        assert_eq!(kill(found, &TAGS), 0);
        assert!(bystander.try_wait().unwrap().is_none(), "it lives");
        end(bystander);
    }

    fn sleeper(tag: &str) -> Child {
        Command::new("sleep").arg("1000").env(WORKER_TAG, tag).spawn().unwrap()
    }

    /// A process that is just starting a program shows no environment for a moment.
    fn tagged_eventually() -> Vec<i32> {
        let look = |_| {
            clock::pause(1);
            Some(processes::tagged(&TAGS)).filter(|found| !found.is_empty())
        };
        (0..5000).find_map(look).unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
