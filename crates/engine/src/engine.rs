//! One replica as a library: how it is made, started and drained, and what its lives share.

use crate::attempts::{InProcess, Performer, Work};
use crate::batch::{self, Batcher};
use crate::env::{Env, Task, within};
use crate::executions::{Ask, ReplicaPlanner};
use crate::figures::Losses;
use crate::jobs::{Commands, Jobs};
use crate::pools::{self, Guardians, Pools};
use crate::replica::Life;
use crate::runs::{self, Waiters};
use crate::schedules::{FlowBeat, FlowRules, ReplicaScheduler};
use crate::{Locks, Result, Settings, Shims, Tasks};
use everbeat_model::graph::Defaults;
use everbeat_model::id::Sequence;
use everbeat_model::schedule::RunDefaults;
use everbeat_model::{BootInstant, Replica, ReplicaId, StoreTime};
use everbeat_store::{Enqueue, Error as StoreError, Planner, Scheduler, Start, Store};
use futures_util::FutureExt;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

/// One replica: takes runs, performs them, and watches over the others.
#[derive(Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
    tasks: Arc<Mutex<Vec<Task>>>,
}

/// What lasts from one life of the replica to the next.
pub(crate) struct Core {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) settings: Settings,
    /// Whoever performs attempts, each in its place.
    pub(crate) performers: Vec<Arc<dyn Performer>>,
    pub(crate) locks: Option<Arc<dyn Locks>>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) pools: Pools,
    pub(crate) clock: Arc<StoreClock>,
    /// Where the server of this replica answers.
    pub(crate) address: OnceLock<String>,
    pub(crate) waiters: Waiters,
    pub(crate) losses: Losses,
    pub(crate) enqueues: Batcher<Enqueue>,
    pub(crate) starts: Batcher<Start>,
    pub(crate) asks: Batcher<Ask>,
    pub(crate) heartbeats: Batcher<FlowBeat>,
    pub(crate) planner: Arc<dyn Planner>,
    pub(crate) scheduler: Arc<dyn Scheduler>,
    pub(crate) flows: Option<Arc<dyn FlowRules>>,
    /// There may be executions to look at.
    pub(crate) noted: Notify,
    /// There may be schedules to look at.
    pub(crate) schedules_noted: Notify,
    pub(crate) known_tasks: Mutex<BTreeSet<String>>,
    ids: Arc<Sequence>,
    life: Mutex<Option<Arc<Life>>>,
    trouble: Mutex<Option<StoreError>>,
    stopping: AtomicBool,
    ended: watch::Sender<bool>,
    cleaned: Mutex<Option<BootInstant>>,
    /// Attempts of former lives whose performers have not ended yet: they still count for slots and limits.
    former: Mutex<Vec<Arc<Work>>>,
    /// The tasks of this replica are announced.
    offered: AtomicBool,
}

/// What the machine offers, besides time. Without any of it the engine does without.
#[derive(Clone, Default)]
pub struct Host {
    /// Without them successors must wait for the timeout.
    pub locks: Option<Arc<dyn Locks>>,
    /// Without them this replica performs no commands.
    pub shims: Option<Arc<dyn Shims>>,
    /// Without them this replica has no pools of worker processes.
    pub guardians: Option<Arc<dyn Guardians>>,
    /// Without them this replica accepts no flow with a source and a sink.
    pub flows: Option<Arc<dyn FlowRules>>,
    /// Whoever performs attempts besides, asked in this order before those of this process.
    pub performers: Vec<Arc<dyn Performer>>,
}

