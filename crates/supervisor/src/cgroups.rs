//! The cgroups (v2) of this machine, wherever they are mounted.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Whether a path lies in a cgroup file system.
pub(crate) fn holds(path: &Path) -> bool {
    mounts().is_ok_and(|mounts| mounts.iter().any(|mount| path.starts_with(&mount.at)))
}

/// Kills all processes in a cgroup and below it, at once.
pub(crate) fn kill(folder: &Path) -> io::Result<()> {
    gone_is_fine(fs::write(folder.join("cgroup.kill"), "1"))
}

/// The processes in a cgroup and below it.
pub(crate) fn pids(folder: &Path) -> Vec<i32> {
    let mut pids = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let listed = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        pids.extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
        folders.extend(subfolders(&folder));
    }
    pids
}

/// Removes what is empty.
pub(crate) fn remove(folder: &Path) {
    subfolders(folder).iter().for_each(|folder| remove(folder));
    let _not_empty_or_gone = fs::remove_dir(folder);
}

/// Whether there is no process in a cgroup nor below it.
pub(crate) fn is_empty(folder: &Path) -> io::Result<bool> {
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
pub(crate) fn own() -> io::Result<PathBuf> {
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
}
