//! Bounds of requests: how large, how long, how many.

use crate::app::App;
use crate::body;
use crate::pings;
use crate::problem::{Kind, Problem};
use crate::routes::takes_any_body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use everbeat_engine::within;
use everbeat_model::BootInstant;
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Followers of events at once: each one reads the store.
pub(crate) const MOST_STREAMS: usize = 64;
/// So many follow the output of jobs at once; whoever comes beyond that is sent away after each piece.
pub(crate) const MOST_FOLLOWERS: usize = 256;
/// Requests that wait at once, for the end of a run or for a value.
pub(crate) const MOST_WAITS: usize = 1000;
/// Nobody waits longer in one request.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// A stream ends after this, and is taken up again by its client.
pub(crate) const LONGEST_STREAM: Duration = Duration::from_secs(3600);
/// Connections at once, unless the server is told fewer.
pub(crate) const MOST_CONNECTIONS: usize = 4096;
/// The head of a request arrives within this, and an idle connection is kept no longer.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection that is idle for less is not closed to make room: the last answer may still be on its way, and the
/// next request too.
pub(crate) const SHORTEST_IDLE: Duration = Duration::from_secs(1);
/// The head of a request is no larger, in bytes.
pub(crate) const HEAD_LIMIT: usize = 64 << 10;
/// So much of a head is read, so that one that is too large is told so. What is larger still is cut off.
pub(crate) const HEAD_BUFFER: usize = 4 * HEAD_LIMIT;
/// What is under way when the server is told to end gets this long.
pub(crate) const CLOSE_GRACE: Duration = Duration::from_secs(10);

/// Receives the whole request and has it answered in time. A handler that panics answers too.
pub(crate) async fn bound(State(app): State<App>, request: Request, next: Next) -> Response {
    let env = app.engine.env().clone();
    let limit = app.config.request_timeout;
    let waits = request.uri().query().is_some_and(|query| query.contains("wait="));
    let receive = async {
        match takes_any_body(&request) {
            true => body::receive_beginning(request, pings::READ, app.config.body_limit).await,
            false => body::receive(request, app.config.body_limit).await,
        }
    };
    let request = match within(&*env, limit, receive).await {
        Some(Ok(request)) => request,
        Some(Err(problem)) => return problem.into_response(),
        None => {
            let detail = format!("the body did not arrive within {limit:?}");
            let hint = "send it faster, or in smaller parts";
            return Problem::new(Kind::RequestTimedOut, detail, hint).into_response();
        }
    };
    let longest = if waits { limit + LONGEST_WAIT } else { limit };
    match within(&*env, longest, AssertUnwindSafe(next.run(request)).catch_unwind()).await {
        Some(Ok(response)) => response,
        Some(Err(_)) => {
            tracing::error!("a handler panicked");
            let detail = "the server failed while it answered this request";
            Problem::new(Kind::Internal, detail, "look at the server's log for the cause").into_response()
        }
        None => {
            let detail = format!("the store did not answer within {limit:?}; the change may or may not have happened");
            let hint = "try again; with the same Idempotency-Key nothing happens twice";
            Problem::new(Kind::Unavailable, detail, hint).into_response()
        }
    }
}

/// A bucket of tokens per client address, filled at a steady rate, one second's worth deep.
pub(crate) struct RateLimit {
    per_second: u32,
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    of: BTreeMap<IpAddr, Bucket>,
    tidied: Option<BootInstant>,
}

struct Bucket {
    tokens: f64,
    at: BootInstant,
}

/// Addresses remembered at once. Beyond, newcomers share one bucket.
const MOST_CLIENTS: usize = 10_000;
const EVERYBODY_ELSE: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

impl RateLimit {
    pub(crate) fn new(per_second: u32) -> RateLimit {
        RateLimit { per_second, buckets: Mutex::default() }
    }

    pub(crate) fn per_second(&self) -> u32 {
        self.per_second
    }

    /// Takes one token, or answers after how many seconds there is one.
    pub(crate) fn take(&self, client: Option<IpAddr>, now: BootInstant) -> Result<(), u32> {
        let rate = f64::from(self.per_second);
        let filled = |bucket: &Bucket| (bucket.tokens + now.since(bucket.at).as_secs_f64() * rate).min(rate);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Buckets { of, tidied } = &mut *buckets;
        let mut key = client.map_or(EVERYBODY_ELSE, network);
        if of.len() >= MOST_CLIENTS && !of.contains_key(&key) {
            if tidied.is_none_or(|last| now.since(last) >= Duration::from_secs(1)) {
                // A full bucket is as good as none.
                of.retain(|_, bucket| filled(bucket) < rate);
                *tidied = Some(now);
            }
            if of.len() >= MOST_CLIENTS {
                key = EVERYBODY_ELSE;
            }
        }
        let bucket = of.entry(key).or_insert(Bucket { tokens: rate, at: now });
        *bucket = Bucket { tokens: filled(bucket), at: now };
        if bucket.tokens < 1.0 {
            return Err(1);
        }
        bucket.tokens -= 1.0;
        Ok(())
    }
}

/// One household has a whole network of IPv6 addresses.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> BootInstant {
        BootInstant(Duration::from_millis(millis))
    }

    #[test]
    fn a_client_gets_its_rate_and_no_more_and_others_are_not_affected() {
        let limit = RateLimit::new(10);
        let (one, other) = ("192.0.2.1".parse().ok(), "192.0.2.2".parse().ok());
        let taken = (0..50).filter(|_| limit.take(one, at(0)).is_ok()).count();
        assert_eq!(taken, 10);
        assert!(limit.take(other, at(0)).is_ok());
        assert!(limit.take(one, at(100)).is_ok());
        assert_eq!(limit.take(one, at(100)), Err(1));
    }

    #[test]
    fn the_memory_of_clients_is_bounded() {
        let limit = RateLimit::new(1);
        for n in 0..20_000_u32 {
            let _either = limit.take(Some(IpAddr::from(n.to_be_bytes())), at(0));
        }
        assert!(limit.buckets.lock().expect("lock").of.len() <= MOST_CLIENTS + 1);
        assert_eq!(limit.take("203.0.113.9".parse().ok(), at(0)), Err(1));
        assert!(limit.take("203.0.113.9".parse().ok(), at(5000)).is_ok());
    }
}