impl Engine {
    pub fn new(
        env: Arc<dyn Env>,
        store: Arc<dyn Store>,
        settings: Settings,
        tasks: Tasks,
        host: Host,
    ) -> Result<Engine> {
        settings.check()?;
        let (enqueues, enqueued) = Batcher::new();
        let (starts, started) = Batcher::new();
        let (asks, asked) = Batcher::new();
        let (heartbeats, beaten) = Batcher::new();
        let (clock, ids) = (Arc::new(StoreClock::default()), Arc::new(Sequence::default()));
        let policy = Arc::new(settings.runs.clone());
        let run_defaults = RunDefaults { policy: policy.clone(), queue: "default".to_string(), hole: settings.hole };
        let scheduler =
            ReplicaScheduler { env: env.clone(), clock: clock.clone(), ids: ids.clone(), defaults: run_defaults };
        let defaults = Defaults { policy, queue: "default".to_string(), hole: settings.hole };
        let planner = ReplicaPlanner { env: env.clone(), clock: clock.clone(), ids: ids.clone(), defaults };
        let taken = pools::Taken::new(tasks.builtin());
        taken.check_settings(&settings.pools)?;
        let pools = Pools::new(host.guardians, &settings.pools, settings.remote_workers.clone(), taken);
        let jobs = Arc::new(Jobs::new(host.shims));
        let mut performers = host.performers;
        performers.extend(pools.performers());
        performers.push(Arc::new(Commands::new(jobs.clone(), &settings.jobs)));
        performers.push(Arc::new(InProcess { tasks, slots: settings.slots }));
        let core = Core {
            env,
            store,
            settings,
            performers,
            locks: host.locks,
            jobs,
            pools,
            clock,
            address: OnceLock::new(),
            waiters: Waiters::default(),
            losses: Losses::default(),
            enqueues,
            starts,
            asks,
            heartbeats,
            planner: Arc::new(planner),
            scheduler: Arc::new(scheduler),
            flows: host.flows,
            noted: Notify::new(),
            schedules_noted: Notify::new(),
            known_tasks: Mutex::default(),
            ids,
            life: Mutex::default(),
            trouble: Mutex::default(),
            stopping: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            cleaned: Mutex::default(),
            former: Mutex::default(),
            offered: AtomicBool::new(false),
        };
        let core = Arc::new(core);
        let spawn = |name, task| core.env.spawn(name, task);
        let tasks = vec![
            spawn("enqueue", batch::run(core.clone(), enqueued).boxed()),
            spawn("start", batch::run(core.clone(), started).boxed()),
            spawn("ask", batch::run(core.clone(), asked).boxed()),
            spawn("heartbeat", batch::run(core.clone(), beaten).boxed()),
            spawn("waiters", runs::wait(core.clone()).boxed()),
        ];
        Ok(Engine { core, tasks: Arc::new(Mutex::new(tasks)) })
    }

    /// Joins the cluster and begins to work, in the background.
    pub fn start(&self) {
        let lead = self.core.env.spawn("replica", Life::lead(self.core.clone()).boxed());
        let mut tasks = lock(&self.tasks);
        tasks.push(lead);
        tasks.extend(self.core.pools.start(&self.core));
    }

    /// Another server of this store on this machine that has another data folder, if there is one.
    pub async fn estranged(&self) -> Option<Replica> {
        let me = self.replica_id()?;
        let replicas =
            within(&*self.core.env, self.core.settings.call_limit(), self.core.store.observe()).await?.ok()?;
        let mine = replicas.iter().find(|replica| replica.id == me)?;
        // Nobody else is alive in a store that is ours alone.
        let other = replicas.iter().find(|other| mine.estranged(other) && !self.core.store.sole());
        other.cloned()
    }

    /// Stops claiming, lets work finish for the configured grace, releases the rest, and leaves.
    pub async fn drain(&self) {
        self.core.stopping.store(true, Ordering::SeqCst);
        match self.core.life() {
            Some(life) => life.drain(self.core.settings.drain_grace).await,
            None => self.core.ended(),
        }
        self.stopped().await;
        self.core.pools.stop(&self.core).await;
    }

    /// Resolves when the replica has left for good, on its own request or another's.
    pub async fn stopped(&self) {
        let mut ended = self.core.ended.subscribe();
        let _engine_is_gone = ended.wait_for(|ended| *ended).await;
    }

    /// The id of this life, none between two.
    /// Says where the server of this replica answers: others name that to whoever asks them for what is only here.
    pub fn answers_at(&self, address: String) {
        let _said_before = self.core.address.set(address);
    }

