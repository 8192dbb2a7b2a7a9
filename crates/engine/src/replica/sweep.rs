//! Idempotent passes that take no input and find what hints and answers missed.

use super::reconcile::{self, Unperformed};
use super::{Life, Phase, Turn, rescue};
use everbeat_model::Hole;
use everbeat_store::Error as StoreError;
use std::sync::Arc;

const BATCH: usize = 500;
const FORGET_BATCH: usize = 1000;
/// The net under executions is looked at in every so many sweeps: nothing should ever be in it.
const STRANDED_EVERY: u32 = 10;

pub(crate) async fn run(life: Arc<Life>) {
    let settings = &life.core.settings;
    let mut next = life.core.env.boot();
    let mut nudged = true;
    let mut unperformed = Unperformed::new();
    loop {
        life.turned(Turn::Sweep);
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        for post in life.posts() {
            let performer = &life.crew(post.place).performer;
            if let Err(error) = performer.recover(&post).await {
                let performer = performer.name();
                tracing::debug!(%error, performer, "what was left behind on this host could not be looked at yet");
            }
        }
        let due = life.core.env.boot() >= next;
        if (due || nudged)
            && let Err(error) = sweep(&life, due, nudged, &mut unperformed).await
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
async fn sweep(life: &Arc<Life>, due: bool, nudged: bool, unperformed: &mut Unperformed) -> Result<(), StoreError> {
    let settings = &life.core.settings;
    let store = &life.core.store;
    if nudged || (due && life.call_in(Turn::Sweep, store.sweep_due("orphans", settings.sweep_interval / 2)).await?) {
        rescue::orphans(life).await?;
        life.call_in(Turn::Sweep, store.trim_events(settings.keep_events)).await?;
    }
    for post in life.posts() {
        life.crew(post.place).performer.sweep(&post, due).await?;
    }
    if !due {
        return Ok(());
    }
    life.core.offer().await;
    if !settings.hole.is(Hole::LeaseNobodyPerforms) {
        reconcile::run(life, unperformed).await?;
    }
    if life.call_in(Turn::Sweep, store.sweep_due("stranded", settings.sweep_interval * STRANDED_EVERY)).await? {
        let stranded = life.call_in(Turn::Sweep, store.note_stranded(BATCH)).await?;
        if stranded > 0 {
            tracing::warn!(stranded, "executions whose runs ended without notice are looked at");
            life.core.noted.notify_one();
        }
        let stranded = life.call_in(Turn::Sweep, store.note_stranded_schedules(BATCH)).await?;
        if stranded > 0 {
            tracing::warn!(stranded, "schedules whose runs ended without notice are looked at");
            life.core.schedules_noted.notify_one();
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

/// Forgets what is older than its retention. Each step by itself: one that fails keeps none of the others.
async fn forget(life: &Life) -> Result<(), StoreError> {
    let settings = &life.core.settings;
    let store = &life.core.store;
    let runs = async {
        while life.call_in(Turn::Sweep, store.forget_runs(settings.keep_finished, FORGET_BATCH)).await? > 0 {}
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
