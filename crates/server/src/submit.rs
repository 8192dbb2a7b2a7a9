//! Accepting runs, one or many.

use crate::app::App;
use crate::body::{JsonBody, Object};
use crate::params::{Params, bad};
use crate::problem::{Kind, Problem, Result};
use crate::runs::RunJson;
use crate::sessions::OfRun;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use everbeat_engine::{Error, Submit};
use everbeat_model::run::check_key;
use everbeat_model::{Invalid, Json, RunId, Session, StoreTime};
use everbeat_store::Idempotency;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use utoipa::ToSchema;

/// A run to be accepted.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRun {
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")]
    task: String,
    #[schema(value_type = Value)]
    input: Option<Json>,
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$")]
    queue: Option<String>,
    /// Higher is claimed first; 0 unless given.
    #[schema(minimum = -32768, maximum = 32767)]
    priority: Option<i16>,
    /// Not before this time.
    #[schema(format = DateTime)]
    run_at: Option<String>,
    /// What differs from the configured policy.
    #[schema(value_type = Option<Object>)]
    policy: Option<Value>,
    /// While a run with this key is unfinished, that one is answered in place of a new one.
    #[schema(min_length = 1, max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    unique_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OfRun>)]
    session: Option<Value>,
    /// Accept a task that nobody has offered yet.
    accept_unknown: Option<bool>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Batch {
    #[schema(value_type = Vec<NewRun>, min_items = 1, max_items = 10000)]
    runs: Vec<Object<NewRun>>,
}

/// What became of the runs, in the order given.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    items: Vec<Accepted>,
}

#[derive(Serialize, ToSchema)]
struct Accepted {
    #[schema(value_type = Uuid)]
    id: RunId,
    /// Whether this request made it; otherwise an earlier one did.
    created: bool,
}

/// Accepts a run.
#[utoipa::path(post, path = "/api/v1/runs", tag = "runs", request_body = NewRun,
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 500, pattern = r"^[!-~]([ -~]*[!-~])?$",
        description = "The same key with the same request makes nothing twice")),
    responses(
        (status = 201, body = RunJson, headers(("location" = String))),
        (status = 200, body = RunJson, description = "An earlier run stands for this request"),
        (status = 409, description = "The earlier run of this Idempotency-Key is forgotten"),
        (status = 422, description = "A value cannot be accepted"),
    ))]
pub(crate) async fn create_run(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    JsonBody(new): JsonBody<NewRun>,
) -> Result<Response> {
    params.only(&[])?;
    let idempotency = idempotency(&headers, "POST /api/v1/runs", std::iter::once(&new))?;
    let submission = app.engine.submit(new.submit()?, idempotency).await?;
    let run = match app.engine.run(submission.id).await {
        Err(Error::NotFound { id, .. }) => {
            let detail = format!("this request was accepted before as run {id}, which has been forgotten since");
            return Err(Problem::new(Kind::Conflict, detail, "use a new Idempotency-Key to run it again"));
        }
        run => RunJson::from(run?),
    };
    let location = [(LOCATION, format!("/api/v1/runs/{}", submission.id))];
    Ok(match submission.created {
        true => (StatusCode::CREATED, location, Answer(run)).into_response(),
        false => Answer(run).into_response(),
    })
}

/// Accepts many runs, all or none.
#[utoipa::path(post, path = "/api/v1/runs:batch", tag = "runs", request_body = Batch,
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 500, pattern = r"^[!-~]([ -~]*[!-~])?$",
        description = "The same key with the same request makes nothing twice")),
    responses(
        (status = 201, body = BatchAnswer),
        (status = 200, body = BatchAnswer, description = "Earlier runs stand for all of these"),
        (status = 422, description = "A value cannot be accepted"),
    ))]
pub(crate) async fn create_runs(
    State(app): State<App>,
    params: Params,
    headers: HeaderMap,
    JsonBody(batch): JsonBody<Batch>,
) -> Result<Response> {
    params.only(&[])?;
    if batch.runs.is_empty() {
        let empty = Invalid::new("runs", "[]", "is empty", "send at least one run");
        return Err(Problem::about(Kind::InvalidValue, empty));
    }
    let runs = batch.runs.iter().map(|Object(new)| new);
    let idempotency = idempotency(&headers, "POST /api/v1/runs:batch", runs)?;
    let within = |place: usize| move |invalid: Invalid| Error::from(invalid.within(&format!("runs[{place}]")));
    let submits = batch.runs.into_iter().enumerate();
    let submits: Vec<Submit> = submits
        .map(|(place, Object(new))| new.submit().map_err(within(place)))
        .collect::<std::result::Result<_, Error>>()?;
    let single = submits.len() == 1;
    let submissions = app.engine.submit_many(submits, idempotency).await.map_err(|error| match error {
        // The engine names the place only where there are several.
        Error::Invalid(invalid) if single && invalid.field != "Idempotency-Key" => within(0)(invalid),
        error => error,
    })?;
    let created = submissions.iter().any(|submission| submission.created);
    let items = submissions.into_iter().map(|made| Accepted { id: made.id, created: made.created }).collect();
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answer(BatchAnswer { items })).into_response())
}

impl NewRun {
    fn submit(self) -> std::result::Result<Submit, Invalid> {
        let run_at = self.run_at.as_deref().map(read_time).transpose()?;
        let session = self.session.as_ref().map(Session::parse).transpose();
        let session = session.map_err(|invalid| invalid.within("session"))?;
        Ok(Submit {
            queue: self.queue.unwrap_or_else(|| "default".to_string()),
            priority: self.priority.unwrap_or(0),
            run_at,
            policy: self.policy,
            unique_key: self.unique_key,
            session,
            accept_unknown: self.accept_unknown.unwrap_or(false),
            ..Submit::new(self.task, self.input.unwrap_or_default())
        })
    }
}

pub(crate) fn read_time(text: &str) -> std::result::Result<StoreTime, Invalid> {
    let time = StoreTime::parse(text).map_err(|invalid| invalid.within("run_at"))?;
    if time < StoreTime(0) {
        return Err(Invalid::new("run_at", text, "is before 1970", "leave it out to run at once"));
    }
    Ok(time)
}

/// The key of a request and what tells it apart from another with the same key. Neither white space nor
/// the order of the fields of what it makes matters.
pub(crate) fn idempotency<'a, T: Serialize + 'a>(
    headers: &HeaderMap,
    request: &str,
    made: impl Iterator<Item = &'a T>,
) -> Result<Option<Idempotency>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let unreadable = |_| Invalid::new("Idempotency-Key", format!("{key:?}"), "is not ASCII", "use visible ASCII only");
    let key = key.to_str().map_err(unreadable).map_err(bad)?.to_string();
    check_key("Idempotency-Key", &key).map_err(bad)?;
    let mut hash = Sha256::new_with_prefix(request);
    for made in made {
        hash.update([0]);
        hash.update(Json::of(made).as_str());
    }
    let mut fingerprint = String::with_capacity(64);
    hash.finalize().iter().for_each(|byte| _ = write!(fingerprint, "{byte:02x}"));
    Ok(Some(Idempotency { key, fingerprint }))
}
