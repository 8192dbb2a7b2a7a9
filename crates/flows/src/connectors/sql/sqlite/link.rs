use crate::Trouble;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// Others may hold the lock so long.
const BUSY: Duration = Duration::from_secs(5);
const STATEMENTS: usize = 256;

/// What the file is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    Create,
}

pub(super) fn open(path: &Path, access: Access) -> Result<Connection, Trouble> {
    if access != Access::Create && !path.exists() {
        let said = format!("the SQLite database {path:?} does not exist; check its path, or create it first");
        return Err(Trouble::permanent(said));
    }
    let flags = match access {
        Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
        Access::Create => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
    };
    let opened = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX);
    let connection = opened.map_err(|error| trouble(path, "open", &error))?;
    connection.busy_timeout(BUSY).map_err(|error| trouble(path, "open", &error))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// What an error says about the database.
pub(super) fn trouble(path: &Path, what: &str, error: &rusqlite::Error) -> Trouble {
    let said = format!("cannot {what} the SQLite database {path:?}: {error}");
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::OperationInterrupted,
        ) => Trouble::transient(said),
        _ => Trouble::permanent(said),
    }
}

/// Whether a statement failed because of what was to be written.
pub(super) fn is_data(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig)
    )
}
