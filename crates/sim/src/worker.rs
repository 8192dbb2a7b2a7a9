//! The inside of a worker process: what an SDK does. It connects, answers pings, performs what it is given, keeps what it
//! came to until that is answered, and ends by itself when nobody pings it or vouches for its work.

use crate::executor::Owner;
use crate::process::{Cause, FIRST_REMOTE, Process};
use crate::shared::Shared;
use crate::wire::{Answer, Line, Wire};
use crate::workload::{REMOTE_TASK, WORKER_TASK};
use everbeat_engine::pools::{FromWorker, HeartbeatAnswer, Hello, LeaseShown, Pong, Refused, Returning, ToWorker, Why};
use everbeat_model::{Token, WorkerId};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc};

mod attempts;
mod stream;
mod time;

const MS: u64 = 1000;
/// How many attempts a worker performs at once.
pub(crate) const SLOTS: usize = 2;
/// So long a worker waits for its welcome.
const DIAL: u64 = 250 * MS;
/// Between two attempts to connect.
const LONGEST_PAUSE: u64 = 60 * MS;

pub(crate) struct Worker {
    shared: Arc<Shared>,
    process: Arc<Process>,
    pool: Option<String>,
    secret: String,
    tasks: Vec<String>,
    queues: Vec<String>,
    mind: Mutex<Mind>,
    changed: Notify,
}

/// What it knows.
#[derive(Default)]
struct Mind {
    known: Option<Known>,
    epoch: u64,
    ttl: Option<u64>,
    /// When its last pong, or its hello, was sent: whatever vouches for its work was said after that.
    sent_at: u64,
    /// What it was when the last ping came.
    vouched_from: u64,
    says: Option<mpsc::UnboundedSender<FromWorker>>,
    attempts: BTreeMap<Token, Attempt>,
    /// How attempts ended, until that is answered.
    ended: BTreeMap<Token, FromWorker>,
    /// What attempts streamed, until that is answered.
    items: BTreeMap<(Token, u64), FromWorker>,
    /// Heartbeats whose answers are awaited.
    beats: BTreeMap<(Token, u64), FromWorker>,
    sequence: u64,
    drains: bool,
}

/// Who it is to its server.
#[derive(Clone, Copy)]
struct Known {
    worker: WorkerId,
    key: Token,
    server: Owner,
}

struct Attempt {
    lease: LeaseShown,
    /// It should stop.
    stop: bool,
    /// Its server does not await it any more: nothing need be said.
    fenced: bool,
    strict: bool,
    answers: BTreeMap<u64, HeartbeatAnswer>,
}

impl Worker {
    /// Begins to live in a process, after the time that its program takes to start.
    pub(crate) fn start(
        process: &Arc<Process>,
        (pool, secret): (Option<String>, String),
        (tasks, queues): (Vec<String>, Vec<String>),
        startup: u64,
    ) {
        let shared = process.shared.clone();
        let worker = Arc::new(Worker {
            shared: shared.clone(),
            process: process.clone(),
            pool,
            secret,
            tasks,
            queues,
            mind: Mutex::default(),
            changed: Notify::new(),
        });
        shared.executor.spawn(process.owner, "worker", worker.clone().live(startup).boxed());
        shared.executor.spawn(process.owner, "worker time", worker.clone().keep_time().boxed());
        shared.executor.spawn(process.owner, "worker signals", worker.heed_signals().boxed());
    }

    fn mind(&self) -> MutexGuard<'_, Mind> {
        self.mind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn die(&self, cause: Cause) {
        self.process.exit(cause);
        std::future::pending::<()>().await;
    }

    async fn live(self: Arc<Worker>, startup: u64) {
        self.shared.sleep(startup).await;
        loop {
            self.look_at_time().await;
            let Some((server, engine)) = self.server() else {
                if self.pool.is_some() {
                    return self.die(Cause::ServerGone).await;
                }
                self.pause().await;
                continue;
            };
            let known = self.mind().known;
            if known.is_some_and(|known| known.server != server) {
                self.forget().await;
            }
            let now = self.shared.now();
            self.process.state().hello_at.get_or_insert(now);
            let hello = self.hello(server);
            self.mind().sent_at = now;
            let returns = hello.returning.is_some();
            let mut line = Wire::dial(&self.process, server, engine, hello);
            match self.welcomed(&mut line, server, returns).await {
                Ok(true) => self.serve(line).await,
                Ok(false) => {}
                Err(()) if self.pool.is_some() => return self.die(Cause::Refused).await,
                Err(()) => self.forget().await,
            }
            self.mind().says = None;
            self.pause().await;
        }
    }

