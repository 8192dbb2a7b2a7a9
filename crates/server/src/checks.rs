//! Checks: jobs outside that are expected to ping.

use crate::app::App;
use crate::body::JsonBody;
use crate::graphs::read;
use crate::page::{FEW, Page, limit, text_cursor};
use crate::params::{Params, Segment};
use crate::problem::{Result, discreet};
use crate::schedules::{Condition, Written, condition, tagged, written};
use crate::schema::{CheckStateName, WhyDownName};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use everbeat_engine::WriteCheck;
use everbeat_model::StoreTime;
use everbeat_model::check::{Check, CheckState, Health};
use everbeat_store::{CheckFilter, CheckRow, Expected};
use serde::Serialize;
use serde_json::{Map, Value};
use std::time::Duration;
use utoipa::ToSchema;

/// A check to be written: documents what `Check::parse` reads.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes")]
pub(crate) struct NewCheck {
    description: Option<String>,
    /// A success is expected so long after the last one; `1d` unless given.
    period: Option<String>,
    /// In place of `period`: a success is expected at these times.
    cron: Option<String>,
    /// The time zone of `cron`; UTC unless given.
    tz: Option<String>,
    /// How much later a success may come, and how long it may take from start to end; `1h` unless given.
    grace: Option<String>,
}

/// A stored check, and how it stands.
#[derive(Serialize, ToSchema)]
#[schema(as = WatchedCheck)]
pub(crate) struct WatchedJson {
    name: String,
    #[schema(required)]
    description: Option<String>,
    #[schema(required)]
    period: Option<String>,
    #[schema(required)]
    cron: Option<String>,
    #[schema(required)]
    tz: Option<String>,
    grace: String,
    #[schema(value_type = CheckStateName)]
    state: &'static str,
    /// When its job said that it began, unless it has ended since.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    started_at: Option<StoreTime>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    down_since: Option<StoreTime>,
    #[schema(required, value_type = Option<WhyDownName>)]
    down_why: Option<&'static str>,
    /// When the next success is expected; none before the first ping, and while it is paused.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    next_due_at: Option<StoreTime>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    last_ping_at: Option<StoreTime>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    last_success_at: Option<StoreTime>,
    /// How long its job took, when it last said both that it began and that it ended.
    #[schema(required)]
    last_duration_ms: Option<u64>,
    /// Pings that ever came.
    pings: u64,
    /// Rises with every definition; also the ETag.
    version: u64,
    #[schema(value_type = String, format = DateTime)]
    created_at: StoreTime,
    #[schema(value_type = String, format = DateTime)]
    updated_at: StoreTime,
}

impl From<CheckRow> for WatchedJson {
    fn from(row: CheckRow) -> WatchedJson {
        let (definition, vitals) = (row.check.to_value(), &row.vitals);
        let text = |field: &str| definition[field].as_str().map(str::to_string);
        let down = match vitals.health {
            Health::Down { since, why } => Some((since, why.as_str())),
            _ => None,
        };
        WatchedJson {
            description: text("description"),
            period: text("period"),
            cron: text("cron"),
            tz: text("tz"),
            grace: text("grace").unwrap_or_default(),
            state: vitals.health.state().as_str(),
            started_at: vitals.started_at,
            down_since: down.map(|(since, _)| since),
            down_why: down.map(|(_, why)| why),
            next_due_at: vitals.due(&row.check),
            last_ping_at: vitals.last_ping_at,
            last_success_at: vitals.last_success_at,
            last_duration_ms: vitals.last_duration.map(millis),
            pings: vitals.pings,
            version: row.version,
            created_at: row.created_at,
            updated_at: row.updated_at,
            name: row.check.name,
        }
    }
}

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Fields of what is read that are not written: whoever sends back what was read need not take them out.
const NOT_WRITTEN: [&str; 12] = [
    "state",
    "started_at",
    "down_since",
    "down_why",
    "next_due_at",
    "last_ping_at",
    "last_success_at",
    "last_duration_ms",
    "pings",
    "version",
    "created_at",
    "updated_at",
];

