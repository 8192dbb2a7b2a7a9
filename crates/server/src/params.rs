use crate::problem::{Kind, Problem, Result};
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use everbeat_model::Invalid;
use everbeat_model::error::nearest;
use everbeat_model::run::{check_key, check_name};
use std::collections::BTreeMap;
use std::str::FromStr;

/// The query of a request. Each parameter is known and given once, or the request is refused.
pub(crate) struct Params(BTreeMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Params> {
        let unreadable = |error: axum::extract::rejection::QueryRejection| {
            Problem::new(Kind::MalformedRequest, error.to_string(), "write the query like ?name=value&name=value")
        };
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map_err(unreadable)?;
        let mut params = BTreeMap::new();
        for (name, value) in pairs {
            let given = format!("{value:?}");
            if params.insert(name.clone(), value).is_some() {
                return Err(bad(Invalid::new(name, given, "is given twice", "give each parameter once")));
            }
        }
        Ok(Params(params))
    }
}

impl Params {
    /// Refuses parameters that the endpoint does not know.
    pub(crate) fn only(self, known: &[&str]) -> Result<Params> {
        for (name, value) in &self.0 {
            if known.contains(&name.as_str()) {
                continue;
            }
            let hint = match nearest(name, known.iter().copied()) {
                Some(name) => format!("did you mean {name:?}?"),
                None if known.is_empty() => "this endpoint takes none".to_string(),
                None => format!("the known ones are {}", known.join(", ")),
            };
            return Err(bad(Invalid::new(name, format!("{value:?}"), "is not a parameter here", hint)));
        }
        Ok(self)
    }

    /// Reads one parameter, if it is given.
    pub(crate) fn get<T>(
        &self,
        name: &str,
        read: impl FnOnce(&str) -> std::result::Result<T, Invalid>,
    ) -> Result<Option<T>> {
        let within = |invalid: Invalid| bad(Invalid { field: name.to_string(), ..invalid });
        self.0.get(name).map(|value| read(value).map_err(within)).transpose()
    }

    /// Reads one parameter that is a word of a fixed list.
    pub(crate) fn word<T: Copy>(&self, name: &str, all: &[T], as_str: fn(T) -> &'static str) -> Result<Option<T>> {
        self.get(name, |text| {
            all.iter().copied().find(|word| as_str(*word) == text).ok_or_else(|| {
                let words: Vec<&str> = all.iter().map(|word| as_str(*word)).collect();
                let hint = format!("use one of {}", words.join(", "));
                Invalid::new("", format!("{text:?}"), "is not one of the known values", hint)
            })
        })
    }

    /// Reads one parameter that is handed to the store as text.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>> {
        self.get(name, |text| check_key(name, text).map(|()| text.to_string()))
    }

    /// Reads the name of a task or queue.
    pub(crate) fn name(&self, name: &str) -> Result<Option<String>> {
        self.get(name, |text| check_name(name, text).map(|()| text.to_string()))
    }

    pub(crate) fn id<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        self.get(name, |text| parse_id("", text))
    }
}

pub(crate) fn bad(invalid: Invalid) -> Problem {
    Problem::about(Kind::BadParameter, invalid)
}

/// The one variable segment of a path.
pub(crate) struct Segment(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Segment> {
        let unreadable = |error: axum::extract::rejection::PathRejection| {
            Problem::new(Kind::MalformedRequest, error.to_string(), "write the path in percent-encoded UTF-8")
        };
        Path::<String>::from_request_parts(parts, state).await.map(|Path(text)| Segment(text)).map_err(unreadable)
    }
}

impl Segment {
    pub(crate) fn id<T: FromStr>(&self) -> Result<T> {
        parse_id("id", &self.0).map_err(bad)
    }
}

fn parse_id<T: FromStr>(field: &str, text: &str) -> std::result::Result<T, Invalid> {
    let hint = "an id looks like 0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b";
    text.parse().map_err(|_| Invalid::new(field, format!("{text:?}"), "is not an id", hint))
}
