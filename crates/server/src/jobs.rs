use crate::app::App;
use crate::body::JsonBody;
use crate::page::{FEW, Page, limit};
use crate::params::{Params, Segment};
use crate::problem::{Kind as ProblemKind, Problem, Result, discreet};
use crate::runs::{DEFAULT_WAIT, RunJson, read_timeout};
use crate::schema::{Arguments, Environment, HeartbeatStatusName, RunStateName, WaitFor};
use crate::submit::{idempotency, read_time};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use everbeat_engine::{Error, HeartbeatStatus, JobView, SubmitJob};
use everbeat_model::job::{Command, HIDDEN, KnownExit};
use everbeat_model::run::Spec;
use everbeat_model::time::format_duration;
use everbeat_model::{Invalid, Json, RunId, RunState};
use everbeat_store::RunFilter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A detached command: a run, and what is known of its process.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub(crate) struct JobJson {
    #[serde(flatten)]
    run: RunJson,
    /// The same as `id`, also across retries.
    #[schema(value_type = Uuid)]
    job_id: RunId,
    #[schema(required)]
    name: Option<String>,
    /// Program and arguments.
    command: Vec<String>,
    #[schema(required)]
    cwd: Option<String>,
    #[schema(required)]
    session_id: Option<String>,
    #[schema(required)]
    agent_engine: Option<String>,
    /// Once it is finished, if it is known. Of a command that could not be started: 127 if its program was not found,
    /// 126 if it could not be executed, 125 otherwise.
    #[schema(required)]
    exit_code: Option<i32>,
    #[schema(required)]
    exit_signal: Option<i32>,
    /// It is claimed, and its command has not been seen to begin yet: there is no sentinel before that.
    starting: bool,
    /// The age of its sentinel, while it runs. It is not a verdict.
    #[schema(required, value_type = Option<HeartbeatStatusName>)]
    heartbeat_status: Option<HeartbeatStatus>,
    /// Why its sentinel was not written or cannot be read, if so.
    #[schema(required)]
    heartbeat_error: Option<String>,
    /// Its last attempt outlived a replica.
    reattached: bool,
    /// Where it works, on the host where it has begun.
    #[schema(required)]
    workspace_path: Option<String>,
    /// The machine where it has begun.
    #[schema(required)]
    host: Option<String>,
}

impl From<JobView> for JobJson {
    fn from(view: JobView) -> JobJson {
        let JobView { run, command, exit, reattached, heartbeat_status, heartbeat_error, workspace_path, host } = view;
        let Command { command, name, cwd, session_id, agent_engine, stdin: _large, env: _secret } = command;
        // What is open again tells an earlier try's exit by its error only.
        let exit = if run.run.state.finished() { exit } else { KnownExit::default() };
        let starting = run.starting;
        JobJson {
            job_id: run.run.id,
            run: run.into(),
            name,
            command,
            cwd,
            session_id,
            agent_engine,
            exit_code: exit.exit_code,
            exit_signal: exit.exit_signal,
            starting,
            heartbeat_status,
            heartbeat_error: heartbeat_error.filter(|_| !starting),
            reattached,
            workspace_path,
            host,
        }
    }
}

/// The input and arguments of a run, without the values of a command's environment.
pub(crate) fn shown(spec: &Spec) -> (Json, Option<Json>) {
    match &spec.args {
        Some(args) if spec.detached() => (spec.input.clone(), Some(without_secrets(args))),
        None if spec.detached() => (without_secrets(&spec.input), None),
        args => (spec.input.clone(), args.clone()),
    }
}

fn without_secrets(told: &Json) -> Json {
    let mut told = told.value();
    hide(&mut told);
    Json::of(&told)
}

/// Hides the values of `env`, and what is handed over on stdin.
pub(crate) fn hide(told: &mut Value) {
    if let Some(stdin) = told.get_mut("stdin").filter(|stdin| !stdin.is_null()) {
        *stdin = HIDDEN.into();
    }
    match told.get_mut("env") {
        Some(Value::Object(env)) => env.values_mut().for_each(|value| *value = HIDDEN.into()),
        Some(other) => *other = HIDDEN.into(),
        None => {}
    }
}

