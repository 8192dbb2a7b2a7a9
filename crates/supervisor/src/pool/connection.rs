//! The connection of a server to one guardian.

use super::folder::GuardianFolder;
use super::host::{Host, Started};
use super::leftovers::Leftovers;
use super::link::{self, Received};
use super::protocol::{Containment, FromGuardian, Stage, ToGuardian};
use super::worker::Fate;
use crate::job::clock;
use async_trait::async_trait;
use everbeat_engine::pools::{self, Emptied, Guardian, SpawnError, WorkerExit, WorkerOrder, WorkerProcess};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::{oneshot, watch};

/// The connection to one guardian, and what is known of its workers.
pub(super) struct Connection {
    pub(super) host: Arc<Host>,
    runtime: Handle,
    pub(super) pool: String,
    pub(super) folder: GuardianFolder,
    containment: Containment,
    socket: AsyncFd<OwnedFd>,
    pidfd: OwnedFd,
    child: Mutex<Option<Child>>,
    workers: Mutex<Workers>,
    next: AtomicU64,
    gone: watch::Sender<bool>,
}

/// One that was told to end and does not hangs.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Workers {
    /// The guardian is gone.
    is_over: bool,
    ordered: BTreeMap<u64, oneshot::Sender<Spawned>>,
    fates: BTreeMap<u64, watch::Sender<Fate>>,
}

/// What an order became: a process with its pidfd and its leaf, or what failed.
pub(super) type Spawned = Result<(i32, OwnedFd, Option<PathBuf>), (Stage, i32)>;

impl Connection {
    pub(super) fn new(host: Arc<Host>, runtime: Handle, started: Started) -> io::Result<Connection> {
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
    pub(super) async fn listen(self: Arc<Connection>) {
        while let Ok(mut ready) = self.socket.readable().await {
            match ready.try_io(link::receive) {
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
                self.tell_exit(id, WorkerExit { code, signal, out_of_memory: out_of_memory.told() });
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

    /// Notes an order that is about to be sent; none if the guardian is gone.
    pub(super) fn expect(&self, id: u64) -> Option<(oneshot::Receiver<Spawned>, watch::Receiver<Fate>)> {
        let mut workers = self.workers();
        if workers.is_over {
            return None;
        }
        let ((told, answer), (fate_sender, fate)) = (oneshot::channel(), watch::channel(Fate::default()));
        workers.ordered.insert(id, told);
        workers.fates.insert(id, fate_sender);
        Some((answer, fate))
    }

    /// Nobody waits for an order any more. If it comes to a worker, that is killed.
    pub(super) fn forget(&self, id: u64) {
        let mut workers = self.workers();
        if workers.ordered.remove(&id).is_some() {
            workers.fates.remove(&id);
        }
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
        // Those who wait for the answer to an order learn that there will be none.
        let Workers { fates, .. } =
            std::mem::replace(&mut *self.workers(), Workers { is_over: true, ..Workers::default() });
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

/// The guardian of a pool. It ends when this is dropped.
pub(super) struct HostGuardian {
    connection: Arc<Connection>,
}

impl HostGuardian {
    pub(super) fn new(connection: Arc<Connection>) -> HostGuardian {
        HostGuardian { connection }
    }
}

#[async_trait]
impl Guardian for HostGuardian {
    fn containment(&self) -> pools::Containment {
        self.connection.containment.told()
    }

    async fn spawn(&self, order: &WorkerOrder) -> Result<Arc<dyn WorkerProcess>, SpawnError> {
        let id = self.connection.next.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(self.connection.order(id, order).await?))
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

/// Waits on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(
    runtime: &Handle,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    runtime.spawn_blocking(work).await.map_err(io::Error::other)
}
