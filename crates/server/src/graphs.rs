//! Definitions of graphs: apply them, look at them, see how far their executions come.

use crate::app::App;
use crate::body::JsonBody;
use crate::jobs::hide;
use crate::page::{FEW, Page, limit};
use crate::params::{Params, Segment};
use crate::problem::{Result, discreet};
use crate::schema::{Arguments, NodeKindName};
use crate::submit::idempotency;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use everbeat_model::graph::{Graph, NodeKind, mermaid};
use everbeat_model::run::check_name;
use everbeat_model::{Invalid, Json, StoreTime};
use everbeat_store::{Definition, Reach};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A definition to be applied.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewGraph {
    #[schema(value_type = String, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")]
    name: Json,
    /// `1` unless given.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")]
    version: Option<Json>,
    /// There is at most one execution of it.
    #[schema(value_type = Option<bool>)]
    singleton: Option<Json>,
    /// A task to call after any value of an execution was saved.
    #[schema(value_type = Option<String>)]
    on_save: Option<Json>,
    #[schema(value_type = Vec<NewNode>, min_items = 1, max_items = 10000)]
    nodes: Json,
    /// Accept tasks that nobody has offered yet.
    accept_unknown: Option<bool>,
}

/// A vertex of a graph: documents what `Graph::parse` reads.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it only describes")]
struct NewNode {
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")]
    name: String,
    #[schema(value_type = NodeKindName)]
    kind: NodeKind,
    /// What unblocks it: names of nodes that must have a value, or a condition like `{"or": ["a", {"gt": ["b", 5]}]}`.
    #[schema(required = false, value_type = Value)]
    gate: Option<Value>,
    /// The task that computes it; a tick may have a schedule instead.
    task: Option<String>,
    /// In place of a task: a program and its arguments.
    #[schema(value_type = Option<Arguments>)]
    command: Option<Vec<String>>,
    /// Handed to the task beside its input; of a command, its `env` and `cwd`. The values of `env` are not shown.
    #[schema(required = false, value_type = Value)]
    args: Option<Value>,
    /// Of a tick, in place of a task: `{"every": "15m"}`, or `{"cron": "30 2 * * *", "tz": "Europe/Berlin"}`.
    #[schema(value_type = Option<Object>)]
    schedule: Option<Value>,
    /// Of a mutate node: the nodes whose values it writes.
    #[schema(required = false, value_type = Value)]
    mutates: Option<Value>,
    /// The policy of its runs, and what its kind can be told.
    #[schema(value_type = Option<Object>)]
    options: Option<Value>,
}

/// A stored definition.
#[derive(Serialize, ToSchema)]
#[schema(as = Graph)]
pub(crate) struct GraphJson {
    name: String,
    version: String,
    singleton: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_save: Option<String>,
    #[schema(value_type = Vec<NewNode>)]
    nodes: Value,
    /// A hash of the names and kinds of its nodes.
    shape: String,
    #[schema(value_type = String, format = DateTime)]
    applied_at: StoreTime,
}

impl From<Definition> for GraphJson {
    fn from(Definition { graph, applied_at, .. }: Definition) -> GraphJson {
        GraphJson {
            name: graph.name.clone(),
            version: graph.version.clone(),
            singleton: graph.singleton,
            on_save: graph.on_save.clone(),
            nodes: shown(graph.to_value()["nodes"].take()),
            shape: graph.shape(),
            applied_at,
        }
    }
}

/// Nodes without the values of their commands' environments.
fn shown(mut nodes: Value) -> Value {
    let commands = nodes.as_array_mut().into_iter().flatten().filter(|node| node.get("command").is_some());
    commands.filter_map(|node| node.get_mut("args")).for_each(hide);
    nodes
}

/// Applies a definition. Executions that stand go on with it.
#[utoipa::path(post, path = "/api/v1/graphs", tag = "graphs", request_body = NewGraph,
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 500, pattern = r"^[!-~]([ -~]*[!-~])?$",
        description = "The same request again is answered with what it applied then")),
    responses(
        (status = 201, body = GraphJson, headers(("location" = String))),
        (status = 200, body = GraphJson, description = "It is what counts already"),
        (status = 422, description = "The definition cannot be accepted; the problem names the node"),
    ))]
pub(crate) async fn apply_graph(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    JsonBody(new): JsonBody<NewGraph>,
) -> Result<Response> {
    params.only(&[])?;
    let key = idempotency(&headers, "POST /api/v1/graphs", std::iter::once(&new))?;
    let accept_unknown = new.accept_unknown.unwrap_or(false);
    let applied = app.engine.apply_graph(new.read().map_err(discreet)?, accept_unknown, key).await?;
    let location = [(LOCATION, format!("/api/v1/graphs/{}", escape(&applied.definition.graph.name)))];
    let graph = Answer(GraphJson::from(applied.definition));
    Ok(match applied.new {
        true => (StatusCode::CREATED, location, graph).into_response(),
        false => graph.into_response(),
    })
}

