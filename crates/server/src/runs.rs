use crate::app::App;
use crate::attempts::AttemptJson;
use crate::jobs::shown;
use crate::limits::LONGEST_WAIT;
use crate::page::{FEW, Page, limit, whole_limit};
use crate::params::{Params, Segment};
use crate::problem::{Kind as ProblemKind, Problem, Result};
use crate::schema::{KindName, LivenessName, RunStateName, WaitFor};
use crate::sessions::OfRun;
use crate::verdicts::VerdictJson;
use axum::Json as Answer;
use axum::extract::State;
use everbeat_engine::{Explanation, Liveness, RunView};
use everbeat_model::run::Kind;
use everbeat_model::time::{format_duration, parse_duration};
use everbeat_model::{ExecutionId, Invalid, Json, Parent, ReplicaId, RunId, RunState, StoreTime};
use everbeat_store::RunFilter;
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;
use utoipa::ToSchema;

/// One durable unit of work.
#[derive(Serialize, ToSchema)]
#[schema(as = Run)]
pub(crate) struct RunJson {
    #[schema(value_type = Uuid)]
    id: RunId,
    #[schema(value_type = KindName)]
    kind: Kind,
    task: String,
    queue: String,
    /// Higher is claimed first.
    priority: i16,
    #[schema(value_type = RunStateName)]
    state: RunState,
    /// The last attempt's number, 0 before the first.
    attempt: u32,
    /// Tries used up of `max_attempts`. Attempts that run, were released or cancelled have used none, so that the
    /// attempt's number can be higher.
    tries: u32,
    max_attempts: u32,
    #[schema(value_type = Value)]
    input: Json,
    /// What the definition of its node says besides the input.
    #[schema(required, value_type = Value)]
    args: Option<Json>,
    /// What it computes, if it belongs to an execution.
    #[schema(required)]
    parent: Option<ParentJson>,
    #[schema(required, value_type = Value)]
    result: Option<Json>,
    #[schema(required, value_type = Value)]
    error: Option<Json>,
    #[schema(required, value_type = Value)]
    progress: Option<Json>,
    #[schema(required, value_type = Value)]
    checkpoint: Option<Json>,
    #[schema(value_type = String, format = DateTime)]
    created_at: StoreTime,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    run_at: Option<StoreTime>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    started_at: Option<StoreTime>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    finished_at: Option<StoreTime>,
    #[schema(required, value_type = Option<Uuid>)]
    replica_id: Option<ReplicaId>,
    /// Of the replica that holds it: while it runs, only that one knows.
    #[schema(required)]
    worker_id: Option<String>,
    /// While it runs.
    #[schema(required, value_type = Option<LivenessName>)]
    liveness: Option<Liveness>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    last_heartbeat_at: Option<StoreTime>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    heartbeat_deadline: Option<StoreTime>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    deadline: Option<StoreTime>,
    /// Resolved when it was accepted.
    #[schema(value_type = Object)]
    policy: Value,
    #[schema(required)]
    unique_key: Option<String>,
    #[schema(required)]
    session: Option<OfRun>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    cancel_requested_at: Option<StoreTime>,
}

/// A node of an execution.
#[derive(Serialize, ToSchema)]
#[schema(as = Parent)]
struct ParentJson {
    #[schema(value_type = Uuid)]
    execution: ExecutionId,
    node: String,
}

impl From<RunView> for RunJson {
    fn from(view: RunView) -> RunJson {
        let RunView { run, liveness, last_heartbeat_at, heartbeat_deadline, deadline, starting: _, worker } = view;
        let spec = &run.spec;
        let (input, args) = shown(spec);
        RunJson {
            id: run.id,
            kind: spec.kind,
            task: spec.task.clone(),
            queue: spec.queue.clone(),
            priority: spec.priority,
            state: run.state,
            attempt: run.attempt,
            tries: run.tries,
            max_attempts: spec.policy.max_attempts,
            input,
            args,
            parent: spec.parent.clone().map(|Parent { execution, node }| ParentJson { execution, node }),
            result: run.result,
            error: run.error,
            progress: run.progress,
            checkpoint: run.checkpoint,
            created_at: run.created_at,
            run_at: run.run_at,
            started_at: run.started_at,
            finished_at: run.finished_at,
            replica_id: run.replica_id,
            worker_id: worker.map(|worker| worker.to_string()).or(run.worker_id),
            liveness,
            last_heartbeat_at,
            heartbeat_deadline,
            deadline,
            policy: spec.policy.to_value(),
            unique_key: spec.unique_key.clone(),
            session: spec.session.as_ref().map(OfRun::from),
            cancel_requested_at: run.cancel_requested_at,
        }
    }
}

/// Runs, newest first. A page of large runs has fewer than `limit`: go on while there is a `next_cursor`.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs",
    params(
        ("state" = inline(Option<RunStateName>), Query),
        ("task" = Option<String>, Query, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("queue" = Option<String>, Query, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("kind" = inline(Option<KindName>), Query),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<Uuid>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<RunJson>)))]
pub(crate) async fn list_runs(State(app): State<App>, params: Params) -> Result<Answer<Page<RunJson>>> {
    let params = params.only(&["state", "task", "queue", "kind", "limit", "cursor"])?;
    let limit = limit(&params, FEW)?;
    let filter = RunFilter {
        state: params.word("state", &RunState::ALL, RunState::as_str)?,
        task: params.name("task")?,
        queue: params.name("queue")?,
        kind: params.word("kind", &Kind::ALL, Kind::as_str)?,
        schedule: None,
        before: params.id("cursor")?,
        limit: limit + 1,
    };
    let runs = app.engine.runs(filter).await?.map(RunJson::from);
    Ok(Answer(Page::of_part(runs, limit, |run| run.id.to_string())))
}

