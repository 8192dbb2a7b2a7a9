//! Takes ready runs for free slots, and starts them.

use crate::env::within;
use crate::life::{Life, Phase, Turn};
use crate::sweep;
use everbeat_model::run::{COMMAND, Claimed, lane_on};
use everbeat_model::{BootInstant, Hole};
use everbeat_store::Claim;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// One claim takes no more: a batch is large enough to be cheap and small enough to be quick.
const BATCH: usize = 1000;

/// Jobs have slots of their own, and so a loop of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Tasks,
    Jobs,
}

impl Lane {
    fn turn(self) -> Turn {
        match self {
            Lane::Tasks => Turn::Claim,
            Lane::Jobs => Turn::ClaimJobs,
        }
    }

    fn freed(self, life: &Life) -> &Notify {
        match self {
            Lane::Tasks => &life.freed,
            Lane::Jobs => &life.freed_jobs,
        }
    }
}

pub(crate) async fn run(life: Arc<Life>, lane: Lane) {
    let core = life.core.clone();
    let mut wakes = core.store.wakes();
    let mut rates = Rates::new(&life);
    loop {
        life.turned(lane.turn());
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        if lane == Lane::Jobs && life.phase() == Phase::Active {
            core.jobs.shortages.look(&life).await;
        }
        let asked = request(&life, lane, &mut rates);
        let full = match asked {
            Some(asked) => {
                let limit = asked.limit;
                life.claim_begins(lane);
                let sent = core.env.boot();
                let answer = life.call_in(lane.turn(), core.store.claim(asked)).await;
                let full = match answer {
                    Ok(_) if core.env.boot().since(sent) > core.settings.call_limit() => {
                        // This replica was away while the answer waited; others may hold these runs by
                        // now. Reconciliation releases those that it still holds.
                        tracing::debug!("a claim's answer came too late");
                        false
                    }
                    Ok(claimed) if life.phase() != Phase::Active => {
                        // It began to drain meanwhile: these start elsewhere, at no cost.
                        let runs = claimed.iter().map(|claimed| claimed.lease.run_id).collect();
                        if let Err(error) = sweep::release(&life, runs, true).await {
                            tracing::warn!(%error, "claimed runs could not be released");
                        }
                        false
                    }
                    Ok(claimed) => {
                        metrics::counter!("everbeat_runs_claimed_total").increment(claimed.len() as u64);
                        measure(&life, &claimed);
                        let full = claimed.len() == limit;
                        for claimed in claimed {
                            rates.spend(&claimed.spec.queue);
                            life.perform(claimed);
                        }
                        full
                    }
                    Err(error) => {
                        // What it may have granted all the same, reconciliation finds.
                        tracing::debug!(%error, "claim failed");
                        core.env.sleep(CLAIM_PAUSE).await;
                        false
                    }
                };
                life.claim_ends(lane);
                full
            }
            None => false,
        };
        if full {
            continue;
        }
        if lane == Lane::Jobs {
            // Hints come in floods, and hardly one of them is about a job.
            core.env.sleep(JOBS_PAUSE).await;
        }
        if core.settings.hole == Some(Hole::WakeIsTruth) {
            // It turns all the while: only looking for work hangs on the hint.
            while within(&*core.env, core.settings.idle_limit(), wakes.wait()).await.is_none() {
                life.turned(lane.turn());
            }
            continue;
        }
        let look_again = core.env.sleep(core.settings.idle_limit());
        tokio::select! {
            biased;
            () = lane.freed(&life).notified() => {}
            () = wakes.wait() => {}
            () = look_again => {}
        }
    }
}

/// After a failed claim, so that a store that refuses at once is not asked without end.
const CLAIM_PAUSE: Duration = Duration::from_millis(50);
const JOBS_PAUSE: Duration = Duration::from_millis(10);

/// What to ask for now; nothing while draining, cut off, or full.
fn request(life: &Life, lane: Lane, rates: &mut Rates) -> Option<Claim> {
    let core = &life.core;
    if life.phase() != Phase::Active || !life.pulse().connected() {
        return None;
    }
    let settings = &core.settings;
    let table = life.table();
    let limit = match lane {
        Lane::Tasks => settings.slots.saturating_sub(table.taken() + core.former_slots()),
        // What an earlier replica left comes first.
        Lane::Jobs if core.shims.is_none() || !core.jobs.recovered() => 0,
        Lane::Jobs => {
            let free = settings.jobs.slots.saturating_sub(table.jobs_taken());
            free.min(core.jobs.shortages.allowance(&table))
        }
    };
    let limit = limit.min(BATCH);
    if limit == 0 {
        return None;
    }
    let names: Vec<String> = match lane {
        Lane::Tasks => core.tasks.names().into_iter().collect(),
        // Those that belong nowhere yet, and those that belong here.
        Lane::Jobs => vec![COMMAND.to_string(), lane_on(COMMAND, &settings.host)],
    };
    let tasks = names.into_iter().map(|task| {
        let name = if lane == Lane::Jobs { COMMAND } else { &task };
        let free = settings.tasks.get(name).map_or(limit, |most| most.saturating_sub(table.of_task(name)));
        (task, free)
    });
    let queues = settings.queues.iter().map(|(name, limits)| {
        let concurrency = limits.concurrency.map_or(limit, |most| most.saturating_sub(table.of_queue(name)));
        (name.clone(), concurrency.min(rates.allowance(name)))
    });
    Some(Claim { replica: life.id, limit, tasks: tasks.collect(), queues: queues.collect() })
}

/// How long these waited: from when they could first be claimed, or since they were lost.
fn measure(life: &Life, claimed: &[Claimed]) {
    let waits = metrics::histogram!("everbeat_run_wait_seconds");
    for first in claimed.iter().filter(|claimed| claimed.lease.attempt == 1) {
        waits.record(first.lease.granted_at.since(first.due_at).as_secs_f64());
    }
    let runs = claimed.iter().map(|claimed| claimed.lease.run_id);
    life.core.losses.claimed(runs, life.core.env.boot());
}

/// Token buckets of the queues that have a rate; each holds at most one second's worth.
struct Rates {
    life: Arc<Life>,
    buckets: BTreeMap<String, (f64, f64, BootInstant)>,
}

impl Rates {
    fn new(life: &Arc<Life>) -> Rates {
        let now = life.core.env.boot();
        let limited = life.core.settings.queues.iter();
        let buckets =
            limited.filter_map(|(name, limits)| limits.rate.map(|rate| (name.clone(), (rate, rate.max(1.0), now))));
        Rates { life: life.clone(), buckets: buckets.collect() }
    }

    fn allowance(&mut self, queue: &str) -> usize {
        let now = self.life.core.env.boot();
        let Some((rate, tokens, filled)) = self.buckets.get_mut(queue) else { return usize::MAX };
        *tokens = (*tokens + now.since(*filled).as_secs_f64() * *rate).min(rate.max(1.0));
        *filled = now;
        *tokens as usize
    }

    fn spend(&mut self, queue: &str) {
        if let Some((_, tokens, _)) = self.buckets.get_mut(queue) {
            *tokens -= 1.0;
        }
    }
}
