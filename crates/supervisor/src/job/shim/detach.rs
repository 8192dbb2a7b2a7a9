//! Starting a shim that belongs to nobody: the server starts a first process, which leads a session of its
//! own, starts the shim and ends. Two plain spawns, and no fork of a program with threads.
#![allow(unsafe_code)] // close_range(2), once.

use super::kill_points;
use crate::descriptors;
use crate::job::clock;
use crate::job::folder::JobFolder;
use crate::job::processes::SHIM_TAG;
use crate::job::spec::Spec;
use everbeat_engine::StartError;
use everbeat_model::shortage::{Shortage, errno_of};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(super) const DETACH: &str = "--detach";
pub(super) const PROBE: &str = "--probe";

/// What a shim says to who waits for its start, with the kernel's number for the reason.
const NOT_BEGUN: &str = "not-begun";
const MOST_SAID_BYTES: usize = 256;

/// A start is a few writes to the disk. After that, whoever waits may as well look.
const STARTED_WITHIN: Duration = Duration::from_secs(10);

/// Starts the shim of the job whose spec stands in `folder`: `exe args… --detach FOLDER`. When it returns, the
/// command runs, or the shim has recorded why not, or is dead: [`crate::job::examine`] tells which. It waits for
/// the disk, so it is not for a thread that others need.
pub fn spawn<A: AsRef<OsStr>>(
    exe: &Path,
    args: impl IntoIterator<Item = A>,
    folder: &JobFolder,
) -> Result<(), StartError> {
    let spec = Spec::read(folder).map_err(|problem| StartError::Never(problem.into_error()))?;
    let mut command = Command::new(exe);
    // The server's environment may hold secrets, and the shim lives long.
    command.env_clear().env(SHIM_TAG, spec.identity().shim_tag());
    command.envs(kill_points::inherited()).envs(descriptors::before());
    command.args(args).arg(DETACH).arg(folder.path()).current_dir("/");
    // The shim inherits this pipe from the first process and closes it when it has started its command.
    let mut first = quiet(&mut command).stdout(Stdio::piped()).spawn().map_err(StartError::Never)?;
    kill_points::server_kill_point("spawning");
    let held_by_shim = first.stdout.take();
    let status = first.wait().map_err(StartError::Unclear)?;
    let said = held_by_shim.map_or_else(|| Ok(Vec::new()), await_end).map_err(StartError::Unclear)?;
    match (not_begun(&said), status.success()) {
        (Some(why), _) => Err(StartError::Never(why)),
        (None, true) => Ok(()),
        (None, false) => {
            let why = format!("{} could not start a shim: {status}", exe.display());
            Err(StartError::Unclear(io::Error::other(why)))
        }
    }
}

/// Starts what would become a shim and waits for its end: whether there is a process to be had.
pub(crate) fn probe<A: AsRef<OsStr>>(exe: &Path, args: impl IntoIterator<Item = A>) -> io::Result<()> {
    let mut command = Command::new(exe);
    command.env_clear().args(args).arg(PROBE).current_dir("/");
    match quiet(&mut command).stdout(Stdio::piped()).output()?.status {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("{} could not become a shim: {status}", exe.display()))),
    }
}

/// Until nobody holds the other end. Answers what was said meanwhile.
fn await_end(pipe: impl AsFd) -> io::Result<Vec<u8>> {
    let until = clock::boot_ms() + STARTED_WITHIN.as_millis() as u64;
    let mut said = Vec::new();
    loop {
        let left = until.saturating_sub(clock::boot_ms());
        let mut part = [0_u8; 64];
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&clock::timespec(left))) {
            Ok(0) => return Ok(said),
            Ok(_) => match rustix::io::read(&pipe, &mut part)? {
                0 => return Ok(said),
                length if said.len() < MOST_SAID_BYTES => said.extend_from_slice(&part[..length]),
                _ => {}
            },
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn not_begun(said: &[u8]) -> Option<io::Error> {
    let said = std::str::from_utf8(said).ok()?;
    let errno = said.lines().find_map(|line| line.strip_prefix(NOT_BEGUN)?.trim().parse().ok())?;
    Some(io::Error::from_raw_os_error(errno))
}

/// In the shim, or on the way to it, before the command has begun: says to who waits in [`spawn`] that it never will,
/// for want of something. There may be no room on the disk to leave that there.
pub(super) fn tell_not_begun(error: &io::Error) {
    if let Some(errno) = errno_of(error).filter(|errno| Shortage::of_errno(*errno).is_some()) {
        let line = format!("{NOT_BEGUN} {errno}\n");
        let _nobody_waits = rustix::io::write(rustix::stdio::stdout(), line.as_bytes());
    }
}

/// In the shim: who waits in [`spawn`] need not wait any more.
pub(super) fn tell_started() {
    if let Ok(nowhere) = File::options().write(true).open("/dev/null") {
        let _then_the_wait_is_longer = rustix::stdio::dup2_stdout(nowhere);
    }
}

/// The first process.
pub(super) fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    close_inherited()?;
    descriptors::restore()?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_default()).args(arguments.filter(|argument| argument != DETACH));
    // Not awaited on purpose: when this process ends, the shim is adopted.
    quiet(&mut command).stdout(Stdio::inherit()).spawn()?;
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
