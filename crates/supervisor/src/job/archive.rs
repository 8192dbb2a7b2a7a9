//! Keeping what a workspace holds, by descriptors, following nothing.

use super::clean::{MOST_LEVELS, enter, entries, open_folder};
use super::folder::{JobFolder, WORKSPACE};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archived {
    pub files: u64,
    pub bytes: u64,
    /// What is not a plain file or folder, was too large, lay too deep, or could not be opened.
    pub left_out: u64,
}

/// Copies the plain files and folders of the workspace to `to`, which must not exist, up to `most_bytes`. A workspace
/// that is not there holds nothing.
pub fn archive(folder: &JobFolder, to: &Path, most_bytes: u64) -> io::Result<Archived> {
    let workspace = match enter(folder.dir(), WORKSPACE) {
        Err(error) if is_no_folder(error) => None,
        opened => Some(opened?),
    };
    fs::mkdir(to, Mode::RWXU)?;
    let target = fs::open(to, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let mut archived = Archived::default();
    if let Some(workspace) = workspace {
        let device = fs::fstat(&workspace)?.st_dev;
        copy_below(workspace.as_fd(), target.as_fd(), device, 0, most_bytes, &mut archived)?;
    }
    fs::fsync(&target)?;
    Ok(archived)
}

/// Whether there is anything to archive. What cannot be looked at may hold something.
pub(crate) fn has_results(folder: &JobFolder) -> io::Result<bool> {
    match open_folder(folder.dir(), WORKSPACE) {
        Ok(workspace) => Ok(!entries(workspace.as_fd())?.is_empty()),
        Err(Errno::ACCESS) => Ok(true),
        Err(error) if is_no_folder(error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_no_folder(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
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
                let Ok(from) = enter(from, &*name) else {
                    archived.left_out += 1;
                    continue;
                };
                fs::mkdirat(to, &name, Mode::RWXU)?;
                let to = open_folder(to, &*name)?;
                copy_below(from.as_fd(), to.as_fd(), device, level + 1, most_bytes, archived)?;
                fs::fsync(&to)?;
            }
            FileType::RegularFile if archived.bytes.saturating_add(stat.st_size as u64) <= most_bytes => {
                match open_source(from, &name) {
                    Ok(source) => {
                        archived.bytes += copy_file(source, to, &name, most_bytes - archived.bytes)?;
                        archived.files += 1;
                    }
                    Err(_) => archived.left_out += 1,
                }
            }
            _ => archived.left_out += 1,
        }
    }
    Ok(())
}

/// A plain file, also one that the job has closed to itself.
fn open_source(from: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source = match fs::openat(from, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            fs::chmodat(from, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
            fs::openat(from, name, flags, Mode::empty())
        }
        opened => opened,
    };
    let source = File::from(source?);
    match source.metadata()?.is_file() {
        true => Ok(source),
        false => Err(io::Error::other("it is no plain file any more")),
    }
}

fn copy_file(source: File, to: BorrowedFd<'_>, name: &CStr, most_bytes: u64) -> io::Result<u64> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut target = File::from(fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?);
    let copied = io::copy(&mut source.take(most_bytes), &mut target)?;
    target.flush()?;
    target.sync_all()?;
    Ok(copied)
}
