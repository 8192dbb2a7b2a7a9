//! Jobs that a replica left behind. One of the same host takes them over, as they are: the owner changes,
//! the token stays. Those of a host that stays away are given up after a while.

use super::Found;
use crate::engine::lock;
use crate::life::{Life, Phase, Turn};
use crate::shims::{Finding, JobAttempt, LAST_WORD, Shims, StopReason, WithoutFolder};
use crate::{Stop, figures, renew, sweep};
use everbeat_model::lease::Lease;
use everbeat_model::run::Claimed;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{Attempt, BootInstant, Hole, Json, Outcome, RunId, Settled, Token, Verdict, VerdictId};
use everbeat_store::{Class, Error as StoreError, Held, Obstacle, Which};
use futures_util::FutureExt;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BATCH: usize = 500;
/// So long a start waits for the first look at each job; what takes longer is looked at all the same.
const LOOK_WITHIN: Duration = Duration::from_secs(10);
const SLICE: Duration = Duration::from_millis(100);

/// Before anything else is done with jobs: those of this host that an earlier replica left are taken over and
/// looked at, and shims that nobody's lease stands for any more are told to stop.
pub(crate) async fn start(life: &Arc<Life>) -> Result<(), StoreError> {
    let core = &life.core;
    let Some(shims) = core.shims.clone() else { return Ok(()) };
    {
        let mut recovery = lock(&core.jobs.recovery);
        *recovery = super::Recovery { started_at: Some(core.now()), ..super::Recovery::default() };
    }
    // Predecessors that are provably dead are buried first: their jobs are free only then.
    renew::observe(life).await;
    adopt(life).await?;
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
    stop_strays(life, &shims).await?;
    let entry = {
        let mut recovery = lock(&core.jobs.recovery);
        recovery.completed_at = Some(core.now());
        entry(life, &recovery)
    };
    if let Err(error) = shims.log_start(&entry).await {
        tracing::warn!(%error, "the log of starts could not be written");
    }
    core.jobs.recovered.store(true, Ordering::SeqCst);
    life.freed_jobs.notify_one();
    Ok(())
}

