use crate::app::App;
use crate::problem::{Kind, Problem, Result};
use crate::schema::{CheckNameWord, CheckStatusWord};
use axum::Json;
use axum::extract::State;
use everbeat_engine::{Check, CheckName};
use everbeat_model::ReplicaId;
use serde::Serialize;
use utoipa::ToSchema;

/// Whether the process answers.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `alive`.
    status: &'static str,
    #[schema(required, value_type = Option<Uuid>)]
    replica_id: Option<ReplicaId>,
}

/// Whether the process answers. It asks nobody else: a database that is down is no reason to restart.
#[utoipa::path(get, path = "/livez", tag = "health", responses((status = 200, body = Health)))]
pub(crate) async fn livez(State(app): State<App>) -> Json<Health> {
    Json(Health { status: "alive", replica_id: app.engine.replica_id() })
}

/// Whether the replica takes work.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = 200, body = Ready),
    (status = 503, description = "The replica takes no work: `detail` names the check that fails and why"),
))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<Json<Ready>> {
    let readiness = app.engine.readiness();
    let failing = match readiness.failing() {
        Some(check) => Some((check.name, check.detail.clone(), check.hint.clone())),
        None if app.closing() => Some((CheckName::Replica, "the server ends".to_string(), None)),
        None => None,
    };
    let checks = Checks(readiness.checks.into_iter().map(CheckJson::from).collect());
    let Some((name, detail, hint)) = failing else {
        return Ok(Json(Ready { status: "ready", replica_id: app.engine.replica_id(), checks }));
    };
    let hint = hint.unwrap_or_else(|| "send work to another replica, or try again".to_string());
    Err(Problem::new(Kind::NotReady, format!("{}: {detail}", name.as_str()), hint).with_checks(checks))
}

/// That the replica takes work, and what its checks found.
#[derive(Serialize, ToSchema)]
pub(crate) struct Ready {
    /// `ready`.
    status: &'static str,
    #[schema(required, value_type = Option<Uuid>)]
    replica_id: Option<ReplicaId>,
    #[schema(value_type = Vec<CheckJson>)]
    checks: Checks,
}

#[derive(Debug, Serialize)]
pub(crate) struct Checks(Vec<CheckJson>);

/// One thing that readiness depends on.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Check)]
pub(crate) struct CheckJson {
    #[schema(value_type = CheckNameWord)]
    name: &'static str,
    /// Only a `failing` one makes a replica unready.
    #[schema(value_type = CheckStatusWord)]
    status: &'static str,
    /// What was found.
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl From<Check> for CheckJson {
    fn from(check: Check) -> CheckJson {
        CheckJson { name: check.name.as_str(), status: check.status.as_str(), detail: check.detail, hint: check.hint }
    }
}
