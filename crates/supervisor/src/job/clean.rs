//! Taking an ended job's folder away, by descriptors, following nothing.

use super::folder::{JobFolder, Problem};
use super::kernel_lock;
use super::records::{ExitRecord, FenceRecord, Record};
use super::remains::remove_cgroup;
use super::spec::{Identity, Spec};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    pub entries: u64,
    pub bytes: u64,
}

/// Removes the folder of a job that has ended for good: nobody holds its lock, and its last attempt has an
/// exit or a fence record. Anything else, and anything unreadable, is refused (`PermissionDenied`). What goes wrong on
/// the way is of no kind that could mean something else, such as that there is no folder.
pub fn clean(folder: &JobFolder, dry_run: bool) -> io::Result<Cleaned> {
    clean_with(folder, dry_run, |_| Ok(()))
}

/// The same, with something to be done `before`, also in a dry run: from the look at the records until nothing is left,
/// nobody else has the lock.
pub fn clean_with(
    folder: &JobFolder,
    dry_run: bool,
    before: impl FnOnce(&JobFolder) -> io::Result<()>,
) -> io::Result<Cleaned> {
    let inside = |error: io::Error| io::Error::other(format!("job {} cannot be cleaned: {error}", folder.job_id()));
    let Some(_lock) = kernel_lock::take(folder).map_err(inside)? else {
        return Err(refused(folder, "its lock is held"));
    };
    // The lock of a folder that somebody else has just taken away guards nothing.
    if !folder.is_in_place() {
        return Err(refused(folder, "its folder was taken away just now"));
    }
    let last = last_attempt(folder)?;
    before(folder).map_err(inside)?;
    match dry_run {
        true => count_all(folder).map_err(inside),
        false => remove_all(folder, last.as_ref()).map_err(inside),
    }
}

/// The last attempt, if it is over for good. A fence without a spec is one whose spec was taken away, or never written.
fn last_attempt(folder: &JobFolder) -> io::Result<Option<Identity>> {
    let unclear = |problem: Problem| refused(folder, &problem.to_string());
    let fence: Option<FenceRecord> = Record::read_any(folder).map_err(unclear)?;
    let last = match Spec::read(folder) {
        Ok(spec) => spec.identity(),
        Err(Problem::Missing(_)) if fence.is_some() => return Ok(None),
        Err(problem) => return Err(unclear(problem)),
    };
    let exited = ExitRecord::read(folder, &last).map_err(unclear)?;
    if exited.is_none() && !fence.is_some_and(|fence| fence.forbids(&last)) {
        return Err(refused(folder, "its last attempt has neither an exit nor a fence record"));
    }
    Ok(Some(last))
}

fn count_all(folder: &JobFolder) -> io::Result<Cleaned> {
    let mut counted = Cleaned::default();
    let device = fs::fstat(folder.dir())?.st_dev;
    count(folder.dir(), device, 0, &mut counted)?;
    Ok(counted)
}

fn remove_all(folder: &JobFolder, last: Option<&Identity>) -> io::Result<Cleaned> {
    let mut cleaned = Cleaned::default();
    if let Some(last) = last {
        remove_cgroup(folder, last);
    }
    // Out of sight as a whole first: a crash in between leaves no half job.
    let doomed = CString::new(format!("{DOOMED}{}", uuid::Uuid::new_v4().simple()))?;
    fs::renameat(folder.root(), folder.job_id(), folder.root(), &doomed)?;
    remove(folder.root(), &doomed, &mut cleaned)?;
    Ok(cleaned)
}

/// Finishes what a crash interrupted in [`clean`], in all of the jobs' common folder. What cannot go does not keep the
/// rest; the first error is told in the end.
pub fn clean_leftovers(root: &Path) -> io::Result<Cleaned> {
    let root = fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut cleaned = Cleaned::default();
    let leftovers = entries(root.as_fd())?.into_iter().filter(|(name, _)| is_leftover(name.as_bytes()));
    let removed = leftovers.map(|(name, _)| {
        remove(root.as_fd(), &name, &mut cleaned)
            .map_err(|error| io::Error::other(format!("{} cannot be removed: {error}", name.to_string_lossy())))
    });
    // All of them first: collecting would stop at an error.
    let removed: Vec<io::Result<()>> = removed.collect();
    removed.into_iter().collect::<io::Result<()>>()?;
    Ok(cleaned)
}

