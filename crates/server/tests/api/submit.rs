use crate::common::{idle, start};
use axum::http::StatusCode;
use everbeat_server::Config;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const KEY: (&str, &str) = ("idempotency-key", "order-7");

#[tokio::test]
async fn a_submitted_run_is_answered_with_its_address() {
    let server = start().await;
    let answer = server.post_json("/api/v1/runs", json!({"task": "echo", "input": [1, "ä"], "priority": 5})).await;
    assert_eq!(answer.status, 201);
    let run = answer.json();
    assert_eq!(answer.header("location"), format!("/api/v1/runs/{}", run["id"].as_str().expect("an id")));
    assert_eq!((&run["kind"], &run["queue"], &run["priority"]), (&json!("task"), &json!("default"), &json!(5)));
    assert_eq!(server.finished(run["id"].as_str().expect("an id")).await["result"], json!([1, "ä"]));
}

#[tokio::test]
async fn numbers_in_an_input_keep_every_digit() {
    let server = start().await;
    let body = r#"{"task": "echo", "input": {"n": 123456789012345678901234567890, "x": 1.0}}"#;
    let answer = server.post_json("/api/v1/runs", body).await;
    let id = answer.json()["id"].as_str().expect("an id").to_string();
    server.finished(&id).await;
    let text = server.get(&format!("/api/v1/runs/{id}")).await.text();
    assert!(text.contains(r#""result":{"n":123456789012345678901234567890,"x":1.0}"#), "{text}");
}

#[tokio::test]
async fn a_unique_key_is_answered_with_the_run_that_holds_it() {
    let server = idle(Config::default());
    let body = json!({"task": "noop", "unique_key": "one"});
    let first = server.submit(body.clone()).await;
    let second = server.post_json("/api/v1/runs", body).await.ok();
    assert_eq!(second["id"], first);
    assert_eq!(second["unique_key"], "one");
    assert_eq!(server.runs_stored(), 1);
}

#[tokio::test]
async fn a_replay_makes_nothing_and_another_request_with_the_key_is_refused() {
    let server = idle(Config::default());
    let first = server.post_with("/api/v1/runs", &[KEY], r#"{"task": "echo", "input": {"a": 1}}"#).await;
    assert_eq!(first.status, 201);
    let replay = server.post_with("/api/v1/runs", &[KEY], r#"{ "input":{"a":1}, "task":"echo" }"#).await.ok();
    assert_eq!(replay["id"], first.json()["id"]);
    let other = server.post_with("/api/v1/runs", &[KEY], r#"{"task": "echo", "input": {"a": 2}}"#).await;
    let problem = other.problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused");
    assert_eq!((&problem["field"], &problem["value"]), (&json!("Idempotency-Key"), &json!("\"order-7\"")));
    assert_eq!(server.runs_stored(), 1);
}

#[tokio::test]
async fn fifty_equal_requests_at_once_make_one_run() {
    let server = idle(Config::default());
    for (headers, body) in
        [(vec![KEY], json!({"task": "noop"})), (vec![], json!({"task": "noop", "unique_key": "the one"}))]
    {
        let before = server.runs_stored();
        let answers = join_all((0..50).map(|_| server.post_with("/api/v1/runs", &headers, &body))).await;
        let ids: BTreeSet<String> = answers.iter().map(|answer| answer.json()["id"].to_string()).collect();
        assert_eq!(ids.len(), 1);
        assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
        assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 49);
        assert_eq!(server.runs_stored(), before + 1);
    }
}

#[tokio::test]
async fn a_batch_is_accepted_in_order_and_replayed_whole() {
    let server = start().await;
    let runs: Vec<Value> = (0..3000).map(|n| json!({"task": "echo", "input": n})).collect();
    let body = json!({"runs": runs});
    let answer = server.post_with("/api/v1/runs:batch", &[KEY], &body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let items = answer.json()["items"].as_array().expect("items").clone();
    assert_eq!(items.len(), 3000);
    assert!(items.iter().all(|item| item["created"] == true));
    let id = items[2999]["id"].as_str().expect("an id");
    assert_eq!(server.get(&format!("/api/v1/runs/{id}")).await.ok()["input"], 2999);
    let replay = server.post_with("/api/v1/runs:batch", &[KEY], &body).await.ok();
    assert!(replay["items"].as_array().expect("items").iter().all(|item| item["created"] == false));
    assert_eq!(replay["items"][2999]["id"], id);
    assert_eq!(server.runs_stored(), 3000);
}

#[tokio::test]
async fn a_batch_is_accepted_wholly_or_not_at_all() {
    let server = idle(Config::default());
    for (body, field) in [
        (json!({"runs": [{"task": "noop"}, {"task": "no name"}]}), "runs[1].task"),
        (json!({"runs": [{"task": "noop"}, {"task": "noop", "priority": 1.5}]}), "runs[1].priority"),
        (json!({"runs": [{"task": "noop"}, {"task": "noop", "run_at": "soon"}]}), "runs[1].run_at"),
        (json!({"runs": [{"task": "no name"}]}), "runs[0].task"),
        (json!({"runs": [{}]}), "runs[0].task"),
        (json!({"runs": [["noop", null, null, null, null, null, null, null]]}), "runs[0]"),
        (json!({"runs": []}), "runs"),
        (json!({"runs": vec![json!({"task": "noop"}); 10_001]}), "runs"),
    ] {
        let answer = server.post_json("/api/v1/runs:batch", &body).await;
        let problem = answer.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value");
        assert_eq!(problem["field"], field, "{problem}");
    }
    let answer = server.post_json("/api/v1/runs:batch", json!({"runs": [{"task": "noop"}, {"task": "nop"}]})).await;
    assert_eq!(answer.problem(StatusCode::UNPROCESSABLE_ENTITY, "unknown-task")["value"], "\"nop\"");
    assert_eq!(server.runs_stored(), 0);
}
