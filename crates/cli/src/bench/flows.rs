//! Flows of a real server process, next to what their sinks take without a flow.

use super::interrupt;
use super::load::{now, pause};
use super::process::Server;
use crate::exit::Failure;
use everbeat_flows::raw::{self, Schema};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Display;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;
use uuid::Uuid;

/// What to measure of flows.
#[derive(Debug, clap::Args)]
pub(crate) struct FlowArgs {
    /// How many rows each flow takes from its source to its sink; 0 leaves flows out
    #[arg(long, default_value_t = 200_000, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    flow_rows: u64,
    /// A Redis server for a stream; flows into the --postgres server read it
    #[arg(long, value_name = "URL")]
    flow_redis: Option<String>,
    /// A NATS server with JetStream, for a stream
    #[arg(long, value_name = "URL")]
    flow_nats: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct FlowFigures {
    rows: usize,
    batch: usize,
    ways: Vec<Way>,
    /// Memory of the server at its most, above what it had before the first flow.
    server_peak_above_idle_mib: f64,
}

#[derive(Debug, Serialize)]
struct Way {
    way: &'static str,
    flow_per_s: f64,
    /// The same rows, from memory, in batches of the same size, into the same table. Measured before and after the flow.
    raw_per_s: [f64; 2],
    /// To the mean of both.
    flow_to_raw: f64,
}

const BATCH: usize = 1000;
const LOOK: Duration = Duration::from_millis(5);

/// None: they are not wanted.
pub(crate) fn drive(
    args: &FlowArgs,
    postgres: Option<&str>,
    runtime: &Runtime,
) -> Result<Option<FlowFigures>, Failure> {
    let rows = usize::try_from(args.flow_rows).unwrap_or(usize::MAX);
    if rows == 0 {
        return Ok(None);
    }
    eprintln!("flows of {rows} rows");
    interrupt::check()?;
    let folder = std::env::temp_dir().join(format!("everbeat-bench-{}", Uuid::new_v4().simple()));
    fs::create_dir(&folder).map_err(fail)?;
    let driven = Measurement { args, postgres, runtime, folder: &folder, rows }.measure();
    if let Err(error) = fs::remove_dir_all(&folder) {
        eprintln!("{} stays behind: {error}", folder.display());
    }
    driven.map(Some)
}

struct Measurement<'a> {
    args: &'a FlowArgs,
    postgres: Option<&'a str>,
    runtime: &'a Runtime,
    folder: &'a Path,
    rows: usize,
}

