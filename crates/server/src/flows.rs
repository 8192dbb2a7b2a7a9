//! Flows: data from a source to a sink, again and again.

use crate::app::App;
use crate::body::{JsonBody, OptionalBody};
use crate::flow_runs::{FlowRunJson, page_of, triggered};
use crate::graphs::read;
use crate::page::{Page, limit};
use crate::params::{Params, Segment};
use crate::problem::Result;
use crate::schedules::{CommonJson, DueTimes, Written, delete, described, list, next, switch, tagged, write, written};
use crate::schema::{CatchUpName, OverlapName, PromiseName};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use everbeat_engine::{ScheduleView, Tried};
use everbeat_model::Json;
use everbeat_model::schedule::{Rhythm, ScheduleKind, ScheduledWork};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use utoipa::ToSchema;

/// A flow to be written: documents what `Schedule::parse` reads.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes")]
pub(crate) struct NewFlow {
    description: Option<String>,
    /// A new one is, unless told otherwise.
    enabled: Option<bool>,
    /// Seconds; in place of `schedule`.
    #[schema(minimum = 1)]
    run_interval: Option<u64>,
    /// `{"every": "15m"}`, or `{"cron": "30 2 * * *", "tz": "Europe/Berlin"}`. Without one it is due only when asked for.
    #[schema(value_type = Option<Object>)]
    schedule: Option<Value>,
    /// `{"source": …, "transform"?: …, "sink": …, "batch_size"?: …}`, or `{"task": …, …}`: a task that is handed all of it.
    #[schema(value_type = Object)]
    configuration: Value,
    /// What becomes of a due time while an earlier run is not over; `skip` unless given.
    #[schema(value_type = Option<OverlapName>)]
    overlap: Option<String>,
    /// What becomes of due times that nobody looked at; `latest` unless given.
    #[schema(value_type = Option<CatchUpName>)]
    catch_up: Option<String>,
    /// Late is what is not over so long after it was due.
    late_after: Option<String>,
    queue: Option<String>,
    priority: Option<i16>,
    /// What differs from the configured policy.
    #[schema(value_type = Option<Object>)]
    policy: Option<Value>,
    /// So many runs at once; in a group, so many of the whole group.
    #[schema(minimum = 1, maximum = 10000)]
    concurrency: Option<u32>,
    /// Flows of one group share a limit.
    group: Option<String>,
    /// Due when each of these flows has succeeded.
    after: Option<Vec<String>>,
    /// A sink for records that are rejected.
    #[schema(value_type = Option<Object>)]
    dead_letter: Option<Value>,
    /// So many rejected records, or such a share of them (`"5%"`), fail the run.
    #[schema(required = false)]
    max_rejected: Value,
    /// Accept a task that nobody has offered yet.
    accept_unknown: Option<bool>,
}

/// A stored flow.
#[derive(Serialize, ToSchema)]
#[schema(as = Flow)]
pub(crate) struct FlowJson {
    /// Seconds; none unless it is due by an interval of whole seconds.
    #[schema(required)]
    run_interval: Option<u64>,
    #[schema(value_type = Object)]
    configuration: Value,
    #[schema(required, value_type = Option<Object>)]
    dead_letter: Option<Value>,
    #[schema(required)]
    max_rejected: Option<Value>,
    /// Where its last run left off.
    #[schema(required)]
    cursor: Option<Value>,
    #[serde(flatten)]
    common: CommonJson,
}

impl From<ScheduleView> for FlowJson {
    fn from(view: ScheduleView) -> FlowJson {
        let schedule = &view.stored.schedule;
        let seconds = match &schedule.terms.rhythm {
            Some(Rhythm::Every(span)) if span.subsec_nanos() == 0 => Some(span.as_secs()),
            _ => None,
        };
        let (configuration, dead_letter, max_rejected) = match &schedule.work {
            ScheduledWork::Flow { configuration, dead_letter, max_rejected } => {
                (configuration.clone(), dead_letter.clone(), max_rejected.clone())
            }
            ScheduledWork::Task { .. } => (Value::Null, None, None),
        };
        // What the runner keeps is more than its source's cursor; a task's checkpoint is the cursor itself.
        let of_task = configuration.get("task").is_some();
        let cursor = view.stored.cursor.as_ref().and_then(|kept| match kept.read::<Value>() {
            Ok(Value::Object(mut kept)) if !of_task => kept.remove("cursor"),
            kept => kept.ok(),
        });
        FlowJson {
            run_interval: seconds,
            configuration,
            dead_letter,
            max_rejected,
            cursor,
            common: CommonJson::of(&view),
        }
    }
}

/// Writes a flow; another one of the same name is replaced, and what waits follows it.
#[utoipa::path(put, path = "/api/v1/flows/{name}", tag = "flows", request_body = NewFlow,
    params(
        ("name" = String, Path),
        ("If-Match" = Option<String>, Header, description = "Only in place of this version"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if there is none"),
    ),
    responses(
        (status = 201, body = FlowJson, headers(("location" = String), ("etag" = String))),
        (status = 200, body = FlowJson, headers(("etag" = String))),
        (status = 412, description = "Its version is another one"),
        (status = 422, description = "A value cannot be accepted"),
    ))]
