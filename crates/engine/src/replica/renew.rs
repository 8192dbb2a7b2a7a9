//! The replica's own beat.

use super::{Life, Phase, Trouble};
use crate::engine::lock;
use everbeat_model::Hole;
use everbeat_model::replica::ReplicaState;
use everbeat_store::Renewal;
use futures_util::FutureExt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) async fn run(life: Arc<Life>) {
    let core = &life.core;
    if core.settings.hole.is(Hole::ClaimBeforeReplica) {
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

/// Hints come in floods; all hints of so long bring about one renewal.
const HINT_PAUSE: Duration = Duration::from_secs(1);

pub(super) fn pace(life: &Life) -> Duration {
    lock(&life.watch).pace(life.core.settings.heartbeat_interval)
}

/// Renews all leases at once. Answers the replica's state if that was acknowledged.
async fn renew(life: &Life) -> Option<ReplicaState> {
    let core = &life.core;
    if let Some(hung) = life.wedged() {
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
            life.all_freed();
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
    lock(&life.watch).failed();
}
