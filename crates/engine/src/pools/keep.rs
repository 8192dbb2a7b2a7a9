//! Keeps a pool at its size: starts workers, replaces those that are old, and lets go those that are too many.

use super::guardian::{Guardian, OutOfMemory, SpawnError, WorkerExit, WorkerOrder, WorkerProcess};
use super::pool::{Pool, Upkeep};
use super::settings::Protocol;
use super::worker::{Going, Phase, Worker};
use super::{end, lines, telemetry};
use crate::engine::Core;
use crate::env::within;
use everbeat_model::{BootInstant, Hole, Token, WorkerId};
use futures_util::FutureExt;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const GUARDIAN_PAUSE: Duration = Duration::from_secs(1);
/// Ages and sizes are looked at that often, besides being told.
const LOOK: Duration = Duration::from_secs(1);
/// The last words of a worker arrive a little after its end.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// A worker that takes more than this share of `max_memory` is replaced when its work is done.
const NEARLY_FULL: f64 = 0.9;

/// Why a worker is replaced although it is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retiring {
    Age,
    Runs,
    Memory,
    Asked,
    TooMany,
}

impl Retiring {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Retiring::Age => "max_age",
            Retiring::Runs => "max_runs",
            Retiring::Memory => "max_memory",
            Retiring::Asked => "asked",
            Retiring::TooMany => "scaled_down",
        }
    }
}

/// The loop of one pool, for as long as the process lives.
pub(super) async fn run(core: Arc<Core>, pool: Arc<Pool>) {
    if !core.settings.hole.is(Hole::SweepUnawaited) {
        core.pools.swept(&core).await;
    }
    loop {
        if pool.state().stopping {
            return;
        }
        let Some(guardian) = guardian(&core, &pool).await else {
            core.env.sleep(GUARDIAN_PAUSE).await;
            continue;
        };
        let again = turn(&core, &pool, &guardian).await;
        let look = core.env.sleep_until(again);
        tokio::select! {
            biased;
            () = guardian.gone() => {
                tracing::warn!(pool = pool.settings.name, "the guardian of the pool is gone, and its workers with it");
                pool.state().guardian = None;
            }
            () = pool.changed.notified() => {}
            () = look => {}
        }
    }
}

/// The guardian of the pool, which is started if there is none.
async fn guardian(core: &Arc<Core>, pool: &Arc<Pool>) -> Option<Arc<dyn Guardian>> {
    if let Some(guardian) = pool.state().guardian.clone() {
        return Some(guardian);
    }
    let guardians = core.pools.guardians.as_ref()?;
    match guardians.guard(&pool.settings.name, pool.settings.containment).await {
        Ok(guardian) if pool.state().stopping => {
            guardian.end().await;
            None
        }
        Ok(guardian) => {
            let mut state = pool.state();
            state.containment = Some(guardian.containment());
            state.guardian = Some(guardian.clone());
            if !state.crashes.degraded() {
                state.trouble = None;
            }
            drop(state);
            telemetry::watchdog_started(pool, guardian.containment());
            Some(guardian)
        }
        Err(error) => {
            let trouble = format!("its guardian cannot be started: {error}");
            let mut state = pool.state();
            if state.trouble.as_ref() != Some(&trouble) {
                tracing::error!(pool = pool.settings.name, %error, "the guardian of a pool cannot be started");
            }
            state.trouble = Some(trouble);
            drop(state);
            pool.introduced.notify_waiters();
            None
        }
    }
}

async fn turn(core: &Arc<Core>, pool: &Arc<Pool>, guardian: &Arc<dyn Guardian>) -> BootInstant {
    let now = core.env.boot();
    for worker in pool.workers() {
        recycle(pool, &worker, now);
        let serves = worker.state().serves_well(worker.uptime(now));
        if serves {
            recovered(pool, &worker);
        }
    }
    let Upkeep { start, drain, again } = {
        let mut state = pool.state();
        state.let_go();
        state.upkeep(now)
    };
    for worker in drain.into_iter().filter_map(|id| pool.worker(id)) {
        end::drain(core, pool, &worker, None);
    }
    for _ in 0..start {
        if pool.state().stopping || !begin(core, pool, guardian).await {
            break;
        }
    }
    let look = core.env.boot() + LOOK;
    again.map_or(look, |again| again.min(look))
}

