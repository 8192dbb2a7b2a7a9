//! What became of a host's jobs, and what its administrator does about them. The shapes are those that its callers
//! know, in camelCase; the `/api/v1` calls it has in common with other runs are beside them.

use crate::app::App;
use crate::body::OptionalBody;
use crate::graphs::read;
use crate::params::Params;
use crate::problem::Result;
use crate::schema::{CleanOutcome, ResumeOutcome};
use axum::Json as Answer;
use axum::extract::State;
use everbeat_engine::{Cleaning, FailedJob, RecoveryMetrics, RecoveryStatus, Resumed};
use everbeat_model::time::duration_from;
use everbeat_model::{Invalid, Json, RunId, StoreTime};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What became of the jobs that were there when this replica began, or that it took over since.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RecoveryStatus)]
pub(crate) struct StatusJson {
    /// On this host now.
    running: u64,
    /// Found alive, and watched again.
    reattached: u64,
    /// Ended meanwhile, and settled with their true exit.
    recovered: u64,
    /// Nobody knows how they ended.
    lost: u64,
    /// Of the recovered: those that failed.
    failed: u64,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    started_at: Option<StoreTime>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    completed_at: Option<StoreTime>,
}

/// How the recovery of this host's jobs went.
#[utoipa::path(get, path = "/api/admin/recovery/jobs/status", tag = "recovery", operation_id = "recovery_status",
    responses((status = 200, body = StatusJson)))]
pub(crate) async fn get_status(State(app): State<App>, params: Params) -> Result<Answer<StatusJson>> {
    params.only(&[])?;
    let RecoveryStatus { running, reattached, recovered, lost, failed, started_at, completed_at } =
        app.engine.recovery_status();
    Ok(Answer(StatusJson { running, reattached, recovered, lost, failed, started_at, completed_at }))
}

/// Counted by this process since it started.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RecoveryMetrics)]
pub(crate) struct MetricsJson {
    heartbeat_writes: u64,
    heartbeat_write_failures: u64,
    stale_detected: u64,
    dead_detected: u64,
    reattached: u64,
    lost: u64,
    /// How long the last check of all sentinels took.
    check_ms: f64,
}

#[utoipa::path(get, path = "/api/admin/recovery/jobs/metrics", tag = "recovery", operation_id = "recovery_metrics",
    responses((status = 200, body = MetricsJson)))]
pub(crate) async fn get_recovery_metrics(State(app): State<App>, params: Params) -> Result<Answer<MetricsJson>> {
    params.only(&[])?;
    let RecoveryMetrics {
        heartbeat_writes,
        heartbeat_write_failures,
        stale_detected,
        dead_detected,
        reattached,
        lost,
        check_ms,
    } = app.engine.recovery_metrics();
    Ok(Answer(MetricsJson {
        heartbeat_writes,
        heartbeat_write_failures,
        stale_detected,
        dead_detected,
        reattached,
        lost,
        check_ms,
    }))
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FailedJobs {
    failed_jobs: Vec<FailedJobJson>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = FailedJob)]
struct FailedJobJson {
    #[schema(value_type = Uuid)]
    job_id: RunId,
    reason: String,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    failed_at: Option<StoreTime>,
    /// Absent if nobody knows it.
    #[schema(required)]
    exit_code: Option<i32>,
    #[schema(required)]
    exit_signal: Option<i32>,
    #[schema(required)]
    workspace_path: Option<String>,
    /// Its workspace is still there, or it never had one.
    resumable: bool,
}

impl From<FailedJob> for FailedJobJson {
    fn from(FailedJob { job, reason, resumable }: FailedJob) -> FailedJobJson {
        FailedJobJson {
            job_id: job.run.run.id,
            reason,
            failed_at: job.run.run.finished_at,
            exit_code: job.exit.exit_code,
            exit_signal: job.exit.exit_signal,
            workspace_path: job.workspace_path,
            resumable,
        }
    }
}

/// Jobs that failed, newest first.
#[utoipa::path(get, path = "/api/admin/recovery/jobs/failed", tag = "recovery",
    responses((status = 200, body = FailedJobs)))]
pub(crate) async fn list_failed(State(app): State<App>, params: Params) -> Result<Answer<FailedJobs>> {
    params.only(&[])?;
    let failed = app.engine.failed_jobs().await?;
    Ok(Answer(FailedJobs { failed_jobs: failed.into_iter().map(FailedJobJson::from).collect() }))
}

