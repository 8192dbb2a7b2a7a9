//! The engine's port to the guardians of this host.

use super::cgroup::Leaf;
use super::environment::{self, GUARDIAN_TAG};
use super::folder::{GuardianFolder, ServerFolder};
use super::guardian::inherited_masks;
use super::input::Input;
use super::leftovers::Leftovers;
use super::link::{self, Received};
use super::output::Output;
use super::protocol::{self, Containment, FromGuardian, Order, Stage, ToGuardian, malformed};
use super::worker::{Fate, HostWorker};
use super::{socket, sweep};
use crate::descriptors;
use crate::job::clock;
use crate::ofd_lock::Held;
use crate::place::Place;
use async_trait::async_trait;
use everbeat_engine::pools::{
    self, Emptied, Guardian, Guardians, SpawnError, Swept, WantedContainment, WorkerExit, WorkerOrder, WorkerProcess,
};
use everbeat_model::Shortage;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::MemfdFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::{oneshot, watch};

/// The guardians of one server process, below its data folder: `pools/{nonce}/`.
#[derive(Clone)]
pub struct HostGuardians {
    host: Arc<Host>,
    runtime: Handle,
}

struct Host {
    data_dir: PathBuf,
    folder: ServerFolder,
    socket: PathBuf,
    /// The program that becomes a guardian, and what it is told for that.
    exe: PathBuf,
    args: Vec<OsString>,
    /// What every worker gets of this process's environment, and where it is started.
    env: BTreeMap<String, String>,
    cwd: PathBuf,
    next: AtomicU32,
    _lock: Held,
}

/// A guardian answers as soon as it runs.
const READY_WITHIN_MS: u64 = 10_000;
/// One that was told to end and does not hangs.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

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
        Ok(Arc::new(HostGuardian { connection }))
    }

    fn socket(&self) -> PathBuf {
        self.host.socket.clone()
    }
}

/// Waits on a thread of its own.
async fn blocking<T: Send + 'static>(runtime: &Handle, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    runtime.spawn_blocking(work).await.map_err(io::Error::other)
}

struct Started {
    pool: String,
    folder: GuardianFolder,
    socket: OwnedFd,
    child: Child,
    pidfd: OwnedFd,
    containment: Containment,
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

/// The connection to one guardian, and what is known of its workers.
pub(super) struct Connection {
    host: Arc<Host>,
    runtime: Handle,
    pool: String,
    folder: GuardianFolder,
    containment: Containment,
    socket: AsyncFd<OwnedFd>,
    pidfd: OwnedFd,
    child: Mutex<Option<Child>>,
    workers: Mutex<Workers>,
    next: AtomicU64,
    gone: watch::Sender<bool>,
}

#[derive(Default)]
struct Workers {
    /// None after the guardian's end.
    is_over: bool,
    ordered: BTreeMap<u64, oneshot::Sender<Spawned>>,
    fates: BTreeMap<u64, watch::Sender<Fate>>,
}

type Spawned = Result<(i32, OwnedFd, Option<PathBuf>), (Stage, i32)>;

impl Connection {
    fn new(host: Arc<Host>, runtime: Handle, started: Started) -> io::Result<Connection> {
        let Started { pool, folder, socket, child, pidfd, containment } = started;
        Ok(Connection {
            host,
            runtime,
            pool,
            folder,
            containment,
            socket: link::watched(socket)?,
            pidfd,
            child: Mutex::new(Some(child)),
            workers: Mutex::default(),
            next: AtomicU64::new(0),
            gone: watch::Sender::new(false),
        })
    }

    pub(super) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        blocking(&self.runtime, work).await
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn send(&self, message: &ToGuardian, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            if let Ok(sent) = ready.try_io(|socket| link::send(socket, message, descriptors)) {
                return sent;
            }
        }
    }

    pub(super) fn try_send(&self, message: &ToGuardian) -> io::Result<()> {
        link::send(self.socket.get_ref(), message, &[])
    }

