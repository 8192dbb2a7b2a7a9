//! Whose file a database is. A database of another program is refused as it stands, to the byte.

use super::fault::Fault;
use everbeat_store::{Cause, Error, Result};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// "Evbt", where SQLite has a place for it in the file's head.
pub(super) const APPLICATION_ID: i32 = 0x4576_6274;

/// Refuses a file that is not ours. Nothing is written, whatever the file is.
pub(super) fn check(path: &Path) -> Result<()> {
    let file = match fs::metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unopenable(path, &error.to_string())),
    };
    if !file.is_file() {
        let kind = if file.is_dir() { "a folder" } else { "no regular file" };
        return Err(unopenable(path, &format!("it is {kind}; name a file in it")));
    }
    // An empty one is what `touch` and `mktemp` leave.
    if file.len() == 0 {
        return Ok(());
    }
    whose(path).map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => foreign(path, "is no SQLite database"),
        _ => Fault::opening(path, &error),
    })?
}

/// Asks SQLite, and never opens the file beside SQLite: closing a file lets go of the locks that this process holds on
/// that file, those of another connection included.
fn whose(path: &Path) -> rusqlite::Result<Result<()>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri(path), flags)?;
    let id: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if id == APPLICATION_ID {
        return Ok(Ok(()));
    }
    if id != 0 {
        return Ok(Err(foreign(path, &format!("belongs to another program (its application id is {id:#010x})"))));
    }
    let tables: i64 = connection.query_row("select count(*) from sqlite_master", [], |row| row.get(0))?;
    if tables == 0 || is_earlier(&connection)? {
        return Ok(Ok(()));
    }
    Ok(Err(foreign(path, &format!("is another program's database ({tables} tables and indexes, none of everbeat's)"))))
}

/// Whether the file is from before our files bore our id.
fn is_earlier(connection: &Connection) -> rusqlite::Result<bool> {
    let columns: i64 = connection.query_row(
        "select count(*) from pragma_table_info('schema_version') where name in ('version', 'name', 'checksum', 'applied_at')",
        [],
        |row| row.get(0),
    )?;
    if columns != 4 {
        return Ok(false);
    }
    let first = connection.query_row("select name from schema_version where version = 1", [], |row| row.get(0));
    Ok(first.optional()?.is_none_or(|name: String| name == "runs"))
}

/// Without a log beside it the file says all, and it is read without leaving a trace.
fn uri(path: &Path) -> String {
    let mut uri = "file:".to_string();
    for byte in path.as_os_str().as_bytes() {
        let _writing_to_a_string_cannot_fail = match byte {
            b'/' | b'.' | b'-' | b'_' => uri.write_char(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.write_char(char::from(*byte)),
            byte => write!(uri, "%{byte:02X}"),
        };
    }
    uri.push_str(if beside(path, "-wal").exists() { "?mode=ro" } else { "?mode=ro&immutable=1" });
    uri
}

/// A file that belongs to the database: `-wal`, `-shm`, `.lock`.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

fn foreign(path: &Path, what: &str) -> Error {
    Error::Refused(Cause::Foreign, format!("{} {what}; it is left as it is", path.display()))
}

pub(super) fn unopenable(path: &Path, why: &str) -> Error {
    Error::Refused(Cause::Unopenable, format!("cannot open the store {}: {why}", path.display()))
}
