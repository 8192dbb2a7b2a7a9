use crate::args::Remote;
use crate::exit::Failure;
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt::{self, Write as _};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;
use ureq::http::Response;
use ureq::typestate::WithBody;
use ureq::{Agent, Body, BodyReader, RequestBuilder};

/// Talks to one server.
#[derive(Clone)]
pub(crate) struct Client {
    agent: Agent,
    base: String,
    local: bool,
    token: Option<String>,
}

/// What the server said: the text as it came, and as a value to look into.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) raw: Box<RawValue>,
    pub(crate) value: Value,
}

/// A part of a job's output, as it comes.
pub(crate) struct Log {
    /// Where it begins in all that the job has written.
    pub(crate) offset: u64,
    pub(crate) body: BodyReader<'static>,
}

/// Why there is no answer to use.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Nobody is there.
    Unreachable { base: String, cause: String },
    /// Somebody was there; the answer was lost. What was asked may or may not have happened.
    Broken { base: String, cause: String },
    /// The server answered that it will not or cannot.
    Refused { status: u16, problem: Value },
}

/// A request that does not ask to wait is answered within this time or not at all.
const PATIENCE: Duration = Duration::from_secs(60);
const ASK_FIRST: usize = 1 << 20;
const CONNECT: Duration = Duration::from_secs(10);
/// Larger answers are not read: no page of the API comes near.
const LARGEST: u64 = 1 << 30;

impl Client {
    pub(crate) fn new(remote: &Remote) -> Result<Client, Failure> {
        let base = remote.url.trim_end_matches('/').to_string();
        let host = base.strip_prefix("http://").or_else(|| base.strip_prefix("https://"));
        let Some(host) = host.filter(|host| !host.is_empty()) else {
            let invalid = everbeat_model::Invalid::new(
                remote.origin.name(),
                format!("{:?}", remote.url),
                "is not an HTTP address",
                "write it like http://127.0.0.1:7117",
            );
            return Err(Failure::usage(&invalid));
        };
        let mut config =
            Agent::config_builder().http_status_as_error(false).max_redirects(0).timeout_connect(Some(CONNECT));
        let local = is_loopback(host);
        if local {
            // A proxy cannot know this machine's own addresses.
            config = config.proxy(None);
        }
        Ok(Client { agent: config.build().new_agent(), base, local, token: remote.token.clone() })
    }

    /// Whether the server is reached over this machine's own addresses.
    pub(crate) fn is_local(&self) -> bool {
        self.local
    }

    pub(crate) fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Answer, Trouble> {
        self.get_within(path, query, PATIENCE)
    }

    pub(crate) fn get_within(&self, path: &str, query: &[(&str, &str)], span: Duration) -> Result<Answer, Trouble> {
        let request = self.agent.get(self.url(path, query)).config().timeout_global(Some(span)).build();
        self.answer(self.authorised(request).call())
    }

    /// A text that is no JSON.
    pub(crate) fn text(&self, path: &str, query: &[(&str, &str)]) -> Result<String, Trouble> {
        let request = self.agent.get(self.url(path, query)).config().timeout_global(Some(PATIENCE)).build();
        let mut response = self.authorised(request).call().map_err(|error| self.away(&error))?;
        if response.status().as_u16() != 200 {
            return Err(self.answer(Ok(response)).err().unwrap_or_else(|| self.nonsense("no text")));
        }
        let text = response.body_mut().with_config().limit(LARGEST).read_to_string();
        text.map_err(|error| self.broken(&error))
    }

    pub(crate) fn post(&self, path: &str, body: Option<&str>, headers: &[(&str, &str)]) -> Result<Answer, Trouble> {
        self.send(self.agent.post(self.url(path, &[])), body, headers)
    }

