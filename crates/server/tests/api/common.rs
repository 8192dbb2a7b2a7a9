#![allow(clippy::disallowed_methods, reason = "the one place where tests meet real time and real tasks")]

use crate::shims::FakeShims;
use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, StatusCode};
use everbeat_engine::pools::PoolSettings;
use everbeat_engine::{Ctx, Engine, Env, Failure, Handler, Host, Settings, Shims, Task, builtin};
use everbeat_model::{BootInstant, Json, StoreTime};
use everbeat_server::{Config, Scope, Token, router};
use everbeat_store::{Memory, Store};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use tower::ServiceExt;
use uuid::Uuid;

pub(crate) struct RealEnv(Instant);

fn wall() -> StoreTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    StoreTime(i64::try_from(since.as_micros()).expect("before the year 200000"))
}

impl Env for RealEnv {
    fn boot(&self) -> BootInstant {
        BootInstant(self.0.elapsed())
    }

    fn wall(&self) -> StoreTime {
        wall()
    }

    fn random(&self) -> u128 {
        Uuid::new_v4().as_u128()
    }

    fn sleep_until(&self, at: BootInstant) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until((self.0 + at.0).into()))
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) -> Task {
        let handle = tokio::spawn(task);
        Task::new(move || handle.abort())
    }
}

/// A task that runs until the test opens the gate.
struct Gate(watch::Receiver<bool>);

#[async_trait]
impl Handler for Gate {
    async fn perform(&self, ctx: Ctx, input: Json) -> Result<Json, Failure> {
        let mut gate = self.0.clone();
        tokio::select! {
            biased;
            stop = ctx.stopped() => Err(Failure::new(stop.to_string())),
            _ = gate.wait_for(|open| *open) => Ok(input),
        }
    }
}

/// A task that streams `items` and the lines of `log`, then, with `gate`, as much again once the gate is open.
struct Streams(watch::Receiver<bool>);

#[async_trait]
impl Handler for Streams {
    async fn perform(&self, ctx: Ctx, input: Json) -> Result<Json, Failure> {
        let input = input.value();
        let speak = async || {
            for item in input["items"].as_array().into_iter().flatten() {
                ctx.output(item).await?;
            }
            for line in input["log"].as_array().into_iter().flatten() {
                ctx.log(line.as_str().unwrap_or_default()).await?;
            }
            Ok::<(), Failure>(())
        };
        speak().await?;
        if input["gate"] == true {
            self.0.clone().wait_for(|open| *open).await.map(|_open| ()).expect("the gate stands");
            speak().await?;
        }
        Ok(Json::of(&"done"))
    }
}

pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) store: Arc<Memory>,
    pub(crate) router: Router,
    pub(crate) gate: watch::Sender<bool>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

/// A token that is opened by this secret.
pub(crate) fn token(name: &str, secret: &str, scopes: &[Scope]) -> Token {
    let mut sha256 = String::new();
    Sha256::digest(secret).iter().for_each(|byte| write!(sha256, "{byte:02x}").expect("text"));
    Token { name: name.to_string(), sha256, scopes: scopes.to_vec(), allow: Vec::new() }
}

/// A server whose replica works.
pub(crate) async fn start() -> Server {
    started(Config::default()).await
}

pub(crate) async fn started(config: Config) -> Server {
    working(idle(config)).await
}

/// A server whose replica has not joined: nothing is claimed.
pub(crate) fn idle(config: Config) -> Server {
    idle_with(config, wall)
}

/// One whose store has this clock.
pub(crate) fn idle_with(config: Config, clock: impl Fn() -> StoreTime + Send + Sync + 'static) -> Server {
    idle_on(config, clock, Host::default(), |_| {})
}

/// One whose engine has other settings.
pub(crate) fn idle_with_settings(config: Config, change: impl FnOnce(&mut Settings)) -> Server {
    idle_on(config, wall, Host::default(), change)
}

/// One whose host has more, and whose engine has other settings, and whose replica works.
pub(crate) async fn started_on(host: Host, change: impl FnOnce(&mut Settings)) -> Server {
    working(idle_on(Config::default(), wall, host, change)).await
}

pub(crate) async fn started_with_settings(config: Config, change: impl FnOnce(&mut Settings)) -> Server {
    working(idle_with_settings(config, change)).await
}

async fn working(server: Server) -> Server {
    server.engine.start();
    eventually(|| async { server.engine.readiness().ready().then_some(()) }).await;
    server
}

