//! The cgroups of this machine, wherever they are mounted: of version 2, but for memory that version 1 counts.

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

/// A tree of cgroups. Hybrid systems mount version 2 beside version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hierarchy {
    /// Version 2.
    Unified,
    /// The one of version 1 that counts memory.
    Memory,
}

/// Where this process' own cgroup is seen.
pub(crate) fn own() -> io::Result<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
    seen_at(&groups, &mountinfo, Hierarchy::Unified)
        .ok_or_else(|| io::Error::other("no mount of cgroup2 shows this process' cgroup"))
}

/// Where the cgroup of a process is seen, by its `/proc/PID/cgroup` and the mounts of whoever asks.
pub(crate) fn seen_at(groups: &str, mountinfo: &str, hierarchy: Hierarchy) -> Option<PathBuf> {
    let cgroup = Path::new(groups.lines().find_map(|line| hierarchy.member(line))?);
    let mut mounts = mountinfo.lines().filter_map(|line| mount(line, hierarchy));
    mounts.find_map(|mount| cgroup.strip_prefix(&mount.root).ok().map(|below| mount.at.join(below)))
}

impl Hierarchy {
    /// The cgroup that a line of `/proc/PID/cgroup` names, if the line is of this hierarchy: `id:controllers:cgroup`.
    fn member(self, line: &str) -> Option<&str> {
        let (id, rest) = line.split_once(':')?;
        let (controllers, cgroup) = rest.split_once(':')?;
        let of_it = match self {
            Hierarchy::Unified => id == "0" && controllers.is_empty(),
            Hierarchy::Memory => controllers.split(',').any(|controller| controller == MEMORY),
        };
        of_it.then_some(cgroup)
    }

    /// Whether a mount of this type, with these options of its file system, shows this hierarchy.
    fn is_shown_by(self, kind: &str, options: &str) -> bool {
        match self {
            Hierarchy::Unified => kind == "cgroup2",
            Hierarchy::Memory => kind == "cgroup" && options.split(',').any(|option| option == MEMORY),
        }
    }
}

const MEMORY: &str = "memory";

fn mounts() -> io::Result<Vec<Mount>> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mountinfo.lines().filter_map(|line| mount(line, Hierarchy::Unified)).collect())
}

/// A line of mountinfo: `id parent device root mount-point options … - type source options`.
fn mount(line: &str, hierarchy: Hierarchy) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ').skip(3);
    let (root, at) = (fields.next()?, fields.next()?);
    let mut file_system = right.split(' ');
    let (kind, options) = (file_system.next()?, file_system.nth(1).unwrap_or_default());
    hierarchy.is_shown_by(kind, options).then(|| Mount { root: unescaped(root), at: unescaped(at) })
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
        let found = mount(hybrid, Hierarchy::Unified).unwrap();
        assert_eq!((found.root, found.at), ("/".into(), "/sys/fs/cgroup/uni fied".into()));
        let named = "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd";
        assert!(mount(named, Hierarchy::Unified).is_none() && mount(named, Hierarchy::Memory).is_none());
        assert!(mount("", Hierarchy::Unified).is_none());
    }

    #[test]
    fn a_cgroup_is_found_by_what_its_mount_shows() {
        let mounts = "30 1 0:30 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 1 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "4:cpu,memory:/box/inner\n9:name=memory:/other\n0::/server\n";
        let seen = |groups, hierarchy| seen_at(groups, mounts, hierarchy);
        assert_eq!(seen(groups, Hierarchy::Memory), Some("/sys/fs/cgroup/memory/inner".into()));
        assert_eq!(seen(groups, Hierarchy::Unified), Some("/sys/fs/cgroup/unified/server".into()));
        assert_eq!(seen("4:memory:/elsewhere\n", Hierarchy::Memory), None, "no mount shows that one");
        assert_eq!(seen("no cgroup at all", Hierarchy::Unified), None);
    }
}
