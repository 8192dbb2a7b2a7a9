//! Lets workers in, and passes on what they say.

use super::link::{FromWorker, HeartbeatAnswer, Hello, LeaseShown, Pong, Refused, Returning, ToWorker};
use super::pool::Pool;
use super::worker::{Line, Phase, TO_WORKER, Worker};
use super::{end, telemetry, watch};
use crate::Engine;
use crate::engine::Core;
use everbeat_model::{Hole, Token, WorkerId};
use futures_util::FutureExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use uuid::Uuid;

/// A worker performs no more attempts at once.
const MOST_SLOTS: usize = 1000;
const MOST_TASKS: usize = 1000;
/// A worker declares no more graphs, flows and schedules.
const MOST_DECLARED: usize = 1000;
/// No more workers of no pool are let in.
const MOST_REMOTE: usize = 10_000;

/// The server's end of one connection of a worker. Dropped, it is cut.
pub struct Link {
    heard: Heard,
    outgoing: mpsc::Receiver<ToWorker>,
}

/// Where what a worker says is handed in.
#[derive(Clone)]
pub struct Heard {
    core: Arc<Core>,
    pool: Arc<Pool>,
    worker: Arc<Worker>,
    epoch: u64,
}

impl Link {
    /// The next word for the worker; none: the connection is to be closed.
    pub async fn next(&mut self) -> Option<ToWorker> {
        self.outgoing.recv().await
    }

    pub fn heard(&self) -> Heard {
        self.heard.clone()
    }

    pub fn worker(&self) -> WorkerId {
        self.heard.worker.id
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let Heard { core, pool, worker, epoch } = &self.heard;
        worker.cut(*epoch, core.env.boot());
        pool.changed.notify_one();
    }
}

impl Engine {
    /// Lets a worker in. One of no pool must have been admitted by its token before.
    pub async fn greet(&self, hello: Hello) -> Result<Link, Refused> {
        let core = &self.core;
        check(&hello)?;
        core.pools.taken.check_hello(&hello)?;
        let pool = match &hello.pool {
            Some(name) => core.pools.named(name).ok_or_else(|| Refused::Over(format!("there is no pool {name:?}")))?,
            None => core.pools.remote.clone(),
        };
        if pool.state().stopping {
            return Err(Refused::Later("the server ends".to_string()));
        }
        pool.until_started(&hello.secret).await;
        let worker = find(core, &pool, &hello)?;
        let took = worker.uptime(core.env.boot());
        let first = worker.state().phase == Phase::Starting;
        let link = connect(core, &pool, &worker, &hello);
        if first {
            telemetry::ready(&pool, &worker, took);
            let new = pool.offers(&hello.tasks);
            // Apart: however slow the store is, the worker hears its welcome at once.
            let (engine, known) = (self.clone(), worker.clone());
            let introduce = async move { engine.introduce(&known, new, &hello).await };
            worker.own(core.env.spawn("introduce worker", introduce.boxed()));
        }
        Ok(link)
    }
}

fn check(hello: &Hello) -> Result<(), Refused> {
    let invalid = |problem: String| Err(Refused::Invalid(problem));
    if hello.slots == 0 || hello.slots > MOST_SLOTS {
        return invalid(format!("slots is {}; it must be between 1 and {MOST_SLOTS}", hello.slots));
    }
    if hello.tasks.len() > MOST_TASKS {
        return invalid(format!("{} tasks are too many; name at most {MOST_TASKS}", hello.tasks.len()));
    }
    let declared = hello.graphs.len() + hello.flows.len() + hello.schedules.len();
    if declared > MOST_DECLARED {
        return invalid(format!(
            "{declared} graphs, flows and schedules are too many; declare at most {MOST_DECLARED}"
        ));
    }
    for task in &hello.tasks {
        everbeat_model::run::check_task_name("task", task).map_err(|error| Refused::Invalid(error.to_string()))?;
    }
    Ok(())
}

/// The worker that says hello: one that was started here, one that returns, or a new one from elsewhere.
fn find(core: &Arc<Core>, pool: &Arc<Pool>, hello: &Hello) -> Result<Arc<Worker>, Refused> {
    let over =
        || Refused::Over("this server does not await such a worker: it was replaced, or is another's".to_string());
    if let Some(Returning { worker, key, .. }) = &hello.returning {
        let known = pool.worker(*worker).filter(|known| {
            let state = known.state();
            state.keys.admit(*key) && state.phase != Phase::Dead
        });
        return known.ok_or_else(over);
    }
    if !pool.remote {
        let awaited = pool.workers().into_iter().find(|worker| same(&worker.secret, &hello.secret));
        let awaited = awaited.ok_or_else(|| Refused::Stranger("the secret of the worker is wrong".to_string()))?;
        return if awaited.state().unwelcomed() { Ok(awaited) } else { Err(over()) };
    }
    if pool.state().workers.len() >= MOST_REMOTE {
        return Err(Refused::Later(format!("{MOST_REMOTE} workers are connected; no more are let in")));
    }
    let id = WorkerId(core.new_id());
    let worker = Worker::new((id, new_key(core), String::new()), None, &pool.settings, &*core.env, core.now());
    pool.add(&worker);
    Ok(worker)
}

fn new_key(core: &Core) -> Token {
    Token(Uuid::from_u128(core.env.random()))
}

