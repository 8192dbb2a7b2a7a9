use crate::common::{Server, eventually, request, started, started_on, started_with_settings};
use crate::proto::{self, from_server, from_worker};
use crate::worker::{Worker, listen};
use async_trait::async_trait;
use axum::body::Body;
use axum::http::StatusCode;
use everbeat_engine::Host;
use everbeat_engine::pools::{Guardian, Guardians, PoolSettings, Swept, WantedContainment};
use everbeat_server::Config;
use serde_json::{Value, json};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A host on which no guardian can be started.
struct NoGuardians;

#[async_trait]
impl Guardians for NoGuardians {
    async fn sweep(&self) -> io::Result<Swept> {
        Ok(Swept::default())
    }

    async fn guard(&self, _pool: &str, _wanted: WantedContainment) -> io::Result<Arc<dyn Guardian>> {
        Err(io::Error::other("there is no cgroup; the token is hunter2"))
    }

    fn socket(&self) -> PathBuf {
        PathBuf::new()
    }
}

fn pool(name: &str) -> PoolSettings {
    PoolSettings { name: name.to_string(), command: vec!["true".to_string()], size: 3, ..PoolSettings::default() }
}

async fn with_pools() -> Server {
    started_with_settings(Config::default(), |settings| settings.pools = vec![pool("ml"), pool("etl")]).await
}

#[tokio::test]
async fn pools_are_shown_scaled_paused_and_restarted() {
    let server = with_pools().await;
    let list = server.get("/api/v1/pools").await.ok();
    let names: Vec<&Value> = list["items"].as_array().expect("items").iter().map(|pool| &pool["name"]).collect();
    assert_eq!(names, ["etl", "ml"]);
    let first = server.get("/api/v1/pools?limit=1").await.ok();
    assert_eq!((&first["items"][0]["name"], &first["next_cursor"]), (&json!("etl"), &json!("etl")));
    let found = server.get("/api/v1/pools/ml").await.ok();
    for key in ["name", "state", "size", "ready", "busy", "containment", "restarts", "degraded_reason"] {
        assert!(found.get(key).is_some(), "{key} of {found}");
    }
    assert_eq!((&found["state"], &found["size"], &found["ready"]), (&json!("starting"), &json!(3), &json!(0)));
    assert_eq!(server.get("/api/v1/pools/ml/workers").await.ok()["items"], json!([]));
    let scaled = server.post_json("/api/v1/pools/ml/scale", json!({"size": 7})).await.ok();
    assert_eq!(scaled["size"], 7);
    assert_eq!(server.post("/api/v1/pools/ml/drain").await.ok()["state"], "paused");
    assert_eq!(server.post("/api/v1/pools/ml/resume").await.ok()["state"], "starting");
    server.post("/api/v1/pools/ml/restart").await.ok();
    let events = server.engine.store().events(0, 1000).await.expect("events").events;
    let told: Vec<(&str, &str)> = events
        .iter()
        .filter(|event| event.kind.starts_with("pool."))
        .map(|event| (event.kind.as_str(), event.subject.as_str()))
        .collect();
    let expected = ["pool.scaled", "pool.paused", "pool.resumed", "pool.restarting"].map(|kind| (kind, "ml"));
    assert_eq!(told, expected);
}

#[tokio::test]
async fn what_is_asked_of_no_pool_or_out_of_bounds_is_refused() {
    let server = with_pools().await;
    for path in ["/api/v1/pools/other", "/api/v1/pools/other/workers"] {
        server.get(path).await.problem(StatusCode::NOT_FOUND, "not-found");
    }
    for verb in ["drain", "resume", "restart"] {
        server.post(&format!("/api/v1/pools/other/{verb}")).await.problem(StatusCode::NOT_FOUND, "not-found");
    }
    let scale = async |name: &str, body: Value| server.post_json(&format!("/api/v1/pools/{name}/scale"), body).await;
    scale("other", json!({"size": 1})).await.problem(StatusCode::NOT_FOUND, "not-found");
    for (body, name) in [
        (json!({}), "invalid-value"),
        (json!({"size": -1}), "invalid-value"),
        (json!({"size": 10_001}), "invalid-value"),
        (json!({"size": "4"}), "invalid-value"),
        (json!({"size": 4, "sise": 4}), "unknown-field"),
    ] {
        scale("ml", body).await.problem(StatusCode::UNPROCESSABLE_ENTITY, name);
    }
    let absent = "00000000-0000-0000-0000-000000000007";
    server.get(&format!("/api/v1/workers/{absent}")).await.problem(StatusCode::NOT_FOUND, "not-found");
    for verb in ["ping", "restart", "drain", "dump"] {
        let path = format!("/api/v1/workers/{absent}/{verb}");
        server.post(&path).await.problem(StatusCode::NOT_FOUND, "not-found");
        server.post(&format!("/api/v1/workers/seven/{verb}")).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    }
    server.get("/api/v1/workers?state=odd").await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
}

