//! Executions of graphs: start them, find them, look at them.

use crate::app::App;
use crate::body::JsonBody;
use crate::graphs::{checked, read, text};
use crate::nodes::NodeJson;
use crate::page::{FEW, Page, limit};
use crate::params::{Params, Segment};
use crate::problem::Result;
use crate::schema::SummaryFormat;
use crate::submit::idempotency;
use crate::values::ValueJson;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::header::{ACCEPT, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use everbeat_engine::{ExecutionView, StartExecution};
use everbeat_model::graph::{Condition, Sort};
use everbeat_model::{ExecutionId, Invalid, Json, StoreTime};
use everbeat_store::{ExecutionFilter, Stored};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A durable instance of a graph.
#[derive(Serialize, ToSchema)]
#[schema(as = Execution)]
pub(crate) struct ExecutionJson {
    #[schema(value_type = Uuid)]
    id: ExecutionId,
    graph: String,
    version: String,
    /// Rises with every change of a value.
    revision: u64,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    archived_at: Option<StoreTime>,
    #[schema(value_type = String, format = DateTime)]
    created_at: StoreTime,
    #[schema(value_type = String, format = DateTime)]
    updated_at: StoreTime,
    /// What is set, also of nodes that the graph no longer has.
    values: BTreeMap<String, ValueJson>,
    nodes: BTreeMap<String, NodeJson>,
}

impl From<ExecutionView> for ExecutionJson {
    fn from(ExecutionView { stored, nodes }: ExecutionView) -> ExecutionJson {
        let Stored { id, graph, execution, created_at, updated_at, mut attempts, .. } = stored;
        let values = execution.nodes.into_iter().filter_map(|(name, state)| Some((name, state.cell?.into())));
        let nodes = nodes.into_iter().map(|(name, view)| {
            let attempt = attempts.remove(&name);
            (name, NodeJson::new(view, attempt))
        });
        ExecutionJson {
            id,
            graph: graph.name.clone(),
            version: graph.version.clone(),
            revision: execution.revision,
            archived_at: execution.archived_at,
            created_at,
            updated_at,
            values: values.collect(),
            nodes: nodes.collect(),
        }
    }
}

/// An execution to be started.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewExecution {
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")]
    graph: String,
    /// The latest one unless given.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")]
    version: Option<Json>,
    /// Set with the start, as one change.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    values: Option<BTreeMap<String, Json>>,
    /// Kept with each of the values.
    #[schema(required = false, value_type = Value)]
    metadata: Option<Json>,
}

/// Starts an execution; of a singleton graph, finds the one that stands.
#[utoipa::path(post, path = "/api/v1/executions", tag = "executions", request_body = NewExecution,
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 500, pattern = r"^[!-~]([ -~]*[!-~])?$",
        description = "The same key with the same request makes nothing twice")),
    responses(
        (status = 201, body = ExecutionJson, headers(("location" = String))),
        (status = 200, body = ExecutionJson, description = "An earlier execution stands for this request"),
        (status = 409, description = "The values do not fit the state of the execution"),
        (status = 422, description = "A value cannot be accepted"),
    ))]
pub(crate) async fn start_execution(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    JsonBody(new): JsonBody<NewExecution>,
) -> Result<Response> {
    params.only(&[])?;
    let idempotency = idempotency(&headers, "POST /api/v1/executions", std::iter::once(&new))?;
    let (id, created) = app.engine.start_execution(new.start()?, idempotency).await?;
    let execution = view(&app, id).await?;
    let location = [(LOCATION, format!("/api/v1/executions/{id}"))];
    Ok(match created {
        true => (StatusCode::CREATED, location, execution).into_response(),
        false => execution.into_response(),
    })
}

impl NewExecution {
    fn start(self) -> std::result::Result<StartExecution, Invalid> {
        Ok(StartExecution {
            graph: checked("graph", self.graph)?,
            version: self.version.map(|version| read_version(&version)).transpose()?,
            values: read_values(self.values.unwrap_or_default())?,
            metadata: read_metadata(self.metadata)?,
        })
    }
}

