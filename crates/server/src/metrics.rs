use crate::app::App;
use crate::params::Params;
use crate::problem::Result;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use everbeat_model::queue::Queue;
use everbeat_model::replica::ReplicaState;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::fmt::Write;
use std::sync::OnceLock;

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
    metrics::histogram!("everbeat_http_request_seconds", "method" => method, "path" => path.clone())
        .record(env.boot().since(begun).as_secs_f64());
    metrics::counter!("everbeat_http_requests_total", "method" => method, "path" => path, "status" => status)
        .increment(1);
    let headers = response.headers_mut();
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.entry("cache-control").or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Where this process counts; none, if its owner installed a recorder of another kind first.
pub(crate) fn recorder() -> Option<&'static PrometheusHandle> {
    static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    let install = || {
        let handle = PrometheusBuilder::new().set_buckets(&BUCKETS).ok()?.install_recorder().ok()?;
        metrics::describe_gauge!("everbeat_jobs_running", "Jobs that this replica watches over");
        metrics::describe_gauge!("everbeat_jobs_stale", "Of these: those whose sentinels are stale");
        metrics::describe_gauge!("everbeat_jobs_dead", "Of these: those whose sentinels are older still");
        metrics::describe_counter!("everbeat_jobs_hung_total", "Shims that held their lock and did not answer");
        Some(handle)
    };
    RECORDER.get_or_init(install).as_ref()
}

/// In seconds.
const BUCKETS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Queues with figures of their own; the rest are shown as one, so that names do not flood a scraper.
const MOST_QUEUES: usize = 200;

/// What is read at the moment of the scrape. A store that is out is a figure too, not an error.
async fn now(app: &App, text: &mut String) {
    let engine = &app.engine;
    gauge(
        text,
        "everbeat_slots",
        "Runs that this replica performs at most",
        [(String::new(), engine.settings().slots)],
    );
    gauge(text, "everbeat_slots_taken", "Runs that hold a slot here", [(String::new(), engine.slots_taken())]);
    let (queues, replicas) = (engine.store().queues().await, engine.store().replicas().await);
    let up = usize::from(queues.is_ok() && replicas.is_ok());
    gauge(text, "everbeat_store_up", "Whether the store answered this scrape", [(String::new(), up)]);
    if let Ok(queues) = queues {
        let paused = queues.iter().filter(|queue| queue.paused).count();
        gauge(text, "everbeat_queues_paused", "Queues from which nothing is claimed", [(String::new(), paused)]);
        gauge(text, "everbeat_runs", "Unfinished runs", by_state(queues));
    }
    if let Ok(replicas) = replicas {
        let count = |state: ReplicaState| replicas.iter().filter(|replica| replica.state == state).count();
        let by_state = ReplicaState::ALL.map(|state| (format!("state=\"{}\"", state.as_str()), count(state)));
        gauge(text, "everbeat_replicas", "Replicas, those that are gone until they are forgotten", by_state);
    }
}

fn by_state(mut queues: Vec<Queue>) -> Vec<(String, u64)> {
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
        let name = queue.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        [("scheduled", queue.scheduled), ("ready", queue.ready), ("running", queue.running)]
            .map(|(state, count)| (format!("queue=\"{name}\",state=\"{state}\""), count))
    };
    queues.into_iter().flat_map(lines).collect()
}

fn gauge<N: std::fmt::Display>(
    text: &mut String,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (String, N)>,
) {
    _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
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
