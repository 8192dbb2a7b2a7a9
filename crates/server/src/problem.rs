use crate::health::{CheckJson, Checks};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use everbeat_engine::Error;
use everbeat_model::Invalid;
use everbeat_model::job::HIDDEN;
use everbeat_store::Class;
use serde::Serialize;
use utoipa::ToSchema;

pub(crate) const PROBLEM_JSON: &str = "application/problem+json";
const TYPES: &str = "https://everbeat.dev/problems/";

/// Why a request is not answered as asked: what is wrong, with which value, and what to do.
#[derive(Debug)]
pub(crate) struct Problem {
    kind: Kind,
    detail: String,
    hint: String,
    field: Option<String>,
    value: Option<String>,
    retry_after_secs: Option<u32>,
    checks: Option<Box<Checks>>,
}

pub(crate) type Result<T> = std::result::Result<T, Problem>;

/// Stable: programs tell problems apart by these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    MalformedRequest,
    BadParameter,
    Unauthenticated,
    WrongScope,
    AddressNotAllowed,
    ForeignHost,
    ForeignOrigin,
    ReadOnly,
    NotFound,
    NoSuchPath,
    NotSet,
    MethodNotAllowed,
    WaitTimedOut,
    RequestTimedOut,
    Conflict,
    PreconditionFailed,
    ComputationFailed,
    BodyTooLarge,
    HeadTooLarge,
    NotJson,
    InvalidValue,
    UnknownField,
    UnknownTask,
    IdempotencyKeyReused,
    RateLimited,
    Internal,
    Unavailable,
    TooBusy,
    NotReady,
}

impl Kind {
    fn facts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Kind::MalformedRequest => (StatusCode::BAD_REQUEST, "malformed-request", "The request cannot be read"),
            Kind::BadParameter => (StatusCode::BAD_REQUEST, "bad-parameter", "A parameter cannot be accepted"),
            Kind::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated", "A valid token is needed"),
            Kind::WrongScope => (StatusCode::FORBIDDEN, "wrong-scope", "The token does not open this"),
            Kind::AddressNotAllowed => {
                (StatusCode::FORBIDDEN, "address-not-allowed", "This client address is not allowed")
            }
            Kind::ForeignHost => (StatusCode::FORBIDDEN, "foreign-host", "The Host is not this machine"),
            Kind::ForeignOrigin => (StatusCode::FORBIDDEN, "foreign-origin", "The Origin is not this server"),
            Kind::ReadOnly => (StatusCode::FORBIDDEN, "read-only", "The server is read-only"),
            Kind::NotFound => (StatusCode::NOT_FOUND, "not-found", "It does not exist"),
            Kind::NoSuchPath => (StatusCode::NOT_FOUND, "no-such-path", "There is nothing at this path"),
            Kind::NotSet => (StatusCode::NOT_FOUND, "not-set", "The node has no value"),
            Kind::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "The path does not know this method")
            }
            Kind::WaitTimedOut => (StatusCode::REQUEST_TIMEOUT, "wait-timed-out", "The wait is over"),
            Kind::RequestTimedOut => {
                (StatusCode::REQUEST_TIMEOUT, "request-timed-out", "The request did not arrive in time")
            }
            Kind::Conflict => (StatusCode::CONFLICT, "conflict", "The present state does not allow it"),
            Kind::PreconditionFailed => {
                (StatusCode::PRECONDITION_FAILED, "precondition-failed", "It was changed by somebody else")
            }
            Kind::ComputationFailed => {
                (StatusCode::CONFLICT, "computation-failed", "The node's computation failed for good")
            }
            Kind::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large"),
            Kind::HeadTooLarge => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head-too-large", "The head of the request is too large")
            }
            Kind::NotJson => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", "The body is not declared as JSON"),
            Kind::InvalidValue => (StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", "A value cannot be accepted"),
            Kind::UnknownField => (StatusCode::UNPROCESSABLE_ENTITY, "unknown-field", "A field is unknown"),
            Kind::UnknownTask => (StatusCode::UNPROCESSABLE_ENTITY, "unknown-task", "The task is unknown"),
            Kind::IdempotencyKeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-key-reused",
                "The Idempotency-Key belongs to another request",
            ),
            Kind::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "rate-limited", "Too many requests"),
            Kind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "The server failed"),
            Kind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The store is unavailable"),
            Kind::TooBusy => (StatusCode::SERVICE_UNAVAILABLE, "too-busy", "A limit of the server is reached"),
            Kind::NotReady => (StatusCode::SERVICE_UNAVAILABLE, "not-ready", "The replica takes no work"),
        }
    }
}

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>, hint: impl Into<String>) -> Problem {
        let retry_after_secs = (kind.facts().0 == StatusCode::SERVICE_UNAVAILABLE).then_some(1);
        Problem {
            kind,
            detail: detail.into(),
            hint: hint.into(),
            field: None,
            value: None,
            retry_after_secs,
            checks: None,
        }
    }

    /// A complaint about one value, of the given kind.
    pub(crate) fn about(kind: Kind, invalid: Invalid) -> Problem {
        let detail = format!("{} {} (got {})", invalid.field, invalid.problem, invalid.value);
        Problem { field: Some(invalid.field), value: Some(invalid.value), ..Problem::new(kind, detail, invalid.hint) }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// What is wrong and what to do, on one line.
    pub(crate) fn told(&self) -> String {
        format!("{}; {}", self.detail, self.hint)
    }

    pub(crate) fn with_checks(mut self, checks: Checks) -> Problem {
        self.checks = Some(Box::new(checks));
        self
    }

    pub(crate) fn retry_after(mut self, secs: u32) -> Problem {
        self.retry_after_secs = Some(secs);
        self
    }
}