/// Compared in a time that does not tell how much is right.
fn same(secret: &str, shown: &str) -> bool {
    let (secret, shown) = (secret.as_bytes(), shown.as_bytes());
    secret.len() == shown.len() && secret.iter().zip(shown).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn connect(core: &Arc<Core>, pool: &Arc<Pool>, worker: &Arc<Worker>, hello: &Hello) -> Link {
    let epoch = core.pools.next_epoch();
    let (to, outgoing) = mpsc::channel(TO_WORKER);
    let settings = &pool.settings;
    let key = new_key(core);
    worker.state().keys.renew(key);
    let welcome = ToWorker::Welcome {
        worker: worker.id,
        epoch,
        ping_interval: settings.ping_interval,
        worker_ttl: Some(settings.worker_ttl).filter(|_| settings.dependent && settings.heartbeat),
        key,
    };
    let _there_is_room = to.try_send(welcome);
    if let Some(Returning { leases, .. }) = &hello.returning {
        let (strange, forgotten) = worker.state().compare(leases);
        for lease in strange {
            let fenced = ToWorker::HeartbeatAnswer { lease, sequence: 0, answer: HeartbeatAnswer::Fenced };
            let _a_worker_that_shows_more_is_told_when_it_speaks_of_them = to.try_send(fenced);
        }
        let mut state = worker.state();
        forgotten.into_iter().for_each(|token| state.forget(token));
    }
    let now = core.env.boot();
    worker.connected(hello, Line { to, epoch }, now);
    // Before any work: a worker must know from the start until when its work is vouched for.
    watch::ping(core, pool, worker, now);
    Link { heard: Heard { core: core.clone(), pool: pool.clone(), worker: worker.clone(), epoch }, outgoing }
}

/// It is this server that is slow: while this is held, the worker's silence says nothing.
struct HeldUp<'a>(&'a Heard);

impl HeldUp<'_> {
    fn begin(heard: &Heard) -> HeldUp<'_> {
        heard.worker.state().pulse.held_up += 1;
        HeldUp(heard)
    }
}

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        let Heard { core, worker, .. } = self.0;
        worker.state().pulse.unheld(core.env.boot());
    }
}

impl Heard {
    /// A worker said something. Returns when there is room for more: until then nothing should be read from it.
    pub async fn heard(&self, word: FromWorker) {
        let now = self.core.env.boot();
        {
            let mut state = self.worker.state();
            let replaced = state.line.as_ref().is_none_or(|line| line.epoch != self.epoch);
            if replaced && !self.core.settings.hole.is(Hole::ReplacedLink) {
                return;
            }
            state.pulse.heard(now);
            let first = state.keys.confirm();
            drop(state);
            if first {
                self.pool.room.notify_waiters();
            }
            if let Some(life) = self.core.life().filter(|_| first) {
                life.all_freed();
            }
        }
        match word {
            FromWorker::Pong(pong) => self.pong(pong),
            FromWorker::Draining => end::leaves(&self.core, &self.pool, &self.worker),
            FromWorker::Stacks { sequence, text } => self.core.pools.stacks(self.worker.id, sequence, text),
            FromWorker::Heartbeat { lease, .. }
            | FromWorker::Output { lease, .. }
            | FromWorker::Log { lease, .. }
            | FromWorker::Ended { lease, .. } => self.of_attempt(lease, word).await,
        }
    }

    /// Its transport answered a probe.
    pub fn transport(&self) {
        let now = self.core.env.boot();
        self.worker.state().pulse.transport(now);
    }

    /// How often its transport should be probed.
    pub fn probe_interval(&self) -> Duration {
        self.pool.settings.ping_interval
    }

    fn pong(&self, pong: Pong) {
        let now = self.core.env.boot();
        let took = self.worker.state().pulse.pong(pong, now);
        if let Some(took) = took {
            telemetry::pong_received(&self.pool, &self.worker, took);
            self.worker.changed();
        }
    }

    async fn of_attempt(&self, lease: LeaseShown, word: FromWorker) {
        let Some(route) = self.worker.route(&lease) else { return self.fenced(lease, &word).await };
        let ended = matches!(word, FromWorker::Ended { .. });
        if ended {
            self.worker.says_ended(lease.token);
        }
        let word = match route.try_send(word) {
            Ok(()) => return,
            Err(mpsc::error::TrySendError::Full(word) | mpsc::error::TrySendError::Closed(word)) => word,
        };
        let held = HeldUp::begin(self);
        let sent = route.send(word).await;
        drop(held);
        if sent.is_err() && ended {
            // Nobody awaits what it came to; that it ended, somebody may.
            self.worker.tell(ToWorker::EndedAnswer { lease }).await;
        }
    }

    /// The lease is not one that this worker holds: nothing of what was said counts.
    async fn fenced(&self, lease: LeaseShown, word: &FromWorker) {
        let answer = match word {
            FromWorker::Ended { .. } => {
                tracing::info!(worker = %self.worker.id, run = %lease.run_id, attempt = lease.attempt,
                    "a result came too late, or from the wrong worker: it does not count");
                metrics::counter!("everbeat_fenced_writes_total").increment(1);
                ToWorker::EndedAnswer { lease }
            }
            FromWorker::Heartbeat { sequence, .. } => {
                ToWorker::HeartbeatAnswer { lease, sequence: *sequence, answer: HeartbeatAnswer::Fenced }
            }
            _ => ToWorker::HeartbeatAnswer { lease, sequence: 0, answer: HeartbeatAnswer::Fenced },
        };
        self.worker.tell(answer).await;
    }
}
