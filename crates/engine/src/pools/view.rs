//! Pools and workers as people see them.

use super::pool::Pool;
use super::sessions::{Entry, Keepers};
use super::worker::{Phase, Worker};
use crate::Engine;
use crate::engine::Core;
use crate::env::within;
use everbeat_model::session::Held;
use everbeat_model::{BootInstant, ReplicaId, RunId, SessionId, StoreTime, WorkerId};
use everbeat_store::{Error as StoreError, WorkerFilter};
use std::borrow::Cow;
use std::collections::BTreeSet;
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
    /// How many sessions its workers hold.
    pub sessions: usize,
    pub replica_id: Option<ReplicaId>,
}

/// A worker of this replica, or one of another replica as that one told of it.
#[derive(Clone, Debug)]
pub struct WorkerView {
    pub id: WorkerId,
    pub pool: Option<String>,
    /// One of [`WorkerView::STATES`], unless a replica of another version knows others.
    pub state: Cow<'static, str>,
    pub class: Cow<'static, str>,
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
    pub retiring: Option<Cow<'static, str>>,
    /// How many sessions it holds.
    pub sessions: usize,
    pub replica_id: Option<ReplicaId>,
    /// Where the server of its replica answers, if that is known.
    pub server: Option<String>,
    /// When another replica told this. None of a worker of this replica: that is how it is now.
    pub told_at: Option<StoreTime>,
}

/// Which workers are asked for.
#[derive(Clone, Debug, Default)]
pub struct WorkersAsked {
    pub pool: Option<String>,
    pub state: Option<String>,
    pub after: Option<WorkerId>,
    pub limit: usize,
}

impl WorkersAsked {
    fn fits(&self, worker: &WorkerView) -> bool {
        (self.pool.is_none() || worker.pool == self.pool)
            && self.state.as_ref().is_none_or(|state| worker.state == *state)
            && self.after.is_none_or(|after| worker.id > after)
    }
}

/// A session of a pool of this replica.
#[derive(Clone, Debug)]
pub struct SessionView {
    pub key: String,
    pub id: SessionId,
    pub worker: WorkerId,
    pub strict: bool,
    pub begun_at: StoreTime,
    pub last_used_at: StoreTime,
    /// When it is over unless it is used; none while it is.
    pub expires_at: Option<StoreTime>,
    /// It ends as soon as nothing is performed in it.
    pub ending: bool,
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

    /// At most `limit` sessions of a pool, by key, after the one given.
    pub fn sessions(&self, name: &str, after: Option<&str>, limit: usize) -> Option<Vec<SessionView>> {
        let pool = self.core.pools.named(name)?;
        let keepers = pool.keepers();
        let table = pool.sessions.table();
        let rest = table.entries().filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
        Some(rest.take(limit).map(|(key, entry)| self.view_session(key, entry, &keepers)).collect())
    }

    pub(super) fn view_session(&self, key: &str, entry: &Entry, keepers: &Keepers) -> SessionView {
        let core = &self.core;
        let at = |at: BootInstant| core.clock.at(at, &*core.env);
        let Held { live, in_use, .. } = entry.held(keepers);
        SessionView {
            key: key.to_string(),
            id: live.id,
            worker: live.worker,
            strict: live.strict,
            begun_at: at(live.begun),
            last_used_at: at(live.last_used),
            expires_at: (!in_use).then(|| at(live.last_used + live.ttl)),
            ending: live.ending,
        }
    }

    /// The workers of this replica, those of no pool last.
    pub fn workers(&self) -> Vec<WorkerView> {
        let of = |pool: &Arc<Pool>| pool.workers().iter().map(|worker| view_worker(&self.core, pool, worker)).collect();
        self.core.pools.all().flat_map(|pool| -> Vec<WorkerView> { of(pool) }).collect()
    }

    pub fn worker(&self, id: WorkerId) -> Option<WorkerView> {
        let pool = self.core.pools.of_worker(id)?;
        Some(view_worker(&self.core, &pool, &*pool.worker(id)?))
    }

    /// The workers of all replicas, by id: those of the others as these told last. While the store does not answer, only
    /// those of this one. There may be more than were asked for.
    pub async fn all_workers(&self, asked: &WorkersAsked) -> Vec<WorkerView> {
        let mut workers = self.workers();
        let mine: BTreeSet<WorkerId> = workers.iter().map(|worker| worker.id).collect();
        workers.retain(|worker| asked.fits(worker));
        let WorkersAsked { pool, state, after, limit } = asked.clone();
        let filter = WorkerFilter { besides: self.replica_id(), pool, state, after, limit, ..WorkerFilter::default() };
        match self.told_workers(filter).await {
            Ok(told) => workers.extend(told.into_iter().filter(|worker| !mine.contains(&worker.id))),
            Err(error) => tracing::warn!(%error, "the workers of other replicas cannot be listed"),
        }
        workers.sort_by_key(|worker| worker.id);
        workers
    }

    /// A worker of any replica.
    pub async fn any_worker(&self, id: WorkerId) -> crate::Result<Option<WorkerView>> {
        if let Some(worker) = self.worker(id) {
            return Ok(Some(worker));
        }
        let filter = WorkerFilter { id: Some(id), limit: 1, ..WorkerFilter::default() };
        Ok(self.told_workers(filter).await?.pop())
    }

    async fn told_workers(&self, filter: WorkerFilter) -> Result<Vec<WorkerView>, StoreError> {
        let core = &self.core;
        let rows = within(&*core.env, core.settings.call_limit(), core.store.workers(filter)).await;
        let rows = rows.unwrap_or_else(|| Err(StoreError::no_answer()))?;
        Ok(rows.into_iter().map(|row| WorkerView::of_row(row, core.now())).collect())
    }

    fn view_pool(&self, pool: &Pool) -> PoolView {
        let (mut ready, mut busy) = (0, 0);
        for worker in pool.workers() {
            let state = worker.state();
            ready += usize::from(state.phase == Phase::Serving && state.line.is_some() && state.sentence.is_none());
            busy += state.running();
        }
        let sessions = pool.sessions.table().len();
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
            sessions,
            replica_id: self.replica_id(),
        }
    }
}

/// A worker of this replica, as it is now.
pub(super) fn view_worker(core: &Core, pool: &Pool, worker: &Worker) -> WorkerView {
    let now = core.env.boot();
    let (restarts, last_exit) = {
        let state = pool.state();
        (state.restarts, state.last_exit.clone())
    };
    let at = |at: BootInstant| core.clock.at(at, &*core.env);
    let sessions = pool.sessions.table().held_by(worker.id);
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
        state: word.into(),
        class: state.pulse.class.as_str().into(),
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
        retiring: state.retiring.map(|why| why.as_str().into()),
        sessions,
        replica_id: core.life().map(|life| life.id),
        server: core.address.get().cloned(),
        told_at: None,
    }
}
