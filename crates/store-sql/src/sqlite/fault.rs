use everbeat_store::{Cause, Error};
use rusqlite::ErrorCode;
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
        let outside = matches!(
            error.sqlite_error_code(),
            Some(
                ErrorCode::DiskFull
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
                    | ErrorCode::CannotOpen
                    | ErrorCode::OutOfMemory
                    | ErrorCode::ReadOnly
                    | ErrorCode::PermissionDenied
                    | ErrorCode::FileLockingProtocolFailed
                    | ErrorCode::OperationInterrupted
            )
        );
        Fault(if outside { Error::Unavailable(error.to_string()) } else { Error::Bug(error.to_string()) })
    }
}
