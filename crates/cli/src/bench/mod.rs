//! Measures a server on this machine through its public interface, next to what the same statements
//! reach without it.

mod flows;
mod graphs;
mod interrupt;
mod jobs;
mod load;
mod place;
mod pools;
mod process;
mod singles;

use crate::exit::{self, Failure};
use flows::{FlowArgs, FlowFigures};
use graphs::GraphFigures;
use jobs::JobFigures;
use place::Place;
use pools::{PoolArgs, PoolFigures};
use serde::Serialize;
use singles::SingleFigures;
use std::time::Duration;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// How many runs each measurement takes
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=10_000_000))]
    runs: u64,
    /// How many single runs the latency is measured with
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u64).range(10..=100_000))]
    latency_runs: u64,
    /// How many executions of a graph are measured
    #[arg(long, default_value_t = 5000, value_name = "N", value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    executions: u64,
    /// A PostgreSQL server on which a database may be made (and dropped again) for the measurement
    #[arg(long, env = "EVERBEAT_BENCH_POSTGRES", value_name = "URL")]
    postgres: Option<String>,
    /// Leave SQLite out
    #[arg(long)]
    no_sqlite: bool,
    /// How many detached jobs run under a server that is killed and started again; 0 leaves them out
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=10_000))]
    jobs: u64,
    /// Runs that are performed at once
    #[arg(long, default_value_t = 4000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    slots: u64,
    #[command(flatten)]
    flows: FlowArgs,
    #[command(flatten)]
    pools: PoolArgs,
}

/// One store's figures.
#[derive(Debug, Serialize)]
struct Figures {
    store: &'static str,
    settings: String,
    runs: u64,
    /// Bulk enqueue through `POST /api/v1/runs:batch`.
    enqueue_per_s: f64,
    /// From the moment the queue is let go until the last run is settled, as the interface shows it.
    claim_to_settle_per_s: f64,
    enqueue_to_start_ms: Percentiles,
    graphs: GraphFigures,
    singles: SingleFigures,
    raw: Raw,
    ratio: Ratio,
}

/// The same statements in batches, back to back on one connection, with no engine between.
#[derive(Debug, Serialize)]
struct Raw {
    batch: usize,
    insert_per_s: f64,
    claim_per_s: f64,
    settle_per_s: f64,
    /// One run claimed and settled: `1 / (1/claim + 1/settle)`.
    claim_and_settle_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Ratio {
    enqueue_to_raw: f64,
    claim_to_settle_to_raw: f64,
    /// Computations of nodes, to runs that nothing follows from.
    computations_to_claim_to_settle: f64,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    cores: usize,
    stores: Vec<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<JobFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flows: Option<FlowFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pools: Option<PoolFigures>,
}

pub(crate) fn bench(args: &BenchArgs) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::server(format!("the runtime cannot be started: {error}"), ""))?;
    interrupt::note();
    let mut stores = Vec::new();
    if !args.no_sqlite {
        stores.push(runtime.block_on(async { measure_and_clear(args, Place::sqlite()?).await })?);
    }
    if let Some(url) = &args.postgres {
        stores.push(runtime.block_on(async { measure_and_clear(args, Place::postgres(url).await?).await })?);
    }
    let jobs = match usize::try_from(args.jobs).unwrap_or(usize::MAX) {
        0 => None,
        jobs => {
            eprintln!("jobs under a server that is killed");
            Some(jobs::drive(jobs)?)
        }
    };
    let flows = flows::drive(&args.flows, args.postgres.as_deref(), &runtime)?;
    let pools = pools::drive(&args.pools, args.latency_runs)?;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let report = Report { version: env!("CARGO_PKG_VERSION"), cores, stores, jobs, flows, pools };
    let text = serde_json::to_string_pretty(&report).map_err(|error| Failure::server(error.to_string(), ""))?;
    println!("{text}");
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(exit::DONE)
}

/// Runs in one batch: as many as the engine itself takes at once.
const BATCH: usize = 1000;

/// Of so many runs, one is submitted by a request of its own: those take longer.
const SINGLE_SHARE: u64 = 10;

/// Whatever becomes of the measurement, nothing of it stays.
async fn measure_and_clear(args: &BenchArgs, place: Place) -> Result<Figures, Failure> {
    let measured = tokio::select! {
        biased;
        interrupted = interrupt::interrupted() => Err(interrupted),
        measured = measure(args, &place) => measured,
    };
    place.clear().await;
    measured
}

async fn measure(args: &BenchArgs, place: &Place) -> Result<Figures, Failure> {
    eprintln!("{}: raw statements", place.name);
    let raw = place.raw(args.runs, BATCH).await?;
    let raw = Raw {
        batch: BATCH,
        insert_per_s: raw.insert_per_s,
        claim_per_s: raw.claim_per_s,
        settle_per_s: raw.settle_per_s,
        claim_and_settle_per_s: 1.0 / (1.0 / raw.claim_per_s + 1.0 / raw.settle_per_s),
    };
    eprintln!("{}: through the interface", place.name);
    let server = load::Server::start(place, usize::try_from(args.slots).unwrap_or(usize::MAX)).await?;
    let url = server.url.clone();
    let (runs, latency_runs) = (args.runs, args.latency_runs);
    // The client blocks; it has threads of its own, as another process would.
    let driven = tokio::task::spawn_blocking(move || load::drive(&url, runs, BATCH as u64, latency_runs));
    let driven = driven.await.map_err(|error| Failure::server(format!("the load broke off: {error}"), ""))??;
    eprintln!("{}: executions of graphs", place.name);
    let (url, executions) = (server.url.clone(), args.executions);
    let graphs = tokio::task::spawn_blocking(move || graphs::drive(&url, executions));
    let graphs = graphs.await.map_err(|error| Failure::server(format!("the load broke off: {error}"), ""))??;
    eprintln!("{}: single runs", place.name);
    let (url, requests) = (server.url.clone(), (args.runs / SINGLE_SHARE).max(1));
    let singles = tokio::task::spawn_blocking(move || singles::drive(&url, requests));
    let singles = singles.await.map_err(|error| Failure::server(format!("the load broke off: {error}"), ""))??;
    server.stop().await;
    Ok(Figures {
        store: place.name,
        settings: place.settings.clone(),
        runs: args.runs,
        enqueue_per_s: driven.enqueue_per_s,
        claim_to_settle_per_s: driven.claim_to_settle_per_s,
        ratio: Ratio {
            enqueue_to_raw: driven.enqueue_per_s / raw.insert_per_s,
            claim_to_settle_to_raw: driven.claim_to_settle_per_s / raw.claim_and_settle_per_s,
            computations_to_claim_to_settle: graphs.computations_per_s() / driven.claim_to_settle_per_s,
        },
        enqueue_to_start_ms: percentiles(driven.enqueue_to_start_ms),
        graphs,
        singles,
        raw,
    })
}

fn percentiles(mut values: Vec<f64>) -> Percentiles {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        values.get(((values.len().saturating_sub(1)) as f64 * share) as usize).copied().unwrap_or(f64::NAN)
    };
    Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
}