    /// Sends text as it is.
    pub(crate) fn post_text(&self, path: &str, text: Option<&str>) -> Result<Answer, Trouble> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return self.post(path, None, &[]) };
        let request = self.agent.post(self.url(path, &[])).config().timeout_global(Some(PATIENCE)).build();
        self.answer(self.authorised(request).content_type("text/plain; charset=utf-8").send(text))
    }

    pub(crate) fn put(&self, path: &str, body: &str) -> Result<Answer, Trouble> {
        self.send(self.agent.put(self.url(path, &[])), Some(body), &[])
    }

    pub(crate) fn delete(&self, path: &str, query: &[(&str, &str)]) -> Result<Answer, Trouble> {
        let request = self.agent.delete(self.url(path, query)).config().timeout_global(Some(PATIENCE)).build();
        self.answer(self.authorised(request).call())
    }

    fn send(
        &self,
        request: RequestBuilder<WithBody>,
        body: Option<&str>,
        headers: &[(&str, &str)],
    ) -> Result<Answer, Trouble> {
        let mut request = self.authorised(request.config().timeout_global(Some(PATIENCE)).build());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if body.is_some_and(|body| body.len() > ASK_FIRST) {
            // A server that refuses says so before the body is sent, not in the midst of it.
            request = request.header("expect", "100-continue");
        }
        self.answer(match body {
            Some(body) => request.content_type("application/json").send(body),
            None => request.send_empty(),
        })
    }

    /// A stream that the server goes on writing, with no longer silence than this.
    pub(crate) fn stream(&self, path: &str, query: &[(&str, &str)], silence: Duration) -> Result<Body, Trouble> {
        self.open(path, query, silence, "text/event-stream").map(Response::into_body)
    }

    /// Output of a job that the server goes on writing, with no longer silence than this.
    pub(crate) fn log(&self, path: &str, query: &[(&str, &str)], silence: Duration) -> Result<Log, Trouble> {
        let response = self.open(path, query, silence, "text/plain")?;
        let said = response.headers().get("everbeat-log-offset").and_then(|offset| offset.to_str().ok());
        let offset = said.and_then(|offset| offset.parse().ok());
        let offset = offset.ok_or_else(|| self.nonsense("output that says not where it begins"))?;
        Ok(Log { offset, body: response.into_body().into_reader() })
    }

    fn open(
        &self,
        path: &str,
        query: &[(&str, &str)],
        silence: Duration,
        accept: &str,
    ) -> Result<Response<Body>, Trouble> {
        let request = self.agent.get(self.url(path, query)).config();
        let request = request.timeout_recv_response(Some(PATIENCE)).timeout_per_read(Some(silence)).build();
        let response = self.authorised(request).header("accept", accept).call().map_err(|error| self.away(&error))?;
        match response.status().as_u16() {
            200 => Ok(response),
            _ => Err(self.answer(Ok(response)).err().unwrap_or_else(|| self.nonsense("no stream"))),
        }
    }

    fn url(&self, path: &str, query: &[(&str, &str)]) -> String {
        let mut url = format!("{}{path}", self.base);
        for (place, (name, value)) in query.iter().enumerate() {
            let sign = if place == 0 { '?' } else { '&' };
            let _writing_to_a_string_cannot_fail = write!(url, "{sign}{name}={}", escape(value));
        }
        url
    }

    fn authorised<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn answer(&self, response: Result<Response<Body>, ureq::Error>) -> Result<Answer, Trouble> {
        let mut response = response.map_err(|error| self.away(&error))?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(LARGEST).read_to_string();
        let text = text.map_err(|error| self.broken(&error))?;
        let value = serde_json::from_str::<Value>(&text);
        if !(200..300).contains(&status) {
            let problem = value.unwrap_or(Value::String(text));
            return Err(Trouble::Refused { status, problem });
        }
        let text = if text.trim().is_empty() { "null".to_string() } else { text };
        match (value.or_else(|_| serde_json::from_str(&text)), RawValue::from_string(text)) {
            (Ok(value), Ok(raw)) => Ok(Answer { status, raw, value }),
            _ => Err(self.nonsense("no JSON")),
        }
    }

    fn away(&self, error: &ureq::Error) -> Trouble {
        let met = match error {
            ureq::Error::Io(error) => matches!(
                error.kind(),
                ErrorKind::UnexpectedEof
                    | ErrorKind::ConnectionReset
                    | ErrorKind::ConnectionAborted
                    | ErrorKind::BrokenPipe
            ),
            ureq::Error::Timeout(during) => !matches!(during, ureq::Timeout::Resolve | ureq::Timeout::Connect),
            _ => false,
        };
        match met {
            true => self.broken(error),
            false => Trouble::Unreachable { base: self.base.clone(), cause: error.to_string() },
        }
    }

    pub(crate) fn broken(&self, error: &dyn std::error::Error) -> Trouble {
        Trouble::Broken { base: self.base.clone(), cause: error.to_string() }
    }

    fn nonsense(&self, what: &str) -> Trouble {
        let problem = format!("{} answers with {what}: is it an Everbeat server?", self.base);
        Trouble::Refused { status: 200, problem: Value::String(problem) }
    }
}

