use crate::common::{idle, idle_with, request, start};
use axum::body::Body;
use axum::http::StatusCode;
use everbeat_server::Config;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn each_bad_field_is_named_with_value_and_hint_and_makes_no_run() {
    let server = idle(Config::default());
    for (body, kind, field, value, hint) in [
        (json!({"task": "nop"}), "unknown-task", "task", "nop", "noop"),
        (json!({"tsak": "noop"}), "unknown-field", "tsak", "noop", "\"task\""),
        (json!({"task": "noop", "colour": 1}), "unknown-field", "colour", "1", "task"),
        (json!({}), "invalid-value", "task", "nothing", "add"),
        (json!({"task": 5}), "invalid-value", "task", "5", "text"),
        (json!({"task": ""}), "invalid-value", "task", "\"\"", "visible"),
        (json!({"task": "a b"}), "invalid-value", "task", "a b", "visible"),
        (json!({"task": "noop", "queue": "\u{0}"}), "invalid-value", "queue", "\\0", "visible"),
        (json!({"task": "noop", "priority": 40000}), "invalid-value", "priority", "40000", "32767"),
        (json!({"task": "noop", "priority": "high"}), "invalid-value", "priority", "high", "32767"),
        (json!({"task": "noop", "run_at": "tomorrow"}), "invalid-value", "run_at", "tomorrow", "2026"),
        (json!({"task": "noop", "run_at": "-000044-03-15T12:00:00Z"}), "invalid-value", "run_at", "44", "leave"),
        (json!({"task": "noop", "policy": {"dedline": "1s"}}), "invalid-value", "policy.dedline", "1s", "deadline"),
        (json!({"task": "noop", "policy": {"max_attempts": 0}}), "invalid-value", "policy.max_attempts", "0", "1 to"),
        (
            json!({"task": "noop", "policy": {"heartbeat_interval": "70s"}}),
            "invalid-value",
            "policy.heartbeat_interval",
            "70s",
            "heartbeat_timeout",
        ),
        (json!({"task": "noop", "policy": 5}), "invalid-value", "policy", "5", "max_attempts"),
        (json!({"task": "noop", "unique_key": ""}), "invalid-value", "unique_key", "\"\"", "characters"),
        (json!({"task": "noop", "accept_unknown": "yes"}), "invalid-value", "accept_unknown", "yes", "true"),
        (json!(["noop", 1, "default", 0, null, null, null, null]), "invalid-value", "the body", "noop", "object"),
        (json!("noop"), "invalid-value", "the body", "noop", "object"),
    ] {
        let answer = server.post_json("/api/v1/runs", &body).await;
        let problem = answer.problem(StatusCode::UNPROCESSABLE_ENTITY, kind);
        assert_eq!(problem["field"], field, "{problem}");
        let says = |key: &str, part: &str| problem[key].as_str().is_some_and(|text| text.contains(part));
        assert!(says("value", value), "{value} in {problem}");
        assert!(says("hint", hint), "{hint} in {problem}");
    }
    assert_eq!(server.runs_stored(), 0);
    server.submit(json!({"task": "later", "accept_unknown": true})).await;
}