impl NewGraph {
    fn read(self) -> std::result::Result<Graph, Invalid> {
        let given = [
            ("name", Some(self.name)),
            ("version", self.version),
            ("singleton", self.singleton),
            ("on_save", self.on_save),
            ("nodes", Some(self.nodes)),
        ];
        let mut fields = Map::new();
        for (name, json) in given {
            if let Some(json) = json {
                fields.insert(name.to_string(), read(&json).map_err(|invalid| invalid.within(name))?);
            }
        }
        Graph::parse(&Value::Object(fields))
    }
}

/// Not every JSON text is a value: a number may be too large for any, an escape stand for no character.
pub(crate) fn read(json: &Json) -> std::result::Result<Value, Invalid> {
    json.read().map_err(|error| {
        let problem = format!("cannot be read: {error}");
        Invalid::new("", json, problem, "use numbers that fit 64 bits, and whole characters")
    })
}

/// A name as a segment of a path.
pub(crate) fn escape(name: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte);
    name.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// The latest definition of each graph, by name.
#[utoipa::path(get, path = "/api/v1/graphs", tag = "graphs",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$",
            description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<GraphJson>)))]
pub(crate) async fn list_graphs(State(app): State<App>, params: Params) -> Result<Answer<Page<GraphJson>>> {
    let params = params.only(&["limit", "cursor"])?;
    let limit = limit(&params, FEW)?;
    let after = params.name("cursor")?;
    let graphs = app.engine.graphs(after.as_deref(), limit + 1).await?;
    Ok(Answer(Page::cut(graphs.into_iter().map(GraphJson::from).collect(), limit, |graph| graph.name.clone())))
}

/// The definition that counts: the latest of a version, or of all.
#[utoipa::path(get, path = "/api/v1/graphs/{name}", tag = "graphs",
    params(
        ("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("version" = Option<String>, Query, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
    ),
    responses((status = 200, body = GraphJson), (status = 404, description = "No such graph, or no such version")))]
pub(crate) async fn get_graph(State(app): State<App>, name: Segment, params: Params) -> Result<Answer<GraphJson>> {
    Ok(Answer(find(&app, name, params).await?.into()))
}

/// The graph as a Mermaid flowchart.
#[utoipa::path(get, path = "/api/v1/graphs/{name}/mermaid", tag = "graphs",
    params(
        ("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("version" = Option<String>, Query, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/plain"),
        (status = 404, description = "No such graph, or no such version"),
    ))]
pub(crate) async fn draw_graph(State(app): State<App>, name: Segment, params: Params) -> Result<Response> {
    Ok(text(mermaid(&find(&app, name, params).await?.graph)))
}

async fn find(app: &App, name: Segment, params: Params) -> Result<Definition> {
    let params = params.only(&["version"])?;
    let version = params.name("version")?;
    Ok(app.engine.graph(&name.name("name")?, version.as_deref()).await?)
}

pub(crate) fn text(text: String) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// How far executions of a graph have come.
#[derive(Serialize, ToSchema)]
#[schema(as = Analytics)]
pub(crate) struct AnalyticsJson {
    graph: String,
    /// Archived ones among them.
    executions: u64,
    archived: u64,
    nodes: BTreeMap<String, ReachJson>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Reach)]
struct ReachJson {
    #[schema(value_type = NodeKindName)]
    kind: NodeKind,
    /// Executions in which it ever had a value.
    reached: u64,
    reached_percent: f64,
    /// From the start of an execution until it first had a value.
    #[schema(required)]
    average_ms: Option<f64>,
    /// Executions in which it was the last one that changed.
    flow_ends_here: u64,
    flow_ends_here_percent: f64,
}

#[utoipa::path(get, path = "/api/v1/graphs/{name}/analytics", tag = "graphs",
    params(("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")),
    responses((status = 200, body = AnalyticsJson), (status = 404, description = "No such graph")))]
pub(crate) async fn analyse_graph(
    State(app): State<App>,
    name: Segment,
    params: Params,
) -> Result<Answer<AnalyticsJson>> {
    params.only(&[])?;
    let name = name.name("name")?;
    let graph = app.engine.graph(&name, None).await?.graph;
    let mut analytics = app.engine.analytics(&name).await?;
    let executions = analytics.executions;
    let reach = |name: &str, kind| {
        let Reach { reached, average, ended } = analytics.nodes.remove(name).unwrap_or_default();
        ReachJson {
            kind,
            reached,
            reached_percent: percent(reached, executions),
            average_ms: (reached > 0).then(|| rounded(average.as_secs_f64() * 1e3)),
            flow_ends_here: ended,
            flow_ends_here_percent: percent(ended, executions),
        }
    };
    let nodes = of_each_node(&graph, reach);
    Ok(Answer(AnalyticsJson { graph: name, executions, archived: analytics.archived, nodes }))
}

fn of_each_node<T>(graph: &Graph, mut of: impl FnMut(&str, NodeKind) -> T) -> BTreeMap<String, T> {
    graph.nodes().iter().map(|node| (node.name.clone(), of(&node.name, node.kind))).collect()
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { rounded(part as f64 * 100.0 / whole as f64) }
}

/// More digits than these say nothing.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// Checks a name in a body before it is looked up.
pub(crate) fn checked(field: &str, name: String) -> std::result::Result<String, Invalid> {
    check_name(field, &name).map(|()| name)
}
