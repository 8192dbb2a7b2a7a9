//! What went wrong with a statement, by what can be done about it.

use everbeat_store::{Cause, Error, Obstacle};
use rusqlite::{ErrorCode, ffi};
use std::path::Path;

/// An error on its way out of a statement.
#[derive(Debug)]
pub(super) struct Fault(pub(super) Error);

pub(super) type Outcome<T> = std::result::Result<T, Fault>;

impl Fault {
    /// A file that cannot be opened is refused: it will not get better by asking again.
    pub(super) fn opening(path: &Path, error: &rusqlite::Error) -> Error {
        Error::Refused(Cause::Unopenable, format!("cannot open the store {}: {error}", path.display()))
    }
}

/// Whether it is for the value that a statement failed.
pub(super) fn unstorable(error: &rusqlite::Error) -> bool {
    let by_value = [ErrorCode::TooBig, ErrorCode::ConstraintViolation, ErrorCode::TypeMismatch];
    error.sqlite_error_code().is_some_and(|code| by_value.contains(&code))
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault(error)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault(match cause(&error) {
            Some(cause) => Error::unavailable(cause, error),
            None => Error::Bug(error.to_string()),
        })
    }
}

/// What outside of the statement it failed for, by SQLite's own codes.
fn cause(error: &rusqlite::Error) -> Option<Obstacle> {
    let failure = error.sqlite_error()?;
    Some(match failure.code {
        _ if failure.extended_code == ffi::SQLITE_IOERR_NOMEM => Obstacle::NoMemory,
        ErrorCode::DiskFull => Obstacle::DiskFull,
        ErrorCode::OutOfMemory => Obstacle::NoMemory,
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => Obstacle::Io,
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => Obstacle::ReadOnly,
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => {
            Obstacle::LockTimeout
        }
        ErrorCode::OperationInterrupted => Obstacle::Stopped,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_sqlite_names_its_cause() {
        for (code, cause) in [
            (ffi::SQLITE_FULL, Some(Obstacle::DiskFull)),
            (ffi::SQLITE_NOMEM, Some(Obstacle::NoMemory)),
            (ffi::SQLITE_IOERR_NOMEM, Some(Obstacle::NoMemory)),
            (ffi::SQLITE_IOERR_WRITE, Some(Obstacle::Io)),
            (ffi::SQLITE_CANTOPEN, Some(Obstacle::Io)),
            (ffi::SQLITE_READONLY_DBMOVED, Some(Obstacle::ReadOnly)),
            (ffi::SQLITE_BUSY_SNAPSHOT, Some(Obstacle::LockTimeout)),
            (ffi::SQLITE_LOCKED, Some(Obstacle::LockTimeout)),
            (ffi::SQLITE_TOOBIG, None),
            (ffi::SQLITE_CONSTRAINT_CHECK, None),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(Fault::from(error).0.cause(), cause, "{code}");
        }
    }
}
