//! The heartbeats of a host's jobs, as its administrator sees them: the files themselves, their ages, and whose is old.

use crate::app::App;
use crate::params::{Params, Segment};
use crate::problem::Result;
use crate::schema::{HeartbeatStatusName, LockName, RecommendedAction};
use axum::Json as Answer;
use axum::extract::State;
use everbeat_engine::{Health, Heartbeat, HeartbeatStatus, Sentinel, StaleJob};
use everbeat_model::{RunId, StoreTime};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

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
