use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt;
use std::io;

/// What a machine has run out of. Whoever meets one before a command has begun has done nothing wrong: its attempt is
/// released, and tried again when there may be some again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortage {
    DiskSpace,
    DiskQuota,
    /// The file system can only be read, as one that met an error.
    WritableDisk,
    Descriptors,
    Processes,
    Memory,
}

impl Shortage {
    /// By the kernel's number for it; the numbers are those of Linux.
    pub fn of_errno(errno: i32) -> Option<Shortage> {
        const EAGAIN: i32 = 11;
        const ENOMEM: i32 = 12;
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const EDQUOT: i32 = 122;
        match errno {
            ENOSPC => Some(Shortage::DiskSpace),
            EDQUOT => Some(Shortage::DiskQuota),
            EROFS => Some(Shortage::WritableDisk),
            EMFILE | ENFILE => Some(Shortage::Descriptors),
            EAGAIN => Some(Shortage::Processes),
            ENOMEM => Some(Shortage::Memory),
            _ => None,
        }
    }

    /// By the first word of the kernel's in an error, or in what it came from.
    pub fn of(error: &io::Error) -> Option<Shortage> {
        errno_of(error).and_then(Shortage::of_errno)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Shortage::DiskSpace => "disk_space",
            Shortage::DiskQuota => "disk_quota",
            Shortage::WritableDisk => "writable_disk",
            Shortage::Descriptors => "descriptors",
            Shortage::Processes => "processes",
            Shortage::Memory => "memory",
        }
    }

    /// What a person can do about it.
    pub fn hint(self) -> &'static str {
        match self {
            Shortage::DiskSpace => "free some space on the disk of the data folder",
            Shortage::DiskQuota => "free some of what the server's user stores, or raise its quota",
            Shortage::WritableDisk => "look at the kernel's log for errors of the disk, and mount it for writing again",
            Shortage::Descriptors => "raise the limit of open files (ulimit -n, LimitNOFILE=), or lower jobs.slots",
            Shortage::Processes => "raise the limit of processes (ulimit -u, TasksMax=), or lower jobs.slots",
            Shortage::Memory => "free some memory, or raise the limit of the service (MemoryMax=)",
        }
    }
}

/// The kernel's number in an error, or in what it came from.
pub fn errno_of(error: &io::Error) -> Option<i32> {
    let mut errno = error.raw_os_error();
    let mut source = error.source();
    while let (None, Some(error)) = (errno, source) {
        errno = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        source = error.source();
    }
    errno
}

/// Says what there is none of.
impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shortage::DiskSpace => "no space is left on the disk",
            Shortage::DiskQuota => "the disk quota is used up",
            Shortage::WritableDisk => "the disk can only be read",
            Shortage::Descriptors => "no file can be opened any more",
            Shortage::Processes => "no process can be started any more",
            Shortage::Memory => "no memory is left",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("spec.json cannot be read: {0}")]
    struct Problem(#[source] io::Error);

    #[test]
    fn a_shortage_is_found_however_deep_it_lies() {
        let full = || io::Error::from_raw_os_error(28);
        assert_eq!(Shortage::of(&full()), Some(Shortage::DiskSpace));
        assert_eq!(Shortage::of(&io::Error::other(Problem(full()))), Some(Shortage::DiskSpace));
        let twice = io::Error::other(Problem(io::Error::other(Problem(full()))));
        assert_eq!(Shortage::of(&twice), Some(Shortage::DiskSpace));
        assert_eq!(Shortage::of(&io::Error::other("no space left on device")), None, "words are no proof");
    }

    #[test]
    fn what_a_command_did_wrong_is_no_shortage() {
        // ENOENT, E2BIG, ENOEXEC, EACCES, ENOTDIR, ETXTBSY, ELOOP.
        for errno in [2, 7, 8, 13, 20, 26, 40] {
            assert_eq!(Shortage::of_errno(errno), None, "{errno}");
        }
    }
}