/// What the log of starts says of this one.
fn entry(life: &Life, recovery: &super::Recovery) -> Json {
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

/// One sweep over jobs: those of this host are adopted, those of hosts that stay away are given up.
pub(crate) async fn take_over(life: &Arc<Life>, absent: &mut Absent) -> Result<(), StoreError> {
    if life.core.shims.is_some() && life.phase() == Phase::Active {
        adopt(life).await?;
    }
    give_up(life, absent).await
}

/// The net under shims: nothing should ever be in it, but for what a failover leaves.
pub(crate) async fn sweep_strays(life: &Arc<Life>) -> Result<(), StoreError> {
    match &life.core.shims {
        Some(shims) if life.core.jobs.recovered() => stop_strays(life, shims).await,
        _ => Ok(()),
    }
}

async fn adopt(life: &Arc<Life>) -> Result<(), StoreError> {
    loop {
        let adopted = life.call_in(Turn::Sweep, life.core.store.adopt(life.id, BATCH)).await?;
        let count = adopted.len();
        for held in adopted {
            tracing::info!(job = %held.lease.run_id, attempt = held.lease.attempt, "a job was taken over");
            go_on(life, held);
        }
        if count < BATCH {
            return Ok(());
        }
    }
}

/// Watches over an attempt that began under another replica, or of which this one lost track.
pub(crate) fn go_on(life: &Arc<Life>, held: Held) {
    let watched = life.table().get(held.lease.token);
    if let Some(entry) = watched {
        // A failover forgot that it was passed on, and it was passed on again. One watcher is enough; with
        // another tenure than it knows it is none: reconciliation finds the lease without one.
        if entry.claimed.lease != held.lease {
            entry.kill(Stop::Fenced);
            life.table().settled(&entry);
        }
        return;
    }
    life.core.jobs.taken(held.lease.token);
    let due_at = held.lease.granted_at;
    let claimed = Claimed { lease: held.lease, spec: held.spec, standing: held.standing, checkpoint: None, due_at };
    life.watch_over(claimed, held.cancel_asked);
}

/// Since when each lease of a host without any replica was seen to be so, by this replica.
#[derive(Default)]
pub(crate) struct Absent {
    since: BTreeMap<Token, (Lease, BootInstant)>,
    /// The same of hosts that waiting runs belong to.
    hosts: BTreeMap<String, BootInstant>,
    looked: Option<BootInstant>,
}

/// Jobs of a host that no replica has returned to for the whole window, as watched from here, are lost.
async fn give_up(life: &Arc<Life>, absent: &mut Absent) -> Result<(), StoreError> {
    let core = &life.core;
    let window = core.settings.jobs.reattach_window;
    let mut orphans = Vec::new();
    let mut after = None;
    loop {
        let page = life.call_in(Turn::Sweep, core.store.held(Which::Detached(after, BATCH))).await?;
        let full = page.len() == BATCH;
        after = page.last().map(|held| held.lease.run_id);
        orphans.extend(page);
        if !full {
            break;
        }
    }
    let now = core.env.boot();
    // A watcher that was away itself, or could not be heard, begins anew.
    let longest = (window / 2).max(core.settings.sweep_interval * 2);
    let attentive = absent.looked.is_some_and(|looked| now.since(looked) <= longest);
    if !attentive || !life.pulse().connected() {
        absent.since.clear();
        absent.hosts.clear();
    }
    absent.looked = Some(now);
    let mut bound = life.call_in(Turn::Sweep, core.store.bound_hosts()).await?;
    if orphans.is_empty() && bound.is_empty() {
        absent.since.clear();
        absent.hosts.clear();
        return Ok(());
    }
    let replicas = life.call_in(Turn::Sweep, core.store.observe()).await?;
    let present: BTreeSet<&str> = replicas.iter().map(|replica| replica.host.as_str()).collect();
    let host = |held: &Held| held.owner.as_ref().map(|owner| owner.host.clone()).or_else(|| held.spec.host.clone());
    orphans.retain(|held| host(held).is_none_or(|host| !present.contains(host.as_str())));
    let tokens: BTreeSet<Token> = orphans.iter().map(|held| held.lease.token).collect();
    absent.since.retain(|token, _| tokens.contains(token));
    for held in orphans {
        let (lease, since) = absent.since.entry(held.lease.token).or_insert_with(|| (held.lease.clone(), now));
        // Its host was back between two looks, and its owner is another one since.
        if *lease != held.lease && core.settings.hole != Some(Hole::ReturnOverlooked) {
            (*lease, *since) = (held.lease.clone(), now);
        }
        let since = *since;
        if host(&held).is_some_and(|host| never_returns(life, &host)) {
            lose(life, &held, now.since(since), Why::NotOurs).await?;
        } else if now.since(since) >= window || core.settings.hole == Some(Hole::HastyGivingUp) {
            lose(life, &held, now.since(since), Why::HostAway).await?;
        }
    }
    bound.retain(|host| !present.contains(host.as_str()));
    absent.hosts.retain(|host, _| bound.contains(host));
    for host in bound {
        let since = *absent.hosts.entry(host.clone()).or_insert(now);
        if now.since(since) >= window || never_returns(life, &host) {
            unbind(life, host).await?;
        }
    }
    Ok(())
}

/// Whether a host has no way back into this store: the store came here as a copy, together with that host's data folder.
fn never_returns(life: &Life, host: &str) -> bool {
    life.core.store.sole() && life.core.settings.former_hosts.contains(host)
}

/// Runs that wait for a host which stays away may begin anywhere, each in a new workspace.
async fn unbind(life: &Arc<Life>, host: String) -> Result<(), StoreError> {
    loop {
        let unbound = life.call_in(Turn::Sweep, life.core.store.unbind(host.clone(), BATCH)).await?;
        if unbound > 0 {
            tracing::warn!(host, unbound, "runs that waited for a host which stays away may begin elsewhere");
            sweep::returned(life);
            life.freed_jobs.notify_one();
        }
        if unbound < BATCH {
            return Ok(());
        }
    }
}

/// Why a job of another host is given up.
#[derive(Clone, Copy)]
enum Why {
    HostAway,
    NotOurs,
}

async fn lose(life: &Arc<Life>, held: &Held, away: Duration, why: Why) -> Result<(), StoreError> {
    let core = &life.core;
    let host = held.owner.as_ref().map(|owner| owner.host.clone());
    let named = host.clone().unwrap_or_else(|| "of its replica".to_string());
    let (reason, message) = match why {
        Why::HostAway => ("host_away", format!("no replica of host {named} came back for it")),
        Why::NotOurs => ("not_ours", format!("it began on host {named}, of whose data this is a copy")),
    };
    let ending = everbeat_model::job::lost(reason, &message);
    let evidence = json!({
        "replica_id": held.lease.replica_id,
        "host": host,
        "away_for_ms": away.as_millis() as u64,
        "reattach_window_ms": core.settings.jobs.reattach_window.as_millis() as u64,
        "last_heartbeat_at": held.owner.as_ref().map(|owner| owner.last_heartbeat_at),
        "exit": "unknown",
    });
    let settlement = sweep::rescued(life, held, ending, reason, evidence, life.id);
    // It may be tried anywhere from now on: its workspace is out of reach.
    if !life.call_in(Turn::Sweep, core.store.place(settlement.shown, None)).await? {
        return Ok(());
    }
    if life.call_in(Turn::Sweep, core.store.settle(vec![settlement])).await? == [Settled::Done] {
        tracing::warn!(job = %held.lease.run_id, reason, "a job is lost: its host stays away");
        core.jobs.lost();
        sweep::returned(life);
    }
    Ok(())
}

/// Shims of this host that hold their locks for a lease which does not stand any more. A host that came back
/// too late finds such, and a replica whose lease a failover took back: what they do counts for nothing.
async fn stop_strays(life: &Arc<Life>, shims: &Arc<dyn Shims>) -> Result<(), StoreError> {
    let core = &life.core;
    let held = shims.held().await.map_err(|error| {
        tracing::warn!(%error, "the folder of jobs cannot be looked through");
        StoreError::unavailable(Obstacle::Io, error)
    })?;
    let mut strays = Vec::new();
    for chunk in held.chunks(BATCH) {
        let runs: Vec<RunId> = chunk.iter().map(|attempt| attempt.job).collect();
        let leases = life.call_in(Turn::Sweep, core.store.held(Which::Of(runs))).await?;
        let stands = |attempt: &JobAttempt| leases.iter().any(|held| held.lease.token == attempt.token);
        for attempt in chunk.iter().filter(|attempt| !stands(attempt)) {
            let watched = life.table().get(attempt.token);
            if let Some(entry) = watched {
                if !entry.forsake() {
                    continue;
                }
                entry.kill(Stop::Fenced);
                life.table().settled(&entry);
            }
            let run = match life.call_in(Turn::Sweep, core.store.run(attempt.job)).await {
                Err(error) if error.class() == Class::Bug => {
                    // One row that cannot be read hides no other.
                    tracing::error!(job = %attempt.job, %error, "the run of a live job cannot be read");
                    continue;
                }
                run => run?,
            };
            match run {
                Some(_) => strays.push(JobAttempt { tenure: LAST_WORD, ..attempt.clone() }),
                None => tracing::warn!(job = %attempt.job, "a live job is not known to the store; it is left alone"),
            }
        }
    }
    let (mut stopping, mut verdicts) = (Vec::new(), Vec::new());
    for stray in strays {
        life.turned(Turn::Sweep);
        let settled = life.call_in(Turn::Sweep, core.store.was_settled(vec![(stray.job, stray.token)])).await?;
        let attempts = life.call_in(Turn::Sweep, core.store.attempts(stray.job)).await?;
        let lost = |ended: &Attempt| ended.attempt == stray.attempt && ended.outcome == Some(Outcome::Lost);
        let given_up = attempts.iter().any(lost);
        // Its end is stored, and nobody told its shim.
        let counts = settled == [true] && !given_up;
        match shims.examine(&stray).await {
            Finding::Exited(_) => {
                if given_up {
                    verdicts.push(fenced(life, &stray, "late_result", "its result counts for nothing"));
                }
                shims.acknowledge(&stray).await;
            }
            _ if counts => stopping.push(stray),
            _ => {
                let then = "told to stop; its result counts for nothing";
                verdicts.push(fenced(life, &stray, "late_return", then));
                core.jobs.found(stray.token, stray.job, Found::Stray, "its lease had passed on: told to stop");
                stopping.push(stray);
            }
        }
    }
    if !verdicts.is_empty() {
        life.call_in(Turn::Sweep, core.store.record(verdicts)).await?;
    }
    if stopping.is_empty() {
        return Ok(());
    }
    let (env, shims, grace) = (core.env.clone(), shims.clone(), core.settings.jobs.stop_grace);
    let ends = async move {
        for stray in stopping {
            end(&*env, &*shims, &stray, grace).await;
        }
    };
    life.keep(core.env.spawn("strays", ends.boxed()));
    Ok(())
}

/// Asks until it has ended, or hangs.
pub(super) async fn end(env: &dyn crate::Env, shims: &dyn Shims, stray: &JobAttempt, grace: Duration) {
    let until = env.boot() + grace + LOOK_WITHIN;
    loop {
        match shims.examine(stray).await {
            Finding::Exited(_) => return shims.acknowledge(stray).await,
            Finding::Live(_) | Finding::Hung if env.boot() < until => {
                let _asked_again_below = shims.stop(stray, StopReason::Fenced, grace).await;
            }
            Finding::Live(_) | Finding::Hung => {
                let _fenced_below = shims.kill(stray).await;
                let _it_is_nobodys = shims.fence(stray, WithoutFolder::LeaveIt).await;
                return;
            }
            Finding::NotStarted | Finding::Missing | Finding::Gone | Finding::Rebooted => {
                let _it_is_nobodys = shims.fence(stray, WithoutFolder::LeaveIt).await;
                return;
            }
            Finding::Unknown(_) if env.boot() < until => {}
            Finding::Fenced | Finding::Unknown(_) => return,
        }
        env.sleep(SLICE).await;
    }
}

fn fenced(life: &Life, stray: &JobAttempt, reason: &str, then: &str) -> Verdict {
    tracing::warn!(job = %stray.job, attempt = stray.attempt, reason, "nobody's lease stands for a job any more");
    metrics::counter!("everbeat_fenced_writes_total").increment(1);
    figures::judged(Judgement::Fenced, reason);
    Verdict {
        id: VerdictId(life.core.new_id()),
        at: life.core.now(),
        subject: Subject { kind: SubjectKind::Run, id: stray.job.to_string() },
        judgement: Judgement::Fenced,
        reason: reason.to_string(),
        evidence: Json::of(&json!({ "host": life.core.settings.host, "found_by": "start", "shim": "holds its lock" })),
        judged_by: life.id,
        run_id: Some(stray.job),
        attempt: Some(stray.attempt),
        then: then.to_string(),
    }
}
