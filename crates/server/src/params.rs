use crate::problem::{Kind, Problem, Result};
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use everbeat_model::error::nearest;
use everbeat_model::run::{check_key, check_name};
use everbeat_model::{ExecutionId, Invalid};
use std::collections::BTreeMap;
use std::str::FromStr;

/// The query of a request. Each parameter is known and given once, unless it may be repeated, or the request
/// is refused.
pub(crate) struct Params(BTreeMap<String, Vec<String>>);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Params> {
        let unreadable = |error: axum::extract::rejection::QueryRejection| {
            Problem::new(Kind::MalformedRequest, error.to_string(), "write the query like ?name=value&name=value")
        };
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map_err(unreadable)?;
        let mut params: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in pairs {
            params.entry(name).or_default().push(value);
        }
        Ok(Params(params))
    }
}

impl Params {
    /// Refuses parameters that the endpoint does not know, and any that is repeated.
    pub(crate) fn only(self, known: &[&str]) -> Result<Params> {
        self.only_with(known, &[])
    }

    /// The same, with some that may be repeated.
    pub(crate) fn only_with(self, known: &[&str], repeatable: &[&str]) -> Result<Params> {
        for (name, values) in &self.0 {
            let shown = values.last().map_or_else(String::new, |value| format!("{value:?}"));
            if repeatable.contains(&name.as_str()) {
                continue;
            }
            if values.len() > 1 {
                return Err(bad(Invalid::new(name, shown, "is given twice", "give each parameter once")));
            }
            if known.contains(&name.as_str()) {
                continue;
            }
            let known: Vec<&str> = known.iter().chain(repeatable).copied().collect();
            let hint = match nearest(name, known.iter().copied()) {
                Some(name) => format!("did you mean {name:?}?"),
                None if known.is_empty() => "this endpoint takes none".to_string(),
                None => format!("the known ones are {}", known.join(", ")),
            };
            return Err(bad(Invalid::new(name, shown, "is not a parameter here", hint)));
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
        self.0.get(name).and_then(|values| values.last()).map(|value| read(value).map_err(within)).transpose()
    }

    /// Reads a parameter that may be repeated, in the order given.
    pub(crate) fn all<T>(&self, name: &str, read: impl Fn(&str) -> std::result::Result<T, Invalid>) -> Result<Vec<T>> {
        let within = |invalid: Invalid| bad(Invalid { field: name.to_string(), ..invalid });
        self.0.get(name).into_iter().flatten().map(|value| read(value).map_err(within)).collect()
    }

    /// Reads one parameter that is `true` or `false`.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.get(name, |text| {
            let hint = "use true or false";
            text.parse().map_err(|_| Invalid::new("", format!("{text:?}"), "is neither true nor false", hint))
        })
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
        Path::<String>::from_request_parts(parts, state).await.map(|Path(text)| Segment(text)).map_err(unreadable)
    }
}

impl Segment {
    pub(crate) fn id<T: FromStr>(&self) -> Result<T> {
        self.id_of("id")
    }

    /// Reads an id that the path calls otherwise.
    pub(crate) fn id_of<T: FromStr>(&self, field: &str) -> Result<T> {
        parse_id(field, &self.0).map_err(bad)
    }

    /// Reads a name, of which `field` says whose.
    pub(crate) fn name(self, field: &str) -> Result<String> {
        check_name(field, &self.0).map_err(bad)?;
        Ok(self.0)
    }
}

/// The two variable segments of a path that names a node of an execution.
pub(crate) struct OfNode {
    pub(crate) execution: ExecutionId,
    pub(crate) node: String,
}

impl<S: Send + Sync> FromRequestParts<S> for OfNode {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<OfNode> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await.map_err(unreadable)?;
        let Path((id, node)) = path;
        Ok(OfNode { execution: Segment(id).id()?, node: Segment(node).name("node")? })
    }
}

/// The two variable segments of a path that names a session of a pool.
pub(crate) struct OfPool {
    pub(crate) name: String,
    pub(crate) key: String,
}

impl<S: Send + Sync> FromRequestParts<S> for OfPool {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<OfPool> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await.map_err(unreadable)?;
        let Path((name, key)) = path;
        Ok(OfPool { name, key })
    }
}

/// The two variable segments of a path that says something of the job of a check.
pub(crate) struct OfCheck {
    pub(crate) name: String,
    pub(crate) signal: String,
}

impl<S: Send + Sync> FromRequestParts<S> for OfCheck {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<OfCheck> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await.map_err(unreadable)?;
        let Path((name, signal)) = path;
        Ok(OfCheck { name: Segment(name).name("name")?, signal })
    }
}

fn unreadable(error: PathRejection) -> Problem {
    Problem::new(Kind::MalformedRequest, error.to_string(), "write the path in percent-encoded UTF-8")
}

fn parse_id<T: FromStr>(field: &str, text: &str) -> std::result::Result<T, Invalid> {
    let hint = "an id looks like 0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b";
    text.parse().map_err(|_| Invalid::new(field, format!("{text:?}"), "is not an id", hint))
}
