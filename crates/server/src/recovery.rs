//! What the administrator of a host's jobs sees and does. The shapes are those that its callers know, in
//! camelCase; the `/api/v1` calls it has in common with other runs are beside them.

use crate::app::App;
use crate::body::OptionalBody;
use crate::graphs::read;
use crate::params::{Params, Segment};
use crate::problem::Result;
use crate::schema::{CleanOutcome, HeartbeatStatusName, LockName, RecommendedAction, ResumeOutcome};
use axum::Json as Answer;
use axum::extract::State;
use everbeat_engine::{
    Cleaning, FailedJob, Health, Heartbeat, HeartbeatStatus, RecoveryMetrics, RecoveryStatus, Resumed, Sentinel,
    StaleJob,
};
use everbeat_model::time::duration_from;
use everbeat_model::{Invalid, Json, RunId, StoreTime};
use serde::{Deserialize, Serialize};
use std::time::Duration;
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

#[derive(Serialize, ToSchema)]
pub(crate) struct Sentinels {
    sentinels: Vec<SentinelJson>,
}

/// A job's heartbeat file, as it is on the disk.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Sentinel)]
struct SentinelJson {
    #[schema(value_type = Uuid)]
    job_id: RunId,
    path: String,
    #[schema(required)]
    status: Option<String>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    last_heartbeat: Option<String>,
    /// Rises with every write.
    #[schema(required)]
    seq: Option<u64>,
    valid: bool,
    /// Why it is not valid, or why it was not written when it should have been.
    #[schema(required)]
    error: Option<String>,
    /// Whether its shim holds its lock.
    #[schema(value_type = LockName)]
    lock: &'static str,
    /// Whether the job's exit is recorded.
    exit_record: bool,
}

impl From<Sentinel> for SentinelJson {
    fn from(sentinel: Sentinel) -> SentinelJson {
        SentinelJson {
            job_id: sentinel.job,
            path: sentinel.path,
            status: sentinel.status,
            last_heartbeat: time(sentinel.last_heartbeat),
            seq: sentinel.seq,
            valid: sentinel.valid,
            error: sentinel.error,
            lock: sentinel.lock.as_str(),
            exit_record: sentinel.exit_record,
        }
    }
}

/// What a file says may be no time at all.
fn time(said: Option<String>) -> Option<String> {
    said.filter(|said| StoreTime::parse(said).is_ok())
}

/// Every job's folder on this host, with its sentinel, readable or not.
#[utoipa::path(get, path = "/api/admin/recovery/jobs/sentinels", tag = "recovery",
    responses(
        (status = 200, body = Sentinels),
        (status = 409, description = "The folder of jobs cannot be read"),
    ))]
pub(crate) async fn list_sentinels(State(app): State<App>, params: Params) -> Result<Answer<Sentinels>> {
    params.only(&[])?;
    let sentinels = app.engine.sentinels().await?;
    Ok(Answer(Sentinels { sentinels: sentinels.into_iter().map(SentinelJson::from).collect() }))
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Heartbeats {
    jobs: Vec<HeartbeatJson>,
    summary: Summary,
}

/// The heartbeat of a running job.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Heartbeat)]
struct HeartbeatJson {
    #[schema(value_type = Uuid)]
    job_id: RunId,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    last_heartbeat: Option<String>,
    #[schema(required)]
    age_seconds: Option<u64>,
    #[schema(value_type = HeartbeatStatusName)]
    status: HeartbeatStatus,
    #[schema(required)]
    agent_engine: Option<String>,
}

#[derive(Default, Serialize, ToSchema)]
#[schema(as = HeartbeatSummary)]
struct Summary {
    total: u64,
    fresh: u64,
    stale: u64,
    dead: u64,
    unknown: u64,
}

impl Summary {
    fn add(mut self, status: HeartbeatStatus) -> Summary {
        self.total += 1;
        *match status {
            HeartbeatStatus::Fresh => &mut self.fresh,
            HeartbeatStatus::Stale => &mut self.stale,
            HeartbeatStatus::Dead => &mut self.dead,
            HeartbeatStatus::Unknown => &mut self.unknown,
        } += 1;
        self
    }
}

impl From<Heartbeat> for HeartbeatJson {
    fn from(heartbeat: Heartbeat) -> HeartbeatJson {
        HeartbeatJson {
            job_id: heartbeat.job,
            last_heartbeat: time(heartbeat.last_heartbeat),
            age_seconds: heartbeat.age.map(|age| age.as_secs()),
            status: heartbeat.status,
            agent_engine: heartbeat.agent_engine,
        }
    }
}

/// The heartbeats of the running jobs. Those of other hosts cannot be seen from here: `unknown`.
#[utoipa::path(get, path = "/api/admin/recovery/jobs/heartbeats", tag = "recovery",
    responses((status = 200, body = Heartbeats)))]
