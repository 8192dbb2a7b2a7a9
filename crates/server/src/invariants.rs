use crate::app::App;
use crate::params::Params;
use crate::problem::Result;
use axum::Json;
use axum::extract::State;
use everbeat_store::Violation;
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// What was looked at, and what breaks a guarantee.
#[derive(Serialize, ToSchema)]
pub(crate) struct Invariants {
    checked: BTreeMap<String, u64>,
    violations: Vec<ViolationJson>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Violation)]
struct ViolationJson {
    /// `G1`, `G2`, …
    guarantee: String,
    subject: String,
    detail: String,
}

impl From<Violation> for ViolationJson {
    fn from(Violation { guarantee, subject, detail }: Violation) -> ViolationJson {
        ViolationJson { guarantee, subject, detail }
    }
}

/// Counts every accepted run once, and names whatever breaks a guarantee.
#[utoipa::path(get, path = "/api/admin/invariants", tag = "admin", responses((status = 200, body = Invariants)))]
pub(crate) async fn check_invariants(State(app): State<App>, params: Params) -> Result<Json<Invariants>> {
    params.only(&[])?;
    let audit = app.engine.audit().await?;
    let violations = audit.violations.into_iter().map(ViolationJson::from).collect();
    Ok(Json(Invariants { checked: audit.checked, violations }))
}
