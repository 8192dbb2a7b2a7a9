use crate::app::App;
use crate::page::{Page, whole_limit};
use crate::params::{Params, Segment};
use crate::problem::Result;
use crate::schema::{ClassName, WorkerStateName};
use axum::Json;
use axum::extract::State;
use everbeat_engine::Error;
use everbeat_engine::pools::{WorkerView, WorkersAsked};
use everbeat_model::{ReplicaId, RunId, StoreTime, WorkerId};
use serde::Serialize;
use std::borrow::Cow;
use std::time::Duration;
use utoipa::ToSchema;

/// A worker: of a pool, or one that dialled in from elsewhere.
#[derive(Serialize, ToSchema)]
#[schema(as = Worker)]
pub(crate) struct WorkerJson {
    #[schema(value_type = Uuid)]
    id: WorkerId,
    /// Absent of a worker from elsewhere.
    #[schema(required)]
    pool: Option<String>,
    /// Of a worker of another replica `ready` also means `busy`.
    #[schema(value_type = WorkerStateName)]
    state: Cow<'static, str>,
    /// What its signs of life say of it.
    #[schema(value_type = ClassName)]
    class: Cow<'static, str>,
    /// The number of its process, for people: nothing is judged or signalled by it.
    #[schema(required)]
    pid: Option<u32>,
    host: String,
    /// What it speaks with.
    sdk: String,
    tasks: Vec<String>,
    slots: usize,
    #[schema(value_type = String, format = DateTime)]
    started_at: StoreTime,
    uptime_ms: u64,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    last_pong_at: Option<StoreTime>,
    /// Of the last ping that it answered.
    #[schema(required)]
    round_trip_ms: Option<f64>,
    /// By how much its own event loop was late.
    #[schema(required)]
    lag_ms: Option<u64>,
    resident_bytes: u64,
    pings: u64,
    pongs: u64,
    /// How often it was silent for longer than its timeout.
    timeouts: u64,
    /// How many attempts it performs.
    running: usize,
    /// The runs that they belong to; only its own replica tells them.
    #[schema(value_type = Vec<Uuid>)]
    performs: Vec<RunId>,
    /// Attempts that it brought to an end.
    finished: u64,
    /// How often workers of its pool took the place of others.
    restarts: u64,
    /// How the last worker of its pool ended.
    #[schema(required)]
    last_exit: Option<String>,
    /// Why it is to be replaced, if it is.
    #[schema(required, value_type = Option<String>)]
    retiring: Option<Cow<'static, str>>,
    /// How many sessions it holds.
    sessions: usize,
    #[schema(required, value_type = Option<Uuid>)]
    replica_id: Option<ReplicaId>,
    /// Where the server of that replica answers, if it is known: only that one can ping, dump, drain or restart it.
    #[schema(required)]
    server: Option<String>,
    /// When its replica told this. Absent of a worker of the replica that answers: that is how it is now.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    told_at: Option<StoreTime>,
}

impl From<WorkerView> for WorkerJson {
    fn from(view: WorkerView) -> WorkerJson {
        WorkerJson {
            id: view.id,
            pool: view.pool,
            state: view.state,
            class: view.class,
            pid: view.pid,
            host: view.host,
            sdk: view.sdk,
            tasks: view.tasks,
            slots: view.slots,
            started_at: view.started_at,
            uptime_ms: whole_millis(view.uptime),
            last_pong_at: view.last_pong_at,
            round_trip_ms: view.round_trip.map(millis),
            lag_ms: view.lag.map(whole_millis),
            resident_bytes: view.resident_bytes,
            pings: view.pings,
            pongs: view.pongs,
            timeouts: view.timeouts,
            running: view.running,
            performs: view.performs,
            finished: view.finished,
            restarts: view.restarts,
            last_exit: view.last_exit,
            retiring: view.retiring,
            sessions: view.sessions,
            replica_id: view.replica_id,
            server: view.server,
            told_at: view.told_at,
        }
    }
}

/// The workers of all replicas, by id. Those of the replica that answers are shown as they are now, those of others as
/// these told last: a few seconds after each started, served, changed its class or went. While the store does not answer,
/// only those of the replica that answers.
#[utoipa::path(get, path = "/api/v1/workers", tag = "workers",
    params(
        ("pool" = Option<String>, Query, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("state" = inline(Option<WorkerStateName>), Query),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<Uuid>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<WorkerJson>)))]