pub(crate) async fn put_flow(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    segment: Segment,
    JsonBody(mut fields): JsonBody<Written>,
) -> Result<Response> {
    params.only(&[])?;
    let name = segment.name("name")?;
    // Shown with a flow, and not written.
    fields.remove("cursor");
    let (view, created) = write(&app, ScheduleKind::Flow, &name, &headers, fields).await?;
    let version = view.stored.version;
    Ok(written("/api/v1/flows", &name, version, created, FlowJson::from(view)))
}

/// Flows, by name.
#[utoipa::path(get, path = "/api/v1/flows", tag = "flows",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query),
    ),
    responses((status = 200, body = Page<FlowJson>)))]
pub(crate) async fn list_flows(State(app): State<App>, params: Params) -> Result<Answer<Page<FlowJson>>> {
    let views = list(&app, params, ScheduleKind::Flow).await?;
    Ok(Answer(Page { items: views.items.into_iter().map(FlowJson::from).collect(), next_cursor: views.next_cursor }))
}

/// One flow.
#[utoipa::path(get, path = "/api/v1/flows/{name}", tag = "flows", params(("name" = String, Path)),
    responses((status = 200, body = FlowJson, headers(("etag" = String))), (status = 404)))]
pub(crate) async fn get_flow(State(app): State<App>, params: Params, segment: Segment) -> Result<Response> {
    params.only(&[])?;
    let view = app.engine.schedule(ScheduleKind::Flow, &segment.name("name")?).await?;
    Ok(tagged(view.stored.version, Answer(FlowJson::from(view))))
}

/// Deletes a flow. Its runs stay.
#[utoipa::path(delete, path = "/api/v1/flows/{name}", tag = "flows",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "Only this version")),
    responses((status = 204), (status = 404), (status = 412, description = "Its version is another one")))]
pub(crate) async fn delete_flow(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    segment: Segment,
) -> Result<StatusCode> {
    delete(&app, params, &headers, segment, ScheduleKind::Flow).await
}

/// Switches a flow on. What was missed while it was off is not made up for.
#[utoipa::path(post, path = "/api/v1/flows/{name}/enable", tag = "flows", params(("name" = String, Path)),
    responses((status = 200, body = FlowJson), (status = 404)))]
pub(crate) async fn enable_flow(State(app): State<App>, params: Params, segment: Segment) -> Result<Answer<FlowJson>> {
    Ok(Answer(switch(&app, params, segment, ScheduleKind::Flow, true).await?.into()))
}

/// Switches a flow off. Runs that have begun go on.
#[utoipa::path(post, path = "/api/v1/flows/{name}/disable", tag = "flows", params(("name" = String, Path)),
    responses((status = 200, body = FlowJson), (status = 404)))]
pub(crate) async fn disable_flow(State(app): State<App>, params: Params, segment: Segment) -> Result<Answer<FlowJson>> {
    Ok(Answer(switch(&app, params, segment, ScheduleKind::Flow, false).await?.into()))
}

/// What part of the source is asked for.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trigger {
    /// Goes on after this cursor, in place of where the last run left off.
    #[schema(required = false, value_type = Value)]
    cursor: Option<Json>,
    /// From this value of the source's cursor column on.
    #[schema(required = false, value_type = Value)]
    from: Option<Json>,
    /// Up to this value, which is not part of it.
    #[schema(required = false, value_type = Value)]
    to: Option<Json>,
}

/// Asks for a run of a flow now, of all that is new or of a part of its source.
#[utoipa::path(post, path = "/api/v1/flows/{name}/trigger", tag = "flows",
    params(
        ("name" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 500, pattern = r"^[!-~]([ -~]*[!-~])?$",
            description = "The same key with the same request makes nothing twice"),
    ),
    request_body = Option<Trigger>,
    responses(
        (status = 201, body = FlowRunJson),
        (status = 200, body = FlowRunJson, description = "An earlier run stands for this request"),
        (status = 202, body = FlowRunJson, description = "The run waits for its turn"),
        (status = 404),
        (status = 409, description = "As many wait as may, or the earlier run of this Idempotency-Key is forgotten"),
        (status = 422, description = "A value cannot be accepted, or the Idempotency-Key belongs to another request"),
    ))]
pub(crate) async fn trigger_flow(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    segment: Segment,
    OptionalBody(trigger): OptionalBody<Trigger>,
) -> Result<Response> {
    params.only(&[])?;
    triggered(&app, ScheduleKind::Flow, &segment.name("name")?, &headers, trigger.wish()?).await
}

