//! The first words of a stream: whether it is a worker, and whether it is let in.

use super::connection::Peer;
use super::door::House;
use super::grpc::{self, Code, Incoming, Status};
use super::proto::{self, from_worker};
use super::strangers::Stranger;
use super::talk::Talk;
use super::words;
use crate::{auth, client};
use axum::http::{HeaderMap, Method, Request};
use bytes::Bytes;
use everbeat_engine::pools::{Hello, Link};
use everbeat_engine::within;
use h2::RecvStream;
use h2::server::SendResponse;
use std::net::IpAddr;
use std::time::Duration;

const PATH: &str = "/everbeat.worker.v1.WorkerLink/Connect";
/// From its request on a worker may take so long to say hello.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// A hello is no larger; graphs that a worker declares are the most of it.
const LARGEST_HELLO: usize = 1 << 20;

/// Welcomes a worker, or refuses the stream and says why.
pub(super) async fn greet(
    house: &House,
    peer: Peer,
    stranger: &Stranger,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Option<Talk> {
    let (head, body) = request.into_parts();
    let mut incoming = Incoming::new(body);
    let welcomed = async {
        check_call(&head.method, head.uri.path(), &head.headers)?;
        let known = match peer {
            Peer::Pool => Known::ByItsSecret,
            Peer::Remote(address) => {
                let client = client::address(Some(address), &head.headers, &house.config.trusted_proxies);
                house.guard.check_worker_place(&head.uri, &head.headers, client)?;
                match auth::token_of(&head.headers) {
                    token @ Some(_) => {
                        house.guard.check_worker(token, client)?;
                        Known::ByItsToken
                    }
                    None => Known::NotYet(client),
                }
            }
        };
        let hello = within(&**house.engine.env(), HELLO_LIMIT, hear_hello(&mut incoming)).await;
        let hello = hello.unwrap_or_else(|| Err(Status::new(Code::DeadlineExceeded, "the worker said no hello")))?;
        stranger.spoke();
        admit(house, known, hello).await
    };
    let welcomed = welcomed.await.and_then(|link| {
        let gone = |error| Status::new(Code::Unavailable, format!("the stream broke: {error}"));
        Ok((link, grpc::accept(&mut respond).map_err(gone)?))
    });
    match welcomed {
        Ok((link, outgoing)) => Some(Talk { link, incoming, outgoing }),
        Err(status) => {
            tracing::info!(?peer, "a worker is not let in: {}", status.message());
            grpc::refuse(&mut respond, &status);
            None
        }
    }
}

/// By what a worker is known.
enum Known {
    /// The engine compares what it handed out.
    ByItsSecret,
    ByItsToken,
    /// Its hello may carry the token.
    NotYet(Option<IpAddr>),
}

fn check_call(method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Status> {
    let kind = headers.get("content-type").map_or(&b""[..], |value| value.as_bytes());
    if method != Method::POST || path != PATH || !kind.starts_with(b"application/grpc") {
        return Err(Status::new(Code::Unimplemented, format!("only {PATH} is served here")));
    }
    Ok(())
}

async fn hear_hello(incoming: &mut Incoming) -> Result<Hello, Status> {
    let ended = || Status::invalid("the stream ended before a hello");
    let first: proto::FromWorker = incoming.next(LARGEST_HELLO).await?.ok_or_else(ended)?;
    match first.message {
        Some(from_worker::Message::Hello(hello)) => words::hello(hello),
        _ => Err(Status::invalid("the first message of a worker is its hello")),
    }
}

async fn admit(house: &House, known: Known, mut hello: Hello) -> Result<Link, Status> {
    match (&known, &hello.pool) {
        (Known::ByItsSecret, None) => return Err(Status::invalid("a worker at this socket names its pool")),
        (Known::ByItsToken | Known::NotYet(_), Some(_)) => {
            return Err(Status::invalid("a worker from elsewhere belongs to no pool; leave `pool` empty"));
        }
        _ => {}
    }
    if let Known::NotYet(client) = known {
        let token = Some(hello.secret.as_bytes()).filter(|token| !token.is_empty());
        house.guard.check_worker(token, client)?;
    }
    if hello.pool.is_none() {
        hello.secret.clear();
    }
    Ok(house.engine.greet(hello).await?)
}
