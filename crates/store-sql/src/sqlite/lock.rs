//! The lock by which one server alone uses a database file.

use super::identity::{beside, unopenable};
use everbeat_store::{Cause, Error, Result};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The kernel's lock on `<path>.lock`, held while the store is open. The kernel releases it however
/// the process ends. The lock is taken before SQLite opens the file, so that a second server changes
/// nothing in it.
#[derive(Debug)]
pub(super) struct FileLock {
    #[allow(dead_code, reason = "held, not read")]
    file: File,
    path: PathBuf,
    made: bool,
}

impl FileLock {
    pub(super) fn take(store: &Path) -> Result<FileLock> {
        let path = beside(store, ".lock");
        let (file, made) = open(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => unopenable(store, "its folder does not exist"),
            _ => unopenable(store, &format!("its lock {}: {error}", path.display())),
        })?;
        match file.try_lock() {
            Ok(()) => Ok(FileLock { file, path, made }),
            Err(TryLockError::WouldBlock) => {
                let said = format!(
                    "{} is in use by another everbeat server: stop that server, give this one another --data-dir, \
                     or use PostgreSQL for several servers",
                    store.display()
                );
                Err(Error::Refused(Cause::InUse, said))
            }
            Err(TryLockError::Error(error)) => Err(unopenable(store, &format!("its lock {}: {error}", path.display()))),
        }
    }

    /// Leaves nothing beside a file that is refused for good. Whoever opens the file meanwhile refuses it as well.
    pub(super) fn withdraw(&self) {
        if self.made {
            let _it_harms_nobody = fs::remove_file(&self.path);
        }
    }
}

/// Opens the lock's file; answers also whether the file was made just now.
fn open(path: &Path) -> io::Result<(File, bool)> {
    match OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Ok((OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?, false))
        }
        Err(error) => Err(error),
    }
}
