//! How `[[pool]]` is read.

use super::key::Field;
use super::keys::POOL_FIELDS;
use super::values::{self, Result};
use everbeat_engine::pools::{MOST_WORKERS, PoolSettings, Protocol, WantedContainment};
use everbeat_model::Invalid;
use everbeat_model::run::{check_name, check_task_name};
use everbeat_model::session::check_ttl;
use everbeat_model::time::format_duration;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A worker performs no more attempts at once.
const MOST_SLOTS: u64 = 1000;
/// Less memory than this no worker can live in.
const LEAST_MEMORY: u64 = 1 << 20;
/// No pool holds more sessions: each takes some memory of the server.
const MOST_SESSIONS: u64 = 1_000_000;
/// What only workers with a link have.
const OF_THE_LINK: [&str; 7] =
    ["heartbeat", "dependent", "ping_interval", "ping_timeout", "max_missed", "startup_grace", "worker_ttl"];

pub(super) fn pools(value: &Value) -> Result<Vec<PoolSettings>> {
    let pools = values::entries(value, "pool", POOL_FIELDS, pool)?;
    Ok(pools.into_iter().map(|(name, settings)| PoolSettings { name, ..settings }).collect())
}

fn pool(fields: &Map<String, Value>) -> Result<PoolSettings> {
    let mut pool = PoolSettings { command: command(fields)?, ..PoolSettings::default() };
    if let Some(protocol) = at(fields, "protocol", |value| values::choice(value, &["grpc", "lines"]))? {
        pool.protocol = if protocol == "lines" { Protocol::Lines } else { Protocol::Grpc };
    }
    check_protocol(fields, pool.protocol)?;
    let within = |least, most| move |value: &Value| values::whole(value, least, most);
    if let Some(size) = at(fields, "size", within(0, MOST_WORKERS as u64))? {
        pool.size = size as usize;
    }
    if let Some(slots) = at(fields, "slots", within(1, MOST_SLOTS))? {
        pool.slots = slots as usize;
    }
    if let Some(missed) = at(fields, "max_missed", within(1, 1000))? {
        pool.max_missed = missed as u32;
    }
    pool.max_runs = at(fields, "max_runs", within(1, 1 << 40))?;
    pool.max_memory =
        at(fields, "max_memory", |value| values::size(value, LEAST_MEMORY, 1 << 50))?.map(|most| most as u64);
    pool.max_age = at(fields, "max_age", values::positive)?;
    if let Some(queues) = at(fields, "queues", |value| names(value, "default", check_name))? {
        pool.queues = queues;
    }
    if let Some(tasks) = at(fields, "tasks", |value| names(value, "resize", check_task_name))? {
        pool.tasks = tasks;
    } else if pool.protocol == Protocol::Lines {
        let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
        check_task_name("name", name)?;
        pool.tasks = vec![name.to_string()];
    }
    if let Some(wanted) = at(fields, "containment", |value| values::choice(value, &["auto", "strict"]))? {
        pool.containment = if wanted == "strict" { WantedContainment::Strict } else { WantedContainment::Auto };
    }
    pool.env = at(fields, "env", environment)?.unwrap_or_default();
    pool.cwd = at(fields, "cwd", |value| values::text(value, "workers"))?.map(PathBuf::from);
    for (name, flag) in [("heartbeat", &mut pool.heartbeat), ("dependent", &mut pool.dependent)] {
        *flag = at(fields, name, values::flag)?.unwrap_or(*flag);
    }
    if let Some(ttl) = at(fields, "session_ttl", check_ttl)? {
        pool.session_ttl = ttl;
    }
    if let Some(most) = at(fields, "max_sessions", within(1, MOST_SESSIONS))? {
        pool.max_sessions = most as usize;
    }
    times(fields, &mut pool)?;
    check_times("", &pool)?;
    Ok(pool)
}