    async fn pause(&self) {
        let pause = self.shared.pools().rng.between(MS, LONGEST_PAUSE);
        self.shared.sleep(pause).await;
    }

    /// Whom it dials: the server that started it; elsewhere the one that knows it, or any.
    fn server(&self) -> Option<(Owner, everbeat_engine::Engine)> {
        let known = self.mind().known.map(|known| known.server);
        let mut pools = self.shared.pools();
        let at = match self.process.server.or(known) {
            Some(server) if self.pool.is_some() || pools.servers.contains_key(&server) => server,
            _ if pools.servers.is_empty() => return None,
            _ => {
                let up = pools.servers.len() as u64;
                let place = pools.rng.below(up) as usize;
                *pools.servers.keys().nth(place)?
            }
        };
        pools.servers.get(&at).map(|engine| (at, engine.clone()))
    }

    fn hello(&self, server: Owner) -> Hello {
        let mind = self.mind();
        let returning = mind.known.filter(|known| known.server == server).map(|Known { worker, key, .. }| {
            let performs = mind.attempts.values().filter(|attempt| !attempt.fenced).map(|attempt| attempt.lease);
            let ended = mind.ended.values().filter_map(|word| match word {
                FromWorker::Ended { lease, .. } => Some(*lease),
                _ => None,
            });
            Returning { worker, key, leases: performs.chain(ended).collect() }
        });
        Hello {
            pool: self.pool.clone(),
            secret: self.secret.clone(),
            tasks: self.tasks.clone(),
            queues: self.queues.clone(),
            slots: SLOTS,
            returning,
            ..Hello::default()
        }
    }

    /// Whether it is let in. An error means that it need not try again.
    async fn welcomed(&self, line: &mut Line, server: Owner, returns: bool) -> Result<bool, ()> {
        let patience = self.shared.sleep(DIAL);
        let answer = tokio::select! {
            biased;
            () = line.wire.lost() => None,
            answer = line.hears.recv() => answer,
            () = patience => None,
        };
        match answer {
            Some(Answer::Word(ToWorker::Welcome { worker, epoch, worker_ttl, key, .. })) => {
                self.look_at_time().await;
                let now = self.shared.now();
                let mut mind = self.mind();
                if returns && mind.known.is_none() {
                    // The welcome came too late: the worker has forgotten what its hello has shown.
                    return Ok(false);
                }
                let same = mind.known.is_none_or(|known| known.worker == worker);
                mind.known = Some(Known { worker, key, server });
                (mind.epoch, mind.ttl) = (epoch, worker_ttl.map(|ttl| ttl.as_micros() as u64));
                mind.says = Some(line.says.clone());
                if same {
                    // What was not answered is said again.
                    let again = mind.items.values().chain(mind.beats.values()).chain(mind.ended.values());
                    again.for_each(|word| _ = line.says.send(word.clone()));
                    let items = mind.items.len();
                    (0..items).for_each(|_| self.shared.truth().report.worker("item said again"));
                }
                if mind.drains {
                    let _it_is_gone = line.says.send(FromWorker::Draining);
                }
                drop(mind);
                self.process.state().pinged_at = now;
                Ok(true)
            }
            Some(Answer::Refused(Refused::Later(_)) | Answer::Word(_)) | None => Ok(false),
            Some(Answer::Refused(_)) => Err(()),
        }
    }

    async fn serve(self: &Arc<Worker>, mut line: Line) {
        loop {
            let answer = tokio::select! {
                biased;
                () = line.wire.lost() => return,
                () = self.left() => return,
                answer = line.hears.recv() => answer,
            };
            // Before anything is believed: it may have been stopped for long.
            self.look_at_time().await;
            match answer {
                _ if self.mind().says.is_none() => return,
                Some(Answer::Word(word)) => self.hear(word, line.wire.server),
                Some(Answer::Refused(_)) | None => return,
            }
        }
    }

    /// Resolves when it has let go of its link.
    async fn left(&self) {
        self.settles(|mind| mind.says.is_none()).await;
    }

