//! Schedules: tasks that are due again and again. Flows are written and asked for in the same way.

use crate::app::App;
use crate::body::{JsonBody, OptionalBody};
use crate::flow_runs::{FlowRunJson, page_of, triggered};
use crate::graphs::{escape, read};
use crate::page::{FEW, Page, limit, text_cursor};
use crate::params::{Params, Segment, bad};
use crate::problem::{Kind, Problem, Result, discreet};
use crate::schema::{CatchUpName, DeclaredName, OverlapName};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use everbeat_engine::{ScheduleView, WriteSchedule};
use everbeat_model::schedule::{Rhythm, Schedule, ScheduleKind, ScheduledWork};
use everbeat_model::time::format_duration;
use everbeat_model::{Invalid, Json, StoreTime};
use everbeat_store::{Author, Declared, ScheduleFilter};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A schedule to be written: documents what `Schedule::parse` reads.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes")]
pub(crate) struct NewSchedule {
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")]
    task: String,
    #[schema(required = false)]
    input: Value,
    /// `{"every": "15m"}`, or `{"cron": "30 2 * * *", "tz": "Europe/Berlin"}`. Without one it is due only when asked for.
    #[schema(value_type = Option<Object>)]
    schedule: Option<Value>,
    description: Option<String>,
    /// A new one is, unless told otherwise.
    enabled: Option<bool>,
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
    /// Those of one group share a limit.
    group: Option<String>,
    /// Due when each of these has succeeded.
    after: Option<Vec<String>>,
    /// Accept a task that nobody has offered yet.
    accept_unknown: Option<bool>,
}

/// A stored schedule.
#[derive(Serialize, ToSchema)]
#[schema(as = Schedule)]
pub(crate) struct ScheduleJson {
    task: String,
    #[schema(value_type = Value)]
    input: Value,
    #[serde(flatten)]
    common: CommonJson,
}

/// What schedules and flows have in common.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommonJson {
    pub(crate) name: String,
    #[schema(required)]
    description: Option<String>,
    enabled: bool,
    #[schema(required, value_type = Option<Object>)]
    schedule: Option<Value>,
    #[schema(value_type = OverlapName)]
    overlap: &'static str,
    #[schema(value_type = CatchUpName)]
    catch_up: &'static str,
    #[schema(required)]
    late_after: Option<String>,
    #[schema(required)]
    queue: Option<String>,
    priority: i16,
    #[schema(value_type = Object)]
    policy: Value,
    #[schema(required)]
    concurrency: Option<usize>,
    #[schema(required)]
    group: Option<String>,
    after: Vec<String>,
    /// None unless code declares it: `same` as the code says, or `changed` since by somebody.
    #[schema(required, value_type = Option<DeclaredName>)]
    declared: Option<&'static str>,
    /// Rises with every definition; also the ETag.
    version: u64,
    #[schema(value_type = String, format = DateTime)]
    created_at: StoreTime,
    #[schema(value_type = String, format = DateTime)]
    updated_at: StoreTime,
    /// When its last run was made.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    last_run_at: Option<StoreTime>,
    #[schema(required, value_type = Option<crate::schema::FlowRunStatusName>)]
    last_run_status: Option<&'static str>,
    #[schema(required)]
    last_run_error: Option<String>,
    /// None while it is not enabled, or if nothing is due by the clock.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    next_due_at: Option<StoreTime>,
    /// How long it is late.
    #[schema(required)]
    late_ms: Option<u64>,
    /// Occurrences that wait for their turn.
    waiting: usize,
    /// Runs that are not over.
    running: usize,
}

impl CommonJson {
    pub(crate) fn of(view: &ScheduleView) -> CommonJson {
        let (stored, schedule) = (&view.stored, &view.stored.schedule);
        let last = stored.last_run.as_ref().map(|run| FlowRunJson::of_run(&schedule.name, run));
        CommonJson {
            name: schedule.name.clone(),
            description: schedule.description.clone(),
            enabled: stored.enabled,
            schedule: schedule.terms.rhythm.as_ref().map(Rhythm::to_json),
            overlap: schedule.terms.overlap.as_str(),
            catch_up: schedule.terms.catch_up.as_str(),
            late_after: schedule.terms.late_after.map(format_duration),
            queue: schedule.queue.clone(),
            priority: schedule.priority,
            policy: Value::Object(schedule.policy.clone()),
            concurrency: schedule.terms.concurrency,
            group: schedule.group.clone(),
            after: schedule.after.clone(),
            declared: declared_word(&stored.declared),
            version: stored.version,
            created_at: stored.created_at,
            updated_at: stored.updated_at,
            last_run_at: stored.last_run.as_ref().map(|run| run.created_at),
            last_run_status: last.as_ref().map(FlowRunJson::status),
            last_run_error: last.and_then(FlowRunJson::into_error),
            next_due_at: stored.next_due.filter(|_| stored.enabled),
            late_ms: view.late.map(|late| u64::try_from(late.as_millis()).unwrap_or(u64::MAX)),
            waiting: stored.waiting,
            running: stored.unfinished,
        }
    }
}