/// Marks a worker that is too old, has done enough, or takes nearly too much.
fn recycle(pool: &Pool, worker: &Worker, now: BootInstant) {
    let settings = &pool.settings;
    let mut state = worker.state();
    if state.retiring.is_some() || state.phase != Phase::Serving {
        return;
    }
    let full = |most: u64| state.pulse.resident_bytes as f64 >= most as f64 * NEARLY_FULL;
    let why = if settings.max_age.is_some_and(|most| worker.uptime(now) >= most) {
        Some(Retiring::Age)
    } else if state.is_used_up() {
        Some(Retiring::Runs)
    } else if settings.max_memory.is_some_and(full) {
        Some(Retiring::Memory)
    } else {
        None
    };
    if let Some(why) = why {
        tracing::info!(worker = %worker.id, pool = settings.name, why = why.as_str(), "a worker is to be replaced");
        state.retiring = Some(why);
    }
}

/// Starts a worker. False: no other should be tried just now.
async fn begin(core: &Arc<Core>, pool: &Arc<Pool>, guardian: &Arc<dyn Guardian>) -> bool {
    let settings = &pool.settings;
    let id = WorkerId(core.new_id());
    let secret = format!("{:032x}{:032x}", core.env.random(), core.env.random());
    let mut env = settings.env.clone();
    if let Some(guardians) = &core.pools.guardians {
        env.insert("EVERBEAT_WORKER_SOCKET".to_string(), guardians.socket().display().to_string());
    }
    env.insert("EVERBEAT_POOL".to_string(), settings.name.clone());
    env.insert("EVERBEAT_WORKER_ID".to_string(), id.to_string());
    env.insert("EVERBEAT_SLOTS".to_string(), settings.slots.to_string());
    let order = WorkerOrder {
        worker: id,
        command: settings.command.clone(),
        env,
        cwd: settings.cwd.clone(),
        secret: secret.clone(),
        lines: settings.protocol == Protocol::Lines,
    };
    pool.state().starting = Some(secret.clone());
    let spawned = guardian.spawn(&order).await;
    let goes_on = begun(core, pool, (id, secret), spawned);
    pool.state().starting = None;
    pool.started.notify_waiters();
    goes_on
}

fn begun(
    core: &Arc<Core>,
    pool: &Arc<Pool>,
    (id, secret): (WorkerId, String),
    spawned: Result<Arc<dyn WorkerProcess>, SpawnError>,
) -> bool {
    let settings = &pool.settings;
    match spawned {
        Ok(process) => {
            let key = Token(Uuid::from_u128(core.env.random()));
            let worker = Worker::new((id, key, secret), Some(process.clone()), settings, &*core.env, core.now());
            pool.add(&worker);
            telemetry::started(pool, &worker);
            attend(core, pool, &worker, process);
            if pool.state().stopping {
                end::drain(core, pool, &worker, Some(settings.stop_grace));
            }
            true
        }
        Err(SpawnError::Gone) => false,
        Err(SpawnError::Command(error)) => {
            let program = settings.command.first().map_or("", String::as_str);
            crashed(core, pool, format!("its command {program:?} cannot be started: {error}"));
            false
        }
        Err(SpawnError::Shortage(error)) => {
            crashed(core, pool, format!("the machine cannot start a worker now: {error}"));
            false
        }
    }
}

/// Starts whoever looks after one worker: its output, its link if it speaks lines, its end.
fn attend(core: &Arc<Core>, pool: &Arc<Pool>, worker: &Arc<Worker>, process: Arc<dyn WorkerProcess>) {
    let speaks = lines::start(core, pool, worker);
    let read = read(pool.clone(), worker.clone(), process.clone(), speaks).boxed();
    worker.own(core.env.spawn("worker output", read));
    let until_its_end = until_its_end(core.clone(), pool.clone(), worker.clone(), process).boxed();
    worker.own(core.env.spawn("worker end", until_its_end));
}

/// Reads what a worker writes: into the log, or, of one that speaks lines, what it answers.
async fn read(pool: Arc<Pool>, worker: Arc<Worker>, process: Arc<dyn WorkerProcess>, speaks: Option<lines::Heard>) {
    while let Some(line) = process.line().await {
        if let Some(speaks) = speaks.as_ref().filter(|_| !line.error) {
            speaks.line(&line).await;
            continue;
        }
        let stream = if line.error { "stderr" } else { "stdout" };
        tracing::info!(target: "everbeat::worker", worker = %worker.id, pool = pool.settings.name, stream, cut = line.cut,
            "{}", line.text);
        if line.error {
            worker.spoke(line.text);
        }
    }
    worker.state().pulse.output_over = true;
    worker.changed();
}

