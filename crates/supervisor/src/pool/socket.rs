//! The socket that workers dial. Its path has to be short.

use super::folder::ServerFolder;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// What the kernel takes, without the byte that ends it.
const MOST_BYTES: usize = 107;
const NAME: &str = "sock";
/// Where there is a short path for those whose data folder has a long one.
const ELSEWHERE: [&str; 2] = ["/run", "/tmp"];

/// Where the socket of a server is, in a folder that nobody else may enter.
pub(super) fn place(folder: &ServerFolder) -> io::Result<PathBuf> {
    let path = folder.path().join(NAME);
    if path.as_os_str().len() <= MOST_BYTES {
        return Ok(path);
    }
    let mut refused = io::Error::from(ErrorKind::NotFound);
    for folder in elsewhere(folder) {
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder.join(NAME)),
            Err(error) => refused = error,
        }
    }
    let why = format!("no folder for the socket of workers in {}: {refused}", ELSEWHERE.join(" nor "));
    Err(io::Error::new(refused.kind(), why))
}

/// Removes what [`place`] and [`bind`] made beside the folder.
pub(super) fn remove(folder: &ServerFolder) {
    for folder in elsewhere(folder) {
        let _it_may_not_be_there = fs::remove_file(folder.join(NAME));
        let _it_may_not_be_there = fs::remove_dir(folder);
    }
}

fn elsewhere(folder: &ServerFolder) -> impl Iterator<Item = PathBuf> {
    ELSEWHERE.into_iter().map(move |root| Path::new(root).join(format!("everbeat-pools-{}", folder.nonce())))
}

/// Listens there, for this user only. What stands there is of a listener that was dropped: the folder is this process's.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // Nobody else can reach it meanwhile: its folder is closed to them.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
