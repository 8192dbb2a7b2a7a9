//! Jobs that a replica left behind. One of the same host takes them over, as they are: the owner changes, the token
//! stays.

use super::shims::Shims;
use super::{Found, strays};
use crate::Stop;
use crate::attempts::Post;
use crate::engine::lock;
use crate::replica::{Life, Turn, others};
use everbeat_model::run::Claimed;
use everbeat_model::{Json, Outcome};
use everbeat_store::{Error as StoreError, Held};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BATCH: usize = 500;
/// So long a start waits for the first look at each job; what takes longer is looked at all the same.
const LOOK_WITHIN: Duration = Duration::from_secs(10);
const SLICE: Duration = Duration::from_millis(100);

/// Before anything else is done with jobs: those of this host that an earlier replica left are taken over and
/// looked at, and shims that nobody's lease stands for any more are told to stop.
pub(super) async fn recover(post: &Post, shims: &Arc<dyn Shims>) -> Result<(), StoreError> {
    let (life, core) = (&post.life, &post.life.core);
    {
        let mut recovery = lock(&core.jobs.recovery);
        *recovery = super::Recovery { started_at: Some(core.now()), ..super::Recovery::default() };
    }
    // Predecessors that are provably dead are buried first: their jobs are free only then.
    others::observe(life).await;
    adopt(post).await?;
    let until = core.env.boot() + LOOK_WITHIN;
    while !lock(&core.jobs.recovery).pending.is_empty() && core.env.boot() < until {
        life.turned(Turn::Sweep);
        let found = core.jobs.found.notified();
        let slice = core.env.sleep(SLICE);
        tokio::select! {
            biased;
            () = found => {}
            () = slice => {}
        }
    }
    strays::stop(life, shims).await?;
    let told = {
        let mut recovery = lock(&core.jobs.recovery);
        recovery.completed_at = Some(core.now());
        told(life, &recovery)
    };
    if let Err(error) = shims.log_start(&told).await {
        tracing::warn!(%error, "the log of starts could not be written");
    }
    core.jobs.recovered.store(true, Ordering::SeqCst);
    post.freed();
    Ok(())
}

/// Takes over the jobs of this host whose replicas are dead or have left.
pub(super) async fn adopt(post: &Post) -> Result<(), StoreError> {
    let life = &post.life;
    loop {
        let adopted = life.call_in(Turn::Sweep, life.core.store.adopt(life.id, BATCH)).await?;
        let count = adopted.len();
        for held in adopted {
            tracing::info!(job = %held.lease.run_id, attempt = held.lease.attempt, "a job was taken over");
            resume(post, held);
        }
        if count < BATCH {
            return Ok(());
        }
    }
}

/// Watches over an attempt that began under another replica, or of which this one lost track.
pub(super) fn resume(post: &Post, held: Held) {
    let life = &post.life;
    let watched = life.table().get(held.lease.token);
    if let Some(work) = watched {
        // A failover forgot that it was passed on, and it was passed on again. One watcher is enough; with
        // another tenure than it knows it is none: reconciliation finds the lease without one.
        if work.claimed.lease != held.lease {
            work.forsake();
            work.kill(Stop::Fenced);
            life.table().settled(&work);
        }
        return;
    }
    life.core.jobs.taken(held.lease.token);
    let due_at = held.lease.granted_at;
    let claimed = Claimed { lease: held.lease, spec: held.spec, standing: held.standing, checkpoint: None, due_at };
    life.take_up(post.place, claimed, held.cancel_asked);
}

/// What the log of starts says of this one.
fn told(life: &Life, recovery: &super::Recovery) -> Json {
    let status = recovery.status(life);
    let jobs: Vec<_> = recovery
        .found
        .iter()
        .map(|(job, found, detail)| json!({ "jobId": job, "outcome": found.as_str(), "detail": detail }))
        .collect();
    Json::of(&json!({
        "replicaId": life.id,
        "version": life.core.settings.version,
        "startedAt": status.started_at,
        "completedAt": status.completed_at,
        "reattached": status.reattached,
        "recovered": status.recovered,
        "lost": status.lost,
        "failed": status.failed,
        "jobs": jobs,
    }))
}

impl Found {
    pub(super) fn failed(self) -> bool {
        matches!(self, Found::Ended(Outcome::Failed | Outcome::TimedOut | Outcome::Stalled))
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Found::Reattached => "reattached",
            Found::Ended(Outcome::Lost) => "lost",
            Found::Ended(Outcome::Released) => "released",
            Found::Ended(_) => "recovered",
            Found::Unknown => "unknown",
            Found::Stray => "fenced",
        }
    }
}