/// Waits for the end of a worker's process, tells everybody, and sees that nothing of it is left.
async fn until_its_end(core: Arc<Core>, pool: Arc<Pool>, worker: Arc<Worker>, process: Arc<dyn WorkerProcess>) {
    let exit = process.exited().await;
    let now = core.env.boot();
    let (served, sentence, going) = {
        let mut state = worker.state();
        let going = state.going;
        // Whoever dies of its work did not crash at its start: one bad run does not hold up the others. Whoever goes by
        // itself and leaves its work undone does not die of it.
        let served = state.serves_well(worker.uptime(now)) || (state.running() > 0 && going.is_none());
        state.phase = Phase::Dead;
        state.pulse.class = everbeat_model::worker::Class::Dead;
        state.exit = Some(exit.clone());
        state.line = None;
        (served, state.sentence.as_ref().map(|sentence| sentence.message.clone()), going)
    };
    worker.changed();
    // Its attempts are told by now; what follows is for people and for the next worker.
    let spoken = worker.until(|state| state.pulse.output_over.then_some(()));
    within(&*core.env, LAST_WORDS, spoken).await;
    let how = describe(&exit);
    telemetry::terminated(&pool, &worker, &exit, now);
    {
        let mut state = pool.state();
        state.last_exit = Some(how.clone());
        state.restarts += u64::from(going != Some(Going::Asked) && !state.stopping);
    }
    // Also if this server ended it: it did not say hello, or took too much memory at once.
    let how = || format!("{}{}", sentence.unwrap_or(how), last_words(&worker));
    match going {
        Some(Going::Asked) => {}
        // It was counted when it said that it goes; by now it is known how.
        Some(Going::Early) => retold(&pool, format!("{LEAVE_EARLY}: {}", how())),
        _ if served => recovered(&pool, &worker),
        Some(Going::ByItself) => crashed(&core, &pool, format!("{LEAVE_EARLY}: {}", how())),
        None => crashed(&core, &pool, format!("its workers end before they serve: {}", how())),
    }
    pool.changed.notify_one();
    let emptied = process.emptied().await;
    telemetry::cleaned(&pool, &worker, &emptied);
    worker.state().emptied = true;
    worker.changed();
    pool.state().workers.remove(&worker.id);
    pool.changed.notify_one();
    pool.sessions.changed.notify_one();
    // This very task is among those that it owns: let go of last.
    drop(worker.disown());
}

fn last_words(worker: &Worker) -> String {
    let last = worker.state().last_lines.iter().cloned().collect::<Vec<_>>().join("\n");
    if last.is_empty() { last } else { format!("; its last words: {last}") }
}

/// More is known of a crash that was counted before, unless that is mended by now.
fn retold(pool: &Pool, trouble: String) {
    let mut state = pool.state();
    if state.trouble.is_some() {
        state.trouble = Some(trouble);
    }
}

/// What is wrong with a pool whose workers say that they go although nobody asked them to.
pub(super) const LEAVE_EARLY: &str = "its workers leave by themselves before they serve";

/// A worker ended, or said that it goes, before it had served.
pub(super) fn crashed(core: &Core, pool: &Pool, trouble: String) {
    let mut state = pool.state();
    let was = state.crashes.degraded();
    state.crashes.crashed(core.env.boot());
    let now = state.crashes.degraded();
    state.trouble = Some(trouble.clone());
    drop(state);
    pool.introduced.notify_waiters();
    match now && !was {
        true => tracing::error!(pool = pool.settings.name, "the pool is degraded: {trouble}"),
        false => tracing::warn!(pool = pool.settings.name, "a worker did not come to serve: {trouble}"),
    }
    pool.changed.notify_one();
}

/// A worker serves that was started after the last crash: whatever was wrong is mended.
fn recovered(pool: &Pool, worker: &Worker) {
    let mut state = pool.state();
    let was = state.crashes.degraded();
    if state.crashes.served(worker.started) {
        state.trouble = None;
        if was {
            tracing::info!(pool = pool.settings.name, "the pool is well again");
        }
    }
}

/// An SDK has the kernel send this real-time signal to its own process when the time is over for which somebody vouched for
/// work that must stop then, and no thread could stop the work.
const TIMER_SIGNAL: i32 = 62;

/// How a process ended, in words.
pub(super) fn describe(exit: &WorkerExit) -> String {
    let probably = |counts| {
        format!("killed, probably by the kernel for lack of memory: {counts} counted such a kill at that time")
    };
    match exit.out_of_memory {
        OutOfMemory::No => {}
        OutOfMemory::Machine => return probably("the machine"),
        OutOfMemory::SharedCgroup => return probably("the memory cgroup that the worker shares with others"),
        OutOfMemory::OwnCgroup => return "killed by the kernel for lack of memory".to_string(),
    }
    match (exit.code, exit.signal) {
        (_, Some(TIMER_SIGNAL)) => format!(
            "ended by its own timer (signal {TIMER_SIGNAL}): nobody vouched for its work any more, and the worker could not \
             stop by itself because its code held the interpreter's lock"
        ),
        (_, Some(signal)) => format!("killed by signal {signal}"),
        (Some(code), _) => format!("exited with code {code}"),
        (None, None) => "ended, and how is not known".to_string(),
    }
}