/// A command to be accepted.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewJob {
    /// Program and arguments, each handed over as it is: no shell reads them.
    #[schema(value_type = Arguments)]
    command: Vec<String>,
    /// What people call it.
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    name: Option<String>,
    /// Its values are never shown again.
    #[schema(value_type = Option<Environment>)]
    env: Option<BTreeMap<String, String>>,
    /// An absolute path; the job's own workspace unless given.
    #[schema(pattern = r"^/[^\x00]*$")]
    cwd: Option<String>,
    #[serde(rename = "sessionId")]
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    session_id: Option<String>,
    #[serde(rename = "agentEngine")]
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    agent_engine: Option<String>,
    /// What differs from the policy of jobs.
    #[schema(value_type = Option<Object>)]
    policy: Option<Value>,
    /// What the command reads from its standard input; nothing unless given. It is not shown again.
    stdin: Option<String>,
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")]
    queue: Option<String>,
    /// Higher is claimed first; 0 unless given.
    #[schema(minimum = -32768, maximum = 32767)]
    priority: Option<i16>,
    /// Not before this time.
    #[schema(format = DateTime)]
    run_at: Option<String>,
    /// While a run with this key is unfinished, that one is answered in place of a new one.
    #[schema(min_length = 1, max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    unique_key: Option<String>,
}

impl NewJob {
    fn submit(self) -> std::result::Result<SubmitJob, Invalid> {
        let run_at = self.run_at.as_deref().map(read_time).transpose()?;
        let command = Command {
            command: self.command,
            name: self.name,
            env: self.env.unwrap_or_default(),
            cwd: self.cwd,
            session_id: self.session_id,
            agent_engine: self.agent_engine,
            stdin: self.stdin,
        };
        let new = SubmitJob::new(command);
        Ok(SubmitJob {
            queue: self.queue.unwrap_or(new.queue),
            priority: self.priority.unwrap_or(new.priority),
            run_at,
            policy: self.policy,
            unique_key: self.unique_key,
            command: new.command,
        })
    }
}

/// Accepts a command, which then outlives whoever started it.
#[utoipa::path(post, path = "/api/v1/jobs", tag = "jobs", request_body = NewJob,
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 500, pattern = r"^[!-~]([ -~]*[!-~])?$",
        description = "The same key with the same request makes nothing twice")),
    responses(
        (status = 201, body = JobJson, headers(("location" = String))),
        (status = 200, body = JobJson, description = "An earlier job stands for this request"),
        (status = 409, description = "No replica performs jobs, the earlier job of this Idempotency-Key is forgotten, \
            or a run that is no job holds the unique key"),
        (status = 422, description = "A value cannot be accepted"),
    ))]
pub(crate) async fn create_job(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    JsonBody(new): JsonBody<NewJob>,
) -> Result<Response> {
    params.only(&[])?;
    let idempotency = idempotency(&headers, "POST /api/v1/jobs", std::iter::once(&new))?;
    let submission = app.engine.submit_job(new.submit()?, idempotency).await.map_err(|error| match error {
        Error::Invalid(invalid) => Error::Invalid(discreet(invalid)),
        error => error,
    })?;
    let job = match app.engine.job(submission.id).await {
        Err(Error::NotFound { id, .. }) => return Err(stands_no_more(&app, submission.id, id).await),
        job => JobJson::from(job?),
    };
    let location = [(LOCATION, format!("/api/v1/jobs/{}", submission.id))];
    Ok(match submission.created {
        true => (StatusCode::CREATED, location, Answer(job)).into_response(),
        false => Answer(job).into_response(),
    })
}

/// What stands for a request is no job, or not any more.
async fn stands_no_more(app: &App, id: RunId, shown: String) -> Problem {
    if app.engine.run(id).await.is_ok() {
        let detail = format!("run {shown}, which is no job, holds this unique_key");
        return Problem::new(ProblemKind::Conflict, detail, "use another unique_key, or wait until that run is over");
    }
    let detail = format!("this request was accepted before as job {shown}, which has been forgotten since");
    Problem::new(ProblemKind::Conflict, detail, "use a new Idempotency-Key to run it again")
}

/// Jobs, newest first.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs",
    params(
        ("state" = inline(Option<RunStateName>), Query),
        ("queue" = Option<String>, Query, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<Uuid>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<JobJson>)))]