/// A definition may write its version as a number, so this may too.
fn read_version(version: &Json) -> std::result::Result<String, Invalid> {
    match read(version).map_err(|invalid| invalid.within("version"))? {
        Value::String(version) => checked("version", version),
        Value::Number(version) => Ok(version.to_string()),
        other => Err(Invalid::new("version", other, "is not a text", "use a text in quotes")),
    }
}

pub(crate) fn read_values(values: BTreeMap<String, Json>) -> std::result::Result<BTreeMap<String, Value>, Invalid> {
    let read = |(node, json): (String, Json)| match read(&json) {
        Ok(value) => Ok((node, value)),
        Err(invalid) => Err(invalid.within(&node).within("values")),
    };
    values.into_iter().map(read).collect()
}

pub(crate) fn read_metadata(metadata: Option<Json>) -> std::result::Result<Option<Value>, Invalid> {
    metadata.map(|metadata| read(&metadata).map_err(|invalid| invalid.within("metadata"))).transpose()
}

/// Executions, newest first unless sorted. Archived ones only if asked for.
#[utoipa::path(get, path = "/api/v1/executions", tag = "executions",
    params(
        ("graph" = Option<String>, Query, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("where" = Option<Vec<String>>, Query, max_items = 50,
            description = "`NODE.OP:JSON`, like `age.gte:18` or `paid.is_set`; if repeated, all must hold"),
        ("sort" = Option<String>, Query, min_length = 1, max_length = 201, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$",
            description = "`created_at`, `updated_at`, `revision`, `id` or a node; with `-` before it reversed"),
        ("archived" = Option<bool>, Query, description = "`true` includes archived ones"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, pattern = "^[0-9a-f-]+$", description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<ExecutionJson>)))]
pub(crate) async fn list_executions(State(app): State<App>, params: Params) -> Result<Answer<Page<ExecutionJson>>> {
    let params = params.only_with(&["graph", "sort", "archived", "limit", "cursor"], &["where"])?;
    let limit = limit(&params, FEW)?;
    let sort = params.get("sort", Sort::parse)?;
    // A sorted list may hold equal values, so it is taken up by place; the other by its last execution.
    let (before, offset) = match sort {
        None => (params.id("cursor")?, 0),
        Some(_) => (None, params.get("cursor", read_offset)?.unwrap_or(0)),
    };
    let sorted = sort.is_some();
    let filter = ExecutionFilter { sort, before, offset, limit: limit + 1, ..filter(&params)? };
    let found = app.engine.executions(filter).await?;
    let items = found.into_iter().map(ExecutionJson::from).collect();
    let next = |last: &ExecutionJson| if sorted { (offset + limit).to_string() } else { last.id.to_string() };
    Ok(Answer(Page::cut(items, limit, next)))
}

/// How many there are.
#[derive(Serialize, ToSchema)]
pub(crate) struct Count {
    count: u64,
}

/// How many executions a list would have.
#[utoipa::path(get, path = "/api/v1/executions/count", tag = "executions",
    params(
        ("graph" = Option<String>, Query, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("where" = Option<Vec<String>>, Query, max_items = 50,
            description = "`NODE.OP:JSON`, like `age.gte:18` or `paid.is_set`; if repeated, all must hold"),
        ("archived" = Option<bool>, Query, description = "`true` includes archived ones"),
    ),
    responses((status = 200, body = Count)))]
pub(crate) async fn count_executions(State(app): State<App>, params: Params) -> Result<Answer<Count>> {
    let params = params.only_with(&["graph", "archived"], &["where"])?;
    Ok(Answer(Count { count: app.engine.count_executions(filter(&params)?).await? }))
}

/// More would make a question that no store answers well.
const MOST_CONDITIONS: usize = 50;

fn filter(params: &Params) -> Result<ExecutionFilter> {
    let conditions = params.all("where", Condition::parse)?;
    if conditions.len() > MOST_CONDITIONS {
        let hint = format!("use at most {MOST_CONDITIONS}");
        return Err(crate::params::bad(Invalid::new("where", conditions.len(), "are too many conditions", hint)));
    }
    Ok(ExecutionFilter {
        graph: params.name("graph")?,
        conditions,
        include_archived: params.flag("archived")?.unwrap_or(false),
        ..ExecutionFilter::default()
    })
}

