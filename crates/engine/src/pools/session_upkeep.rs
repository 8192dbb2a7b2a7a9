//! Ends sessions that are over: lets what waited for them begin anywhere, and lets go of them in the store.

use super::pool::Pool;
use crate::attempts::Post;
use crate::engine::Core;
use crate::env::within;
use crate::replica::{Life, Phase, Turn, rescue};
use everbeat_model::session::awaited;
use everbeat_model::{BootInstant, ReplicaId, SessionId};
use everbeat_store::{Error as StoreError, KeptSession};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Sessions are looked at that often while there are some, besides when something changed.
const LOOK: Duration = Duration::from_secs(1);
const BATCH: usize = 500;
/// One look unbinds no more batches of one lane: others may put runs back meanwhile.
const MOST_BATCHES: usize = 20;
/// What is left to a replica that keeps sessions may begin elsewhere in one of so many sweeps. Most of it comes back, at the
/// cost of a released attempt each.
const LEFT_EVERY: usize = 10;

/// The loop of one pool, for as long as the process lives.
pub(super) async fn run(core: Arc<Core>, pool: Arc<Pool>) {
    loop {
        let again = turn(&core, &pool).await;
        let look = async {
            match again {
                Some(again) => core.env.sleep_until(again).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = pool.sessions.changed.notified() => {}
            () = look => {}
        }
    }
}

/// Ends what is over. Answers when to look again; none means when something has changed.
async fn turn(core: &Arc<Core>, pool: &Arc<Pool>) -> Option<BootInstant> {
    let now = core.env.boot();
    let life = core.life();
    let leaving = life.as_ref().is_some_and(|life| life.phase() == Phase::Draining);
    let keepers = pool.keepers();
    let (expires, unbind, over) = {
        let mut table = pool.sessions.table();
        let expires = table.sweep(pool.scope(), &keepers, leaving, now);
        (expires, std::mem::take(&mut table.unbind), std::mem::take(&mut table.over))
    };
    carry_out(core, pool, life.as_deref(), unbind, over).await;
    let table = pool.sessions.table();
    let left = table.len() > 0 || !table.unbind.is_empty() || !table.over.is_empty();
    drop(table);
    let look = core.env.boot() + LOOK;
    left.then(|| expires.map_or(look, |expires| expires.max(now).min(look)))
}

/// Tells the store. What it does not take is told again with the next look.
async fn carry_out(
    core: &Core,
    pool: &Pool,
    life: Option<&Life>,
    unbind: BTreeSet<String>,
    over: Vec<(ReplicaId, KeptSession)>,
) {
    let mut by_replica: BTreeMap<ReplicaId, Vec<KeptSession>> = BTreeMap::new();
    over.into_iter().for_each(|(replica, kept)| by_replica.entry(replica).or_default().push(kept));
    for (replica, kept) in by_replica {
        // What others have judged dead keeps nothing.
        if life.is_none_or(|life| life.id != replica) {
            continue;
        }
        for kept in kept.chunks(BATCH) {
            let told = core.store.let_go_sessions(kept.to_vec(), replica);
            if !matches!(within(&*core.env, core.settings.call_limit(), told).await, Some(Ok(()))) {
                pool.sessions.table().over.extend(kept.iter().map(|kept| (replica, kept.clone())));
            }
        }
    }
    let mut freed = false;
    for host in unbind {
        match free(core, &host).await {
            Some(runs) => freed |= runs > 0,
            None => freed |= pool.sessions.table().unbind.insert(host),
        }
    }
    if let Some(life) = life.filter(|_| freed) {
        rescue::returned(life);
    }
}

/// Lets what waits there begin anywhere. Answers how many runs; none if more may wait there.
async fn free(core: &Core, host: &str) -> Option<usize> {
    let mut freed = 0;
    for _ in 0..MOST_BATCHES {
        let unbound = core.store.unbind(host.to_string(), BATCH);
        let count = within(&*core.env, core.settings.call_limit(), unbound).await?.ok()?;
        freed += count;
        if count < BATCH {
            return Some(freed);
        }
    }
    None
}

/// Finds runs that wait for nobody: for replicas that are gone, for workers of this one that nothing waits for by right, and
/// what other replicas have left to this one for a session that it does not keep. The pool of workers from elsewhere, which
/// each replica has, looks for all pools.
pub(super) async fn sweep(pool: &Pool, post: &Post) -> Result<(), StoreError> {
    let (life, core) = (&post.life, &post.life.core);
    // What is left to this replica may be of a session that is over, or of a queue that none of its workers serves.
    let looks = pool.sessions.looks.fetch_add(1, Ordering::Relaxed);
    let mut keeps = looks % LEFT_EVERY < LEFT_EVERY - 1;
    for pool in core.pools.all().filter(|pool| pool.sessions.keeps.load(Ordering::Relaxed)) {
        // Ids rise: whatever is asked for from now on is above this one.
        let before = SessionId(core.new_id());
        let kept = pool.sessions.table().kept();
        let only = core.store.keep_only(pool.scope().to_string(), life.id, before, kept);
        let unused = life.call_in(Turn::Sweep, only).await?;
        keeps &= unused == 0;
    }
    keeps &= core.pools.all().any(|pool| pool.sessions.table().keeps(life.id));
    let bound = life.call_in(Turn::Sweep, core.store.bound_hosts()).await?;
    let waits: Vec<_> = bound.iter().filter_map(|host| Some((host, awaited(host)?))).collect();
    if !waits.is_empty() {
        let there = life.call_in(Turn::Sweep, core.store.observe()).await?;
        for (host, (replica, worker)) in waits {
            let rightly = match worker {
                _ if replica != life.id => there.iter().any(|other| other.id == replica),
                Some(worker) => core.pools.all().any(|pool| pool.sessions.table().is_awaited(worker, replica)),
                None => keeps,
            };
            if !rightly {
                for _ in 0..MOST_BATCHES {
                    if life.call_in(Turn::Sweep, core.store.unbind(host.clone(), BATCH)).await? < BATCH {
                        break;
                    }
                }
                rescue::returned(life);
            }
        }
    }
    if life.call_in(Turn::Sweep, core.store.sweep_due("sessions", core.settings.sweep_interval)).await? {
        while life.call_in(Turn::Sweep, core.store.forget_sessions(BATCH)).await? == BATCH {}
    }
    Ok(())
}
