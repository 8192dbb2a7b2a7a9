//! Starting the command.
#![allow(unsafe_code)] // pre_exec, once.

use super::failure::{DEFAULT_PATH, Failure};
use crate::exec::Program;
use crate::job::client::{ATTEMPT_VARIABLE, BEAT_TOKEN_VARIABLE, SOCKET_VARIABLE};
use crate::job::folder::{JobFolder, SOCKET};
use crate::job::processes::JOB_TAG;
use crate::job::spec::Spec;
use crate::signals;
use rustix::io::{DupFlags, Errno, FdFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The running command: not reaped, so its PID is its own.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
}

/// The shim's ends of the pipes to the command.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) progress: OwnedFd,
}

/// `low` is a descriptor to put the job's end of the progress pipe in: a shell can name only one digit.
pub(super) fn start(
    spec: &Spec,
    folder: &JobFolder,
    door: Option<&File>,
    low: OwnedFd,
) -> Result<(Child, Pipes), Failure> {
    let cwd = spec.cwd.clone().unwrap_or_else(|| folder.workspace());
    // The shim itself goes there for a moment: a command that cannot does not say what it was that failed.
    std::env::set_current_dir(&cwd).map_err(|error| Failure::folder(&cwd, &error))?;
    let started = start_here(spec, folder, door, low);
    let _always_there = std::env::set_current_dir("/");
    started
}

fn start_here(spec: &Spec, folder: &JobFolder, door: Option<&File>, low: OwnedFd) -> Result<(Child, Pipes), Failure> {
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = pipe()?;
    let (progress, high) = pipe()?;
    let mut progress_end = low;
    rustix::io::dup3(&high, &mut progress_end, DupFlags::CLOEXEC)?;
    drop(high);
    // A byte in it says that everything was ready, and only the program itself could still fail.
    let (was_ready, ready) = pipe()?;
    let given = spec.env.iter().map(|(name, value)| (name.clone(), value.into()));
    let own = own_variables(spec, folder, &progress_end).into_iter().map(|(name, value)| (name.to_owned(), value));
    let path = spec.env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    let program = Program::new(&spec.command, path, given.chain(own))?;
    // Only the way to the fork is the standard library's.
    let mut command = Command::new(&spec.command[0]);
    command.stdin(stdin(spec, folder)?).stdout(stdout_end).stderr(stderr_end);
    // A group of its own: a signal to it does not reach the shim.
    command.process_group(0);
    let shim = rustix::process::getpid();
    let door = door.map(File::try_clone).transpose()?;
    // SAFETY: between fork and exec it makes system calls only, on descriptors it owns; no memory is taken.
    unsafe {
        command.pre_exec(move || {
            // The shim's death is the job's: nothing runs untracked. (The kernel means the thread that
            // forked, and the shim has only one.)
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(shim) {
                return Err(Errno::SRCH.into());
            }
            signals::reset_in_child();
            if let Some(door) = &door {
                rustix::io::write(door, b"0")?;
            }
            rustix::io::fcntl_setfd(&progress_end, FdFlags::empty())?;
            rustix::io::write(&ready, b"!")?;
            Err(program.become_it())
        });
    }
    for pipe in [&stdout, &stderr, &progress] {
        rustix::io::ioctl_fionbio(pipe, true)?;
    }
    // Kept free for what watches the command: once it has begun, it is too late to find that there is none.
    let spare = rustix::io::dup(&stdout)?;
    let mut child = command.spawn().map_err(|error| {
        drop(command);
        match rustix::io::read(&was_ready, &mut [0_u8; 1]) {
            Ok(1) => Failure::program(&spec.command[0], spec.env.get("PATH").map(String::as_str), &error),
            _ => Failure::from(error),
        }
    })?;
    drop(spare);
    let pid = Pid::from_raw(child.id() as i32).ok_or(Errno::SRCH);
    let watched = pid.and_then(|pid| Ok((pid, rustix::process::pidfd_open(pid, PidfdFlags::empty())?)));
    let (pid, pidfd) = watched.map_err(|error| {
        let _it_may_have_ended = child.kill();
        Failure::unwatched(error)
    })?;
    Ok((Child { pid, pidfd }, Pipes { stdout, stderr, progress }))
}

fn stdin(spec: &Spec, folder: &JobFolder) -> Result<Stdio, Failure> {
    let Some(name) = &spec.stdin else { return Ok(Stdio::null()) };
    let (file, _) = folder.open_file(name).map_err(|problem| Failure::input(&problem))?;
    // Opened without waiting; to be read like any other.
    rustix::io::ioctl_fionbio(&file, false)?;
    Ok(file.into())
}

fn own_variables(spec: &Spec, folder: &JobFolder, progress: &OwnedFd) -> [(&'static str, std::ffi::OsString); 7] {
    let identity = spec.identity();
    [
        ("EVERBEAT_JOB_ID", spec.job_id.clone().into()),
        (ATTEMPT_VARIABLE, spec.epoch.to_string().into()),
        ("EVERBEAT_WORKSPACE", folder.workspace().into()),
        ("EVERBEAT_PROGRESS", progress.as_raw_fd().to_string().into()),
        (SOCKET_VARIABLE, folder.path().join(SOCKET).into()),
        (BEAT_TOKEN_VARIABLE, identity.beat_token().into()),
        (JOB_TAG, identity.tag().into()),
    ]
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// If memory runs out, the job goes before its shim: somebody must be left to tell. After the start, so
/// that the job does not inherit it; without the right to do so, it stays as it was.
pub(super) fn protect_self() {
    let _without_the_right = std::fs::write("/proc/self/oom_score_adj", "-999");
}
