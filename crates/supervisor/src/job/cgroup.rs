//! A cgroup (v2) per attempt: `everbeat-{jobId}-{attempt}-…/` with the leaves `shim` and `job`.
//!
//! It lies below the cgroup in which the shim is started, because that is what an unprivileged server may
//! have been given. Its name is the identity: killing it can reach nobody else.

use super::spec::Identity;
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
        Ok(Cgroup { path: own()?.join(name(job_id, identity)) })
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
        (ours && mounts().ok()?.iter().any(|mount| path.starts_with(&mount.at)))
            .then(|| Cgroup { path: path.to_owned() })
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
        gone_is_fine(fs::write(self.job().join("cgroup.kill"), "1"))
    }

    /// Kills the shim too.
    pub(crate) fn kill_all(&self) -> io::Result<()> {
        gone_is_fine(fs::write(self.path.join("cgroup.kill"), "1"))
    }

    /// Whether it was made at all.
    pub(crate) fn exists(&self) -> bool {
        self.job().is_dir()
    }

    /// Whether the job's part holds no process any more.
    pub(crate) fn job_is_empty(&self) -> io::Result<bool> {
        is_empty(&self.job())
    }

    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        is_empty(&self.path)
    }

    /// The processes of the job, those in groups of its own making included.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        let mut folders = vec![self.job()];
        while let Some(folder) = folders.pop() {
            let listed = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            pids.extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
            folders.extend(subfolders(&folder));
        }
        pids
    }

    /// Moves this process out again, so that the cgroup can go.
    pub(crate) fn leave(&self) {
        if let Some(parent) = self.path.parent() {
            let _then_it_stays = fs::write(parent.join("cgroup.procs"), "0");
        }
    }

    /// Removes what is empty.
    pub(crate) fn remove(&self) {
        fn remove_below(folder: &Path) {
            subfolders(folder).iter().for_each(|folder| remove_below(folder));
            let _not_empty_or_gone = fs::remove_dir(folder);
        }
        remove_below(&self.path);
    }

    fn job(&self) -> PathBuf {
        self.path.join(JOB)
    }
}

fn name(job_id: &str, identity: &Identity) -> String {
    format!("everbeat-{job_id}-{}-{}", identity.attempt, &identity.tag()[..8])
}

fn is_empty(folder: &Path) -> io::Result<bool> {
    match fs::read_to_string(folder.join("cgroup.events")) {
        Ok(events) => Ok(events.lines().any(|line| line == "populated 0")),
        Err(error) if is_gone(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

struct Mount {
    /// The cgroup that is seen at the mount point.
    root: PathBuf,
    at: PathBuf,
}

/// Where this process' own cgroup is seen. Hybrid systems mount version 2 beside version 1.
fn own() -> io::Result<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let own = Path::new(own.ok_or_else(|| io::Error::other("this process has no cgroup of version 2"))?);
    mounts()?
        .iter()
        .find_map(|mount| own.strip_prefix(&mount.root).ok().map(|below| mount.at.join(below)))
        .ok_or_else(|| io::Error::other("no mount of cgroup2 shows this process' cgroup"))
}

fn mounts() -> io::Result<Vec<Mount>> {
    Ok(fs::read_to_string("/proc/self/mountinfo")?.lines().filter_map(mount).collect())
}

/// A line of mountinfo: `id parent device root mount-point options … - type source options`.
fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ').skip(3);
    let (root, at) = (fields.next()?, fields.next()?);
    (right.split(' ').next()? == "cgroup2").then(|| Mount { root: unescaped(root), at: unescaped(at) })
}

/// The kernel writes blanks in paths as `\040`.
fn unescaped(field: &str) -> PathBuf {
    PathBuf::from(field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_of_version_2_is_found_wherever_it_is() {
        let hybrid = "41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:1 - cgroup2 cgroup2 rw";
        let found = mount(hybrid).unwrap();
        assert_eq!((found.root, found.at), ("/".into(), "/sys/fs/cgroup/uni fied".into()));
        assert!(mount("40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd").is_none());
        assert!(mount("").is_none());
    }

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
