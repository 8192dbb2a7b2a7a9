//! What outside jobs say of themselves, by asking for a plain URL.

use crate::app::App;
use crate::body::RawBody;
use crate::checks::millis;
use crate::page::{Page, limit};
use crate::params::{OfCheck, Params, Segment, bad};
use crate::problem::{Kind, Problem, Result};
use crate::schema::{CheckStateName, PingKindName};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use everbeat_model::check::{BODY_LIMIT, MOST_PINGS, Ping, PingKind, Signal, repaired};
use everbeat_model::{Invalid, StoreTime};
use serde::Serialize;
use utoipa::ToSchema;

/// How the check stands after a ping.
#[derive(Serialize, ToSchema)]
pub(crate) struct PingAnswer {
    check: String,
    #[schema(value_type = CheckStateName)]
    state: &'static str,
    /// Whether this ping has made the check.
    created: bool,
}

/// So much of a body is read.
pub(crate) const READ: usize = BODY_LIMIT;

async fn take(
    app: &App,
    params: Params,
    headers: &HeaderMap,
    name: String,
    signal: Signal,
    body: &RawBody,
) -> Result<Answer<PingAnswer>> {
    check_site(headers)?;
    params.only(&[])?;
    let (row, created) = app.engine.ping(&name, signal, repaired(&body.0)).await?;
    Ok(Answer(PingAnswer { check: name, state: row.vitals.health.state().as_str(), created }))
}

/// A page of another site can have a browser ask for any URL, without an Origin as long as it only wants an image. Every
/// browser of today says then from where the request comes.
fn check_site(headers: &HeaderMap) -> Result<()> {
    let site = headers.get("sec-fetch-site").map(|site| site.to_str().unwrap_or_default());
    if site.is_none_or(|site| matches!(site, "same-origin" | "none")) {
        return Ok(());
    }
    let detail = "a web page of another site has asked for this ping";
    Err(Problem::new(Kind::ForeignOrigin, detail, "ping from a program, like curl or wget"))
}

/// Says that a job has succeeded. The first ping of a name makes its check, which expects one ping a day.
#[utoipa::path(post, path = "/ping/{name}", tag = "checks",
    params(
        ("name" = String, Path),
        ("X-Heartbeat-Token" = Option<String>, Header, description = "In place of `Authorization: Bearer`"),
    ),
    responses(
        (status = 200, body = PingAnswer),
        (status = 409, description = "The check would be new, and there are as many as there may be"),
    ))]
pub(crate) async fn ping(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    segment: Segment,
    body: RawBody,
) -> Result<Answer<PingAnswer>> {
    let name = segment.name("name")?;
    take(&app, params, &headers, name, Signal::plain(PingKind::Success), &body).await
}

/// The same, for programs that only ask for a URL; `HEAD` does too.
#[utoipa::path(get, path = "/ping/{name}", tag = "checks",
    params(("name" = String, Path)),
    responses(
        (status = 200, body = PingAnswer),
        (status = 409, description = "The check would be new, and there are as many as there may be"),
    ))]
pub(crate) async fn get_ping(
    app: State<App>,
    params: Params,
    headers: HeaderMap,
    segment: Segment,
    body: RawBody,
) -> Result<Answer<PingAnswer>> {
    ping(app, params, headers, segment, body).await
}

/// Says what a job is at: `start`, `fail`, `log`, or the exit code with which it ended (0 is a success). The beginning of
/// the body is kept with the ping, whatever its content type.
#[utoipa::path(post, path = "/ping/{name}/{signal}", tag = "checks",
    params(
        ("name" = String, Path),
        ("signal" = String, Path, description = "`start`, `fail`, `log`, or an exit code from 0 to 255"),
        ("X-Heartbeat-Token" = Option<String>, Header, description = "In place of `Authorization: Bearer`"),
    ),
    responses(
        (status = 200, body = PingAnswer),
        (status = 409, description = "The check would be new, and there are as many as there may be"),
    ))]
pub(crate) async fn signal(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    OfCheck { name, signal }: OfCheck,
    body: RawBody,
) -> Result<Answer<PingAnswer>> {
    let signal = Signal::parse(&signal).map_err(bad)?;
    take(&app, params, &headers, name, signal, &body).await
}

/// The same, for programs that only ask for a URL; `HEAD` does too.
#[utoipa::path(get, path = "/ping/{name}/{signal}", tag = "checks",
    params(
        ("name" = String, Path),
        ("signal" = String, Path, description = "`start`, `fail`, `log`, or an exit code from 0 to 255"),
    ),
    responses(
        (status = 200, body = PingAnswer),
        (status = 409, description = "The check would be new, and there are as many as there may be"),
    ))]
pub(crate) async fn get_signal(
    app: State<App>,
    params: Params,
    headers: HeaderMap,
    of: OfCheck,
    body: RawBody,
) -> Result<Answer<PingAnswer>> {
    signal(app, params, headers, of, body).await
}

/// A ping that is kept.
#[derive(Serialize, ToSchema)]
#[schema(as = Ping)]
pub(crate) struct PingJson {
    /// Rises within its check.
    number: u64,
    #[schema(value_type = String, format = DateTime)]
    at: StoreTime,
    #[schema(value_type = PingKindName)]
    kind: &'static str,
    #[schema(required)]
    exit_code: Option<u8>,
    /// From the start to this end.
    #[schema(required)]
    duration_ms: Option<u64>,
    /// The beginning of what came with it.
    #[schema(required)]
    body: Option<String>,
}

impl From<Ping> for PingJson {
    fn from(ping: Ping) -> PingJson {
        PingJson {
            number: ping.place,
            at: ping.at,
            kind: ping.signal.kind.as_str(),
            exit_code: ping.signal.exit_code,
            duration_ms: ping.duration.map(millis),
            body: ping.body,
        }
    }
}

/// The last pings of a check, newest first.
#[utoipa::path(get, path = "/api/v1/checks/{name}/pings", tag = "checks",
    params(
        ("name" = String, Path),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<u64>, Query),
    ),
    responses((status = 200, body = Page<PingJson>), (status = 404)))]
pub(crate) async fn list_pings(
    State(app): State<App>,
    params: Params,
    segment: Segment,
) -> Result<Answer<Page<PingJson>>> {
    let params = params.only(&["limit", "cursor"])?;
    let limit = limit(&params, MOST_PINGS)?;
    let before = params.get("cursor", |text| {
        let hint = "use the next_cursor of the part before";
        text.parse().map_err(|_| Invalid::new("", format!("{text:?}"), "is not the number of a ping", hint))
    })?;
    let pings = app.engine.pings(&segment.name("name")?, before, limit + 1).await?;
    let items = pings.into_iter().map(PingJson::from).collect();
    Ok(Answer(Page::cut(items, limit, |ping: &PingJson| ping.number.to_string())))
}
