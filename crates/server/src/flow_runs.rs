//! The ledger: each run of a flow or schedule, in the words of flows.

use crate::app::App;
use crate::page::{FEW, Page, limit};
use crate::params::Params;
use crate::problem::{Kind, Problem, Result};
use crate::schema::FlowRunStatusName;
use crate::submit::idempotency;
use axum::Json as Answer;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use everbeat_engine::Error;
use everbeat_model::schedule::{Occurrence, ScheduleKind};
use everbeat_model::{Json, Run, RunId, RunState, StoreTime};
use everbeat_store::Part;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// One run of a flow or schedule, or one that waits for its turn.
#[derive(Serialize, ToSchema)]
#[schema(as = FlowRun)]
pub(crate) struct FlowRunJson {
    /// That of the run, also before there is one.
    #[schema(value_type = Uuid)]
    id: RunId,
    flow: String,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    due_at: Option<StoreTime>,
    #[schema(value_type = FlowRunStatusName)]
    status: &'static str,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    started_at: Option<StoreTime>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    ended_at: Option<StoreTime>,
    #[schema(required)]
    duration_ms: Option<u64>,
    attempt: u32,
    /// How many records were read, written, found unchanged and rejected; none for a task that does not say.
    #[schema(required, value_type = Option<Object>)]
    counts: Option<Value>,
    /// How far it has come.
    #[schema(required)]
    cursor: Option<Value>,
    #[schema(required)]
    error_message: Option<String>,
    #[schema(required)]
    error_backtrace: Option<String>,
}

/// Every word for how a run stands.
pub(crate) const STATUSES: [&str; 5] = ["pending", "in_progress", "success", "failed", "cancelled"];

impl FlowRunJson {
    pub(crate) fn of_run(flow: &str, run: &Run) -> FlowRunJson {
        let said = |json: &Option<Json>| json.as_ref().and_then(|json| json.read::<Value>().ok());
        let (checkpoint, result, error) = (said(&run.checkpoint), said(&run.result), said(&run.error));
        let of_both = |field: &str| {
            let found = [&result, &checkpoint].into_iter().flatten().find_map(|value| value.get(field).cloned());
            found.filter(|value| !value.is_null())
        };
        let text = |field: &str| error.as_ref().and_then(|error| error.get(field)?.as_str().map(str::to_string));
        let ended = run.finished_at;
        let millis = |from: StoreTime, to: StoreTime| u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX);
        let waits = matches!(run.state, RunState::Scheduled | RunState::Ready);
        FlowRunJson {
            id: run.id,
            flow: flow.to_string(),
            due_at: run.spec.occurrence.map(|of| of.due),
            status: status(run),
            started_at: run.started_at,
            ended_at: ended,
            duration_ms: run.started_at.zip(ended).map(|(from, to)| millis(from, to)),
            attempt: run.attempt,
            counts: of_both("counts"),
            cursor: of_both("cursor"),
            error_message: if waits && run.attempt == 0 { None } else { text("message") },
            error_backtrace: text("detail"),
        }
    }

    pub(crate) fn of_waiting(flow: &str, occurrence: &Occurrence) -> FlowRunJson {
        FlowRunJson {
            id: occurrence.run,
            flow: flow.to_string(),
            due_at: Some(occurrence.due),
            status: STATUSES[0],
            started_at: None,
            ended_at: None,
            duration_ms: None,
            attempt: 0,
            counts: None,
            cursor: None,
            error_message: None,
            error_backtrace: None,
        }
    }

    pub(crate) fn status(&self) -> &'static str {
        self.status
    }

    pub(crate) fn into_error(self) -> Option<String> {
        self.error_message
    }
}

fn status(run: &Run) -> &'static str {
    match run.state {
        RunState::Scheduled | RunState::Ready => "pending",
        RunState::Running => "in_progress",
        RunState::Succeeded => "success",
        RunState::Failed => "failed",
        RunState::Cancelled => "cancelled",
    }
}

/// A part of the ledger.
pub(crate) async fn page_of(
    app: &App,
    params: Params,
    kind: ScheduleKind,
    name: &str,
) -> Result<Answer<Page<FlowRunJson>>> {
    let params = params.only(&["limit", "cursor"])?;
    let limit = limit(&params, FEW)?;
    let page = app.engine.ledger(kind, name, params.id("cursor")?, limit + 1).await?;
    let runs = page.runs.iter().map(|run| FlowRunJson::of_run(name, run)).collect();
    let part = Part { items: runs, cut_short: page.cut_short };
    let mut page_json = Page::of_part(part, limit, |run: &FlowRunJson| run.id.to_string());
    let waiting = page.waiting.iter().rev().map(|occurrence| FlowRunJson::of_waiting(name, occurrence));
    page_json.items.splice(0..0, waiting);
    Ok(Answer(page_json))
}

/// Asks for a run now, and shows it. The same request again with the same `Idempotency-Key` shows the run of the first.
pub(crate) async fn triggered(
    app: &App,
    kind: ScheduleKind,
    name: &str,
    headers: &HeaderMap,
    wish: Option<Json>,
) -> Result<Response> {
    let idempotency = idempotency(headers, &format!("POST trigger {kind} {name}"), wish.iter())?;
    let triggered = app.engine.trigger(kind, name, wish, idempotency).await?;
    if triggered.waits {
        let page = app.engine.ledger(kind, name, None, 1).await?;
        let found = page.waiting.iter().find(|occurrence| occurrence.run == triggered.run);
        if let Some(occurrence) = found {
            return Ok((StatusCode::ACCEPTED, Answer(FlowRunJson::of_waiting(name, occurrence))).into_response());
        }
    }
    let run = match app.engine.run(triggered.run).await {
        Err(Error::NotFound { id, .. }) if triggered.repeats => {
            let detail = format!("this was asked for before as run {id}, which has been forgotten since");
            return Err(Problem::new(Kind::Conflict, detail, "use a new Idempotency-Key to ask for another run"));
        }
        run => run?,
    };
    let status = if triggered.repeats { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Answer(FlowRunJson::of_run(name, &run.run))).into_response())
}
