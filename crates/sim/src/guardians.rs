//! Guardians and the workers that they own, behind the engine's port. A guardian lives apart from its server: it notices
//! the server's death, and ends its workers within its bound.

use crate::executor::{Owner, WORLD};
use crate::process::{Cause, FIRST_GUARDIAN, FIRST_WORKER, Process, STARTUP};
use crate::shared::Shared;
use crate::truth::BootState;
use crate::worker::Worker;
use crate::workload::WORKER_TASK;
use async_trait::async_trait;
use everbeat_engine::pools::{
    Containment, Emptied, Guardian, Guardians, OutputLine, ProcessLook, SpawnError, Swept, WantedContainment,
    WorkerExit, WorkerOrder, WorkerProcess, WorkerSignal,
};
use futures_util::FutureExt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

const MS: u64 = 1000;
/// However a server dies, nothing of its pools is left after that, if its guardian lives.
const BOUND: u64 = 1000 * MS;
/// From the polite signal to the other, after the death of a server.
const TERM_TO_KILL: u64 = 400 * MS;

/// What a server's port to guardians holds.
pub(crate) struct SimGuardians {
    pub(crate) shared: Arc<Shared>,
    pub(crate) server: Owner,
    pub(crate) place: usize,
    pub(crate) machine: usize,
}

/// A guardian process.
pub(crate) struct Warden {
    shared: Arc<Shared>,
    pub(crate) owner: Owner,
    pub(crate) server: Owner,
    place: usize,
    machine: usize,
    gone: AtomicBool,
    killed: AtomicBool,
    changed: Notify,
    /// The server's end of its life-pipe is closed.
    server_gone: AtomicBool,
}

#[async_trait]
impl Guardians for SimGuardians {
    async fn sweep(&self) -> io::Result<Swept> {
        let begun = self.shared.now();
        let pause = self.shared.pools().rng.between(1, 150) * MS;
        self.shared.sleep(pause).await;
        if self.shared.pools().chance(0.05) {
            self.shared.truth().report.fault("sweep that fails");
            return Err(io::Error::other("the folder of guardians cannot be read"));
        }
        let mut orphans = 0;
        loop {
            let left = self.shared.left_behind(self.place, self.server);
            if left.is_empty() {
                break;
            }
            orphans += left.len();
            for process in left {
                process.exit(Cause::Swept);
                process.empty();
                self.shared.truth().report.worker("orphan swept");
            }
            self.shared.sleep(MS).await;
        }
        let took = Duration::from_micros(self.shared.now() - begun);
        Ok(Swept { orphans, took, reports: Vec::new() })
    }

    async fn guard(&self, _pool: &str, _wanted: WantedContainment) -> io::Result<Arc<dyn Guardian>> {
        let (pause, fails) = {
            let mut pools = self.shared.pools();
            (pools.rng.between(MS, 20 * MS), pools.chance(0.03))
        };
        self.shared.sleep(pause).await;
        if fails {
            self.shared.truth().report.fault("guardian that cannot be started");
            return Err(io::Error::other("no process could be made"));
        }
        let owner = self.shared.pools().next(FIRST_GUARDIAN);
        let warden = Arc::new(Warden {
            shared: self.shared.clone(),
            owner,
            server: self.server,
            place: self.place,
            machine: self.machine,
            gone: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            changed: Notify::new(),
            server_gone: AtomicBool::new(false),
        });
        self.shared.pools().guardians.insert(owner, warden.clone());
        self.shared.executor.spawn(owner, "guardian", warden.clone().live().boxed());
        self.shared.trace(|truth| format!("{} starts guardian {owner}", truth.label(self.server)));
        Ok(warden)
    }

    fn socket(&self) -> PathBuf {
        PathBuf::from("worker.sock")
    }
}

impl Warden {
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    fn workers(&self) -> Vec<Arc<Process>> {
        let pools = self.shared.pools();
        pools.all.values().filter(|process| process.guardian == Some(self.owner)).cloned().collect()
    }

