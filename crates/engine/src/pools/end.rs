//! How a worker is brought to its end: drained, or ended for a fault.

use super::guardian::{WorkerProcess, WorkerSignal};
use super::keep;
use super::link::ToWorker;
use super::pool::Pool;
use super::worker::{Going, Phase, Sentenced, Worker};
use crate::engine::Core;
use crate::env::within;
use everbeat_model::worker::Class;
use everbeat_model::{Hole, Reason};
use futures_util::FutureExt;
use std::sync::Arc;
use std::time::Duration;

/// A worker that is let go may finish what it has, however long that takes.
pub(super) const NO_LIMIT: Duration = Duration::from_millis(u32::MAX as u64);
/// An idle worker that was told to go and stays is helped.
const IDLE_STAYS: Duration = Duration::from_secs(10);

/// Lets a worker finish what it has, and go. With a grace, what is unfinished then is ended.
pub(super) fn drain(core: &Arc<Core>, pool: &Arc<Pool>, worker: &Arc<Worker>, grace: Option<Duration>) {
    {
        let mut state = worker.state();
        if matches!(state.phase, Phase::Draining | Phase::Dead) {
            return;
        }
        (state.phase, state.going) = (Phase::Draining, Some(Going::Asked));
    }
    worker.changed();
    pool.sessions.changed.notify_one();
    let task = drained(core.clone(), pool.clone(), worker.clone(), grace).boxed();
    worker.own(core.env.spawn("worker drain", task));
}

async fn drained(core: Arc<Core>, pool: Arc<Pool>, worker: Arc<Worker>, grace: Option<Duration>) {
    let told = worker.tell(ToWorker::Drain { grace: grace.unwrap_or(NO_LIMIT) }).await;
    let idle = worker.until(|state| (state.running() == 0 || state.phase == Phase::Dead).then_some(()));
    match grace {
        Some(grace) => _ = within(&*core.env, grace, idle).await,
        None => idle.await,
    }
    // Whoever could not be told need not be waited for. One that has come back was told over the new link.
    let stays =
        if told || worker.epoch().is_some() { IDLE_STAYS.min(pool.settings.stop_grace) } else { Duration::ZERO };
    let Some(process) = &worker.process else {
        // A worker elsewhere goes by itself; its link is let go of.
        within(&*core.env, stays, worker.until(|state| state.line.is_none().then_some(()))).await;
        return lost(&core, &pool, &worker, Class::Dead);
    };
    helped_out(&core, &pool, &worker, process, stays).await;
}

/// Waits for an idle worker to go, and helps one that stays.
async fn helped_out(core: &Core, pool: &Pool, worker: &Worker, process: &Arc<dyn WorkerProcess>, stays: Duration) {
    if within(&*core.env, stays, worker.dead()).await.is_some() {
        return;
    }
    let _gone = process.signal(WorkerSignal::Terminate).await;
    if within(&*core.env, pool.settings.grace_period, worker.dead()).await.is_none() {
        kill(core, pool, worker).await;
    }
}

/// A worker says that it goes. If nobody asked it to and it has not served, it counts as one that crashed: others are
/// started in its place no faster than in the place of those. One that then stays is helped out.
pub(super) fn leaves(core: &Arc<Core>, pool: &Arc<Pool>, worker: &Arc<Worker>) {
    let going = {
        let mut state = worker.state();
        if state.phase != Phase::Serving {
            return;
        }
        state.phase = Phase::Draining;
        let served = state.running() > 0 || state.serves_well(worker.uptime(core.env.boot()));
        let going = if served || pool.remote { Going::ByItself } else { Going::Early };
        state.going = Some(going).filter(|_| state.sentence.is_none());
        state.going
    };
    worker.changed();
    if going == Some(Going::Early) {
        keep::crashed(core, pool, format!("{}: one said hello, and then that it goes", keep::LEAVE_EARLY));
    }
    pool.changed.notify_one();
    if worker.process.is_some() && going.is_some() {
        let task = left(core.clone(), pool.clone(), worker.clone()).boxed();
        worker.own(core.env.spawn("worker leave", task));
    }
}

async fn left(core: Arc<Core>, pool: Arc<Pool>, worker: Arc<Worker>) {
    let Some(process) = &worker.process else { return };
    worker.until(|state| (state.running() == 0 || state.phase == Phase::Dead).then_some(())).await;
    helped_out(&core, &pool, &worker, process, IDLE_STAYS.min(pool.settings.stop_grace)).await;
}

