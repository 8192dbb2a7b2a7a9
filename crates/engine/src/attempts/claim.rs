//! Takes ready runs for the free slots of one performer, and has them performed.

use super::limits::Entered;
use super::performer::Offer;
use super::work::Work;
use crate::env::within;
use crate::replica::{Life, Phase, Turn, reconcile};
use everbeat_model::Hole;
use everbeat_model::run::Claimed;
use everbeat_store::{Claim, Error as StoreError};
use std::sync::Arc;
use std::time::Duration;

/// One claim takes no more: a batch is large enough to be cheap and small enough to be quick.
const BATCH: usize = 1000;
/// After a failed claim, so that a store that refuses at once is not asked without end.
const CLAIM_PAUSE: Duration = Duration::from_millis(50);

/// The loop of one performer of this replica.
pub(crate) async fn run(life: Arc<Life>, crew: usize) {
    let core = life.core.clone();
    let mut wakes = core.store.wakes();
    let (turn, post) = (Turn::Claim(crew), life.post(crew));
    loop {
        life.turned(turn);
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        let offer = life.crew(crew).performer.offer(&post).await;
        let full = match within(&*core.env, core.settings.idle_limit(), life.limits.enter()).await {
            Some(mut limits) => match request(&life, crew, &offer, &mut limits) {
                Some(claim) => take(&life, crew, claim, &mut limits).await,
                None => false,
            },
            // The claim of another performer takes long.
            None => false,
        };
        if full {
            continue;
        }
        if !offer.pause.is_zero() {
            core.env.sleep(offer.pause).await;
        }
        if core.settings.hole.is(Hole::WakeIsTruth) {
            // The loop turns all the while: only looking for work hangs on the hint.
            while within(&*core.env, core.settings.idle_limit(), wakes.wait()).await.is_none() {
                life.turned(turn);
            }
            continue;
        }
        let look_again = core.env.sleep(core.settings.idle_limit());
        tokio::select! {
            biased;
            () = life.crew(crew).freed.notified() => {}
            () = wakes.wait() => {}
            () = look_again => {}
        }
    }
}

/// What to ask for now; nothing while draining, cut off, or full.
fn request(life: &Life, crew: usize, offer: &Offer, limits: &mut Entered<'_>) -> Option<Claim> {
    let core = &life.core;
    if life.phase() != Phase::Active || !life.pulse().connected() {
        return None;
    }
    let settings = &core.settings;
    let table = life.table();
    let slots = life.crew(crew).performer.capacity().slots;
    let former = core.former();
    let still = |counts: &dyn Fn(&Work) -> bool| former.iter().filter(|work| counts(work)).count();
    let free = slots.saturating_sub(table.taken(crew) + still(&|work| work.crew == crew));
    let limit = free.min(offer.most).min(BATCH);
    if limit == 0 {
        return None;
    }
    let tasks = offer.lines.iter().map(|line| {
        let taken = || table.of_task(&line.task) + still(&|work| work.spec().task == line.task);
        let most = settings.tasks.get(&line.task).map_or(limit, |most| most.saturating_sub(taken()));
        (line.name.clone(), most.min(line.most))
    });
    let now = core.env.boot();
    let queues = settings.queues.iter().map(|(name, queue)| {
        let taken = || table.of_queue(name) + still(&|work| work.spec().queue == *name);
        let concurrency = queue.concurrency.map_or(limit, |most| most.saturating_sub(taken()));
        (name.clone(), concurrency.min(limits.allowance(name, now)))
    });
    Some(Claim {
        replica: life.id,
        limit,
        tasks: tasks.collect(),
        queues: queues.collect(),
        among: offer.queues.clone(),
    })
}

/// Claims, and has performed what was granted. Answers whether there may be more.
async fn take(life: &Arc<Life>, crew: usize, claim: Claim, limits: &mut Entered<'_>) -> bool {
    let core = &life.core;
    let limit = claim.limit;
    life.crew(crew).claim_begins();
    let sent = core.env.boot();
    let answer = life.call_in(Turn::Claim(crew), core.store.claim(claim)).await;
    let late = core.env.boot().since(sent) > core.settings.call_limit();
    let full = granted(life, crew, answer, late, limits).await == Some(limit);
    life.crew(crew).claim_ends();
    full
}

/// How many of those that were granted are performed.
async fn granted(
    life: &Arc<Life>,
    crew: usize,
    answer: Result<Vec<Claimed>, StoreError>,
    late: bool,
    limits: &mut Entered<'_>,
) -> Option<usize> {
    match answer {
        Ok(_) if late => {
            // This replica was away while the answer waited; others may hold these runs by now.
            // Reconciliation releases the leases that this replica still holds.
            tracing::debug!("a claim's answer came too late");
            None
        }
        Ok(claimed) if life.phase() != Phase::Active => {
            // The replica began to drain meanwhile: the claimed runs start elsewhere, at no cost.
            let runs = claimed.iter().map(|claimed| claimed.lease.run_id).collect();
            if let Err(error) = reconcile::release_unbegun(life, runs).await {
                tracing::warn!(%error, "claimed runs could not be released");
            }
            None
        }
        Ok(claimed) => {
            metrics::counter!("everbeat_runs_claimed_total").increment(claimed.len() as u64);
            measure(life, &claimed);
            let count = claimed.len();
            for claimed in claimed {
                limits.spend(&claimed.spec.queue);
                life.perform(crew, claimed);
            }
            Some(count)
        }
        Err(error) => {
            // Reconciliation finds what the failed claim may have granted all the same.
            tracing::debug!(%error, "claim failed");
            life.core.env.sleep(CLAIM_PAUSE).await;
            None
        }
    }
}

/// Measures how long claimed runs waited: from when each could first be claimed, or since it was lost.
fn measure(life: &Life, claimed: &[Claimed]) {
    let waits = metrics::histogram!("everbeat_run_wait_seconds");
    for first in claimed.iter().filter(|claimed| claimed.lease.attempt == 1) {
        waits.record(first.lease.granted_at.since(first.due_at).as_secs_f64());
    }
    let runs = claimed.iter().map(|claimed| claimed.lease.run_id);
    life.core.losses.claimed(runs, life.core.env.boot());
}
