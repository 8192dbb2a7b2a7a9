//! The document that describes the API, made from the handlers themselves.

use crate::problem::{PROBLEM_JSON, ProblemJson};
use crate::routes::Needs;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, Parameter, PathItem};
use utoipa::openapi::schema::{SchemaType, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, Content, OpenApi, Ref, RefOr, Response as Documented, Schema};
use utoipa::{OpenApi as _, ToSchema};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Everbeat", description = "Durable runs that are always known to be alive or not."),
    components(schemas(ProblemJson))
)]
struct Document;

/// The document before any route is in it.
pub(crate) fn empty() -> OpenApi {
    Document::openapi()
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
pub(crate) fn complete(document: &mut OpenApi, needs: &Needs, needs_token: bool) {
    document.info.version = env!("CARGO_PKG_VERSION").to_string();
    if needs_token {
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_with(Components::new).add_security_scheme("token", bearer);
    }
    for (path, item) in &mut document.paths.paths {
        let probe = needs.is_open(path);
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
