//! What went wrong with a statement, by what can be done about it.

use everbeat_store::{Cause, Error, Obstacle};
use rusqlite::{ErrorCode, ffi};
use std::path::Path;

/// An error on its way out of a statement.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The database cannot hold a value, or a value that it holds cannot be read: the fault of what is written, not of
    /// the statement.
    Data(String),
    Other(Error),
}

pub(super) type Outcome<T> = std::result::Result<T, Fault>;

impl Fault {
    /// A file that cannot be opened is refused: asking again does not help.
    pub(super) fn opening(path: &Path, error: &rusqlite::Error) -> Error {
        Error::Refused(Cause::Unopenable, format!("cannot open the store {}: {error}", path.display()))
    }
}

/// Whether a statement failed for a value: its size, a constraint on it, or its type.
pub(super) fn is_data(error: &rusqlite::Error) -> bool {
    use rusqlite::Error as Sql;
    match error {
        Sql::SqliteFailure(failure, _) => {
            matches!(failure.code, ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch)
        }
        Sql::ToSqlConversionFailure(_)
        | Sql::FromSqlConversionFailure(..)
        | Sql::IntegralValueOutOfRange(..)
        | Sql::InvalidColumnType(..)
        | Sql::Utf8Error(..) => true,
        _ => false,
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Other(error)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        match cause(&error) {
            _ if is_data(&error) => Fault::Data(error.to_string()),
            Some(cause) => Fault::Other(Error::unavailable(cause, error)),
            None => Fault::Other(Error::Bug(error.to_string())),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        match fault {
            Fault::Data(text) => Error::Bug(text),
            Fault::Other(error) => error,
        }
    }
}

/// The cause outside of the statement, by SQLite's own codes.
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
            assert_eq!(Error::from(Fault::from(error)).cause(), cause, "{code}");
        }
    }

    #[test]
    fn only_what_lies_in_a_value_is_put_down_to_the_values() {
        for (code, data) in [
            (ffi::SQLITE_TOOBIG, true),
            (ffi::SQLITE_CONSTRAINT_CHECK, true),
            (ffi::SQLITE_CONSTRAINT_NOTNULL, true),
            (ffi::SQLITE_MISMATCH, true),
            (ffi::SQLITE_ERROR, false),
            (ffi::SQLITE_CORRUPT, false),
            (ffi::SQLITE_NOTADB, false),
            (ffi::SQLITE_MISUSE, false),
            (ffi::SQLITE_FULL, false),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(matches!(Fault::from(error), Fault::Data(_)), data, "{code}");
        }
        let unreadable = rusqlite::Error::IntegralValueOutOfRange(0, -1);
        assert!(matches!(Fault::from(unreadable), Fault::Data(_)));
        assert!(matches!(Fault::from(rusqlite::Error::QueryReturnedNoRows), Fault::Other(Error::Bug(_))));
    }
}
