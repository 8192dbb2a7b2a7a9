use crate::enqueue::{self, Enqueuer};
use crate::env::{Env, Task};
use crate::life::{Life, Phase};
use crate::{Locks, Result, Settings, Tasks};
use everbeat_model::id::Sequence;
use everbeat_model::{BootInstant, ReplicaId, RunId, StoreTime};
use everbeat_store::Store;
use futures_util::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
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
    pub(crate) tasks: Tasks,
    pub(crate) locks: Option<Arc<dyn Locks>>,
    pub(crate) clock: StoreClock,
    pub(crate) waiters: Waiters,
    pub(crate) enqueuer: Enqueuer,
    pub(crate) known_tasks: Mutex<BTreeSet<String>>,
    ids: Sequence,
    life: Mutex<Option<Arc<Life>>>,
    stopping: AtomicBool,
    ended: watch::Sender<bool>,
    cleaned: Mutex<Option<BootInstant>>,
}

/// Whether the replica takes work, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    NotReady(&'static str),
}

impl Engine {
    pub fn new(
        env: Arc<dyn Env>,
        store: Arc<dyn Store>,
        settings: Settings,
        tasks: Tasks,
        locks: Option<Arc<dyn Locks>>,
    ) -> Result<Engine> {
        settings.check()?;
        let (enqueuer, submissions) = Enqueuer::new();
        let core = Core {
            env,
            store,
            settings,
            tasks,
            locks,
            clock: StoreClock::default(),
            waiters: Waiters::default(),
            enqueuer,
            known_tasks: Mutex::default(),
            ids: Sequence::default(),
            life: Mutex::default(),
            stopping: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            cleaned: Mutex::default(),
        };
        let core = Arc::new(core);
        let enqueue = core.env.spawn("enqueue", enqueue::run(core.clone(), submissions).boxed());
        Ok(Engine { core, tasks: Arc::new(Mutex::new(vec![enqueue])) })
    }

    /// Joins the cluster and begins to work, in the background.
    pub fn start(&self) {
        let lead = self.core.env.spawn("replica", Life::lead(self.core.clone()).boxed());
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(lead);
    }

    /// Stops claiming, lets work finish for the configured grace, releases the rest, and leaves.
    pub async fn drain(&self) {
        self.core.stopping.store(true, Ordering::SeqCst);
        match self.core.life() {
            Some(life) => life.drain(self.core.settings.drain_grace).await,
            None => self.core.ended(),
        }
        self.stopped().await;
    }

    /// Resolves when the replica has left for good, on its own request or another's.
    pub async fn stopped(&self) {
        let mut ended = self.core.ended.subscribe();
        let _engine_is_gone = ended.wait_for(|ended| *ended).await;
    }

    pub fn readiness(&self) -> Readiness {
        match self.core.life() {
            _ if self.core.stopping() => Readiness::NotReady("draining"),
            None => Readiness::NotReady("not joined yet"),
            Some(life) if life.phase() == Phase::Draining => Readiness::NotReady("draining"),
            Some(life) if !life.pulse().connected => Readiness::NotReady("the store does not acknowledge this replica"),
            Some(_) => Readiness::Ready,
        }
    }

    /// The id of this life, none between two.
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
        self.core.life().map_or(0, |life| life.table().len())
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

    pub(crate) fn life(&self) -> Option<Arc<Life>> {
        lock(&self.life).clone()
    }

    pub(crate) fn set_life(&self, life: Option<Arc<Life>>) {
        *lock(&self.life) = life;
    }

    /// Whether this replica should ask for the retention sweep.
    pub(crate) fn clean_due(&self) -> bool {
        let now = self.env.boot();
        let mut cleaned = lock(&self.cleaned);
        let due = cleaned.is_none_or(|last| now.since(last) >= self.settings.clean_interval);
        if due {
            *cleaned = Some(now);
        }
        due
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

/// Whoever waits for the end of a run in this process.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<BTreeMap<RunId, (Arc<Notify>, usize)>>);

impl Waiters {
    pub(crate) fn tell(&self, run: RunId) {
        if let Some((notify, _)) = lock(&self.0).get(&run) {
            notify.notify_waiters();
        }
    }

    pub(crate) fn register(&self, run: RunId) -> Waiting<'_> {
        let mut waiters = lock(&self.0);
        let (notify, count) = waiters.entry(run).or_default();
        *count += 1;
        Waiting { waiters: self, run, notify: notify.clone() }
    }
}

/// A place among the waiters, given up when dropped.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    run: RunId,
    pub(crate) notify: Arc<Notify>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiters = lock(&self.waiters.0);
        if let Some((_, count)) = waiters.get_mut(&self.run) {
            *count -= 1;
            if *count == 0 {
                waiters.remove(&self.run);
            }
        }
    }
}

/// Waiters look again this often even if nobody tells them.
pub(crate) const WAIT_LOOK: Duration = Duration::from_secs(1);
