use crate::common::{idle, started, started_with_settings};
use crate::worker::{Worker, listen};
use axum::http::StatusCode;
use everbeat_engine::pools::PoolSettings;
use everbeat_server::Config;
use serde_json::{Value, json};

#[tokio::test]
async fn a_session_reads_back_as_it_was_given() {
    let server = idle(Config::default());
    let given = json!({"key": "user 42", "affinity": "strict", "ttl": "90s"});
    let run = server.post_json("/api/v1/runs", json!({"task": "noop", "session": given})).await.json();
    assert_eq!(run["session"], json!({"key": "user 42", "affinity": "strict", "ttl": "90s"}));
    let run = server.post_json("/api/v1/runs", json!({"task": "noop", "session": {"key": "é"}})).await.json();
    assert_eq!(run["session"], json!({"key": "é", "affinity": "hint", "ttl": null}));
    let run = server.post_json("/api/v1/runs", json!({"task": "noop"})).await.json();
    assert_eq!(run["session"], Value::Null);
}

#[tokio::test]
async fn a_bad_session_is_refused_by_the_name_of_its_field() {
    let server = idle(Config::default());
    for (session, field) in [
        (json!("user"), "session"),
        (json!({}), "session.key"),
        (json!({"key": ""}), "session.key"),
        (json!({"key": "x".repeat(201)}), "session.key"),
        (json!({"key": "a\u{7}"}), "session.key"),
        (json!({"key": "a", "affinity": "sticky"}), "session.affinity"),
        (json!({"key": "a", "ttl": "999ms"}), "session.ttl"),
        (json!({"key": "a", "ttl": "7d1s"}), "session.ttl"),
        (json!({"key": "a", "time": 1}), "session.time"),
    ] {
        let body = json!({"task": "noop", "session": session});
        let answer = server.post_json("/api/v1/runs", body.clone()).await;
        let problem = answer.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value");
        assert_eq!(problem["field"], field, "{problem}");
        assert!(!problem["hint"].as_str().unwrap_or_default().is_empty(), "{problem}");
        let answer = server.post_json("/api/v1/runs:batch", json!({"runs": [{"task": "noop"}, body]})).await;
        let problem = answer.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value");
        assert_eq!(problem["field"], format!("runs[1].{field}"));
    }
    assert_eq!(server.runs_stored(), 0);
}

#[tokio::test]
async fn a_worker_is_told_of_its_session() {
    let server = started(Config::default()).await;
    let listening = listen(&server, Config::default()).await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let id = worker.welcome.worker_id.clone();
    let mut ids = Vec::new();
    for (is_new, key) in [(true, "a"), (false, "a"), (true, "b")] {
        let session = json!({"key": key, "affinity": "strict"});
        let run = server.submit(json!({"task": "train", "session": session})).await;
        let work = worker.work().await;
        assert_eq!((work.session.as_deref(), work.session_new), (Some(key), is_new));
        ids.push(work.session_id.clone().expect("an id"));
        worker.succeed(&work.lease, "1").await;
        server.finished(&run).await;
    }
    assert!(ids[0] == ids[1] && ids[1] != ids[2], "{ids:?}");
    assert_eq!(server.get(&format!("/api/v1/workers/{id}")).await.ok()["sessions"], 2);
    let figures = server.get("/metrics").await.text();
    assert!(figures.contains("everbeat_sessions{pool=\"\"} 2"), "{figures}");
}

#[tokio::test]
async fn sessions_are_listed_by_pool_and_what_is_not_there_is_refused() {
    let pool = PoolSettings { name: "ml".to_string(), command: vec!["true".to_string()], ..PoolSettings::default() };
    let server = started_with_settings(Config::default(), |settings| settings.pools = vec![pool]).await;
    let list = server.get("/api/v1/pools/ml/sessions").await.ok();
    assert_eq!(list, json!({"items": [], "next_cursor": null}));
    assert_eq!(server.get("/api/v1/pools/ml").await.ok()["sessions"], 0);
    server.get("/api/v1/pools/other/sessions").await.problem(StatusCode::NOT_FOUND, "not-found");
    server.get("/api/v1/pools/ml/sessions?limit=0").await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    for (path, status, name) in [
        ("/api/v1/pools/ml/sessions/user", StatusCode::NOT_FOUND, "not-found"),
        ("/api/v1/pools/other/sessions/user", StatusCode::NOT_FOUND, "not-found"),
        ("/api/v1/pools/ml/sessions/a%07", StatusCode::BAD_REQUEST, "bad-parameter"),
    ] {
        server.delete(path).await.problem(status, name);
    }
}
