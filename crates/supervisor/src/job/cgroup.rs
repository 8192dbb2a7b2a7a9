//! A cgroup (v2) per attempt: `everbeat-{jobId}-{attempt}-…/` with the leaves `shim` and `job`.
//!
//! It lies below the cgroup in which the shim is started, because that is what an unprivileged server may
//! have been given. Its name is the identity: killing it can reach nobody else.

use super::spec::Identity;
use crate::cgroups;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

const SHIM: &str = "shim";
const JOB: &str = "job";

impl Cgroup {
    /// Where this attempt's cgroup would be. Noted before it is made, so that whoever cleans up finds it.
    pub(crate) fn planned(job_id: &str, identity: &Identity) -> io::Result<Cgroup> {
        Ok(Cgroup { path: cgroups::own()?.join(name(job_id, identity)) })
    }

    /// Makes the cgroup and moves this process, the shim, into its leaf.
    pub(crate) fn create(self) -> io::Result<Cgroup> {
        let made = (|| {
            for folder in [self.path.clone(), self.path.join(SHIM), self.job()] {
                match fs::create_dir(&folder) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
            }
            // Kernels before 5.14 have no such file; the tree walk does for them.
            OpenOptions::new().write(true).open(self.job().join("cgroup.kill"))?;
            fs::write(self.path.join(SHIM).join("cgroup.procs"), "0")
        })();
        made.inspect_err(|_| self.remove())?;
        Ok(self)
    }

    /// The cgroup that a shim noted, if the note names one of this attempt's in a cgroup file system.
    pub(crate) fn noted(path: &Path, job_id: &str, identity: &Identity) -> Option<Cgroup> {
        let ours = path.file_name().is_some_and(|file| *file == *name(job_id, identity));
        (ours && cgroups::holds(path)).then(|| Cgroup { path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writing "0" here moves the writer among the job's processes.
    pub(crate) fn door(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.job().join("cgroup.procs"))
    }

    /// Kills the job's processes, all at once.
    pub(crate) fn kill_job(&self) -> io::Result<()> {
        cgroups::kill(&self.job())
    }

    /// Kills the shim too.
    pub(crate) fn kill_all(&self) -> io::Result<()> {
        cgroups::kill(&self.path)
    }

    /// Whether it was made at all.
    pub(crate) fn exists(&self) -> bool {
        self.job().is_dir()
    }

    /// Whether the job's part holds no process any more.
    pub(crate) fn job_is_empty(&self) -> io::Result<bool> {
        cgroups::is_empty(&self.job())
    }

    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        cgroups::is_empty(&self.path)
    }

    /// The processes of the job, those in groups of its own making included.
    pub(crate) fn pids(&self) -> Vec<i32> {
        cgroups::pids(&self.job())
    }

    /// Moves this process out again, so that the cgroup can go.
    pub(crate) fn leave(&self) {
        if let Some(parent) = self.path.parent() {
            let _then_it_stays = fs::write(parent.join("cgroup.procs"), "0");
        }
    }

    /// Removes what is empty.
    pub(crate) fn remove(&self) {
        cgroups::remove(&self.path);
    }

    fn job(&self) -> PathBuf {
        self.path.join(JOB)
    }
}

fn name(job_id: &str, identity: &Identity) -> String {
    format!("everbeat-{job_id}-{}-{}", identity.attempt, &identity.tag()[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_names_anything_else_is_not_believed() {
        let identity = Identity { attempt: 3, token: "00".repeat(16) };
        for path in ["/", "/sys/fs/cgroup", "/etc/everbeat-j-3-00000000"] {
            assert!(Cgroup::noted(Path::new(path), "j", &identity).is_none(), "{path}");
        }
        let elsewhere = Path::new("/tmp").join(name("j", &identity));
        assert!(Cgroup::noted(&elsewhere, "j", &identity).is_none());
    }
}
