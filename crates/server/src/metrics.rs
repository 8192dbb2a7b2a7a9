use crate::app::App;
use crate::params::Params;
use crate::problem::Result;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use everbeat_engine::Engine;
use everbeat_engine::metrics::{FAMILIES, Kind, describe, family};
use everbeat_engine::pools::WorkerView;
use everbeat_model::Replica;
use everbeat_model::check::CheckState;
use everbeat_model::queue::Queue;
use everbeat_model::replica::ReplicaState;
use everbeat_model::schedule::ScheduleKind;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::OnceLock;
use std::time::Duration;

/// Figures in Prometheus' text format: what was counted since the start, and what is now.
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, body = String, content_type = "text/plain")))]
pub(crate) async fn get_metrics(State(app): State<App>, params: Params) -> Result<Response> {
    params.only(&[])?;
    let mut text = recorder().map(PrometheusHandle::render).unwrap_or_default();
    now(&app, &mut text).await;
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"))], text).into_response())
}

/// Counts requests and how long they took, by route, never by what a client made up.
pub(crate) async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let env = app.engine.env().clone();
    let begun = env.boot();
    let path = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_string();
    let method = match *request.method() {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    };
    let mut response = next.run(request).await;
    let status = response.status().as_u16().to_string();
    metrics::histogram!("everbeat_http_request_duration_seconds", "method" => method, "path" => path.clone())
        .record(env.boot().since(begun).as_secs_f64());
    metrics::counter!("everbeat_http_requests_total", "method" => method, "path" => path, "status" => status)
        .increment(1);
    let headers = response.headers_mut();
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.entry("cache-control").or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Begins to count. What happened in this process before that is not in the figures; [`crate::serve`] begins at the
/// latest.
pub fn measure() {
    recorder();
}

/// Where this process counts; none, if its owner installed a recorder of another kind first.
pub(crate) fn recorder() -> Option<&'static PrometheusHandle> {
    static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    let install = || {
        let buckets = FAMILIES.iter().filter_map(|family| match family.kind {
            Kind::Histogram(buckets) => Some((Matcher::Full(family.name.to_string()), buckets)),
            Kind::Counter | Kind::Gauge => None,
        });
        let mut builder = PrometheusBuilder::new();
        for (name, buckets) in buckets {
            builder = builder.set_buckets_for_metric(name, buckets).ok()?;
        }
        let handle = builder.install_recorder().ok()?;
        describe();
        Some(handle)
    };
    RECORDER.get_or_init(install).as_ref()
}

/// Queues with figures of their own; the rest are shown as one, so that names do not flood a scraper.
const MOST_QUEUES: usize = 200;
/// Shown even while nothing ever was in it.
const DEFAULT_QUEUE: &str = "default";

/// What is read at the moment of the scrape. A store that is out is a figure too, not an error.
async fn now(app: &App, text: &mut String) {
    let engine = &app.engine;
    show(text, "everbeat_slots", [(String::new(), engine.settings().slots)]);
    show(text, "everbeat_slots_taken", [(String::new(), engine.slots_taken())]);
    show(text, "everbeat_uptime_seconds", [(String::new(), engine.env().boot().since(app.started).as_secs_f64())]);
    show(text, "everbeat_worker_restarts_total", restarts(engine));
    show(text, "everbeat_workers", workers(engine));
    show(text, "everbeat_sessions", sessions(engine));
    let checks = engine.store().count_checks().await.ok();
    let count = |state: CheckState, checks: &BTreeMap<CheckState, u64>| {
        (format!("state=\"{state}\""), checks.get(&state).copied().unwrap_or(0))
    };
    let checks = checks.map(|checks| CheckState::ALL.iter().map(move |state| count(*state, &checks)));
    show(text, "everbeat_checks", checks.into_iter().flatten());
    let late = engine.store().late_schedules().await.ok();
    let late = late.map(|late| {
        let count = move |kind: &ScheduleKind| (format!("kind=\"{kind}\""), late.get(kind).copied().unwrap_or(0));
        ScheduleKind::ALL.iter().map(count)
    });
    show(text, "everbeat_schedules_late", late.into_iter().flatten());
    let (queues, replicas) = (engine.store().queues().await, engine.store().replicas().await);
    let up = usize::from(queues.is_ok() && replicas.is_ok());
    show(text, "everbeat_store_up", [(String::new(), up)]);
    let paused = queues.as_ref().map(|queues| (String::new(), queues.iter().filter(|queue| queue.paused).count()));
    show(text, "everbeat_queues_paused", paused);
    let ages = ready_ages(app).await.unwrap_or_default();
    let aged = queues.as_ref().ok().map(|queues| by_age(queues, &ages));
    show(text, "everbeat_ready_age_seconds", aged.into_iter().flatten());
    show(text, "everbeat_runs", queues.map(by_state).unwrap_or_default());
    let count = |replicas: &[Replica], state: ReplicaState| {
        (format!("state=\"{}\"", state.as_str()), replicas.iter().filter(|replica| replica.state == state).count())
    };
    let by_state = replicas.map(|replicas| ReplicaState::ALL.map(|state| count(&replicas, state)));
    show(text, "everbeat_replicas", by_state.into_iter().flatten());
}

