//! The replica's own beat, and its watch over the others.
//!
//! Whoever is not freshly renewed may not judge.

use crate::figures::{self, Watched};
use crate::life::{Life, Phase, Trouble};
use everbeat_model::replica::ReplicaState;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::watch::{Look, Silent};
use everbeat_model::{Hole, Json, Replica, Verdict, VerdictId};
use everbeat_store::Renewal;
use futures_util::FutureExt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub(crate) async fn run(life: Arc<Life>) {
    let core = &life.core;
    if core.settings.hole == Some(Hole::ClaimBeforeReplica) {
        Life::register(core, life.id).await;
    }
    let mut drain = None;
    loop {
        let sent = core.env.boot();
        let acknowledged = renew(&life).await;
        if acknowledged == Some(ReplicaState::Draining) {
            life.told_to_drain();
        }
        if life.was_told_to_drain() && drain.is_none() {
            let (life, grace) = (life.clone(), core.settings.drain_grace);
            drain = Some(core.env.spawn("drain", async move { life.drain(grace).await }.boxed()));
        }
        if life.phase() == Phase::Fenced {
            return;
        }
        let pace = pace(&life);
        // While the store is away, a fresh attempt must come well before anybody's patience ends.
        let pause = if acknowledged.is_some() { pace } else { pace.min(core.settings.heartbeat_timeout / 10) };
        let look_again = core.env.sleep(core.env.jittered(pause));
        let hinted = async {
            life.hinted.notified().await;
            core.env.sleep_until(sent + HINT_PAUSE).await;
        };
        tokio::select! {
            biased;
            () = life.renew_now.notified() => {}
            () = hinted, if acknowledged.is_some() => {}
            () = look_again => {}
        }
    }
}

/// Hints come in floods; they bring about one renewal in so long.
const HINT_PAUSE: Duration = Duration::from_secs(1);

/// Watches the others, apart from renewal: neither a slow reading nor a burial may delay the own beat.
pub(crate) async fn watch(life: Arc<Life>) {
    loop {
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        observe(&life).await;
        life.core.env.sleep(life.core.env.jittered(pace(&life))).await;
    }
}

fn pace(life: &Life) -> Duration {
    life.watch.lock().unwrap_or_else(PoisonError::into_inner).pace(life.core.settings.heartbeat_interval)
}

/// Renews all leases at once. Answers the replica's state if that was acknowledged.
async fn renew(life: &Life) -> Option<ReplicaState> {
    let core = &life.core;
    if let Some(hung) = life.wedged() {
        let hung = hung.as_str();
        tracing::error!(replica = %life.id, hung, "a loop has not turned for half a timeout: withholding the renewal");
        disconnected(life, Trouble::Withheld);
        return None;
    }
    let sent = core.env.boot();
    match life.call(core.store.renew(life.id)).await {
        Ok(Renewal::Renewed { now, state }) => {
            core.clock.set(now, core.env.boot());
            let mut pulse = life.pulse();
            if !pulse.connected() {
                tracing::info!(replica = %life.id, "renewed again");
            }
            pulse.renewed = sent;
            pulse.trouble = None;
            drop(pulse);
            life.freed.notify_one();
            Some(state)
        }
        Ok(Renewal::Fenced) => {
            life.enter(Phase::Fenced);
            None
        }
        Err(error) => {
            if life.pulse().connected() {
                tracing::warn!(replica = %life.id, %error, "cannot renew: no more claims until it can");
            }
            disconnected(life, Trouble::Store(error));
            None
        }
    }
}

fn disconnected(life: &Life, trouble: Trouble) {
    metrics::counter!("everbeat_renewal_failures_total").increment(1);
    life.pulse().trouble = Some(trouble);
    life.watch.lock().unwrap_or_else(PoisonError::into_inner).failed();
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
            life.watch.lock().unwrap_or_else(PoisonError::into_inner).failed();
            return;
        }
    };
    let pulse = life.pulse().clone();
    let proven: Vec<&Replica> =
        replicas.iter().filter(|replica| replica.id != life.id && proven_dead(life, replica)).collect();
    for replica in &proven {
        bury(life, replica, None, lock_verdict(life, replica)).await;
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
        let mut watch = life.watch.lock().unwrap_or_else(PoisonError::into_inner);
        (watch.look(&look), watch.take_refuted())
    };
    figures::refuted(Watched::Replica, refuted);
    let may_judge = pulse.connected() || core.settings.hole == Some(Hole::UnrenewedJudge);
    for silent in silent.into_iter().filter(|_| may_judge) {
        if let Some(replica) = replicas.iter().find(|replica| replica.id == silent.id) {
            bury(life, replica, Some(silent.beat), silence_verdict(life, replica, &silent)).await;
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

async fn bury(life: &Life, dead: &Replica, beat: Option<u64>, verdict: Verdict) {
    let (replica, reason) = (dead.id, verdict.reason.clone());
    match life.call(life.core.store.bury(replica, beat, verdict)).await {
        Ok(true) => {
            tracing::warn!(dead = %replica, judged_by = %life.id, %reason, "replica is dead");
            figures::judged(Judgement::Lost, &reason);
            figures::detected(Watched::Replica, life.core.now().since(dead.last_heartbeat_at));
            life.sweep_now.notify_one();
        }
        Ok(false) => tracing::debug!(%replica, "not buried: it beat again, or another was faster"),
        Err(error) => tracing::warn!(%error, %replica, "a dead replica could not be buried yet"),
    }
}

fn lock_verdict(life: &Life, replica: &Replica) -> Verdict {
    let evidence = serde_json::json!({
        "replica_id": replica.id,
        "host": replica.host,
        "last_heartbeat_at": replica.last_heartbeat_at,
        "beat": replica.beat,
        "proof": if life.core.store.sole() { "the store's exclusive lock is held by its successor" } else { "its kernel lock is free" },
    });
    verdict(life, replica, "lock_released", evidence)
}

fn silence_verdict(life: &Life, replica: &Replica, silent: &Silent) -> Verdict {
    let evidence = serde_json::json!({
        "replica_id": replica.id,
        "host": replica.host,
        "last_heartbeat_at": silent.last_heartbeat_at,
        "beat": silent.beat,
        "silent_for_ms": silent.silent_for.as_millis() as u64,
        "heartbeat_timeout_ms": silent.timeout.as_millis() as u64,
        "doubted_first": silent.doubted,
    });
    verdict(life, replica, "replica_silent", evidence)
}

fn verdict(life: &Life, replica: &Replica, reason: &str, evidence: serde_json::Value) -> Verdict {
    Verdict {
        id: VerdictId(life.core.new_id()),
        at: life.core.now(),
        subject: Subject { kind: SubjectKind::Replica, id: replica.id.to_string() },
        judgement: Judgement::Lost,
        reason: reason.to_string(),
        evidence: Json::of(&evidence),
        judged_by: life.id,
        run_id: None,
        attempt: None,
        then: "its runs are returned, each by its own policy".to_string(),
    }
}
