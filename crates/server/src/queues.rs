use crate::app::App;
use crate::page::{Page, text_cursor, whole_limit};
use crate::params::{Params, Segment, bad};
use crate::problem::Result;
use axum::Json;
use axum::extract::State;
use everbeat_model::queue::Queue;
use everbeat_model::run::check_name;
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
#[schema(as = Queue)]
pub(crate) struct QueueJson {
    name: String,
    /// Nothing is claimed from it.
    paused: bool,
    scheduled: u64,
    ready: u64,
    running: u64,
}

impl From<Queue> for QueueJson {
    fn from(Queue { name, paused, scheduled, ready, running }: Queue) -> QueueJson {
        QueueJson { name, paused, scheduled, ready, running }
    }
}

/// Every queue that has unfinished runs or was ever paused, by name.
#[utoipa::path(get, path = "/api/v1/queues", tag = "queues",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<QueueJson>)))]
pub(crate) async fn list_queues(State(app): State<App>, params: Params) -> Result<Json<Page<QueueJson>>> {
    let params = params.only(&["limit", "cursor"])?;
    let (limit, after) = (whole_limit(&params)?, text_cursor(&params)?);
    let queues = app.engine.store().queues().await?;
    Ok(Json(Page::of_whole(queues.into_iter().map(QueueJson::from), limit, after, |queue| queue.name.clone())))
}

/// Stops claims from a queue. What runs goes on.
#[utoipa::path(post, path = "/api/v1/queues/{name}/pause", tag = "queues",
    params(("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")), responses((status = 200, body = QueueJson)))]
pub(crate) async fn pause_queue(State(app): State<App>, name: Segment, params: Params) -> Result<Json<QueueJson>> {
    set_paused(&app, name, params, true).await
}

/// Allows claims from a queue again.
#[utoipa::path(post, path = "/api/v1/queues/{name}/resume", tag = "queues",
    params(("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")), responses((status = 200, body = QueueJson)))]
pub(crate) async fn resume_queue(State(app): State<App>, name: Segment, params: Params) -> Result<Json<QueueJson>> {
    set_paused(&app, name, params, false).await
}

async fn set_paused(app: &App, Segment(name): Segment, params: Params, paused: bool) -> Result<Json<QueueJson>> {
    params.only(&[])?;
    check_name("name", &name).map_err(bad)?;
    app.engine.pause_queue(&name, paused).await?;
    let queues = app.engine.store().queues().await?;
    // An empty queue that was never paused is not kept.
    let empty = Queue { name: name.clone(), paused, scheduled: 0, ready: 0, running: 0 };
    Ok(Json(queues.into_iter().find(|queue| queue.name == name).unwrap_or(empty).into()))
}