impl Measurement<'_> {
    /// Whatever becomes of the measurement, its schema does not stay, and nothing else in the database is touched.
    fn measure(&self) -> Result<FlowFigures, Failure> {
        let Some(url) = self.postgres else { return self.measure_in(None) };
        let name = format!("everbeat_bench_{}", Uuid::new_v4().simple());
        let schema = self.runtime.block_on(Schema::create(url, &name)).map_err(fail)?;
        let measured = self.measure_in(Some(&schema));
        if let Err(error) = self.runtime.block_on(schema.remove()) {
            eprintln!("schema {name} stays behind: {error}");
        }
        measured
    }

    fn measure_in(&self, schema: Option<&Schema>) -> Result<FlowFigures, Failure> {
        let orders = self.folder.join("orders.ndjson");
        let mut file = BufWriter::new(fs::File::create(&orders).map_err(fail)?);
        for id in 0..self.rows {
            writeln!(file, "{}", raw::record(id)).map_err(fail)?;
        }
        file.flush().map_err(fail)?;
        let given = [("redis", &self.args.flow_redis), ("nats", &self.args.flow_nats)];
        let mut connections: serde_json::Map<String, Value> =
            given.into_iter().filter_map(|(name, url)| Some((name.to_string(), json!(url.as_ref()?)))).collect();
        connections.extend(schema.map(|schema| ("database".to_string(), json!(schema.url))));
        let settings = [("EVERBEAT_FLOWS__CONNECTIONS", Value::Object(connections).to_string())];
        let data_dir = self.folder.join("data");
        fs::create_dir(&data_dir).map_err(fail)?;
        let server = Server::start(&data_dir, &settings, None)?;
        let idle = memory(server.pid(), "VmRSS");
        let ways = self.ways(&server, &orders, schema);
        let peak = memory(server.pid(), "VmHWM");
        server.stop();
        Ok(FlowFigures {
            rows: self.rows,
            batch: BATCH,
            ways: ways?,
            server_peak_above_idle_mib: (peak - idle) / 1024.0,
        })
    }

    fn ways(&self, server: &Server, orders: &Path, schema: Option<&Schema>) -> Result<Vec<Way>, Failure> {
        let file = json!({"type": "file", "path": orders});
        let mut ways = vec![self.sqlite_way(server, &file)?];
        let Some(schema) = schema else { return Ok(ways) };
        ways.push(self.postgres_way(server, schema, "file to PostgreSQL", &file)?);
        if let Some(redis) = &self.args.flow_redis {
            let stream = format!("everbeat-bench-{}", Uuid::new_v4().simple());
            // The stream is filled by a flow, too.
            let sink = json!({"type": "redis_stream", "stream_name": stream});
            let filled = self.run(server, "fill-redis", &json!({"source": file, "sink": sink, "batch_size": BATCH}));
            let way = filled.and_then(|_| {
                let source = json!({
                    "type": "redis_stream", "stream_name": stream, "consumer_group": "bench", "payload": "data",
                });
                self.postgres_way(server, schema, "Redis to PostgreSQL", &source)
            });
            self.runtime.block_on(raw::delete_redis_stream(redis, &stream)).map_err(fail)?;
            ways.push(way?);
        }
        if let Some(nats) = &self.args.flow_nats {
            let stream = format!("everbeat-bench-{}", Uuid::new_v4().simple());
            self.runtime.block_on(raw::nats_stream(nats, &stream)).map_err(fail)?;
            let sink = json!({"type": "nats_jetstream", "subject": stream});
            let way = self
                .run(server, "fill-nats", &json!({"source": file, "sink": sink, "batch_size": BATCH}))
                .and_then(|_| {
                    let source = json!({"type": "nats_jetstream", "stream": stream, "durable": "bench"});
                    self.postgres_way(server, schema, "NATS to PostgreSQL", &source)
                });
            self.runtime.block_on(raw::delete_nats_stream(nats, &stream)).map_err(fail)?;
            ways.push(way?);
        }
        Ok(ways)
    }

    fn sqlite_way(&self, server: &Server, source: &Value) -> Result<Way, Failure> {
        let without = |name: &str| {
            let path = self.folder.join(name);
            self.runtime.block_on(raw::sqlite(path, self.rows, BATCH)).map_err(fail)
        };
        let before = without("before.db")?;
        let path = self.folder.join("shop.db");
        let sink = json!({
            "type": "sql", "url": format!("sqlite://{}", path.display()), "table": "orders", "key": ["id"], "create": true,
        });
        let flow = self.run(server, "file-sqlite", &json!({"source": source, "sink": sink, "batch_size": BATCH}))?;
        Ok(way("file to SQLite", flow, [before, without("after.db")?]))
    }

    fn postgres_way(
        &self,
        server: &Server,
        schema: &Schema,
        name: &'static str,
        source: &Value,
    ) -> Result<Way, Failure> {
        let without = || self.runtime.block_on(schema.rate(self.rows, BATCH)).map_err(fail);
        let before = without()?;
        self.runtime.block_on(schema.clear()).map_err(fail)?;
        let sink = json!({"type": "sql", "connection": "database", "table": "orders", "key": ["id"]});
        let configuration = json!({"source": source, "sink": sink, "batch_size": BATCH});
        let flow = self.run(server, &name.replace(' ', "-"), &configuration)?;
        let held = self.runtime.block_on(schema.rows()).map_err(fail)?;
        if held != self.rows as i64 {
            return Err(fail(format!("{name}: {held} rows are in the sink, and not {}", self.rows)));
        }
        Ok(way(name, flow, [before, without()?]))
    }

    /// Rows per second of one run, as its ledger tells it.
    fn run(&self, server: &Server, name: &str, configuration: &Value) -> Result<f64, Failure> {
        let path = format!("/api/v1/flows/{name}");
        server.client.put(&path, &json!({ "configuration": configuration }).to_string())?;
        let begun = now();
        server.client.post(&format!("{path}/trigger"), Some("{}"))?;
        loop {
            interrupt::check()?;
            let run = server.client.get(&format!("{path}/runs?limit=1"))?["items"][0].clone();
            match run["status"].as_str() {
                Some("success") if run["counts"]["written"] == self.rows => {
                    return Ok(self.rows as f64 / begun.elapsed().as_secs_f64());
                }
                Some("pending" | "in_progress") => pause(LOOK),
                _ => return Err(fail(format!("the flow {name} did not do its work: {run}"))),
            }
        }
    }
}

fn way(way: &'static str, flow_per_s: f64, raw_per_s: [f64; 2]) -> Way {
    let flow_to_raw = flow_per_s / ((raw_per_s[0] + raw_per_s[1]) / 2.0);
    Way { way, flow_per_s: flow_per_s.round(), raw_per_s: raw_per_s.map(f64::round), flow_to_raw }
}

/// A figure of a process, in KiB.
fn memory(pid: u32, what: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(what));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(f64::NAN)
}

fn fail(error: impl Display) -> Failure {
    Failure::server(format!("flows cannot be measured: {error}"), "")
}