/// Writes a check; another one of the same name is replaced, and its pings stay.
#[utoipa::path(put, path = "/api/v1/checks/{name}", tag = "checks", request_body = NewCheck,
    params(
        ("name" = String, Path),
        ("If-Match" = Option<String>, Header, description = "Only in place of this version"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if there is none"),
    ),
    responses(
        (status = 201, body = WatchedJson, headers(("location" = String), ("etag" = String))),
        (status = 200, body = WatchedJson, headers(("etag" = String))),
        (status = 409, description = "There are as many checks as there may be"),
        (status = 412, description = "Its version is another one"),
        (status = 422, description = "A value cannot be accepted"),
    ))]
pub(crate) async fn put_check(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    segment: Segment,
    JsonBody(fields): JsonBody<Written>,
) -> Result<Response> {
    params.only(&[])?;
    let name = segment.name("name")?;
    let mut value = Map::new();
    for (field, json) in fields.iter().filter(|(field, _)| !NOT_WRITTEN.contains(&field.as_str())) {
        value.insert(field.clone(), read(json).map_err(|invalid| discreet(invalid.within(field)))?);
    }
    let check = Check::parse(&name, &Value::Object(value))?;
    let expected = match condition(&headers)? {
        None => Expected::Anything,
        Some(Condition::Absent) => Expected::Nothing,
        Some(Condition::Version(version)) => Expected::Version(version),
    };
    let (row, created) = app.engine.write_check(WriteCheck { check, expected }).await?;
    Ok(written("/api/v1/checks", &name, row.version, created, WatchedJson::from(row)))
}

/// Checks, by name.
#[utoipa::path(get, path = "/api/v1/checks", tag = "checks",
    params(
        ("state" = Option<CheckStateName>, Query),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query),
    ),
    responses((status = 200, body = Page<WatchedJson>)))]
pub(crate) async fn list_checks(State(app): State<App>, params: Params) -> Result<Answer<Page<WatchedJson>>> {
    let params = params.only(&["state", "limit", "cursor"])?;
    let limit = limit(&params, FEW)?;
    let state = params.word("state", CheckState::ALL, CheckState::as_str)?;
    let rows = app.engine.checks(CheckFilter { state, after: text_cursor(&params)?, limit: limit + 1 }).await?;
    let items = rows.into_iter().map(WatchedJson::from).collect();
    Ok(Answer(Page::cut(items, limit, |check: &WatchedJson| check.name.clone())))
}

/// One check.
#[utoipa::path(get, path = "/api/v1/checks/{name}", tag = "checks", params(("name" = String, Path)),
    responses((status = 200, body = WatchedJson, headers(("etag" = String))), (status = 404)))]
pub(crate) async fn get_check(State(app): State<App>, params: Params, segment: Segment) -> Result<Response> {
    params.only(&[])?;
    let row = app.engine.check(&segment.name("name")?).await?;
    Ok(tagged(row.version, Answer(WatchedJson::from(row))))
}

/// Deletes a check and its pings. A later ping of that name makes a new one.
#[utoipa::path(delete, path = "/api/v1/checks/{name}", tag = "checks",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "Only this version")),
    responses((status = 204), (status = 404), (status = 412, description = "Its version is another one")))]
pub(crate) async fn delete_check(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    segment: Segment,
) -> Result<StatusCode> {
    params.only(&[])?;
    let version = condition(&headers)?.and_then(Condition::version);
    app.engine.delete_check(&segment.name("name")?, version).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pauses a check: nothing is expected of its job until it is resumed. Pings are kept.
#[utoipa::path(post, path = "/api/v1/checks/{name}/pause", tag = "checks", params(("name" = String, Path)),
    responses((status = 200, body = WatchedJson), (status = 404)))]
pub(crate) async fn pause_check(
    State(app): State<App>,
    params: Params,
    segment: Segment,
) -> Result<Answer<WatchedJson>> {
    params.only(&[])?;
    Ok(Answer(app.engine.pause_check(&segment.name("name")?, true).await?.into()))
}

/// Resumes a check. The next success is expected as if the last one had come now.
#[utoipa::path(post, path = "/api/v1/checks/{name}/resume", tag = "checks", params(("name" = String, Path)),
    responses((status = 200, body = WatchedJson), (status = 404)))]
pub(crate) async fn resume_check(
    State(app): State<App>,
    params: Params,
    segment: Segment,
) -> Result<Answer<WatchedJson>> {
    params.only(&[])?;
    Ok(Answer(app.engine.pause_check(&segment.name("name")?, false).await?.into()))
}
