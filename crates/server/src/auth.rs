//! Who may ask for what. Everything here is decided before the store is touched.

use crate::app::App;
use crate::client;
use crate::config::{Config, Scope};
use crate::limits::HEAD_LIMIT;
use crate::problem::{Kind, Problem, Result};
use crate::routes::{Need, Needs};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use subtle::ConstantTimeEq;

pub(crate) async fn admit(State((app, needs)): State<(App, Arc<Needs>)>, request: Request, next: Next) -> Response {
    if let Err(problem) = check_head(&request) {
        return problem.into_response();
    }
    let Need::Scope(needed) = needs.of(&request) else { return next.run(request).await };
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    let client = client::address(peer, request.headers(), &app.config.trusted_proxies);
    let admitted = app
        .guard
        .check_address(client)
        .and_then(|()| check_rate(&app, client))
        .and_then(|()| app.guard.check_origin(request.uri(), request.headers()))
        .and_then(|()| app.guard.check_token(shown(request.headers(), needed), needed, client, || asked(&request)))
        .and_then(|()| app.guard.check_method(request.method(), needed));
    match admitted {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

pub(crate) struct Guard {
    tokens: Vec<Known>,
    open: bool,
    read_only: bool,
    allow: Vec<IpNet>,
}

struct Known {
    digest: [u8; 32],
    scopes: Vec<Scope>,
    allow: Vec<IpNet>,
}

impl Guard {
    pub(crate) fn new(config: &Config) -> Guard {
        // A token whose hash cannot be read matches nothing, and does not open the server either.
        let known = config.tokens.iter().filter_map(|token| {
            Some(Known { digest: token.digest()?, scopes: token.scopes.clone(), allow: token.allow.clone() })
        });
        Guard {
            tokens: known.collect(),
            open: config.tokens.is_empty(),
            read_only: config.read_only,
            allow: config.allow.clone(),
        }
    }

    /// Whether a worker that belongs to no pool may speak from where it is.
    pub(crate) fn check_worker_place(&self, uri: &Uri, headers: &HeaderMap, client: Option<IpAddr>) -> Result<()> {
        self.check_address(client)?;
        self.check_origin(uri, headers)
    }

    /// Whether a worker that belongs to no pool shows a token that opens the link.
    pub(crate) fn check_worker(&self, secret: Option<&[u8]>, client: Option<IpAddr>) -> Result<()> {
        self.check_token(secret, Scope::Worker, client, || "the worker link".to_string())
    }

    fn check_address(&self, client: Option<IpAddr>) -> Result<()> {
        let refuse = |hint: &str| {
            let shown = client.map_or_else(|| "an unknown address".to_string(), |address| address.to_string());
            Err(Problem::new(Kind::AddressNotAllowed, format!("requests from {shown} are not answered"), hint))
        };
        if !allowed(&self.allow, client) {
            return refuse("ask the operator to add the address to auth.allow");
        }
        if self.open && client.is_some_and(|address| !address.is_loopback()) {
            return refuse("configure auth.tokens to open the server to other machines");
        }
        Ok(())
    }

    /// A page in a browser on this machine must not be able to reach the server: neither under a
    /// name that it made resolve to loopback, nor from another site.
    fn check_origin(&self, uri: &Uri, headers: &HeaderMap) -> Result<()> {
        let host = headers.get(HOST).map(|host| host.to_str().unwrap_or_default());
        let target = uri.authority().map(Authority::as_str);
        let local = host.or(target).is_some_and(is_loopback) && target.is_none_or(is_loopback);
        if self.open && !local {
            let shown = host.or(target).unwrap_or("none");
            let detail = format!("without tokens only requests to this machine are answered (Host: {shown})");
            return Err(Problem::new(Kind::ForeignHost, detail, "use http://localhost or http://127.0.0.1"));
        }
        let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let own = |authority: &str| host.or(target).is_some_and(|host| host.eq_ignore_ascii_case(authority));
        if authority.is_some_and(own) {
            return Ok(());
        }
        let detail = format!("requests of web pages from {origin:?} are not answered");
        Err(Problem::new(Kind::ForeignOrigin, detail, "call the API from a program, or from this server's own pages"))
    }

    fn check_token(
        &self,
        secret: Option<&[u8]>,
        needed: Scope,
        client: Option<IpAddr>,
        asked: impl FnOnce() -> String,
    ) -> Result<()> {
        if self.open {
            return Ok(());
        }
        let refuse = |kind, detail: &str, hint: &str| Err(Problem::new(kind, detail, hint));
        let Some(secret) = secret else {
            let hint = "send Authorization: Bearer TOKEN, or set EVERBEAT_TOKEN for the command line";
            return refuse(Kind::Unauthenticated, "the request carries no bearer token", hint);
        };
        let digest = Sha256::digest(secret);
        // Every token is compared, so that the time taken tells nothing about which one was near.
        let matching: Vec<&Known> =
            self.tokens.iter().filter(|known| bool::from(known.digest[..].ct_eq(&digest[..]))).collect();
        if matching.is_empty() {
            return refuse(Kind::Unauthenticated, "the bearer token is unknown", "check the token with the operator");
        }
        let usable: Vec<&Known> = matching.into_iter().filter(|known| allowed(&known.allow, client)).collect();
        if usable.is_empty() {
            let hint = "use the token from an address in its allow list";
            return refuse(Kind::AddressNotAllowed, "the token is not valid from this address", hint);
        }
        if usable.iter().any(|known| known.scopes.iter().any(|scope| scope.includes(needed))) {
            return Ok(());
        }
        let (asked, needed) = (asked(), needed.as_str());
        let hint = format!("use a token with the scope {needed:?}");
        Err(Problem::new(Kind::WrongScope, format!("{asked} needs the scope {needed:?}"), hint))
    }

    /// What needs the scope of heartbeats writes, also where it is asked for by GET.
    fn check_method(&self, method: &Method, needed: Scope) -> Result<()> {
        if self.read_only && (!looks_only(method) || needed == Scope::Heartbeat) {
            let detail = format!("the server is read-only and refuses {method}");
            return Err(Problem::new(Kind::ReadOnly, detail, "unset server.read_only, or ask another replica"));
        }
        Ok(())
    }
}

/// A head that could mean one thing here and another to a proxy in front is refused, whoever sends it.
fn check_head(request: &Request) -> Result<()> {
    let (uri, headers) = (request.uri(), request.headers());
    let size = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FRAMING).sum::<usize>();
    let line = uri.path_and_query().map_or(0, |target| target.as_str().len());
    if size + line > HEAD_LIMIT {
        let detail = format!("the request line and the headers have {} bytes, more than {HEAD_LIMIT}", size + line);
        return Err(Problem::new(Kind::HeadTooLarge, detail, "send fewer or shorter headers, and data in the body"));
    }
    let refuse = |detail: String| Err(Problem::new(Kind::MalformedRequest, detail, "send one Host: NAME[:PORT]"));
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().filter(|host| !host.is_empty());
    if hosts.next().is_some() {
        return refuse("the request has more than one Host header".to_string());
    }
    let plain = |authority: &Authority| !authority.as_str().contains('@');
    let read = |host: &HeaderValue| Authority::try_from(host.as_bytes()).ok().filter(plain);
    let host = match host.map(|host| (host, read(host))) {
        Some((host, None)) => return refuse(format!("the Host header is no name or address of a machine: {host:?}")),
        Some((_, host)) => host,
        None => None,
    };
    let Some(target) = uri.authority() else { return Ok(()) };
    if !plain(target) {
        return refuse(format!("the request line names a user: {target}"));
    }
    match host.filter(|host| host != target) {
        Some(host) => refuse(format!("the request line names {target}, and the Host header {host}")),
        None => Ok(()),
    }
}

/// What stands around a header's name and value.
const FRAMING: usize = ": \r\n".len();

fn check_rate(app: &App, client: Option<IpAddr>) -> Result<()> {
    let Some(limit) = &app.rate_limit else { return Ok(()) };
    limit.take(client, app.engine.env().boot()).map_err(|wait_secs| {
        let detail = format!("more than {} requests per second from one address", limit.per_second());
        Problem::new(Kind::RateLimited, detail, "send fewer requests, or many runs in one with /api/v1/runs:batch")
            .retry_after(wait_secs)
    })
}

pub(crate) fn looks_only(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// An empty list allows everybody; otherwise an unknown address is not in it.
fn allowed(nets: &[IpNet], client: Option<IpAddr>) -> bool {
    nets.is_empty() || client.is_some_and(|address| client::within(nets, address))
}

fn asked(request: &Request) -> String {
    format!("{} {}", request.method(), request.uri().path())
}

/// The token that a request shows. Callers of the heartbeat endpoint may show theirs in a header of its own.
fn shown(headers: &HeaderMap, needed: Scope) -> Option<&[u8]> {
    let own = || headers.get(HEARTBEAT_TOKEN).map(HeaderValue::as_bytes).filter(|secret| !secret.is_empty());
    token_of(headers).or_else(|| own().filter(|_| needed == Scope::Heartbeat))
}

const HEARTBEAT_TOKEN: &str = "x-heartbeat-token";

/// The bearer token that a request carries.
pub(crate) fn token_of(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()))
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = value.split_at_checked("Bearer ".len())?;
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !secret.is_empty()).then_some(secret)
}

fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST:7117", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:7117"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.1", "0.0.0.0", "x@y:z"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
