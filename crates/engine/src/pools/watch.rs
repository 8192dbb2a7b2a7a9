//! Watches over the workers of a pool: pings them, looks at their processes, and judges those that are silent.

use super::link::ToWorker;
use super::pool::Pool;
use super::worker::{Phase, Worker};
use super::{end, telemetry};
use crate::engine::Core;
use crate::env::within;
use everbeat_model::time::format_duration;
use everbeat_model::worker::{Class, Sentence, Silence};
use everbeat_model::{BootInstant, Hole, Reason};
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

/// A watcher that comes this much too late was away itself.
const LATE: Duration = Duration::from_millis(500);
/// So many workers are pinged in smaller parts.
const MANY: usize = 64;
/// How many may be judged at once before the watcher doubts itself.
const MOST_AT_ONCE: usize = 3;

/// The loop of one pool, for as long as the process lives.
pub(super) async fn run(core: Arc<Core>, pool: Arc<Pool>) {
    let mut look_at = core.env.boot();
    let mut doubted = None;
    loop {
        if pool.workers().is_empty() {
            pool.appeared.notified().await;
            continue;
        }
        let due = core.env.boot() + turn(&pool);
        core.env.sleep_until(due).await;
        if was_late(&core, &pool, due) {
            continue;
        }
        let workers = pool.workers();
        let begun = core.env.boot();
        if begun >= look_at {
            look_at = begun + pool.settings.check_interval;
            look(&core, &pool, &workers).await;
        }
        // It may also have been away in the middle of its turn.
        if was_late(&core, &pool, begun) {
            continue;
        }
        let now = core.env.boot();
        workers.iter().for_each(|worker| ping(&core, &pool, worker, now));
        judge(&core, &pool, &workers, now, &mut doubted);
    }
}

/// How long the watcher rests. Where there are many workers it turns more often, with fewer pings at a time.
fn turn(pool: &Pool) -> Duration {
    let turns = if pool.workers().len() > MANY { 16 } else { 4 };
    (pool.settings.ping_interval / turns).min(pool.settings.check_interval).max(Duration::from_millis(1))
}

/// Whether the watcher was away itself. Then whoever waits in the inbox is heard first, and nobody is judged for what
/// was not looked at.
fn was_late(core: &Core, pool: &Pool, due: BootInstant) -> bool {
    let now = core.env.boot();
    let lag = now.since(due);
    if lag <= LATE.min(pool.settings.ping_timeout / 2) || core.settings.hole.is(Hole::StalledWatcher) {
        return false;
    }
    let lag_ms = lag.as_millis() as u64;
    tracing::debug!(pool = pool.settings.name, lag_ms, "the watcher of a pool was late");
    pool.workers().iter().for_each(|worker| worker.state().excuse(lag, now));
    true
}

/// Looks at the processes of those that are silent, and at the memory of all. What does not answer in time is not seen.
async fn look(core: &Arc<Core>, pool: &Arc<Pool>, workers: &[Arc<Worker>]) {
    let longest = LATE.min(pool.settings.ping_interval) / 2;
    let looks = workers.iter().filter_map(|worker| {
        let process = worker.process.as_ref()?;
        Some(async move { (worker, within(&*core.env, longest, process.look()).await.flatten()) })
    });
    for (worker, look) in join_all(looks).await {
        let Some(look) = look else { continue };
        let mut state = worker.state();
        if state.phase == Phase::Dead {
            continue;
        }
        let now = core.env.boot();
        let silent = now.since(state.pulse.heard) > pool.settings.ping_interval;
        if silent {
            state.pulse.looked(look, now);
        } else {
            state.pulse.resident_bytes = look.resident_bytes;
        }
        drop(state);
        if let Some(most) = pool.settings.max_memory.filter(|most| look.resident_bytes > *most) {
            let message = format!("it takes {} bytes, more than max_memory ({most})", look.resident_bytes);
            end::sentence(core, pool, worker, Reason::WorkerOutOfMemory, Class::Alive, message);
        }
    }
}

/// Pings a worker if that is due, and tells it until when its work is vouched for.
pub(super) fn ping(core: &Core, pool: &Pool, worker: &Worker, now: BootInstant) {
    if pool.speaks_lines() {
        return;
    }
    let vouched_until = core.life().map_or(now, |life| life.vouched_until());
    let mut state = worker.state();
    // Without heartbeats there is one ping all the same: its answer shows that the welcome has arrived. And whoever
    // performs what it must end by itself when nobody vouches for it is told so again and again.
    if !pool.settings.heartbeat && state.keys.is_confirmed() && !state.needs_vouching() {
        return;
    }
    let Some((to, epoch)) = state.line.as_ref().map(|line| (line.to.clone(), line.epoch)) else { return };
    let Some(sequence) = state.pulse.ping(now) else { return };
    if to.try_send(ToWorker::Ping { sequence, epoch, vouched: vouched_until.since(now) }).is_ok() {
        state.pulse.pinged();
        state.vouched_until = state.vouched_until.max(vouched_until);
        drop(state);
        telemetry::ping_sent(pool, worker);
    }
}

