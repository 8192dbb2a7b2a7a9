//! What runs are given stands in the file, secrets too: nobody but its owner may read it.

use super::identity::{beside, unopenable};
use everbeat_store::Result;
use std::fs::{self, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Makes the file before SQLite does, which would make it as the umask says; what it makes beside it gets the file's
/// own mode. Files that are there already are closed to others.
pub(super) fn keep(path: &Path) -> Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(unopenable(path, &error.to_string())),
    }
    for suffix in ["", "-wal", "-shm", ".lock"] {
        close(&beside(path, suffix));
    }
    Ok(())
}

fn close(path: &Path) {
    let Ok(file) = fs::metadata(path) else { return };
    let mode = file.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return;
    }
    let (shown, was) = (path.display(), format!("{mode:04o}"));
    match fs::set_permissions(path, Permissions::from_mode(mode & !0o077)) {
        Ok(()) => tracing::warn!(file = %shown, was, "other users could read this file; it is closed to them now"),
        Err(error) => tracing::warn!(file = %shown, mode = was, %error, "other users can read this file: chmod 600 it"),
    }
}
