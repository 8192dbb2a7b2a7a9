//! The folder of one job. Everything in it is opened relative to a descriptor of the folder and trusted
//! no further than a stranger's: a link, a FIFO, a device, another owner or a giant is a [`Problem`].

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct JobFolder {
    root: OwnedFd,
    dir: OwnedFd,
    job_id: String,
    path: PathBuf,
}

pub(crate) const SPEC: &str = "spec.json";
pub(crate) const SENTINEL: &str = ".sentinel.json";
pub(crate) const LOCK: &str = "lock";
pub(crate) const SOCKET: &str = "sock";
pub(crate) const STARTED: &str = "started.json";
pub(crate) const EXIT: &str = "exit.json";
pub(crate) const FENCE: &str = "fence.json";
pub(crate) const CANCEL: &str = "cancel.json";
pub(crate) const PAST: &str = "past.json";
pub(crate) const WORKSPACE: &str = "workspace";
const INPUT: &str = "input.json";

/// A sentinel is about 1 KiB; progress may add 16.
pub(crate) const MOST_SENTINEL_BYTES: u64 = 64 << 10;
/// A spec holds a whole environment.
pub(crate) const MOST_RECORD_BYTES: u64 = 1 << 20;
const TEMPORARY: &str = ".tmp-";

/// Why something in a job's folder could not be read. Never a proof of death.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{0} does not exist")]
    Missing(String),
    #[error("{0} is a {1}, not a regular file")]
    WrongKind(String, &'static str),
    #[error("{0} belongs to user {1}, not to this one")]
    WrongOwner(String, u32),
    #[error("{0} has {1} bytes, more than {2}")]
    TooLarge(String, u64, u64),
    #[error("{0} cannot be read: {1}")]
    Unreadable(String, #[source] io::Error),
    #[error("{0} is malformed: {1}")]
    Malformed(String, String),
    #[error("{0} is of another attempt or job")]
    Foreign(String),
    #[error("{0} is a copy of a job's folder; what it tells of lives or died elsewhere")]
    Copied(String),
}

impl Problem {
    /// For who wants no verdict, only to try again. What the kernel said stays in it.
    pub(crate) fn into_error(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self)
    }
}

impl JobFolder {
    /// Makes `{root}/{job_id}/workspace`, both 0700, durably; what exists stays.
    pub fn create(root: &Path, job_id: &str) -> io::Result<JobFolder> {
        let folder = JobFolder::create_bare(root, job_id)?;
        make_folder(folder.dir.as_fd(), WORKSPACE)?;
        fs::fsync(&folder.dir)?;
        Ok(folder)
    }

    /// The same without a workspace: a folder that has none is not one in which a job may begin.
    pub(crate) fn create_bare(root: &Path, job_id: &str) -> io::Result<JobFolder> {
        let name = checked(job_id)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        let root_fd = fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        make_folder(root_fd.as_fd(), name)?;
        fs::fsync(&root_fd)?;
        JobFolder::open(root, job_id)
    }

    pub(crate) fn has_workspace(&self) -> bool {
        self.exists(WORKSPACE)
    }

