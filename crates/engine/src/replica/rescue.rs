//! Ends the attempts of replicas that are gone, each by its run's policy.

use super::{Life, Turn};
use crate::engine::lock;
use crate::figures;
use everbeat_model::policy::WhenIsolated;
use everbeat_model::replica::ReplicaState;
use everbeat_model::settle::decide;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{Ending, Json, Outcome, Reason, ReplicaId, Settled, Settlement, Verdict, VerdictId};
use everbeat_store::{Error as StoreError, Held, VerdictFilter, Which, last_heartbeat};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

const BATCH: usize = 500;

/// Returns the leases of replicas that are dead, left or unknown, each by its run's policy.
pub(super) async fn orphans(life: &Life) -> Result<(), StoreError> {
    let mut burials = BTreeMap::new();
    loop {
        let Passed { returned, missed, waiting } = pass(life, &mut burials).await?;
        if waiting > 0 {
            tracing::debug!(waiting, "what workers of lost replicas performed is returned later");
        } else if missed == 0 {
            lock(&life.mourned).clear();
        }
        // Leases that were settled or asked to cancel meanwhile are looked at again at once only if others are returned.
        if returned == 0 || missed == 0 {
            return Ok(());
        }
    }
}

/// What became of the leases that one pass found.
#[derive(Default)]
struct Passed {
    returned: usize,
    missed: usize,
    waiting: usize,
}

/// Looks once at every lease of a lost replica, by run: those that must wait hold up none that come after them.
async fn pass(life: &Life, burials: &mut BTreeMap<ReplicaId, Option<Verdict>>) -> Result<Passed, StoreError> {
    let (mut passed, mut after) = (Passed::default(), None);
    loop {
        life.turned(Turn::Sweep);
        let orphans = life.call_in(Turn::Sweep, life.core.store.held(Which::Orphaned(after, BATCH))).await?;
        let Some(last) = orphans.last() else { return Ok(passed) };
        after = Some(last.lease.run_id);
        for held in &orphans {
            if let Entry::Vacant(unknown) = burials.entry(held.lease.replica_id) {
                unknown.insert(burial(life, held.lease.replica_id).await?);
            }
        }
        let (waiting, orphans): (Vec<Held>, Vec<Held>) =
            orphans.into_iter().partition(|held| may_go_on(life, held, &burials[&held.lease.replica_id]));
        passed.waiting += waiting.len();
        if orphans.is_empty() {
            continue;
        }
        let (reasons, rescues): (Vec<Reason>, Vec<Settlement>) =
            orphans.iter().map(|held| rescue(life, held, &burials[&held.lease.replica_id])).unzip();
        let answers = life.call_in(Turn::Sweep, life.core.store.settle(rescues)).await?;
        let done = answers.iter().zip(orphans.iter().zip(&reasons)).filter(|(answer, _)| **answer == Settled::Done);
        done.for_each(|(_, (held, reason))| count(life, held, *reason));
        let returned = answers.iter().filter(|answer| **answer == Settled::Done).count();
        tracing::info!(returned, found = orphans.len(), "runs of lost replicas returned");
        self::returned(life);
        passed.returned += returned;
        passed.missed += orphans.len() - returned;
    }
}

/// Counts an attempt that was judged lost for its owner, which is gone.
pub(crate) fn count(life: &Life, held: &Held, reason: Reason) {
    figures::judged(Judgement::Lost, reason);
    life.core.losses.lost(held.lease.run_id, life.core.env.boot());
    metrics::counter!("everbeat_attempts_total", "outcome" => Outcome::Lost.as_str()).increment(1);
}

/// Runs may have become ready, or have ended.
pub(crate) fn returned(life: &Life) {
    life.core.store.wake();
    life.all_freed();
    life.core.noted.notify_one();
    life.core.schedules_noted.notify_one();
}

/// The verdict on a replica, if there is one.
async fn burial(life: &Life, replica: ReplicaId) -> Result<Option<Verdict>, StoreError> {
    let filter = VerdictFilter { subject: Some(replica.to_string()), limit: 1, ..VerdictFilter::default() };
    Ok(life.call_in(Turn::Sweep, life.core.store.verdicts(filter)).await?.into_iter().next())
}

fn proven(burial: &Option<Verdict>) -> bool {
    burial.as_ref().is_some_and(|verdict| Reason::parse(&verdict.reason) == Some(Reason::LockReleased))
}

/// Whether an attempt that must not meet its successor may still go on. That its replica is gone proves nothing of a
/// worker: that one stops when it is not vouched for any more, which is within the replica's timeout from its death.
/// Whoever fell silent was watched for as long.
fn may_go_on(life: &Life, held: &Held, burial: &Option<Verdict>) -> bool {
    let gone = proven(burial) || held.owner.as_ref().is_none_or(|owner| owner.state == ReplicaState::Left);
    let apart = || life.crew_of(&held.spec).is_none_or(|crew| life.crew(crew).performer.outlives_process());
    let strict = held.spec.policy.when_isolated == WhenIsolated::Stop;
    if !gone || !strict || !apart() {
        return false;
    }
    let timeout = held.owner.as_ref().map_or(life.core.settings.heartbeat_timeout, |owner| owner.heartbeat_timeout);
    let now = life.core.env.boot();
    let since = *lock(&life.mourned).entry(held.lease.replica_id).or_insert(now);
    now.since(since) < timeout
}

fn rescue(life: &Life, held: &Held, burial: &Option<Verdict>) -> (Reason, Settlement) {
    let owner = held.lease.replica_id;
    let proven = proven(burial);
    let (reason, message) = match &held.owner {
        _ if proven => (Reason::ReplicaDied, format!("replica {owner} died")),
        Some(replica) if replica.state == ReplicaState::Left => {
            (Reason::ReplicaLeft, format!("replica {owner} left without returning it"))
        }
        Some(_) => (Reason::ReplicaSilent, format!("replica {owner} fell silent and was judged dead")),
        None => (Reason::ReplicaUnknown, format!("replica {owner} is not known")),
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
    (reason, rescued(life, held, ending, reason, evidence, judge))
}

/// Ends the attempt of an owner that is gone, with what was observed of that owner.
pub(crate) fn rescued(
    life: &Life,
    held: &Held,
    ending: Ending,
    reason: Reason,
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
        worker_id: None,
        verdict: Some(verdict),
    }
}