    async fn until(&self, found: impl Fn(&Warden) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if found(self) {
                return;
            }
            changed.await;
        }
    }

    /// Waits for the death of its server, and then ends all that it owns.
    async fn live(self: Arc<Warden>) {
        self.until(|warden| warden.server_gone.load(Ordering::SeqCst)).await;
        let (notices, kills) = {
            let mut pools = self.shared.pools();
            (pools.rng.between(1, 50) * MS, pools.rng.between(50 * MS, TERM_TO_KILL))
        };
        self.shared.sleep(notices).await;
        for process in self.workers().iter().filter(|process| process.is_alive()) {
            process.state().terminated = true;
            process.changed();
        }
        self.shared.sleep(kills).await;
        self.end_all();
        self.ends("when all is done");
    }

    fn end_all(&self) {
        for process in self.workers() {
            process.exit(Cause::Guardian);
            process.empty();
        }
    }

    /// It is gone, whatever of its workers is not.
    fn ends(&self, why: &str) {
        if !self.gone.swap(true, Ordering::SeqCst) {
            self.shared.trace(|_| format!("guardian {} ends {why}", self.owner));
            self.shared.executor.crash(self.owner);
            self.changed.notify_waiters();
        }
    }

    /// Killed while its server lives: the kernel ends its workers.
    pub(crate) fn dies(&self) {
        if !self.is_gone() {
            self.killed.store(true, Ordering::SeqCst);
            self.ends("by a kill");
            self.workers().iter().for_each(|process| process.exit(Cause::GuardianGone));
        }
    }

    /// Killed together with its server.
    fn dies_with_its_server(&self) {
        if self.is_gone() {
            return;
        }
        self.ends("with its server");
        for process in self.workers() {
            // Not all have asked the kernel to die with their parent; those notice sooner or later.
            let notices = self.shared.pools().rng.between(1, 3000) * MS;
            let shared = self.shared.clone();
            let notice = async move {
                shared.sleep(notices).await;
                process.exit(Cause::ServerGone);
            };
            self.shared.executor.spawn(WORLD, "orphan", notice.boxed());
        }
    }
}

#[async_trait]
impl Guardian for Warden {
    fn containment(&self) -> Containment {
        Containment::Cgroup
    }

    async fn spawn(&self, order: &WorkerOrder) -> Result<Arc<dyn WorkerProcess>, SpawnError> {
        let (before, after) = {
            let mut pools = self.shared.pools();
            (pools.rng.between(MS, 15 * MS), pools.rng.between(10, 8 * MS))
        };
        self.shared.sleep(before).await;
        if self.is_gone() {
            return Err(SpawnError::Gone);
        }
        let (command, short) = {
            let mut pools = self.shared.pools();
            (pools.chance(0.02), pools.chance(0.03))
        };
        if command || short {
            self.shared.truth().report.fault("worker that cannot be started");
            let error = io::Error::other("in the simulation");
            return Err(if command { SpawnError::Command(error) } else { SpawnError::Shortage(error) });
        }
        let left = self.shared.left_behind(self.place, self.server);
        if let Some(orphan) = left.first() {
            let name = orphan.name();
            self.shared.truth().violate("G9", format!("{name} of an earlier server lives when a worker is started"));
        }
        let process = {
            let mut pools = self.shared.pools();
            let (owner, pid) = (pools.next(FIRST_WORKER), pools.free_pid(self.machine));
            drop(pools);
            let whose = (Some(self.server), Some(self.owner));
            Process::new(&self.shared, owner, whose, (self.place, self.machine, pid), Vec::new())
        };
        let startup = {
            let mut pools = self.shared.pools();
            pools.all.retain(|_, process| !process.is_emptied());
            pools.all.insert(process.owner, process.clone());
            let slow = pools.chance(0.04);
            if slow { pools.rng.between(STARTUP / 2, STARTUP * 3) } else { pools.rng.between(MS, 60 * MS) }
        };
        if startup > STARTUP {
            self.shared.truth().report.fault("worker slow to start");
        }
        self.shared.truth().report.worker("started");
        self.shared.trace(|truth| format!("{} starts {}", truth.label(self.server), process.name()));
        let pool = order.env.get("EVERBEAT_POOL").cloned();
        let tasks = vec![WORKER_TASK.to_string()];
        Worker::start(&process, (pool, order.secret.clone()), (tasks, Vec::new()), startup);
        // The worker runs, and its server does not know yet.
        self.shared.sleep(after).await;
        Ok(Arc::new(Owned(process)))
    }

    async fn gone(&self) {
        self.until(Warden::is_gone).await;
    }

    async fn end(&self) {
        self.end_all();
        self.ends("on request");
    }
}

/// A worker as its server holds it.
struct Owned(Arc<Process>);

#[async_trait]
impl WorkerProcess for Owned {
    fn pid(&self) -> u32 {
        self.0.pid
    }

