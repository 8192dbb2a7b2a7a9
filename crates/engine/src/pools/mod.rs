//! Pools of worker processes, in any language: started by guardians, fed and watched over a link.

mod ask;
mod end;
mod ending;
mod engage;
mod follow;
mod greet;
mod guardian;
mod introduce;
mod keep;
mod keys;
mod lines;
mod link;
mod offer;
mod performer;
mod pool;
mod pulse;
mod report;
mod session_upkeep;
mod sessions;
mod settings;
mod streamed;
mod taken;
mod telemetry;
mod tell;
mod view;
mod watch;
mod worker;

pub use ask::MOST_WORKERS;
pub use greet::{Heard, Link};
pub use guardian::{
    Containment, Emptied, Guardian, GuardianReport, Guardians, OutOfMemory, OutputLine, ProcessLook, ProcessState,
    SpawnError, Swept, WorkerExit, WorkerOrder, WorkerProcess, WorkerSignal,
};
pub use link::{
    Assignment, Declined, Ended, FromWorker, HeartbeatAnswer, Hello, LeaseShown, Pong, Refused, Returning,
    SessionShown, ToWorker, Why,
};
pub use settings::{PoolSettings, Protocol, WantedContainment};
pub use telemetry::tell;
pub use view::{PoolView, SessionView, WorkerView, WorkersAsked};

pub(crate) use pool::Pool;
pub(crate) use taken::Taken;

use crate::attempts::Performer;
use crate::engine::{Core, lock};
use crate::env::{Env, Task, within};
use everbeat_model::WorkerId;
use futures_util::FutureExt;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OnceCell, oneshot};

/// The pools of this server, and the workers that belong to none.
pub(crate) struct Pools {
    guardians: Option<Arc<dyn Guardians>>,
    configured: Vec<Arc<Pool>>,
    /// Workers that come from elsewhere.
    remote: Arc<Pool>,
    taken: Taken,
    epochs: AtomicU64,
    swept: OnceCell<()>,
    /// Who waits for the stacks of a worker.
    stacks: Mutex<BTreeMap<(WorkerId, u64), oneshot::Sender<String>>>,
}

/// How long somebody who names an unknown task waits for the first workers of the pools: an interpreter starts in less.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// A sweep that fails is tried again: no worker is started before one has succeeded.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);
/// Later sweeps follow at growing distances. The first come soon: a server that was killed just now may still hold its
/// lock while the kernel takes it apart, and passes for one that lives.
const LONGEST_SWEEP_PAUSE: Duration = Duration::from_secs(60);

impl Pools {
    pub(crate) fn new(
        guardians: Option<Arc<dyn Guardians>>,
        settings: &[PoolSettings],
        remote: PoolSettings,
        taken: Taken,
    ) -> Pools {
        Pools {
            guardians,
            configured: settings.iter().map(|settings| Arc::new(Pool::new(settings.clone(), false))).collect(),
            remote: Arc::new(Pool::new(PoolSettings { size: 0, ..remote }, true)),
            taken,
            epochs: AtomicU64::new(0),
            swept: OnceCell::new(),
            stacks: Mutex::default(),
        }
    }

    /// Whoever performs through workers.
    pub(crate) fn performers(&self) -> impl Iterator<Item = Arc<dyn Performer>> {
        self.all().map(|pool| pool.clone() as Arc<dyn Performer>)
    }

    /// Starts the loops of all pools.
    pub(crate) fn start(&self, core: &Arc<Core>) -> Vec<Task> {
        let mut tasks = Vec::new();
        for pool in self.all() {
            tasks.push(core.env.spawn("watch workers", watch::run(core.clone(), pool.clone()).boxed()));
            tasks.push(core.env.spawn("end sessions", session_upkeep::run(core.clone(), pool.clone()).boxed()));
        }
        if self.guardians.is_some() {
            for pool in &self.configured {
                tasks.push(core.env.spawn("keep pool", keep::run(core.clone(), pool.clone()).boxed()));
            }
            // What earlier servers left is ended even if this one has no pool.
            let (core, sweep) = (core.clone(), core.env.clone());
            tasks.push(sweep.spawn("sweep workers", async move { core.pools.sweep_on(&core).await }.boxed()));
        }
        tasks
    }