/// One run; with `wait=finished`, once it is finished.
#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs",
    params(
        ("id" = Uuid, Path),
        ("wait" = inline(Option<WaitFor>), Query),
        ("timeout" = Option<String>, Query, pattern = r"^[0-9]",
            description = "How long to wait, `30s` unless given, at most `5m`; a number means seconds"),
    ),
    responses(
        (status = 200, body = RunJson),
        (status = 404, description = "No such run"),
        (status = 408, description = "The wait is over and the run is not finished"),
    ))]
pub(crate) async fn get_run(State(app): State<App>, id: Segment, params: Params) -> Result<Answer<RunJson>> {
    let params = params.only(&["wait", "timeout"])?;
    let waits = params.word("wait", &["finished"], |word| word)?.is_some();
    let timeout = params.get("timeout", read_timeout)?;
    let id = id.id()?;
    if !waits {
        return Ok(Answer(app.engine.run(id).await?.into()));
    }
    let timeout = timeout.unwrap_or(DEFAULT_WAIT);
    let run = wait(&app, id, timeout).await?;
    if run.run.state.finished() {
        return Ok(Answer(run.into()));
    }
    let (state, span) = (run.run.state.as_str(), format_duration(timeout));
    let detail = format!("run {id} is {state} after {span}");
    Err(Problem::new(ProblemKind::WaitTimedOut, detail, format!("wait again, or ask why: everbeat explain {id}")))
}

/// A wait that says no timeout.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_secs(30);

pub(crate) fn read_timeout(text: &str) -> std::result::Result<Duration, Invalid> {
    let span = parse_duration(text)?;
    if span > LONGEST_WAIT {
        let hint = format!("wait at most {:?}, and then again", format_duration(LONGEST_WAIT));
        return Err(Invalid::new("", format!("{text:?}"), "is too long", hint));
    }
    Ok(span)
}

async fn wait(app: &App, id: RunId, timeout: Duration) -> Result<RunView> {
    app.wait(app.engine.wait(id, timeout)).await
}

/// The tries at a run, oldest first.
#[utoipa::path(get, path = "/api/v1/runs/{id}/attempts", tag = "runs",
    params(
        ("id" = Uuid, Path),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<u32>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<AttemptJson>), (status = 404, description = "No such run")))]
pub(crate) async fn list_attempts(
    State(app): State<App>,
    id: Segment,
    params: Params,
) -> Result<Answer<Page<AttemptJson>>> {
    let params = params.only(&["limit", "cursor"])?;
    let limit = whole_limit(&params)?;
    let after = params.get("cursor", |text| {
        let hint = "hand back the next_cursor of the part before";
        text.parse::<u32>().map_err(|_| Invalid::new("", format!("{text:?}"), "is not a cursor", hint))
    })?;
    let attempts = app.engine.attempts(id.id()?).await?;
    Ok(Answer(Page::of_whole(attempts.into_iter().map(AttemptJson::from), limit, after, |attempt| attempt.attempt)))
}

/// Why a run is in the state it is in.
#[derive(Serialize, ToSchema)]
#[schema(as = Explanation)]
pub(crate) struct ExplanationJson {
    /// One sentence.
    summary: String,
    /// What happened before, oldest first.
    history: Vec<String>,
    /// What could be done, if anything.
    #[schema(required)]
    remedy: Option<String>,
    run: RunJson,
    attempts: Vec<AttemptJson>,
    verdicts: Vec<VerdictJson>,
}

#[utoipa::path(get, path = "/api/v1/runs/{id}/explain", tag = "runs", params(("id" = Uuid, Path)),
    responses((status = 200, body = ExplanationJson), (status = 404, description = "No such run")))]
pub(crate) async fn explain_run(
    State(app): State<App>,
    id: Segment,
    params: Params,
) -> Result<Answer<ExplanationJson>> {
    params.only(&[])?;
    let Explanation { run, summary, history, remedy, attempts, verdicts } = app.engine.explain(id.id()?).await?;
    Ok(Answer(ExplanationJson {
        summary,
        history,
        remedy,
        run: run.into(),
        attempts: attempts.into_iter().map(AttemptJson::from).collect(),
        verdicts: verdicts.into_iter().map(VerdictJson::from).collect(),
    }))
}

/// Asks for a run's end. One that is not running ends at once; a running one is told.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", tag = "runs", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = RunJson),
        (status = 404, description = "No such run"),
        (status = 409, description = "It is already finished"),
    ))]
pub(crate) async fn cancel_run(State(app): State<App>, id: Segment, params: Params) -> Result<Answer<RunJson>> {
    params.only(&[])?;
    Ok(Answer(app.engine.cancel(id.id()?).await?.into()))
}

/// Opens a finished run again, with all its tries.
#[utoipa::path(post, path = "/api/v1/runs/{id}/retry", tag = "runs", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = RunJson),
        (status = 404, description = "No such run"),
        (status = 409, description = "It is not finished, or another run holds its unique key"),
    ))]
pub(crate) async fn retry_run(State(app): State<App>, id: Segment, params: Params) -> Result<Answer<RunJson>> {
    params.only(&[])?;
    Ok(Answer(app.engine.retry(id.id()?).await?.into()))
}
