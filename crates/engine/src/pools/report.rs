//! A worker as its replica tells the store of it, and as another replica shows it then.

use super::view::WorkerView;
use everbeat_model::{Json, StoreTime};
use everbeat_store::{Told, WorkerRow};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::time::Duration;

/// More tasks of a worker are not told: it may offer a thousand, and all workers of a pool offer the same.
const MOST_TASKS: usize = 50;
/// Longer texts are cut: nobody checks what a worker calls itself.
const MOST_CHARS: usize = 200;

/// What is told of a worker besides its id, its pool and its state. What another version does not tell is left empty.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Report {
    class: String,
    pid: Option<u32>,
    host: String,
    sdk: String,
    tasks: Vec<String>,
    slots: usize,
    started_us: i64,
    last_pong_us: Option<i64>,
    round_trip_us: Option<u64>,
    lag_ms: Option<u64>,
    resident_bytes: u64,
    pings: u64,
    pongs: u64,
    timeouts: u64,
    running: usize,
    finished: u64,
    restarts: u64,
    last_exit: Option<String>,
    retiring: Option<String>,
    sessions: usize,
    server: Option<String>,
}

impl WorkerView {
    /// What a replica tells of its worker.
    pub(super) fn told(&self) -> Told {
        let report = Report {
            class: self.class.to_string(),
            pid: self.pid,
            host: cut(&self.host),
            sdk: cut(&self.sdk),
            tasks: self.tasks.iter().take(MOST_TASKS).cloned().collect(),
            slots: self.slots,
            started_us: self.started_at.0,
            last_pong_us: self.last_pong_at.map(|at| at.0),
            round_trip_us: self.round_trip.map(|took| whole(took.as_micros())),
            lag_ms: self.lag.map(|lag| whole(lag.as_millis())),
            resident_bytes: self.resident_bytes,
            pings: self.pings,
            pongs: self.pongs,
            timeouts: self.timeouts,
            running: self.running,
            finished: self.finished,
            restarts: self.restarts,
            last_exit: self.last_exit.as_deref().map(cut),
            retiring: self.retiring.as_ref().map(ToString::to_string),
            sessions: self.sessions,
            server: self.server.clone(),
        };
        let state = self.told_state().to_string();
        Told { id: self.id, pool: self.pool.clone(), state, report: Json::of(&report) }
    }

    /// Whether the worker performs something at that moment is not told: it would have to be told again and again.
    pub(super) fn told_state(&self) -> &str {
        if self.state == "busy" { "ready" } else { &self.state }
    }

    /// A worker of another replica, as that one told.
    pub(super) fn of_row(WorkerRow { told, replica_id, at }: WorkerRow, now: StoreTime) -> WorkerView {
        let report: Report = told.report.read().unwrap_or_default();
        let started_at = StoreTime(report.started_us);
        WorkerView {
            id: told.id,
            pool: told.pool,
            state: told.state.into(),
            class: report.class.into(),
            pid: report.pid,
            host: report.host,
            sdk: report.sdk,
            tasks: report.tasks,
            slots: report.slots,
            started_at,
            uptime: now.since(started_at),
            last_pong_at: report.last_pong_us.map(StoreTime),
            round_trip: report.round_trip_us.map(Duration::from_micros),
            lag: report.lag_ms.map(Duration::from_millis),
            resident_bytes: report.resident_bytes,
            pings: report.pings,
            pongs: report.pongs,
            timeouts: report.timeouts,
            running: report.running,
            performs: Vec::new(),
            finished: report.finished,
            restarts: report.restarts,
            last_exit: report.last_exit,
            retiring: report.retiring.map(Cow::from),
            sessions: report.sessions,
            replica_id: Some(replica_id),
            server: report.server,
            told_at: Some(at),
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MOST_CHARS).collect()
}

fn whole(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
