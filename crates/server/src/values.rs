//! Values of executions: set them, wait for them, see what they were.

use crate::app::App;
use crate::body::JsonBody;
use crate::executions::{read_metadata, read_values};
use crate::nodes::named;
use crate::page::{FEW, Page, limit};
use crate::params::{OfNode, Params, Segment, bad};
use crate::problem::{Kind, Problem, Result};
use crate::runs::{DEFAULT_WAIT, read_timeout};
use crate::schema::{ChangeKind, WaitForValue};
use axum::Json as Answer;
use axum::extract::State;
use everbeat_engine::{Got, Wait};
use everbeat_model::graph::Cell;
use everbeat_model::time::format_duration;
use everbeat_model::{Invalid, Json, RunId, StoreTime};
use everbeat_store::Remembered;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use utoipa::ToSchema;

/// A node's content.
#[derive(Serialize, ToSchema)]
#[schema(as = Content)]
pub(crate) struct ValueJson {
    value: Value,
    /// The execution's revision when it was last changed.
    revision: u64,
    #[schema(value_type = String, format = DateTime)]
    set_at: StoreTime,
    #[schema(required)]
    metadata: Option<Value>,
}

impl From<Cell> for ValueJson {
    fn from(Cell { value, revision, set_at, metadata }: Cell) -> ValueJson {
        ValueJson { value, revision, set_at, metadata }
    }
}

/// The content of a node, by its name.
#[derive(Serialize, ToSchema)]
pub(crate) struct NodeValue {
    node: String,
    #[serde(flatten)]
    content: ValueJson,
}

/// Values to be set, as one change.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewValues {
    #[schema(value_type = BTreeMap<String, Value>)]
    values: BTreeMap<String, Json>,
    /// Kept with each of them.
    #[schema(required = false, value_type = Value)]
    metadata: Option<Json>,
}

/// The execution's revision afterwards.
#[derive(Serialize, ToSchema)]
pub(crate) struct Revision {
    revision: u64,
}

/// Sets values of input nodes, all or none. What is the same as before changes nothing.
#[utoipa::path(put, path = "/api/v1/executions/{id}/values", tag = "executions", params(("id" = Uuid, Path)),
    request_body = NewValues,
    responses(
        (status = 200, body = Revision),
        (status = 404, description = "No such execution"),
        (status = 409, description = "The execution is archived"),
        (status = 422, description = "A value cannot be accepted, or a node is unknown or no input"),
    ))]
pub(crate) async fn set_values(
    State(app): State<App>,
    id: Segment,
    params: Params,
    JsonBody(new): JsonBody<NewValues>,
) -> Result<Answer<Revision>> {
    params.only(&[])?;
    let (values, metadata) = (read_values(new.values)?, read_metadata(new.metadata)?);
    Ok(Answer(Revision { revision: app.engine.set(id.id()?, values, metadata).await? }))
}

/// Takes the value of an input node away.
#[utoipa::path(delete, path = "/api/v1/executions/{id}/values/{node}", tag = "executions",
    params(
        ("id" = Uuid, Path),
        ("node" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
    ),
    responses(
        (status = 200, body = Revision),
        (status = 404, description = "No such execution, or no such node"),
        (status = 409, description = "The execution is archived"),
        (status = 422, description = "The node is no input"),
    ))]
pub(crate) async fn unset_value(State(app): State<App>, of: OfNode, params: Params) -> Result<Answer<Revision>> {
    params.only(&[])?;
    let asked = app.engine.unset(of.execution, BTreeSet::from([of.node.clone()])).await;
    Ok(Answer(Revision { revision: named(&app, &of, asked).await? }))
}

/// The value of a node; with `wait`, once there is one.
#[utoipa::path(get, path = "/api/v1/executions/{id}/values/{node}", tag = "executions",
    params(
        ("id" = Uuid, Path),
        ("node" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("wait" = inline(Option<WaitForValue>), Query,
            description = "`any` value, one `newer` than now, or `newer_than` the given `revision`"),
        ("revision" = Option<u64>, Query, minimum = 0, description = "With `wait=newer_than`, and only then"),
        ("timeout" = Option<String>, Query, pattern = r"^[0-9]",
            description = "How long to wait, `30s` unless given, at most `5m`; a number means seconds"),
    ),
    responses(
        (status = 200, body = NodeValue),
        (status = 404, description = "No such execution, no such node, or the node has no value"),
        (status = 408, description = "The wait is over and there is no such value"),
        (status = 409, description = "The node's computation failed for good"),
    ))]