#[tokio::test]
async fn what_is_not_json_is_malformed() {
    let server = idle(Config::default());
    let deep = format!("{{\"task\": \"noop\", \"policy\": {}1{}}}", "[".repeat(5000), "]".repeat(5000));
    for body in ["", "{", "{\"task\": \"noop\"", "nonsense", "{\"task\": \"noop\"} x", "{\"task\": \"\u{1}\"}"] {
        let answer = server.post_json("/api/v1/runs", body).await;
        let problem = answer.problem(StatusCode::BAD_REQUEST, "malformed-request");
        assert_eq!(problem["field"], "body");
        assert!(problem["value"].is_string() && problem["hint"].is_string(), "{problem}");
    }
    let answer = server.post_json("/api/v1/runs", deep).await;
    assert_eq!(answer.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value")["hint"], "nest at most 100 levels");
    let bytes: &[u8] = b"{\"task\": \"\xff\xfe\"}";
    let headers = [("content-type", "application/json")];
    let answer = server.send(request("POST", "/api/v1/runs", &headers, bytes)).await;
    answer.problem(StatusCode::BAD_REQUEST, "malformed-request");
    let deep = format!("{{\"task\": \"noop\", \"input\": {}1{}}}", "[".repeat(5000), "]".repeat(5000));
    let answer = server.post_json("/api/v1/runs", deep).await;
    assert_eq!(answer.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value")["field"], "input");
    assert_eq!(server.runs_stored(), 0);
}

#[tokio::test]
async fn a_body_must_be_declared_as_json_wherever_it_is_sent() {
    let server = start().await;
    for path in ["/api/v1/runs", "/api/v1/runs:batch", "/api/v1/queues/default/pause"] {
        for declared in
            [&[][..], &[("content-type", "text/plain")], &[("content-type", "application/x-www-form-urlencoded")]]
        {
            let answer = server.send(request("POST", path, declared, r#"{"task": "noop"}"#)).await;
            answer.problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json");
        }
    }
    assert_eq!(server.runs_stored(), 0);
    assert_eq!(server.get("/api/v1/queues").await.ok()["items"], json!([]));
    for declared in ["application/json; charset=utf-8", "Application/JSON", "application/merge-patch+json"] {
        let headers = [("content-type", declared)];
        let answer = server.send(request("POST", "/api/v1/runs", &headers, r#"{"task": "noop"}"#)).await;
        assert_eq!(answer.status, 201, "{declared}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_declared_or_not() {
    let server = idle(Config { body_limit: 1000, ..Config::default() });
    let body = json!({"task": "noop", "input": "x".repeat(2000)}).to_string();
    let headers = [("content-type", "application/json")];
    let answer = server.send(request("POST", "/api/v1/runs", &headers, body.clone())).await;
    let problem = answer.problem(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large");
    assert_eq!(problem["field"], "body");
    assert!(problem["value"].as_str().unwrap().ends_with(" bytes"), "{problem}");
    let pieces = body.into_bytes().chunks(100).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect::<Vec<_>>();
    let stream = Body::from_stream(futures_util::stream::iter(pieces));
    let answer = server.send(request("POST", "/api/v1/runs", &headers, stream)).await;
    answer.problem(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large");
    assert_eq!(server.runs_stored(), 0);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems_too() {
    let server = idle(Config::default());
    for path in ["/api", "/api/v1", "/api/v1/run", "/api/v1/runs/", "/api/v2/runs", "/..%2f", "/api/%61dmin/invariants"]
    {
        server.get(path).await.problem(StatusCode::NOT_FOUND, "no-such-path");
    }
    for (method, path) in [("DELETE", "/api/v1/runs"), ("PUT", "/livez"), ("GET", "/api/v1/runs:batch"), ("TRACE", "/")]
    {
        let answer = server.send(request(method, path, &[], Body::empty())).await;
        answer.problem(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed");
        assert!(!answer.header("allow").is_empty(), "{method} {path}");
    }
}

#[tokio::test]
async fn bad_parameters_are_named() {
    let server = idle(Config::default());
    for (path, field, hint) in [
        ("/api/v1/runs?state=done", "state", "succeeded"),
        ("/api/v1/runs?kind=Task", "kind", "task"),
        ("/api/v1/runs?limit=0", "limit", "1 to 1000"),
        ("/api/v1/runs?limit=1001", "limit", "1 to 1000"),
        ("/api/v1/runs?limit=-1", "limit", "1 to 1000"),
        ("/api/v1/runs?cursor=7", "cursor", "looks like"),
        ("/api/v1/runs?stat=ready", "stat", "\"state\""),
        ("/api/v1/runs?state=ready&state=failed", "state", "once"),
        ("/api/v1/runs?task=%00", "task", "visible"),
        ("/api/v1/verdicts?subject=%00", "subject", "control"),
        ("/api/v1/verdicts?run_id=x", "run_id", "looks like"),
        ("/api/v1/replicas?state=alive", "state", "active"),
        ("/api/v1/replicas/x", "id", "looks like"),
        ("/api/v1/queues?colour=blue", "colour", "limit"),
        ("/api/v1/events?after=x", "after", "number"),
        ("/api/v1/events?after=18446744073709551615", "after", "number"),
        ("/api/admin/invariants?deep=1", "deep", "none"),
    ] {
        let problem = server.get(path).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
        assert_eq!(problem["field"], field, "{path}");
        assert!(problem["hint"].as_str().expect("text").contains(hint), "{path}: {problem}");
    }
    server.post("/api/v1/queues/%ff/pause").await.problem(StatusCode::BAD_REQUEST, "malformed-request");
    server.post("/api/v1/queues/a%20b/pause").await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    let bad_key = [("idempotency-key", "")];
    let answer = server.post_with("/api/v1/runs", &bad_key, r#"{"task": "noop"}"#).await;
    answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    assert_eq!(server.runs_stored(), 0);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_not_waited_for() {
    let server = idle(Config { request_timeout: Duration::from_millis(50), ..Config::default() });
    let never = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let headers = [("content-type", "application/json")];
    let answer = server.send(request("POST", "/api/v1/runs", &headers, never)).await;
    answer.problem(StatusCode::REQUEST_TIMEOUT, "request-timed-out");
}

#[tokio::test]
async fn a_store_that_fails_is_an_answer_and_the_server_goes_on() {
    let server = idle_with(Config::default(), || panic!("the clock broke"));
    server.post("/api/v1/queues/slow/pause").await.problem(StatusCode::INTERNAL_SERVER_ERROR, "internal");
    let answer = server.post_json("/api/v1/runs", json!({"task": "noop"})).await;
    let problem = answer.problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable");
    assert_eq!(answer.header("retry-after"), "1");
    assert!(problem["hint"].as_str().expect("text").contains("Idempotency-Key"), "{problem}");
    server.get("/api/v1/runs").await.ok();
}
