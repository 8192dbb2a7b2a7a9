//! Keeps room on a nearly full disk for what is small: renewals above all.

use super::{BUSY_TIMEOUT, CHECKPOINT_PAGES};
use everbeat_store::{Error, Obstacle, Result};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// With less than this the log is kept short: it would take the room that the database file needs.
const SHORT_BYTES: u64 = 32 << 20;
/// 256 KiB of log between checkpoints.
const SHORT_PAGES: i64 = 64;
/// What a large write must leave for small ones.
const RESERVE_BYTES: u64 = 2 << 20;
/// Looked at once in so many transactions, and before each large one.
const LOOK_EVERY: u32 = 64;

pub(super) struct Disk {
    /// None of a database in memory.
    folder: Option<PathBuf>,
    short: bool,
    until_look: u32,
}

impl Disk {
    pub(super) fn of(connection: &Connection) -> Disk {
        let file = connection.path().filter(|path| !path.is_empty()).map(Path::new);
        let folder = file.and_then(Path::parent).map(Path::to_path_buf);
        Disk { folder, short: false, until_look: 0 }
    }

    /// Looks for room before a transaction; `large` is what the transaction writes, if that is much. A large write goes
    /// to the log first and from there to the database file, so that it takes room twice: once it is in the log, a full
    /// disk would keep it there.
    pub(super) fn room_for(&mut self, connection: &Connection, large: Option<usize>) -> Result<()> {
        if large.is_none() && self.until_look > 0 {
            self.until_look -= 1;
            return Ok(());
        }
        self.until_look = LOOK_EVERY;
        let Some(mut free) = self.free() else { return Ok(()) };
        let bytes = large.map_or(0, |bytes| bytes as u64);
        let needed = bytes * 2 + RESERVE_BYTES;
        if large.is_some() && free < needed {
            make_room(connection);
            free = self.free().unwrap_or(free);
        }
        self.keep_log_short(connection, free < SHORT_BYTES);
        if large.is_some() && free < needed {
            let detail = format!("{bytes} bytes to write, {free} free");
            return Err(Error::unavailable(Obstacle::DiskFull, detail));
        }
        Ok(())
    }

    fn keep_log_short(&mut self, connection: &Connection, short: bool) {
        if short == self.short {
            return;
        }
        self.short = short;
        let pages = if short { SHORT_PAGES } else { CHECKPOINT_PAGES };
        if let Err(error) = connection.pragma_update(None, "wal_autocheckpoint", pages) {
            tracing::warn!(%error, "the length of the log cannot be set");
        }
        if short {
            make_room(connection);
        }
    }

    fn free(&self) -> Option<u64> {
        let space = rustix::fs::statvfs(self.folder.as_deref()?).ok()?;
        Some(space.f_bavail * space.f_frsize)
    }
}

/// What is in the log goes to the database file, as far as nobody reads from the log just now. Then the log begins anew
/// and gives back what it took of the disk.
pub(super) fn make_room(connection: &Connection) {
    let checkpoint = || {
        connection.busy_timeout(Duration::ZERO)?;
        connection.query_row("pragma wal_checkpoint(truncate)", [], |row| row.get::<_, i64>(0))
    };
    match checkpoint() {
        Ok(blocked) => tracing::debug!(blocked, "the disk is short of room: the log was written back"),
        Err(error) => tracing::debug!(%error, "the disk is short of room, and the log cannot be written back"),
    }
    if let Err(error) = connection.busy_timeout(BUSY_TIMEOUT) {
        tracing::warn!(%error, "the writer does not wait for locks any more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_would_take_what_is_left_is_refused_before_it_begins() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let connection = Connection::open(folder.path().join("store.db")).expect("open");
        let mut disk = Disk::of(&connection);
        let free = disk.free().expect("its disk is known");
        assert_eq!(disk.room_for(&connection, None), Ok(()));
        let refused = disk.room_for(&connection, Some(usize::try_from(free).expect("fits")));
        assert_eq!(refused.expect_err("too large").cause(), Some(Obstacle::DiskFull));
        assert_eq!(Disk::of(&Connection::open_in_memory().expect("open")).room_for(&connection, Some(1 << 40)), Ok(()));
    }
}
