//! What clients ask for: runs of every policy, cancels and retries midway, paused queues.

use crate::Focus;
use crate::handler::Script;
use crate::machine;
use crate::rng::Rng;
use everbeat_engine::pools::PoolSettings;
use everbeat_engine::{JobSettings, Submit, SubmitJob};
use everbeat_model::job::Command;
use everbeat_model::policy::Backoff;
use everbeat_model::session::{Affinity, SHORTEST_TTL};
use everbeat_model::{Json, Policy, Session, StoreTime};
use everbeat_store::Idempotency;
use serde_json::json;
use std::time::Duration;

pub(crate) const TASKS: [&str; 2] = ["alpha", "beta"];
/// The task that workers of pools perform, and others.
pub(crate) const WORKER_TASK: &str = "gamma";
/// The task that only workers of no pool perform.
pub(crate) const REMOTE_TASK: &str = "delta";
pub(crate) const QUEUES: [&str; 3] = ["default", "other", "narrow"];
/// The queue of which each replica performs at most `NARROW` at once.
pub(crate) const NARROW_QUEUE: &str = "narrow";
pub(crate) const NARROW: usize = 1;

/// What a run's own policy is laid over.
pub(crate) fn base_policy() -> Policy {
    Policy {
        heartbeat_interval: Duration::from_millis(200),
        heartbeat_timeout: Some(Duration::from_millis(1000)),
        max_attempts: 4,
        backoff: Backoff {
            initial: Duration::from_millis(50),
            factor: 2.0,
            max: Duration::from_millis(400),
            jitter: 0.2,
        },
        cancel_grace: Duration::from_millis(200),
        ..Policy::BASELINE
    }
}

/// So long the jobs of a host without replicas wait.
pub(crate) const REATTACH_WINDOW: Duration = Duration::from_millis(1500);

/// Short, so that everything happens.
pub(crate) fn job_settings() -> JobSettings {
    JobSettings {
        slots: 4,
        heartbeat_interval: Duration::from_millis(150),
        check_interval: Duration::from_millis(500),
        stale_after: Duration::from_millis(300),
        dead_after: Duration::from_millis(900),
        reattach_window: REATTACH_WINDOW,
        stop_grace: Duration::from_millis(150),
        keep: Duration::from_secs(4),
        log_limit: 1 << 20,
    }
}

/// How many workers each pool has.
pub(crate) const POOL_SIZE: usize = 2;

/// Short, so that everything happens.
pub(crate) fn pool_settings(max_runs: Option<u64>) -> PoolSettings {
    PoolSettings {
        name: "pool".to_string(),
        command: vec!["worker".to_string()],
        size: POOL_SIZE,
        slots: crate::worker::SLOTS,
        queues: QUEUES.map(str::to_string).to_vec(),
        ping_interval: Duration::from_millis(100),
        ping_timeout: Duration::from_micros(crate::process::TIMEOUT),
        max_missed: 3,
        check_interval: Duration::from_millis(50),
        startup_grace: Duration::from_micros(crate::process::STARTUP),
        worker_ttl: Duration::from_millis(900),
        grace_period: Duration::from_micros(crate::process::GRACE),
        stop_grace: Duration::from_millis(200),
        kill_grace: Duration::from_millis(100),
        max_runs,
        session_ttl: Duration::from_millis(700),
        max_sessions: 2,
        ..PoolSettings::default()
    }
}

/// One detached command.
pub(crate) fn job(rng: &mut Rng, serial: u64, focus: Option<Focus>) -> (SubmitJob, Option<Idempotency>) {
    let kind = match focus {
        None | Some(Focus::TakeOver | Focus::Workers) => rng.below(8),
        Some(Focus::Absence) => rng.between(4, 5),
        Some(Focus::Failover) => rng.between(2, 3),
    };
    let policy = match kind {
        0 | 1 => json!({}),
        2 | 3 => json!({ "on_lost": "retry", "max_attempts": 4 }),
        4 => json!({ "on_lost": "retry", "max_attempts": 4, "when_isolated": "stop" }),
        5 => json!({ "on_lost": "retry", "max_attempts": 4, "when_isolated": "stop", "cancel_grace": "3s" }),
        6 => json!({ "on_lost": "retry", "max_attempts": 3, "deadline": "600ms" }),
        _ => json!({ "stall_timeout": "800ms", "cancel_grace": "400ms", "max_attempts": 2 }),
    };
    // What must stop when it is isolated should live long enough to be; what fails at once is tried again soon.
    let stops = policy.get("when_isolated").is_some();
    let length = match focus {
        None | Some(Focus::TakeOver | Focus::Workers) => rng.below(4),
        Some(Focus::Absence) => 0,
        Some(Focus::Failover) => 3,
    };
    let (shortest, longest) = match length {
        0 | 1 if stops => (3000, 9000),
        0 | 1 => (1, 6000),
        2 => (1, 1500),
        _ => (1, 150),
    };
    let script = machine::Script {
        runs_ms: rng.between(shortest, longest),
        code: match longest {
            // Long ones in a narrow queue, each tried again and again, would take longer than a test may.
            9000 => 0,
            150 => *rng.pick(&[0, 1, 7]),
            _ => *rng.pick(&[0, 0, 0, 1, 7]),
        },
        stops_ms: rng.chance(0.7).then(|| rng.between(1, 250)),
        missing: rng.chance(0.03),
        progresses: rng.chance(0.4),
    };
    let command = vec!["work".to_string(), Json::of(&script).as_str().to_string()];
    let submit = SubmitJob {
        queue: rng.pick(&QUEUES).to_string(),
        policy: Some(policy),
        unique_key: rng.chance(0.1).then(|| format!("job {}", serial % 3)),
        ..SubmitJob::new(Command { command, ..Command::default() })
    };
    let idempotency =
        rng.chance(0.3).then(|| Idempotency { key: format!("job {serial}"), fingerprint: format!("job {serial}") });
    (submit, idempotency)
}

