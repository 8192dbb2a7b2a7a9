//! "Open file description" locks: the kernel lets go of one when its holder ends, however it ends, and one can ask for its
//! state without taking it.
#![allow(unsafe_code)] // rustix has no such locks.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The lock on the whole of a file, held for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Held {
    file: File,
}

/// Takes the lock, or says `None` when somebody else holds it.
pub(crate) fn take(file: File) -> io::Result<Option<Held>> {
    let mut request = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open and `request` is a valid, initialised flock for the whole call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut request) } {
        0 => Ok(Some(Held { file })),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            error if error.raw_os_error() == Some(libc::EACCES) => Ok(None),
            error => Err(error),
        },
    }
}

/// Looks without touching.
pub(crate) fn is_held(file: &File) -> io::Result<bool> {
    let mut request = whole_file(libc::F_WRLCK);
    // SAFETY: as above.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut request) } {
        0 => Ok(i32::from(request.l_type) != libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: flock is plain integers; zero is a value of each. (Its fields differ between systems.)
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as _;
    request.l_whence = libc::SEEK_SET as _;
    request
}

impl Held {
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Held {
    /// Closing is not enough: a process that this one is just starting has the descriptor too, until it
    /// runs its own program.
    fn drop(&mut self) {
        let mut request = whole_file(libc::F_UNLCK);
        // SAFETY: as above.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut request) };
    }
}
