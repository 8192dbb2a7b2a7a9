//! Request bodies: received whole, JSON by their content type, and refused with the field at fault.

use crate::problem::{Kind, Problem, Result, discreet};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::request::Parts;
use everbeat_model::error::nearest;
use everbeat_model::{Invalid, Json, NotJson};
use http_body_util::BodyExt;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::error::Category;
use serde_path_to_error::Segment;
use std::fmt;
use std::marker::PhantomData;

/// What a request brought.
#[derive(Clone)]
struct Received(Bytes);

/// Receives the body of a request, if it has one.
pub(crate) async fn receive(request: Request, limit: usize) -> Result<Request> {
    if request.body().is_end_stream() {
        return Ok(request);
    }
    let (mut parts, body) = request.into_parts();
    check_type(&parts.headers)?;
    let received = collect(&parts.headers, body, limit).await?;
    parts.extensions.insert(Received(received));
    Ok(Request::from_parts(parts, Body::empty()))
}

/// Receives the beginning of a body of any content type, and throws the rest away, up to several limits: what comes with
/// a ping is only kept to be read.
pub(crate) async fn receive_beginning(request: Request, kept: usize, limit: usize) -> Result<Request> {
    if request.body().is_end_stream() {
        return Ok(request);
    }
    let (mut parts, mut body) = request.into_parts();
    let (mut collected, mut total) = (Vec::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(unreadable)?.into_data() else { continue };
        collected.extend_from_slice(&data[..data.len().min(kept.saturating_sub(collected.len()))]);
        total = total.saturating_add(data.len());
        if total > limit.saturating_mul(DISCARDED_LIMITS) {
            break;
        }
    }
    parts.extensions.insert(Received(collected.into()));
    Ok(Request::from_parts(parts, Body::empty()))
}

/// The body as it came.
pub(crate) struct RawBody(pub(crate) Bytes);

impl<S: Send + Sync> FromRequestParts<S> for RawBody {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<RawBody> {
        Ok(RawBody(parts.extensions.get::<Received>().map(|received| received.0.clone()).unwrap_or_default()))
    }
}

fn unreadable(error: axum::Error) -> Problem {
    Problem::new(Kind::MalformedRequest, format!("the body broke off: {error}"), "send the whole body")
}

/// Anything else could be sent by a web page without asking first.
fn check_type(headers: &HeaderMap) -> Result<()> {
    let given = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let essence = given.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    let detail = match given {
        Some(given) => format!("the content type is {given:?}"),
        None => "the request has a body and no content type".to_string(),
    };
    Err(Problem::new(Kind::NotJson, detail, "send JSON with Content-Type: application/json"))
}

/// A body that is too large is thrown away up to this many limits before it is refused: a client that
/// still sends does not read the answer.
const DISCARDED_LIMITS: usize = 4;

async fn collect(headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Bytes> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let most = if headers.contains_key(EXPECT) { limit } else { limit.saturating_mul(DISCARDED_LIMITS) };
    let too_large = |bytes: usize| {
        let hint = "send it in several requests, or raise server.body_limit";
        let problem = format!("is larger than {limit} bytes");
        Problem::about(Kind::BodyTooLarge, Invalid::new("body", format!("{bytes} bytes"), problem, hint))
    };
    if let Some(length) = declared.filter(|length| *length > most) {
        return Err(too_large(length));
    }
    let (mut collected, mut total) = (Vec::with_capacity(declared.unwrap_or(0).min(limit)), 0_usize);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(unreadable)?.into_data() else { continue };
        total = total.saturating_add(data.len());
        if total <= limit {
            collected.extend_from_slice(&data);
        } else if total > most {
            break;
        }
    }
    if total > limit { Err(too_large(declared.unwrap_or(total))) } else { Ok(collected.into()) }
}

/// A JSON object as the body.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<JsonBody<T>> {
        let received = parts.extensions.get::<Received>().map(|received| received.0.clone()).unwrap_or_default();
        read(&received).map(JsonBody)
    }
}