fn times(fields: &Map<String, Value>, pool: &mut PoolSettings) -> Result<()> {
    for (name, span) in [
        ("ping_interval", &mut pool.ping_interval),
        ("ping_timeout", &mut pool.ping_timeout),
        ("check_interval", &mut pool.check_interval),
        ("startup_grace", &mut pool.startup_grace),
        ("worker_ttl", &mut pool.worker_ttl),
        ("kill_grace", &mut pool.kill_grace),
    ] {
        *span = at(fields, name, values::positive)?.unwrap_or(*span);
    }
    for (name, span) in [("grace_period", &mut pool.grace_period), ("stop_grace", &mut pool.stop_grace)] {
        *span = at(fields, name, values::span)?.unwrap_or(*span);
    }
    if fields.contains_key("ping_timeout") && !fields.contains_key("ping_interval") {
        // A shorter timeout alone brings its interval along, as it does elsewhere.
        pool.ping_interval = pool.ping_interval.min(pool.ping_timeout / 5);
    }
    Ok(())
}

/// How pings go together with what follows when they are missed. `section` stands before the names of the keys.
pub(super) fn check_times(section: &str, pool: &PoolSettings) -> Result<()> {
    for (name, timeout) in [("ping_timeout", pool.ping_timeout), ("worker_ttl", pool.worker_ttl)] {
        if pool.ping_interval > timeout / 2 {
            let shown = |span: Duration| format!("{:?}", format_duration(span));
            let problem = format!("is over half of {section}{name} ({})", shown(timeout));
            let hint = format!("set it to at most {}, or raise {section}{name}", shown(timeout / 2));
            return Err(Invalid::new(format!("{section}ping_interval"), shown(pool.ping_interval), problem, hint));
        }
    }
    Ok(())
}

fn check_protocol(fields: &Map<String, Value>, protocol: Protocol) -> Result<()> {
    let refuse = |name: &str, problem: &str, hint: &str| {
        Err(Invalid::new(name, fields.get(name).unwrap_or(&Value::Null), problem, hint))
    };
    match protocol {
        Protocol::Lines => match OF_THE_LINK.into_iter().find(|name| fields.contains_key(*name)) {
            Some(name) => refuse(
                name,
                "is of no use with protocol = \"lines\": such workers are not pinged, and judged by their process alone",
                "leave it out, or use protocol = \"grpc\"",
            ),
            None => Ok(()),
        },
        Protocol::Grpc if fields.contains_key("tasks") => refuse(
            "tasks",
            "is only for protocol = \"lines\": other workers name their tasks themselves",
            "leave it out, or use protocol = \"lines\"",
        ),
        Protocol::Grpc => Ok(()),
    }
}

fn command(fields: &Map<String, Value>) -> Result<Vec<String>> {
    let hint = "write a program and its arguments, like [\"python3\", \"-m\", \"everbeat.worker\", \"tasks:app\"]";
    let refuse = |value: &Value, problem: &str| Err(Invalid::new("command", value, problem, hint));
    let Some(value) = fields.get("command") else {
        return Err(Invalid::new("command", "nothing", "is missing", hint));
    };
    let Some(words) = value.as_array() else {
        return refuse(value, "is not a list: a command is never a shell line");
    };
    let words: Option<Vec<String>> = words.iter().map(|word| word.as_str().map(ToString::to_string)).collect();
    match words {
        Some(words) if words.first().is_none_or(String::is_empty) => refuse(value, "names no program"),
        Some(words) if words.iter().any(|word| word.contains('\0')) => refuse(value, "has a NUL in it"),
        Some(words) => Ok(words),
        None => refuse(value, "has an argument that is not text"),
    }
}

fn names(value: &Value, example: &str, check: fn(&str, &str) -> Result<()>) -> Result<Vec<String>> {
    let hint = format!("write it like [{example:?}]");
    let listed = value.as_array().filter(|names| !names.is_empty());
    let listed = listed.ok_or_else(|| Invalid::new("", value, "is not a list of names", hint.clone()))?;
    let mut names = Vec::new();
    for name in listed {
        let name = name.as_str().ok_or_else(|| Invalid::new("", name, "is not a name", hint.clone()))?;
        check("", name)?;
        names.push(name.to_string());
    }
    Ok(names)
}

/// The values are not repeated in a complaint: they may be secrets.
fn environment(value: &Value) -> Result<BTreeMap<String, String>> {
    let hint = "write it like { LANG = \"C.UTF-8\" }";
    let refuse = |name: &str, problem: &str, hint: &str| Err(Invalid::new(name, "…", problem, hint));
    let Value::Object(fields) = value else { return refuse("", "is not a table", hint) };
    let mut env = BTreeMap::new();
    for (name, value) in fields {
        if name.is_empty() || name.contains(['=', '\0']) {
            return refuse(name, "is not the name of a variable", hint);
        }
        if name.starts_with("EVERBEAT_") {
            return refuse(name, "is a variable of Everbeat's own", "choose a name that does not begin with EVERBEAT_");
        }
        match value.as_str() {
            Some(text) if !text.contains('\0') => _ = env.insert(name.clone(), text.to_string()),
            _ => return refuse(name, "is not text", hint),
        }
    }
    Ok(env)
}

