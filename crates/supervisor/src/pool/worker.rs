//! One worker, as its server sees it.

use super::cgroup::Leaf;
use super::connection::Connection;
use super::input::Input;
use super::output::Output;
use super::protocol::ToGuardian;
use super::{look, pidfd, stacks};
use async_trait::async_trait;
use everbeat_engine::pools::{Emptied, OutOfMemory, OutputLine, ProcessLook, WorkerExit, WorkerProcess, WorkerSignal};
use rustix::process::{Signal, pidfd_send_signal};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, watch};

/// A guardian tells of the end of a worker at once, or it hangs.
const TOLD_WITHIN: Duration = Duration::from_millis(500);

/// What has become of a worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Fate {
    pub(super) exit: Option<WorkerExit>,
    pub(super) emptied: Option<Emptied>,
}

/// A worker lives no longer than somebody holds this.
pub(super) struct HostWorker {
    pub(super) connection: Arc<Connection>,
    pub(super) id: u64,
    pub(super) pid: i32,
    pub(super) pidfd: Arc<AsyncFd<OwnedFd>>,
    pub(super) leaf: Option<Arc<Leaf>>,
    pub(super) output: Mutex<Output>,
    pub(super) input: Option<Mutex<Input>>,
    pub(super) dump: PathBuf,
    pub(super) fate: watch::Receiver<Fate>,
    /// Whether this server has killed it: then it was not the lack of memory.
    pub(super) killed: AtomicBool,
}

#[async_trait]
impl WorkerProcess for HostWorker {
    fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    async fn exited(&self) -> WorkerExit {
        let mut fate = self.fate.clone();
        let told = async {
            let told = fate.wait_for(|fate| fate.exit.is_some()).await;
            told.ok().and_then(|fate| fate.exit.clone()).unwrap_or_default()
        };
        tokio::pin!(told);
        let told_in_time = tokio::select! {
            biased;
            exit = &mut told => Some(exit),
            () = self.untold() => None,
        };
        match told_in_time {
            Some(exit) if exit != WorkerExit::default() => {
                return match self.killed.load(Ordering::Relaxed) {
                    true => WorkerExit { out_of_memory: OutOfMemory::No, ..exit },
                    false => exit,
                };
            }
            _ => {}
        }
        // The guardian hangs, or was gone before it could see the end: then the kernel is asked.
        let seen = pidfd::exit(self.pidfd.get_ref());
        let seen = seen.map(|(code, signal)| WorkerExit { code, signal, ..WorkerExit::default() });
        match (told_in_time, seen) {
            (Some(unknown), seen) => seen.unwrap_or(unknown),
            (None, Some(seen)) => {
                self.connection.tell_exit(self.id, seen);
                told.await
            }
            (None, None) => told.await,
        }
    }

    async fn emptied(&self) -> Emptied {
        let mut fate = self.fate.clone();
        if let Ok(fate) = fate.wait_for(|fate| fate.emptied.is_some()).await
            && let Some(emptied) = &fate.emptied
        {
            return emptied.clone();
        }
        // Whoever would tell is gone without having looked: nobody can say that nothing is left.
        std::future::pending().await
    }

    async fn signal(&self, signal: WorkerSignal) -> io::Result<()> {
        match signal {
            WorkerSignal::Terminate => {
                self.send(Signal::TERM)?;
                // So that the stopped hear it.
                self.send(Signal::CONT)
            }
            WorkerSignal::Kill => {
                self.killed.store(true, Ordering::Relaxed);
                let told = self.connection.try_send(&ToGuardian::Kill { id: self.id });
                // A guardian that is gone has taken its workers along; one that hangs is not waited for.
                let main = self.send(Signal::KILL);
                told.or(main)
            }
        }
    }

    async fn look(&self) -> Option<ProcessLook> {
        let (pid, pidfd, leaf) = (self.pid, self.pidfd.clone(), self.leaf.clone());
        let look = move || look::look(pid, leaf.as_deref()).filter(|_| pidfd::is_alive(pidfd.get_ref()));
        self.connection.blocking(look).await.ok().flatten()
    }

    async fn line(&self) -> Option<OutputLine> {
        self.output.lock().await.line().await
    }

    async fn write(&self, line: &[u8]) -> io::Result<()> {
        match &self.input {
            Some(input) => input.lock().await.write(line).await,
            None => Err(io::Error::new(io::ErrorKind::Unsupported, "this worker does not read its standard input")),
        }
    }

    async fn close_input(&self) {
        if let Some(input) = &self.input {
            input.lock().await.close().await;
        }
    }

    async fn stacks(&self) -> Option<String> {
        let (pid, pidfd, dump) = (self.pid, self.pidfd.clone(), self.dump.clone());
        self.connection.blocking(move || stacks::stacks(pid, pidfd.get_ref().as_fd(), &dump)).await.ok().flatten()
    }
}

impl HostWorker {
    /// Until the process has ended and its guardian had time to say how.
    #[expect(clippy::disallowed_methods, reason = "guardians are of this process, on whatever clock the engine runs")]
    async fn untold(&self) {
        let _nothing_to_read = self.pidfd.readable().await.map(|_| ());
        let told_within = {
            let _inside = self.connection.inside();
            tokio::time::sleep(TOLD_WITHIN)
        };
        told_within.await;
    }

    /// To the main process, if it has not ended.
    fn send(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(self.pidfd.get_ref(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for HostWorker {
    fn drop(&mut self) {
        if self.fate.borrow().emptied.is_none() {
            let _it_ends_with_its_guardian = self.connection.try_send(&ToGuardian::Kill { id: self.id });
        }
        let _never_written = fs::remove_file(&self.dump);
    }
}
