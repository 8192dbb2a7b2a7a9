//! The watch over the other replicas. Whoever is not freshly renewed may not judge.

use super::{Life, Phase, renew};
use crate::engine::lock;
use crate::figures::{self, Watched};
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::watch::{Look, Silent};
use everbeat_model::{Hole, Json, Reason, Replica, Verdict, VerdictId};
use std::sync::Arc;

/// Watches the others, apart from renewal: neither a slow reading nor a burial may delay the own beat.
pub(super) async fn run(life: Arc<Life>) {
    loop {
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        observe(&life).await;
        life.core.env.sleep(life.core.env.jittered(renew::pace(&life))).await;
    }
}

/// Looks at the other replicas, and buries who has been silent for its whole timeout or whose kernel
/// lock is free.
pub(crate) async fn observe(life: &Life) {
    let core = &life.core;
    let sent = core.env.boot();
    let replicas = match life.call(core.store.observe()).await {
        Ok(replicas) => replicas,
        Err(error) => {
            tracing::debug!(%error, "cannot observe the other replicas");
            lock(&life.watch).failed();
            return;
        }
    };
    let pulse = life.pulse().clone();
    let proven: Vec<&Replica> =
        replicas.iter().filter(|replica| replica.id != life.id && proven_dead(life, replica)).collect();
    for replica in &proven {
        bury(life, replica, None, Reason::LockReleased, lock_evidence(life, replica)).await;
    }
    let look = Look {
        sent,
        received: core.env.boot(),
        renewed: pulse.renewed,
        wall: core.env.wall(),
        me: life.id,
        replicas: &replicas,
    };
    let (silent, refuted) = {
        let mut watch = lock(&life.watch);
        (watch.look(&look), watch.take_refuted())
    };
    figures::refuted(Watched::Replica, refuted);
    let may_judge = pulse.connected() || core.settings.hole.is(Hole::UnrenewedJudge);
    for silent in silent.into_iter().filter(|_| may_judge) {
        if let Some(replica) = replicas.iter().find(|replica| replica.id == silent.id) {
            bury(life, replica, Some(silent.beat), Reason::ReplicaSilent, silence_evidence(replica, &silent)).await;
        }
    }
}

/// Positive proof: the store is ours alone, or a replica of this host has let go of its kernel lock.
fn proven_dead(life: &Life, replica: &Replica) -> bool {
    let core = &life.core;
    core.store.sole()
        || (replica.host == core.settings.host
            && core.locks.as_ref().and_then(|locks| locks.released(replica.id)) == Some(true))
}

async fn bury(life: &Life, dead: &Replica, beat: Option<u64>, reason: Reason, evidence: serde_json::Value) {
    let replica = dead.id;
    match life.call(life.core.store.bury(replica, beat, verdict(life, dead, reason, &evidence))).await {
        Ok(true) => {
            tracing::warn!(dead = %replica, judged_by = %life.id, %reason, "replica is dead");
            figures::judged(Judgement::Lost, reason);
            figures::detected(Watched::Replica, life.core.now().since(dead.last_heartbeat_at));
            life.sweep_now.notify_one();
        }
        Ok(false) => tracing::debug!(%replica, "not buried: it beat again, or another was faster"),
        Err(error) => tracing::warn!(%error, %replica, "a dead replica could not be buried yet"),
    }
}

fn lock_evidence(life: &Life, replica: &Replica) -> serde_json::Value {
    serde_json::json!({
        "replica_id": replica.id,
        "host": replica.host,
        "last_heartbeat_at": replica.last_heartbeat_at,
        "beat": replica.beat,
        "proof": if life.core.store.sole() { "the store's exclusive lock is held by its successor" } else { "its kernel lock is free" },
    })
}

fn silence_evidence(replica: &Replica, silent: &Silent) -> serde_json::Value {
    serde_json::json!({
        "replica_id": replica.id,
        "host": replica.host,
        "last_heartbeat_at": silent.last_heartbeat_at,
        "beat": silent.beat,
        "silent_for_ms": silent.silent_for.as_millis() as u64,
        "heartbeat_timeout_ms": silent.timeout.as_millis() as u64,
        "doubted_first": silent.doubted,
    })
}

fn verdict(life: &Life, replica: &Replica, reason: Reason, evidence: &serde_json::Value) -> Verdict {
    Verdict {
        id: VerdictId(life.core.new_id()),
        at: life.core.now(),
        subject: Subject { kind: SubjectKind::Replica, id: replica.id.to_string() },
        judgement: Judgement::Lost,
        reason: reason.to_string(),
        evidence: Json::of(evidence),
        judged_by: life.id,
        run_id: None,
        attempt: None,
        then: "its runs are returned, each by its own policy".to_string(),
    }
}