/// The words for what code declares.
pub(crate) const DECLARED: [&str; 2] = ["same", "changed"];

fn declared_word(declared: &Declared) -> Option<&'static str> {
    match declared {
        Declared::Never => None,
        Declared::Same => Some(DECLARED[0]),
        Declared::Changed(_) => Some(DECLARED[1]),
    }
}

impl From<ScheduleView> for ScheduleJson {
    fn from(view: ScheduleView) -> ScheduleJson {
        let (task, input) = match &view.stored.schedule.work {
            ScheduledWork::Task { task, input } => (task.clone(), input.clone()),
            ScheduledWork::Flow { .. } => (view.stored.schedule.task().to_string(), Value::Null),
        };
        ScheduleJson { task, input, common: CommonJson::of(&view) }
    }
}

/// Fields of what is read that are not written: whoever sends back what was read need not take them out.
const NOT_WRITTEN: [&str; 11] = [
    "declared",
    "version",
    "created_at",
    "updated_at",
    "last_run_at",
    "last_run_status",
    "last_run_error",
    "next_due_at",
    "late_ms",
    "waiting",
    "running",
];

/// What a request writes.
pub(crate) type Written = BTreeMap<String, Json>;

/// Writes a schedule or a flow.
pub(crate) async fn write(
    app: &App,
    kind: ScheduleKind,
    name: &str,
    headers: &HeaderMap,
    fields: Written,
) -> Result<(ScheduleView, bool)> {
    let Described { schedule, enabled, accept_unknown } = described(kind, name, &fields)?;
    let version = condition(headers)?;
    if version == Some(Condition::Absent) {
        return match app.engine.schedule(kind, name).await {
            Ok(found) => Err(taken(kind, name, found.stored.version)),
            Err(everbeat_engine::Error::NotFound { .. }) => {
                let write = WriteSchedule { schedule, enabled, version: None, accept_unknown, author: Author::Person };
                Ok(app.engine.write_schedule(write).await?)
            }
            Err(error) => Err(error.into()),
        };
    }
    let version = version.and_then(Condition::version);
    let write = WriteSchedule { schedule, enabled, version, accept_unknown, author: Author::Person };
    Ok(app.engine.write_schedule(write).await?)
}

/// What a body says of a schedule or flow.
pub(crate) struct Described {
    pub(crate) schedule: Schedule,
    enabled: Option<bool>,
    accept_unknown: bool,
}

pub(crate) fn described(kind: ScheduleKind, name: &str, fields: &Written) -> Result<Described> {
    let mut value = Map::new();
    for (field, json) in fields {
        if !NOT_WRITTEN.contains(&field.as_str()) {
            value.insert(field.clone(), read(json).map_err(|invalid| discreet(invalid.within(field)))?);
        }
    }
    let mut flag = |field: &str| match value.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(flag)),
        Some(other) => Err(Invalid::new(field, other, "is neither true nor false", "use true or false")),
    };
    let (enabled, accept_unknown) = (flag("enabled")?, flag("accept_unknown")?.unwrap_or(false));
    // The interval in seconds is shown beside the schedule that it stands for.
    if value.get("schedule").is_some_and(|schedule| !schedule.is_null())
        && value.get("run_interval") == Some(&Value::Null)
    {
        value.remove("run_interval");
    }
    let schedule = Schedule::parse(kind, name, &Value::Object(value)).map_err(discreet)?;
    Ok(Described { schedule, enabled, accept_unknown })
}

fn taken(kind: ScheduleKind, name: &str, version: u64) -> Problem {
    let detail = format!("{kind} {name:?} exists, with version {version}");
    Problem::new(Kind::PreconditionFailed, detail, "leave If-None-Match out to replace it, or choose another name")
}

/// Under which condition something is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Version(u64),
    /// There must not be one.
    Absent,
}

