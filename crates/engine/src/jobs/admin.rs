//! What the administrator of a host's jobs sees and does.

use super::{Found, HeartbeatStatus, JobView, Lock, Recovery};
use crate::engine::lock;
use crate::replica::Life;
use crate::{Engine, Error, Result};
use everbeat_model::run::Kind;
use everbeat_model::{Json, Outcome, RunId, RunState, StoreTime};
use everbeat_store::RunFilter;
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What became of the jobs that were there when this replica began, or that it took over since.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryStatus {
    /// On this host now.
    pub running: u64,
    /// Found alive, and watched again.
    pub reattached: u64,
    /// Ended meanwhile, and settled with their true exit.
    pub recovered: u64,
    /// Nobody knows how they ended.
    pub lost: u64,
    /// Of the recovered: those that failed.
    pub failed: u64,
    pub started_at: Option<StoreTime>,
    pub completed_at: Option<StoreTime>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryMetrics {
    pub heartbeat_writes: u64,
    pub heartbeat_write_failures: u64,
    pub stale_detected: u64,
    pub dead_detected: u64,
    pub reattached: u64,
    pub lost: u64,
    /// How long the last check of all sentinels took.
    pub check_ms: f64,
}

/// A sentinel of this host, as it is on the disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Sentinel {
    pub job: RunId,
    pub path: String,
    pub status: Option<String>,
    pub last_heartbeat: Option<String>,
    pub seq: Option<u64>,
    pub valid: bool,
    pub error: Option<String>,
    pub lock: Lock,
    pub exit_record: bool,
}

/// The heartbeat of a running job.
#[derive(Clone, Debug, PartialEq)]
pub struct Heartbeat {
    pub job: RunId,
    pub last_heartbeat: Option<String>,
    pub age: Option<Duration>,
    pub status: HeartbeatStatus,
    pub agent_engine: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StaleJob {
    pub job: RunId,
    pub last_heartbeat: Option<String>,
    pub age: Duration,
    pub workspace_path: Option<String>,
    /// `investigate`, `resume` or `none`.
    pub recommended_action: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FailedJob {
    pub job: JobView,
    pub reason: String,
    pub resumable: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    pub job: RunId,
    pub heartbeat_status: HeartbeatStatus,
    pub last_heartbeat: Option<String>,
    pub age: Option<Duration>,
    pub sentinel_exists: bool,
    pub workspace_exists: bool,
    pub session_data_exists: bool,
    /// Why its sentinel cannot be read or was not written, if so.
    pub error: Option<String>,
}

/// What was done about one failed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    pub job: String,
    /// `resumed`, `skipped` or `not-found`.
    pub outcome: &'static str,
    pub detail: String,
}

/// What was done about one folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaning {
    pub job: RunId,
    /// `removed`, `would-remove` or `left-alone`.
    pub outcome: &'static str,
    pub detail: Option<String>,
    pub entries: u64,
    pub bytes: u64,
    pub archived_to: Option<String>,
}

/// A report names so many jobs.
const MOST_REPORTED: usize = 10_000;
const PAGE: usize = 500;

impl Recovery {
    pub(super) fn status(&self, life: &Life) -> RecoveryStatus {
        let count = |found: Found| self.counts.get(found.as_str()).copied().unwrap_or_default();
        RecoveryStatus {
            running: life.table().all().iter().filter(|work| work.claimed.spec.detached()).count() as u64,
            reattached: count(Found::Reattached),
            recovered: count(Found::Ended(Outcome::Succeeded)),
            lost: count(Found::Ended(Outcome::Lost)),
            failed: self.failed,
            started_at: self.started_at,
            completed_at: self.completed_at,
        }
    }
}

impl Engine {
    pub fn recovery_status(&self) -> RecoveryStatus {
        match self.core.life() {
            Some(life) => lock(&self.core.jobs.recovery).status(&life),
            None => RecoveryStatus::default(),
        }
    }

