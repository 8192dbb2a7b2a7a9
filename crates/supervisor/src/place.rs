//! A data folder belongs to one place. Its kernel locks say who lives only there: on a copy all of them are free, while
//! what they stand for goes on.

use crate::birth::Birth;
use crate::locks;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// A data folder in its place: only of such a one are host id, locks and jobs looked at.
#[derive(Clone, Debug)]
pub struct Place {
    folder: PathBuf,
    former_hosts: BTreeSet<String>,
}

/// What to do with a folder that is not in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    Refuse,
    /// It lives on its own from now on: under a new host id, without the jobs of its original.
    Adopt,
}

#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("the data folder {} is a copy: it belongs to {}", .here.display(), .home.display())]
    Copied { here: PathBuf, home: PathBuf },
    #[error("the data folder {} is a copy that stands in the place of its original", .here.display())]
    Replaced { here: PathBuf },
    #[error("the data folder {} was moved here from {}", .here.display(), .home.display())]
    Moved { here: PathBuf, home: PathBuf },
    #[error("the mark {} cannot be understood: {problem}", .mark.display())]
    Unreadable { mark: PathBuf, problem: String },
    #[error("the data folder {} cannot be used: {error}", .here.display())]
    Io { here: PathBuf, error: io::Error },
}

/// Where the folder is at home, written once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    /// As bytes: a path need not be text.
    path: Vec<u8>,
    /// The same, for people.
    shown: String,
    folder: Birth,
    /// The file in which this stands. Whoever unpacks a backup over the folder replaces it.
    mark: Birth,
    /// Hosts that this folder stood for elsewhere, before it was adopted here.
    former_hosts: BTreeSet<String>,
}

const MARK: &str = "place.json";
const HOST_ID: &str = "host-id";
const JOBS: &str = "jobs";
const REPLICAS: &str = "replicas";
const POOLS: &str = "pools";
const MOST_MARK_BYTES: u64 = 1 << 20;