impl Condition {
    pub(crate) fn version(self) -> Option<u64> {
        match self {
            Condition::Version(version) => Some(version),
            Condition::Absent => None,
        }
    }
}

/// Reads `If-Match: "3"` and `If-None-Match: *`.
pub(crate) fn condition(headers: &HeaderMap) -> Result<Option<Condition>> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim().to_string());
    if let Some(given) = text(IF_NONE_MATCH.as_str()) {
        if given == "*" {
            return Ok(Some(Condition::Absent));
        }
        return Err(bad(Invalid::new("If-None-Match", format!("{given:?}"), "cannot be used here", "use *")));
    }
    let Some(given) = text(IF_MATCH.as_str()).filter(|given| given != "*") else { return Ok(None) };
    let bare = given.strip_prefix("W/").unwrap_or(&given).trim_matches('"');
    let hint = "send the ETag of what was read, like \"3\"";
    let version =
        bare.parse().map_err(|_| bad(Invalid::new("If-Match", format!("{given:?}"), "is not a version", hint)))?;
    Ok(Some(Condition::Version(version)))
}

/// An answer with the version of what it shows.
pub(crate) fn tagged(version: u64, answer: impl IntoResponse) -> Response {
    ([(ETAG, format!("\"{version}\""))], answer).into_response()
}

/// An answer to what was written.
pub(crate) fn written<T: Serialize>(path: &str, name: &str, version: u64, created: bool, body: T) -> Response {
    let location = [(LOCATION, format!("{path}/{}", escape(name)))];
    match created {
        true => tagged(version, (StatusCode::CREATED, location, Answer(body))),
        false => tagged(version, Answer(body)),
    }
}

/// Writes a schedule; another one of the same name is replaced.
#[utoipa::path(put, path = "/api/v1/schedules/{name}", tag = "schedules", request_body = NewSchedule,
    params(
        ("name" = String, Path),
        ("If-Match" = Option<String>, Header, description = "Only in place of this version"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if there is none"),
    ),
    responses(
        (status = 201, body = ScheduleJson, headers(("location" = String), ("etag" = String))),
        (status = 200, body = ScheduleJson, headers(("etag" = String))),
        (status = 412, description = "Its version is another one"),
        (status = 422, description = "A value cannot be accepted"),
    ))]
pub(crate) async fn put_schedule(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    segment: Segment,
    JsonBody(fields): JsonBody<Written>,
) -> Result<Response> {
    params.only(&[])?;
    let name = segment.name("name")?;
    let (view, created) = write(&app, ScheduleKind::Schedule, &name, &headers, fields).await?;
    let version = view.stored.version;
    Ok(written("/api/v1/schedules", &name, version, created, ScheduleJson::from(view)))
}

/// Schedules, by name.
#[utoipa::path(get, path = "/api/v1/schedules", tag = "schedules",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query),
    ),
    responses((status = 200, body = Page<ScheduleJson>)))]
pub(crate) async fn list_schedules(State(app): State<App>, params: Params) -> Result<Answer<Page<ScheduleJson>>> {
    let views = list(&app, params, ScheduleKind::Schedule).await?;
    Ok(Answer(Page {
        items: views.items.into_iter().map(ScheduleJson::from).collect(),
        next_cursor: views.next_cursor,
    }))
}

/// A part of a list of schedules or flows.
pub(crate) async fn list(app: &App, params: Params, kind: ScheduleKind) -> Result<Page<ScheduleView>> {
    let params = params.only(&["limit", "cursor"])?;
    let limit = limit(&params, FEW)?;
    let filter = ScheduleFilter { kind: Some(kind), after: text_cursor(&params)?, limit: limit + 1 };
    let views = app.engine.schedules(filter).await?;
    Ok(Page::of_part(views, limit, |view| view.stored.schedule.name.clone()))
}

/// One schedule.
#[utoipa::path(get, path = "/api/v1/schedules/{name}", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = ScheduleJson, headers(("etag" = String))), (status = 404)))]
pub(crate) async fn get_schedule(State(app): State<App>, params: Params, segment: Segment) -> Result<Response> {
    params.only(&[])?;
    let view = app.engine.schedule(ScheduleKind::Schedule, &segment.name("name")?).await?;
    Ok(tagged(view.stored.version, Answer(ScheduleJson::from(view))))
}

/// Deletes a schedule. Its runs stay.
#[utoipa::path(delete, path = "/api/v1/schedules/{name}", tag = "schedules",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "Only this version")),
    responses((status = 204), (status = 404), (status = 412, description = "Its version is another one")))]
