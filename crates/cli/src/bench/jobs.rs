//! Detached jobs of a real server process, which is killed and started again under them.

use super::load::{Client, now, pause};
use super::process::Server;
use super::{Percentiles, interrupt, percentiles};
use crate::exit::Failure;
use everbeat_engine::Fenced;
use everbeat_supervisor::job::{self, Found, FoundState, JobFolder, Spec, sentinel};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;
use uuid::Uuid;

#[derive(Debug, Serialize)]
pub(crate) struct JobFigures {
    jobs: usize,
    /// From the first request until the last command runs.
    started_per_s: f64,
    /// From the start of the server's process until all jobs of a killed one are watched again.
    restart_to_reattached_ms: f64,
    /// The part of it that looks at the jobs.
    scan_ms: f64,
    /// One look at the age of all sentinels.
    staleness_check_ms: f64,
    /// One sentinel written aside and renamed, on the disk of the temporary folder.
    heartbeat_write_ms: Percentiles,
    /// From the kill of a shim until a client that waits knows the verdict.
    shim_death_to_verdict_ms: Percentiles,
    /// Memory that a shim shares with nobody, on average.
    shim_private_kib: f64,
    /// The part of it that is not the program itself.
    shim_anonymous_kib: f64,
}

const DEATHS: usize = 100;
const WRITES: usize = 1000;
const LOOK: Duration = Duration::from_millis(5);

pub(crate) fn drive(jobs: usize) -> Result<JobFigures, Failure> {
    let folder = std::env::temp_dir().join(format!("everbeat-bench-{}", Uuid::new_v4()));
    std::fs::create_dir(&folder).map_err(|error| fail(&error))?;
    let driven = measure(&folder, jobs);
    end_all(&folder.join("jobs"));
    if let Err(error) = std::fs::remove_dir_all(&folder) {
        eprintln!("{} stays behind: {error}", folder.display());
    }
    driven
}

fn measure(data_dir: &Path, jobs: usize) -> Result<JobFigures, Failure> {
    let mut server = start(data_dir, jobs)?;
    let begun = now();
    let mut ids = Vec::with_capacity(jobs);
    for _ in 0..jobs {
        interrupt::check()?;
        let body = json!({ "command": ["sleep", "600"] }).to_string();
        let job: Value = serde_json::from_str(&server.client.post("/api/v1/jobs", Some(&body))?).unwrap_or_default();
        ids.push(job["job_id"].as_str().unwrap_or_default().to_string());
    }
    let fresh = |client: &Client| {
        let heartbeats = client.get("/api/admin/recovery/jobs/heartbeats")?;
        Ok::<bool, Failure>(heartbeats["summary"]["fresh"].as_u64() == Some(jobs as u64))
    };
    while !fresh(&server.client)? {
        interrupt::check()?;
        pause(LOOK * 10);
    }
    let started_per_s = jobs as f64 / begun.elapsed().as_secs_f64();

    server.kill();
    let begun = now();
    let server = start(data_dir, jobs)?;
    let (status, restarted) = loop {
        interrupt::check()?;
        let status = server.client.get("/api/admin/recovery/jobs/status")?;
        if !status["completedAt"].is_null() && status["reattached"].as_u64() == Some(jobs as u64) {
            break (status, begun.elapsed());
        }
        pause(LOOK);
    };
    let check = loop {
        interrupt::check()?;
        let metrics = server.client.get("/api/admin/recovery/jobs/metrics")?;
        match metrics["checkMs"].as_f64() {
            Some(check) if check > 0.0 => break check,
            _ => pause(LOOK * 10),
        }
    };
    let shims = shims(data_dir, &ids);
    let memory: Vec<(f64, f64)> = shims.iter().filter_map(|(_, shim)| memory(*shim)).collect();
    let average = |part: fn(&(f64, f64)) -> f64| memory.iter().map(part).sum::<f64>() / memory.len().max(1) as f64;
    Ok(JobFigures {
        jobs,
        started_per_s,
        restart_to_reattached_ms: millis(restarted),
        scan_ms: span(&status["startedAt"], &status["completedAt"]),
        staleness_check_ms: check,
        heartbeat_write_ms: percentiles(writes(data_dir)?),
        shim_private_kib: average(|memory| memory.0),
        shim_anonymous_kib: average(|memory| memory.1),
        shim_death_to_verdict_ms: percentiles(deaths(&server.client, &shims)?),
    })
}