/// Judges whoever has been silent for too long. Where many would die at once, the watcher gives one more timeout.
fn judge(
    core: &Arc<Core>,
    pool: &Arc<Pool>,
    workers: &[Arc<Worker>],
    now: BootInstant,
    doubted: &mut Option<BootInstant>,
) {
    let mut condemned = Vec::new();
    let mut serving = 0;
    for worker in workers {
        let mut state = worker.state();
        match state.phase {
            Phase::Dead => continue,
            Phase::Starting => {
                let waited = now.since(state.awaited_since);
                if waited >= pool.settings.startup_grace && state.sentence.is_none() {
                    drop(state);
                    let grace = format_duration(pool.settings.startup_grace);
                    let message = format!("it did not say hello within {grace}");
                    end::sentence(core, pool, worker, Reason::WorkerNotReady, Class::Starting, message);
                }
                continue;
            }
            Phase::Draining if pool.remote && state.line.is_none() && state.running() == 0 => {
                // It had said that it goes, has nothing left to do, and is gone.
                drop(state);
                end::lost(core, pool, worker, Class::Dead);
                continue;
            }
            Phase::Serving | Phase::Draining => serving += 1,
        }
        if state.sentence.is_some() || state.pulse.held_up > 0 || pool.speaks_lines() {
            // It is judged, it waits for this server, or nothing was asked of it.
            continue;
        }
        if !pool.settings.heartbeat && state.line.is_some() {
            continue;
        }
        let cut = state.cut_for(now);
        if cut.is_none() {
            telemetry::missed(state.pulse.newly_missed(now));
        }
        let silence = match cut {
            // Nobody could ping it; what its process does counts all the same.
            Some(lasted) => Silence { lasted, missed: u32::MAX, transport: false, ..state.pulse.silence(now) },
            None => state.pulse.silence(now),
        };
        let (patience, cut) = (*state.pulse.patience(), cut.is_some());
        let class = silence.class(&patience, state.pulse.suspicion());
        let judged = silence.judged(&patience);
        let shown = if cut && matches!(class, Class::Alive | Class::Suspect) { Class::CutOff } else { class };
        let was = std::mem::replace(&mut state.pulse.class, shown);
        if judged && !matches!(was, Class::Busy | Class::Starved | Class::Stopped | Class::Hung) {
            state.pulse.timeouts += 1;
            telemetry::timeout(pool, worker, silence.missed, silence.lasted);
        }
        // Without a link for so long, it has ended itself or should have, whatever it computes. One that was never heard
        // may not have got its welcome, and knows no such time: like one that has a link, it is judged by what it does.
        let overdue = cut && !state.keys.unheard() && silence.lasted >= patience.worker_ttl.max(patience.ping_timeout);
        let ends = overdue || silence.sentence(class, &patience) == Sentence::End;
        if ends && state.sentence.is_none() {
            drop(state);
            condemned.push((worker, shown, silence.lasted, cut));
        }
    }
    if condemned.is_empty() || !pool.settings.dependent {
        return;
    }
    let many = condemned.len() >= MOST_AT_ONCE && condemned.len() * 10 > serving * 3;
    if many && doubted.is_none_or(|at| now.since(at) > pool.settings.ping_timeout * 3) {
        tracing::warn!(
            pool = pool.settings.name,
            silent = condemned.len(),
            serving,
            "so many workers are silent at once that this server doubts itself: it gives them one more timeout"
        );
        *doubted = Some(now);
        condemned.iter().for_each(|(worker, ..)| worker.state().reprieve(now));
        return;
    }
    for (worker, class, silent, cut) in condemned {
        let silent = format_duration(Duration::from_millis(silent.as_millis() as u64));
        let (reason, message) = match class {
            Class::Stopped => {
                (Reason::WorkerStopped, format!("it was stopped by a signal, and is silent for {silent}"))
            }
            _ if worker.process.is_none() => {
                (Reason::WorkerCutOff, format!("it is elsewhere, and was not heard for {silent}"))
            }
            _ if cut => (Reason::WorkerHung, format!("its link is cut, and it did not return for {silent}")),
            _ => (Reason::WorkerHung, format!("it does not answer for {silent}, and does nothing")),
        };
        end::sentence(core, pool, worker, reason, class, message);
    }
}
