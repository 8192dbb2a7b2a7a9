use crate::common::{idle, start};
use axum::http::StatusCode;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{Json, ReplicaId, RunId, StoreTime, Verdict, VerdictId};
use everbeat_server::Config;
use everbeat_store::Verdicts;
use serde_json::json;
use uuid::Uuid;

#[tokio::test]
async fn a_paused_queue_is_not_claimed_from_until_it_is_resumed() {
    let server = start().await;
    let paused = server.post("/api/v1/queues/slow/pause").await.ok();
    assert_eq!(paused, json!({"name": "slow", "paused": true, "scheduled": 0, "ready": 0, "running": 0}));
    let held = server.submit(json!({"task": "noop", "queue": "slow"})).await;
    let other = server.submit(json!({"task": "noop", "queue": "fast"})).await;
    server.finished(&other).await;
    assert_eq!(server.get(&format!("/api/v1/runs/{held}")).await.ok()["state"], "ready");
    let queues = server.get("/api/v1/queues").await.ok();
    assert_eq!(queues["items"][0]["name"], "slow");
    assert_eq!(queues["items"][0]["ready"], 1);
    let why = server.get(&format!("/api/v1/runs/{held}/explain")).await.ok();
    assert!(why["summary"].as_str().expect("text").contains("paused"), "{why}");
    assert_eq!(server.post("/api/v1/queues/slow/resume").await.ok()["paused"], false);
    assert_eq!(server.finished(&held).await["state"], "succeeded");
}

#[tokio::test]
async fn replicas_are_shown_and_drained() {
    let server = start().await;
    let list = server.get("/api/v1/replicas?state=active").await.ok();
    let replica = &list["items"][0];
    assert_eq!(replica["id"], server.engine.replica_id().expect("joined").to_string());
    for (key, value) in [
        ("state", json!("active")),
        ("liveness", json!("alive")),
        ("running", json!(0)),
        ("heartbeat_interval", json!("200ms")),
        ("heartbeat_timeout", json!("10s")),
        ("host", json!("localhost")),
    ] {
        assert_eq!(replica[key], value, "{key}");
    }
    for key in ["version", "started_at", "last_heartbeat_at", "clock_skew_ms"] {
        assert!(!replica[key].is_null(), "{key}");
    }
    let path = format!("/api/v1/replicas/{}", replica["id"].as_str().expect("an id"));
    assert_eq!(server.get(&path).await.ok()["state"], "active");
    let ready = server.get("/readyz").await.ok();
    assert_eq!((&ready["status"], &ready["replica_id"]), (&json!("ready"), &replica["id"]));
    for check in ready["checks"].as_array().expect("checks") {
        assert_eq!((&check["status"], &check["hint"]), (&json!("ok"), &json!(null)), "{check}");
    }
    let drained = server.post(&format!("{path}/drain")).await.ok();
    assert_ne!(drained["state"], "active");
    let unready = server.get("/readyz").await.problem(StatusCode::SERVICE_UNAVAILABLE, "not-ready");
    assert_eq!(
        (&unready["checks"][0]["name"], &unready["checks"][0]["status"]),
        (&json!("replica"), &json!("failing"))
    );
    assert!(unready["detail"].as_str().expect("text").starts_with("replica: "), "told at once: {unready}");
    server.engine.stopped().await;
    assert_eq!(server.get(&path).await.ok()["state"], "left");
    assert_eq!(server.get(&path).await.ok()["liveness"], json!(null));
    server.post(&format!("{path}/drain")).await.problem(StatusCode::CONFLICT, "conflict");
    let answer = server.get("/readyz").await;
    answer.problem(StatusCode::SERVICE_UNAVAILABLE, "not-ready");
    assert_eq!(answer.header("retry-after"), "1");
    let absent = Uuid::from_u128(7);
    server.get(&format!("/api/v1/replicas/{absent}")).await.problem(StatusCode::NOT_FOUND, "not-found");
    server.post(&format!("/api/v1/replicas/{absent}/drain")).await.problem(StatusCode::NOT_FOUND, "not-found");
}

