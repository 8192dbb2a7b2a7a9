use super::headers::Headers;
use super::line::{Answer, Broken, Line, MOST_ANSWER_BYTES};
use crate::dial::tls;
use crate::target::decoded;
use crate::timely::{pause, within};
use crate::{Target, Trouble, shown};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::ClientConfig;
use url::Url;

/// More redirects are a circle, or a way of hiding where they lead.
const MOST_REDIRECTS: usize = 5;
/// How often a server that asks for patience gets it within one attempt of a run.
const MOST_PAUSES: usize = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const AGENT: &str = concat!("everbeat/", env!("CARGO_PKG_VERSION"));

/// Asks one server, and whom it redirects to.
pub(super) struct Client {
    target: Target,
    /// The target's URL, without user and password.
    base: Url,
    /// For requests to the target itself, nobody else.
    headers: HeaderMap,
    timeout: Duration,
    tls: Arc<ClientConfig>,
    line: Option<Line>,
}

/// What is asked for.
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) body: Bytes,
    pub(super) key: Option<String>,
}

impl Client {
    pub(super) fn new(target: &Target, headers: &Headers, timeout: Duration) -> Result<Client, Trouble> {
        let mut base = target.url(super::SCHEMES)?;
        let mut headers = headers.read()?;
        if !base.username().is_empty() || base.password().is_some() {
            let login = format!("{}:{}", decoded(base.username()), decoded(base.password().unwrap_or_default()));
            let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(login)))
                .map_err(|_| Trouble::permanent("user and password do not fit into a header"))?;
            value.set_sensitive(true);
            headers.entry(header::AUTHORIZATION).or_insert(value);
        }
        // Both work: a URL of HTTP has a host.
        let _ = base.set_username("");
        let _ = base.set_password(None);
        base.set_fragment(None);
        Ok(Client { target: target.clone(), base, headers, timeout, tls: tls(target.ca())?, line: None })
    }

    pub(super) fn base(&self) -> &Url {
        &self.base
    }

    /// The answer of a server that accepts the request. A server that asks for patience gets it, within bounds.
    pub(super) async fn ask(&mut self, url: &Url, ask: &Ask) -> Result<Answer, Trouble> {
        let mut pauses = 0;
        loop {
            let answer = self.follow(url, ask).await?;
            let wait = retry_after(&answer).filter(|_| pauses < MOST_PAUSES);
            match (answer.status, wait) {
                (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(wait)) => {
                    pauses += 1;
                    pause(wait).await;
                }
                _ => return Ok(answer),
            }
        }
    }

    async fn follow(&mut self, url: &Url, ask: &Ask) -> Result<Answer, Trouble> {
        let mut at = url.clone();
        for _ in 0..=MOST_REDIRECTS {
            let answer = match within(self.timeout, self.exchange(&at, ask)).await {
                Some(answer) => answer?,
                None => {
                    self.line = None;
                    let (shown, span) = (shown(at.as_str()), self.timeout.as_millis());
                    return Err(Trouble::transient(format!("{shown} gave no answer within {span} ms")));
                }
            };
            match redirect(&at, &answer, ask)? {
                None => return Ok(answer),
                Some(next) => at = next,
            }
        }
        let shown = shown(url.as_str());
        Err(Trouble::permanent(format!("{shown} redirects more than {MOST_REDIRECTS} times: name the last address")))
    }

    async fn exchange(&mut self, url: &Url, ask: &Ask) -> Result<Answer, Trouble> {
        let mut request = self.request(url, ask)?;
        let kept = self.line.take().filter(|line| line.leads_to(&url.origin()));
        let mut line = match kept {
            None => self.open(url).await?,
            Some(mut line) => match line.ask(request).await {
                Ok(answer) => return self.heard(line, url, Ok(answer)),
                // The server closed the connection in the meantime.
                Err(Broken::Unsent(unsent)) => {
                    request = *unsent;
                    self.open(url).await?
                }
                Err(broken) => return self.heard(line, url, Err(broken)),
            },
        };
        let heard = line.ask(request).await;
        self.heard(line, url, heard)
    }

    fn heard(&mut self, line: Line, url: &Url, heard: Result<Answer, Broken>) -> Result<Answer, Trouble> {
        let shown = || shown(url.as_str());
        match heard {
            Ok(answer) => {
                self.line = Some(line);
                Ok(answer)
            }
            Err(Broken::Unsent(_)) => Err(Trouble::transient(format!("{} closed the connection", shown()))),
            Err(Broken::Cut(why)) => Err(Trouble::transient(format!("{} cut its answer short: {why}", shown()))),
            Err(Broken::Garbage(why)) => {
                Err(Trouble::permanent(format!("{} does not answer in HTTP: {why}: check host and port", shown())))
            }
            Err(Broken::Large) => Err(Trouble::permanent(format!(
                "the answer of {} is larger than {MOST_ANSWER_BYTES} bytes: ask for smaller pages",
                shown()
            ))),
        }
    }

    async fn open(&mut self, url: &Url) -> Result<Line, Trouble> {
        let at_home = url.origin() == self.base.origin();
        // Whom the target names is not whom the operator named.
        let guard = if at_home { self.target.guard() } else { self.target.elsewhere() };
        let secure = (url.scheme() == "https").then_some(&self.tls);
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or(80);
        Line::open(guard, &url.origin(), host, port, secure).await
    }

    fn request(&self, url: &Url, ask: &Ask) -> Result<Request<Full<Bytes>>, Trouble> {
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_string(),
        };
        let host = match url.port() {
            Some(port) => format!("{}:{port}", url.host_str().unwrap_or_default()),
            None => url.host_str().unwrap_or_default().to_string(),
        };
        let mut request = Request::builder().method(ask.method.clone()).uri(path);
        request = request.header(header::HOST, host).header(header::USER_AGENT, AGENT);
        request = request.header(header::ACCEPT, "application/json");
        if ask.method != Method::GET {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &ask.key {
            request = request.header("idempotency-key", key);
        }
        let mut request = request
            .body(Full::new(ask.body.clone()))
            .map_err(|_| Trouble::permanent(format!("{} cannot be asked for over HTTP", shown(url.as_str()))))?;
        if url.origin() == self.base.origin() {
            for (name, value) in &self.headers {
                request.headers_mut().insert(name, value.clone());
            }
        }
        Ok(request)
    }
}

