//! The cgroup of a guardian: `everbeat-pool-{nonce}-{guardian}/` with the leaf `guardian` and a leaf for each worker.
//!
//! It lies below the cgroup of the server, because that is what an unprivileged server may have been given. Its name is
//! the identity: killing it can reach nobody else.

use crate::cgroups;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct PoolCgroup {
    path: PathBuf,
}

const GUARDIAN: &str = "guardian";

impl PoolCgroup {
    /// Where this guardian's cgroup would be. Noted before it is made, so that whoever cleans up finds it.
    pub(super) fn planned(tag: &str) -> io::Result<PoolCgroup> {
        Ok(PoolCgroup { path: cgroups::own()?.join(name(tag)) })
    }

    /// Makes the cgroup and moves this process, the guardian, into its leaf.
    pub(super) fn create(self) -> io::Result<PoolCgroup> {
        let made = (|| {
            fs::create_dir(&self.path)?;
            fs::create_dir(self.path.join(GUARDIAN))?;
            // Kernels before 5.14 have no such file.
            OpenOptions::new().write(true).open(self.path.join(GUARDIAN).join("cgroup.kill"))?;
            fs::write(self.path.join(GUARDIAN).join("cgroup.procs"), "0")
        })();
        made.inspect_err(|_| self.remove())?;
        // Where memory is counted here at all, it is counted for each worker.
        let _it_is_not = fs::write(self.path.join("cgroup.subtree_control"), "+memory");
        Ok(self)
    }

    /// The cgroup that a guardian noted, if the note names one of that guardian's in a cgroup file system.
    pub(super) fn noted(path: &Path, tag: &str) -> Option<PoolCgroup> {
        let ours = path.file_name().is_some_and(|file| *file == *name(tag));
        (ours && cgroups::holds(path)).then(|| PoolCgroup { path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A leaf for one worker.
    pub(super) fn leaf(&self, id: u64) -> io::Result<Leaf> {
        let path = self.path.join(format!("w{id}"));
        fs::create_dir(&path)?;
        Ok(Leaf { path })
    }

    pub(super) fn pids(&self) -> Vec<i32> {
        cgroups::pids(&self.path)
    }

    /// Kills the guardian and all workers.
    pub(super) fn kill(&self) -> io::Result<()> {
        cgroups::kill(&self.path)
    }

    pub(super) fn is_empty(&self) -> io::Result<bool> {
        cgroups::is_empty(&self.path)
    }

    /// Moves this process out again, so that the cgroup can go.
    pub(super) fn leave(&self) {
        if let Some(parent) = self.path.parent() {
            let _then_the_next_sweep_removes_it = fs::write(parent.join("cgroup.procs"), "0");
        }
    }

    pub(super) fn remove(&self) {
        cgroups::remove(&self.path);
    }
}

fn name(tag: &str) -> String {
    format!("everbeat-pool-{tag}")
}

/// The cgroup of one worker, and of all it starts.
#[derive(Debug)]
pub(super) struct Leaf {
    path: PathBuf,
}

impl Leaf {
    /// The leaf of which a guardian told.
    pub(super) fn at(path: PathBuf) -> Leaf {
        Leaf { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writing "0" here moves the writer in.
    pub(super) fn door(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        cgroups::kill(&self.path)
    }

    pub(super) fn pids(&self) -> Vec<i32> {
        cgroups::pids(&self.path)
    }

    /// What cannot be read is not empty.
    pub(super) fn is_empty(&self) -> bool {
        cgroups::is_empty(&self.path).unwrap_or(false)
    }

    pub(super) fn remove(&self) {
        cgroups::remove(&self.path);
    }

    /// Whether the kernel killed a process in it for lack of memory. None without the memory controller: then nobody
    /// counts here.
    pub(super) fn ran_out_of_memory(&self) -> Option<bool> {
        let events = fs::read_to_string(self.path.join("memory.events")).ok()?;
        field(&events, "oom_kill").map(|killed| killed > 0)
    }

    /// CPU time of all that has run in it.
    pub(super) fn cpu_us(&self) -> Option<u64> {
        field(&fs::read_to_string(self.path.join("cpu.stat")).ok()?, "usage_usec")
    }

    pub(super) fn memory_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.path.join("memory.current")).ok()?.trim().parse().ok()
    }
}

/// A number in a file of lines `name number`.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_names_anything_else_is_not_believed() {
        let tag = format!("{}-0", "0".repeat(32));
        for path in ["/", "/sys/fs/cgroup", "/etc/everbeat-pool-0", "/sys/fs/cgroup/unified"] {
            assert!(PoolCgroup::noted(Path::new(path), &tag).is_none(), "{path}");
        }
        assert!(PoolCgroup::noted(&Path::new("/tmp").join(name(&tag)), &tag).is_none());
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "oom 3\noom_kill 2\noom_group_kill 5\n";
        assert_eq!((field(text, "oom_kill"), field(text, "oom_k"), field(text, "oom")), (Some(2), None, Some(3)));
    }
}