    pub fn replica_id(&self) -> Option<ReplicaId> {
        self.core.life().map(|life| life.id)
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.store
    }

    pub fn env(&self) -> &Arc<dyn Env> {
        &self.core.env
    }

    pub fn settings(&self) -> &Settings {
        &self.core.settings
    }

    /// How many attempts hold a slot.
    pub fn slots_taken(&self) -> usize {
        self.core.life().map_or(0, |life| life.awaited())
    }
}

impl Core {
    pub(crate) fn new_id(&self) -> Uuid {
        self.ids.next(self.now().millis(), self.env.random())
    }

    /// The store's time, as far as known.
    pub(crate) fn now(&self) -> StoreTime {
        self.clock.at(self.env.boot(), &*self.env)
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn ended(&self) {
        self.ended.send_replace(true);
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Why it could not join the last time it tried.
    pub(crate) fn trouble(&self) -> Option<StoreError> {
        lock(&self.trouble).clone()
    }

    pub(crate) fn set_trouble(&self, trouble: Option<StoreError>) {
        *lock(&self.trouble) = trouble;
    }

    pub(crate) fn life(&self) -> Option<Arc<Life>> {
        lock(&self.life).clone()
    }

    pub(crate) fn set_life(&self, life: Option<Arc<Life>>) {
        *lock(&self.life) = life;
    }

    /// Whether this replica should ask for the retention sweep.
    pub(crate) fn clean_due(&self) -> bool {
        lock(&self.cleaned).is_none_or(|last| self.env.boot().since(last) >= self.settings.clean_interval)
    }

    pub(crate) fn cleaned(&self) {
        *lock(&self.cleaned) = Some(self.env.boot());
    }

    /// Announces the tasks of this replica, until that has succeeded once. Bounded: a replica whose row
    /// stands already would be judged silent if it waited here for ever.
    pub(crate) async fn offer(&self) {
        if !self.offered.load(Ordering::SeqCst) {
            self.announce_tasks().await;
        }
    }

    /// Announces the tasks of this replica, now that there are new ones. What fails is tried again at the next join.
    pub(crate) async fn announce_tasks(&self) {
        self.offered.store(false, Ordering::SeqCst);
        let names = self.performers.iter().flat_map(|performer| performer.tasks()).collect();
        match within(&*self.env, self.settings.call_limit(), self.store.offer(&names)).await {
            Some(Ok(())) => self.offered.store(true, Ordering::SeqCst),
            Some(Err(error)) => tracing::warn!(%error, "the tasks of this replica are not announced yet"),
            None => tracing::warn!("the tasks of this replica are not announced yet"),
        }
    }

    pub(crate) fn keep_former(&self, work: &Arc<Work>) {
        lock(&self.former).push(work.clone());
    }

    /// Attempts of former lives whose performers have not ended yet.
    pub(crate) fn former(&self) -> Vec<Arc<Work>> {
        let mut former = lock(&self.former);
        former.retain(|work| !work.ended());
        former.clone()
    }

    /// Whether this replica performs a task of this name.
    pub(crate) fn performs(&self, task: &str) -> bool {
        self.performers.iter().any(|performer| performer.knows(task))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The store's clock as seen at the last renewal, carried on by the own boot clock. For ids and for
/// display.
#[derive(Default)]
pub(crate) struct StoreClock {
    known: AtomicBool,
    offset_us: AtomicI64,
}

impl StoreClock {
    pub(crate) fn set(&self, now: StoreTime, boot: BootInstant) {
        self.offset_us.store(now.0 - micros(boot), Ordering::Relaxed);
        self.known.store(true, Ordering::Relaxed);
    }

    pub(crate) fn at(&self, boot: BootInstant, env: &dyn Env) -> StoreTime {
        if self.known.load(Ordering::Relaxed) {
            StoreTime(self.offset_us.load(Ordering::Relaxed) + micros(boot))
        } else {
            StoreTime(env.wall().0 - micros(env.boot()) + micros(boot))
        }
    }
}

fn micros(boot: BootInstant) -> i64 {
    i64::try_from(boot.0.as_micros()).unwrap_or(i64::MAX)
}
