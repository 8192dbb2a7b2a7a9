//! Jobs for tests: real commands, detached from the server that started them.
#![allow(dead_code, reason = "each test file uses a part")]

use crate::common::{Options, Server, quick, until};
use everbeat_supervisor::job::{FoundState, JobFolder, fence, kill, scan};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What follows by itself. The machine and its disk may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// What takes its time.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Servers of one data folder. What is still running of its jobs is killed when the test is over: they are
/// detached, and would outlive it.
pub(crate) struct Host {
    pub(crate) options: Options,
}

impl Host {
    pub(crate) fn new() -> Host {
        Host::with(quick().env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "200ms"))
    }

    pub(crate) fn with(options: Options) -> Host {
        Host { options }
    }

    pub(crate) fn start(&self) -> Server {
        Server::start(self.options.clone())
    }

    /// At the address where an earlier one was.
    pub(crate) fn start_at(&self, address: &str) -> Server {
        Server::start(self.options.clone().listen(address))
    }

    pub(crate) fn jobs(&self) -> PathBuf {
        self.options.data_dir.join("jobs")
    }

    pub(crate) fn folder(&self, job: &str) -> PathBuf {
        self.jobs().join(job)
    }

    pub(crate) fn workspace(&self, job: &str) -> PathBuf {
        self.folder(job).join("workspace")
    }

    /// Ids of processes that bear the tag of a job: the command, and whatever it started.
    pub(crate) fn processes(&self, job: &str) -> Vec<u32> {
        tagged(&format!("EVERBEAT_JOB_ID={job}"))
    }

    /// The shim of a job, found by its command line.
    pub(crate) fn shim(&self, job: &str) -> Option<u32> {
        self.shims(job).next()
    }

    /// The same of one that a kill point has stopped, and not of who started it and waits.
    pub(crate) fn frozen_shim(&self, job: &str) -> Option<u32> {
        let stat = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        self.shims(job).find(|pid| stat(pid).contains(") T "))
    }

    fn shims(&self, job: &str) -> impl Iterator<Item = u32> {
        let folder = self.folder(job).display().to_string();
        all_processes().filter(move |pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|part| part == folder.as_bytes())
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        end_all(&self.jobs());
    }
}

/// Kills whatever jobs still run below a folder.
pub(crate) fn end_all(jobs: &Path) {
    for found in scan(jobs).into_iter().flatten() {
        if let FoundState::Held(Ok(identity)) = found.state
            && let Ok(folder) = JobFolder::open(jobs, &found.job_id)
        {
            let _it_may_have_ended = kill(&folder, &identity);
            let _nothing_is_left = fence(&folder, &identity);
        }
    }
}

fn all_processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Processes with this line in their environment.
pub(crate) fn tagged(line: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|part| part == line.as_bytes())
    };
    all_processes().filter(has).collect()
}

pub(crate) fn signal(pid: u32, name: &str) {
    let command = format!("kill -s {name} {pid}");
    let status = std::process::Command::new("sh").args(["-c", &command]).status().expect("a shell");
    assert!(status.success(), "{command}");
}

/// What a test asks of a server about jobs.
pub(crate) trait Jobs {
    fn job(&self, command: &[&str]) -> String;
    fn job_with(&self, body: Value) -> String;
    fn shell(&self, script: &str) -> String;
    fn look(&self, job: &str) -> Value;
    fn ended(&self, job: &str) -> Value;
    fn runs(&self, job: &str) -> Value;
    fn output(&self, job: &str) -> String;
}

impl Jobs for Server {
    fn job(&self, command: &[&str]) -> String {
        self.job_with(json!({ "command": command }))
    }

    fn job_with(&self, body: Value) -> String {
        let (status, job) = self.post("/api/v1/jobs", &body);
        assert_eq!(status, 201, "{job}");
        job["job_id"].as_str().expect("an id").to_string()
    }

    /// A job that is a shell's script: the shell is the test's, not Everbeat's.
    fn shell(&self, script: &str) -> String {
        self.job(&["sh", "-c", script])
    }

    fn look(&self, job: &str) -> Value {
        self.get(&format!("/api/v1/jobs/{job}"))
    }

    /// Waits for its end.
    fn ended(&self, job: &str) -> Value {
        until(LONG, "the end of a job", || {
            let (status, value) = self.try_get(&format!("/api/v1/jobs/{job}?wait=finished&timeout=10s"))?;
            assert!([200, 408, 503].contains(&status), "{status} {value}");
            (status == 200).then_some(value)
        })
    }

    /// Waits until its command has begun.
    fn runs(&self, job: &str) -> Value {
        until(SOON, "a running job", || {
            let found = self.look(job);
            let begun = found["state"] == "running" && found["starting"] == false;
            let begun = begun && found["heartbeat_status"] == "fresh";
            begun.then_some(found)
        })
    }

    fn output(&self, job: &str) -> String {
        let said = self.get(&format!("/api/v1/jobs/{job}/logs?stream=stdout"));
        // A body that happens to be JSON is read as such.
        said.as_str().map_or_else(|| said.to_string(), ToString::to_string)
    }
}