/// Ends a worker for a fault: politely, then not.
pub(super) fn sentence(
    core: &Arc<Core>,
    pool: &Arc<Pool>,
    worker: &Arc<Worker>,
    reason: Reason,
    class: Class,
    message: String,
) {
    {
        let mut state = worker.state();
        if state.sentence.is_some() || state.phase == Phase::Dead {
            return;
        }
        tracing::warn!(worker = %worker.id, pool = pool.settings.name, reason = reason.as_str(), class = class.as_str(),
            "a worker is ended: {message}");
        state.pulse.class = class;
        state.sentence = Some(Sentenced { reason, message, class, stacks: None });
    }
    worker.changed();
    pool.changed.notify_one();
    if worker.process.is_none() {
        return lost(core, pool, worker, class);
    }
    let task = carried_out(core.clone(), pool.clone(), worker.clone(), reason).boxed();
    worker.own(core.env.spawn("worker sentence", task));
}

async fn carried_out(core: Arc<Core>, pool: Arc<Pool>, worker: Arc<Worker>, reason: Reason) {
    let Some(process) = &worker.process else { return };
    // What is silent is asked where it stands before it is ended.
    if matches!(reason, Reason::WorkerHung | Reason::WorkerUnresponsive) {
        let asked = within(&*core.env, pool.settings.grace_period, process.stacks()).await.flatten();
        if let Some(sentence) = &mut worker.state().sentence {
            sentence.stacks = asked;
        }
    }
    if reason != Reason::WorkerOutOfMemory {
        if let Some(process) = process_now(&core, &pool, &worker) {
            let _gone = process.signal(WorkerSignal::Terminate).await;
        }
        if within(&*core.env, pool.settings.grace_period, worker.dead()).await.is_some() {
            return;
        }
    }
    kill(&core, &pool, &worker).await;
}

/// The process to be signalled: the very one that was started as this worker, whoever has its number by now.
fn process_now(core: &Core, pool: &Pool, worker: &Worker) -> Option<Arc<dyn WorkerProcess>> {
    if core.settings.hole.is(Hole::SignalByNumber) {
        let same = |other: &Arc<Worker>| other.pid() == worker.pid() && other.state().phase != Phase::Dead;
        return pool.workers().into_iter().find(same).and_then(|other| other.process.clone());
    }
    worker.process.clone()
}

/// Nobody survives this; if somebody does, it is told once, and tried again and again.
pub(super) async fn kill(core: &Core, pool: &Pool, worker: &Worker) {
    let Some(process) = &worker.process else { return };
    let mut told = false;
    loop {
        let signalled = process.signal(WorkerSignal::Kill).await;
        let emptied = worker.until(|state| state.emptied.then_some(()));
        if within(&*core.env, pool.settings.kill_grace, emptied).await.is_some() {
            return;
        }
        if !std::mem::replace(&mut told, true) {
            let error = signalled.err().map(|error| error.to_string());
            tracing::error!(worker = %worker.id, pool = pool.settings.name, pid = worker.pid(), error,
                "something of a worker is left although it was killed: it may be stuck in the kernel");
        }
    }
}

/// A worker elsewhere counts as gone: its epoch is over, whatever it does. Nothing of its work that must not go on
/// unwatched is left when the time is over for which it was last vouched for.
pub(super) fn lost(core: &Arc<Core>, pool: &Arc<Pool>, worker: &Arc<Worker>, class: Class) {
    let until = {
        let mut state = worker.state();
        if state.phase == Phase::Dead {
            return;
        }
        state.phase = Phase::Dead;
        state.pulse.class = class;
        state.line = None;
        state.vouched_until
    };
    worker.changed();
    let (task_core, pool, gone) = (core.clone(), pool.clone(), worker.clone());
    let forget = async move {
        task_core.env.sleep_until(until).await;
        gone.state().emptied = true;
        gone.changed();
        pool.state().workers.remove(&gone.id);
        pool.changed.notify_one();
        pool.sessions.changed.notify_one();
        // This very task is among those that it owns: let go of last.
        drop(gone.disown());
    };
    worker.own(core.env.spawn("worker epoch", forget.boxed()));
}