/// No job's id begins with a dot.
pub(crate) const DOOMED: &str = ".deleted-";

pub(crate) fn is_leftover(name: &[u8]) -> bool {
    name.starts_with(DOOMED.as_bytes())
}

/// A descriptor is open per level. What lies deeper is moved up first, or left out of an archive.
pub(super) const MOST_LEVELS: usize = 64;

fn refused(folder: &JobFolder, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("job {} is not cleaned: {why}", folder.job_id()))
}

pub(super) fn open_folder(parent: BorrowedFd<'_>, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    fs::openat(parent, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// A job may have locked itself out of its own folder; this user may open it again.
pub(super) fn enter(parent: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy) -> rustix::io::Result<OwnedFd> {
    match open_folder(parent, name) {
        Err(Errno::ACCESS) => {
            fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            open_folder(parent, name)
        }
        opened => opened,
    }
}

/// The entries of a folder, read whole: removing while reading may skip some.
pub(super) fn entries(folder: BorrowedFd<'_>) -> io::Result<Vec<(CString, Stat)>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() == b"." || name.as_bytes() == b".." {
            continue;
        }
        match fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => entries.push((name, stat)),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(entries)
}

fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn foreign_mount() -> io::Error {
    io::Error::other("another file system is mounted inside; unmount it first")
}

fn remove(parent: BorrowedFd<'_>, name: &CStr, cleaned: &mut Cleaned) -> io::Result<()> {
    match enter(parent, name) {
        Ok(folder) => {
            // To be emptied it must be writable, too.
            let _then_emptying_says_why = fs::fchmod(&folder, Mode::RWXU);
            let device = fs::fstat(&folder)?.st_dev;
            remove_below(folder.as_fd(), folder.as_fd(), device, 0, cleaned)?;
            unlink(parent, name, AtFlags::REMOVEDIR)?;
        }
        Err(Errno::NOTDIR | Errno::LOOP) => unlink(parent, name, AtFlags::empty())?,
        // Another replica of this host was faster.
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    cleaned.entries += 1;
    Ok(())
}

/// What is gone already need not be removed.
fn unlink(parent: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> io::Result<()> {
    match fs::unlinkat(parent, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn remove_below(
    top: BorrowedFd<'_>,
    folder: BorrowedFd<'_>,
    device: u64,
    level: usize,
    cleaned: &mut Cleaned,
) -> io::Result<()> {
    loop {
        let found = entries(folder)?;
        for (name, stat) in &found {
            if stat.st_dev != device {
                return Err(foreign_mount());
            }
            if !is_folder(stat) {
                unlink(folder, name, AtFlags::empty())?;
                cleaned.bytes += stat.st_size as u64;
            } else if level >= MOST_LEVELS {
                fs::renameat(folder, name, top, format!(".deep-{}", uuid::Uuid::new_v4().simple()))?;
                continue;
            } else {
                // A job may have locked itself out of its own folder.
                let _then_opening_says_why = fs::chmodat(folder, name, Mode::RWXU, AtFlags::empty());
                let below = match open_folder(folder, name.as_c_str()) {
                    Err(Errno::NOENT) => continue,
                    opened => opened?,
                };
                remove_below(top, below.as_fd(), device, level + 1, cleaned)?;
                unlink(folder, name, AtFlags::REMOVEDIR)?;
            }
            cleaned.entries += 1;
        }
        // Only the top is given more while it is emptied.
        if found.is_empty() || level > 0 {
            return Ok(());
        }
    }
}

fn count(folder: BorrowedFd<'_>, device: u64, level: usize, cleaned: &mut Cleaned) -> io::Result<()> {
    for (name, stat) in entries(folder)? {
        if stat.st_dev != device {
            return Err(foreign_mount());
        }
        cleaned.entries += 1;
        if !is_folder(&stat) {
            cleaned.bytes += stat.st_size as u64;
        } else if level < MOST_LEVELS {
            match open_folder(folder, &*name) {
                Ok(below) => count(below.as_fd(), device, level + 1, cleaned)?,
                // Counting changes nothing: what it holds shows when it is removed.
                Err(Errno::ACCESS) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
