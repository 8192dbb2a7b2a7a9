//! The kernel's lock on a job's `lock` file: whoever holds it owns the job.
//!
//! An "open file description" lock: the kernel lets go of it when the holder ends, however it ends, and
//! one can ask for its state without taking it, so that looking at a job never disturbs a shim that is
//! about to lock.

use super::folder::{JobFolder, LOCK, Problem};
use super::spec::Identity;
use crate::birth::Birth;
use crate::ofd_lock;
use rustix::fs::{self, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The lock, held for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Held {
    lock: ofd_lock::Held,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// There is no file: nobody has ever tried.
    Absent,
    Free,
    Held,
}

/// Which attempt took the lock last. Never synced: it is of use in the same boot only.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Note {
    pub(crate) epoch: u64,
    pub(crate) nonce: String,
    /// The cgroup it has, or is about to make.
    pub(crate) cgroup: Option<PathBuf>,
    /// Of the file in which this stands. Shims of earlier versions did not note it.
    #[serde(default)]
    lock: Option<Birth>,
}

/// Takes the lock, or says `None` when somebody else holds it.
pub(crate) fn take(folder: &JobFolder) -> io::Result<Option<Held>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(fs::openat(folder.dir(), LOCK, flags, Mode::RUSR | Mode::WUSR)?);
    Ok(ofd_lock::take(file)?.map(|lock| Held { lock }))
}

/// Looks without touching.
pub(crate) fn state(folder: &JobFolder) -> Result<State, Problem> {
    let file = match folder.open_file(LOCK) {
        Ok((file, _)) => file,
        Err(Problem::Missing(_)) => return Ok(State::Absent),
        Err(problem) => return Err(problem),
    };
    match ofd_lock::is_held(&file) {
        Ok(true) => Ok(State::Held),
        Ok(false) => Ok(State::Free),
        Err(error) => Err(Problem::Unreadable(LOCK.into(), error)),
    }
}

impl Held {
    /// Notes who took it.
    pub(crate) fn sign(&self, identity: &Identity, cgroup: Option<PathBuf>) -> io::Result<()> {
        let file = self.lock.file();
        let lock = Some(Birth::of(&file.metadata()?));
        let note = serde_json::to_vec(&Note { epoch: identity.attempt, nonce: identity.token.clone(), cgroup, lock })?;
        file.set_len(0)?;
        file.write_all_at(&note, 0)
    }
}

/// Whether the lock was copied together with its note: its kernel lock, which is free, says nothing then, and what bears
/// the noted attempt's marks belongs to the original.
pub(crate) fn is_copy(folder: &JobFolder) -> bool {
    let Ok((file, _)) = folder.open_file(LOCK) else { return false };
    let noted = last_note(folder).and_then(|note| note.lock);
    matches!((noted, file.metadata()), (Some(noted), Ok(file)) if !noted.fits(Birth::of(&file)))
}

/// The same, as an answer to who would judge or kill.
pub(crate) fn in_place(folder: &JobFolder) -> Result<(), Problem> {
    match is_copy(folder) {
        true => Err(Problem::Copied(folder.path().display().to_string())),
        false => Ok(()),
    }
}

/// This attempt's note, if it was the last to hold the lock.
pub(crate) fn note(folder: &JobFolder, identity: &Identity) -> Option<Note> {
    last_note(folder).filter(|note| note.identity() == *identity)
}

/// Who held the lock last, or holds it.
pub(crate) fn last_note(folder: &JobFolder) -> Option<Note> {
    const MOST_NOTE_BYTES: u64 = 16 << 10;
    folder.read_json(LOCK, MOST_NOTE_BYTES).ok()
}

impl Note {
    pub(crate) fn identity(&self) -> Identity {
        Identity { attempt: self.epoch, token: self.nonce.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_seen_without_being_taken_and_free_when_its_holder_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::create(root.path(), "j").unwrap();
        assert_eq!(state(&folder).unwrap(), State::Absent);
        let held = take(&folder).unwrap().unwrap();
        assert_eq!(state(&folder).unwrap(), State::Held);
        assert!(take(&folder).unwrap().is_none());
        drop(held);
        assert_eq!(state(&folder).unwrap(), State::Free);
        assert!(take(&folder).unwrap().is_some());
    }

    #[test]
    fn a_released_lock_is_free_although_a_copy_of_its_descriptor_is_open() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::create(root.path(), "j").unwrap();
        let held = take(&folder).unwrap().unwrap();
        let _copy = held.lock.file().try_clone().unwrap();
        drop(held);
        assert_eq!(state(&folder).unwrap(), State::Free);
    }
}