/// Kills shims one after the other, each while a client waits for its job.
fn deaths(client: &Client, shims: &[(String, Pid)]) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::new();
    for (job, shim) in shims.iter().take(DEATHS) {
        interrupt::check()?;
        let path = format!("/api/v1/jobs/{job}?wait=finished&timeout=30s");
        let took = std::thread::scope(|scope| {
            let waits = scope.spawn(|| client.get(&path).map(|_| now()));
            // It waits by then.
            pause(LOOK * 4);
            let killed = now();
            kill_process(*shim, Signal::KILL).map_err(|error| fail(&error))?;
            let told = waits.join().map_err(|_| Failure::server("a client broke", ""))??;
            Ok::<f64, Failure>(millis(told.duration_since(killed)))
        });
        times.push(took?);
    }
    Ok(times)
}

fn writes(data_dir: &Path) -> Result<Vec<f64>, Failure> {
    let folder = JobFolder::create(&data_dir.join("writes"), "sentinel").map_err(|error| fail(&error))?;
    let sentinel = sentinel::Sentinel::sample(&folder).map_err(|error| fail(&error))?;
    let mut times = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let begun = now();
        sentinel::write(&folder, &sentinel).map_err(|error| fail(&error))?;
        times.push(millis(begun.elapsed()));
    }
    Ok(times)
}

/// The shims of jobs, found by the folder that stands on their command lines.
fn shims(data_dir: &Path, jobs: &[String]) -> Vec<(String, Pid)> {
    let root = data_dir.join("jobs").display().to_string();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let shim = |number: i32| {
        let line = std::fs::read_to_string(format!("/proc/{number}/cmdline")).ok()?;
        let folder = line.split('\0').find_map(|part| part.strip_prefix(&root)?.strip_prefix('/'))?;
        jobs.iter().any(|job| job == folder).then(|| Some((folder.to_string(), Pid::from_raw(number)?))).flatten()
    };
    entries.filter_map(|entry| shim(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// What a process shares with nobody, and the part of it that no file backs, in KiB.
fn memory(process: Pid) -> Option<(f64, f64)> {
    let said = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", process.as_raw_nonzero())).ok()?;
    let of = |name: &str| -> Option<f64> {
        let line = said.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some((of("Private_Clean:")? + of("Private_Dirty:")?, of("Anonymous:")?))
}

fn start(data_dir: &Path, slots: usize) -> Result<Server, Failure> {
    let settings = [("EVERBEAT_JOBS__SLOTS", slots.to_string()), ("EVERBEAT_JOBS__CHECK_INTERVAL", "1s".to_string())];
    Server::start(data_dir, &settings, None)
}

/// Ends every job, with all its processes and its cgroup. A shim that was just starting may hold its lock at one look and
/// answer only at the next.
fn end_all(jobs: &Path) {
    let begun = now();
    loop {
        let left: Vec<String> =
            job::scan(jobs).into_iter().flatten().filter(|found| !end(jobs, found)).map(|found| found.job_id).collect();
        if left.is_empty() {
            return;
        }
        if begun.elapsed() > END_WITHIN {
            eprintln!("something of these jobs stays behind: {}", left.join(", "));
            return;
        }
        pause(LOOK * 10);
    }
}

const END_WITHIN: Duration = Duration::from_secs(60);

/// Whether nothing of the job is left, nor will ever be.
fn end(jobs: &Path, found: &Found) -> bool {
    let Ok(folder) = JobFolder::open(jobs, &found.job_id) else { return false };
    if let FoundState::Held(holder) = &found.state {
        // Whether it is gone shows at the next look.
        let _looked_at_again = holder.as_ref().map(|identity| job::kill(&folder, identity));
        return false;
    }
    // Without a spec nothing was ever started.
    let Ok(spec) = Spec::read(&folder) else { return true };
    matches!(job::fence(&folder, &spec.identity()), Ok(Fenced::Lost | Fenced::NeverStarted | Fenced::Exited(_)))
}

fn span(from: &Value, to: &Value) -> f64 {
    let time = |value: &Value| everbeat_model::StoreTime::parse(value.as_str().unwrap_or_default()).ok();
    time(to).zip(time(from)).map_or(f64::NAN, |(to, from)| millis(to.since(from)))
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

fn fail(error: &dyn Display) -> Failure {
    Failure::server(format!("jobs cannot be measured: {error}"), "")
}