/// Reads one field, if it is given. A complaint names the field.
fn at<T>(fields: &Map<String, Value>, name: &str, read: impl FnOnce(&Value) -> Result<T>) -> Result<Option<T>> {
    fields.get(name).map(read).transpose().map_err(|invalid| {
        let field = if invalid.field.is_empty() { name.to_string() } else { format!("{name}.{}", invalid.field) };
        Invalid { field, ..invalid }
    })
}

/// The values of environments are not shown.
pub(crate) fn masked(pools: &Value) -> Value {
    let mut pools = pools.clone();
    for pool in pools.as_array_mut().into_iter().flatten() {
        if let Some(Value::Object(env)) = pool.get_mut("env") {
            env.values_mut().for_each(|value| *value = "…".into());
        }
    }
    pools
}

pub(super) const FIELDS: &[Field] = &[
    Field { name: "name", help: "The pool." },
    Field {
        name: "command",
        help: "Program and arguments of a worker, like `[\"python3\", \"-m\", \"everbeat.worker\", \"tasks:app\"]`; never a shell line.",
    },
    Field { name: "size", help: "How many workers there are (default `4`)." },
    Field { name: "slots", help: "How many attempts each performs at once (default `1`)." },
    Field { name: "queues", help: "The queues that the pool takes work from (default `[\"default\"]`)." },
    Field {
        name: "protocol",
        help: "How workers are spoken to: `grpc` (default), over the link of an SDK, or `lines`, JSON lines on stdin and stdout.",
    },
    Field { name: "tasks", help: "With `lines`: the tasks that the workers perform (default: the name of the pool)." },
    Field { name: "env", help: "Variables for the workers, beside the server's `PATH`, `HOME`, `LANG` and the like." },
    Field {
        name: "cwd",
        help: "Where the workers run; a relative path counts from the folder of the configuration file.",
    },
    Field {
        name: "heartbeat",
        help: "Whether workers are pinged (default `true`). One that performs work with `when_isolated = \"stop\"` always is.",
    },
    Field {
        name: "dependent",
        help: "Whether a worker that does not answer is ended, and one that is not pinged ends itself (default `true`).",
    },
    Field {
        name: "ping_interval",
        help: "How often a worker is pinged (default `2s`). At most half of `ping_timeout`, which given alone shortens it.",
    },
    Field {
        name: "ping_timeout",
        help: "Silence after which a worker is judged by what its process does (default `10s`).",
    },
    Field { name: "max_missed", help: "How many pings it must owe besides (default `3`)." },
    Field { name: "check_interval", help: "How often the processes of workers are looked at (default `1s`)." },
    Field { name: "startup_grace", help: "How long a worker may take from its start to its hello (default `30s`)." },
    Field { name: "worker_ttl", help: "Without a ping for so long a worker stops its work and exits (default `30s`)." },
    Field { name: "grace_period", help: "From SIGTERM to SIGKILL, when a worker is ended for a fault (default `3s`)." },
    Field { name: "stop_grace", help: "How long a worker may finish its work when the server ends (default `30s`)." },
    Field {
        name: "kill_grace",
        help: "How long something of a killed worker may be left before that is told (default `5s`).",
    },
    Field { name: "max_age", help: "A worker is replaced when it is so old." },
    Field { name: "max_runs", help: "A worker is given so many attempts, no more, and then replaced." },
    Field {
        name: "max_memory",
        help: "A worker that takes more, with all it started, is ended; one that takes nearly so much is replaced when its work is done.",
    },
    Field {
        name: "session_ttl",
        help: "A session of runs is over after so long without one, unless the run says otherwise (default `1h`; `1s` to `7d`).",
    },
    Field {
        name: "max_sessions",
        help: "How many sessions the workers hold together (default `10000`); the one that was not used for longest goes first.",
    },
    Field {
        name: "containment",
        help: "`auto` (default) takes the best that the machine has; with `strict` the pool does not start unless nothing that a worker starts can escape.",
    },
];
