//! Forks without an exec, which only a process of one thread may do, and the few calls around them.
#![allow(unsafe_code)] // clone(2), waitid(2), close_range(2), mount(2), kill(2) with -1, _exit(2).

use rustix::io::Errno;
use rustix::process::Pid;
use std::convert::Infallible;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::panic::AssertUnwindSafe;

/// Makes a child that does `work` and nothing else. `flags` are those of clone(2) for new namespaces.
///
/// The child never returns from here and never unwinds into its copy of the caller: nothing that the caller owns is
/// dropped twice. The descriptor that is answered stands for the child from its beginning, so that its number is needed
/// for nothing.
pub(super) fn fork(flags: libc::c_int, work: impl FnOnce() -> Infallible) -> io::Result<(Pid, OwnedFd)> {
    let flags = libc::c_long::from(flags | libc::CLONE_PIDFD | libc::SIGCHLD);
    let mut pidfd: RawFd = -1;
    // SAFETY: without a stack of its own the child goes on as after fork(2). A guardian and its keepers have one thread,
    // so that no lock of the allocator or of the standard library is held by somebody who is missing in the child.
    // `pidfd` is valid for the write of a descriptor.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, &raw mut pidfd, 0_usize, 0_usize) } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let _a_panic_ends_here = std::panic::catch_unwind(AssertUnwindSafe(work));
            exit(EXIT_BROKEN)
        }
        pid => {
            // SAFETY: the kernel has just opened it, and nobody else knows of it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            Ok((pid.ok_or_else(|| io::Error::other("the kernel made a process without a number"))?, pidfd))
        }
    }
}

/// Of a child that could not become what it should.
pub(super) const EXIT_BROKEN: i32 = 127;

/// Ends this process at once, without running what others registered for its end.
pub(super) fn exit(code: i32) -> ! {
    // SAFETY: _exit(2) has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Some child that has ended and was not reaped; the kernel may tell the same one again until it is. Without any child
/// at all the error is `CHILD`.
pub(super) fn ended_child() -> rustix::io::Result<Option<Pid>> {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: `info` is valid for writes, and zeroed, which is a siginfo_t that tells of nobody.
        if unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) } == 0 {
            // SAFETY: zeroed and perhaps filled by waitid, which gives this part of the union its meaning.
            return Ok(Pid::from_raw(unsafe { info.assume_init().si_pid() }));
        }
        match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(Errno::INTR) => {}
            error => return Err(error.unwrap_or(Errno::CHILD)),
        }
    }
}

/// In a child that will not exec: closes all descriptors but these and the standard ones. What the child inherited would
/// keep the guardian's connection, its lock and the life lines of other workers open.
pub(super) fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let mut from = 3;
    for fd in kept {
        if from < fd {
            close_range(from as libc::c_uint, (fd - 1) as libc::c_uint, 0)?;
        }
        from = fd + 1;
    }
    close_range(from as libc::c_uint, libc::c_uint::MAX, 0)
}

/// All descriptors from this one on end with the next exec.
pub(super) fn mark_from(first: RawFd) -> io::Result<()> {
    close_range(first as libc::c_uint, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: what is closed belongs to values of the parent whose copies here are never used nor dropped: this process
    // ends by exec or `exit`.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// In a new mount namespace: a `/proc` that shows the new PID namespace. Mounts made outside later still arrive.
pub(super) fn mount_proc() -> io::Result<()> {
    let mount = |source: &std::ffi::CStr, target: &std::ffi::CStr, kind: &std::ffi::CStr, flags| {
        // SAFETY: all three are terminated and outlive the call; no data is handed over.
        match unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    mount(c"none", c"/", c"none", libc::MS_SLAVE | libc::MS_REC)?;
    mount(c"proc", c"/proc", c"proc", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC)
}

/// Kills everybody else in the PID namespace of which this process is the first. Anywhere else it does nothing.
pub(super) fn kill_namespace() {
    if std::process::id() != 1 {
        return;
    }
    // SAFETY: kill(2) has no preconditions. From the first process of a namespace, -1 means the others in it.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}
