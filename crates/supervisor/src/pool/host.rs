//! The engine's port to the guardians of this host.

use super::connection::{Connection, HostGuardian, blocking};
use super::environment::{self, GUARDIAN_TAG};
use super::folder::{GuardianFolder, ServerFolder};
use super::guardian::inherited_masks;
use super::link::{self, Received};
use super::protocol::{Containment, FromGuardian, ToGuardian, malformed};
use super::{socket, sweep};
use crate::descriptors;
use crate::job::clock;
use crate::ofd_lock::Held;
use crate::place::Place;
use async_trait::async_trait;
use everbeat_engine::pools::{Guardian, Guardians, Swept, WantedContainment};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::runtime::Handle;

/// The guardians of one server process, below its data folder: `pools/{nonce}/`.
#[derive(Clone)]
pub struct HostGuardians {
    host: Arc<Host>,
    runtime: Handle,
}

pub(super) struct Host {
    data_dir: PathBuf,
    folder: ServerFolder,
    pub(super) socket: PathBuf,
    /// The program that becomes a guardian, and what it is told for that.
    exe: PathBuf,
    args: Vec<OsString>,
    /// What every worker gets of this process's environment, and where it is started.
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: PathBuf,
    next: AtomicU32,
    _lock: Held,
}

/// A guardian answers as soon as it runs.
const READY_WITHIN_MS: u64 = 10_000;

impl HostGuardians {
    /// Must be called inside a Tokio runtime. `exe args… FOLDER` must become a guardian: see
    /// [`guardian::main`](super::guardian::main).
    pub fn open(place: &Place, exe: PathBuf, args: Vec<OsString>) -> io::Result<HostGuardians> {
        let data_dir = place.folder().to_path_buf();
        let (folder, lock) = ServerFolder::create(&data_dir)?;
        let host = Host {
            socket: socket::place(&folder)?,
            data_dir,
            folder,
            exe,
            args,
            env: environment::inherited(),
            cwd: environment::folder(),
            next: AtomicU32::new(0),
            _lock: lock,
        };
        Ok(HostGuardians { host: Arc::new(host), runtime: Handle::current() })
    }

    /// Listens at [`Guardians::socket`], for this user only.
    pub fn bind(&self) -> io::Result<UnixListener> {
        socket::bind(&self.host.socket)
    }
}

#[async_trait]
impl Guardians for HostGuardians {
    async fn sweep(&self) -> io::Result<Swept> {
        let host = self.host.clone();
        blocking(&self.runtime, move || sweep::sweep(&host.data_dir, host.folder.nonce())).await?
    }

    async fn guard(&self, pool: &str, wanted: WantedContainment) -> io::Result<Arc<dyn Guardian>> {
        let (host, pool) = (self.host.clone(), pool.to_owned());
        let started = blocking(&self.runtime, move || host.start(&pool, wanted)).await??;
        let _inside = self.runtime.enter();
        let connection = Arc::new(Connection::new(self.host.clone(), self.runtime.clone(), started)?);
        // It ends with the guardian, which ends when nobody holds the connection any more but this task.
        drop(self.runtime.spawn(connection.clone().listen()));
        Ok(Arc::new(HostGuardian::new(connection)))
    }

    fn socket(&self) -> PathBuf {
        self.host.socket.clone()
    }
}

/// A guardian that is ready for orders.
pub(super) struct Started {
    pub(super) pool: String,
    pub(super) folder: GuardianFolder,
    pub(super) socket: OwnedFd,
    pub(super) child: Child,
    pub(super) pidfd: OwnedFd,
    pub(super) containment: Containment,
}

impl Host {
    fn start(&self, pool: &str, wanted: WantedContainment) -> io::Result<Started> {
        let folder = self.folder.create_guardian(self.next.fetch_add(1, Ordering::Relaxed))?;
        let (socket, theirs) = link::pair()?;
        let begin = ToGuardian::Begin { pool: pool.to_owned(), strict: wanted == WantedContainment::Strict };
        link::send(&socket, &begin, &[])?;
        let mut command = Command::new(&self.exe);
        // The server's environment may hold secrets.
        command.env_clear().env(GUARDIAN_TAG, folder.tag()).envs(inherited_masks()).envs(descriptors::before());
        command.args(&self.args).arg(folder.path()).current_dir("/");
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        // Its end of the connection is the guardian's alone.
        drop(command);
        let ready = ready(&socket).and_then(|containment| Ok((containment, pidfd(&child)?)));
        match ready {
            Ok((containment, pidfd)) => {
                Ok(Started { pool: pool.to_owned(), folder, socket, child, pidfd, containment })
            }
            Err(error) => {
                // A child that was not waited for has its number to itself.
                let _it_may_have_ended = child.kill();
                let _reaped = child.wait();
                let _until_the_next_sweep = folder.remove();
                Err(error)
            }
        }
    }
}

fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn ready(socket: &OwnedFd) -> io::Result<Containment> {
    let until = clock::boot_ms() + READY_WITHIN_MS;
    loop {
        match link::receive(socket) {
            Ok(Received::Message(FromGuardian::Ready { containment }, _)) => return Ok(containment),
            Ok(Received::Message(FromGuardian::Refused { why, errno }, _)) => {
                return Err(
                    errno.map_or_else(|| io::Error::new(io::ErrorKind::Unsupported, why), io::Error::from_raw_os_error)
                );
            }
            Ok(Received::End) => return Err(io::Error::other("the guardian ended before it had begun")),
            Ok(_) => return Err(malformed("it is not the answer to the first")),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) => {}
        }
        let left = until.saturating_sub(clock::boot_ms());
        if left == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the guardian does not answer"));
        }
        let _interrupted = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&clock::timespec(left)));
    }
}

impl Drop for Host {
    /// What guardians still hold is for the next sweep.
    fn drop(&mut self) {
        if self.folder.guardians().is_ok_and(|guardians| guardians.is_empty()) {
            socket::remove(&self.folder);
            let _until_the_next_sweep = self.folder.remove();
        }
    }
}
