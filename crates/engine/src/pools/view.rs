//! Pools and workers as people see them.

use super::pool::Pool;
use super::worker::{Phase, Worker};
use crate::Engine;
use everbeat_model::{BootInstant, ReplicaId, RunId, StoreTime, WorkerId};
use std::sync::Arc;
use std::time::Duration;

/// A pool of this replica.
#[derive(Clone, Debug)]
pub struct PoolView {
    pub name: String,
    /// One of [`PoolView::STATES`].
    pub state: &'static str,
    pub size: usize,
    pub slots: usize,
    pub queues: Vec<String>,
    pub tasks: Vec<String>,
    /// Workers that serve.
    pub ready: usize,
    /// Attempts that are performed now.
    pub busy: usize,
    pub containment: Option<&'static str>,
    /// Whether nothing that a worker starts can escape.
    pub contained: bool,
    pub restarts: u64,
    /// Why no worker has come to serve lately; the pool is degraded when that has gone on for a while.
    pub degraded_reason: Option<String>,
    pub last_exit: Option<String>,
    pub replica_id: Option<ReplicaId>,
}

/// A worker of this replica.
#[derive(Clone, Debug)]
pub struct WorkerView {
    pub id: WorkerId,
    pub pool: Option<String>,
    /// One of [`WorkerView::STATES`].
    pub state: &'static str,
    pub class: &'static str,
    pub pid: Option<u32>,
    pub host: String,
    pub sdk: String,
    pub tasks: Vec<String>,
    pub slots: usize,
    pub started_at: StoreTime,
    pub uptime: Duration,
    pub last_pong_at: Option<StoreTime>,
    pub round_trip: Option<Duration>,
    pub lag: Option<Duration>,
    pub resident_bytes: u64,
    pub pings: u64,
    pub pongs: u64,
    pub timeouts: u64,
    pub running: usize,
    pub performs: Vec<RunId>,
    /// Attempts that it brought to an end.
    pub finished: u64,
    /// How often workers of its pool took the place of others.
    pub restarts: u64,
    /// How the last worker of its pool ended.
    pub last_exit: Option<String>,
    pub retiring: Option<&'static str>,
    pub replica_id: Option<ReplicaId>,
}

impl PoolView {
    pub const STATES: [&'static str; 5] = ["starting", "ready", "degraded", "paused", "stopping"];
}

impl WorkerView {
    pub const STATES: [&'static str; 6] = ["starting", "ready", "busy", "draining", "ending", "dead"];
}

impl Engine {
    /// The pools of this replica, by name.
    pub fn pools(&self) -> Vec<PoolView> {
        self.core.pools.configured.iter().map(|pool| self.view_pool(pool)).collect()
    }

    pub fn pool(&self, name: &str) -> Option<PoolView> {
        self.core.pools.named(name).map(|pool| self.view_pool(&pool))
    }

    /// The workers of this replica, those of no pool last.
    pub fn workers(&self) -> Vec<WorkerView> {
        let of = |pool: &Arc<Pool>| pool.workers().iter().map(|worker| self.view_worker(pool, worker)).collect();
        self.core.pools.all().flat_map(|pool| -> Vec<WorkerView> { of(pool) }).collect()
    }

    pub fn worker(&self, id: WorkerId) -> Option<WorkerView> {
        let pool = self.core.pools.of_worker(id)?;
        Some(self.view_worker(&pool, &*pool.worker(id)?))
    }

    fn view_pool(&self, pool: &Pool) -> PoolView {
        let (mut ready, mut busy) = (0, 0);
        for worker in pool.workers() {
            let state = worker.state();
            ready += usize::from(state.phase == Phase::Serving && state.line.is_some() && state.sentence.is_none());
            busy += state.running();
        }
        let degraded = pool.degraded().is_some();
        let state = pool.state();
        let word = match () {
            () if state.stopping => "stopping",
            () if degraded => "degraded",
            () if state.paused => "paused",
            () if ready < state.size.min(1) => "starting",
            () => "ready",
        };
        PoolView {
            name: pool.settings.name.clone(),
            state: word,
            size: state.size,
            slots: pool.settings.slots,
            queues: pool.settings.queues.clone(),
            tasks: state.tasks.iter().cloned().collect(),
            ready,
            busy,
            containment: state.containment.map(super::Containment::as_str),
            contained: state.containment.is_some_and(super::Containment::complete),
            restarts: state.restarts,
            degraded_reason: state.trouble.clone(),
            last_exit: state.last_exit.clone(),
            replica_id: self.replica_id(),
        }
    }

    fn view_worker(&self, pool: &Pool, worker: &Worker) -> WorkerView {
        let core = &self.core;
        let now = core.env.boot();
        let (restarts, last_exit) = {
            let state = pool.state();
            (state.restarts, state.last_exit.clone())
        };
        let at = |at: BootInstant| core.clock.at(at, &*core.env);
        let state = worker.state();
        let word = match state.phase {
            Phase::Dead => "dead",
            _ if state.sentence.is_some() => "ending",
            Phase::Starting => "starting",
            Phase::Draining => "draining",
            Phase::Serving if state.running() > 0 => "busy",
            Phase::Serving => "ready",
        };
        WorkerView {
            id: worker.id,
            pool: pool.name().map(ToString::to_string),
            state: word,
            class: state.pulse.class.as_str(),
            pid: worker.pid(),
            host: state.hello.host.clone(),
            sdk: state.hello.sdk.clone(),
            tasks: state.hello.tasks.iter().cloned().collect(),
            slots: state.hello.slots,
            started_at: worker.started_at,
            uptime: worker.uptime(now),
            last_pong_at: state.pulse.last_pong.map(|(pong, _)| at(pong)),
            round_trip: state.pulse.round_trip,
            lag: state.pulse.last_pong.map(|(_, pong)| pong.lag),
            resident_bytes: state.pulse.resident_bytes,
            pings: state.pulse.pings,
            pongs: state.pulse.pongs,
            timeouts: state.pulse.timeouts,
            running: state.running(),
            performs: state.performs(),
            finished: state.finished,
            restarts,
            last_exit,
            retiring: state.retiring.map(super::keep::Retiring::as_str),
            replica_id: self.replica_id(),
        }
    }
}
