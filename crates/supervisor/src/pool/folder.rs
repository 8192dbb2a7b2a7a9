//! `{data_dir}/pools/{nonce}/` of one server process, with a folder for each of its guardians.
//!
//! ```text
//! lock        held by the server
//! sweep       held by whoever ends what a dead server left
//! sock        the socket that workers dial
//! {guardian}/lock      held by the guardian; in it the note of its cgroup
//! {guardian}/report    what the guardian saw after the death of its server
//! {guardian}/w{n}.dump the stacks of a worker
//! ```

use crate::job::{clock, new_token};
use crate::ofd_lock::{self, Held};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const POOLS: &str = "pools";
const LOCK: &str = "lock";
const SWEEP: &str = "sweep";
const REPORT: &str = "report";
/// A folder that is just being made; nothing was ever started from it.
const UNFINISHED: &str = ".new-";

/// The folder of one server process, living or dead.
#[derive(Clone, Debug)]
pub(super) struct ServerFolder {
    path: PathBuf,
    nonce: String,
}

impl ServerFolder {
    /// Makes a folder for this process. The lock is held before the folder has its name: whoever finds that name with a
    /// free lock knows that its server is gone.
    pub(super) fn create(data_dir: &Path) -> io::Result<(ServerFolder, Held)> {
        /// Somebody who sweeps may take an unfinished folder for a dead server's.
        const TRIES: usize = 10;
        let root = data_dir.join(POOLS);
        DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
        for _ in 0..TRIES {
            let nonce = new_token()?;
            let unfinished = root.join(format!("{UNFINISHED}{nonce}"));
            DirBuilder::new().mode(0o700).create(&unfinished)?;
            let path = root.join(&nonce);
            let lock = match open_lock(&unfinished.join(LOCK)) {
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                opened => ofd_lock::take(opened?)?,
            };
            match lock.map(|lock| (lock, fs::rename(&unfinished, &path))) {
                Some((lock, Ok(()))) => return Ok((ServerFolder { path, nonce }, lock)),
                Some((_, Err(error))) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Err(io::Error::other("the folder of a new server was swept away again and again"))
    }

    /// All there are, this process's own included. What has another name is nobody's business here.
    pub(super) fn all(data_dir: &Path) -> io::Result<Vec<ServerFolder>> {
        let mut found = Vec::new();
        for entry in entries(&data_dir.join(POOLS))? {
            match entry.file_name().and_then(|name| name.to_str()) {
                Some(name) if is_nonce(name) => found.push(ServerFolder { nonce: name.to_owned(), path: entry }),
                Some(name) if name.strip_prefix(UNFINISHED).is_some_and(is_nonce) => remove_unfinished(&entry),
                _ => {}
            }
        }
        found.sort_by(|one, other| one.nonce.cmp(&other.nonce));
        Ok(found)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Whether its server lives. A folder that is just being removed has none.
    pub(super) fn is_held(&self) -> io::Result<bool> {
        is_held(&self.path.join(LOCK))
    }

    /// The right to end what its server left: of one at a time.
    pub(super) fn sweep_lock(&self) -> io::Result<Option<Held>> {
        ofd_lock::take(open_lock(&self.path.join(SWEEP))?)
    }

    pub(super) fn exists(&self) -> bool {
        self.path.is_dir()
    }

    pub(super) fn create_guardian(&self, number: u32) -> io::Result<GuardianFolder> {
        let folder = self.guardian(number);
        DirBuilder::new().mode(0o700).create(&folder.path)?;
        Ok(folder)
    }

    fn guardian(&self, number: u32) -> GuardianFolder {
        GuardianFolder { path: self.path.join(number.to_string()), tag: format!("{}-{number}", self.nonce) }
    }

    pub(super) fn guardians(&self) -> io::Result<Vec<GuardianFolder>> {
        let numbers = entries(&self.path)?.into_iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        Ok(numbers.into_iter().map(|number| self.guardian(number)).collect())
    }

    /// Removes it with all that is in it.
    pub(super) fn remove(&self) -> io::Result<()> {
        remove(&self.path)
    }
}

/// The folder of one guardian.
#[derive(Clone, Debug)]
pub(super) struct GuardianFolder {
    path: PathBuf,
    /// Names this guardian among all of all servers.
    tag: String,
}

/// Who holds the lock of a guardian's folder, or held it last. Of use in the same boot only, and so never synced.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) pool: String,
    pub(super) boot_id: String,
    /// The cgroup that the guardian has, or is about to make.
    pub(super) cgroup: Option<PathBuf>,
}

impl GuardianFolder {
    pub(super) fn open(path: &Path) -> io::Result<GuardianFolder> {
        let wrong = || io::Error::other(format!("{} is not a guardian's folder", path.display()));
        let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let (Some(number), Some(nonce)) = (name(path), path.parent().and_then(name)) else { return Err(wrong()) };
        match number.parse::<u32>().is_ok() && is_nonce(&nonce) {
            true => Ok(GuardianFolder { path: path.to_owned(), tag: format!("{nonce}-{number}") }),
            false => Err(wrong()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    /// The lock of the guardian itself, or none if somebody holds it. The folder is never made again: it may have been
    /// swept away meanwhile.
    pub(super) fn lock(&self) -> io::Result<Option<Held>> {
        ofd_lock::take(open_lock(&self.path.join(LOCK))?)
    }

    pub(super) fn is_held(&self) -> io::Result<bool> {
        is_held(&self.path.join(LOCK))
    }

    pub(super) fn note(&self) -> Option<Note> {
        serde_json::from_slice(&fs::read(self.path.join(LOCK)).ok()?).ok()
    }

    pub(super) fn report(&self) -> PathBuf {
        self.path.join(REPORT)
    }

    pub(super) fn dump(&self, id: u64) -> PathBuf {
        self.path.join(format!("w{id}.dump"))
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        remove(&self.path)
    }
}

impl Note {
    pub(super) fn of(pool: &str, cgroup: Option<&Path>) -> io::Result<Note> {
        Ok(Note { pool: pool.to_owned(), boot_id: clock::boot_id()?, cgroup: cgroup.map(Path::to_owned) })
    }

    pub(super) fn write(&self, lock: &Held) -> io::Result<()> {
        let file = lock.file();
        file.set_len(0)?;
        file.write_all_at(&serde_json::to_vec(self)?, 0)
    }
}

fn is_nonce(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// A lock that nobody ever made is not held.
fn is_held(path: &Path) -> io::Result<bool> {
    // The kernel tells the state of a lock only to who could take it.
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => ofd_lock::is_held(&file),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The folders in a folder.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed?,
    };
    let mut found = Vec::new();
    for entry in listed {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// What a server that died while it made its folder left. If it lives after all, it fails, and has started nothing.
fn remove_unfinished(folder: &Path) {
    if open_lock(&folder.join(LOCK)).and_then(ofd_lock::take).is_ok_and(|lock| lock.is_some()) {
        let _until_next_time = remove(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_held_from_when_it_has_its_name_until_its_server_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let (folder, lock) = ServerFolder::create(root.path()).unwrap();
        let found = ServerFolder::all(root.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].is_held().unwrap() && folder.exists());
        drop(lock);
        assert!(!found[0].is_held().unwrap());
    }

    #[test]
    fn what_has_another_name_is_left_alone_and_what_was_never_finished_goes() {
        let root = tempfile::tempdir().unwrap();
        let pools = root.path().join(POOLS);
        let unfinished = pools.join(format!("{UNFINISHED}{}", "a".repeat(32)));
        for folder in [pools.join("backup"), unfinished.clone()] {
            fs::create_dir_all(folder).unwrap();
        }
        assert!(ServerFolder::all(root.path()).unwrap().is_empty());
        assert!(pools.join("backup").exists() && !unfinished.exists());
    }

    #[test]
    fn servers_that_start_while_others_sweep_keep_their_folders() {
        let root = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let begin = || (0..25).map(|_| ServerFolder::create(root.path()).unwrap()).collect::<Vec<_>>();
            let servers = [scope.spawn(begin), scope.spawn(begin)];
            while !servers.iter().all(|server| server.is_finished()) {
                for folder in ServerFolder::all(root.path()).unwrap() {
                    assert!(folder.is_held().unwrap());
                }
            }
            for server in servers {
                assert!(server.join().unwrap().iter().all(|(folder, _held)| folder.exists()));
            }
        });
    }

    #[test]
    fn only_a_guardians_folder_is_opened_as_one() {
        let nonce = "0123456789abcdef".repeat(2);
        let folder = GuardianFolder::open(Path::new(&format!("/d/pools/{nonce}/7"))).unwrap();
        assert_eq!(folder.tag(), format!("{nonce}-7"));
        for path in ["/", "/etc/1", "/d/pools/0123/7"] {
            assert!(GuardianFolder::open(Path::new(path)).is_err(), "{path}");
        }
    }
}
