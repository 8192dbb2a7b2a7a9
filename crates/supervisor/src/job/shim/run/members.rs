//! The job's processes: everything below the shim, and everything in the job's cgroup.

use super::Shim;
use crate::job::cgroup::Cgroup;
use crate::job::processes;
use crate::job::shim::child::Child;
use rustix::process::Signal;

impl Shim {
    /// TERM, and CONT so that the stopped hear it. The command's own group gets it at once, so that nobody
    /// slips through by forking; the group's id is its own while the command is not reaped.
    pub(super) fn ask_everything(&self, child: &Child) {
        let group = child.pid.as_raw_nonzero().get();
        let others: Vec<i32> = self.members().into_iter().filter(|pid| processes::group(*pid) != Some(group)).collect();
        for signal in [Signal::TERM, Signal::CONT] {
            let _it_ended_just_now = rustix::process::kill_process_group(child.pid, signal);
            processes::signal(others.iter().copied(), signal, |pid| self.is_member(pid));
        }
    }

    pub(super) fn kill_everything(&self) {
        if let Some(cgroup) = &self.cgroup {
            let _the_tree_walk_does_it_too = cgroup.kill_job();
        }
        processes::signal(self.members(), Signal::KILL, |pid| self.is_member(pid));
    }

    /// Everything below this process, and everything in the job's cgroup.
    fn members(&self) -> Vec<i32> {
        let mut pids = processes::descendants(own_pid());
        pids.extend(self.cgroup.iter().flat_map(Cgroup::pids));
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn is_member(&self, pid: i32) -> bool {
        processes::descends(pid, own_pid()) || self.cgroup.as_ref().is_some_and(|cgroup| cgroup.pids().contains(&pid))
    }
}

pub(super) fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}
