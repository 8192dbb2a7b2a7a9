//! Why a command could not be started, in words that name the part of the spec that is wrong.

use crate::exec;
use crate::job::folder::Problem;
use crate::job::records::StartPart;
use rustix::io::Errno;
use std::io;
use std::path::Path;

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) why: String,
    pub(super) errno: Option<i32>,
    pub(super) part: Option<StartPart>,
    /// It had begun, and was killed at once.
    pub(super) began: bool,
}

/// Where a program is looked for when the environment has no `PATH`.
pub(super) const DEFAULT_PATH: &str = "/bin:/usr/bin";

impl Failure {
    pub(super) fn cancelled() -> Failure {
        Failure { why: "cancelled before it started".into(), errno: None, part: None, began: false }
    }

    pub(super) fn folder(path: &Path, error: &io::Error) -> Failure {
        let why = format!("working folder {path:?}: {error}");
        Failure { why, errno: error.raw_os_error(), part: Some(StartPart::Folder), began: false }
    }

    pub(super) fn input(problem: &Problem) -> Failure {
        let errno = match problem {
            Problem::Missing(_) => Some(Errno::NOENT.raw_os_error()),
            Problem::Unreadable(_, error) => error.raw_os_error(),
            _ => None,
        };
        Failure { why: format!("its input: {problem}"), errno, part: Some(StartPart::Input), began: false }
    }

    /// It runs, and cannot be watched.
    pub(super) fn unwatched(error: Errno) -> Failure {
        let why = format!("it was killed as soon as it had begun, since it could not be watched: {error}");
        Failure { why, errno: None, part: None, began: true }
    }

    /// To be asked in the working folder: a program's name may be relative to it.
    pub(super) fn program(name: &str, path: Option<&str>, error: &io::Error) -> Failure {
        let (why, errno) = exec::why(name, path.unwrap_or(DEFAULT_PATH), Path::new(""), error);
        Failure { why, errno, part: Some(StartPart::Program), began: false }
    }
}

/// Not a matter of the spec: the machine has no process, pipe or descriptor to give.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure {
            why: format!("no process could be made: {error}"),
            errno: error.raw_os_error(),
            part: None,
            began: false,
        }
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Failure {
        io::Error::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_root_may_do_anyway_is_told_to_others() {
        let forbidden = Errno::ACCESS.into();
        let failure = Failure::folder(Path::new("/root/x"), &forbidden);
        assert_eq!(failure.why, "working folder \"/root/x\": Permission denied (os error 13)");
        assert_eq!((failure.errno, failure.part), (Some(13), Some(StartPart::Folder)));
        // Somewhere in the PATH was a folder that may not be searched; the program was nowhere.
        let failure = Failure::program("nosuch", Some("/root/bin:/bin"), &forbidden);
        assert_eq!((failure.why.as_str(), failure.errno), ("program \"nosuch\" was not found in PATH", Some(2)));
    }
}