    /// Hears what the guardian says until it is gone, and then ends what it may have left.
    async fn listen(self: Arc<Connection>) {
        while let Ok(mut ready) = self.socket.readable().await {
            match ready.try_io(|socket| link::receive(socket)) {
                Ok(Ok(Received::Message(message, descriptors))) => self.hear(message, descriptors),
                Ok(Ok(Received::WithoutRoom(FromGuardian::Spawned { id, .. }))) => {
                    self.answer(id, Err((Stage::Process, libc::EMFILE)));
                    let _it_ends_with_its_guardian = self.try_send(&ToGuardian::Kill { id });
                }
                Ok(Ok(Received::WithoutRoom(message))) => self.hear(message, Vec::new()),
                Ok(Ok(Received::End)) => break,
                Ok(Err(error)) => {
                    tracing::warn!(pool = self.pool, %error, "a guardian cannot be understood; it is ended");
                    break;
                }
                Err(_would_block) => {}
            }
        }
        let _gone_already = pidfd_send_signal(&self.pidfd, Signal::KILL);
        self.bury().await;
    }

    fn hear(&self, message: FromGuardian, mut descriptors: Vec<OwnedFd>) {
        match message {
            FromGuardian::Ready { .. } | FromGuardian::Refused { .. } => {}
            FromGuardian::Spawned { id, pid, leaf } => match descriptors.pop() {
                Some(pidfd) => self.answer(id, Ok((pid, pidfd, leaf))),
                None => self.answer(id, Err((Stage::Process, libc::EMFILE))),
            },
            FromGuardian::Failed { id, stage, errno } => self.answer(id, Err((stage, errno))),
            FromGuardian::Exited { id, code, signal, out_of_memory } => {
                self.tell_exit(id, WorkerExit { code, signal, out_of_memory });
            }
            FromGuardian::Emptied { id, how, took_us, killed } => {
                let emptied = Emptied { how: how.as_str(), took: Duration::from_micros(took_us), killed };
                if let Some(fate) = self.workers().fates.remove(&id) {
                    fate.send_modify(|fate| fate.emptied = Some(emptied));
                }
            }
        }
    }

    /// The first word on it counts.
    pub(super) fn tell_exit(&self, id: u64, exit: WorkerExit) {
        if let Some(fate) = self.workers().fates.get(&id) {
            fate.send_modify(|fate| _ = fate.exit.get_or_insert(exit));
        }
    }

    pub(super) fn inside(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// An order that nobody waits for any more is undone.
    fn answer(&self, id: u64, spawned: Spawned) {
        let failed = spawned.is_err();
        let mut workers = self.workers();
        let told = workers.ordered.remove(&id).is_some_and(|order| order.send(spawned).is_ok());
        if failed {
            workers.fates.remove(&id);
        }
        drop(workers);
        if !failed && !told {
            let _it_ends_with_its_guardian = self.try_send(&ToGuardian::Kill { id });
        }
    }

    /// The guardian is gone: what it left is ended, and told of.
    async fn bury(&self) {
        let began = clock::boot_us();
        let (folder, child) = (self.folder.clone(), self.child.lock().unwrap_or_else(PoisonError::into_inner).take());
        let ended = self.blocking(move || {
            let _reaped = child.map(|mut child| child.wait());
            end_left(&folder)
        });
        let killed = ended.await.unwrap_or(0);
        let mut workers = self.workers();
        workers.is_over = true;
        let Workers { ordered, fates, .. } = std::mem::take(&mut *workers);
        workers.is_over = true;
        drop((ordered, workers));
        let took = Duration::from_micros(clock::boot_us() - began);
        for fate in fates.into_values() {
            let how = self.containment.how().as_str();
            // How those ended whose end nobody saw is unknown.
            fate.send_modify(|fate| {
                fate.exit.get_or_insert_default();
                fate.emptied = Some(Emptied { how, took, killed });
            });
        }
        self.gone.send_replace(true);
    }
}

/// Until nothing is left, however long the kernel takes.
fn end_left(folder: &GuardianFolder) -> usize {
    const AGAIN_MS: u64 = 100;
    loop {
        match Leftovers::of(folder).and_then(|left| left.map_or(Ok(0), |left| left.end())) {
            Ok(found) => {
                let _until_the_next_sweep = folder.remove();
                return found;
            }
            Err(error) => {
                tracing::warn!(%error, "what a guardian left is not ended yet");
                clock::pause(AGAIN_MS);
            }
        }
    }
}

struct HostGuardian {
    connection: Arc<Connection>,
}

#[async_trait]
impl Guardian for HostGuardian {
    fn containment(&self) -> pools::Containment {
        self.connection.containment.told()
    }

