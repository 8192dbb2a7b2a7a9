//! What is told of workers, pings and guardians: an event each, by groups that can be switched off, and the figures.

use super::guardian::{Containment, Emptied, GuardianReport, Swept, WorkerExit};
use super::keep::describe;
use super::pool::Pool;
use super::worker::Worker;
use everbeat_model::BootInstant;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static HEARTBEATS: AtomicBool = AtomicBool::new(true);
static PROCESSES: AtomicBool = AtomicBool::new(true);
static WATCHDOGS: AtomicBool = AtomicBool::new(true);

/// Which groups of events are told. The figures are counted all the same.
pub fn tell(heartbeats: bool, processes: bool, watchdogs: bool) {
    HEARTBEATS.store(heartbeats, Ordering::Relaxed);
    PROCESSES.store(processes, Ordering::Relaxed);
    WATCHDOGS.store(watchdogs, Ordering::Relaxed);
}

fn told(group: &AtomicBool) -> bool {
    group.load(Ordering::Relaxed)
}

pub(super) fn ping_sent(pool: &Pool, worker: &Worker) {
    metrics::counter!("everbeat_worker_pings_total").increment(1);
    if told(&HEARTBEATS) {
        tracing::debug!(target: "everbeat::telemetry", event = "heartbeat.ping_sent", count = 1,
            worker_id = %worker.id, worker_pid = worker.pid(), pool = pool.settings.name, "heartbeat.ping_sent");
    }
}

pub(super) fn pong_received(pool: &Pool, worker: &Worker, took: Duration) {
    metrics::counter!("everbeat_worker_pongs_total").increment(1);
    metrics::histogram!("everbeat_worker_round_trip_seconds").record(took.as_secs_f64());
    if told(&HEARTBEATS) {
        let latency_ms = took.as_secs_f64() * 1000.0;
        tracing::debug!(target: "everbeat::telemetry", event = "heartbeat.pong_received", count = 1, latency_ms,
            worker_id = %worker.id, worker_pid = worker.pid(), pool = pool.settings.name, "heartbeat.pong_received");
    }
}

pub(super) fn missed(count: u32) {
    metrics::counter!("everbeat_worker_pings_missed_total").increment(u64::from(count));
}

pub(super) fn timeout(pool: &Pool, worker: &Worker, missed: u32, silent: Duration) {
    metrics::counter!("everbeat_worker_ping_timeouts_total").increment(1);
    if told(&HEARTBEATS) {
        tracing::warn!(target: "everbeat::telemetry", event = "heartbeat.timeout", count = 1, missed_count = missed,
            worker_id = %worker.id, timeout_threshold_ms = millis(pool.settings.ping_timeout),
            silent_ms = millis(silent), pool = pool.settings.name, "heartbeat.timeout");
    }
}

pub(super) fn started(pool: &Pool, worker: &Worker) {
    metrics::counter!("everbeat_worker_starts_total").increment(1);
    if told(&PROCESSES) {
        tracing::info!(target: "everbeat::telemetry", event = "process.started", count = 1, worker_id = %worker.id,
            worker_pid = worker.pid(), server_pid = std::process::id(), pool = pool.settings.name, "process.started");
    }
}

pub(super) fn ready(pool: &Pool, worker: &Worker, took: Duration) {
    metrics::histogram!("everbeat_worker_startup_seconds").record(took.as_secs_f64());
    if told(&PROCESSES) {
        tracing::info!(target: "everbeat::telemetry", event = "process.ready", count = 1,
            startup_duration_ms = millis(took), worker_id = %worker.id, worker_pid = worker.pid(),
            pool = pool.settings.name, "process.ready");
    }
}

pub(super) fn terminated(pool: &Pool, worker: &Worker, exit: &WorkerExit, now: BootInstant) {
    let reason = worker.state().sentence.as_ref().map_or_else(|| describe(exit), |sentence| sentence.message.clone());
    metrics::counter!("everbeat_worker_exits_total", "reason" => exit_reason(worker, exit)).increment(1);
    if told(&PROCESSES) {
        tracing::info!(target: "everbeat::telemetry", event = "process.terminated", count = 1,
            uptime_ms = millis(worker.uptime(now)), worker_id = %worker.id, worker_pid = worker.pid(),
            exit_code = exit.code, exit_signal = exit.signal, reason, pool = pool.settings.name, "process.terminated");
    }
}

/// A bounded word for why a worker ended.
fn exit_reason(worker: &Worker, exit: &WorkerExit) -> &'static str {
    let state = worker.state();
    match (&state.sentence, exit) {
        (Some(sentence), _) => sentence.reason.as_str(),
        (None, exit) if exit.out_of_memory.is_likely() => "worker_out_of_memory",
        (None, WorkerExit { signal: Some(_), .. }) => "signal",
        (None, WorkerExit { code: Some(0), .. }) => "clean",
        (None, WorkerExit { code: Some(_), .. }) => "nonzero",
        (None, _) => "unknown",
    }
}

pub(super) fn cleaned(pool: &Pool, worker: &Worker, emptied: &Emptied) {
    metrics::histogram!("everbeat_worker_cleanup_seconds").record(emptied.took.as_secs_f64());
    if told(&PROCESSES) {
        tracing::info!(target: "everbeat::telemetry", event = "process.cleanup_completed", count = 1,
            cleanup_duration_ms = millis(emptied.took), worker_id = %worker.id, cleanup_method = emptied.how,
            killed = emptied.killed, success = true, pool = pool.settings.name, "process.cleanup_completed");
    }
}

pub(super) fn watchdog_started(pool: &Pool, containment: Containment) {
    if told(&WATCHDOGS) {
        tracing::info!(target: "everbeat::telemetry", event = "watchdog.started", count = 1,
            pool = pool.settings.name, containment = containment.as_str(), server_pid = std::process::id(),
            "watchdog.started");
    }
}

/// What guardians saw after their servers had died, told by the server that came after.
pub(super) fn swept(swept: &Swept) {
    metrics::counter!("everbeat_worker_orphans_total").increment(swept.orphans as u64);
    if swept.orphans > 0 {
        tracing::warn!(
            orphans = swept.orphans,
            took_ms = millis(swept.took),
            "processes that an earlier server had left were ended"
        );
    }
    for report in &swept.reports {
        let GuardianReport { event, pool, at, detail } = report;
        if event == "server_death_detected" {
            metrics::counter!("everbeat_watchdog_activations_total").increment(1);
        }
        if told(&WATCHDOGS) {
            tracing::warn!(target: "everbeat::telemetry", event = format!("watchdog.{event}"), count = 1, pool, at,
                %detail, "watchdog.{event}");
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
