//! What the admin API shows of a job's folder. Nothing here is a verdict.

use super::clean::open_folder;
use super::folder::{JobFolder, Problem, SENTINEL, WORKSPACE};
use super::kernel_lock::{self, State};
use super::records::ExitRecord;
use super::root::Root;
use super::spec::Spec;
use everbeat_engine::Lock;
use rustix::fs::{AtFlags, Dir, FileType};
use serde::Serialize;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    pub lock: Lock,
    pub sentinel_exists: bool,
    /// Of the spec's attempt.
    pub exit_record: bool,
    pub workspace_exists: bool,
    /// The job has a session, and something in the workspace bears its name.
    pub session_data_exists: bool,
    /// What could not be read. Then the rest may be less than the truth.
    pub problem: Option<String>,
}

/// The lock of a job, and whether its last attempt has an exit record: what is cheap to know of many.
pub fn lock_and_exit(folder: &JobFolder) -> (Lock, bool) {
    let lock = seen(&kernel_lock::state(folder));
    let exit = Spec::read(folder).and_then(|spec| ExitRecord::read(folder, &spec.identity()));
    (lock, matches!(exit, Ok(Some(_))))
}

fn seen(state: &Result<State, Problem>) -> Lock {
    match state {
        Ok(State::Held) => Lock::Held,
        Ok(State::Free) => Lock::Free,
        Ok(State::Absent) => Lock::Absent,
        Err(_) => Lock::Unknown,
    }
}

pub fn health(root: &Path, job_id: &str) -> Health {
    let opened = Root::open(root).map_err(|error| Problem::Unreadable("the jobs' folder".into(), error));
    match opened.and_then(|root| root.job(job_id)) {
        Ok(folder) => of(&folder),
        Err(problem) => Health {
            lock: if matches!(problem, Problem::Missing(_)) { Lock::Absent } else { Lock::Unknown },
            sentinel_exists: false,
            exit_record: false,
            workspace_exists: false,
            session_data_exists: false,
            problem: Some(problem.to_string()),
        },
    }
}

fn of(folder: &JobFolder) -> Health {
    let lock = kernel_lock::state(folder);
    let spec = Spec::read(folder);
    let exit = match &spec {
        Ok(spec) => ExitRecord::read(folder, &spec.identity()),
        Err(_) => Ok(None),
    };
    let workspace = open_folder(folder.dir(), WORKSPACE);
    let session = spec.as_ref().ok().and_then(|spec| spec.session_id.as_deref());
    let session_data = match (&workspace, session) {
        (Ok(workspace), Some(session)) => has_session(workspace.as_fd(), session.as_bytes()),
        _ => false,
    };
    Health {
        sentinel_exists: folder.exists(SENTINEL),
        exit_record: matches!(exit, Ok(Some(_))),
        workspace_exists: workspace.is_ok(),
        session_data_exists: session_data,
        problem: [lock.as_ref().err(), spec.as_ref().err(), exit.as_ref().err()]
            .into_iter()
            .flatten()
            .next()
            .map(ToString::to_string),
        lock: seen(&lock),
    }
}

const MOST_LEVELS: usize = 3;
/// So many entries are looked at per level: a workspace may hold millions.
const MOST_ENTRIES: usize = 2_000;

/// Level by level, so that a deep heap of files does not hide what lies on top.
fn has_session(workspace: BorrowedFd<'_>, session: &[u8]) -> bool {
    let is_at = |level| is_at(workspace, level, session, &mut { MOST_ENTRIES });
    !session.is_empty() && (1..=MOST_LEVELS).any(is_at)
}

fn is_at(folder: BorrowedFd<'_>, level: usize, session: &[u8], left: &mut usize) -> bool {
    for entry in Dir::read_from(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        let Some(fewer) = left.checked_sub(1) else { return false };
        *left = fewer;
        let kind = match entry.file_type() {
            FileType::Unknown => rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
            known => known,
        };
        let found = match kind {
            FileType::RegularFile | FileType::Directory if level == 1 => name.to_bytes().starts_with(session),
            FileType::Directory => {
                open_folder(folder, name).is_ok_and(|below| is_at(below.as_fd(), level - 1, session, left))
            }
            _ => false,
        };
        if found {
            return true;
        }
    }
    false
}
