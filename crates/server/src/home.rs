use crate::app::App;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

/// What this server is and where to look.
#[utoipa::path(get, path = "/", tag = "health", operation_id = "home",
    responses((status = 200, body = Value, description = "The server's name and main addresses")))]
pub(crate) async fn home(State(app): State<App>) -> Json<Value> {
    Json(json!({
        "server": "everbeat",
        "version": app.engine.settings().version,
        "runs": "/api/v1/runs",
        "graphs": "/api/v1/graphs",
        "executions": "/api/v1/executions",
        "queues": "/api/v1/queues",
        "replicas": "/api/v1/replicas",
        "tasks": "/api/v1/tasks",
        "verdicts": "/api/v1/verdicts",
        "events": "/api/v1/events",
        "invariants": "/api/admin/invariants",
        "health": ["/livez", "/readyz"],
        "metrics": "/metrics",
        "openapi": "/openapi.json",
    }))
}
