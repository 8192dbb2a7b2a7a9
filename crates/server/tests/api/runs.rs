use crate::common::{Server, idle, request, start};
use axum::body::Body;
use axum::http::StatusCode;
use everbeat_server::Config;
use serde_json::json;
use uuid::Uuid;

const RUN_KEYS: [&str; 30] = [
    "id",
    "kind",
    "task",
    "queue",
    "priority",
    "state",
    "attempt",
    "tries",
    "max_attempts",
    "input",
    "args",
    "parent",
    "result",
    "error",
    "progress",
    "checkpoint",
    "created_at",
    "run_at",
    "session",
    "started_at",
    "finished_at",
    "replica_id",
    "worker_id",
    "liveness",
    "last_heartbeat_at",
    "heartbeat_deadline",
    "deadline",
    "policy",
    "unique_key",
    "cancel_requested_at",
];

#[tokio::test]
async fn a_run_shows_every_key_in_every_state() {
    let server = start().await;
    let id = server.submit(json!({"task": "gate", "input": {"n": 1}, "policy": {"deadline": "1h"}})).await;
    let running = server.until(&id, "running").await;
    assert_eq!(running["liveness"], "alive");
    assert_eq!(running["attempt"], 1);
    for key in ["replica_id", "started_at", "last_heartbeat_at", "heartbeat_deadline", "deadline"] {
        assert!(running[key].is_string(), "{key} of {running}");
    }
    server.gate.send_replace(true);
    let done = server.finished(&id).await;
    assert_eq!(done["state"], "succeeded");
    assert_eq!(done["result"], json!({"n": 1}));
    assert_eq!(done["policy"]["deadline"], "1h");
    let scheduled = server.submit(json!({"task": "noop", "run_at": "2990-01-01T00:00:00Z"})).await;
    let scheduled = server.get(&format!("/api/v1/runs/{scheduled}")).await.ok();
    assert_eq!(scheduled["state"], "scheduled");
    assert_eq!(scheduled["run_at"], "2990-01-01T00:00:00.000000Z");
    for run in [running, done, scheduled] {
        let mut keys: Vec<&String> = run.as_object().expect("an object").keys().collect();
        let mut expected = RUN_KEYS.to_vec();
        keys.sort();
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }
}

#[tokio::test]
async fn waiting_ends_with_the_run_or_with_the_time() {
    let server = start().await;
    let id = server.submit(json!({"task": "gate"})).await;
    server.until(&id, "running").await;
    let answer = server.get(&format!("/api/v1/runs/{id}?wait=finished&timeout=20ms")).await;
    let problem = answer.problem(StatusCode::REQUEST_TIMEOUT, "wait-timed-out");
    assert!(problem["detail"].as_str().expect("text").contains("running"), "{problem}");
    let open = async { server.gate.send_replace(true) };
    let (done, _) = tokio::join!(server.finished(&id), open);
    assert_eq!(done["state"], "succeeded");
    for (query, field) in [
        ("wait=finished&timeout=6m", "timeout"),
        ("wait=finished&timeout=soon", "timeout"),
        ("wait=done", "wait"),
        ("wiat=finished", "wiat"),
    ] {
        let problem = server.get(&format!("/api/v1/runs/{id}?{query}")).await;
        let problem = problem.problem(StatusCode::BAD_REQUEST, "bad-parameter");
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["value"].is_string(), "{problem}");
    }
}

#[tokio::test]
async fn lists_are_newest_first_filtered_and_paged_without_gap_or_repeat() {
    let server = idle(Config::default());
    let mut ids = Vec::new();
    for n in 0..7 {
        let queue = if n % 2 == 0 { "even" } else { "odd" };
        ids.push(server.submit(json!({"task": "echo", "queue": queue, "input": n})).await);
    }
    ids.reverse();
    let seen = pages(&server, 3).await.concat();
    assert_eq!(seen, ids);
    let count = async |query: &str| {
        let page = server.get(&format!("/api/v1/runs?{query}")).await.ok();
        assert!(page["next_cursor"].is_null());
        page["items"].as_array().expect("items").len()
    };
    assert_eq!(count("queue=odd").await, 3);
    assert_eq!(count("queue=even&state=ready&task=echo&kind=task").await, 4);
    assert_eq!(count("state=running").await, 0);
    assert_eq!(count("kind=job").await, 0);
}

/// The ids of all runs, by pages.
async fn pages(server: &Server, limit: usize) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut path = format!("/api/v1/runs?limit={limit}");
    loop {
        let page = server.get(&path).await.ok();
        let items = page["items"].as_array().expect("items");
        pages.push(items.iter().map(|run| run["id"].as_str().expect("an id").to_string()).collect());
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/runs?limit={limit}&cursor={cursor}"),
            None => return pages,
        }
    }
}