#[tokio::test]
async fn verdicts_are_listed_newest_first_and_by_run_and_subject() {
    let server = idle(Config::default());
    let verdict = |n: u128, run: u128| Verdict {
        id: VerdictId(Uuid::from_u128(n)),
        at: StoreTime(0),
        subject: Subject { kind: SubjectKind::Run, id: Uuid::from_u128(run).to_string() },
        judgement: Judgement::Stalled,
        reason: "stall_timeout".to_string(),
        evidence: Json::of(&json!({"n": n})),
        judged_by: ReplicaId(Uuid::from_u128(9)),
        run_id: Some(RunId(Uuid::from_u128(run))),
        attempt: Some(1),
        then: "attempt 2 follows in 1s".to_string(),
    };
    server.store.record(vec![verdict(1, 5), verdict(2, 5), verdict(3, 6)]).await.expect("recorded");
    let numbers = async |query: &str| {
        let page = server.get(&format!("/api/v1/verdicts?{query}")).await.ok();
        let items = page["items"].as_array().expect("items").clone();
        items.iter().map(|verdict| verdict["evidence"]["n"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(numbers("").await, [3, 2, 1]);
    assert_eq!(numbers(&format!("run_id={}", Uuid::from_u128(5))).await, [2, 1]);
    assert_eq!(numbers(&format!("subject={}", Uuid::from_u128(6))).await, [3]);
    let first = server.get("/api/v1/verdicts?limit=2").await.ok();
    let cursor = first["next_cursor"].as_str().expect("more").to_string();
    assert_eq!(numbers(&format!("limit=2&cursor={cursor}")).await, [1]);
    let one = server.get(&format!("/api/v1/verdicts/{}", Uuid::from_u128(3))).await.ok();
    assert_eq!(one["subject"], json!({"kind": "run", "id": Uuid::from_u128(6)}));
    assert_eq!((&one["judgement"], &one["attempt"]), (&json!("stalled"), &json!(1)));
    for key in ["at", "reason", "judged_by", "run_id", "then"] {
        assert!(one[key].is_string(), "{key}");
    }
    server.get(&format!("/api/v1/verdicts/{}", Uuid::from_u128(4))).await.problem(StatusCode::NOT_FOUND, "not-found");
}

#[tokio::test]
async fn every_accepted_run_is_counted_once() {
    let server = start().await;
    for _ in 0..3 {
        let id = server.submit(json!({"task": "noop"})).await;
        server.finished(&id).await;
    }
    server.submit(json!({"task": "noop", "run_at": "2990-01-01T00:00:00Z"})).await;
    let invariants = server.get("/api/admin/invariants").await.ok();
    assert_eq!(invariants["violations"], json!([]));
    assert_eq!(invariants["checked"]["runs"], 4);
    assert_eq!(invariants["checked"]["succeeded"], 3);
    assert_eq!(invariants["checked"]["scheduled"], 1);
}

#[tokio::test]
async fn liveness_needs_no_replica_and_readiness_does() {
    let server = idle(Config::default());
    assert_eq!(server.get("/livez").await.ok()["status"], "alive");
    let problem = server.get("/readyz").await.problem(StatusCode::SERVICE_UNAVAILABLE, "not-ready");
    assert_eq!(problem["detail"], "replica: not joined yet");
    assert_eq!(problem["checks"][0]["name"], "replica");
}

#[tokio::test]
async fn the_server_names_itself_and_its_tasks() {
    let server = start().await;
    assert_eq!(server.get("/").await.ok()["server"], "everbeat");
    let tasks = server.get("/api/v1/tasks").await.ok();
    assert!(tasks["items"].as_array().expect("items").contains(&json!("echo")), "{tasks}");
}

#[tokio::test]
async fn metrics_count_runs_by_queue_and_carry_no_ids() {
    let server = start().await;
    server.post("/api/v1/queues/qu%22ote/pause").await.ok();
    let held = server.submit(json!({"task": "noop", "queue": "qu\"ote"})).await;
    let done = server.submit(json!({"task": "noop"})).await;
    server.finished(&done).await;
    let answer = server.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").starts_with("text/plain; version=0.0.4"));
    let text = answer.text();
    for line in [
        "everbeat_runs{queue=\"qu\\\"ote\",state=\"ready\"} 1",
        "everbeat_replicas{state=\"active\"} 1",
        "everbeat_slots 64",
        "everbeat_slots_taken 0",
        "everbeat_store_up 1",
        "# TYPE everbeat_runs_enqueued_total counter",
        "everbeat_http_request_duration_seconds_bucket{",
        "path=\"/api/v1/runs/{id}\"",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!text.contains(&done) && !text.contains(&held), "{text}");
    let foreign =
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty() && !line.starts_with("everbeat_"));
    assert_eq!(foreign.count(), 0, "{text}");
}