    /// Ends all workers: they may finish for their grace, and then they are killed.
    pub(crate) async fn stop(&self, core: &Arc<Core>) {
        join_all(self.all().map(|pool| stop_pool(core, pool))).await;
    }

    /// Returns when what earlier servers left is ended.
    async fn swept(&self, core: &Core) {
        let sweep = async {
            let Some(guardians) = &self.guardians else { return };
            loop {
                match guardians.sweep().await {
                    Ok(swept) => return telemetry::swept(&swept),
                    Err(error) => {
                        tracing::error!(%error, "what an earlier server left of its pools cannot be looked at: no worker is started");
                    }
                }
                core.env.sleep(SWEEP_PAUSE).await;
            }
        };
        self.swept.get_or_init(|| sweep).await;
    }

    /// Returns when every pool has said what it performs, or will not for now, or has taken too long.
    pub(crate) async fn introduced(&self, env: &dyn Env) {
        if self.guardians.is_none() {
            return;
        }
        within(env, INTRODUCTION, join_all(self.configured.iter().map(|pool| pool.until_introduced()))).await;
    }

    /// The names of the pools of which nothing is known yet.
    pub(crate) fn unheard(&self) -> Vec<String> {
        let unheard = self.configured.iter().filter(|pool| !pool.state().heard);
        unheard.map(|pool| pool.settings.name.clone()).collect()
    }

    /// Ends what earlier servers left, and looks again and again: what one sweep has missed, a later one finds.
    async fn sweep_on(&self, core: &Core) {
        let Some(guardians) = &self.guardians else { return };
        self.swept(core).await;
        let mut pause = SWEEP_PAUSE;
        loop {
            core.env.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_SWEEP_PAUSE);
            match guardians.sweep().await {
                Ok(swept) => telemetry::swept(&swept),
                Err(error) => tracing::warn!(%error, "what an earlier server left of its pools is not ended yet"),
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.configured.iter().chain([&self.remote])
    }

    /// How many pools there are, and the names of those that are not well.
    pub(crate) fn degraded(&self) -> (usize, Vec<String>) {
        let unwell = self.configured.iter().filter(|pool| pool.degraded().is_some());
        (self.configured.len(), unwell.map(|pool| pool.settings.name.clone()).collect())
    }

    fn named(&self, name: &str) -> Option<Arc<Pool>> {
        self.configured.iter().find(|pool| pool.settings.name == name).cloned()
    }

    fn of_worker(&self, id: WorkerId) -> Option<Arc<Pool>> {
        self.all().find(|pool| pool.worker(id).is_some()).cloned()
    }

    fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn await_stacks(&self, id: WorkerId) -> (u64, oneshot::Receiver<String>) {
        let sequence = self.next_epoch();
        let (tell, told) = oneshot::channel();
        lock(&self.stacks).insert((id, sequence), tell);
        (sequence, told)
    }

    fn give_up_stacks(&self, id: WorkerId, sequence: u64) {
        lock(&self.stacks).remove(&(id, sequence));
    }

    fn stacks(&self, id: WorkerId, sequence: u64, text: String) {
        if let Some(waits) = lock(&self.stacks).remove(&(id, sequence)) {
            let _gave_up = waits.send(text);
        }
    }
}

/// Like `within`, for a worker that owes an answer. Whoever comes back late itself waits once more: the answer may be
/// in the inbox.
async fn awake_within<T>(env: &dyn Env, span: Duration, answer: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(answer);
    loop {
        let due = env.boot() + span;
        if let Some(answered) = within(env, span, &mut answer).await {
            return Some(answered);
        }
        if env.boot().since(due) <= span / 2 {
            return None;
        }
    }
}

async fn stop_pool(core: &Arc<Core>, pool: &Arc<Pool>) {
    pool.state().stopping = true;
    pool.changed.notify_one();
    pool.introduced.notify_waiters();
    let workers = pool.workers();
    workers.iter().for_each(|worker| end::drain(core, pool, worker, Some(pool.settings.stop_grace)));
    let gone = join_all(workers.iter().map(|worker| worker.dead()));
    let longest = pool.settings.stop_grace + pool.settings.grace_period + pool.settings.kill_grace;
    within(&*core.env, longest, gone).await;
    let guardian = pool.state().guardian.take();
    if let Some(guardian) = guardian {
        within(&*core.env, pool.settings.kill_grace, guardian.end()).await;
    }
}