/// One submission. `serial` makes keys that sometimes repeat.
pub(crate) fn submission(rng: &mut Rng, serial: u64, store_now: StoreTime) -> (Submit, Option<Idempotency>) {
    let (policy, mut script) = flavour(rng);
    if rng.chance(0.15) {
        script.fails_until = rng.between(1, 6) as u32;
    }
    if rng.chance(0.07) {
        script.panics_until = rng.between(1, 2) as u32;
    }
    script.fails_for_good = rng.chance(0.05);
    script.checkpoints |= rng.chance(0.3);
    script.streams = if rng.chance(0.3) { rng.between(1, 4) } else { 0 };
    script.stops = policy.get("when_isolated").is_some();
    let submit = Submit {
        queue: rng.pick(&QUEUES).to_string(),
        priority: rng.below(5) as i16 - 2,
        run_at: rng.chance(0.15).then(|| store_now.plus(Duration::from_millis(rng.between(10, 1500)))),
        unique_key: rng.chance(0.15).then(|| format!("unique {}", serial % 3)),
        policy: Some(policy),
        ..Submit::new(*rng.pick(&TASKS), Json::of(&script))
    };
    // The same key goes with the same request only: a repetition of another one is refused.
    let idempotency =
        rng.chance(0.3).then(|| Idempotency { key: format!("key {serial}"), fingerprint: format!("{serial}") });
    (submit, idempotency)
}

/// The session of a run: one of a few, so that runs meet in them.
pub(crate) fn session(rng: &mut Rng) -> Session {
    let affinity = if rng.chance(0.7) { Affinity::Strict } else { Affinity::Hint };
    let ttl = rng.chance(0.3).then_some(SHORTEST_TTL);
    Session { key: format!("session {}", rng.below(3)), affinity, ttl }
}

fn flavour(rng: &mut Rng) -> (serde_json::Value, Script) {
    let mut script = Script { steps_ms: steps(rng, 600), ..Script::default() };
    let policy = match rng.below(10) {
        0 => json!({ "on_lost": "fail" }),
        1 | 2 => json!({ "when_isolated": "stop" }),
        3 => {
            script.steps_ms = steps(rng, 2500);
            script.stubborn = rng.chance(0.3);
            json!({ "deadline": "900ms", "max_attempts": 2 })
        }
        4 => {
            script.progresses = rng.chance(0.7);
            script.stall_ms = Some(700);
            script.steps_ms = steps(rng, 1000);
            json!({ "stall_timeout": "700ms", "max_attempts": 3 })
        }
        5 => {
            script.beats = true;
            script.promises_ms = rng.chance(0.5).then_some(1500);
            script.timeout_ms = Some(600);
            script.steps_ms = steps(rng, 900);
            json!({ "heartbeat": "manual", "heartbeat_timeout": "600ms", "heartbeat_interval": "200ms" })
        }
        6 => {
            script.steps_ms = steps(rng, 1200);
            script.stubborn = rng.chance(0.3);
            json!({ "when_isolated": "stop", "deadline": "700ms", "max_attempts": 3 })
        }
        7 => {
            script.steps_ms = vec![rng.between(1500, 4000)];
            json!({})
        }
        8 => json!({ "heartbeat_timeout": "off", "max_attempts": 2 }),
        _ => json!({}),
    };
    (policy, script)
}

fn steps(rng: &mut Rng, longest_ms: u64) -> Vec<u64> {
    (0..rng.between(1, 3)).map(|_| rng.between(1, longest_ms)).collect()
}
