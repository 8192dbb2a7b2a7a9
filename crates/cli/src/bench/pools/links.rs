//! What it costs a server to hold many links and to ping the workers behind them.

use super::super::load::{now, pause};
use super::super::process::{Server, cpu, said};
use super::super::{Percentiles, interrupt, percentiles};
use super::fail;
use super::link::Link;
use crate::exit::Failure;
use serde::Serialize;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinSet;

#[derive(Debug, Serialize)]
pub(crate) struct LinkFigures {
    links: usize,
    ping_interval_ms: u32,
    seconds: u64,
    /// CPU time of the server in each second, without a worker.
    cpu_ms_per_s_without: f64,
    /// The same with all links, which are pinged and have nothing to do.
    cpu_ms_per_s_with: f64,
    /// CPU time for one ping and its pong: the difference, by the number of pings.
    cpu_us_per_ping: f64,
    /// Memory that each link adds to the server.
    resident_kib_per_link: f64,
    /// From the first dial until the last link was welcomed.
    opened_per_s: f64,
    /// As the server measures it, of the last ping of each link, at several looks.
    round_trip_ms: Percentiles,
}

/// Links that are dialled at once.
const AT_ONCE: usize = 64;
const LOOKS: u32 = 3;
/// Of one page of workers.
const PAGE: usize = 1000;

pub(super) fn drive(folder: &Path, links: usize, span: Duration) -> Result<LinkFigures, Failure> {
    let settings = [("EVERBEAT_SERVER__WORKER_LISTEN", "127.0.0.1:0".to_string())];
    let server = Server::start(folder, &settings, None)?;
    let measured = measure(folder, &server, links, span);
    server.stop();
    measured
}

fn measure(folder: &Path, server: &Server, links: usize, span: Duration) -> Result<LinkFigures, Failure> {
    let address: SocketAddr = said(folder, "may dial ")?.parse().map_err(|error| fail(&error))?;
    let without = spent(server, span)?;
    let before = resident_kib(server.pid())?;
    // Workers that answer have threads of their own, as other processes would.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| fail(&error))?;
    let begun = now();
    let (answering, ping_interval) = runtime.block_on(open(address, links))?;
    let opened_per_s = links as f64 / begun.elapsed().as_secs_f64();
    // All have been pinged by then.
    rest(ping_interval * 2)?;
    let with = spent(server, span)?;
    let resident_kib_per_link = (resident_kib(server.pid())? - before) / links as f64;
    let mut round_trips = Vec::new();
    for _ in 0..LOOKS {
        rest(ping_interval)?;
        round_trips.extend(round_trips_now(server, links)?);
    }
    drop(answering);
    runtime.shutdown_timeout(Duration::from_secs(1));
    let pings_per_s = links as f64 / ping_interval.as_secs_f64();
    Ok(LinkFigures {
        links,
        ping_interval_ms: u32::try_from(ping_interval.as_millis()).unwrap_or(u32::MAX),
        seconds: span.as_secs(),
        cpu_ms_per_s_without: without,
        cpu_ms_per_s_with: with,
        cpu_us_per_ping: (with - without) * 1000.0 / pings_per_s,
        resident_kib_per_link,
        opened_per_s,
        round_trip_ms: percentiles(round_trips),
    })
}

/// Opens all links, and has them answered until the set is dropped.
async fn open(address: SocketAddr, links: usize) -> Result<(JoinSet<()>, Duration), Failure> {
    let (mut answering, mut opening) = (JoinSet::new(), JoinSet::new());
    let (mut begun, mut ping_interval) = (0, Duration::ZERO);
    while answering.len() < links {
        interrupt::check()?;
        while begun < links && opening.len() < AT_ONCE {
            opening.spawn(Link::open(address));
            begun += 1;
        }
        let Some(opened) = opening.join_next().await else { break };
        let link = opened.map_err(|error| fail(&error))?.map_err(|error| fail(&error))?;
        ping_interval = link.ping_interval;
        answering.spawn(link.answer());
    }
    Ok((answering, ping_interval))
}

/// CPU milliseconds of the server in each second of a span.
fn spent(server: &Server, span: Duration) -> Result<f64, Failure> {
    let (before, begun) = (cpu(server.pid())?, now());
    rest(span)?;
    Ok((cpu(server.pid())? - before).as_secs_f64() * 1000.0 / begun.elapsed().as_secs_f64())
}

/// Lets time pass, unless the measurement is interrupted.
fn rest(span: Duration) -> Result<(), Failure> {
    let begun = now();
    while begun.elapsed() < span {
        interrupt::check()?;
        pause((span - begun.elapsed().min(span)).min(Duration::from_millis(100)));
    }
    Ok(())
}

fn round_trips_now(server: &Server, links: usize) -> Result<Vec<f64>, Failure> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    for _ in 0..=links / PAGE {
        let page = server.client.get(&format!("/api/v1/workers?limit={PAGE}{cursor}"))?;
        let workers = page["items"].as_array().into_iter().flatten();
        found.extend(workers.filter_map(|worker| worker["round_trip_ms"].as_f64()));
        match &page["next_cursor"] {
            Value::String(next) => cursor = format!("&cursor={next}"),
            _ => break,
        }
    }
    match found.len() == links {
        true => Ok(found),
        false => Err(fail(&format!("{} of {links} links have answered a ping", found.len()))),
    }
}

fn resident_kib(pid: u32) -> Result<f64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| fail(&error))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.ok_or_else(|| fail(&format!("the memory of process {pid} cannot be read")))
}
