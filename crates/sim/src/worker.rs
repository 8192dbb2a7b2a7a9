//! A worker process: it performs attempts apart from its replica, which it hears and answers over a pipe. It can be
//! killed, stopped or cut off by itself.

use crate::executor::{Owner, WORLD};
use crate::handler::{Performing, Product, Script, check_resumed};
use crate::shared::Shared;
use everbeat_model::{ReplicaId, RunId, Token};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::{Notify, mpsc};

const MS: u64 = 1000;
/// How often a worker says that it lives.
pub(crate) const PULSE: u64 = 100 * MS;
/// How many attempts a worker performs at once.
pub(crate) const SLOTS: usize = 3;
/// How much may wait in a pipe.
const PIPE: usize = 1000;

/// What a replica says to its worker.
pub(crate) enum Order {
    Perform(Box<Performed>),
    /// The attempt should stop.
    Stop(Token),
    /// The attempt ends now.
    Kill(Token),
    /// The checkpoint of the attempt is stored.
    Stored(Token),
    /// Until then nobody else takes over what this life of the replica has ordered.
    Vouched(ReplicaId, u64),
}

/// An attempt that a worker is to perform.
#[derive(Clone)]
pub(crate) struct Performed {
    pub(crate) token: Token,
    pub(crate) life: ReplicaId,
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
    pub(crate) script: Script,
    /// The checkpoint from which it goes on.
    pub(crate) resumed: u64,
}

/// What a worker says to its replica.
pub(crate) enum Word {
    Alive,
    Of(Token, Said),
}

/// What a worker says of an attempt.
pub(crate) enum Said {
    Beat(u64),
    Reached(u64),
    Done(Product),
    Failed,
    /// It was told to stop, or nobody vouches for it any more.
    Stopped,
}

/// One worker process, as its replica and the world see it.
pub(crate) struct Worker {
    /// Its own tasks.
    pub(crate) owner: Owner,
    /// The boot of the replica that started it.
    pub(crate) replica: Owner,
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    /// Nothing passes through its pipes before.
    cut_until: AtomicU64,
    /// When it was last in trouble of its own: stopped, or cut off.
    pub(crate) troubled_at: AtomicU64,
    dead: AtomicBool,
    died: Notify,
}

impl Worker {
    /// Starts a worker, and answers where it is heard.
    pub(crate) fn start(shared: &Arc<Shared>, replica: Owner) -> (Arc<Worker>, mpsc::Receiver<Word>) {
        let owner = {
            let mut truth = shared.truth();
            truth.workers += 1;
            FIRST_WORKER + truth.workers
        };
        let (orders, ordered) = mpsc::channel(PIPE);
        let (heard, hears) = mpsc::channel(PIPE);
        let (said, says) = mpsc::channel(PIPE);
        let (told, listens) = mpsc::channel(PIPE);
        let worker = Arc::new(Worker {
            owner,
            replica,
            shared: shared.clone(),
            orders,
            cut_until: AtomicU64::new(0),
            troubled_at: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            died: Notify::new(),
        });
        let pipes = [worker.clone().pipe(ordered, heard).boxed(), worker.clone().pipe(says, told).boxed()];
        for pipe in pipes {
            shared.executor.spawn(WORLD, "pipe", pipe);
        }
        let process = Arc::new(Process {
            shared: shared.clone(),
            worker: Arc::downgrade(&worker),
            owner,
            replica,
            said,
            state: Mutex::default(),
            changed: Notify::new(),
        });
        shared.executor.spawn(owner, "pulse", process.clone().pulse().boxed());
        shared.executor.spawn(owner, "worker", process.listen(hears).boxed());
        shared.trace(|truth| format!("{} starts worker {owner}", truth.label(replica)));
        (worker, listens)
    }

    /// Carries messages in order, each after its time, and none while it is cut.
    async fn pipe<T: Send>(self: Arc<Worker>, mut from: mpsc::Receiver<T>, to: mpsc::Sender<T>) {
        while let Some(message) = from.recv().await {
            let latency = self.shared.network().rng.between(10, 2 * MS);
            self.shared.sleep(latency).await;
            while self.shared.now() < self.cut_until.load(Ordering::SeqCst) {
                self.shared.executor.sleep_until(self.cut_until.load(Ordering::SeqCst)).await;
            }
            if self.is_dead() || to.send(message).await.is_err() {
                return;
            }
        }
    }

