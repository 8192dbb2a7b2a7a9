//! The document that describes the API, made from the handlers themselves.

use crate::app::App;
use crate::problem::{PROBLEM_JSON, ProblemJson};
use crate::{events, executions, graphs, health, home, ids, invariants, jobs, logs, metrics, nodes, queues, recovery};
use crate::{replicas, runs, submit, tasks, values, verdicts};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, Parameter, PathItem};
use utoipa::openapi::schema::{SchemaType, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, Content, OpenApi, Ref, RefOr, Response as Documented, Schema};
use utoipa::{OpenApi as _, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Everbeat", description = "Durable runs that are always known to be alive or not."),
    components(schemas(ProblemJson))
)]
struct Document;

/// Every endpoint, with its description.
pub(crate) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(home::home))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::get_metrics))
        .routes(routes!(describe))
        .routes(routes!(runs::list_runs, submit::create_run))
        .routes(routes!(submit::create_runs))
        .routes(routes!(runs::get_run))
        .routes(routes!(runs::list_attempts))
        .routes(routes!(runs::explain_run))
        .routes(routes!(logs::get_logs))
        .routes(routes!(runs::cancel_run))
        .routes(routes!(runs::retry_run))
        .routes(routes!(jobs::list_jobs, jobs::create_job))
        .routes(routes!(jobs::get_job, jobs::delete_job))
        .routes(routes!(logs::get_job_logs))
        .routes(routes!(jobs::cancel_job))
        .routes(routes!(jobs::retry_job))
        .routes(routes!(graphs::list_graphs, graphs::apply_graph))
        .routes(routes!(graphs::get_graph))
        .routes(routes!(graphs::draw_graph))
        .routes(routes!(graphs::analyse_graph))
        .routes(routes!(executions::list_executions, executions::start_execution))
        .routes(routes!(executions::count_executions))
        .routes(routes!(executions::get_execution))
        .routes(routes!(executions::draw_execution))
        .routes(routes!(executions::summarise_execution))
        .routes(routes!(values::list_history))
        .routes(routes!(executions::archive_execution))
        .routes(routes!(executions::unarchive_execution))
        .routes(routes!(nodes::retry_node))
        .routes(routes!(nodes::abandon_node))
        .routes(routes!(values::set_values))
        .routes(routes!(values::get_value, values::unset_value))
        .routes(routes!(queues::list_queues))
        .routes(routes!(queues::pause_queue))
        .routes(routes!(queues::resume_queue))
        .routes(routes!(replicas::list_replicas))
        .routes(routes!(replicas::get_replica))
        .routes(routes!(replicas::drain_replica))
        .routes(routes!(ids::find_ids))
        .routes(routes!(tasks::list_tasks))
        .routes(routes!(verdicts::list_verdicts))
        .routes(routes!(verdicts::get_verdict))
        .routes(routes!(events::follow_events))
        .routes(routes!(invariants::check_invariants))
        .routes(routes!(recovery::get_status))
        .routes(routes!(recovery::list_sentinels))
        .routes(routes!(recovery::list_heartbeats))
        .routes(routes!(recovery::get_recovery_metrics))
        .routes(routes!(recovery::list_failed))
        .routes(routes!(recovery::list_stale))
        .routes(routes!(recovery::resume_jobs))
        .routes(routes!(recovery::clean_jobs))
        .routes(routes!(recovery::get_health))
        .routes(routes!(recovery::get_startup_log))
}

/// The document, as it was written when the server started.
#[derive(Clone)]
pub(crate) struct Written(pub(crate) bytes::Bytes);

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "health", operation_id = "openapi",
    responses((status = 200, body = Object, description = "OpenAPI 3.1")))]
pub(crate) async fn describe(axum::Extension(Written(document)): axum::Extension<Written>) -> Response {
    ([(CONTENT_TYPE, "application/json")], document).into_response()
}

/// What any operation can answer, since it is decided before its handler is reached.
const COMMON: [(&str, &str); 12] = [
    ("400", "The request, a parameter or an id cannot be read"),
    ("401", "A valid token is needed"),
    ("403", "The token, the address, the Host or the Origin is not allowed, or the server is read-only"),
    ("405", "The path does not know this method"),
    ("408", "The request did not arrive in time"),
    ("413", "The body is too large"),
    ("415", "The body is not declared as JSON"),
    ("422", "A value cannot be accepted"),
    ("429", "Too many requests from this address"),
    ("431", "The head of the request is too large"),
    ("500", "The server failed"),
    ("503", "The store is unavailable, or a limit of the server is reached"),
];

/// Adds what holds for every operation.
pub(crate) fn complete(document: &mut OpenApi, needs_token: bool) {
    document.info.version = env!("CARGO_PKG_VERSION").to_string();
    if needs_token {
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_with(Components::new).add_security_scheme("token", bearer);
    }
    for (path, item) in &mut document.paths.paths {
        let probe = path == "/livez" || path == "/readyz";
        for operation in operations(item) {
            complete_operation(operation, probe);
            operation.parameters.iter_mut().flatten().for_each(never_null);
            if needs_token && !probe {
                operation.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
            }
        }
    }
}

fn complete_operation(operation: &mut Operation, probe: bool) {
    let problem = || RefOr::T(Content::new(Some(Ref::from_schema_name(ProblemJson::name()))));
    let takes_body = operation.request_body.is_some();
    let responses = &mut operation.responses.responses;
    for (status, description) in COMMON {
        // Only a body has values that can be read and yet not be accepted.
        if (status == "422" && !takes_body) || (probe && status != "405") {
            continue;
        }
        responses.entry(status.to_string()).or_insert_with(|| RefOr::T(Documented::new(description)));
    }
    for (status, response) in responses.iter_mut() {
        let RefOr::T(response) = response else { continue };
        if status.as_str() >= "400" {
            response.content.insert(PROBLEM_JSON.to_string(), problem());
        }
        if response.description.is_empty() {
            response.description = "As asked".to_string();
        }
    }
}

/// A parameter is given or not; it has no way to be null.
fn never_null(parameter: &mut RefOr<Parameter>) {
    let RefOr::T(Parameter { schema: Some(RefOr::T(schema)), .. }) = parameter else { return };
    let kind = match schema {
        Schema::Object(object) => &mut object.schema_type,
        Schema::Array(array) => &mut array.schema_type,
        _ => return,
    };
    if let SchemaType::Array(types) = kind {
        types.retain(|one| *one != Type::Null);
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete].into_iter().filter_map(Option::as_mut)
}