/// The ages of what waits are looked up this often at most, however many ask.
const AGES_KEPT: Duration = Duration::from_secs(5);

/// By queue, as they were when they were last looked up, or a moment ago.
async fn ready_ages(app: &App) -> Option<BTreeMap<String, Duration>> {
    // Whoever comes while somebody looks takes that answer.
    let mut kept = app.ready_ages.lock().await;
    let now = app.engine.env().boot();
    match &*kept {
        Some((at, ages)) if now.since(*at) < AGES_KEPT => Some(ages.clone()),
        _ => {
            let ages = app.engine.store().ready_ages().await.ok()?;
            *kept = Some((now, ages.clone()));
            Some(ages)
        }
    }
}

/// By pool; those of workers of no pool have an empty name.
fn sessions(engine: &Engine) -> Vec<(String, usize)> {
    let elsewhere = engine.workers().into_iter().filter(|worker| worker.pool.is_none());
    let elsewhere = elsewhere.map(|worker| worker.sessions).sum();
    let pools = engine.pools().into_iter().map(|pool| (pool.name, pool.sessions));
    pools
        .chain([(String::new(), elsewhere)])
        .map(|(name, count)| (format!("pool=\"{}\"", escaped(&name)), count))
        .collect()
}

/// By pool and state; those of no pool have an empty name.
fn workers(engine: &Engine) -> Vec<(String, usize)> {
    let mut pools: BTreeMap<String, BTreeMap<Cow<'static, str>, usize>> = BTreeMap::new();
    let names = engine.pools().into_iter().map(|pool| pool.name).chain([String::new()]);
    for name in names {
        pools.insert(name, WorkerView::STATES.map(|state| (state.into(), 0)).into());
    }
    for worker in engine.workers() {
        *pools.entry(worker.pool.unwrap_or_default()).or_default().entry(worker.state).or_default() += 1;
    }
    let lines = |(pool, states): (String, BTreeMap<Cow<'static, str>, usize>)| {
        let name = escaped(&pool);
        states.into_iter().map(move |(state, count)| (format!("pool=\"{name}\",state=\"{state}\""), count))
    };
    pools.into_iter().flat_map(lines).collect()
}

/// By pool, as in [`workers`]. Nobody here replaces workers of no pool.
fn restarts(engine: &Engine) -> Vec<(String, u64)> {
    let pools = engine.pools().into_iter().map(|pool| (pool.name, pool.restarts)).chain([(String::new(), 0)]);
    pools.map(|(pool, restarts)| (format!("pool=\"{}\"", escaped(&pool)), restarts)).collect()
}

fn by_age(queues: &[Queue], ages: &BTreeMap<String, Duration>) -> Vec<(String, f64)> {
    let names = queues.iter().map(|queue| queue.name.as_str()).filter(|name| *name != DEFAULT_QUEUE);
    let named = [DEFAULT_QUEUE].into_iter().chain(names).take(MOST_QUEUES);
    named
        .map(|name| (format!("queue=\"{}\"", escaped(name)), ages.get(name).map_or(0.0, Duration::as_secs_f64)))
        .collect()
}

fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn by_state(mut queues: Vec<Queue>) -> Vec<(String, u64)> {
    if !queues.iter().any(|queue| queue.name == DEFAULT_QUEUE) {
        let name = DEFAULT_QUEUE.to_string();
        queues.insert(0, Queue { name, paused: false, scheduled: 0, ready: 0, running: 0 });
    }
    let rest = queues.split_off(queues.len().min(MOST_QUEUES));
    if !rest.is_empty() {
        let sum = |count: fn(&Queue) -> u64| rest.iter().map(count).sum();
        queues.push(Queue {
            name: "(others)".to_string(),
            paused: false,
            scheduled: sum(|queue| queue.scheduled),
            ready: sum(|queue| queue.ready),
            running: sum(|queue| queue.running),
        });
    }
    let lines = |queue: Queue| {
        let name = escaped(&queue.name);
        [("scheduled", queue.scheduled), ("ready", queue.ready), ("running", queue.running)]
            .map(|(state, count)| (format!("queue=\"{name}\",state=\"{state}\""), count))
    };
    queues.into_iter().flat_map(lines).collect()
}

/// Writes a family that is read when it is asked for. Without any figure, it is at least named.
fn show<N: std::fmt::Display>(text: &mut String, name: &str, values: impl IntoIterator<Item = (String, N)>) {
    let Some(family) = family(name) else { return };
    _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {}", family.help, family.kind.as_str());
    for (labels, value) in values {
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        _ = writeln!(text, "{name}{labels} {value}");
    }
}

/// Condenses what was measured since the last time.
pub(crate) fn upkeep() {
    if let Some(recorder) = recorder() {
        recorder.run_upkeep();
    }
}