/// A server that performs commands, and whose replica works.
pub(crate) async fn started_with(config: Config, shims: &Arc<FakeShims>) -> Server {
    let host = Host { shims: Some(shims.clone() as Arc<dyn Shims>), ..Host::default() };
    working(idle_on(config, wall, host, |_| {})).await
}

fn idle_on(
    config: Config,
    clock: impl Fn() -> StoreTime + Send + Sync + 'static,
    host: Host,
    change: impl FnOnce(&mut Settings),
) -> Server {
    let env: Arc<dyn Env> = Arc::new(RealEnv(Instant::now()));
    let store = Arc::new(Memory::new(Arc::new(clock)));
    let (gate, opened) = watch::channel(false);
    let mut tasks = builtin();
    tasks.add("stream", Streams(opened.clone()));
    tasks.add("gate", Gate(opened));
    let mut settings = Settings {
        heartbeat_interval: Duration::from_millis(200),
        heartbeat_timeout: Duration::from_secs(10),
        poll_interval: Duration::from_millis(50),
        drain_grace: Duration::from_millis(200),
        remote_workers: PoolSettings { ping_interval: Duration::from_millis(50), ..PoolSettings::default() },
        ..Settings::default()
    };
    change(&mut settings);
    let engine =
        Engine::new(env, store.clone() as Arc<dyn Store>, settings, tasks, host).expect("the settings are valid");
    let router = router(engine.clone(), config);
    Server { engine, store, router, gate }
}

/// Asks until there is an answer; the test's own time limit is the bound.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(mut ask: impl FnMut() -> F) -> T {
    let patient = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), patient).await.expect("it happens within 20 s")
}

pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "localhost:7117");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(body.into()).expect("a valid request");
    let peer: SocketAddr = "127.0.0.1:50000".parse().expect("an address");
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

impl Server {
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
        Answer { status, headers, bytes }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(request("GET", path, &[], Body::empty())).await
    }

    pub(crate) async fn post(&self, path: &str) -> Answer {
        self.send(request("POST", path, &[], Body::empty())).await
    }

    pub(crate) async fn post_json(&self, path: &str, body: impl ToString) -> Answer {
        self.post_with(path, &[], body).await
    }

    pub(crate) async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: impl ToString) -> Answer {
        let headers = [&[("content-type", "application/json")], headers].concat();
        self.send(request("POST", path, &headers, body.to_string())).await
    }

    pub(crate) async fn put_json(&self, path: &str, body: impl ToString) -> Answer {
        self.send(request("PUT", path, &[("content-type", "application/json")], body.to_string())).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(request("DELETE", path, &[], Body::empty())).await
    }

    /// Applies a graph of these nodes.
    pub(crate) async fn apply(&self, name: &str, nodes: Value) {
        let answer = self.post_json("/api/v1/graphs", json!({"name": name, "nodes": nodes})).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
    }

    /// Starts an execution and answers the address of what belongs to it.
    pub(crate) async fn execute(&self, graph: &str, values: Value) -> String {
        let answer = self.post_json("/api/v1/executions", json!({"graph": graph, "values": values})).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.header("location").to_string()
    }

    /// Submits a run and answers its id.
    pub(crate) async fn submit(&self, body: Value) -> String {
        let answer = self.post_json("/api/v1/runs", body).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()["id"].as_str().expect("an id").to_string()
    }

    pub(crate) async fn finished(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/runs/{id}?wait=finished&timeout=20s")).await.ok()
    }

    /// Waits until the run is in a state.
    pub(crate) async fn until(&self, id: &str, state: &str) -> Value {
        eventually(|| async {
            let run = self.get(&format!("/api/v1/runs/{id}")).await.ok();
            (run["state"] == state).then_some(run)
        })
        .await
    }

    pub(crate) fn runs_stored(&self) -> usize {
        self.store.inspect(|state| state.runs.len())
    }
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/json");
        self.json()
    }

    /// Checks that this is a whole problem document of the given type and status.
    pub(crate) fn problem(&self, status: StatusCode, name: &str) -> Value {
        assert_eq!(self.status, status.as_u16(), "{}", self.text());
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["type"], format!("https://everbeat.dev/problems/{name}"), "{problem}");
        assert_eq!(problem["status"], status.as_u16(), "{problem}");
        for key in ["title", "detail", "hint"] {
            assert!(problem[key].as_str().is_some_and(|text| !text.is_empty()), "{key} of {problem}");
        }
        problem
    }
}