#[tokio::test]
async fn a_worker_is_shown_with_what_it_performs() {
    let server = started(Config::default()).await;
    let listening = listen(&server, Config::default()).await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let id = worker.welcome.worker_id.clone();
    let run = server.submit(json!({"task": "train"})).await;
    let work = worker.work().await;
    let found = server.get(&format!("/api/v1/workers/{id}")).await.ok();
    for key in ["id", "pool", "state", "pid", "started_at", "last_pong_at", "running", "restarts", "last_exit"] {
        assert!(found.get(key).is_some(), "{key} of {found}");
    }
    assert_eq!((&found["state"], &found["running"], &found["performs"]), (&json!("busy"), &json!(1), &json!([run])));
    assert_eq!(server.get(&format!("/api/v1/runs/{run}")).await.ok()["worker_id"], id);
    for (query, count) in [("", 1), ("?state=busy", 1), ("?state=ready", 0), ("?pool=ml", 0)] {
        let list = server.get(&format!("/api/v1/workers{query}")).await.ok();
        assert_eq!(list["items"].as_array().map(Vec::len), Some(count), "{query}");
    }
    for part in [&id[..id.len() - 4], &id[id.len() - 8..], &id] {
        let matches = server.get(&format!("/api/v1/ids?match={part}&kind=worker")).await.ok();
        assert_eq!((&matches["items"][0]["id"], &matches["items"][0]["kind"]), (&json!(id), &json!("worker")));
    }
    let metrics = server.get("/metrics").await.text();
    assert!(metrics.contains("everbeat_workers{pool=\"\",state=\"busy\"} 1"), "{metrics}");
    worker.succeed(&work.lease, "1").await;
    eventually(|| async {
        let found = server.get(&format!("/api/v1/workers/{id}")).await.ok();
        (found["state"] == "ready" && found["finished"] == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_worker_is_pinged_dumped_and_drained() {
    let server = started(Config::default()).await;
    let listening = listen(&server, Config::default()).await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let path = format!("/api/v1/workers/{}", worker.welcome.worker_id);
    let asked = async {
        let ponged = server.post(&format!("{path}/ping")).await.ok();
        assert!(ponged["round_trip_ms"].as_f64().is_some_and(|took| took >= 0.0), "{ponged}");
        let dumped = server.post(&format!("{path}/dump")).await.ok();
        assert_eq!(dumped["stacks"], "main.py:3");
        server.post(&format!("{path}/restart")).await.problem(StatusCode::CONFLICT, "conflict");
        assert_eq!(server.post(&format!("{path}/drain")).await.ok()["state"], "draining");
    };
    let answering = async {
        loop {
            match worker.stream.hear().await {
                Ok(from_server::Message::Dump(dump)) => {
                    let stacks = proto::Stacks { sequence: dump.sequence, text: "main.py:3".to_string() };
                    worker.stream.say(from_worker::Message::Stacks(stacks)).await;
                }
                Ok(from_server::Message::Drain(_)) => return,
                other => panic!("{other:?} was not asked for"),
            }
        }
    };
    tokio::join!(asked, answering);
    let events = server.engine.store().events(0, 1000).await.expect("events").events;
    assert!(events.iter().any(|event| event.kind == "worker.draining"), "{events:?}");
}

#[tokio::test]
async fn a_degraded_pool_is_told_to_probes_without_its_secrets_and_keeps_nobody_away() {
    let host = Host { guardians: Some(Arc::new(NoGuardians)), ..Host::default() };
    let server = started_on(host, |settings| settings.pools = vec![pool("ml"), pool("etl")]).await;
    let check = eventually(|| async {
        let ready = server.send(request("GET", "/readyz", &[], Body::empty())).await.ok();
        let checks = ready["checks"].as_array().expect("checks");
        let check = checks.iter().find(|check| check["name"] == "pools").expect("a check of pools").clone();
        check["detail"].as_str().is_some_and(|detail| detail.contains("ml") && detail.contains("etl")).then_some(check)
    })
    .await;
    assert_eq!(check["status"], "degraded", "{check}");
    assert!(!check.to_string().contains("hunter2"), "{check}");
    let found = server.get("/api/v1/pools/ml").await.ok();
    assert_eq!(found["state"], "degraded");
    assert!(found["degraded_reason"].as_str().is_some_and(|why| why.contains("no cgroup")), "{found}");
}
