use crate::job;
use crate::place::{Place, read_id};
use everbeat_engine::{LockGuard, Locks};
use everbeat_model::ReplicaId;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uuid::Uuid;

/// The kernel locks of the replicas that share one data folder, and the id of this host.
///
/// A lock is an exclusive `flock` on a file named after the replica. The kernel lets go of it when the
/// process ends, however it ends; a stopped process keeps it.
#[derive(Debug)]
pub struct HostLocks {
    folder: PathBuf,
    host: String,
}

impl HostLocks {
    /// Opens (or makes) `host-id` and `replicas/` of a data folder.
    pub fn open(place: &Place) -> io::Result<HostLocks> {
        let data_dir = place.folder();
        let folder = data_dir.join("replicas");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let host = host_id(&data_dir.join("host-id"))?;
        let locks = HostLocks { folder, host };
        locks.clear();
        Ok(locks)
    }

    /// This host's id: it outlives restarts.
    pub fn host(&self) -> &str {
        &self.host
    }

    fn path(&self, replica: ReplicaId) -> PathBuf {
        self.folder.join(format!("{replica}.lock"))
    }

    /// Removes files of long ago that nobody holds. Their absence proves nothing, so the young stay:
    /// their replicas' rows may still wait for this proof.
    fn clear(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let mut files: Vec<_> = entries
            .flatten()
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        files.sort();
        for (_, path) in files.iter().rev().skip(KEPT_FILES) {
            if OpenOptions::new().read(true).open(path).is_ok_and(|file| file.try_lock().is_ok()) {
                let _it_stays_until_next_time = fs::remove_file(path);
            }
        }
    }
}

const KEPT_FILES: usize = 1000;

impl Locks for HostLocks {
    fn hold(&self, replica: ReplicaId) -> io::Result<LockGuard> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(self.path(replica))?;
        file.try_lock().map_err(|error| match error {
            TryLockError::Error(error) => error,
            TryLockError::WouldBlock => io::Error::other("another process holds the lock of a new replica"),
        })?;
        Ok(LockGuard::new(file))
    }

    fn released(&self, replica: ReplicaId) -> Option<bool> {
        let file = File::open(self.path(replica)).ok()?;
        match file.try_lock_shared() {
            Ok(()) => Some(true),
            Err(TryLockError::WouldBlock) => Some(false),
            Err(TryLockError::Error(_)) => None,
        }
    }
}

/// Reads the id, or makes it once. Written aside and linked into place, so that two servers that start
/// together agree.
fn host_id(path: &Path) -> io::Result<String> {
    if let Some(id) = read_id(path) {
        return Ok(id);
    }
    let fresh = path.with_extension(Uuid::new_v4().to_string());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    writeln!(file, "{}", Uuid::new_v4())?;
    file.sync_all()?;
    if fs::hard_link(&fresh, path).is_err() && read_id(path).is_none() {
        // What stands there is not an id (a torn write of long ago): replace it.
        fs::rename(&fresh, path)?;
    }
    let _already_renamed = fs::remove_file(&fresh);
    read_id(path).ok_or_else(|| io::Error::other(format!("cannot read the host id in {}", path.display())))
}

/// Whoever holds such a lock does so for a few milliseconds. One that is frozen meanwhile must not hold up a start.
const HELD_FOR: Duration = Duration::from_secs(5);
const LOOK_AGAIN_MS: u64 = 10;

/// Takes the file's lock when it is free. `held` says who has it, if it never is.
pub(crate) fn wait_for(file: File, held: &'static str) -> io::Result<File> {
    let until = job::boot_ms() + HELD_FOR.as_millis() as u64;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if job::boot_ms() > until => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, held));
            }
            Err(TryLockError::WouldBlock) => job::pause(LOOK_AGAIN_MS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(folder: &tempfile::TempDir) -> Place {
        Place::take(folder.path(), crate::Misplaced::Refuse).unwrap()
    }

    fn replica(n: u128) -> ReplicaId {
        ReplicaId(Uuid::from_u128(n))
    }

    #[test]
    fn a_lock_is_held_while_its_guard_lives_and_free_after() {
        let folder = tempfile::tempdir().unwrap();
        let locks = HostLocks::open(&place(&folder)).unwrap();
        assert_eq!(locks.released(replica(1)), None, "no file proves nothing");
        let guard = locks.hold(replica(1)).unwrap();
        assert_eq!(locks.released(replica(1)), Some(false));
        assert!(locks.hold(replica(1)).is_err());
        drop(guard);
        assert_eq!(locks.released(replica(1)), Some(true));
    }

    #[test]
    fn the_host_id_outlives_restarts_and_a_damaged_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let first = HostLocks::open(&place(&folder)).unwrap().host().to_string();
        assert_eq!(HostLocks::open(&place(&folder)).unwrap().host(), first);
        fs::write(folder.path().join("host-id"), "").unwrap();
        let second = HostLocks::open(&place(&folder)).unwrap().host().to_string();
        assert_ne!(first, second);
    }
}
