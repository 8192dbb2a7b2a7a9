//! What people ask of pools and workers.

use super::end;
use super::keep::Retiring;
use super::link::ToWorker;
use super::pool::Pool;
use super::view::{PoolView, SessionView, WorkerView};
use super::worker::{Phase, Worker};
use crate::env::within;
use crate::{Engine, Error, Result};
use everbeat_model::event::EventKind;
use everbeat_model::{Invalid, Json, WorkerId};
use everbeat_store::News;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// No pool is made larger.
pub const MOST_WORKERS: usize = 10_000;
/// A worker that answers at all answers within this.
const ANSWER: Duration = Duration::from_secs(5);

impl Engine {
    /// Gives a pool another size, until the server ends.
    pub async fn scale_pool(&self, name: &str, size: usize) -> Result<PoolView> {
        let pool = self.find_pool(name)?;
        if size > MOST_WORKERS {
            let hint = format!("use a whole number up to {MOST_WORKERS}");
            return Err(Error::Invalid(Invalid::new("size", size, "is out of range", hint)));
        }
        pool.state().size = size;
        pool.changed.notify_one();
        self.tell_of(EventKind::PoolScaled, name.to_string(), Some(Json::of(&json!({ "size": size })))).await;
        self.pool_again(name)
    }

    /// Lets a pool take no more work, or work again. What it performs goes on.
    pub async fn pause_pool(&self, name: &str, paused: bool) -> Result<PoolView> {
        let pool = self.find_pool(name)?;
        pool.state().paused = paused;
        if let Some(life) = self.core.life() {
            life.all_freed();
        }
        let kind = if paused { EventKind::PoolPaused } else { EventKind::PoolResumed };
        self.tell_of(kind, name.to_string(), None).await;
        self.pool_again(name)
    }

    /// Replaces all workers of a pool, a few at a time: each when another stands in for it and its work is done.
    pub async fn restart_pool(&self, name: &str) -> Result<PoolView> {
        let pool = self.find_pool(name)?;
        pool.workers().iter().for_each(|worker| retire(worker));
        // Whoever asks wants to see it tried again at once.
        pool.state().crashes.hold_until = None;
        pool.changed.notify_one();
        self.tell_of(EventKind::PoolRestarting, name.to_string(), None).await;
        self.pool_again(name)
    }

    /// Replaces one worker: it takes nothing new once another stands in for it, and goes when its work is done.
    pub async fn restart_worker(&self, id: WorkerId) -> Result<WorkerView> {
        let (pool, worker) = self.find_worker(id).await?;
        owned(&pool, &worker)?;
        retire(&worker);
        pool.changed.notify_one();
        let seen = self.worker_again(id);
        self.tell_of(EventKind::WorkerRestarting, id.to_string(), of_pool(&pool)).await;
        seen
    }

    /// Lets a worker finish what it has, and go. Its pool starts another.
    pub async fn drain_worker(&self, id: WorkerId) -> Result<WorkerView> {
        let (pool, worker) = self.find_worker(id).await?;
        end::drain(&self.core, &pool, &worker, None);
        pool.changed.notify_one();
        let seen = self.worker_again(id);
        self.tell_of(EventKind::WorkerDraining, id.to_string(), of_pool(&pool)).await;
        seen
    }

    /// Ends a session: at once, or when what is performed in it has ended. The next run of its key begins another.
    pub fn end_session(&self, name: &str, key: &str) -> Result<SessionView> {
        let pool = self.find_pool(name)?;
        let keepers = pool.keepers();
        let mut table = pool.sessions.table();
        table.change(key, |entry| entry.live.ending = true);
        let ended = table.entry(key).map(|entry| self.view_session(key, entry, &keepers));
        table.sweep(pool.scope(), &keepers, false, self.core.env.boot());
        drop(table);
        let ended = ended.ok_or_else(|| Error::NotFound { what: "session", id: key.to_string() })?;
        tracing::info!(pool = name, session = key, "a person has ended a session");
        pool.sessions.changed.notify_one();
        Ok(ended)
    }

