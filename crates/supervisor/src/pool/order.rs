//! Ordering a worker: what it is handed, and what becomes of the order.

use super::cgroup::Leaf;
use super::connection::Connection;
use super::input::Input;
use super::output::Output;
use super::protocol::{self, Order, Stage, ToGuardian};
use super::worker::{Fate, HostWorker};
use super::{environment, link};
use crate::exec;
use everbeat_engine::pools::{SpawnError, WorkerOrder};
use everbeat_model::Shortage;
use rustix::fs::MemfdFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::watch;

/// One side of the pipes between a server and a worker.
struct Ends {
    stdout: OwnedFd,
    stderr: OwnedFd,
    stdin: Option<OwnedFd>,
}

/// An order that is under way. Dropped before it is done, it leaves no worker behind.
struct Expected<'a> {
    connection: &'a Connection,
    id: u64,
    is_done: bool,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.connection.forget(self.id);
        if !self.is_done {
            let _it_ends_with_its_guardian = self.connection.try_send(&ToGuardian::Kill { id: self.id });
        }
    }
}

impl Connection {
    /// Has the guardian start a worker. When this is dropped half-way, there is none.
    pub(super) async fn order(self: &Arc<Connection>, id: u64, order: &WorkerOrder) -> Result<HostWorker, SpawnError> {
        let short = SpawnError::Shortage;
        let cwd = order.cwd.as_ref().map_or_else(|| self.host.cwd.clone(), |cwd| self.host.cwd.join(cwd));
        let dump = self.folder.dump(id);
        let written = self.written_order(order, &cwd, &dump).map_err(short)?;
        let (ours, theirs) = pipes(order.lines).map_err(short)?;
        let secret = secret(&order.secret).map_err(short)?;
        let (answer, fate) = self.expect(id).ok_or(SpawnError::Gone)?;
        let mut expected = Expected { connection: self, id, is_done: false };
        let spawn = ToGuardian::Spawn { id, worker: order.worker.to_string() };
        let mut descriptors = vec![written.as_fd(), theirs.stdout.as_fd(), theirs.stderr.as_fd(), secret.as_fd()];
        descriptors.extend(theirs.stdin.iter().map(AsFd::as_fd));
        self.send(&spawn, &descriptors).await.map_err(|_gone| SpawnError::Gone)?;
        // The worker's ends are the worker's alone.
        drop((written, theirs, secret));
        let worker = match answer.await {
            Err(_gone) => Err(SpawnError::Gone),
            Ok(Err((stage, errno))) => Err(failure(order, &self.host.env, &cwd, stage, errno)),
            Ok(Ok(started)) => self.worker(id, started, ours, order.lines, dump, fate).map_err(short),
        }?;
        expected.is_done = true;
        Ok(worker)
    }

    fn worker(
        self: &Arc<Connection>,
        id: u64,
        (pid, pidfd, leaf): (i32, OwnedFd, Option<PathBuf>),
        ours: Ends,
        lines: bool,
        dump: PathBuf,
        fate: watch::Receiver<Fate>,
    ) -> io::Result<HostWorker> {
        let _inside = self.inside();
        let output = Output::new(ours.stdout, ours.stderr, lines)?;
        let input = ours.stdin.map(Input::new).transpose()?;
        let pidfd = link::watched(pidfd)?;
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
            killed: AtomicBool::new(false),
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

/// This process's ends, and the worker's.
fn pipes(lines: bool) -> io::Result<(Ends, Ends)> {
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = pipe()?;
    let (stdin_end, stdin) = if lines { Some(pipe()?) } else { None }.unzip();
    let theirs = Ends { stdout: stdout_end, stderr: stderr_end, stdin: stdin_end };
    Ok((Ends { stdout, stderr, stdin }, theirs))
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
fn failure(
    order: &WorkerOrder,
    inherited: &BTreeMap<String, String>,
    cwd: &Path,
    stage: Stage,
    errno: i32,
) -> SpawnError {
    let error = io::Error::from_raw_os_error(errno);
    if Shortage::of_errno(errno).is_some() || stage == Stage::Process {
        return SpawnError::Shortage(error);
    }
    if stage == Stage::Folder {
        return SpawnError::Command(io::Error::new(error.kind(), format!("working folder {cwd:?}: {error}")));
    }
    let name = order.command.first().map(String::as_str).unwrap_or_default();
    let path = order.env.get("PATH").or_else(|| inherited.get("PATH")).map(String::as_str).unwrap_or_default();
    let (why, errno) = exec::why(name, path, cwd, &error);
    let kind = errno.map_or(error.kind(), |errno| io::Error::from_raw_os_error(errno).kind());
    SpawnError::Command(io::Error::new(kind, why))
}
