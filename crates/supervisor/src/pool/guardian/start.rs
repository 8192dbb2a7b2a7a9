//! From a connection to a guardian that is ready for orders.

use super::contain::{self, Contain};
use super::fork;
use super::run::Guardian;
use crate::job::clock;
use crate::pool::folder::{GuardianFolder, Note};
use crate::pool::link::{self, Received};
use crate::pool::protocol::{FromGuardian, ToGuardian, malformed};
use crate::signals::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

pub(super) fn start(path: &Path) -> io::Result<()> {
    // Whatever the server's own starter left open in it: nobody's lock or pipe waits for the end of a guardian.
    fork::close_all_but(&[])?;
    let server = connection()?;
    let _for_people_who_look_at_a_list = fs::write("/proc/self/comm", "everbeat-guard");
    match begin(path, &server) {
        // The server was gone before it said anything.
        Ok(None) => Ok(()),
        Ok(Some(begun)) => {
            let ready = FromGuardian::Ready { containment: begun.contain.kind() };
            let _then_its_end_is_seen = link::send(&server, &ready, &[]);
            Guardian::new(server, begun)?.run();
            Ok(())
        }
        Err(error) => {
            let refused = FromGuardian::Refused { why: error.to_string(), errno: error.raw_os_error() };
            let _then_nobody_asks = link::send(&server, &refused, &[]);
            Err(error)
        }
    }
}

/// What a guardian is made of, beside its connection.
pub(super) struct Begun {
    pub(super) pool: String,
    pub(super) folder: GuardianFolder,
    /// Held until this process ends.
    pub(super) lock: crate::ofd_lock::Held,
    pub(super) signals: Signals,
    pub(super) contain: Contain,
    /// What workers get back.
    pub(super) oom_score: String,
}

fn begin(path: &Path, server: &OwnedFd) -> io::Result<Option<Begun>> {
    // No terminal and no group of the server reaches this process.
    rustix::process::setsid()?;
    let folder = GuardianFolder::open(path)?;
    let Some(lock) = folder.lock()? else { return Err(io::Error::other("another guardian holds the lock")) };
    let signals = Signals::take()?;
    // What workers leave behind becomes this process's children, and so cannot get lost.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let Some((pool, strict)) = orders(server)? else { return Ok(None) };
    let planned = Contain::plan(folder.tag());
    Note::of(&pool, planned.as_ref().map(|cgroup| cgroup.path()))?.write(&lock)?;
    let contain = Contain::choose(planned);
    if strict && !contain.kind().told().complete() {
        return Err(contain::refusal());
    }
    let oom_score = protect_self();
    Ok(Some(Begun { pool, folder, lock, signals, contain, oom_score }))
}

/// Takes the connection from where it was handed over. It may be inherited by nobody.
fn connection() -> io::Result<OwnedFd> {
    let server = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::io::ioctl_fionbio(&server, true)?;
    Ok(server)
}

/// The first message; none if the server is gone.
fn orders(server: &OwnedFd) -> io::Result<Option<(String, bool)>> {
    loop {
        match link::receive(server) {
            Ok(Received::Message(ToGuardian::Begin { pool, strict }, _)) => return Ok(Some((pool, strict))),
            Ok(Received::End) => return Ok(None),
            Ok(_) => return Err(malformed("it is not the first")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _interrupted = poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&clock::timespec(1000)));
            }
            Err(error) => return Err(error),
        }
    }
}

/// If memory runs out, workers go before their guardian: somebody must be left to tell. Answers what was before; without
/// the right to change it, it stays.
fn protect_self() -> String {
    const SCORE: &str = "/proc/self/oom_score_adj";
    let before = fs::read_to_string(SCORE).unwrap_or_else(|_| "0".into());
    let _without_the_right = fs::write(SCORE, "-999");
    before.trim().to_owned()
}