    async fn spawn(&self, order: &WorkerOrder) -> Result<Arc<dyn WorkerProcess>, SpawnError> {
        let connection = &self.connection;
        let id = connection.next.fetch_add(1, Ordering::Relaxed);
        let worker = connection.order(id, order).await?;
        Ok(Arc::new(worker))
    }

    async fn gone(&self) {
        let mut gone = self.connection.gone.subscribe();
        let _its_sender_is_here = gone.wait_for(|gone| *gone).await.map(|_| ());
    }

    #[expect(clippy::disallowed_methods, reason = "guardians are of this process, on whatever clock the engine runs")]
    async fn end(&self) {
        let _gone_already = self.connection.send(&ToGuardian::End, &[]).await;
        let ends_within = {
            let _inside = self.connection.runtime.enter();
            tokio::time::sleep(ENDS_WITHIN)
        };
        tokio::select! {
            biased;
            () = self.gone() => return,
            () = ends_within => {}
        }
        let _gone_already = pidfd_send_signal(&self.connection.pidfd, Signal::KILL);
        self.gone().await;
    }
}

impl Drop for HostGuardian {
    fn drop(&mut self) {
        // Without this word it would take the end of the connection for the death of this process.
        let _gone_already = self.connection.try_send(&ToGuardian::End);
    }
}

/// This process's ends of what a worker is handed.
struct Ours {
    stdout: OwnedFd,
    stderr: OwnedFd,
    stdin: Option<OwnedFd>,
}

impl Connection {
    async fn order(self: &Arc<Connection>, id: u64, order: &WorkerOrder) -> Result<HostWorker, SpawnError> {
        let short = SpawnError::Shortage;
        let cwd = order.cwd.as_ref().map_or_else(|| self.host.cwd.clone(), |cwd| self.host.cwd.join(cwd));
        let dump = self.folder.dump(id);
        let written = self.written_order(order, &cwd, &dump).map_err(short)?;
        let (stdout, stdout_end) = pipe().map_err(short)?;
        let (stderr, stderr_end) = pipe().map_err(short)?;
        let secret = secret(&order.secret).map_err(short)?;
        let (stdin_end, stdin) = match order.lines {
            true => pipe().map(|(end, ours)| (Some(end), Some(ours))).map_err(short)?,
            false => (None, None),
        };
        let ours = Ours { stdout, stderr, stdin };
        let (told, answer) = oneshot::channel();
        let (fate_sender, fate) = watch::channel(Fate::default());
        {
            let mut workers = self.workers();
            if workers.is_over {
                return Err(SpawnError::Gone);
            }
            workers.ordered.insert(id, told);
            workers.fates.insert(id, fate_sender);
        }
        let spawn = ToGuardian::Spawn { id, worker: order.worker.to_string() };
        let mut descriptors = vec![written.as_fd(), stdout_end.as_fd(), stderr_end.as_fd(), secret.as_fd()];
        descriptors.extend(stdin_end.iter().map(AsFd::as_fd));
        self.send(&spawn, &descriptors).await.map_err(|_gone| SpawnError::Gone)?;
        // The worker's ends are the worker's alone.
        drop((written, stdout_end, stderr_end, secret, stdin_end));
        match answer.await {
            Err(_gone) => Err(SpawnError::Gone),
            Ok(Err((stage, errno))) => Err(failure(order, &cwd, stage, errno)),
            Ok(Ok((pid, pidfd, leaf))) => {
                self.worker(id, pid, pidfd, leaf, ours, order.lines, dump, fate).map_err(short)
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "each is one thing of one worker")]
    fn worker(
        self: &Arc<Connection>,
        id: u64,
        pid: i32,
        pidfd: OwnedFd,
        leaf: Option<PathBuf>,
        ours: Ours,
        lines: bool,
        dump: PathBuf,
        fate: watch::Receiver<Fate>,
    ) -> io::Result<HostWorker> {
        let _inside = self.runtime.enter();
        let made = (|| {
            let output = Output::new(ours.stdout, ours.stderr, lines)?;
            io::Result::Ok((output, ours.stdin.map(Input::new).transpose()?, link::watched(pidfd)?))
        })();
        // Who cannot be heard must not run.
        let (output, input, pidfd) = made.inspect_err(|_| _ = self.try_send(&ToGuardian::Kill { id }))?;
        Ok(HostWorker {
            connection: self.clone(),
            id,
            pid,
            pidfd: Arc::new(pidfd),
            leaf: leaf.map(|path| Arc::new(Leaf::at(path))),
            output: output.into(),
            input: input.map(Into::into),
            dump,
            fate,
        })
    }

    /// The order, as the guardian reads it, in a file in memory.
    fn written_order(&self, order: &WorkerOrder, cwd: &Path, dump: &Path) -> io::Result<OwnedFd> {
        let mut env = self.host.env.clone();
        env.extend(order.env.clone());
        let own = [
            (environment::SOCKET, self.host.socket.display().to_string()),
            (environment::SECRET_FD, protocol::SECRET_FD.to_string()),
            (environment::LIFE_FD, protocol::LIFE_FD.to_string()),
            (environment::DUMP_PATH, dump.display().to_string()),
            (environment::POOL, self.pool.clone()),
            (environment::WORKER_ID, order.worker.to_string()),
            (environment::WORKER_TAG, self.folder.tag().to_owned()),
        ];
        env.extend(own.map(|(name, value)| (name.to_owned(), value)));
        let order = Order { command: order.command.clone(), env, cwd: cwd.to_owned() };
        let mut file = File::from(rustix::fs::memfd_create("everbeat-order", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(&order)?)?;
        file.rewind()?;
        Ok(file.into())
    }
}

/// A pipe that holds the secret, and whose other end is closed.
fn secret(secret: &str) -> io::Result<OwnedFd> {
    let (end, ours) = pipe()?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let mut ours = File::from(ours);
    ours.write_all(secret.as_bytes())?;
    Ok(end)
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// Says what it was that failed.
fn failure(order: &WorkerOrder, cwd: &Path, stage: Stage, errno: i32) -> SpawnError {
    let error = io::Error::from_raw_os_error(errno);
    if Shortage::of_errno(errno).is_some() || stage == Stage::Process {
        return SpawnError::Shortage(error);
    }
    let name = order.command.first().map(String::as_str).unwrap_or_default();
    let absent = matches!(errno, libc::ENOENT | libc::ENOTDIR);
    let why = match stage {
        Stage::Folder => format!("working folder {cwd:?}: {error}"),
        _ if absent && !name.contains('/') => format!("program {name:?} was not found in PATH"),
        _ if absent && cwd.join(name).exists() => {
            format!("program {name:?} needs an interpreter that does not exist: {error}")
        }
        _ if errno == libc::EACCES => format!("program {name:?} is not executable: {error}"),
        _ => format!("program {name:?}: {error}"),
    };
    SpawnError::Command(io::Error::new(error.kind(), why))
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
