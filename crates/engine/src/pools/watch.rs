//! Watches over the workers of a pool: pings them, looks at their processes, and judges those that are silent.

use super::link::ToWorker;
use super::pool::Pool;
use super::worker::{Phase, Worker};
use super::{end, telemetry};
use crate::engine::Core;
use everbeat_model::time::format_duration;
use everbeat_model::worker::{Class, Sentence};
use everbeat_model::{BootInstant, Reason};
use std::sync::Arc;
use std::time::Duration;

/// A watcher that comes this much too late was away itself.
const LATE: Duration = Duration::from_millis(500);
/// How many may be judged at once before the watcher doubts itself.
const MOST_AT_ONCE: usize = 3;

/// The loop of one pool, for as long as the process lives.
pub(super) async fn run(core: Arc<Core>, pool: Arc<Pool>) {
    let turn = (pool.settings.ping_interval / 4).min(pool.settings.check_interval).max(Duration::from_millis(1));
    let mut look_at = core.env.boot();
    let mut doubted = None;
    loop {
        if pool.workers().is_empty() {
            pool.appeared.notified().await;
            continue;
        }
        let due = core.env.boot() + turn;
        core.env.sleep_until(due).await;
        let now = core.env.boot();
        let lag = now.since(due);
        if lag > LATE.min(pool.settings.ping_timeout / 2) {
            // Whoever waits in the inbox is heard first, and nobody is judged for what was not looked at.
            tracing::debug!(
                pool = pool.settings.name,
                lag_ms = lag.as_millis() as u64,
                "the watcher of a pool was late"
            );
            pool.workers().iter().for_each(|worker| worker.state().pulse.excuse(lag, now));
            continue;
        }
        let workers = pool.workers();
        if now >= look_at {
            look_at = now + pool.settings.check_interval;
            look(&core, &pool, &workers).await;
        }
        let now = core.env.boot();
        workers.iter().for_each(|worker| ping(&core, &pool, worker, now));
        judge(&core, &pool, &workers, now, &mut doubted);
    }
}

/// Looks at the processes of those that are silent, and at the memory of all.
async fn look(core: &Arc<Core>, pool: &Arc<Pool>, workers: &[Arc<Worker>]) {
    for worker in workers {
        let Some(process) = &worker.process else { continue };
        let Some(look) = process.look().await else { continue };
        let mut state = worker.state();
        if state.phase == Phase::Dead {
            continue;
        }
        let silent = core.env.boot().since(state.pulse.heard) > pool.settings.ping_interval;
        if silent {
            state.pulse.looked(look);
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

fn ping(core: &Core, pool: &Pool, worker: &Worker, now: BootInstant) {
    if !pool.settings.heartbeat || pool.speaks_lines() {
        return;
    }
    let (sequence, epoch) = {
        let mut state = worker.state();
        let Some(epoch) = state.line.as_ref().map(|line| line.epoch) else { return };
        let Some(sequence) = state.pulse.ping(now) else { return };
        (sequence, epoch)
    };
    let vouched = core.life().map_or(Duration::ZERO, |life| life.vouched_until().since(now));
    if worker.tell_now(ToWorker::Ping { sequence, epoch, vouched }) {
        telemetry::ping_sent(pool, worker);
    } else {
        // It does not even read: the ping counts as missed.
        worker.state().pulse.unsent();
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
                let waited = worker.uptime(now);
                if waited >= pool.settings.startup_grace && state.sentence.is_none() {
                    drop(state);
                    let grace = format_duration(pool.settings.startup_grace);
                    let message = format!("it did not say hello within {grace}");
                    end::sentence(core, pool, worker, Reason::WorkerNotReady, Class::Starting, message);
                }
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
        let silence = state.pulse.silence(now);
        let class = match state.line {
            Some(_) => silence.class(state.pulse.patience(), state.pulse.suspicion()),
            None if cut_for(&state, now) < pool.settings.ping_timeout => Class::CutOff,
            None => Class::Hung,
        };
        let was = std::mem::replace(&mut state.pulse.class, class);
        let judged = silence.judged(state.pulse.patience());
        if judged && !matches!(was, Class::Busy | Class::Starved | Class::Stopped | Class::Hung) {
            state.pulse.timeouts += 1;
            telemetry::timeout(pool, worker, silence.missed, silence.lasted);
        }
        let sentence = match state.line {
            Some(_) => silence.sentence(class, state.pulse.patience()),
            None if class == Class::CutOff => Sentence::Wait,
            None => Sentence::End,
        };
        if sentence == Sentence::End && state.sentence.is_none() {
            let cut = state.line.is_none();
            drop(state);
            condemned.push((worker, class, silence.lasted, cut));
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
        condemned.iter().for_each(|(worker, ..)| worker.state().pulse.reprieve(now));
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

fn cut_for(state: &super::worker::State, now: BootInstant) -> Duration {
    state.cut_since.map_or(Duration::ZERO, |since| now.since(since))
}