impl Trouble {
    /// Whether the same request may succeed later: the server is away, or its store is.
    pub(crate) fn passing(&self) -> bool {
        match self {
            Trouble::Unreachable { .. } | Trouble::Broken { .. } => true,
            Trouble::Refused { status, .. } => matches!(status, 429 | 502..=504),
        }
    }

    /// Whether a server was there at all.
    pub(crate) fn met(&self) -> bool {
        !matches!(self, Trouble::Unreachable { .. })
    }

    /// The server is there; what was waited for has not come.
    pub(crate) fn timed_out(&self) -> bool {
        matches!(self, Trouble::Refused { status: 408, .. })
    }

    /// Whether the server refused with a problem of this type.
    pub(crate) fn is(&self, kind: &str) -> bool {
        let Trouble::Refused { problem, .. } = self else { return false };
        problem["type"].as_str().and_then(|text| text.rsplit('/').next()) == Some(kind)
    }

    /// What the server said about it.
    pub(crate) fn detail(&self) -> Option<&str> {
        let Trouble::Refused { problem, .. } = self else { return None };
        problem["detail"].as_str()
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Unreachable { base, cause } => write!(f, "the server at {base} cannot be reached ({cause})"),
            Trouble::Broken { base, cause } => write!(f, "the server at {base} broke off ({cause})"),
            Trouble::Refused { status, .. } => write!(f, "the server answers with status {status}"),
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        let said = trouble.to_string();
        match trouble {
            Trouble::Unreachable { .. } => {
                Failure::server(said, "start one with `everbeat serve`, or name another with --url or EVERBEAT_URL")
            }
            Trouble::Broken { .. } => Failure::server(
                said,
                "what was asked may or may not have happened; look, or submit again with the same --idempotency-key",
            ),
            Trouble::Refused { problem, .. } => {
                let part = |name: &str| problem.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
                let fallback = problem.as_str().map(|text| text.trim().chars().take(500).collect::<String>());
                let detail = part("detail").or_else(|| part("title")).map(ToString::to_string);
                let mut message = detail.or(fallback).filter(|text| !text.is_empty()).unwrap_or_default();
                if message.is_empty() {
                    message = said;
                }
                for name in ["field", "value"] {
                    if let Some(text) = part(name).filter(|text| !message.contains(text)) {
                        let _writing_to_a_string_cannot_fail = write!(message, "\n  {name}: {text}");
                    }
                }
                Failure::server(message, part("hint").unwrap_or_default())
            }
        }
    }
}

/// Of the part of a URL that follows its scheme.
fn is_loopback(rest: &str) -> bool {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Percent-encodes all but the characters that stand for themselves everywhere in a URL.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => escaped.push(char::from(byte)),
            _ => {
                let _writing_to_a_string_cannot_fail = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machines_own_addresses_are_local() {
        for local in ["127.0.0.1:7117", "127.9.9.9", "localhost", "LOCALHOST:1/x", "[::1]:7117"] {
            assert!(is_loopback(local), "{local}");
        }
        for remote in ["127.0.0.1.example.org", "localhost.example.org:80", "10.0.0.1", "[fe80::1]:1", "me@127.0.0.1"] {
            assert!(!is_loopback(remote), "{remote}");
        }
    }
}