    pub fn recovery_metrics(&self) -> RecoveryMetrics {
        let counts = &self.core.jobs.counts;
        let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        RecoveryMetrics {
            heartbeat_writes: read(&counts.heartbeat_writes),
            heartbeat_write_failures: read(&counts.heartbeat_write_failures),
            stale_detected: read(&counts.stale_detected),
            dead_detected: read(&counts.dead_detected),
            reattached: read(&counts.reattached),
            lost: read(&counts.lost),
            check_ms: read(&counts.check_us) as f64 / 1000.0,
        }
    }

    /// Every folder of a job on this host, whatever stands in it.
    pub async fn sentinels(&self) -> Result<Vec<Sentinel>> {
        let Some(shims) = &self.core.jobs.shims else { return Ok(Vec::new()) };
        let mut jobs = shims.folders().await.map_err(|error| unreadable(&error))?;
        jobs.reverse();
        jobs.truncate(MOST_REPORTED);
        let readings = shims.sentinels(jobs.clone()).await;
        let sentinel = |(job, reading): (RunId, super::SentinelReading)| Sentinel {
            job,
            path: reading.path,
            status: reading.status,
            last_heartbeat: reading.last_heartbeat,
            seq: reading.seq,
            valid: reading.problem.is_none(),
            error: reading.problem.or_else(|| self.write_error(job)).or(reading.write_error),
            lock: reading.lock,
            exit_record: reading.exit_record,
        };
        Ok(jobs.into_iter().zip(readings).map(sentinel).collect())
    }

    /// The heartbeats of the running jobs. Those of other hosts cannot be seen from here: unknown.
    pub async fn heartbeats(&self) -> Result<Vec<Heartbeat>> {
        let running = self.all_jobs(RunState::Running).await?;
        let here: Vec<RunId> = running.iter().filter(|job| self.is_here(&job.run)).map(|job| job.run.run.id).collect();
        let readings = match &self.core.jobs.shims {
            Some(shims) => shims.sentinels(here.clone()).await,
            None => Vec::new(),
        };
        let read: std::collections::BTreeMap<_, _> = here.into_iter().zip(readings).collect();
        let heartbeat = |job: JobView| {
            let id = job.run.run.id;
            let reading = read.get(&id).filter(|reading| reading.problem.is_none());
            Heartbeat {
                job: id,
                last_heartbeat: reading.and_then(|reading| reading.last_heartbeat.clone()),
                age: reading.and_then(|reading| reading.age),
                status: job.heartbeat_status.unwrap_or(HeartbeatStatus::Unknown),
                agent_engine: job.command.agent_engine,
            }
        };
        Ok(running.into_iter().map(heartbeat).collect())
    }

    /// Jobs of this host with an old sentinel: the running ones, and those that were lost.
    pub async fn stale_jobs(&self) -> Result<Vec<StaleJob>> {
        let mut jobs = self.all_jobs(RunState::Running).await?;
        let lost = |job: &JobView| job.exit.exit_code.is_none() && job.exit.exit_signal.is_none();
        jobs.extend(self.all_jobs(RunState::Failed).await?.into_iter().filter(lost));
        jobs.retain(|job| self.is_here(&job.run));
        let Some(shims) = &self.core.jobs.shims else { return Ok(Vec::new()) };
        let readings = shims.sentinels(jobs.iter().map(|job| job.run.run.id).collect()).await;
        let settings = &self.core.settings.jobs;
        let stale = jobs.into_iter().zip(readings).filter_map(|(job, reading)| {
            let run = &job.run.run;
            let status = settings.status(&reading, run.attempt);
            let action = match (run.state, status) {
                (_, HeartbeatStatus::Fresh | HeartbeatStatus::Unknown) => return None,
                (RunState::Failed, _) => "resume",
                // Its lock is held: it lives, whatever its sentinel says.
                (_, _) if reading.lock == Lock::Held => "investigate",
                (_, HeartbeatStatus::Stale) => "investigate",
                (_, HeartbeatStatus::Dead) => "none",
            };
            Some(StaleJob {
                job: run.id,
                last_heartbeat: reading.last_heartbeat,
                age: reading.age.unwrap_or_default(),
                workspace_path: job.workspace_path,
                recommended_action: action,
            })
        });
        Ok(stale.collect())
    }

