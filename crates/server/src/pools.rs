use crate::app::App;
use crate::body::JsonBody;
use crate::page::{Page, text_cursor, whole_limit};
use crate::params::{Params, Segment};
use crate::problem::Result;
use crate::schema::{PoolStateName, WorkerStateName};
use crate::workers::{WorkerJson, part_of};
use axum::Json;
use axum::extract::State;
use everbeat_engine::Error;
use everbeat_engine::pools::PoolView;
use everbeat_model::ReplicaId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A pool of worker processes of the replica that answers.
#[derive(Serialize, ToSchema)]
#[schema(as = Pool)]
pub(crate) struct PoolJson {
    name: String,
    #[schema(value_type = PoolStateName)]
    state: &'static str,
    /// How many workers there should be.
    size: usize,
    /// How many attempts each of them performs at once.
    slots: usize,
    queues: Vec<String>,
    /// What its workers have offered to perform.
    tasks: Vec<String>,
    /// Workers that serve.
    ready: usize,
    /// Attempts that are performed now.
    busy: usize,
    /// What holds its processes together; absent before its guardian runs.
    #[schema(required)]
    containment: Option<&'static str>,
    /// Whether nothing that a worker starts can escape.
    contained: bool,
    /// Workers that took the place of others.
    restarts: u64,
    /// Why no worker has come to serve lately; the pool is degraded when that has gone on for a while.
    #[schema(required)]
    degraded_reason: Option<String>,
    /// How the last worker ended.
    #[schema(required)]
    last_exit: Option<String>,
    /// How many sessions its workers hold.
    sessions: usize,
    #[schema(required, value_type = Option<Uuid>)]
    replica_id: Option<ReplicaId>,
}

impl From<PoolView> for PoolJson {
    fn from(view: PoolView) -> PoolJson {
        let PoolView { name, state, size, slots, queues, tasks, ready, busy, .. } = view;
        PoolJson {
            name,
            state,
            size,
            slots,
            queues,
            tasks,
            ready,
            busy,
            containment: view.containment,
            contained: view.contained,
            restarts: view.restarts,
            degraded_reason: view.degraded_reason,
            last_exit: view.last_exit,
            sessions: view.sessions,
            replica_id: view.replica_id,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scale {
    #[schema(minimum = 0, maximum = 10000)]
    size: usize,
}

/// The pools of the replica that answers, by name.
#[utoipa::path(get, path = "/api/v1/pools", tag = "pools",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<PoolJson>)))]
pub(crate) async fn list_pools(State(app): State<App>, params: Params) -> Result<Json<Page<PoolJson>>> {
    let params = params.only(&["limit", "cursor"])?;
    let (limit, after) = (whole_limit(&params)?, text_cursor(&params)?);
    let mut pools = app.engine.pools();
    pools.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Json(Page::of_whole(pools.into_iter().map(PoolJson::from), limit, after, |pool| pool.name.clone())))
}

#[utoipa::path(get, path = "/api/v1/pools/{name}", tag = "pools",
    params(("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")),
    responses((status = 200, body = PoolJson), (status = 404, description = "This replica has no such pool")))]
pub(crate) async fn get_pool(State(app): State<App>, name: Segment, params: Params) -> Result<Json<PoolJson>> {
    params.only(&[])?;
    Ok(Json(find(&app, name)?.into()))
}

/// The workers of a pool, by id.
#[utoipa::path(get, path = "/api/v1/pools/{name}/workers", tag = "pools",
    params(
        ("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("state" = inline(Option<WorkerStateName>), Query),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<Uuid>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<WorkerJson>), (status = 404, description = "This replica has no such pool")))]
pub(crate) async fn list_workers_of_pool(
    State(app): State<App>,
    name: Segment,
    params: Params,
) -> Result<Json<Page<WorkerJson>>> {
    let params = params.only(&["state", "limit", "cursor"])?;
    let pool = find(&app, name)?;
    part_of(&app, &params, |worker| worker.pool.as_deref() == Some(pool.name.as_str()))
}

/// Gives a pool another size, until its server ends. Workers that are too many finish what they have.
#[utoipa::path(post, path = "/api/v1/pools/{name}/scale", tag = "pools", request_body = Scale,
    params(("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")),
    responses((status = 200, body = PoolJson), (status = 404, description = "This replica has no such pool")))]
pub(crate) async fn scale_pool(
    State(app): State<App>,
    name: Segment,
    params: Params,
    JsonBody(Scale { size }): JsonBody<Scale>,
) -> Result<Json<PoolJson>> {
    params.only(&[])?;
    Ok(Json(app.engine.scale_pool(&name.name("name")?, size).await?.into()))
}

/// Lets a pool take no more work. What it performs goes on, and its workers stay.
#[utoipa::path(post, path = "/api/v1/pools/{name}/drain", tag = "pools",
    params(("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")),
    responses((status = 200, body = PoolJson), (status = 404, description = "This replica has no such pool")))]
pub(crate) async fn drain_pool(State(app): State<App>, name: Segment, params: Params) -> Result<Json<PoolJson>> {
    params.only(&[])?;
    Ok(Json(app.engine.pause_pool(&name.name("name")?, true).await?.into()))
}

/// Lets a pool take work again.
#[utoipa::path(post, path = "/api/v1/pools/{name}/resume", tag = "pools",
    params(("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")),
    responses((status = 200, body = PoolJson), (status = 404, description = "This replica has no such pool")))]
pub(crate) async fn resume_pool(State(app): State<App>, name: Segment, params: Params) -> Result<Json<PoolJson>> {
    params.only(&[])?;
    Ok(Json(app.engine.pause_pool(&name.name("name")?, false).await?.into()))
}

/// Replaces all workers of a pool, a few at a time: each goes when another stands in for it and its work is done.
#[utoipa::path(post, path = "/api/v1/pools/{name}/restart", tag = "pools",
    params(("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")),
    responses((status = 200, body = PoolJson), (status = 404, description = "This replica has no such pool")))]
pub(crate) async fn restart_pool(State(app): State<App>, name: Segment, params: Params) -> Result<Json<PoolJson>> {
    params.only(&[])?;
    Ok(Json(app.engine.restart_pool(&name.name("name")?).await?.into()))
}

pub(crate) fn find(app: &App, name: Segment) -> Result<PoolView> {
    let name = name.name("name")?;
    Ok(app.engine.pool(&name).ok_or(Error::NotFound { what: "pool", id: name })?)
}