/// The same, where a request may also come without a body, or with none to speak of.
pub(crate) struct OptionalBody<T>(pub(crate) T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequestParts<S> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<OptionalBody<T>> {
        match parts.extensions.get::<Received>() {
            Some(Received(received)) if received.trim_ascii() != b"null" => read(received).map(OptionalBody),
            _ => Ok(OptionalBody(T::default())),
        }
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let error = match serde_json::from_slice::<Object<T>>(bytes) {
        Ok(Object(body)) => return Ok(body),
        Err(error) => error,
    };
    if error.classify() != Category::Data {
        if let Ok(text) = std::str::from_utf8(bytes)
            && let Err(beyond) = Json::read_text(text)
            && NotJson::BEYOND.contains(&beyond)
        {
            return Err(Problem::about(Kind::InvalidValue, beyond.about("the body", text)));
        }
        let invalid =
            Invalid::new("body", around(bytes, &error), format!("is not valid JSON: {error}"), "send one JSON object");
        return Err(Problem::about(Kind::MalformedRequest, invalid));
    }
    // Read again, slowly, to say where it went wrong.
    let mut again = serde_json::Deserializer::from_slice(bytes);
    let path = match serde_path_to_error::deserialize::<_, Object<T>>(&mut again) {
        Ok(_) => Vec::new(),
        Err(error) => error.path().iter().cloned().collect(),
    };
    Err(complain(&error.to_string(), &path, &serde_json::from_slice(bytes).unwrap_or_default()))
}

/// So many bytes on each side of a mistake show what is meant.
const CONTEXT_BYTES: usize = 40;

/// The text around a mistake.
fn around(bytes: &[u8], error: &serde_json::Error) -> String {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::len);
    let before: usize = lines.take(error.line().saturating_sub(1)).sum();
    let at = (before + error.column()).min(bytes.len());
    let (from, to) = (at.saturating_sub(CONTEXT_BYTES), (at + CONTEXT_BYTES).min(bytes.len()));
    format!("{:?}", String::from_utf8_lossy(&bytes[from..to]))
}

/// Turns a deserialiser's words into a problem with field, value and remedy.
fn complain(words: &str, path: &[Segment], body: &Value) -> Problem {
    let words = words.rsplit_once(" at line ").map_or(words, |(words, _)| words);
    let mut quoted = words.split('`').skip(1).step_by(2);
    if let Some(rest) = words.strip_prefix("unknown field ") {
        let unknown = quoted.next().unwrap_or(rest);
        let known: Vec<&str> = quoted.collect();
        let field = match path.last() {
            Some(Segment::Map { key }) if key == unknown => dotted(path),
            _ => inside(&dotted(path), unknown),
        };
        let hint = match nearest(unknown, known.iter().copied()) {
            Some(name) => format!("did you mean {name:?}?"),
            None => format!("the known ones are {}", known.join(", ")),
        };
        let value = found(path, body).or_else(|| body.get(unknown)).map_or_else(String::new, Value::to_string);
        return Problem::about(Kind::UnknownField, discreet(Invalid::new(field, value, "is not a known field", hint)));
    }
    if words.starts_with("missing field ") {
        let field = inside(&dotted(path), quoted.next().unwrap_or_default());
        return Problem::about(Kind::InvalidValue, Invalid::new(field, "nothing", "is missing", "add it"));
    }
    let field = if path.is_empty() { "the body".to_string() } else { dotted(path) };
    if let Some(beyond) = NotJson::BEYOND.iter().find(|beyond| words == beyond.problem()) {
        return Problem::about(Kind::InvalidValue, beyond.about(&field, "more than can be shown"));
    }
    let value = found(path, body).map_or_else(String::new, Value::to_string);
    let problem = format!("cannot be accepted: {words}");
    Problem::about(Kind::InvalidValue, discreet(Invalid::new(field, value, problem, remedy(words))))
}

fn remedy(words: &str) -> &'static str {
    match words.rsplit_once("expected ").map_or(words, |(_, expected)| expected) {
        "i16" => "use a whole number from -32768 to 32767",
        "a boolean" => "use true or false",
        "a string" => "use a text in quotes",
        "a sequence" => "use a list",
        "an object" => "use an object; its shape is described at /openapi.json",
        _ if words.starts_with("duplicate field") => "give each field once",
        _ => "the shape is described at /openapi.json",
    }
}

fn dotted(path: &[Segment]) -> String {
    path.iter().fold(String::new(), |outer, segment| match segment {
        Segment::Seq { index } => format!("{outer}[{index}]"),
        Segment::Map { key } => inside(&outer, key),
        Segment::Enum { variant } => inside(&outer, variant),
        Segment::Unknown => outer,
    })
}

fn inside(outer: &str, name: &str) -> String {
    if outer.is_empty() { name.to_string() } else { format!("{outer}.{name}") }
}

fn found<'a>(path: &[Segment], body: &'a Value) -> Option<&'a Value> {
    path.iter().try_fold(body, |value, segment| match segment {
        Segment::Seq { index } => value.get(index),
        Segment::Map { key } => value.get(key),
        Segment::Enum { .. } | Segment::Unknown => Some(value),
    })
}

/// Reads `T` from a JSON object only: a derived struct would also accept a list of its fields.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Object<T>, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}
