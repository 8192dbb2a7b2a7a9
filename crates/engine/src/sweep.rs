//! Idempotent passes that take no input and find what hints and answers missed.

use crate::figures;
use crate::jobs::{self, Absent};
use crate::life::{Begun, Life, Phase, Turn};
use everbeat_model::settle::decide;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{Ending, Hole, Json, Outcome, ReplicaId, RunId, Settled, Settlement, Token, Verdict, VerdictId};
use everbeat_store::{Error as StoreError, Held, VerdictFilter, Which, last_heartbeat};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

const BATCH: usize = 500;
const INDEX_PAGE: usize = 10_000;
const FORGET_BATCH: usize = 1000;
/// The net under executions is looked at in every so many sweeps: nothing should ever be in it.
const STRANDED_EVERY: u32 = 10;
/// And so is the one under the shims of this host.
const STRAYS_EVERY: u32 = 10;

pub(crate) async fn run(life: Arc<Life>) {
    let settings = &life.core.settings;
    let mut next = life.core.env.boot();
    let mut nudged = true;
    let mut unperformed = Unperformed::new();
    let mut absent = Absent::default();
    let mut passes = 0;
    loop {
        life.turned(Turn::Sweep);
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        if !life.core.jobs.recovered()
            && let Err(error) = jobs::start(&life).await
        {
            tracing::debug!(%error, "the jobs of this host could not be looked at yet");
        }
        let due = life.core.env.boot() >= next;
        if (due || nudged)
            && let Err(error) = sweep(&life, due, nudged, &mut unperformed, &mut absent, &mut passes).await
        {
            tracing::debug!(%error, "sweep broken off");
        }
        if due {
            next = life.core.env.boot() + life.core.env.jittered(settings.sweep_interval);
        }
        let look_again = life.core.env.sleep_until(next.min(life.core.env.boot() + settings.idle_limit()));
        nudged = tokio::select! {
            biased;
            () = life.sweep_now.notified() => true,
            () = look_again => false,
        };
    }
}

/// One pass. `nudged` says that there is something to take over, whoever else sweeps.
async fn sweep(
    life: &Arc<Life>,
    due: bool,
    nudged: bool,
    unperformed: &mut Unperformed,
    absent: &mut Absent,
    passes: &mut u32,
) -> Result<(), StoreError> {
    let settings = &life.core.settings;
    let store = &life.core.store;
    if nudged || (due && life.call_in(Turn::Sweep, store.sweep_due("orphans", settings.sweep_interval / 2)).await?) {
        take_over(life).await?;
        life.call_in(Turn::Sweep, store.trim_events(settings.keep_events)).await?;
    }
    jobs::take_over(life, absent).await?;
    if !due {
        return Ok(());
    }
    life.core.offer().await;
    if settings.hole != Some(Hole::LeaseNobodyPerforms) {
        reconcile(life, unperformed).await?;
    }
    *passes += 1;
    if passes.is_multiple_of(STRAYS_EVERY) {
        jobs::sweep_strays(life).await?;
    }
    if life.call_in(Turn::Sweep, store.sweep_due("stranded", settings.sweep_interval * STRANDED_EVERY)).await? {
        let stranded = life.call_in(Turn::Sweep, store.note_stranded(BATCH)).await?;
        if stranded > 0 {
            tracing::warn!(stranded, "executions whose runs ended without notice are looked at");
            life.core.noted.notify_one();
        }
    }
    if life.core.clean_due() {
        if life.call_in(Turn::Sweep, store.sweep_due("retention", settings.clean_interval / 2)).await? {
            forget(life).await?;
        }
        life.core.cleaned();
    }
    Ok(())
}