pub(crate) async fn list_workers(State(app): State<App>, params: Params) -> Result<Json<Page<WorkerJson>>> {
    let params = params.only(&["pool", "state", "limit", "cursor"])?;
    let state = params.word("state", &WorkerView::STATES, |state| state)?.map(ToString::to_string);
    let (limit, after) = (whole_limit(&params)?, params.id::<WorkerId>("cursor")?);
    let asked = WorkersAsked { pool: params.name("pool")?, state, after, limit: limit + 1 };
    let workers = app.engine.all_workers(&asked).await;
    Ok(Json(Page::of_whole(workers.into_iter().map(WorkerJson::from), limit, after, |worker| worker.id)))
}

/// The part of these workers of the replica that answers.
pub(crate) fn part_of(
    app: &App,
    params: &Params,
    wanted: impl Fn(&WorkerView) -> bool,
) -> Result<Json<Page<WorkerJson>>> {
    let state = params.word("state", &WorkerView::STATES, |state| state)?;
    let (limit, after) = (whole_limit(params)?, params.id::<WorkerId>("cursor")?);
    let mut workers = app.engine.workers();
    workers.retain(|worker| wanted(worker) && state.is_none_or(|state| worker.state == state));
    workers.sort_by_key(|worker| worker.id);
    Ok(Json(Page::of_whole(workers.into_iter().map(WorkerJson::from), limit, after, |worker| worker.id)))
}

#[utoipa::path(get, path = "/api/v1/workers/{id}", tag = "workers", params(("id" = Uuid, Path)),
    responses((status = 200, body = WorkerJson), (status = 404, description = "No replica has such a worker")))]
pub(crate) async fn get_worker(State(app): State<App>, id: Segment, params: Params) -> Result<Json<WorkerJson>> {
    params.only(&[])?;
    let id: WorkerId = id.id()?;
    let missing = || Error::NotFound { what: "worker", id: id.to_string() };
    Ok(Json(app.engine.any_worker(id).await?.ok_or_else(missing)?.into()))
}

/// How long a worker took to answer.
#[derive(Serialize, ToSchema)]
#[schema(as = Ponged)]
pub(crate) struct PongedJson {
    round_trip_ms: f64,
}

/// Pings a worker now, and waits for its answer.
#[utoipa::path(post, path = "/api/v1/workers/{id}/ping", tag = "workers", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = PongedJson),
        (status = 404, description = "No replica has such a worker"),
        (status = 409, description = "It does not answer, is not connected, cannot be pinged, or is another replica's"),
    ))]
pub(crate) async fn ping_worker(State(app): State<App>, id: Segment, params: Params) -> Result<Json<PongedJson>> {
    params.only(&[])?;
    let took = app.engine.ping_worker(id.id()?).await?;
    Ok(Json(PongedJson { round_trip_ms: millis(took) }))
}

/// Replaces a worker: it goes when another stands in for it and its work is done.
#[utoipa::path(post, path = "/api/v1/workers/{id}/restart", tag = "workers", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = WorkerJson),
        (status = 404, description = "No replica has such a worker"),
        (status = 409, description = "It belongs to no pool, or to another replica: nobody here can start another"),
    ))]
pub(crate) async fn restart_worker(State(app): State<App>, id: Segment, params: Params) -> Result<Json<WorkerJson>> {
    params.only(&[])?;
    Ok(Json(app.engine.restart_worker(id.id()?).await?.into()))
}

/// Lets a worker finish what it has, and go. Its pool starts another.
#[utoipa::path(post, path = "/api/v1/workers/{id}/drain", tag = "workers", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = WorkerJson),
        (status = 404, description = "No replica has such a worker"),
        (status = 409, description = "It is another replica's"),
    ))]
pub(crate) async fn drain_worker(State(app): State<App>, id: Segment, params: Params) -> Result<Json<WorkerJson>> {
    params.only(&[])?;
    Ok(Json(app.engine.drain_worker(id.id()?).await?.into()))
}

/// Where the threads of a worker stand.
#[derive(Serialize, ToSchema)]
#[schema(as = Stacks)]
pub(crate) struct StacksJson {
    stacks: String,
}

/// Asks a worker for the stacks of its threads; if it does not tell them, its process is asked.
#[utoipa::path(post, path = "/api/v1/workers/{id}/dump", tag = "workers", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = StacksJson),
        (status = 404, description = "No replica has such a worker"),
        (status = 409, description = "It does not tell, or is another replica's"),
    ))]
pub(crate) async fn dump_worker(State(app): State<App>, id: Segment, params: Params) -> Result<Json<StacksJson>> {
    params.only(&[])?;
    Ok(Json(StacksJson { stacks: app.engine.dump_worker(id.id()?).await? }))
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