#[tokio::test]
async fn a_page_of_large_runs_ends_early_and_the_next_one_goes_on() {
    let server = idle(Config::default());
    let large = "x".repeat(4_000_000);
    let mut ids = Vec::new();
    for _ in 0..7 {
        ids.push(server.submit(json!({"task": "echo", "input": large})).await);
    }
    ids.reverse();
    let pages = pages(&server, 100).await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [5, 2]);
    assert_eq!(pages.concat(), ids);
}

#[tokio::test]
async fn attempts_are_oldest_first_and_the_explanation_tells_them() {
    let server = start().await;
    let policy = json!({"backoff": {"initial": "1ms"}});
    let id =
        server.submit(json!({"task": "fail", "input": {"times": 2, "message": "no luck"}, "policy": policy})).await;
    assert_eq!(server.finished(&id).await["state"], "succeeded");
    let attempts = server.get(&format!("/api/v1/runs/{id}/attempts")).await.ok();
    let items = attempts["items"].as_array().expect("items");
    let outcomes: Vec<_> =
        items.iter().map(|attempt| (attempt["attempt"].clone(), attempt["outcome"].clone())).collect();
    assert_eq!(outcomes, [(json!(1), json!("failed")), (json!(2), json!("failed")), (json!(3), json!("succeeded"))]);
    assert!(items[0]["error"]["message"].as_str().expect("text").contains("no luck"));
    for key in ["replica_id", "worker_id", "started_at", "ended_at", "last_heartbeat_at", "verdict_id"] {
        assert!(items[0].get(key).is_some(), "{key}");
    }
    let rest = server.get(&format!("/api/v1/runs/{id}/attempts?limit=1&cursor=1")).await.ok();
    assert_eq!((&rest["items"][0]["attempt"], &rest["next_cursor"]), (&json!(2), &json!("2")));
    let explanation = server.get(&format!("/api/v1/runs/{id}/explain")).await.ok();
    assert!(explanation["summary"].as_str().expect("text").starts_with("succeeded"), "{explanation}");
    assert_eq!(explanation["history"].as_array().expect("history").len(), 3);
    assert_eq!(explanation["run"]["id"], id);
}

#[tokio::test]
async fn cancel_ends_a_waiting_run_at_once_and_a_running_one_soon() {
    let server = start().await;
    let waiting = server.submit(json!({"task": "noop", "run_at": "2990-01-01T00:00:00Z"})).await;
    assert_eq!(server.post(&format!("/api/v1/runs/{waiting}/cancel")).await.ok()["state"], "cancelled");
    let running = server.submit(json!({"task": "gate"})).await;
    server.until(&running, "running").await;
    let asked = server.post(&format!("/api/v1/runs/{running}/cancel")).await.ok();
    assert!(asked["cancel_requested_at"].is_string() || asked["state"] == "cancelled", "{asked}");
    assert_eq!(server.finished(&running).await["state"], "cancelled");
    server.post(&format!("/api/v1/runs/{running}/cancel")).await.problem(StatusCode::CONFLICT, "conflict");
}

#[tokio::test]
async fn retry_reopens_a_finished_run_and_no_other() {
    let server = start().await;
    let id = server.submit(json!({"task": "fail", "policy": {"max_attempts": 1}})).await;
    assert_eq!(server.finished(&id).await["state"], "failed");
    server.post(&format!("/api/v1/runs/{id}/retry")).await.ok();
    let again = server.finished(&id).await;
    assert_eq!((&again["state"], &again["attempt"]), (&json!("failed"), &json!(2)));
    let open = server.submit(json!({"task": "gate"})).await;
    server.post(&format!("/api/v1/runs/{open}/retry")).await.problem(StatusCode::CONFLICT, "conflict");
}

#[tokio::test]
async fn ids_that_do_not_exist_are_not_found_and_bad_ones_are_refused() {
    let server = idle(Config::default());
    let absent = Uuid::from_u128(7);
    for (method, rest) in [
        ("GET", ""),
        ("GET", "/attempts"),
        ("GET", "/explain"),
        ("GET", "/logs"),
        ("POST", "/cancel"),
        ("POST", "/retry"),
    ] {
        let path = format!("/api/v1/runs/{absent}{rest}");
        server.send(request(method, &path, &[], Body::empty())).await.problem(StatusCode::NOT_FOUND, "not-found");
        for bad in ["7", "%2e%2e", "..%2f..%2fetc%2fpasswd", &"a".repeat(4096)] {
            let path = format!("/api/v1/runs/{bad}{rest}");
            let answer = server.send(request(method, &path, &[], Body::empty())).await;
            let problem = answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
            assert_eq!(problem["field"], "id");
        }
    }
}
