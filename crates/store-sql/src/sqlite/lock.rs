use everbeat_store::{Error, Result};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

/// The kernel's lock on `<path>.lock`, held while the store is open. The kernel releases it however
/// the process ends. It is taken before SQLite opens the file, so that a second server changes
/// nothing in it.
#[derive(Debug)]
pub(super) struct FileLock(#[allow(dead_code, reason = "held, not read")] File);

impl FileLock {
    pub(super) fn take(store: &Path) -> Result<FileLock> {
        let path = lock_path(store);
        let open = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = open.map_err(|error| Error::Refused(format!("cannot open the lock {}: {error}", path.display())))?;
        match file.try_lock() {
            Ok(()) => Ok(FileLock(file)),
            Err(TryLockError::WouldBlock) => Err(Error::Refused(format!(
                "{} is in use by another everbeat server: stop that server, give this one another --data-dir, \
                 or use PostgreSQL for several servers",
                store.display()
            ))),
            Err(TryLockError::Error(error)) => Err(Error::Refused(format!("cannot lock {}: {error}", path.display()))),
        }
    }
}

fn lock_path(store: &Path) -> PathBuf {
    let mut name = store.as_os_str().to_os_string();
    name.push(".lock");
    PathBuf::from(name)
}