/// Where the answer leads, if it is a redirect that may be followed.
fn redirect(at: &Url, answer: &Answer, ask: &Ask) -> Result<Option<Url>, Trouble> {
    let follow = match answer.status {
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => ask.method == Method::GET,
        _ => return Ok(None),
    };
    let place = shown(at.as_str());
    let location = answer.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    let Some(mut next) = location.and_then(|location| at.join(location).ok()) else {
        return Err(Trouble::permanent(format!("{place} redirects without saying where to: check the url")));
    };
    let to = shown(next.as_str());
    if !follow {
        return Err(Trouble::permanent(format!("{place} redirects a request that writes to {to}: name that url")));
    }
    if !super::SCHEMES.contains(&next.scheme()) || (at.scheme() == "https" && next.scheme() == "http") {
        return Err(Trouble::permanent(format!("{place} redirects to {to}, which is not secured: name that url")));
    }
    let _ = next.set_username("");
    let _ = next.set_password(None);
    Ok(Some(next))
}

/// How long the server asks to wait, in seconds; dates are not understood.
fn retry_after(answer: &Answer) -> Option<Duration> {
    let seconds: u64 = answer.headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

/// What a status means, if it is not that of success.
pub(super) fn refused(url: &Url, status: StatusCode) -> Option<Trouble> {
    if status.is_success() {
        return None;
    }
    let said = format!("{} answered {status}", shown(url.as_str()));
    let again = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY);
    Some(match status {
        _ if again => Trouble::transient(said),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Trouble::permanent(format!("{said}: check user, password and the authorization header"))
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => Trouble::permanent(format!("{said}: check the url")),
        _ => Trouble::permanent(format!("{said}: change what is asked for")),
    })
}