pub(crate) async fn list_jobs(State(app): State<App>, params: Params) -> Result<Answer<Page<JobJson>>> {
    let params = params.only(&["state", "queue", "limit", "cursor"])?;
    let limit = limit(&params, FEW)?;
    let filter = RunFilter {
        state: params.word("state", &RunState::ALL, RunState::as_str)?,
        queue: params.name("queue")?,
        before: params.id("cursor")?,
        limit: limit + 1,
        ..RunFilter::default()
    };
    let jobs = app.engine.jobs(filter).await?.map(JobJson::from);
    Ok(Answer(Page::of_part(jobs, limit, |job| job.job_id.to_string())))
}

/// One job; with `wait=finished`, once it is finished.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", tag = "jobs",
    params(
        ("id" = Uuid, Path),
        ("wait" = inline(Option<WaitFor>), Query),
        ("timeout" = Option<String>, Query, pattern = r"^[0-9]",
            description = "How long to wait, `30s` unless given, at most `5m`; a number means seconds"),
    ),
    responses(
        (status = 200, body = JobJson),
        (status = 404, description = "No such job"),
        (status = 408, description = "The wait is over and the job is not finished"),
    ))]
pub(crate) async fn get_job(State(app): State<App>, id: Segment, params: Params) -> Result<Answer<JobJson>> {
    let params = params.only(&["wait", "timeout"])?;
    let waits = params.word("wait", &["finished"], |word| word)?.is_some();
    let timeout = params.get("timeout", read_timeout)?.unwrap_or(DEFAULT_WAIT);
    let id = id.id()?;
    let job = app.engine.job(id).await?;
    if !waits || job.run.run.state.finished() {
        return Ok(Answer(job.into()));
    }
    let run = app.wait(app.engine.wait(id, timeout)).await?.run;
    if run.state.finished() {
        return Ok(Answer(app.engine.job(id).await?.into()));
    }
    let detail = format!("job {id} is {} after {}", run.state.as_str(), format_duration(timeout));
    Err(Problem::new(ProblemKind::WaitTimedOut, detail, format!("wait again, or ask why: everbeat explain {id}")))
}

/// Asks for a job's end. One that is not running ends at once; a running one is told, and killed after its grace.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", tag = "jobs", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = JobJson),
        (status = 404, description = "No such job"),
        (status = 409, description = "It is already finished"),
    ))]
pub(crate) async fn cancel_job(State(app): State<App>, id: Segment, params: Params) -> Result<Answer<JobJson>> {
    params.only(&[])?;
    let id = id.id()?;
    app.engine.job(id).await?;
    app.engine.cancel(id).await?;
    Ok(Answer(app.engine.job(id).await?.into()))
}

/// Opens a finished job again, with all its tries, in the same workspace.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/retry", tag = "jobs", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = JobJson),
        (status = 404, description = "No such job"),
        (status = 409, description = "It is not finished, or another run holds its unique key"),
    ))]
pub(crate) async fn retry_job(State(app): State<App>, id: Segment, params: Params) -> Result<Answer<JobJson>> {
    params.only(&[])?;
    let id = id.id()?;
    app.engine.job(id).await?;
    app.engine.retry(id).await?;
    Ok(Answer(app.engine.job(id).await?.into()))
}

/// What was removed of a job, or would be.
#[derive(Serialize, ToSchema)]
pub(crate) struct Deleted {
    #[schema(value_type = Uuid)]
    job_id: RunId,
    removed: bool,
    /// Nothing was removed, only counted.
    dry_run: bool,
    /// Files and folders.
    entries: u64,
    bytes: u64,
}

/// Removes a finished job: its folder with its workspace and output, and the run itself.
#[utoipa::path(delete, path = "/api/v1/jobs/{id}", tag = "jobs",
    params(("id" = Uuid, Path), ("dry_run" = Option<bool>, Query, description = "Only count what would be removed")),
    responses(
        (status = 200, body = Deleted),
        (status = 404, description = "No such job"),
        (status = 409, description = "It is not finished, or its folder is on another host or cannot be removed"),
    ))]
pub(crate) async fn delete_job(State(app): State<App>, id: Segment, params: Params) -> Result<Answer<Deleted>> {
    let params = params.only(&["dry_run"])?;
    let dry_run = params.flag("dry_run")?.unwrap_or(false);
    let job_id = id.id()?;
    let removed = app.engine.delete_job(job_id, dry_run).await?;
    Ok(Answer(Deleted { job_id, removed: !dry_run, dry_run, entries: removed.entries, bytes: removed.bytes }))
}