impl Trigger {
    /// What is handed to the run.
    fn wish(&self) -> Result<Option<Json>> {
        let value = |name: &str, json: &Json| read(json).map_err(|invalid| invalid.within(name));
        let mut range = Map::new();
        let mut wish = Map::new();
        for (name, json) in [("from", &self.from), ("to", &self.to)] {
            if let Some(json) = json {
                range.insert(name.to_string(), value(name, json)?);
            }
        }
        if let Some(cursor) = &self.cursor {
            wish.insert("cursor".to_string(), value("cursor", cursor)?);
        }
        if !range.is_empty() {
            wish.insert("range".to_string(), Value::Object(range));
        }
        Ok((!wish.is_empty()).then(|| Json::of(&Value::Object(wish))))
    }
}

/// What a flow would do with the first records of its source.
#[derive(Serialize, ToSchema)]
pub(crate) struct TestedJson {
    flow: String,
    read: u64,
    /// What would be written.
    records: Vec<Value>,
    /// What would be rejected: position, reason, and what was found there.
    rejected: Vec<Value>,
    /// Records of which a transform makes nothing.
    dropped: u64,
    /// `exactly_once`: each record is in the sink once, whatever is lost. `at_least_once`: some may be there again, and carry
    /// what tells repeats.
    #[schema(value_type = PromiseName)]
    promise: &'static str,
}

/// What a sink promises.
pub(crate) const PROMISES: [&str; 2] = ["exactly_once", "at_least_once"];

/// Tries a flow: reads a few records, transforms them, shows what would be written, and writes nothing. With a body, the flow
/// that it describes is tried in place of the stored one.
#[utoipa::path(post, path = "/api/v1/flows/{name}/test", tag = "flows",
    params(
        ("name" = String, Path),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "So many are read; 10 unless given"),
    ),
    request_body = Option<NewFlow>,
    responses(
        (status = 200, body = TestedJson),
        (status = 404),
        (status = 422, description = "The flow cannot be tried, and why"),
    ))]
pub(crate) async fn test_flow(
    State(app): State<App>,
    params: Params,
    segment: Segment,
    OptionalBody(mut fields): OptionalBody<Written>,
) -> Result<Answer<TestedJson>> {
    let params = params.only(&["limit"])?;
    let most = limit(&params, FEW_TESTED)?;
    let name = segment.name("name")?;
    fields.remove("cursor");
    let schedule = match fields.is_empty() {
        true => app.engine.schedule(ScheduleKind::Flow, &name).await?.stored.schedule,
        false => Arc::new(described(ScheduleKind::Flow, &name, &fields)?.schedule),
    };
    let Tried { read, records, rejected, dropped, exactly_once } = app.engine.try_flow(&schedule, most).await?;
    Ok(Answer(TestedJson {
        flow: name,
        read,
        records,
        rejected,
        dropped,
        promise: PROMISES[usize::from(!exactly_once)],
    }))
}

/// A person looks at them.
const FEW_TESTED: usize = 10;

/// The runs of a flow, newest first; what waits for its turn comes before them.
#[utoipa::path(get, path = "/api/v1/flows/{name}/runs", tag = "flows",
    params(
        ("name" = String, Path),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<uuid::Uuid>, Query),
    ),
    responses((status = 200, body = Page<FlowRunJson>), (status = 404)))]
pub(crate) async fn list_flow_runs(
    State(app): State<App>,
    params: Params,
    segment: Segment,
) -> Result<Answer<Page<FlowRunJson>>> {
    page_of(&app, params, ScheduleKind::Flow, &segment.name("name")?).await
}

/// The next due times of a flow.
#[utoipa::path(get, path = "/api/v1/flows/{name}/next", tag = "flows",
    params(("name" = String, Path), ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000)),
    responses((status = 200, body = DueTimes), (status = 404)))]
pub(crate) async fn next_of_flow(State(app): State<App>, params: Params, segment: Segment) -> Result<Answer<DueTimes>> {
    next(&app, params, segment, ScheduleKind::Flow).await
}

/// What a heartbeat came to.
#[derive(Serialize, ToSchema)]
pub(crate) struct HeartbeatJson {
    status: &'static str,
    /// Flows that were due when this call looked.
    flows_due: usize,
    /// Runs that this call made.
    flows_triggered: usize,
}

/// Looks at every flow that is due, and makes its run. Calls that come together share one look.
#[utoipa::path(post, path = "/dataflow/heartbeat", tag = "flows",
    params(("X-Heartbeat-Token" = Option<String>, Header, description = "In place of `Authorization: Bearer`")),
    responses((status = 200, body = HeartbeatJson)))]
pub(crate) async fn heartbeat(
    State(app): State<App>,
    params: Params,
    OptionalBody(_anything): OptionalBody<Written>,
) -> Result<Answer<HeartbeatJson>> {
    params.only(&[])?;
    let heard = app.engine.heartbeat().await?;
    Ok(Answer(HeartbeatJson { status: "Heartbeat processed", flows_due: heard.due, flows_triggered: heard.triggered }))
}
