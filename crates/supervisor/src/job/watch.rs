//! Hints that something happened in a job's folder. Losing one costs time only.

use super::folder::JobFolder;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Its descriptor is readable when something was made in the folder, moved into it or taken from it since
/// the last [`FolderWatch::drain`]. Look at the folder then, after draining.
#[derive(Debug)]
pub struct FolderWatch {
    events: OwnedFd,
}

impl JobFolder {
    pub fn watch(&self) -> io::Result<FolderWatch> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        // By descriptor: the folder that is open, whatever its path leads to by now.
        inotify::add_watch(&events, self.short_path("."), flags)?;
        Ok(FolderWatch { events })
    }
}

impl FolderWatch {
    /// What exactly happened does not matter, nor that some of it did not fit in the kernel's queue.
    pub fn drain(&self) {
        /// More than the kernel's queue holds by default; who writes on and on is heard of again.
        const MOST_TURNS: usize = 1024;
        let mut events = [0_u8; 4096];
        for _ in 0..MOST_TURNS {
            if rustix::io::read(&self.events, &mut events).is_err() {
                return;
            }
        }
    }
}

impl AsRawFd for FolderWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }
}

impl AsFd for FolderWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
