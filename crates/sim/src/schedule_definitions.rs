//! The schedules and flows that clients write: every overlap and catch-up policy, groups, chains and limits.

use crate::handler::Script;
use crate::rng::Rng;
use crate::workload::TASKS;
use everbeat_model::schedule::{Rhythm, Schedule, ScheduleKind};
use everbeat_model::{Invalid, Json};
use serde_json::{Map, Value, json};

/// So many names of each kind.
pub(crate) const NAMES: u64 = 4;

/// Some schedule or flow of this place. A store whose clock jumps by hours makes up for all of what it missed only where
/// that is not much.
pub(crate) fn definition(
    rng: &mut Rng,
    kind: ScheduleKind,
    place: u64,
    clock_jumps: bool,
) -> Result<Schedule, Invalid> {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| fields.insert(name.to_string(), value);
    let (overlap, catch_up) = (*rng.pick(&["skip", "queue", "allow"]), *rng.pick(&["latest", "all", "none"]));
    put("overlap", json!(overlap));
    put("catch_up", json!(catch_up));
    put("schedule", rhythm(rng, catch_up == "all" && clock_jumps, overlap == "queue"));
    let group = rng.chance(0.4);
    if group {
        put("group", json!(*rng.pick(&["one", "one", "two"])));
    }
    if rng.chance(0.35) {
        put("concurrency", json!(rng.between(1, 3)));
    }
    if rng.chance(0.35) {
        put("late_after", json!(format!("{}ms", rng.between(500, 3000))));
    }
    // Names of lower places only: nothing comes after itself.
    if place > 0 && rng.chance(0.4) {
        let after: Vec<String> = (0..rng.between(1, 2)).map(|_| name(rng.below(place))).collect();
        let twice = after.len() == 2 && after[0] == after[1];
        put("after", json!(&after[usize::from(twice)..]));
    }
    put("queue", json!(*rng.pick(&["default", "other"])));
    put("policy", json!({ "max_attempts": rng.between(1, 3) }));
    // What holds back others must not take long.
    let script = script(rng, if group || overlap == "queue" { 250 } else { 1500 });
    let task = *rng.pick(&TASKS);
    match (kind, script) {
        (ScheduleKind::Flow, Value::Object(mut configuration)) => {
            configuration.insert("task".to_string(), json!(task));
            put("configuration", Value::Object(configuration));
        }
        (_, input) => {
            put("task", json!(task));
            put("input", input);
        }
    }
    Schedule::parse(kind, &name(place), &Value::Object(fields))
}

pub(crate) fn name(place: u64) -> String {
    format!("place-{place}")
}

fn rhythm(rng: &mut Rng, seldom: bool, queues: bool) -> Value {
    let shortest = if queues { 2 } else { 1 };
    match rng.below(10) {
        0 | 1 => Value::Null,
        _ if seldom => json!({ "every": format!("{}s", rng.between(600, 1800)) }),
        2 => json!({ "every": format!("{}s", rng.between(30, 120)) }),
        3 | 4 => json!({ "cron": format!("*/{} * * * * *", *rng.pick(&[2, 3, 4])) }),
        _ => json!({ "every": format!("{}ms", rng.between(shortest * 1000, 4000)) }),
    }
}

/// How far apart the due times of a rhythm are, in microseconds, found without its own arithmetic.
pub(crate) fn apart(rhythm: &Rhythm) -> Option<i64> {
    match rhythm {
        Rhythm::Every(span) => i64::try_from(span.as_micros()).ok(),
        Rhythm::Cron(_) => {
            let expression = rhythm.to_json()["cron"].as_str()?.to_string();
            let seconds = expression.strip_prefix("*/")?.strip_suffix(" * * * * *")?.parse::<i64>().ok()?;
            Some(seconds * 1_000_000)
        }
    }
}

fn script(rng: &mut Rng, longest_ms: u64) -> Value {
    let fails = rng.below(8);
    let script = Script {
        steps_ms: (0..rng.between(1, 2)).map(|_| rng.between(1, longest_ms)).collect(),
        checkpoints: rng.chance(0.5),
        fails_until: if fails < 2 { 1 } else { 0 },
        fails_for_good: fails == 0,
        ..Script::default()
    };
    Json::of(&script).value()
}