pub(crate) async fn get_value(State(app): State<App>, of: OfNode, params: Params) -> Result<Answer<NodeValue>> {
    let params = params.only(&["wait", "revision", "timeout"])?;
    let wait = read_wait(&params)?;
    let timeout = params.get("timeout", read_timeout)?.unwrap_or(DEFAULT_WAIT);
    let OfNode { execution, node } = of;
    let got = match wait {
        Wait::Immediate => app.engine.value(execution, &node, wait, Duration::ZERO).await?,
        _ => app.wait(app.engine.value(execution, &node, wait, timeout)).await?,
    };
    let new = if matches!(wait, Wait::Newer | Wait::NewerThan(_)) { "newer value" } else { "value" };
    let (kind, detail, hint) = match got {
        Got::Value(cell) => return Ok(Answer(NodeValue { node, content: cell.into() })),
        Got::NotSet => {
            let hint =
                format!("wait for it with wait=any, or see what it waits for: everbeat execution show {execution}");
            (Kind::NotSet, format!("node {node:?} has no value"), hint)
        }
        Got::Failed(reason) => {
            let hint = format!("change what it depends on, or: everbeat execution retry {execution} {node}");
            (Kind::ComputationFailed, format!("the computation of node {node:?} failed: {reason}"), hint)
        }
        Got::TimedOut(waiting_for) => {
            let span = format_duration(timeout);
            let why = waiting_for.map_or_else(String::new, |what| format!("; it waits for: {what}"));
            let hint = format!("wait again, or see everbeat execution show {execution}");
            (Kind::WaitTimedOut, format!("node {node:?} has no {new} after {span}{why}"), hint)
        }
    };
    Err(Problem::new(kind, detail, hint))
}

fn read_wait(params: &Params) -> Result<Wait> {
    let word = params.word("wait", &["immediate", "any", "newer", "newer_than"], |word| word)?;
    let revision = params.get("revision", read_revision)?;
    match (word.unwrap_or("immediate"), revision) {
        ("newer_than", Some(revision)) => Ok(Wait::NewerThan(revision)),
        ("newer_than", None) => {
            let hint = "name the revision that you know already";
            Err(bad(Invalid::new("revision", "nothing", "is missing: wait=newer_than needs it", hint)))
        }
        (_, Some(revision)) => {
            let hint = "say wait=newer_than too, or leave it out";
            Err(bad(Invalid::new("revision", revision, "is only for wait=newer_than", hint)))
        }
        ("any", None) => Ok(Wait::Any),
        ("newer", None) => Ok(Wait::Newer),
        _ => Ok(Wait::Immediate),
    }
}

fn read_revision(text: &str) -> std::result::Result<u64, Invalid> {
    let hint = "use the revision of a value, a whole number";
    text.parse().map_err(|_| Invalid::new("", format!("{text:?}"), "is not a revision", hint))
}

/// One change of a value.
#[derive(Serialize, ToSchema)]
#[schema(as = Change)]
pub(crate) struct ChangeJson {
    /// Rises within the execution.
    place: u64,
    node: String,
    #[schema(value_type = ChangeKind)]
    kind: &'static str,
    #[schema(required, value_type = Value)]
    value: Option<Json>,
    /// The execution's revision with it.
    revision: u64,
    #[schema(value_type = String, format = DateTime)]
    at: StoreTime,
    #[schema(required, value_type = Value)]
    metadata: Option<Json>,
    /// The run whose result it was.
    #[schema(required, value_type = Option<Uuid>)]
    run_id: Option<RunId>,
}

impl From<Remembered> for ChangeJson {
    fn from(Remembered { place, node, value, revision, at, metadata, run }: Remembered) -> ChangeJson {
        let kind = if value.is_some() { "set" } else { "cleared" };
        ChangeJson { place, node, kind, value, revision, at, metadata, run_id: run }
    }
}

/// What was set and cleared, oldest first, as far as it is kept.
#[utoipa::path(get, path = "/api/v1/executions/{id}/history", tag = "executions",
    params(
        ("id" = Uuid, Path),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, pattern = "^[0-9]+$", description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<ChangeJson>), (status = 404, description = "No such execution")))]
pub(crate) async fn list_history(
    State(app): State<App>,
    id: Segment,
    params: Params,
) -> Result<Answer<Page<ChangeJson>>> {
    let params = params.only(&["limit", "cursor"])?;
    let limit = limit(&params, FEW)?;
    let after = params.get("cursor", read_place)?.unwrap_or(0);
    let changes = app.engine.history(id.id()?, after, limit + 1).await?;
    let items = changes.into_iter().map(ChangeJson::from).collect();
    Ok(Answer(Page::cut(items, limit, |change| change.place.to_string())))
}

fn read_place(text: &str) -> std::result::Result<u64, Invalid> {
    let hint = "hand back the next_cursor of the part before";
    // Stores count in 64 bits with a sign.
    let place = text.parse::<u64>().ok().filter(|place| i64::try_from(*place).is_ok());
    place.ok_or_else(|| Invalid::new("", format!("{text:?}"), "is not a cursor", hint))
}
