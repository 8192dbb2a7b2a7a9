//! Taking an ended job's folder away, by descriptors, following nothing.

use super::folder::{JobFolder, WORKSPACE};
use super::kernel_lock;
use super::records::{ExitRecord, FenceRecord, Record};
use super::remains::remove_cgroup;
use super::spec::Spec;
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    pub entries: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archived {
    pub files: u64,
    pub bytes: u64,
    /// What is not a plain file or folder, was too large, or lay too deep.
    pub left_out: u64,
}

/// Removes the folder of a job that has ended for good: nobody holds its lock, and its last attempt has an
/// exit or a fence record. Anything else, and anything unreadable, is refused.
pub fn clean(folder: &JobFolder, dry_run: bool) -> io::Result<Cleaned> {
    let Some(_lock) = kernel_lock::take(folder)? else { return Err(refused(folder, "its lock is held")) };
    let spec = Spec::read(folder).map_err(|problem| refused(folder, &problem.to_string()))?;
    let exited = ExitRecord::read(folder, &spec.identity()).map_err(|problem| refused(folder, &problem.to_string()))?;
    let fence: Option<FenceRecord> =
        Record::read_any(folder).map_err(|problem| refused(folder, &problem.to_string()))?;
    if exited.is_none() && !fence.is_some_and(|fence| fence.forbids(&spec.identity())) {
        return Err(refused(folder, "its last attempt has neither an exit nor a fence record"));
    }
    let mut cleaned = Cleaned::default();
    if dry_run {
        let device = fs::fstat(folder.dir())?.st_dev;
        count(folder.dir(), device, 0, &mut cleaned)?;
        return Ok(cleaned);
    }
    remove_cgroup(folder, &spec.identity());
    // Out of sight as a whole first: a crash in between leaves no half job.
    let doomed = CString::new(format!("{DOOMED}{}", uuid::Uuid::new_v4().simple()))?;
    fs::renameat(folder.root(), folder.job_id(), folder.root(), &doomed)?;
    remove(folder.root(), &doomed, &mut cleaned)?;
    Ok(cleaned)
}

/// Finishes what a crash interrupted in [`clean`], in all of the jobs' common folder.
pub fn clean_leftovers(root: &Path) -> io::Result<Cleaned> {
    let root = fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut cleaned = Cleaned::default();
    for (name, _) in entries(root.as_fd())? {
        if is_leftover(name.as_bytes()) {
            remove(root.as_fd(), &name, &mut cleaned)?;
        }
    }
    Ok(cleaned)
}

/// No job's id begins with a dot.
pub(crate) const DOOMED: &str = ".deleted-";

pub(super) fn is_leftover(name: &[u8]) -> bool {
    name.starts_with(DOOMED.as_bytes())
}

/// Copies the plain files and folders of the workspace to `to`, which must not exist, up to `most_bytes`.
pub fn archive(folder: &JobFolder, to: &Path, most_bytes: u64) -> io::Result<Archived> {
    let workspace = open_folder(folder.dir(), WORKSPACE)?;
    let device = fs::fstat(&workspace)?.st_dev;
    fs::mkdir(to, Mode::RWXU)?;
    let target = fs::open(to, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let mut archived = Archived::default();
    copy_below(workspace.as_fd(), target.as_fd(), device, 0, most_bytes, &mut archived)?;
    fs::fsync(&target)?;
    Ok(archived)
}

/// A descriptor is open per level. What lies deeper is moved up first, or left out of an archive.
const MOST_LEVELS: usize = 64;

fn refused(folder: &JobFolder, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("job {} is not cleaned: {why}", folder.job_id()))
}

pub(super) fn open_folder(parent: BorrowedFd<'_>, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    fs::openat(parent, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// The entries of a folder, read whole: removing while reading may skip some.
fn entries(folder: BorrowedFd<'_>) -> io::Result<Vec<(CString, Stat)>> {
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
    let folder = open_folder(parent, name)?;
    let device = fs::fstat(&folder)?.st_dev;
    remove_below(folder.as_fd(), folder.as_fd(), device, 0, cleaned)?;
    fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
    cleaned.entries += 1;
    Ok(())
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
                fs::unlinkat(folder, name, AtFlags::empty())?;
                cleaned.bytes += stat.st_size as u64;
            } else if level >= MOST_LEVELS {
                fs::renameat(folder, name, top, format!(".deep-{}", uuid::Uuid::new_v4().simple()))?;
                continue;
            } else {
                // A job may have locked itself out of its own folder.
                let _then_opening_says_why = fs::chmodat(folder, name, Mode::RWXU, AtFlags::empty());
                let below = open_folder(folder, name.as_c_str())?;
                remove_below(top, below.as_fd(), device, level + 1, cleaned)?;
                fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?;
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
            count(open_folder(folder, &*name)?.as_fd(), device, level + 1, cleaned)?;
        }
    }
    Ok(())
}

fn copy_below(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    device: u64,
    level: usize,
    most_bytes: u64,
    archived: &mut Archived,
) -> io::Result<()> {
    for (name, stat) in entries(from)? {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if level < MOST_LEVELS && stat.st_dev == device => {
                fs::mkdirat(to, &name, Mode::RWXU)?;
                let (from, to) = (open_folder(from, &*name)?, open_folder(to, &*name)?);
                copy_below(from.as_fd(), to.as_fd(), device, level + 1, most_bytes, archived)?;
            }
            FileType::RegularFile if archived.bytes.saturating_add(stat.st_size as u64) <= most_bytes => {
                archived.bytes += copy_file(from, to, &name, most_bytes - archived.bytes)?;
                archived.files += 1;
            }
            _ => archived.left_out += 1,
        }
    }
    Ok(())
}

fn copy_file(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr, most_bytes: u64) -> io::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source = File::from(fs::openat(from, name, flags, Mode::empty())?);
    if !source.metadata()?.is_file() {
        return Ok(0);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut target = File::from(fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?);
    let copied = io::copy(&mut source.take(most_bytes), &mut target)?;
    target.flush()?;
    target.sync_all()?;
    Ok(copied)
}