/// Returns the leases of replicas that are dead, left or unknown, each by its run's policy.
async fn take_over(life: &Life) -> Result<(), StoreError> {
    let mut burials = BTreeMap::new();
    loop {
        life.turned(Turn::Sweep);
        let orphans = life.call_in(Turn::Sweep, life.core.store.held(Which::Orphaned(BATCH))).await?;
        if orphans.is_empty() {
            return Ok(());
        }
        for held in &orphans {
            if let Entry::Vacant(unknown) = burials.entry(held.lease.replica_id) {
                unknown.insert(burial(life, held.lease.replica_id).await?);
            }
        }
        let rescues: Vec<Settlement> =
            orphans.iter().map(|held| rescue(life, held, &burials[&held.lease.replica_id])).collect();
        let reasons: Vec<String> =
            rescues.iter().filter_map(|rescue| rescue.verdict.as_ref()).map(|verdict| verdict.reason.clone()).collect();
        let answers = life.call_in(Turn::Sweep, life.core.store.settle(rescues)).await?;
        let done = answers.iter().zip(orphans.iter().zip(&reasons)).filter(|(answer, _)| **answer == Settled::Done);
        for (_, (held, reason)) in done {
            figures::judged(Judgement::Lost, reason);
            life.core.losses.lost(held.lease.run_id, life.core.env.boot());
        }
        let returned = answers.iter().filter(|answer| **answer == Settled::Done).count();
        metrics::counter!("everbeat_attempts_total", "outcome" => "lost").increment(returned as u64);
        tracing::info!(returned, found = orphans.len(), "runs of lost replicas returned");
        self::returned(life);
        if returned == 0 {
            // All of them were settled or asked to cancel meanwhile; the next sweep looks again.
            return Ok(());
        }
    }
}

/// Runs may have become ready, or have ended.
pub(crate) fn returned(life: &Life) {
    life.core.store.wake();
    life.freed.notify_one();
    life.core.noted.notify_one();
}

/// The verdict on a replica, if there is one.
async fn burial(life: &Life, replica: ReplicaId) -> Result<Option<Verdict>, StoreError> {
    let filter = VerdictFilter { subject: Some(replica.to_string()), limit: 1, ..VerdictFilter::default() };
    Ok(life.call_in(Turn::Sweep, life.core.store.verdicts(filter)).await?.into_iter().next())
}

fn rescue(life: &Life, held: &Held, burial: &Option<Verdict>) -> Settlement {
    let owner = held.lease.replica_id;
    let (reason, message) = match (&held.owner, burial) {
        (_, Some(verdict)) if verdict.reason == "lock_released" => ("replica_died", format!("replica {owner} died")),
        (Some(replica), _) if replica.state == everbeat_model::replica::ReplicaState::Left => {
            ("replica_left", format!("replica {owner} left without returning it"))
        }
        (Some(_), _) => ("replica_silent", format!("replica {owner} fell silent and was judged dead")),
        (None, _) => ("replica_unknown", format!("replica {owner} is not known")),
    };
    let ending = Ending::because(Outcome::Lost, reason, &message);
    let evidence = serde_json::json!({
        "replica_id": owner,
        "host": held.owner.as_ref().map(|owner| owner.host.clone()),
        "last_heartbeat_at": held.owner.as_ref().map_or(held.last_heartbeat_at, |owner| owner.last_heartbeat_at),
        "beat": held.owner.as_ref().map(|owner| owner.beat),
        "granted_at": held.lease.granted_at,
        "replica_verdict": burial.as_ref().map(|verdict| serde_json::json!({
            "id": verdict.id, "reason": verdict.reason, "judged_by": verdict.judged_by, "evidence": verdict.evidence,
        })),
    });
    let judge = burial.as_ref().map_or(life.id, |verdict| verdict.judged_by);
    rescued(life, held, ending, reason, evidence, judge)
}

/// Ends the attempt of an owner that is gone, as was observed of it.
pub(crate) fn rescued(
    life: &Life,
    held: &Held,
    ending: Ending,
    reason: &str,
    evidence: serde_json::Value,
    judged_by: ReplicaId,
) -> Settlement {
    let chance = life.core.env.chance();
    let (next, standing) = decide(&ending, &held.spec.policy, held.standing, held.cancel_asked, chance);
    let verdict = Verdict {
        id: VerdictId(life.core.new_id()),
        at: life.core.now(),
        subject: Subject { kind: SubjectKind::Run, id: held.lease.run_id.to_string() },
        judgement: Judgement::Lost,
        reason: reason.to_string(),
        evidence: Json::of(&evidence),
        judged_by,
        run_id: Some(held.lease.run_id),
        attempt: Some(held.lease.attempt),
        then: next.describe(&standing),
    };
    let mut shown = held.lease.shown();
    shown.rescue = true;
    let owner_beat = held.owner.as_ref().map(|owner| owner.last_heartbeat_at);
    Settlement {
        shown,
        spec: held.spec.clone(),
        ending,
        next,
        standing,
        last_heartbeat_at: Some(last_heartbeat(&held.spec.policy, held.last_heartbeat_at, owner_beat)),
        verdict: Some(verdict),
    }
}

