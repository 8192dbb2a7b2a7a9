//! From a fork to the program of a worker.

use super::fork;
use crate::descriptors;
use crate::exec::Program;
use crate::pool::protocol::{LIFE_FD, Order, SECRET_FD, Stage};
use crate::signals;
use rustix::io::{DupFlags, Errno};
use rustix::process::{Pid, Signal};
use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// All that a worker gets, made ready before the fork.
pub(super) struct Given {
    program: Program,
    cwd: PathBuf,
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    secret: OwnedFd,
    /// The reading end: it never carries anything.
    life: OwnedFd,
    /// What the guardian had before it protected itself.
    oom_score: String,
}

impl Given {
    /// From the descriptors of a `Spawn`.
    pub(super) fn new(descriptors: Vec<OwnedFd>, life: OwnedFd, oom_score: &str) -> Result<Given, (Stage, io::Error)> {
        let here = |error: io::Error| (Stage::Process, error);
        let mut descriptors = descriptors.into_iter();
        let (Some(order), Some(stdout), Some(stderr), Some(secret)) =
            (descriptors.next(), descriptors.next(), descriptors.next(), descriptors.next())
        else {
            return Err(here(Errno::BADF.into()));
        };
        let order: Order =
            serde_json::from_reader(io::BufReader::new(File::from(order))).map_err(|_| here(Errno::INVAL.into()))?;
        let stdin = match descriptors.next() {
            Some(stdin) => stdin,
            None => File::open("/dev/null").map_err(here)?.into(),
        };
        let path = order.env.get("PATH").cloned().unwrap_or_default();
        let env = order.env.into_iter().map(|(name, value)| (name, value.into()));
        let program = Program::new(&order.command, &path, env).map_err(|_| (Stage::Program, Errno::INVAL.into()))?;
        let oom_score = oom_score.to_owned();
        Ok(Given { program, cwd: order.cwd, stdin, stdout, stderr, secret, life, oom_score })
    }

    /// What a keeper must not close before its worker has it.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 5] {
        [&self.stdin, &self.stdout, &self.stderr, &self.secret, &self.life].map(AsFd::as_fd)
    }

    /// In the child: becomes the worker, or says on `told` why not. `parent` is whose death is the worker's.
    pub(super) fn become_it(self, told: &OwnedFd, parent: Pid, door: Option<&File>) -> Infallible {
        let (stage, error) = match self.try_to(parent, door) {
            Ok(never) => match never {},
            Err(failed) => failed,
        };
        tell(told, stage, &error);
        fork::exit(fork::EXIT_BROKEN)
    }

    fn try_to(self, parent: Pid, door: Option<&File>) -> Result<Infallible, (Stage, io::Error)> {
        let process = |error: Errno| (Stage::Process, io::Error::from(error));
        // The kernel means the thread that forked, and the parent has only one.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(process)?;
        if rustix::process::getppid() != Some(parent) {
            return Err(process(Errno::SRCH));
        }
        // A signal to the guardian's group or its terminal does not reach the worker.
        rustix::process::setsid().map_err(process)?;
        if let Some(door) = door {
            rustix::io::write(door, b"0").map_err(process)?;
        }
        let _as_it_is = fs::write("/proc/self/oom_score_adj", &self.oom_score);
        descriptors::restore().map_err(|error| (Stage::Process, error))?;
        rustix::process::chdir(&self.cwd).map_err(|error| (Stage::Folder, error.into()))?;
        self.place_descriptors().map_err(|error| (Stage::Process, error))?;
        signals::reset_in_child();
        Err((Stage::Program, self.program.become_it()))
    }

    /// 0 to 4 are the worker's; all others end with the exec.
    fn place_descriptors(&self) -> io::Result<()> {
        let aside = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, LIFE_FD + 1);
        let (secret, life) = (aside(&self.secret)?, aside(&self.life)?);
        let (stdin, stdout, stderr) = (aside(&self.stdin)?, aside(&self.stdout)?, aside(&self.stderr)?);
        rustix::stdio::dup2_stdin(&stdin)?;
        rustix::stdio::dup2_stdout(&stdout)?;
        rustix::stdio::dup2_stderr(&stderr)?;
        place(&secret, SECRET_FD)?;
        place(&life, LIFE_FD)?;
        fork::mark_from(LIFE_FD + 1)
    }
}

/// Puts a copy of a descriptor at a number of this process, which will exec.
#[allow(unsafe_code)] // A number is made a descriptor, once.
fn place(from: &OwnedFd, at: RawFd) -> io::Result<()> {
    use std::os::fd::{FromRawFd, IntoRawFd};
    // SAFETY: whatever was open at this number belongs to a value of the parent whose copy here is never used nor
    // dropped; the new owner lets go of the number without closing it.
    let mut target = unsafe { OwnedFd::from_raw_fd(at) };
    let placed = rustix::io::dup3(from, &mut target, DupFlags::empty());
    let _stays_open = target.into_raw_fd();
    Ok(placed?)
}

/// Five bytes: what failed, and the kernel's number for it.
pub(super) fn tell(told: &OwnedFd, stage: Stage, error: &io::Error) {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let mut bytes = [stage.as_byte(); 5];
    bytes[1..].copy_from_slice(&errno.to_ne_bytes());
    let _nobody_listens = rustix::io::write(told, &bytes);
}

/// What the child told: nothing yet, that its program runs (or that the child died on the way), or why it cannot.
pub(super) enum Told {
    Nothing,
    Runs,
    Failed(Stage, i32),
}

pub(super) fn told(pipe: &OwnedFd) -> Told {
    let mut bytes = [0_u8; 5];
    match rustix::io::read(pipe, &mut bytes) {
        Ok(0) => Told::Runs,
        Ok(5) => Told::Failed(Stage::of_byte(bytes[0]), i32::from_ne_bytes([bytes[1], bytes[2], bytes[3], bytes[4]])),
        Ok(_) => Told::Failed(Stage::Process, libc::EIO),
        Err(Errno::AGAIN | Errno::INTR) => Told::Nothing,
        Err(error) => Told::Failed(Stage::Process, error.raw_os_error()),
    }
}