pub(crate) async fn delete_schedule(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    segment: Segment,
) -> Result<StatusCode> {
    delete(&app, params, &headers, segment, ScheduleKind::Schedule).await
}

pub(crate) async fn delete(
    app: &App,
    params: Params,
    headers: &HeaderMap,
    segment: Segment,
    kind: ScheduleKind,
) -> Result<StatusCode> {
    params.only(&[])?;
    let version = condition(headers)?.and_then(Condition::version);
    app.engine.delete_schedule(kind, &segment.name("name")?, version).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Switches a schedule on. What was missed while it was off is not made up for.
#[utoipa::path(post, path = "/api/v1/schedules/{name}/enable", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = ScheduleJson), (status = 404)))]
pub(crate) async fn enable_schedule(
    State(app): State<App>,
    params: Params,
    segment: Segment,
) -> Result<Answer<ScheduleJson>> {
    Ok(Answer(switch(&app, params, segment, ScheduleKind::Schedule, true).await?.into()))
}

/// Switches a schedule off. Runs that have begun go on.
#[utoipa::path(post, path = "/api/v1/schedules/{name}/disable", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = ScheduleJson), (status = 404)))]
pub(crate) async fn disable_schedule(
    State(app): State<App>,
    params: Params,
    segment: Segment,
) -> Result<Answer<ScheduleJson>> {
    Ok(Answer(switch(&app, params, segment, ScheduleKind::Schedule, false).await?.into()))
}

pub(crate) async fn switch(
    app: &App,
    params: Params,
    segment: Segment,
    kind: ScheduleKind,
    enabled: bool,
) -> Result<ScheduleView> {
    params.only(&[])?;
    Ok(app.engine.enable_schedule(kind, &segment.name("name")?, enabled).await?)
}

/// Nothing to say.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// Asks for a run of a schedule now.
#[utoipa::path(post, path = "/api/v1/schedules/{name}/trigger", tag = "schedules",
    params(
        ("name" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 500, pattern = r"^[!-~]([ -~]*[!-~])?$",
            description = "The same key with the same request makes nothing twice"),
    ),
    responses(
        (status = 201, body = FlowRunJson),
        (status = 200, body = FlowRunJson, description = "An earlier run stands for this request"),
        (status = 202, body = FlowRunJson, description = "The run waits for its turn"),
        (status = 404),
        (status = 409, description = "As many wait as may, or the earlier run of this Idempotency-Key is forgotten"),
        (status = 422, description = "The Idempotency-Key belongs to another request"),
    ))]
pub(crate) async fn trigger_schedule(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    segment: Segment,
    OptionalBody(Nothing {}): OptionalBody<Nothing>,
) -> Result<Response> {
    params.only(&[])?;
    triggered(&app, ScheduleKind::Schedule, &segment.name("name")?, &headers, None).await
}

/// The runs of a schedule, newest first; what waits for its turn comes before them.
#[utoipa::path(get, path = "/api/v1/schedules/{name}/runs", tag = "schedules",
    params(
        ("name" = String, Path),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<uuid::Uuid>, Query),
    ),
    responses((status = 200, body = Page<FlowRunJson>), (status = 404)))]
pub(crate) async fn list_schedule_runs(
    State(app): State<App>,
    params: Params,
    segment: Segment,
) -> Result<Answer<Page<FlowRunJson>>> {
    page_of(&app, params, ScheduleKind::Schedule, &segment.name("name")?).await
}

/// When something is due.
#[derive(Serialize, ToSchema)]
pub(crate) struct DueTimes {
    #[schema(value_type = Vec<String>)]
    items: Vec<StoreTime>,
}

/// The next due times of a schedule.
#[utoipa::path(get, path = "/api/v1/schedules/{name}/next", tag = "schedules",
    params(("name" = String, Path), ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000)),
    responses((status = 200, body = DueTimes), (status = 404)))]
pub(crate) async fn next_of_schedule(
    State(app): State<App>,
    params: Params,
    segment: Segment,
) -> Result<Answer<DueTimes>> {
    next(&app, params, segment, ScheduleKind::Schedule).await
}

const FEW_TIMES: usize = 10;

pub(crate) async fn next(app: &App, params: Params, segment: Segment, kind: ScheduleKind) -> Result<Answer<DueTimes>> {
    let params = params.only(&["limit"])?;
    let items = app.engine.next_due(kind, &segment.name("name")?, limit(&params, FEW_TIMES)?).await?;
    Ok(Answer(DueTimes { items }))
}