fn read_offset(text: &str) -> std::result::Result<usize, Invalid> {
    let hint = "hand back the next_cursor of the part before, with the same sort";
    let offset = text.parse::<u32>().ok().and_then(|offset| usize::try_from(offset).ok());
    offset.ok_or_else(|| Invalid::new("", format!("{text:?}"), "is not a cursor", hint))
}

#[utoipa::path(get, path = "/api/v1/executions/{id}", tag = "executions", params(("id" = Uuid, Path)),
    responses((status = 200, body = ExecutionJson), (status = 404, description = "No such execution")))]
pub(crate) async fn get_execution(
    State(app): State<App>,
    id: Segment,
    params: Params,
) -> Result<Answer<ExecutionJson>> {
    params.only(&[])?;
    view(&app, id.id()?).await
}

pub(crate) async fn view(app: &App, id: ExecutionId) -> Result<Answer<ExecutionJson>> {
    Ok(Answer(app.engine.execution(id).await?.into()))
}

/// The execution as a Mermaid flowchart, with the state of each node.
#[utoipa::path(get, path = "/api/v1/executions/{id}/mermaid", tag = "executions", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = String, content_type = "text/plain"),
        (status = 404, description = "No such execution"),
    ))]
pub(crate) async fn draw_execution(State(app): State<App>, id: Segment, params: Params) -> Result<Response> {
    params.only(&[])?;
    Ok(text(app.engine.draw_execution(id.id()?).await?))
}

/// An execution, also as a text to read.
#[derive(Serialize, ToSchema)]
pub(crate) struct Summary {
    text: String,
    #[serde(flatten)]
    execution: ExecutionJson,
}

/// The execution as data and as a text; as the text alone if that is accepted or asked for.
#[utoipa::path(get, path = "/api/v1/executions/{id}/summary", tag = "executions",
    params(("id" = Uuid, Path), ("format" = inline(Option<SummaryFormat>), Query)),
    responses(
        (status = 200, content((Summary = "application/json"), (String = "text/plain"))),
        (status = 404, description = "No such execution"),
    ))]
pub(crate) async fn summarise_execution(
    State(app): State<App>,
    id: Segment,
    params: Params,
    headers: HeaderMap,
) -> Result<Response> {
    let params = params.only(&["format"])?;
    let format = params.word("format", &["json", "text"], |word| word)?;
    let view = app.engine.execution(id.id()?).await?;
    let said = view.summary();
    let as_text = match format {
        Some(format) => format == "text",
        None => prefers_text(&headers),
    };
    Ok(match as_text {
        true => text(said),
        false => Answer(Summary { text: said, execution: view.into() }).into_response(),
    })
}

/// Whoever takes JSON too gets that.
fn prefers_text(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let kinds: Vec<&str> = accepted
        .flat_map(|value| value.split(','))
        .map(|kind| kind.split(';').next().unwrap_or_default().trim())
        .collect();
    kinds.contains(&"text/plain") && !kinds.contains(&"application/json")
}

/// Archives an execution: nothing of it is computed any more.
#[utoipa::path(post, path = "/api/v1/executions/{id}/archive", tag = "executions", params(("id" = Uuid, Path)),
    responses((status = 200, body = ExecutionJson), (status = 404, description = "No such execution")))]
pub(crate) async fn archive_execution(
    State(app): State<App>,
    id: Segment,
    params: Params,
) -> Result<Answer<ExecutionJson>> {
    params.only(&[])?;
    let id = id.id()?;
    app.engine.archive(id).await?;
    view(&app, id).await
}

/// Brings an execution back from the archive.
#[utoipa::path(post, path = "/api/v1/executions/{id}/unarchive", tag = "executions", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = ExecutionJson),
        (status = 404, description = "No such execution"),
        (status = 409, description = "Another execution of its singleton graph stands"),
    ))]
pub(crate) async fn unarchive_execution(
    State(app): State<App>,
    id: Segment,
    params: Params,
) -> Result<Answer<ExecutionJson>> {
    params.only(&[])?;
    let id = id.id()?;
    app.engine.unarchive(id).await?;
    view(&app, id).await
}
