use crate::app::App;
use crate::problem::{Kind, Problem, Result};
use axum::Json;
use axum::extract::State;
use everbeat_engine::Readiness;
use everbeat_model::ReplicaId;
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `alive` or `ready`.
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
    (status = 200, body = Health),
    (status = 503, description = "The replica takes no work; `detail` says why"),
))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<Json<Health>> {
    let reason = match app.engine.readiness() {
        _ if app.closing() => "draining",
        Readiness::NotReady(reason) => reason,
        Readiness::Ready => return Ok(Json(Health { status: "ready", replica_id: app.engine.replica_id() })),
    };
    Err(Problem::new(Kind::NotReady, reason, "send work to another replica, or try again"))
}