impl Place {
    /// Makes the folder if it is not there, and its mark if it has none: it is new, or of an earlier version. Nothing in
    /// a folder that is refused is touched.
    pub fn take(folder: &Path, misplaced: Misplaced) -> Result<Place, PlaceError> {
        let wrong = |error| PlaceError::Io { here: folder.to_path_buf(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(wrong)?;
        let here = fs::canonicalize(folder).map_err(wrong)?;
        // Servers that start together take turns.
        let open = File::open(&here).map_err(wrong)?;
        let _alone = locks::wait_for(open, "another server that is starting holds it").map_err(wrong)?;
        let mark = match (Mark::read(&here)?, misplaced) {
            (None, _) => Mark::write(&here, BTreeSet::new()).map_err(wrong)?,
            (Some(mark), misplaced) => match (mark.check(&here), misplaced) {
                (Ok(()), _) => mark,
                (Err(error), Misplaced::Refuse) => return Err(error),
                (Err(_), Misplaced::Adopt) => {
                    let former = read_id(&here.join(HOST_ID)).into_iter().chain(mark.former_hosts).collect();
                    Mark::write(&here, former).map_err(wrong)?
                }
            },
        };
        let folder = std::path::absolute(folder).map_err(wrong)?;
        let place = Place { folder, former_hosts: mark.former_hosts };
        place.part_from_former().map_err(wrong)?;
        Ok(place)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Hosts that this folder stood for elsewhere. What the store binds to them was never begun here.
    pub fn former_hosts(&self) -> &BTreeSet<String> {
        &self.former_hosts
    }

    /// While the host's id is a former one, what came along with it is the original's: its jobs are set aside, never
    /// examined, and its locks forgotten. The id goes last, so that a crash on the way is made up for.
    fn part_from_former(&self) -> io::Result<()> {
        let host_id = self.folder.join(HOST_ID);
        let Some(former) = read_id(&host_id).filter(|id| self.former_hosts.contains(id)) else { return Ok(()) };
        let mut aside = self.folder.join(format!("{JOBS}.adopted-{former}"));
        if aside.exists() {
            aside.add_extension(Uuid::new_v4().simple().to_string());
        }
        gone_is_fine(fs::rename(self.folder.join(JOBS), &aside))?;
        gone_is_fine(fs::remove_dir_all(self.folder.join(REPLICAS)))?;
        // What the guardians of the original noted must never be swept from here.
        gone_is_fine(fs::remove_dir_all(self.folder.join(POOLS)))?;
        sync(&self.folder)?;
        gone_is_fine(fs::remove_file(host_id))?;
        sync(&self.folder)?;
        tracing::warn!(former, aside = %aside.display(), "a data folder was adopted; the jobs in it are set aside");
        Ok(())
    }
}

impl PlaceError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        let adopt = "everbeat serve --adopt-data lets it live on its own: it gets a new host id, jobs recorded in it are \
                     set aside and count as lost, and nothing that runs is touched";
        match self {
            PlaceError::Copied { home, .. } => format!("start in {} instead; or {adopt}", home.display()),
            PlaceError::Replaced { .. } => format!("put the original back; or, for a restored backup, {adopt}"),
            PlaceError::Moved { home, .. } => format!("move it back to {}; or {adopt}", home.display()),
            PlaceError::Unreadable { mark, .. } => {
                format!("if the folder is the original and in its place, remove {}", mark.display())
            }
            PlaceError::Io { .. } => {
                "give a folder that this user may write to with --data-dir or server.data_dir".to_string()
            }
        }
    }
}

impl Mark {
    fn read(folder: &Path) -> Result<Option<Mark>, PlaceError> {
        let path = folder.join(MARK);
        let unreadable = |problem: String| PlaceError::Unreadable { mark: path.clone(), problem };
        match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error.to_string())),
            Ok(file) if !file.is_file() || file.len() > MOST_MARK_BYTES => {
                return Err(unreadable("it is no small file".to_string()));
            }
            Ok(_) => {}
        }
        let text = fs::read(&path).map_err(|error| unreadable(error.to_string()))?;
        serde_json::from_slice(&text).map(Some).map_err(|error| unreadable(error.to_string()))
    }

    /// Whether the folder at this path is the one that the mark was made for.
    fn check(&self, here: &Path) -> Result<(), PlaceError> {
        let wrong = |error| PlaceError::Io { here: here.to_path_buf(), error };
        let (folder, mark) = births(here).map_err(wrong)?;
        let home = PathBuf::from(OsString::from_vec(self.path.clone()));
        let original = self.folder.fits(folder) && self.mark.fits(mark);
        let here = here.to_path_buf();
        match (original, home == here) {
            (true, true) => Ok(()),
            // Mounted in two places: its path of old still leads to it.
            (true, false) if same_folder(&home, &here) => Ok(()),
            (true, false) => Err(PlaceError::Moved { here, home }),
            (false, true) => Err(PlaceError::Replaced { here }),
            (false, false) => Err(PlaceError::Copied { here, home }),
        }
    }

    /// Written aside and renamed: it is there as a whole or not at all, and keeps its birth.
    fn write(here: &Path, former_hosts: BTreeSet<String>) -> io::Result<Mark> {
        let fresh = here.join(format!(".{MARK}-{}", Uuid::new_v4().simple()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        let written = (|| {
            let mark = Mark {
                path: here.as_os_str().as_bytes().to_vec(),
                shown: here.display().to_string(),
                folder: Birth::of(&fs::metadata(here)?),
                mark: Birth::of(&file.metadata()?),
                former_hosts,
            };
            file.write_all(&serde_json::to_vec(&mark)?)?;
            file.sync_all()?;
            fs::rename(&fresh, here.join(MARK))?;
            sync(here)?;
            Ok(mark)
        })();
        if written.is_err() {
            let _nothing_more_to_do = fs::remove_file(&fresh);
        }
        written
    }
}

/// Of the folder, and of the mark in it.
fn births(folder: &Path) -> io::Result<(Birth, Birth)> {
    Ok((Birth::of(&fs::metadata(folder)?), Birth::of(&fs::metadata(folder.join(MARK))?)))
}

fn same_folder(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|folder| (folder.dev(), folder.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// A name of the machine and of the processes that are seen here: servers that have it in common could look after each
/// other's jobs. A hash, since it stands in the store for everybody.
pub fn machine() -> Option<String> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let processes = fs::read_link("/proc/self/ns/pid").ok()?;
    let hash = Sha256::new().chain_update(boot).chain_update(processes.as_os_str().as_bytes()).finalize();
    Some(hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

pub(crate) fn read_id(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Uuid::try_parse(text.trim()).ok().map(|id| id.to_string())
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn gone_is_fine(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostLocks;
    use std::process::Command;

    fn taken(folder: &Path) -> Result<Place, PlaceError> {
        Place::take(folder, Misplaced::Refuse)
    }

    fn copied(from: &Path, to: &Path, how: &str) {
        assert!(Command::new("cp").arg(how).arg(from).arg(to).status().unwrap().success());
    }

    #[test]
    fn a_copy_and_a_moved_folder_are_refused_with_both_places() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let home = root.join("home");
        taken(&home).unwrap();
        taken(&home).unwrap();
        for how in ["-r", "-a", "-al"] {
            let copy = root.join(format!("copy{how}"));
            copied(&home, &copy, how);
            let Err(PlaceError::Copied { here, home: of }) = taken(&copy) else { panic!("cp {how} was taken") };
            assert_eq!((here, of), (copy, home.clone()));
        }
        taken(&home).unwrap();
        let moved = root.join("moved");
        fs::rename(&home, &moved).unwrap();
        assert!(matches!(taken(&moved), Err(PlaceError::Moved { .. })));
        fs::rename(&moved, &home).unwrap();
        taken(&home).unwrap();
        fs::remove_dir_all(&home).unwrap();
        copied(&root.join("copy-a"), &home, "-a");
        assert!(matches!(taken(&home), Err(PlaceError::Replaced { .. })));
    }

    #[test]
    fn a_backup_that_was_unpacked_over_the_folder_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let (home, aside) = (root.path().join("home"), root.path().join("aside"));
        taken(&home).unwrap();
        fs::copy(home.join(MARK), &aside).unwrap();
        fs::rename(&aside, home.join(MARK)).unwrap();
        assert!(matches!(taken(&home), Err(PlaceError::Replaced { .. })));
    }

    #[test]
    fn the_same_folder_by_another_name_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("home");
        taken(&home).unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&home, &link).unwrap();
        taken(&link).unwrap();
    }

    #[test]
    fn an_adopted_copy_has_a_new_host_and_nothing_of_the_jobs() {
        let root = tempfile::tempdir().unwrap();
        let (home, copy) = (root.path().join("home"), root.path().join("copy"));
        let first = HostLocks::open(&taken(&home).unwrap()).unwrap().host().to_string();
        fs::create_dir_all(home.join("jobs/j")).unwrap();
        fs::create_dir_all(home.join("pools/of-a-server")).unwrap();
        copied(&home, &copy, "-r");
        let place = Place::take(&copy, Misplaced::Adopt).unwrap();
        assert!(!copy.join("pools").exists() && home.join("pools").exists());
        assert_eq!(place.former_hosts().iter().collect::<Vec<_>>(), [&first]);
        assert_ne!(HostLocks::open(&place).unwrap().host(), first);
        assert!(!copy.join("jobs").exists() && copy.join(format!("jobs.adopted-{first}/j")).exists());
        let again = taken(&copy).unwrap();
        assert_eq!(again.former_hosts(), place.former_hosts());
        assert_eq!(HostLocks::open(&taken(&home).unwrap()).unwrap().host(), first, "the original is as it was");
    }

    #[test]
    fn an_adoption_that_was_cut_off_is_made_up_for() {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("home");
        let first = HostLocks::open(&taken(&home).unwrap()).unwrap().host().to_string();
        fs::create_dir_all(home.join("jobs/j")).unwrap();
        // As if it had ended right after its mark was written.
        Mark::write(&fs::canonicalize(&home).unwrap(), [first.clone()].into()).unwrap();
        let place = taken(&home).unwrap();
        assert!(!home.join("jobs").exists() && !home.join("host-id").exists());
        assert_ne!(HostLocks::open(&place).unwrap().host(), first);
    }

    #[test]
    fn a_mark_that_cannot_be_understood_is_not_guessed_at() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(MARK), "{").unwrap();
        assert!(matches!(taken(root.path()), Err(PlaceError::Unreadable { .. })));
    }
}
