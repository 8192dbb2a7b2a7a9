use super::To;
use super::find::WORKER;
use crate::args::WorkerAction;
use crate::client::escape;
use crate::exit::{self, Failure};
use crate::output::{age, fields, moment, plain, rough, state};
use comfy_table::Cell;
use serde_json::Value;
use std::time::Duration;

pub(crate) fn act(to: &To, action: WorkerAction) -> Result<u8, Failure> {
    let (id, verb) = match &action {
        WorkerAction::Ping { id } => (id, "ping"),
        WorkerAction::Restart { id } => (id, "restart"),
        WorkerAction::Drain { id } => (id, "drain"),
        WorkerAction::Dump { id } => (id, "dump"),
    };
    let id = to.id(id, WORKER)?;
    let answer = to.client.post(&format!("/api/v1/workers/{}/{verb}", escape(&id)), None, &[])?;
    to.print(answer.raw.get(), || match action {
        WorkerAction::Ping { .. } => format!("worker {id} answered in {}", trip(&answer.value)),
        WorkerAction::Restart { .. } => format!("worker {id} goes when another stands in for it and its work is done"),
        WorkerAction::Drain { .. } => format!("worker {id} finishes what it has, and goes"),
        WorkerAction::Dump { .. } => plain(&answer.value["stacks"]).trim_end().to_string(),
    });
    Ok(exit::DONE)
}

pub(super) const HEADERS: [&str; 13] = [
    "ID", "POOL", "STATE", "CLASS", "PONG", "TRIP", "BUSY", "DONE", "UPTIME", "RESTARTS", "REPLICA", "TOLD", "PERFORMS",
];

pub(super) fn row(worker: &Value) -> Vec<Cell> {
    let cell = |name: &str| Cell::new(plain(&worker[name]));
    vec![
        cell("id"),
        Cell::new(pool(worker)),
        state(&plain(&worker["state"])),
        state(&plain(&worker["class"])),
        Cell::new(age(&worker["last_pong_at"])),
        Cell::new(trip(worker)),
        Cell::new(format!("{}/{}", plain(&worker["running"]), plain(&worker["slots"]))),
        cell("finished"),
        Cell::new(uptime(worker)),
        cell("restarts"),
        cell("replica_id"),
        // Of a worker of the server that was asked: now.
        Cell::new(age(&worker["told_at"])),
        Cell::new(performs(worker, " ")),
    ]
}

pub(super) fn described(worker: &Value) -> String {
    let tasks: Vec<String> = worker["tasks"].as_array().into_iter().flatten().map(plain).collect();
    let lag = worker["lag_ms"].as_u64().map(|lag| format!("{lag}ms")).unwrap_or_default();
    let memory = worker["resident_bytes"].as_u64().filter(|bytes| *bytes > 0);
    let [pings, pongs, timeouts] = ["pings", "pongs", "timeouts"].map(|name| plain(&worker[name]));
    let all = [
        ("worker", plain(&worker["id"])),
        ("pool", pool(worker)),
        ("state", format!("{}, {}", state(&plain(&worker["state"])).content(), plain(&worker["class"]))),
        ("retiring", plain(&worker["retiring"])),
        ("host", plain(&worker["host"])),
        ("process", plain(&worker["pid"])),
        ("sdk", plain(&worker["sdk"])),
        ("tasks", tasks.join(", ")),
        ("slots", plain(&worker["slots"])),
        ("performs", performs(worker, "\n")),
        ("finished", plain(&worker["finished"])),
        ("started", moment(&worker["started_at"])),
        ("last pong", moment(&worker["last_pong_at"])),
        ("round trip", trip(worker)),
        ("loop lag", lag),
        ("pings", format!("{pings} sent, {pongs} answered, {timeouts} timeouts")),
        ("memory", memory.map(|bytes| format!("{} MiB", bytes >> 20)).unwrap_or_default()),
        ("sessions", plain(&worker["sessions"])),
        ("restarts", plain(&worker["restarts"])),
        ("last exit", plain(&worker["last_exit"])),
        ("replica", plain(&worker["replica_id"])),
        ("server", plain(&worker["server"])),
        ("told", moment(&worker["told_at"])),
    ];
    fields(&all.into_iter().filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>())
}

/// A worker of no pool is told by where it runs.
fn pool(worker: &Value) -> String {
    match worker["pool"].as_str() {
        Some(pool) => pool.to_string(),
        None => format!("({})", worker["host"].as_str().filter(|host| !host.is_empty()).unwrap_or("elsewhere")),
    }
}

fn performs(worker: &Value, between: &str) -> String {
    let runs: Vec<String> = worker["performs"].as_array().into_iter().flatten().map(plain).collect();
    runs.join(between)
}

fn trip(told: &Value) -> String {
    told["round_trip_ms"].as_f64().map(|took| format!("{took:.1}ms")).unwrap_or_default()
}

fn uptime(worker: &Value) -> String {
    worker["uptime_ms"].as_u64().map(|up| rough(Duration::from_millis(up))).unwrap_or_default()
}