    pub fn open(root: &Path, job_id: &str) -> io::Result<JobFolder> {
        let root = std::path::absolute(root)?;
        let root_fd = fs::open(&root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        JobFolder::open_in(&root, root_fd, job_id)
    }

    /// Opens a folder of a root that is open already.
    pub(crate) fn open_in(root: &Path, root_fd: OwnedFd, job_id: &str) -> io::Result<JobFolder> {
        let name = checked(job_id)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match fs::openat(&root_fd, name, flags, Mode::empty()) {
            // A job may have locked itself, and everybody else, out of its folder.
            Err(Errno::ACCESS) if is_folder(root_fd.as_fd(), name) => {
                fs::chmodat(&root_fd, name, Mode::RWXU, AtFlags::empty())?;
                fs::openat(&root_fd, name, flags, Mode::empty())
            }
            opened => opened,
        }?;
        let owner = fs::fstat(&dir)?.st_uid;
        if owner != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other(format!("the folder of job {job_id} belongs to user {owner}")));
        }
        Ok(JobFolder { root: root_fd, dir, job_id: job_id.to_owned(), path: root.join(name) })
    }

    /// Whether this is what its name leads to: somebody may have moved it away since it was opened.
    pub(crate) fn is_in_place(&self) -> bool {
        let named = fs::statat(&self.root, &*self.job_id, AtFlags::SYMLINK_NOFOLLOW);
        match (named, fs::fstat(&self.dir)) {
            (Ok(named), Ok(open)) => (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino),
            _ => false,
        }
    }

    /// Whether it was deleted since it was opened: no name leads to it any more, nor ever will.
    pub(crate) fn is_deleted(&self) -> bool {
        fs::fstat(&self.dir).is_ok_and(|folder| folder.st_nlink == 0)
    }

    /// Opens a folder by its own path.
    pub fn open_path(path: &Path) -> io::Result<JobFolder> {
        let absolute = std::path::absolute(path)?;
        match (absolute.parent(), absolute.file_name().and_then(|name| name.to_str())) {
            (Some(root), Some(job_id)) => JobFolder::open(root, job_id),
            _ => Err(io::Error::other(format!("{} is not a job's folder", path.display()))),
        }
    }

    pub fn job_id(&self) -> &str {
        &self.job_id
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn workspace(&self) -> PathBuf {
        self.path.join(WORKSPACE)
    }

    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A path to `name` that is short whatever the folder's own is: a socket's may have 107 bytes.
    pub(crate) fn short_path(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd())
    }

    /// Opens a regular file of this user for reading; never waits, never follows.
    pub(crate) fn open_file(&self, name: &str) -> Result<(File, fs::Stat), Problem> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let unreadable = |error: Errno| match error {
            Errno::NOENT => Problem::Missing(name.into()),
            Errno::LOOP => Problem::WrongKind(name.into(), "symbolic link"),
            Errno::NXIO => Problem::WrongKind(name.into(), "socket"),
            other => Problem::Unreadable(name.into(), other.into()),
        };
        let file = File::from(fs::openat(&self.dir, name, flags, Mode::empty()).map_err(unreadable)?);
        let stat = fs::fstat(&file).map_err(unreadable)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Problem::WrongKind(name.into(), "directory")),
            FileType::Fifo => return Err(Problem::WrongKind(name.into(), "FIFO")),
            _ => return Err(Problem::WrongKind(name.into(), "device")),
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Problem::WrongOwner(name.into(), stat.st_uid));
        }
        Ok((file, stat))
    }

    pub(crate) fn read(&self, name: &str, most_bytes: u64) -> Result<Vec<u8>, Problem> {
        let (file, stat) = self.open_file(name)?;
        let size = stat.st_size as u64;
        if size > most_bytes {
            return Err(Problem::TooLarge(name.into(), size, most_bytes));
        }
        let mut bytes = Vec::with_capacity(size as usize);
        file.take(most_bytes + 1).read_to_end(&mut bytes).map_err(|error| Problem::Unreadable(name.into(), error))?;
        match bytes.len() as u64 {
            length if length > most_bytes => Err(Problem::TooLarge(name.into(), length, most_bytes)),
            _ => Ok(bytes),
        }
    }

    pub(crate) fn read_json<T: DeserializeOwned>(&self, name: &str, most_bytes: u64) -> Result<T, Problem> {
        let bytes = self.read(name, most_bytes)?;
        serde_json::from_slice(&bytes).map_err(|error| Problem::Malformed(name.into(), error.to_string()))
    }

    /// Replaces a file as a whole: readers see the old or the new one, also after a crash of the machine.
    pub(crate) fn write_durably(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        self.write_durably_with(name, content, || {})
    }

    /// Writes what the command is to read from its stdin, durably and as a whole. Its name belongs in the spec.
    pub fn write_input(&self, bytes: &[u8]) -> io::Result<String> {
        self.replace(INPUT, bytes, true, || {})?;
        fs::fsync(&self.dir)?;
        Ok(INPUT.to_owned())
    }

    pub(crate) fn write_durably_with(
        &self,
        name: &str,
        content: &impl Serialize,
        before_rename: impl FnOnce(),
    ) -> io::Result<()> {
        self.replace(name, &serde_json::to_vec(content)?, true, before_rename)?;
        Ok(fs::fsync(&self.dir)?)
    }

    /// Replaces a file as a whole, without waiting for the disk.
    pub(crate) fn write_quickly(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        self.replace(name, &serde_json::to_vec(content)?, false, || {})
    }

    fn replace(&self, name: &str, content: &[u8], sync: bool, before_rename: impl FnOnce()) -> io::Result<()> {
        let (temporary, mut file) = self.create_temporary()?;
        let written = (|| {
            file.write_all(content)?;
            if sync {
                file.sync_all()?;
            }
            before_rename();
            fs::renameat(&self.dir, &temporary, &self.dir, name)?;
            io::Result::Ok(())
        })();
        if written.is_err() {
            let _nothing_more_to_do = fs::unlinkat(&self.dir, &temporary, AtFlags::empty());
        }
        written
    }

    pub(crate) fn create_temporary(&self) -> io::Result<(String, File)> {
        let name = format!("{TEMPORARY}{}", uuid::Uuid::new_v4().simple());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(&self.dir, &name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok((name, file.into()))
    }

    pub(crate) fn unlink(&self, name: &str) -> io::Result<()> {
        match fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what cannot be understood out of the way, whatever it is, and keeps it for people.
    pub(crate) fn set_aside(&self, name: &str) -> io::Result<()> {
        let aside = format!(".unreadable-{name}-{}", uuid::Uuid::new_v4().simple());
        match fs::renameat(&self.dir, name, &self.dir, aside) {
            Ok(()) | Err(Errno::NOENT) => Ok(fs::fsync(&self.dir)?),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Removes what a killed writer left behind. Only for the lock's holder: it is the only writer then.
    pub(crate) fn remove_temporaries(&self) -> io::Result<()> {
        for entry in fs::Dir::read_from(&self.dir)? {
            let entry = entry?;
            if entry.file_name().to_bytes().starts_with(TEMPORARY.as_bytes()) {
                fs::unlinkat(&self.dir, entry.file_name(), AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

/// A job's id is made by the server; whatever it is, as a file's name it must stay inside.
fn checked(job_id: &str) -> io::Result<&str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match job_id.len() {
        1..=64 if job_id.bytes().all(plain) => Ok(job_id),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{job_id:?} cannot be a job's id"))),
    }
}

/// A name that can be no other file of the folder: the spec holds the token, which is not the job's to know.
pub(crate) fn is_input(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.starts_with("input") && name.len() <= 64 && name.bytes().all(plain)
}

fn is_folder(parent: BorrowedFd<'_>, name: &str) -> bool {
    fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn make_folder(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_would_leave_the_root_is_refused() {
        let root = tempfile::tempdir().unwrap();
        for id in ["", ".", "..", "a/b", "/etc", "a\0b", "ä"] {
            assert!(JobFolder::create(root.path(), id).is_err(), "{id:?}");
        }
    }

    #[test]
    fn a_folder_that_is_a_link_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), root.path().join("j")).unwrap();
        assert!(JobFolder::create(root.path(), "j").is_err());
        assert!(JobFolder::open(root.path(), "j").is_err());
    }

    #[test]
    fn a_failed_replacement_leaves_no_temporary_file() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::create(root.path(), "j").unwrap();
        std::fs::create_dir(folder.path().join(EXIT)).unwrap();
        assert!(folder.write_durably(EXIT, &1).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
