//! Starting a shim that belongs to nobody: the server starts a first process, which leads a session of its
//! own, starts the shim and ends. Two plain spawns, and no fork of a program with threads.
#![allow(unsafe_code)] // close_range(2), once.

use crate::job::folder::JobFolder;
use crate::job::processes::SHIM_TAG;
use crate::job::spec::Spec;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

pub(super) const DETACH: &str = "--detach";

/// Starts the shim of the job whose spec stands in `folder`: `exe args… --detach FOLDER`. When it returns,
/// the shim runs, or has failed already; [`crate::job::examine`] tells.
pub fn spawn<A: AsRef<OsStr>>(exe: &Path, args: impl IntoIterator<Item = A>, folder: &JobFolder) -> io::Result<()> {
    let spec = Spec::read(folder).map_err(|problem| io::Error::other(problem.to_string()))?;
    let mut command = Command::new(exe);
    // The server's environment may hold secrets, and the shim lives long.
    command.env_clear().env(SHIM_TAG, spec.identity().shim_tag());
    command.args(args).arg(DETACH).arg(folder.path()).current_dir("/");
    let status = quiet(&mut command).spawn()?.wait()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{} could not start a shim: {status}", exe.display()))),
    }
}

/// The first process.
pub(super) fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    close_inherited()?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_default()).args(arguments.filter(|argument| argument != DETACH));
    // Not awaited on purpose: when this process ends, the shim is adopted.
    quiet(&mut command).spawn()?;
    Ok(())
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// Whatever else the server (or whoever started it) left open ends at the next exec: a descriptor in a shim
/// would keep other people's pipes and locks alive for days.
pub(super) fn close_inherited() -> io::Result<()> {
    // SAFETY: it only marks descriptors; nothing is closed under anybody's hands.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