/// Which failed jobs are to be opened again.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Resume {
    /// All that failed, unless given.
    #[schema(max_items = 10000)]
    job_ids: Option<Vec<String>>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ResumeAnswer {
    results: Vec<ResumedJson>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Resumed)]
struct ResumedJson {
    /// As it was given.
    job_id: String,
    #[schema(value_type = ResumeOutcome)]
    outcome: &'static str,
    detail: String,
}

/// One request opens no more jobs again.
const MOST_RESUMED: usize = 10_000;

/// Opens failed jobs again, in their workspaces: those named, or all.
#[utoipa::path(post, path = "/api/admin/recovery/jobs/resume", tag = "recovery", operation_id = "resume_jobs",
    request_body = Option<Resume>, responses((status = 200, body = ResumeAnswer)))]
pub(crate) async fn resume_jobs(
    State(app): State<App>,
    params: Params,
    OptionalBody(resume): OptionalBody<Resume>,
) -> Result<Answer<ResumeAnswer>> {
    params.only(&[])?;
    if let Some(count) = resume.job_ids.as_ref().map(Vec::len).filter(|count| *count > MOST_RESUMED) {
        let hint = format!("name at most {MOST_RESUMED} jobs in one request");
        return Err(Invalid::new("jobIds", count, "are too many", hint).into());
    }
    let resumed = app.engine.resume_jobs(resume.job_ids).await?;
    let results =
        resumed.into_iter().map(|Resumed { job, outcome, detail }| ResumedJson { job_id: job, outcome, detail });
    Ok(Answer(ResumeAnswer { results: results.collect() }))
}

/// Which folders of jobs that are over are to be removed.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Clean {
    /// Only count what would be removed.
    dry_run: Option<bool>,
    /// Those that ended longer ago than this, like `"30d"` or a number of seconds; `jobs.keep` unless given.
    #[schema(required = false, value_type = Value)]
    older_than: Option<Json>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct CleanAnswer {
    results: Vec<CleaningJson>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Cleaning)]
struct CleaningJson {
    #[schema(value_type = Uuid)]
    job_id: RunId,
    #[schema(value_type = CleanOutcome)]
    outcome: &'static str,
    #[schema(required)]
    detail: Option<String>,
    /// Files and folders.
    entries: u64,
    bytes: u64,
    /// Where its workspace is kept, if it held anything.
    #[schema(required)]
    archived_to: Option<String>,
}

impl From<Cleaning> for CleaningJson {
    fn from(Cleaning { job, outcome, detail, entries, bytes, archived_to }: Cleaning) -> CleaningJson {
        CleaningJson { job_id: job, outcome, detail, entries, bytes, archived_to }
    }
}

/// Removes the folders of this host's jobs that are over for long enough; their workspaces are archived.
#[utoipa::path(post, path = "/api/admin/recovery/jobs/clean", tag = "recovery", operation_id = "clean_jobs",
    request_body = Option<Clean>,
    responses(
        (status = 200, body = CleanAnswer),
        (status = 409, description = "The jobs of this host are still being looked at"),
    ))]
pub(crate) async fn clean_jobs(
    State(app): State<App>,
    params: Params,
    OptionalBody(clean): OptionalBody<Clean>,
) -> Result<Answer<CleanAnswer>> {
    params.only(&[])?;
    let span = |older_than: &Json| read(older_than).and_then(|value| duration_from(&value));
    let older_than = clean.older_than.as_ref().map(span).transpose().map_err(|invalid| invalid.within("olderThan"))?;
    let cleaned = app.engine.clean_jobs(older_than, clean.dry_run.unwrap_or(false)).await?;
    Ok(Answer(CleanAnswer { results: cleaned.into_iter().map(CleaningJson::from).collect() }))
}

#[derive(Serialize, ToSchema)]
pub(crate) struct StartupLog {
    #[schema(value_type = Vec<Object>)]
    startups: Vec<Json>,
}

/// What this host recovered at its latest starts, newest first.
#[utoipa::path(get, path = "/api/admin/startup-log", tag = "recovery",
    responses(
        (status = 200, body = StartupLog),
        (status = 409, description = "The log cannot be read"),
    ))]
pub(crate) async fn get_startup_log(State(app): State<App>, params: Params) -> Result<Answer<StartupLog>> {
    params.only(&[])?;
    Ok(Answer(StartupLog { startups: app.engine.startup_log().await? }))
}