pub(crate) async fn list_heartbeats(State(app): State<App>, params: Params) -> Result<Answer<Heartbeats>> {
    params.only(&[])?;
    let jobs: Vec<HeartbeatJson> = app.engine.heartbeats().await?.into_iter().map(HeartbeatJson::from).collect();
    let summary = jobs.iter().map(|job| job.status).fold(Summary::default(), Summary::add);
    Ok(Answer(Heartbeats { jobs, summary }))
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

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StaleJobs {
    stale_jobs: Vec<StaleJobJson>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StaleJob)]
struct StaleJobJson {
    #[schema(value_type = Uuid)]
    job_id: RunId,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    last_heartbeat: Option<String>,
    age_minutes: f64,
    #[schema(required)]
    workspace_path: Option<String>,
    #[schema(value_type = RecommendedAction)]
    recommended_action: &'static str,
}

impl From<StaleJob> for StaleJobJson {
    fn from(stale: StaleJob) -> StaleJobJson {
        StaleJobJson {
            job_id: stale.job,
            last_heartbeat: time(stale.last_heartbeat),
            age_minutes: minutes(stale.age),
            workspace_path: stale.workspace_path,
            recommended_action: stale.recommended_action,
        }
    }
}

/// With two digits: what is counted in minutes is not worth more.
fn minutes(age: Duration) -> f64 {
    (age.as_secs_f64() / 60.0 * 100.0).round() / 100.0
}

/// Jobs of this host whose sentinels are old.
#[utoipa::path(get, path = "/api/admin/recovery/jobs/stale", tag = "recovery",
    responses((status = 200, body = StaleJobs)))]
pub(crate) async fn list_stale(State(app): State<App>, params: Params) -> Result<Answer<StaleJobs>> {
    params.only(&[])?;
    let stale = app.engine.stale_jobs().await?;
    Ok(Answer(StaleJobs { stale_jobs: stale.into_iter().map(StaleJobJson::from).collect() }))
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
#[serde(rename_all = "camelCase")]
#[schema(as = JobHealth)]
pub(crate) struct HealthJson {
    #[schema(value_type = Uuid)]
    job_id: RunId,
    #[schema(value_type = HeartbeatStatusName)]
    heartbeat_status: HeartbeatStatus,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    last_heartbeat: Option<String>,
    #[schema(required)]
    age_seconds: Option<u64>,
    sentinel_file_exists: bool,
    workspace_exists: bool,
    /// It has a `sessionId`, and the data of that session is in its workspace.
    session_data_exists: bool,
    /// Why its sentinel cannot be read or was not written, if so.
    #[schema(required)]
    error: Option<String>,
}

impl From<Health> for HealthJson {
    fn from(health: Health) -> HealthJson {
        HealthJson {
            job_id: health.job,
            heartbeat_status: health.heartbeat_status,
            last_heartbeat: time(health.last_heartbeat),
            age_seconds: health.age.map(|age| age.as_secs()),
            sentinel_file_exists: health.sentinel_exists,
            workspace_exists: health.workspace_exists,
            session_data_exists: health.session_data_exists,
            error: health.error,
        }
    }
}

/// What there is of a job on this host.
#[utoipa::path(get, path = "/api/admin/jobs/{jobId}/health", tag = "recovery", operation_id = "job_health",
    params(("jobId" = Uuid, Path)),
    responses((status = 200, body = HealthJson), (status = 404, description = "No such job")))]
pub(crate) async fn get_health(State(app): State<App>, id: Segment, params: Params) -> Result<Answer<HealthJson>> {
    params.only(&[])?;
    Ok(Answer(app.engine.job_health(id.id_of("jobId")?).await?.into()))
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