    async fn exited(&self) -> WorkerExit {
        self.0.exited().await
    }

    async fn emptied(&self) -> Emptied {
        let (ended, emptied) = self.0.emptied().await;
        Emptied { how: "cgroup", took: Duration::from_micros(emptied - ended), killed: 0 }
    }

    async fn signal(&self, signal: WorkerSignal) -> io::Result<()> {
        let (pause, fails) = {
            let mut pools = self.0.shared.pools();
            (pools.rng.between(10, MS), pools.chance(0.15))
        };
        self.0.shared.sleep(pause).await;
        if let Err((guarantee, detail)) = self.0.is_signalled() {
            self.0.shared.truth().violate(guarantee, detail);
        }
        if fails {
            self.0.shared.truth().report.fault("signal that fails");
            return Err(io::Error::other("in the simulation"));
        }
        match signal {
            WorkerSignal::Terminate => {
                self.0.state().terminated = true;
                self.0.changed();
            }
            WorkerSignal::Kill => {
                self.0.exit(Cause::Signalled);
            }
        }
        Ok(())
    }

    async fn look(&self) -> Option<ProcessLook> {
        let (unknown, slow) = {
            let mut pools = self.0.shared.pools();
            (pools.chance(0.03), pools.chance(0.01))
        };
        if slow {
            self.0.shared.sleep(300 * MS).await;
        }
        (!unknown).then(|| self.0.look())
    }

    async fn line(&self) -> Option<OutputLine> {
        self.0.line().await
    }

    async fn write(&self, _line: &[u8]) -> io::Result<()> {
        Ok(())
    }

    async fn close_input(&self) {}

    async fn stacks(&self) -> Option<String> {
        let (pause, dies) = {
            let mut pools = self.0.shared.pools();
            (pools.rng.between(MS, 120 * MS), pools.chance(0.3))
        };
        if dies && self.0.is_alive() {
            // The signal that asks for them ends a process that has no handler for it.
            self.0.shared.truth().report.fault("worker that dies of being asked");
            self.0.exit(Cause::Killed);
        }
        self.0.shared.sleep(pause).await;
        self.0.is_alive().then(|| "in the simulation".to_string())
    }
}

impl Shared {
    /// Whether somebody is there who ends what a worker started.
    pub(crate) fn looked_after(&self, process: &Process) -> bool {
        let pools = self.pools();
        process.server.is_none_or(|server| pools.servers.contains_key(&server))
            || process.guardian.and_then(|owner| pools.guardians.get(&owner)).is_some_and(|warden| !warden.is_gone())
    }

    /// What earlier servers left at a place.
    pub(crate) fn left_behind(&self, place: usize, server: Owner) -> Vec<Arc<Process>> {
        let pools = self.pools();
        let left = |process: &&Arc<Process>| {
            let of = process.server.filter(|of| *of != server && !pools.servers.contains_key(of));
            process.place == place && of.is_some() && !process.is_emptied()
        };
        pools.all.values().filter(left).cloned().collect()
    }

    /// The process of a replica has ended. Its guardians notice, unless they were killed with it.
    pub(crate) fn server_died(self: &Arc<Shared>, server: Owner, state: BootState) {
        let (wardens, together) = {
            let mut pools = self.pools();
            pools.servers.remove(&server);
            let of = |warden: &&Arc<Warden>| warden.server == server && !warden.is_gone();
            let wardens: Vec<Arc<Warden>> = pools.guardians.values().filter(of).cloned().collect();
            pools.guardians.retain(|_, warden| !warden.is_gone());
            let together = state == BootState::Crashed && !wardens.is_empty() && pools.chance(0.35);
            (wardens, together)
        };
        if together {
            self.truth().report.fault("server and guardian killed together");
            return wardens.iter().for_each(|warden| warden.dies_with_its_server());
        }
        for warden in &wardens {
            warden.server_gone.store(true, Ordering::SeqCst);
            warden.changed.notify_waiters();
        }
        let shared = self.clone();
        let check = async move {
            shared.sleep(BOUND).await;
            for warden in wardens.iter().filter(|warden| !warden.killed.load(Ordering::SeqCst)) {
                if let Some(process) = warden.workers().iter().find(|process| !process.is_emptied()) {
                    let name = process.name();
                    shared.truth().violate("G9", format!("{name} lives a second after its server died"));
                }
            }
        };
        self.executor.spawn(WORLD, "bound", check.boxed());
    }
}