    pub async fn failed_jobs(&self) -> Result<Vec<FailedJob>> {
        let failed = self.all_jobs(RunState::Failed).await?;
        let mut reported = Vec::with_capacity(failed.len());
        for job in failed {
            let resumable = match &self.core.jobs.shims {
                Some(shims) if self.is_here(&job.run) => shims.traces(job.run.run.id).await.workspace,
                // Elsewhere, or never begun anywhere: it is tried where its workspace is, or anew.
                _ => true,
            };
            let said = job.run.run.error.as_ref().map(Json::value).unwrap_or_default();
            let reason = said["message"].as_str().unwrap_or("failed").to_string();
            reported.push(FailedJob { reason, resumable, job });
        }
        Ok(reported)
    }

    /// Opens failed jobs again, with their workspaces: those named, or all that failed.
    pub async fn resume_jobs(&self, jobs: Option<Vec<String>>) -> Result<Vec<Resumed>> {
        let jobs = match jobs {
            Some(jobs) => jobs,
            None => self.all_jobs(RunState::Failed).await?.iter().map(|job| job.run.run.id.to_string()).collect(),
        };
        let mut resumed = Vec::with_capacity(jobs.len());
        for job in jobs {
            resumed.push(self.resume_job(job).await?);
        }
        Ok(resumed)
    }

    async fn resume_job(&self, job: String) -> Result<Resumed> {
        let said = |outcome, detail: String| Ok(Resumed { job: job.clone(), outcome, detail });
        let Ok(id) = job.parse::<RunId>() else { return said("not-found", "is not the id of a job".to_string()) };
        let view = match self.job(id).await {
            Err(Error::NotFound { .. }) => return said("not-found", "no job has this id".to_string()),
            view => view?,
        };
        if view.run.run.state != RunState::Failed {
            return said("skipped", format!("it is {}, not failed", view.run.run.state.as_str()));
        }
        match self.retry(id).await {
            Ok(_) => {
                let place = view.workspace_path.map_or_else(String::new, |path| format!(" in {path}"));
                said("resumed", format!("attempt {} follows{place}", view.run.run.attempt + 1))
            }
            Err(Error::Conflict { problem, .. }) => said("skipped", problem),
            Err(error) => Err(error),
        }
    }

    pub async fn job_health(&self, id: RunId) -> Result<Health> {
        let job = self.job(id).await?;
        let (reading, traces) = match &self.core.jobs.shims {
            Some(shims) if self.is_here(&job.run) => {
                (shims.sentinels(vec![id]).await.pop().unwrap_or_default(), shims.traces(id).await)
            }
            _ => Default::default(),
        };
        let heartbeat_status = self.core.settings.jobs.status(&reading, job.run.run.attempt);
        let valid = reading.problem.is_none();
        // There is nothing to be read of one that has not begun.
        let problem = reading.problem.filter(|_| traces.sentinel);
        Ok(Health {
            job: id,
            heartbeat_status,
            last_heartbeat: reading.last_heartbeat.filter(|_| valid),
            age: reading.age.filter(|_| valid),
            sentinel_exists: traces.sentinel,
            workspace_exists: traces.workspace,
            session_data_exists: traces.session_data,
            error: problem.or_else(|| self.write_error(id)).or(reading.write_error),
        })
    }

    /// What this host recovered at its latest starts, newest first.
    pub async fn startup_log(&self) -> Result<Vec<Json>> {
        let Some(shims) = &self.core.jobs.shims else { return Ok(Vec::new()) };
        shims.starts().await.map_err(|error| unreadable(&error))
    }

    async fn all_jobs(&self, state: RunState) -> Result<Vec<JobView>> {
        let mut all: Vec<JobView> = Vec::new();
        loop {
            let before = all.last().map(|job| job.run.run.id);
            let filter =
                RunFilter { state: Some(state), kind: Some(Kind::Job), before, limit: PAGE, ..RunFilter::default() };
            let page = self.jobs(filter).await?;
            let more = page.cut_short || page.items.len() == PAGE;
            all.extend(page.items);
            if !more || all.len() >= MOST_REPORTED {
                return Ok(all);
            }
        }
    }
}

fn unreadable(error: &std::io::Error) -> Error {
    Error::Conflict {
        problem: format!("the folder of jobs cannot be read: {error}"),
        hint: "look at the data folder and its permissions".to_string(),
    }
}