    /// Pings a worker now, and answers how long its pong took.
    pub async fn ping_worker(&self, id: WorkerId) -> Result<Duration> {
        let (pool, worker) = self.find_worker(id).await?;
        let refuse =
            |problem: &str, hint: &str| Err(Error::Conflict { problem: problem.to_string(), hint: hint.to_string() });
        if pool.speaks_lines() {
            return refuse("a worker that speaks lines cannot be pinged", "look at its state instead");
        }
        let before = {
            let mut state = worker.state();
            if state.line.is_none() {
                drop(state);
                return refuse("the worker is not connected", "look at its state");
            }
            state.pulse.hurry(self.core.env.boot());
            state.pulse.pongs
        };
        let ponged = worker.until(|state| {
            let ponged = (state.pulse.pongs > before).then_some(state.pulse.round_trip).flatten();
            ponged.map(Some).or_else(|| (state.phase == Phase::Dead).then_some(None))
        });
        match within(&*self.core.env, ANSWER.max(pool.settings.ping_interval), ponged).await {
            Some(Some(took)) => Ok(took),
            Some(None) => refuse("the worker died", "its runs say what became of them"),
            None => refuse("the worker does not answer", "ask for its stacks: POST /api/v1/workers/{id}/dump"),
        }
    }

    /// The stacks of a worker: by its own word, or else as its process can tell.
    pub async fn dump_worker(&self, id: WorkerId) -> Result<String> {
        let (_, worker) = self.find_worker(id).await?;
        let core = &self.core;
        let (sequence, answered) = core.pools.await_stacks(id);
        if worker.tell_now(ToWorker::Dump { sequence })
            && let Some(Ok(text)) = within(&*core.env, ANSWER, answered).await
        {
            return Ok(text);
        }
        core.pools.give_up_stacks(id, sequence);
        let told = match &worker.process {
            Some(process) => within(&*core.env, ANSWER, process.stacks()).await.flatten(),
            None => None,
        };
        told.ok_or_else(|| Error::Conflict {
            problem: "the worker does not tell its stacks".to_string(),
            hint: "look at its process on its machine".to_string(),
        })
    }

    /// Tells whoever follows the events what a person asked for. That is done by now, whether or not it can be told.
    async fn tell_of(&self, kind: EventKind, subject: String, detail: Option<Json>) {
        tracing::info!(event = kind.as_str(), subject, "asked of a pool or a worker");
        let news = vec![News { kind, subject, attempt: None, detail }];
        let told = within(&*self.core.env, self.core.settings.call_limit(), self.core.store.announce(news)).await;
        if let Some(Err(error)) = told {
            tracing::warn!(%error, "what was asked of a pool or a worker could not be announced");
        }
    }

    fn find_pool(&self, name: &str) -> Result<Arc<Pool>> {
        self.core.pools.named(name).ok_or_else(|| Error::NotFound { what: "pool", id: name.to_string() })
    }

    /// A worker of this replica. Only its own replica can act on one: whoever asks another is told which.
    async fn find_worker(&self, id: WorkerId) -> Result<(Arc<Pool>, Arc<Worker>)> {
        let found = self.core.pools.of_worker(id).and_then(|pool| Some((pool.clone(), pool.worker(id)?)));
        if let Some(found) = found {
            return Ok(found);
        }
        let missing = || Error::NotFound { what: "worker", id: id.to_string() };
        let told = self.any_worker(id).await?.ok_or_else(missing)?;
        let replica = told.replica_id.map(|replica| replica.to_string()).unwrap_or_default();
        let hint = match &told.server {
            Some(server) => format!("ask the server of that replica, which answers at {server}"),
            None => format!("ask the server of that replica; its worker runs on {:?}", told.host),
        };
        Err(Error::Conflict { problem: format!("worker {id} belongs to another replica, {replica}"), hint })
    }

    fn pool_again(&self, name: &str) -> Result<PoolView> {
        self.pool(name).ok_or_else(|| Error::NotFound { what: "pool", id: name.to_string() })
    }

    fn worker_again(&self, id: WorkerId) -> Result<WorkerView> {
        self.worker(id).ok_or_else(|| Error::NotFound { what: "worker", id: id.to_string() })
    }
}

fn of_pool(pool: &Pool) -> Option<Json> {
    Some(Json::of(&json!({ "pool": pool.name() })))
}

fn retire(worker: &Worker) {
    let mut state = worker.state();
    if state.phase != Phase::Dead {
        state.retiring = state.retiring.or(Some(Retiring::Asked));
    }
}

fn owned(pool: &Pool, worker: &Worker) -> Result<()> {
    if pool.remote {
        return Err(Error::Conflict {
            problem: format!("worker {} belongs to no pool: nobody here can start another", worker.id),
            hint: "drain it, and start another where it runs".to_string(),
        });
    }
    Ok(())
}
