//! What the nodes of an execution do, and what can be asked of them.

use crate::app::App;
use crate::executions::{ExecutionJson, view};
use crate::params::{OfNode, Params};
use crate::problem::{Kind, Problem, Result};
use crate::schema::{NodeKindName, NodeStateName};
use axum::Json as Answer;
use axum::extract::State;
use everbeat_engine::Error;
use everbeat_model::graph::{NodeKind, NodeView, ViewState};
use everbeat_model::{RunId, StoreTime};
use serde::Serialize;
use utoipa::ToSchema;

/// What a node does now.
#[derive(Serialize, ToSchema)]
#[schema(as = Node)]
pub(crate) struct NodeJson {
    #[schema(value_type = NodeKindName)]
    kind: NodeKind,
    #[schema(value_type = NodeStateName)]
    state: ViewState,
    /// What has to happen for it to get a value, or a newer one.
    #[schema(required)]
    waiting_for: Option<String>,
    /// While it is computed: the number of the last attempt, 0 before the first.
    #[schema(required)]
    attempt: Option<u32>,
    /// Why its computation failed for good.
    #[schema(required)]
    error: Option<String>,
    /// The run of its latest computation.
    #[schema(required, value_type = Option<Uuid>)]
    run_id: Option<RunId>,
    /// Of a loop: iterations that ended.
    #[schema(required)]
    iterations: Option<u32>,
    /// Of a tick that is armed or due.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    due_at: Option<StoreTime>,
}

impl NodeJson {
    pub(crate) fn new(view: NodeView, attempt: Option<u32>) -> NodeJson {
        let NodeView { kind, state, waiting_for, error, run, iterations, due_at } = view;
        let attempt = (state == ViewState::Computing).then(|| attempt.unwrap_or(0));
        NodeJson { kind, state, waiting_for, attempt, error, run_id: run, iterations, due_at }
    }
}

/// Computes a node again, with all its tries, as soon as its gate holds.
#[utoipa::path(post, path = "/api/v1/executions/{id}/nodes/{node}/retry", tag = "executions",
    params(
        ("id" = Uuid, Path),
        ("node" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
    ),
    responses(
        (status = 200, body = ExecutionJson),
        (status = 404, description = "No such execution, or no such node"),
        (status = 409, description = "No task computes the node, or the execution is archived"),
    ))]
pub(crate) async fn retry_node(State(app): State<App>, of: OfNode, params: Params) -> Result<Answer<ExecutionJson>> {
    params.only(&[])?;
    let asked = app.engine.retry_node(of.execution, &of.node).await;
    named(&app, &of, asked).await?;
    view(&app, of.execution).await
}

/// Gives a computation up: the node has failed.
#[utoipa::path(post, path = "/api/v1/executions/{id}/nodes/{node}/abandon", tag = "executions",
    params(
        ("id" = Uuid, Path),
        ("node" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
    ),
    responses(
        (status = 200, body = ExecutionJson),
        (status = 404, description = "No such execution, or no such node"),
        (status = 409, description = "The node is not being computed"),
    ))]
pub(crate) async fn abandon_node(State(app): State<App>, of: OfNode, params: Params) -> Result<Answer<ExecutionJson>> {
    params.only(&[])?;
    let asked = app.engine.abandon_node(of.execution, &of.node).await;
    named(&app, &of, asked).await?;
    view(&app, of.execution).await
}

/// A path that names no node of the execution is one to nothing; in a body it would be a bad value.
pub(crate) async fn named<T>(app: &App, of: &OfNode, asked: everbeat_engine::Result<T>) -> Result<T> {
    match asked {
        Err(Error::Invalid(invalid)) if !app.engine.execution(of.execution).await?.nodes.contains_key(&of.node) => {
            Err(Problem::new(Kind::NotFound, format!("{:?} {}", of.node, invalid.problem), invalid.hint))
        }
        asked => Ok(asked?),
    }
}