    pub(crate) async fn order(&self, order: Order) {
        let _it_is_dead = self.orders.send(order).await;
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Nothing of it is left after that.
    pub(crate) fn kill(&self) {
        if !self.dead.swap(true, Ordering::SeqCst) {
            self.shared.trace(|_| format!("worker {} dies", self.owner));
            self.shared.executor.crash(self.owner);
            self.died.notify_waiters();
        }
    }

    pub(crate) async fn died(&self) {
        loop {
            let died = self.died.notified();
            tokio::pin!(died);
            died.as_mut().enable();
            if self.is_dead() {
                return;
            }
            died.await;
        }
    }

    /// Nothing passes for so long.
    pub(crate) fn cut(&self, until: u64) {
        self.cut_until.store(until, Ordering::SeqCst);
        self.troubled_at.fetch_max(until, Ordering::SeqCst);
    }
}

/// Owners from here on are workers.
pub(crate) const FIRST_WORKER: Owner = 1_000_000;

/// The inside of a worker process.
struct Process {
    shared: Arc<Shared>,
    worker: Weak<Worker>,
    owner: Owner,
    replica: Owner,
    said: mpsc::Sender<Word>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    attempts: BTreeMap<Token, Told>,
    vouched: BTreeMap<ReplicaId, u64>,
}

/// What an attempt was told.
#[derive(Clone, Copy, Default)]
struct Told {
    stop: bool,
    kill: bool,
    /// How many of its checkpoints are stored.
    stored: u64,
}

impl Process {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn pulse(self: Arc<Process>) {
        loop {
            let _nobody_hears = self.said.send(Word::Alive).await;
            self.shared.sleep(PULSE).await;
        }
    }

    async fn listen(self: Arc<Process>, mut hears: mpsc::Receiver<Order>) {
        while let Some(order) = hears.recv().await {
            match order {
                Order::Perform(performed) => {
                    self.state().attempts.insert(performed.token, Told::default());
                    let attempt = self.clone().perform(*performed);
                    self.shared.executor.spawn(self.owner, "attempt", attempt.boxed());
                }
                Order::Stop(token) => self.tell(token, |told| told.stop = true),
                Order::Kill(token) if !self.state().attempts.contains_key(&token) => {
                    let _nobody_hears = self.said.send(Word::Of(token, Said::Stopped)).await;
                }
                Order::Kill(token) => self.tell(token, |told| told.kill = true),
                Order::Stored(token) => self.tell(token, |told| told.stored += 1),
                Order::Vouched(life, until) => {
                    self.state().vouched.insert(life, until);
                }
            }
            self.changed.notify_waiters();
        }
    }

    fn tell(&self, token: Token, tell: impl FnOnce(&mut Told)) {
        if let Some(told) = self.state().attempts.get_mut(&token) {
            tell(told);
        }
    }

    async fn perform(self: Arc<Process>, performed: Performed) {
        let token = performed.token;
        let (shared, life, stops) = (&self.shared, performed.life, performed.script.stops);
        let said = if stops && shared.now() >= self.vouched(life) {
            // It came so late that another may have it by now.
            Said::Stopped
        } else {
            let (run, attempt) = (performed.run, performed.attempt);
            let begun = Performing::begin_in(shared, self.owner, self.replica, (run, attempt), stops);
            check_resumed(shared, run, attempt, performed.resumed);
            tokio::select! {
                biased;
                () = self.until(token, |told| told.kill.then_some(())) => Said::Stopped,
                () = self.until_unvouched(life), if stops => Said::Stopped,
                said = self.follow(&performed, begun.nonce) => said,
            }
        };
        self.state().attempts.remove(&token);
        let _nobody_hears = self.said.send(Word::Of(token, said)).await;
    }

    /// What the script says.
    async fn follow(&self, performed: &Performed, nonce: u64) -> Said {
        let Performed { token, run, attempt, ref script, resumed, .. } = *performed;
        for (place, millis) in script.steps_ms.iter().enumerate().skip(resumed as usize) {
            let slept = self.shared.sleep(millis * MS);
            let stopped = self.until(token, |told| told.stop.then_some(()));
            tokio::select! {
                biased;
                () = stopped, if !script.stubborn => return Said::Stopped,
                () = slept => {}
            }
            if script.beats || script.progresses {
                let _nobody_hears = self.said.send(Word::Of(token, Said::Beat(place as u64))).await;
            }
            if script.checkpoints {
                let reached = place as u64 + 1;
                let _nobody_hears = self.said.send(Word::Of(token, Said::Reached(reached))).await;
                let wanted = reached - resumed;
                let stored = self.until(token, |told| (told.stop || told.stored >= wanted).then_some(told.stop));
                if stored.await {
                    return Said::Stopped;
                }
            }
        }
        if attempt <= script.panics_until {
            // It takes the whole process with it.
            if let Some(worker) = self.worker.upgrade() {
                worker.kill();
            }
            return Said::Failed;
        }
        if attempt <= script.fails_until {
            return Said::Failed;
        }
        Said::Done(Product { run, attempt, owner: self.replica, nonce })
    }

    fn vouched(&self, life: ReplicaId) -> u64 {
        self.state().vouched.get(&life).copied().unwrap_or(0)
    }

    async fn until_unvouched(&self, life: ReplicaId) {
        loop {
            let until = self.vouched(life);
            if self.shared.now() >= until {
                return;
            }
            self.shared.executor.sleep_until(until).await;
        }
    }

    async fn until<T>(&self, token: Token, look: impl Fn(&Told) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let told = self.state().attempts.get(&token).copied().unwrap_or_default();
            if let Some(found) = look(&told) {
                return found;
            }
            changed.await;
        }
    }
}
