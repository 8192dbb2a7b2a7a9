//! Runs that do nothing, performed by Python workers of a pool with one slot each.

use super::super::load::{now, pause};
use super::super::process::{Server, cpu};
use super::super::{Percentiles, interrupt, percentiles};
use super::fail;
use crate::exit::Failure;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

#[derive(Debug, Serialize)]
pub(crate) struct WorkerFigures {
    workers: u64,
    runs: u64,
    /// From the moment the queue is let go until the last run is settled, as the interface shows it.
    runs_per_s: f64,
    /// CPU time of the server for each of these runs.
    server_cpu_us_per_run: f64,
    /// CPU time of all workers for each of these runs.
    worker_cpu_us_per_run: f64,
    /// From before the request that submits a run until the answer that it succeeded, one run at a time.
    submit_to_succeeded_ms: Percentiles,
}

const TASKS: &str = "import everbeat\n\napp = everbeat.App()\n\n\n@app.task\ndef nothing(ctx):\n    return None\n";
const POOL: &str = "bench";
const LOOK: Duration = Duration::from_millis(10);
const START_WITHIN: Duration = Duration::from_secs(60);
/// Runs in one request.
const BATCH: u64 = 1000;

pub(super) fn drive(
    folder: &Path,
    python: &Path,
    sizes: &[u64],
    (runs, latency_runs): (u64, u64),
) -> Result<Vec<WorkerFigures>, Failure> {
    std::fs::write(folder.join("bench_tasks.py"), TASKS).map_err(|error| fail(&error))?;
    let quoted = |path: &Path| Value::from(path.display().to_string());
    let config = format!(
        "[telemetry]\nlog = \"warn\"\n[[pool]]\nname = \"{POOL}\"\nqueues = [\"{POOL}\"]\nslots = 1\nsize = 1\ncwd = {}\n\
        command = [{}, \"-m\", \"everbeat.worker\", \"bench_tasks:app\"]\n",
        quoted(folder),
        quoted(python)
    );
    let server = Server::start(folder, &[], Some(&config))?;
    let measured = sizes.iter().map(|size| measure(&server, *size, runs, latency_runs)).collect();
    server.stop();
    measured
}

fn measure(server: &Server, size: u64, runs: u64, latency_runs: u64) -> Result<WorkerFigures, Failure> {
    let pids = scaled(server, size)?;
    let client = &server.client;
    client.post(&format!("/api/v1/queues/{POOL}/pause"), None)?;
    let mut left = runs;
    while left > 0 {
        interrupt::check()?;
        let batch = left.min(BATCH);
        let each = vec![json!({ "task": "nothing", "queue": POOL }); usize::try_from(batch).unwrap_or(1)];
        client.post("/api/v1/runs:batch", Some(&json!({ "runs": each }).to_string()))?;
        left -= batch;
    }
    let of_workers = || pids.iter().try_fold(Duration::ZERO, |sum, pid| Ok::<_, Failure>(sum + cpu(*pid)?));
    let before = (cpu(server.pid())?, of_workers()?);
    let begun = now();
    client.post(&format!("/api/v1/queues/{POOL}/resume"), None)?;
    while client.unfinished()? > 0 {
        interrupt::check()?;
        pause(LOOK);
    }
    let runs_per_s = runs as f64 / begun.elapsed().as_secs_f64();
    let per_run = |after: Duration, before: Duration| (after - before).as_secs_f64() * 1e6 / runs as f64;
    let after = (cpu(server.pid())?, of_workers()?);
    let (server_cpu_us_per_run, worker_cpu_us_per_run) = (per_run(after.0, before.0), per_run(after.1, before.1));
    let latencies = (0..latency_runs).map(|_| latency(server)).collect::<Result<_, _>>()?;
    Ok(WorkerFigures {
        workers: size,
        runs,
        runs_per_s,
        server_cpu_us_per_run,
        worker_cpu_us_per_run,
        submit_to_succeeded_ms: percentiles(latencies),
    })
}

/// Has the pool another size; answers the processes of its workers.
fn scaled(server: &Server, size: u64) -> Result<Vec<u32>, Failure> {
    let client = &server.client;
    client.post(&format!("/api/v1/pools/{POOL}/scale"), Some(&json!({ "size": size }).to_string()))?;
    let begun = now();
    loop {
        interrupt::check()?;
        let pool = client.get(&format!("/api/v1/pools/{POOL}"))?;
        if pool["ready"].as_u64() == Some(size) {
            break;
        }
        if begun.elapsed() > START_WITHIN {
            let why = pool["degraded_reason"].as_str().unwrap_or("no reason is known");
            return Err(fail(&format!("{} of {size} workers serve: {why}", pool["ready"])));
        }
        pause(LOOK);
    }
    let workers = client.get("/api/v1/workers?limit=1000")?;
    let pids = workers["items"].as_array().into_iter().flatten().filter_map(|worker| worker["pid"].as_u64());
    Ok(pids.filter_map(|pid| u32::try_from(pid).ok()).collect())
}

fn latency(server: &Server) -> Result<f64, Failure> {
    interrupt::check()?;
    let client = &server.client;
    let begun = now();
    let body = json!({ "task": "nothing", "queue": POOL }).to_string();
    let run: Value = serde_json::from_str(&client.post("/api/v1/runs", Some(&body))?).unwrap_or_default();
    let id = run["id"].as_str().unwrap_or_default();
    let run = client.get(&format!("/api/v1/runs/{id}?wait=finished&timeout=30s"))?;
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    match run["state"].as_str() {
        Some("succeeded") => Ok(took),
        state => Err(fail(&format!("run {id} is {state:?}"))),
    }
}
