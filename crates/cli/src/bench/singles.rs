//! Runs that are submitted one by one, by many clients at once: with an idempotency key each, as SDKs do, and without.

use super::load::{Client, now};
use crate::exit::Failure;
use serde::Serialize;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Serialize)]
pub(crate) struct SingleFigures {
    clients: u64,
    requests: u64,
    /// `POST /api/v1/runs` without an idempotency key.
    plain_per_s: f64,
    /// The same with an idempotency key of its own for each request.
    keyed_per_s: f64,
}

/// Clients that wait for an answer each.
const CLIENTS: u64 = 64;

/// Nobody performs the runs meanwhile.
const QUEUE: &str = "bench-singles";

pub(crate) fn drive(url: &str, requests: u64) -> Result<SingleFigures, Failure> {
    let client = Client::new(url);
    client.ready()?;
    client.post(&format!("/api/v1/queues/{QUEUE}/pause"), None)?;
    let plain_per_s = submit(url, requests, |_| None)?;
    let keyed_per_s = submit(url, requests, |number| Some(format!("single {number}")))?;
    Ok(SingleFigures { clients: CLIENTS, requests, plain_per_s, keyed_per_s })
}

fn submit(url: &str, requests: u64, key: impl Fn(u64) -> Option<String> + Sync) -> Result<f64, Failure> {
    let body = json!({ "task": "noop", "queue": QUEUE }).to_string();
    let (next, begun) = (AtomicU64::new(0), now());
    std::thread::scope(|scope| {
        let send = || {
            let client = Client::new(url);
            loop {
                let number = next.fetch_add(1, Ordering::SeqCst);
                if number >= requests {
                    return Ok::<(), Failure>(());
                }
                client.post_with_key("/api/v1/runs", &body, key(number).as_deref())?;
            }
        };
        let senders: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(send)).collect();
        senders
            .into_iter()
            .try_for_each(|sender| sender.join().unwrap_or_else(|_| Err(Failure::server("a sender broke", ""))))
    })?;
    Ok(requests as f64 / begun.elapsed().as_secs_f64())
}