    async fn settles(&self, found: impl Fn(&Mind) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if found(&self.mind()) {
                return;
            }
            changed.await;
        }
    }

    fn say(&self, word: FromWorker) {
        self.process.says(&word);
        if let Some(says) = &self.mind().says {
            let _it_is_lost = says.send(word);
        }
    }

    fn hear(self: &Arc<Worker>, word: ToWorker, server: Owner) {
        let now = self.shared.now();
        match word {
            ToWorker::Ping { sequence, epoch, vouched } => {
                let base = {
                    let mut mind = self.mind();
                    if mind.epoch != epoch {
                        return;
                    }
                    mind.vouched_from = std::mem::replace(&mut mind.sent_at, now);
                    mind.vouched_from
                };
                {
                    let mut state = self.process.state();
                    state.pinged_at = now;
                    state.vouched_until = base + vouched.as_micros() as u64;
                }
                self.process.arm();
                self.changed.notify_waiters();
                let running = self.mind().attempts.len() as u32;
                self.say(FromWorker::Pong(Pong { sequence, running, ..Pong::default() }));
            }
            ToWorker::Work(assignment) => self.begin(*assignment, server),
            ToWorker::HeartbeatAnswer { lease, sequence, answer } => {
                let mut mind = self.mind();
                mind.beats.remove(&(lease.token, sequence));
                if answer == HeartbeatAnswer::Fenced {
                    mind.ended.remove(&lease.token);
                    mind.let_items_go(lease.token, u64::MAX);
                }
                if let Some(attempt) = mind.attempts.get_mut(&lease.token) {
                    if answer == HeartbeatAnswer::Fenced {
                        (attempt.stop, attempt.fenced) = (true, true);
                    }
                    attempt.answers.insert(sequence, answer);
                }
            }
            ToWorker::OutputAnswer { lease, sequence } => self.mind().let_items_go(lease.token, sequence),
            ToWorker::EndedAnswer { lease } => {
                let mut mind = self.mind();
                mind.ended.remove(&lease.token);
                mind.let_items_go(lease.token, u64::MAX);
            }
            ToWorker::Cancel { lease, why } => {
                let mut mind = self.mind();
                if let Some(attempt) = mind.attempts.get_mut(&lease.token) {
                    attempt.stop |= why != Why::Draining;
                }
            }
            ToWorker::Drain { grace } => {
                self.drain();
                let worker = self.clone();
                let over = async move {
                    worker.shared.sleep(grace.as_micros() as u64).await;
                    worker.mind().attempts.values_mut().for_each(|attempt| attempt.stop = true);
                    worker.changed.notify_waiters();
                };
                self.shared.executor.spawn(self.process.owner, "drain", over.boxed());
            }
            ToWorker::Welcome { .. } | ToWorker::Dump { .. } | ToWorker::Declined(_) => {}
        }
        self.changed.notify_waiters();
    }

    /// It takes nothing new, and goes when it is done.
    fn drain(&self) {
        let first = !std::mem::replace(&mut self.mind().drains, true);
        if first {
            self.say(FromWorker::Draining);
            self.changed.notify_waiters();
        }
    }

    async fn heed_signals(self: Arc<Worker>) {
        let signalled = async {
            self.process.until(|state| state.terminated.then_some(())).await;
            self.drain();
            std::future::pending::<()>().await
        };
        let drained = async {
            loop {
                self.settles(|mind| mind.drains && mind.attempts.is_empty() && mind.ended.is_empty()).await;
                if self.pool.is_some() {
                    return self.die(Cause::Drained).await;
                }
                // Whoever started it elsewhere starts it again.
                self.mind().drains = false;
                self.forget().await;
            }
        };
        tokio::select! {
            biased;
            () = drained => {}
            () = signalled => {}
        }
    }
}

/// Somebody starts a worker of no pool, after a while.
pub(crate) fn start_remote(shared: &Arc<Shared>, queues: Vec<String>, startup: u64) {
    let owner = shared.pools().next(FIRST_REMOTE);
    let process = Process::new(shared, owner, (None, None), (usize::MAX, usize::MAX, owner), queues.clone());
    shared.pools().all.insert(owner, process.clone());
    let tasks = vec![WORKER_TASK.to_string(), REMOTE_TASK.to_string()];
    Worker::start(&process, (None, String::new()), (tasks, queues), startup);
}