/// The same complaint; one about a command's environment does not repeat what may be a secret.
pub(crate) fn discreet(mut invalid: Invalid) -> Invalid {
    let about = |name: &str| invalid.field.split(['.', '[']).any(|part| part == name);
    let (env, command) = (about("env"), about("command"));
    if env {
        invalid.value = HIDDEN.to_string();
    }
    // A deserialiser quotes what it found; one that reads a node's command names its environment no other way.
    if (env || command)
        && let (Some(from), Some(to)) = (invalid.problem.find('"'), invalid.problem.rfind('"'))
    {
        invalid.problem.replace_range(from..=to, HIDDEN);
    }
    invalid
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let hint = error.hint();
        let detail = error.to_string();
        match (error.class(), error) {
            (Class::Unavailable, _) => Problem::new(Kind::Unavailable, detail, hint),
            (Class::Bug, _) => {
                tracing::error!(error = detail, "a request failed");
                Problem::new(Kind::Internal, "the server failed while it answered this request", hint)
            }
            (_, Error::Invalid(invalid)) => Problem::about(Kind::InvalidValue, invalid),
            (_, Error::UnknownTask { task, .. }) => Problem {
                field: Some("task".to_string()),
                value: Some(format!("{task:?}")),
                ..Problem::new(Kind::UnknownTask, detail, hint)
            },
            (_, Error::Precondition { .. }) => Problem::new(Kind::PreconditionFailed, detail, hint),
            (_, Error::NotFound { .. }) => Problem::new(Kind::NotFound, detail, hint),
            (_, Error::Store(everbeat_store::Error::KeyReused { key })) => Problem {
                field: Some("Idempotency-Key".to_string()),
                value: Some(format!("{key:?}")),
                ..Problem::new(Kind::IdempotencyKeyReused, detail, hint)
            },
            (Class::Rejected | Class::Fenced, _) => Problem::new(Kind::Conflict, detail, hint),
        }
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Problem {
        Problem::about(Kind::InvalidValue, invalid)
    }
}

impl From<everbeat_store::Error> for Problem {
    fn from(error: everbeat_store::Error) -> Problem {
        Error::from(error).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, name, title) = self.kind.facts();
        let document = ProblemJson {
            kind: format!("{TYPES}{name}"),
            title,
            status: status.as_u16(),
            detail: self.detail,
            hint: self.hint,
            field: self.field,
            value: self.value,
            checks: self.checks,
        };
        let mut response = (status, axum::Json(document)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(secs) = self.retry_after_secs {
            headers.insert(RETRY_AFTER, HeaderValue::from(secs));
        }
        if self.kind == Kind::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"everbeat\""));
        }
        response
    }
}

/// RFC 9457, with what to do about it.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemJson {
    /// Stable; programs tell problems apart by it.
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    detail: String,
    /// What to do about it.
    hint: String,
    /// The field or parameter at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// What it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// Of a replica that is not ready: what its checks found.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<CheckJson>>)]
    checks: Option<Box<Checks>>,
}
