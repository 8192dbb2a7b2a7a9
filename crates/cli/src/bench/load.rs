use super::place::Place;
use crate::exit::Failure;
use everbeat::System;
use everbeat_engine::{Engine, Env, Host, Settings};
use everbeat_model::StoreTime;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use ureq::Body;
use ureq::http::Response;

/// A server inside this process, on a loopback port of its own.
pub(crate) struct Server {
    pub(crate) url: String,
    engine: Engine,
    close: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(place: &Place, slots: usize) -> Result<Server, Failure> {
        let fail =
            |error: &dyn std::fmt::Display| Failure::server(format!("the server cannot be started: {error}"), "");
        let env: Arc<dyn Env> = System::new();
        let store = place.open(&env).await?;
        let settings = Settings { slots, ..Settings::default() };
        let engine =
            Engine::new(env, store, settings, everbeat::tasks(), Host::default()).map_err(|error| fail(&error))?;
        engine.start();
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| fail(&error))?;
        let address = listener.local_addr().map_err(|error| fail(&error))?;
        let config = everbeat_server::Config { body_limit: 64 << 20, ..everbeat_server::Config::default() };
        let (close, closing) = oneshot::channel();
        let closed = async move { _ = closing.await };
        let server = everbeat_server::serve(engine.clone(), config, listener, closed);
        #[allow(clippy::disallowed_methods, reason = "a benchmark owns its server for as long as it measures")]
        let served = tokio::spawn(async move { _ = server.await });
        Ok(Server { url: format!("http://{address}"), engine, close, served })
    }

    pub(crate) async fn stop(self) {
        self.engine.drain().await;
        let _already_gone = self.close.send(());
        let _broken_off = self.served.await;
    }
}

pub(crate) struct Driven {
    pub(crate) enqueue_per_s: f64,
    pub(crate) claim_to_settle_per_s: f64,
    pub(crate) enqueue_to_start_ms: Vec<f64>,
}

/// Connections that send the load at once.
const SENDERS: u64 = 2;
/// How often the interface is asked whether everything is done.
const LOOK: Duration = Duration::from_millis(50);
const QUEUE: &str = "bench";

pub(crate) fn drive(url: &str, runs: u64, batch: u64, latency_runs: u64) -> Result<Driven, Failure> {
    let client = Client::new(url);
    client.ready()?;
    client.post(&format!("/api/v1/queues/{QUEUE}/pause"), None)?;
    let body = json!({ "runs": vec![json!({ "task": "noop", "queue": QUEUE }); usize::try_from(batch).unwrap_or(1)] })
        .to_string();
    let (left, begun) = (AtomicU64::new(runs.div_ceil(batch)), now());
    std::thread::scope(|scope| {
        let send = || {
            let client = Client::new(url);
            while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
                client.post("/api/v1/runs:batch", Some(&body))?;
            }
            Ok::<(), Failure>(())
        };
        let senders: Vec<_> = (0..SENDERS).map(|_| scope.spawn(send)).collect();
        senders
            .into_iter()
            .try_for_each(|sender| sender.join().unwrap_or_else(|_| Err(Failure::server("a sender broke", ""))))
    })?;
    let runs = runs.div_ceil(batch) * batch;
    let enqueue_per_s = runs as f64 / begun.elapsed().as_secs_f64();

    let begun = now();
    client.post(&format!("/api/v1/queues/{QUEUE}/resume"), None)?;
    while client.unfinished()? > 0 {
        pause(LOOK);
    }
    let claim_to_settle_per_s = runs as f64 / begun.elapsed().as_secs_f64();
    let succeeded = client.get("/api/admin/invariants")?["checked"]["succeeded"].as_u64();
    if succeeded != Some(runs) {
        return Err(Failure::server(format!("{succeeded:?} of {runs} runs succeeded"), "look at the server's log"));
    }
    let enqueue_to_start_ms = (0..latency_runs).map(|_| client.latency()).collect::<Result<_, _>>()?;
    Ok(Driven { enqueue_per_s, claim_to_settle_per_s, enqueue_to_start_ms })
}

pub(crate) struct Client {
    url: String,
    agent: ureq::Agent,
}

impl Client {
    pub(crate) fn new(url: &str) -> Client {
        let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(120))).build();
        Client { url: url.to_string(), agent: config.into() }
    }

    pub(crate) fn ready(&self) -> Result<(), Failure> {
        let begun = now();
        while self.agent.get(format!("{}/readyz", self.url)).call().is_err() {
            if begun.elapsed() > Duration::from_secs(30) {
                return Err(Failure::server("the server does not become ready", "look at its log"));
            }
            pause(Duration::from_millis(5));
        }
        Ok(())
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        let mut answer = self.agent.get(format!("{}{path}", self.url)).call().map_err(|error| failed(path, &error))?;
        let text = answer.body_mut().read_to_string().map_err(|error| failed(path, &error))?;
        serde_json::from_str(&text).map_err(|error| Failure::server(format!("{path}: {error}"), ""))
    }

    pub(crate) fn post(&self, path: &str, body: Option<&str>) -> Result<String, Failure> {
        let request = self.agent.post(format!("{}{path}", self.url)).content_type("application/json");
        let answer = match body {
            Some(body) => request.send(body),
            None => request.send("{}"),
        };
        self.read(path, answer)
    }

    pub(crate) fn post_with_key(&self, path: &str, body: &str, key: Option<&str>) -> Result<String, Failure> {
        let mut request = self.agent.post(format!("{}{path}", self.url)).content_type("application/json");
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        self.read(path, request.send(body))
    }

    pub(crate) fn put(&self, path: &str, body: &str) -> Result<String, Failure> {
        let request = self.agent.put(format!("{}{path}", self.url)).content_type("application/json");
        self.read(path, request.send(body))
    }

    fn read(&self, path: &str, answer: Result<Response<Body>, ureq::Error>) -> Result<String, Failure> {
        let mut answer = answer.map_err(|error| failed(path, &error))?;
        answer.body_mut().with_config().limit(64 << 20).read_to_string().map_err(|error| failed(path, &error))
    }

    pub(crate) fn unfinished(&self) -> Result<u64, Failure> {
        let queues = self.get("/api/v1/queues")?;
        let count = |queue: &Value| {
            ["scheduled", "ready", "running"].iter().filter_map(|state| queue[state].as_u64()).sum::<u64>()
        };
        Ok(queues["items"].as_array().map_or(0, |queues| queues.iter().map(count).sum()))
    }

    /// Submits one run to the idle server; how long until it started, by the store's clock.
    fn latency(&self) -> Result<f64, Failure> {
        pause(Duration::from_millis(3));
        let run: Value =
            serde_json::from_str(&self.post("/api/v1/runs", Some("{\"task\":\"noop\"}"))?).unwrap_or_default();
        let id = run["id"].as_str().unwrap_or_default();
        let run = self.get(&format!("/api/v1/runs/{id}?wait=finished&timeout=30s"))?;
        let time = |field: &str| run[field].as_str().and_then(|text| StoreTime::parse(text).ok());
        let missing = || Failure::server(format!("run {id} has no times"), "");
        let (created, started) = time("created_at").zip(time("started_at")).ok_or_else(missing)?;
        Ok(started.since(created).as_secs_f64() * 1000.0)
    }
}

fn failed(path: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::server(format!("{path}: {error}"), "look at the server's log")
}

#[allow(clippy::disallowed_methods, reason = "a stopwatch beside the server, not part of it")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "the load's own thread")]
pub(crate) fn pause(span: Duration) {
    std::thread::sleep(span);
}