/// Leases found without a performer, each with the number of claims begun by then.
type Unperformed = BTreeMap<Token, Begun>;

/// Finds leases of this replica that it does not perform (the claim's answer was lost, a failover
/// undid a settle) and releases them, at no cost to the run. A claim that is still unanswered may have
/// been granted what was found: such a lease waits for a later sweep.
async fn reconcile(life: &Arc<Life>, unperformed: &mut Unperformed) -> Result<(), StoreError> {
    let mut after: Option<RunId> = None;
    let mut found = Unperformed::new();
    let mut lost: Vec<RunId> = Vec::new();
    loop {
        life.turned(Turn::Sweep);
        let page = life.call_in(Turn::Sweep, life.core.store.lease_index(life.id, after, INDEX_PAGE)).await?;
        let begun = life.claims_begun();
        let table = life.table();
        for shown in page.iter().filter(|shown| table.get(shown.token).is_none()) {
            let begun = unperformed.get(&shown.token).copied().unwrap_or(begun);
            if life.claims_over(begun) {
                lost.push(shown.run_id);
            } else {
                found.insert(shown.token, begun);
            }
        }
        drop(table);
        match page.last() {
            Some(last) if page.len() == INDEX_PAGE => after = Some(last.run_id),
            _ => break,
        }
    }
    *unperformed = found;
    release(life, lost, false).await
}

/// Releases leases that nobody performs. Of those that are detached and not `fresh` something may run: they
/// are looked at instead.
pub(crate) async fn release(life: &Arc<Life>, unknown: Vec<RunId>, fresh: bool) -> Result<(), StoreError> {
    for runs in unknown.chunks(BATCH) {
        let held = life.call_in(Turn::Sweep, life.core.store.held(Which::Of(runs.to_vec()))).await?;
        // Read again under the same owner: settled or passed on meanwhile means there is nothing to do.
        let mine = held
            .into_iter()
            .filter(|held| held.lease.replica_id == life.id && life.table().get(held.lease.token).is_none());
        let (begun, never): (Vec<Held>, Vec<Held>) = mine.partition(|held| !fresh && held.spec.detached());
        begun.into_iter().for_each(|held| jobs::go_on(life, held));
        let settlements: Vec<Settlement> = never
            .into_iter()
            .map(|held| {
                let ending = Ending::because(Outcome::Released, "not_performed", "its owner did not know of the lease");
                let (next, standing) = decide(&ending, &held.spec.policy, held.standing, held.cancel_asked, 0.0);
                let last_heartbeat_at = Some(held.last_heartbeat_at);
                Settlement {
                    shown: held.lease.shown(),
                    spec: held.spec,
                    ending,
                    next,
                    standing,
                    last_heartbeat_at,
                    verdict: None,
                }
            })
            .collect();
        if settlements.is_empty() {
            continue;
        }
        tracing::warn!(leases = settlements.len(), "leases that nobody performed are released");
        life.call_in(Turn::Sweep, life.core.store.settle(settlements)).await?;
        life.core.store.wake();
        life.freed.notify_one();
    }
    Ok(())
}

/// Forgets what is older than its retention. Each step by itself: one that fails keeps none of the others.
async fn forget(life: &Life) -> Result<(), StoreError> {
    let settings = &life.core.settings;
    let store = &life.core.store;
    let runs = async {
        while life.call_in(Turn::Sweep, store.forget_runs(settings.keep_finished, FORGET_BATCH)).await? == FORGET_BATCH
        {
        }
        Ok(())
    };
    let verdicts = async {
        while life.call_in(Turn::Sweep, store.forget_verdicts(settings.keep_verdicts, FORGET_BATCH)).await?
            == FORGET_BATCH
        {}
        Ok(())
    };
    let runs: Result<(), StoreError> = runs.await;
    let verdicts: Result<(), StoreError> = verdicts.await;
    let replicas = life.call_in(Turn::Sweep, store.forget_replicas(settings.retention)).await;
    runs.and(verdicts).and(replicas.map(|_| ()))
}
