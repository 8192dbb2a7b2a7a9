//! The list of everything that can be set. It is long, and one thing: the reference page is this list, in this order.

use super::key::{Field, Key, Kind};
use super::{Config, pools, values};
use everbeat_model::{Invalid, PolicyPatch};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Everything that can be set, in the order of the reference page.
pub(crate) const KEYS: &[Key] = &[
    key(
        "server.listen",
        Kind::Text,
        "127.0.0.1:7117",
        "Address and port of the HTTP interface. Port 0 takes a free one. Other than loopback needs a token in `auth.tokens`.",
        |config, value| {
            config.listen = values::address(value)?;
            Ok(())
        },
    ),
    key(
        "server.data_dir",
        Kind::Text,
        "everbeat-data",
        "Folder of this host's own files: its id, its locks, the address it listens on, and by default the database.",
        |config, value| {
            config.data_dir = PathBuf::from(values::text(value, "/var/lib/everbeat")?);
            Ok(())
        },
    ),
    key("server.body_limit", Kind::Size, "4MiB", "Largest request body that is read.", |config, value| {
        config.http.body_limit = values::size(value, 1024, 1 << 30)?;
        Ok(())
    }),
    key(
        "server.request_timeout",
        Kind::Duration,
        "30s",
        "Longest time for one request; a request that asks to wait gets its own wait on top.",
        |config, value| {
            config.http.request_timeout = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "server.rate_limit",
        Kind::Whole,
        "off",
        "Requests per second that one client address may make.",
        |config, value| {
            config.http.rate_limit = values::rate_limit(value)?;
            Ok(())
        },
    ),
    key(
        "server.read_only",
        Kind::Flag,
        "false",
        "Refuse every request that would change something.",
        |config, value| {
            config.http.read_only = values::flag(value)?;
            Ok(())
        },
    ),
    key(
        "server.worker_listen",
        Kind::Text,
        "off",
        "Address and port for workers that belong to no pool and dial in from elsewhere. Other than loopback needs a token with the scope `worker`.",
        |config, value| {
            config.workers.listen = (value != "off").then(|| values::address(value)).transpose()?;
            Ok(())
        },
    ),
    key(
        "server.tls_cert",
        Kind::Text,
        "off",
        "A file with the chain of certificates, in PEM format, that `server.worker_listen` shows; without it, what passes there can be read on the way. Needs `server.tls_key`.",
        |config, value| {
            config.workers.tls_cert = file(value, "/etc/everbeat/tls.crt")?;
            Ok(())
        },
    ),
    key(
        "server.tls_key",
        Kind::Text,
        "off",
        "A file with the private key of `server.tls_cert`, in PEM format.",
        |config, value| {
            config.workers.tls_key = file(value, "/etc/everbeat/tls.key")?;
            Ok(())
        },
    ),
    key(
        "store.url",
        Kind::Text,
        "sqlite://{data_dir}/everbeat.db",
        "Where runs are kept: `sqlite://PATH` for one server, `postgres://…` for many, `memory:` for trying things.",
        |config, value| {
            config.store.url = Some(values::store_url(value)?);
            Ok(())
        },
    ),
    key(
        "store.url_file",
        Kind::Text,
        "off",
        "A file with the URL in it, instead of `store.url`: for a password that should not stand in the configuration. \
         A password may also come from `PGPASSWORD` or, in libpq's form, from `PGPASSFILE` or `~/.pgpass`.",
        |config, value| {
            config.store.url_file = file(value, "/run/secrets/everbeat-store")?;
            Ok(())
        },
    ),
    key(
        "store.pool_size",
        Kind::Whole,
        "4",
        "Database connections for reading; writing has its own.",
        |config, value| {
            config.store.pool_size = values::count(value, 1000)?;
            Ok(())
        },
    ),
    key(
        "replica.heartbeat_interval",
        Kind::Duration,
        "10s",
        "How often this replica renews itself and with it all its leases. At most a third of the timeout.",
        |config, value| {
            config.settings.heartbeat_interval = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "replica.heartbeat_timeout",
        Kind::Duration,
        "60s",
        "Silence after which the other replicas judge this one dead. Given alone, it shortens the interval with it.",
        |config, value| {
            config.settings.heartbeat_timeout = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "replica.sweep_interval",
        Kind::Duration,
        "30s",
        "How often sweeps look for what hints missed.",
        |config, value| {
            config.settings.sweep_interval = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "replica.poll_interval",
        Kind::Duration,
        "1s",
        "How often an idle replica looks for work that no hint announced.",
        |config, value| {
            config.settings.poll_interval = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "replica.retention",
        Kind::Duration,
        "1h",
        "How long dead and departed replicas stay listed.",
        |config, value| {
            config.settings.retention = values::span(value)?;
            Ok(())
        },
    ),
    key(
        "replica.clean_interval",
        Kind::Duration,
        "1h",
        "How often what is past its retention is removed.",
        |config, value| {
            config.settings.clean_interval = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "replica.drain_grace",
        Kind::Duration,
        "30s",
        "How long a draining replica lets its work finish before it hands it back.",
        |config, value| {
            config.settings.drain_grace = values::span(value)?;
            Ok(())
        },
    ),
    key("replica.slots", Kind::Whole, "64", "How many runs this replica performs at once.", |config, value| {
        config.settings.slots = values::count(value, 1_000_000)?;
        Ok(())
    }),
    key(
        "runs.heartbeat",
        Kind::Text,
        "auto",
        "Who sends an attempt's heartbeats: the runtime (`auto`) or the task's own code (`manual`).",
        |config, value| policy(config, "heartbeat", value),
    ),
    key(
        "runs.heartbeat_interval",
        Kind::Duration,
        "30s",
        "How often an attempt beats. At most half of the timeout.",
        |config, value| policy(config, "heartbeat_interval", value),
    ),
    key(
        "runs.heartbeat_timeout",
        Kind::Duration,
        "120s",
        "Silence after which an attempt is lost; `off` leaves it to its deadline and its replica.",
        |config, value| policy(config, "heartbeat_timeout", value),
    ),
    key(
        "runs.stall_timeout",
        Kind::Duration,
        "off",
        "Time without progress after which an attempt is stalled.",
        |config, value| policy(config, "stall_timeout", value),
    ),
    key("runs.deadline", Kind::Duration, "off", "Longest time an attempt may take.", |config, value| {
        policy(config, "deadline", value)
    }),
    key(
        "runs.max_attempts",
        Kind::Whole,
        "3",
        "How many tries a run has in total. A crash of the server uses one up for a task; a drain does not.",
        |config, value| policy(config, "max_attempts", value),
    ),
    key(
        "runs.backoff",
        Kind::Table(BACKOFF_FIELDS),
        "{initial = \"1s\", factor = 2.0, max = \"5m\", jitter = 0.2}",
        "The pause before the next attempt.",
        |config, value| policy(config, "backoff", value),
    ),
    key("runs.on_lost", Kind::Text, "retry", "What follows a lost attempt: `retry` or `fail`.", |config, value| {
        policy(config, "on_lost", value)
    }),
    key(
        "runs.when_isolated",
        Kind::Text,
        "continue",
        "What work does while its replica cannot reach the store: `continue`, or `stop` before anybody may take it over.",
        |config, value| policy(config, "when_isolated", value),
    ),
    key(
        "runs.cancel_grace",
        Kind::Duration,
        "10s",
        "How long a cancelled attempt may take to end by itself.",
        |config, value| policy(config, "cancel_grace", value),
    ),
    key(
        "runs.store_patience",
        Kind::Duration,
        "10m",
        "How long an ending that cannot be stored, while others can, is tried before its attempt fails for that reason. A store that takes no ending at all costs no patience.",
        |config, value| {
            config.settings.store_patience = values::span(value)?;
            Ok(())
        },
    ),
    key("runs.keep_finished", Kind::Duration, "30d", "How long finished runs are kept.", |config, value| {
        config.settings.keep_finished = values::span(value)?;
        Ok(())
    }),
    key(
        "runs.output_limit",
        Kind::Size,
        "16MiB",
        "Bytes that are kept of what a run streams, items and lines of its log, of all its attempts; the oldest go first.",
        |config, value| {
            config.settings.output_limit = values::size(value, 4096, 1 << 40)? as u64;
            Ok(())
        },
    ),
    key("runs.keep_events", Kind::Whole, "100000", "How many batches of events are kept.", |config, value| {
        config.settings.keep_events = values::whole(value, 1, 1 << 40)?;
        Ok(())
    }),
    key("runs.keep_verdicts", Kind::Duration, "30d", "How long verdicts are kept.", |config, value| {
        config.settings.keep_verdicts = values::span(value)?;
        Ok(())
    }),
    key("queue", Kind::List(QUEUE_FIELDS), "[]", "Limits of this replica by queue.", |config, value| {
        config.settings.queues = values::queues(value)?;
        Ok(())
    }),
    key("task", Kind::List(TASK_FIELDS), "[]", "Limits of this replica by task.", |config, value| {
        config.settings.tasks = values::tasks(value)?;
        Ok(())
    }),
    key("pool", Kind::List(POOL_FIELDS), "[]", "Pools of worker processes that this server keeps.", |config, value| {
        config.settings.pools = pools::pools(value)?;
        Ok(())
    }),
    key(
        "workers.ping_interval",
        Kind::Duration,
        "2s",
        "How often workers of no pool are pinged. At most half of the timeout.",
        |config, value| {
            config.settings.remote_workers.ping_interval = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "workers.ping_timeout",
        Kind::Duration,
        "10s",
        "Silence after which a worker of no pool is lost. Given alone, it shortens the interval with it.",
        |config, value| {
            config.settings.remote_workers.ping_timeout = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "workers.worker_ttl",
        Kind::Duration,
        "30s",
        "Without a ping for so long a worker of no pool stops its work.",
        |config, value| {
            config.settings.remote_workers.worker_ttl = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "auth.tokens",
        Kind::List(TOKEN_FIELDS),
        "[]",
        "Who may ask for what. Without any token everything is open, on loopback only.",
        |config, value| {
            config.http.tokens = values::tokens(value)?;
            Ok(())
        },
    ),
    key(
        "auth.allow",
        Kind::List(&[]),
        "[]",
        "Networks that requests may come from; empty allows all.",
        |config, value| {
            config.http.allow = values::networks(value)?;
            Ok(())
        },
    ),
    key(
        "auth.trusted_proxies",
        Kind::List(&[]),
        "[]",
        "Proxies whose `X-Forwarded-For` is believed.",
        |config, value| {
            config.http.trusted_proxies = values::networks(value)?;
            Ok(())
        },
    ),
    key(
        "flows.ticker",
        Kind::Flag,
        "true",
        "Look at flows when they are due. Without it somebody outside calls `POST /dataflow/heartbeat` for that.",
        |config, value| {
            config.settings.flow_ticker = values::flag(value)?;
            Ok(())
        },
    ),
    key(
        "flows.tick_interval",
        Kind::Duration,
        "1s",
        "How often schedules and flows that others have written are looked for.",
        |config, value| {
            config.settings.tick_interval = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "flows.connections",
        Kind::Table(&[]),
        "{}",
        "Addresses that flows name: a URL, `{env = \"NAME\"}` or `{file = \"/path\"}` that hold it, or `{url = …, password = …, ca = …}`. They may be private.",
        |config, value| {
            config.flows.connections = everbeat_flows::Settings::parse_connections(value)?;
            Ok(())
        },
    ),
    key(
        "flows.allow_private_targets",
        Kind::Flag,
        "false",
        "Let flows themselves name addresses of this machine, of private and of link-local networks.",
        |config, value| {
            config.flows.allow_private_targets = values::flag(value)?;
            Ok(())
        },
    ),
    key(
        "jobs.slots",
        Kind::Whole,
        "16",
        "How many jobs this replica starts at once, apart from `replica.slots`; 0 starts none.",
        |config, value| {
            config.settings.jobs.slots = values::whole(value, 0, 1_000_000)? as usize;
            Ok(())
        },
    ),
    key(
        "jobs.heartbeat_interval",
        Kind::Duration,
        "30s",
        "How often a job's shim writes its sentinel file. At most half of `jobs.stale_after`.",
        |config, value| {
            config.settings.jobs.heartbeat_interval = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "jobs.check_interval",
        Kind::Duration,
        "1m",
        "How often the ages of sentinels are looked at, for the event `job.stale` and the metrics.",
        |config, value| {
            config.settings.jobs.check_interval = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "jobs.stale_after",
        Kind::Duration,
        "2m",
        "Age at which a sentinel is called stale. It is no verdict. Given alone, it shortens the interval with it.",
        |config, value| {
            config.settings.jobs.stale_after = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "jobs.dead_after",
        Kind::Duration,
        "10m",
        "Age at which a sentinel is called dead. A shim that holds its lock, does not answer, and writes no sentinel for so long, as watched here, is killed with its job.",
        |config, value| {
            config.settings.jobs.dead_after = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "jobs.reattach_window",
        Kind::Duration,
        "5m",
        "How long the jobs of a host without any replica wait for one to come back before they are lost.",
        |config, value| {
            config.settings.jobs.reattach_window = values::positive(value)?;
            Ok(())
        },
    ),
    key(
        "jobs.stop_grace",
        Kind::Duration,
        "10s",
        "How long a job that is asked to stop has between SIGTERM and SIGKILL; `cancel_grace` in a job's policy overrides it.",
        |config, value| {
            config.settings.jobs.stop_grace = values::span(value)?;
            Ok(())
        },
    ),
    key(
        "jobs.keep",
        Kind::Duration,
        "30d",
        "How long folders of finished jobs stay, and after that what of their workspaces was archived. Folders go before their runs do (`runs.keep_finished`).",
        |config, value| {
            config.settings.jobs.keep = values::span(value)?;
            Ok(())
        },
    ),
    key(
        "jobs.log_limit",
        Kind::Size,
        "1GiB",
        "Bytes that each stream of a job's output may take on the disk; the oldest go first.",
        |config, value| {
            config.settings.jobs.log_limit = values::size(value, 4096, 1 << 50)? as u64;
            Ok(())
        },
    ),
    key(
        "telemetry.log",
        Kind::Text,
        "info",
        "What is logged: `error`, `warn`, `info`, `debug`, `trace`, or a list by module.",
        |config, value| {
            config.telemetry.log = values::log_filter(value)?;
            Ok(())
        },
    ),
    key(
        "telemetry.log_format",
        Kind::Text,
        "text",
        "How it is logged: `text` or `json`, one line each.",
        |config, value| {
            config.telemetry.json = values::choice(value, &["text", "json"])? == "json";
            Ok(())
        },
    ),
    key(
        "telemetry.heartbeat_events",
        Kind::Flag,
        "true",
        "Whether pings of workers, their answers and their silence are logged. Pings and answers are logged at `debug`.",
        |config, value| {
            config.telemetry.heartbeat_events = values::flag(value)?;
            Ok(())
        },
    ),
    key(
        "telemetry.process_events",
        Kind::Flag,
        "true",
        "Whether starts and ends of worker processes are logged.",
        |config, value| {
            config.telemetry.process_events = values::flag(value)?;
            Ok(())
        },
    ),
    key(
        "telemetry.watchdog_events",
        Kind::Flag,
        "true",
        "Whether starts of guardians are logged, and what they did when a server had died.",
        |config, value| {
            config.telemetry.watchdog_events = values::flag(value)?;
            Ok(())
        },
    ),
];

pub(crate) const POOL_FIELDS: &[Field] = pools::FIELDS;

pub(crate) const BACKOFF_FIELDS: &[Field] = &[
    Field { name: "initial", help: "The first pause." },
    Field { name: "factor", help: "What each pause is multiplied by for the next." },
    Field { name: "max", help: "The longest pause." },
    Field { name: "jitter", help: "The share of a pause that chance may take away." },
];

pub(crate) const QUEUE_FIELDS: &[Field] = &[
    Field { name: "name", help: "The queue." },
    Field { name: "concurrency", help: "Most runs of it at once." },
    Field { name: "rate", help: "Most starts per second." },
];

pub(crate) const TASK_FIELDS: &[Field] = &[
    Field { name: "name", help: "The task." },
    Field { name: "concurrency", help: "Most runs of it at once. Of `jq`, unless given, as many as there are cores." },
];

pub(crate) const TOKEN_FIELDS: &[Field] = &[
    Field { name: "name", help: "Shown in logs in place of the token." },
    Field { name: "sha256", help: "Of the token, in hex: `printf %s TOKEN | sha256sum`." },
    Field { name: "scopes", help: "A list of `read`, `submit`, `heartbeat`, `admin`, `worker`, `metrics`." },
    Field { name: "allow", help: "Networks that this token may be used from; empty allows all." },
];

const fn key(
    path: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
    set: fn(&mut Config, &Value) -> Result<(), Invalid>,
) -> Key {
    Key { path, kind, default, help, set }
}

/// The path of a file, or `off`.
fn file(value: &Value, example: &str) -> Result<Option<PathBuf>, Invalid> {
    (value != "off").then(|| values::text(value, example).map(PathBuf::from)).transpose()
}

/// Checks one policy field by itself and keeps it until all are known.
fn policy(config: &mut Config, name: &str, value: &Value) -> Result<(), Invalid> {
    PolicyPatch::parse(&json!({ name: value })).map_err(|invalid| {
        let field = invalid.field.strip_prefix(name).unwrap_or(&invalid.field).trim_start_matches('.').to_string();
        Invalid { field, ..invalid }
    })?;
    config.policy.insert(name.to_string(), value.clone());
    Ok(())
}
