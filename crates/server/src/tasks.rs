use crate::app::App;
use crate::page::{Page, text_cursor, whole_limit};
use crate::params::Params;
use crate::problem::Result;
use axum::Json;
use axum::extract::State;

/// The tasks that some replica or worker has ever offered, by name.
#[utoipa::path(get, path = "/api/v1/tasks", tag = "tasks",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<String>)))]
pub(crate) async fn list_tasks(State(app): State<App>, params: Params) -> Result<Json<Page<String>>> {
    let params = params.only(&["limit", "cursor"])?;
    let (limit, after) = (whole_limit(&params)?, text_cursor(&params)?);
    let tasks = app.engine.store().tasks().await?;
    Ok(Json(Page::of_whole(tasks, limit, after, String::clone)))
}
