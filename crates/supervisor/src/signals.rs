//! The signals of a shim or a guardian, as something to poll. All of them are blocked, so none interrupts or ends the
//! process; what is read and has no meaning is ignored that way.
#![allow(unsafe_code)] // rustix offers neither masks nor signalfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

#[derive(Debug)]
pub(crate) struct Signals {
    fd: OwnedFd,
}

const WATCHED: [libc::c_int; 9] = [
    libc::SIGCHLD,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

impl Signals {
    pub(crate) fn take() -> io::Result<Signals> {
        // SAFETY: `set` is initialised by sigemptyset before use and outlives the calls; the descriptor that
        // signalfd returns is new and owned by nobody else.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in WATCHED {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Signals { fd: OwnedFd::from_raw_fd(fd) }),
            }
        }
    }

    /// The next signal, if one came.
    pub(crate) fn next(&self) -> Option<libc::c_int> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.fd, &mut info).ok()?;
        // ssi_signo is its first field.
        (read == info.len()).then(|| u32::from_ne_bytes([info[0], info[1], info[2], info[3]]) as libc::c_int)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Between fork and exec: what the shim or guardian blocks and the server ignores, the program must not.
pub(crate) fn reset_in_child() {
    // SAFETY: all of these are async-signal-safe; `set` is initialised by sigemptyset before use. KILL and
    // STOP refuse a disposition, without harm.
    unsafe {
        for signal in 1..32 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}
