use crate::common::{Server, eventually, idle, request, started_with, token};
use crate::shims::FakeShims;
use axum::body::Body;
use axum::http::StatusCode;
use everbeat_server::{Config, Scope};
use serde_json::{Value, json};
use std::sync::Arc;
use uuid::Uuid;

/// What a job adds to a run.
const JOB_KEYS: [&str; 15] = [
    "job_id",
    "name",
    "command",
    "exit_code",
    "exit_signal",
    "starting",
    "heartbeat_status",
    "reattached",
    "workspace_path",
    "cwd",
    "session_id",
    "agent_engine",
    "host",
    "heartbeat_error",
    "id",
];

const SECRET: &str = "hunter2";

pub(crate) async fn start() -> (Server, Arc<FakeShims>) {
    let shims = FakeShims::new();
    (started_with(Config::default(), &shims).await, shims)
}

pub(crate) async fn create(server: &Server, body: Value) -> String {
    let answer = server.post_json("/api/v1/jobs", body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()["job_id"].as_str().expect("an id").to_string()
}

/// Creates a job of which the test decides how it goes on.
pub(crate) async fn running(server: &Server) -> String {
    let id = create(server, json!({"command": ["train"]})).await;
    begun(server, &id).await;
    id
}

/// Waits until a job's folder is there.
pub(crate) async fn begun(server: &Server, id: &str) {
    eventually(|| async {
        let job = server.get(&format!("/api/v1/jobs/{id}")).await.ok();
        (job["state"] == "running" && job["heartbeat_status"] != "unknown").then_some(())
    })
    .await;
}

pub(crate) async fn finished(server: &Server, id: &str) -> Value {
    server.get(&format!("/api/v1/jobs/{id}?wait=finished&timeout=20s")).await.ok()
}

#[tokio::test]
async fn a_job_is_a_run_with_what_is_known_of_its_command() {
    let (server, shims) = start().await;
    let body = json!({
        "command": ["train", "--epochs", "3; rm -rf /"], "name": "nightly", "cwd": "/srv", "env": {"TOKEN": SECRET},
        "sessionId": "abc", "agentEngine": "gemini", "priority": 3, "queue": "gpu", "policy": {"deadline": "1h"},
    });
    let answer = server.post_json("/api/v1/jobs", body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let job = answer.json();
    let id = job["job_id"].as_str().expect("an id");
    assert_eq!(answer.header("location"), format!("/api/v1/jobs/{id}"));
    assert_eq!((&job["id"], &job["kind"], &job["max_attempts"]), (&json!(id), &json!("job"), &json!(1)));
    begun(&server, id).await;
    let job = server.get(&format!("/api/v1/jobs/{id}")).await.ok();
    let run = server.get(&format!("/api/v1/runs/{id}")).await.ok();
    for (key, value) in run.as_object().expect("an object") {
        // Both beat on between the two looks.
        let same = key.contains("heartbeat") || job.get(key) == Some(value);
        assert!(job.get(key).is_some() && same, "{key}: {job}");
    }
    let added: Vec<&String> = job.as_object().expect("keys").keys().filter(|key| run.get(*key).is_none()).collect();
    assert_eq!(added.len(), JOB_KEYS.len() - 1, "{added:?}");
    assert!(JOB_KEYS.iter().all(|key| job.get(key).is_some()), "{job}");
    let told = |key: &str| job[key].clone();
    assert_eq!(told("command"), json!(["train", "--epochs", "3; rm -rf /"]));
    assert_eq!([told("name"), told("cwd")], [json!("nightly"), json!("/srv")]);
    assert_eq!([told("session_id"), told("agent_engine")], [json!("abc"), json!("gemini")]);
    assert_eq!([told("heartbeat_status"), told("reattached")], [json!("fresh"), json!(false)]);
    assert_eq!([told("starting"), told("liveness")], [json!(false), json!("alive")]);
    assert_eq!(
        [told("exit_code"), told("exit_signal"), told("heartbeat_error")],
        [json!(null), json!(null), json!(null)]
    );
    assert_eq!(
        [told("workspace_path"), told("host")],
        [json!(format!("/data/jobs/{id}/workspace")), json!("localhost")]
    );
    shims.exit(id, 0);
    let done = finished(&server, id).await;
    assert_eq!((&done["state"], &done["exit_code"]), (&json!("succeeded"), &json!(0)));
    assert!(done["heartbeat_status"].is_null(), "{done}");
}

#[tokio::test]
async fn a_job_whose_start_is_under_way_is_told_as_starting_and_not_as_in_trouble() {
    let (server, _shims) = start().await;
    let id = create(&server, json!({"command": ["slow"]})).await;
    let job = eventually(|| async {
        let job = server.get(&format!("/api/v1/jobs/{id}")).await.ok();
        // Its folder belongs to this host from here on, and is looked into.
        (job["state"] == "running" && !job["host"].is_null()).then_some(job)
    })
    .await;
    assert_eq!((&job["starting"], &job["liveness"]), (&json!(true), &json!("alive")), "{job}");
    assert_eq!((&job["heartbeat_status"], &job["heartbeat_error"]), (&json!("unknown"), &json!(null)), "{job}");
    let explained = server.get(&format!("/api/v1/runs/{id}/explain")).await.ok();
    assert!(explained["summary"].as_str().expect("text").contains("is starting on"), "{explained}");
}

#[tokio::test]
async fn the_exit_of_a_failed_job_is_told_as_it_was() {
    let (server, _shims) = start().await;
    let id = create(&server, json!({"command": ["false"]})).await;
    let job = finished(&server, &id).await;
    assert_eq!((&job["state"], &job["exit_code"], &job["exit_signal"]), (&json!("failed"), &json!(7), &json!(null)));
}

#[tokio::test]
async fn the_environment_reaches_the_command_and_is_shown_nowhere() {
    let (server, shims) = start().await;
    let body = json!({"command": ["train"], "env": {"TOKEN": SECRET, "EMPTY": ""}});
    let answer = server.post_with("/api/v1/jobs", &[("idempotency-key", "one")], &body).await;
    let id = answer.json()["id"].as_str().expect("an id").to_string();
    begun(&server, &id).await;
    assert_eq!(shims.env_of(&id)["TOKEN"], SECRET);
    let graph = json!([{"name": "a", "kind": "input"},
        {"name": "b", "kind": "compute", "gate": ["a"], "command": ["train"], "args": {"env": {"TOKEN": SECRET}}}]);
    let applied = server.post_json("/api/v1/graphs", json!({"name": "g", "nodes": graph})).await;
    assert_eq!(applied.status, 201, "{}", applied.text());
    server.execute("g", json!({"a": {"env": {"TOKEN": "not a secret"}}})).await;
    let node = eventually(|| async {
        let runs = server.get("/api/v1/runs?kind=node").await.ok();
        runs["items"].get(0).cloned()
    })
    .await;
    assert_eq!(node["args"]["env"], json!({"TOKEN": "***"}), "{node}");
    assert_eq!(node["input"]["a"]["env"]["TOKEN"], "not a secret", "{node}");
    let node = node["id"].as_str().expect("an id");
    let mut texts = vec![answer.text(), applied.text()];
    for path in [
        format!("/api/v1/jobs/{id}"),
        format!("/api/v1/runs/{id}"),
        format!("/api/v1/runs/{id}/explain"),
        format!("/api/v1/runs/{node}/explain"),
        format!("/api/v1/jobs/{node}"),
        "/api/v1/jobs".to_string(),
        "/api/v1/runs".to_string(),
        "/api/v1/graphs".to_string(),
        "/api/v1/graphs/g".to_string(),
        "/api/v1/events?after=0&follow=false".to_string(),
    ] {
        let answer = server.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        texts.push(answer.text());
    }
    texts.push(server.post_with("/api/v1/jobs", &[("idempotency-key", "one")], &body).await.text());
    texts.push(server.post(&format!("/api/v1/jobs/{id}/cancel")).await.text());
    finished(&server, &id).await;
    texts.push(server.post(&format!("/api/v1/jobs/{id}/retry")).await.text());
    let wrong = [
        json!({"EVERBEAT_TOKEN": SECRET}),
        json!({"A\0": SECRET}),
        json!({"A": format!("{SECRET}\0")}),
        json!({format!("A={SECRET}"): ""}),
        json!({"A": [SECRET]}),
        json!([format!("TOKEN={SECRET}")]),
        json!(SECRET),
    ];
    for env in wrong {
        let node = json!({"name": "b", "kind": "compute", "command": ["train"], "args": {"env": env}});
        for (path, body) in [
            ("/api/v1/jobs", json!({"command": ["train"], "env": env})),
            ("/api/v1/runs", json!({"task": "noop", "env": env})),
            ("/api/v1/graphs", json!({"name": "wrong", "nodes": [node]})),
        ] {
            let answer = server.post_json(path, body).await;
            assert_eq!(answer.status, 422, "{path}: {}", answer.text());
            texts.push(answer.text());
        }
    }
    for text in texts {
        assert!(!text.contains(SECRET), "{text}");
    }
    let job = server.get(&format!("/api/v1/jobs/{id}")).await.ok();
    assert_eq!(job["input"]["env"], json!({"TOKEN": "***", "EMPTY": "***"}));
    assert_eq!(job["input"]["command"], json!(["train"]));
}

#[tokio::test]
async fn what_no_process_can_be_given_is_refused_and_nothing_is_made() {
    let (server, _shims) = start().await;
    let before = server.runs_stored();
    for (body, kind, field) in [
        (json!({}), "invalid-value", "command"),
        (json!({"command": "ls -l"}), "invalid-value", "command"),
        (json!({"command": null}), "invalid-value", "command"),
        (json!({"command": []}), "invalid-value", "command"),
        (json!({"command": [""]}), "invalid-value", "command[0]"),
        (json!({"command": ["ls", 1]}), "invalid-value", "command[1]"),
        (json!({"command": ["ls", "a\0b"]}), "invalid-value", "command[1]"),
        (json!({"command": ["ls", "x".repeat(128 << 10)]}), "invalid-value", "command[1]"),
        (json!({"command": vec!["x".repeat(100 << 10); 6]}), "invalid-value", "command"),
        (json!({"command": ["ls"], "env": ["A=B"]}), "invalid-value", "env"),
        (json!({"command": ["ls"], "env": {"A": 1}}), "invalid-value", "env.A"),
        (json!({"command": ["ls"], "env": {"A=B": "x"}}), "invalid-value", "env"),
        (json!({"command": ["ls"], "env": {"": "x"}}), "invalid-value", "env"),
        (json!({"command": ["ls"], "env": {"EVERBEAT_JOB_ID": "x"}}), "invalid-value", "env.EVERBEAT_JOB_ID"),
        (json!({"command": ["ls"], "env": {"A": "\0"}}), "invalid-value", "env.A"),
        (json!({"command": ["ls"], "cwd": "here"}), "invalid-value", "cwd"),
        (json!({"command": ["ls"], "cwd": "/data/jobs/x"}), "invalid-value", "cwd"),
        (json!({"command": ["ls"], "name": ""}), "invalid-value", "name"),
        (json!({"command": ["ls"], "name": "a\nb"}), "invalid-value", "name"),
        (json!({"command": ["ls"], "sessionId": "x".repeat(201)}), "invalid-value", "sessionId"),
        (json!({"command": ["ls"], "agentEngine": 5}), "invalid-value", "agentEngine"),
        (json!({"command": ["ls"], "session_id": "x"}), "unknown-field", "session_id"),
        (json!({"command": ["ls"], "task": "noop"}), "unknown-field", "task"),
        (json!({"command": ["ls"], "policy": {"dedline": "1s"}}), "invalid-value", "policy.dedline"),
        (json!({"command": ["ls"], "policy": {"deadline": "soon"}}), "invalid-value", "policy.deadline"),
        (json!({"command": ["ls"], "queue": "a b"}), "invalid-value", "queue"),
        (json!({"command": ["ls"], "priority": 40_000}), "invalid-value", "priority"),
        (json!({"command": ["ls"], "run_at": "soon"}), "invalid-value", "run_at"),
        (json!({"command": ["ls"], "unique_key": ""}), "invalid-value", "unique_key"),
    ] {
        let answer = server.post_json("/api/v1/jobs", &body).await;
        let problem = answer.problem(StatusCode::UNPROCESSABLE_ENTITY, kind);
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["value"].is_string(), "{problem}");
    }
    server.post_json("/api/v1/jobs", "[]").await.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value");
    server.post_json("/api/v1/jobs", "{").await.problem(StatusCode::BAD_REQUEST, "malformed-request");
    server.post("/api/v1/jobs").await.problem(StatusCode::BAD_REQUEST, "malformed-request");
    let body = json!({"command": ["ls"]});
    let answer = server.post_json("/api/v1/jobs?force=1", &body).await;
    answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    let plain = [("content-type", "text/plain")];
    let answer = server.send(request("POST", "/api/v1/jobs", &plain, body.to_string())).await;
    answer.problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json");
    assert_eq!(server.runs_stored(), before);
}

#[tokio::test]
async fn a_server_without_shims_says_that_nobody_performs_jobs() {
    let server = idle(Config::default());
    let answer = server.post_json("/api/v1/jobs", json!({"command": ["ls"]})).await;
    answer.problem(StatusCode::CONFLICT, "conflict");
    assert_eq!(server.runs_stored(), 0);
    assert_eq!(server.get("/api/v1/jobs").await.ok(), json!({"items": [], "next_cursor": null}));
}

#[tokio::test]
async fn an_earlier_job_stands_for_the_same_request() {
    let (server, _shims) = start().await;
    let key = [("idempotency-key", "nightly-7")];
    let first = server.post_with("/api/v1/jobs", &key, r#"{"command": ["true"], "name": "a"}"#).await;
    assert_eq!(first.status, 201);
    let replay = server.post_with("/api/v1/jobs", &key, r#"{ "name":"a", "command":["true"] }"#).await.ok();
    assert_eq!(replay["job_id"], first.json()["job_id"]);
    let other = server.post_with("/api/v1/jobs", &key, r#"{"command": ["false"]}"#).await;
    other.problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused");
    let body = json!({"command": ["train"], "unique_key": "one"});
    let holder = create(&server, body.clone()).await;
    assert_eq!(server.post_json("/api/v1/jobs", body).await.ok()["job_id"], holder);
    server.submit(json!({"task": "gate", "unique_key": "a run's"})).await;
    let answer = server.post_json("/api/v1/jobs", json!({"command": ["true"], "unique_key": "a run's"})).await;
    answer.problem(StatusCode::CONFLICT, "conflict");
    let id = first.json()["job_id"].as_str().expect("an id").to_string();
    finished(&server, &id).await;
    server.delete(&format!("/api/v1/jobs/{id}")).await.ok();
    let forgotten = server.post_with("/api/v1/jobs", &key, r#"{"command": ["true"], "name": "a"}"#).await;
    forgotten.problem(StatusCode::CONFLICT, "conflict");
}

#[tokio::test]
async fn jobs_are_listed_newest_first_and_without_other_runs() {
    let (server, _shims) = start().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        let queue = if n % 2 == 0 { "even" } else { "odd" };
        ids.push(create(&server, json!({"command": ["true"], "queue": queue})).await);
        finished(&server, &ids[n]).await;
        server.submit(json!({"task": "noop"})).await;
    }
    let scheduled = create(&server, json!({"command": ["true"], "run_at": "2990-01-01T00:00:00Z"})).await;
    ids.push(scheduled.clone());
    ids.reverse();
    let (mut seen, mut path) = (Vec::new(), "/api/v1/jobs?limit=2".to_string());
    loop {
        let page = server.get(&path).await.ok();
        let items = page["items"].as_array().expect("items");
        seen.extend(items.iter().map(|job| job["job_id"].as_str().expect("an id").to_string()));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/jobs?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    let page = server.get("/api/v1/jobs?state=scheduled").await.ok();
    assert_eq!((page["items"].as_array().expect("items").len(), &page["items"][0]["id"]), (1, &json!(scheduled)));
    let page = server.get("/api/v1/jobs?queue=odd&state=succeeded").await.ok();
    assert_eq!(page["items"].as_array().expect("items").len(), 2);
    for query in ["state=done", "limit=0", "limit=1001", "cursor=x", "queue=a%20b", "kind=job"] {
        server.get(&format!("/api/v1/jobs?{query}")).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    }
}

#[tokio::test]
async fn a_job_can_be_awaited() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    let answer = server.get(&format!("/api/v1/jobs/{id}?wait=finished&timeout=20ms")).await;
    let problem = answer.problem(StatusCode::REQUEST_TIMEOUT, "wait-timed-out");
    assert!(problem["detail"].as_str().expect("text").contains("running"), "{problem}");
    let (done, ()) = tokio::join!(finished(&server, &id), async { shims.exit(&id, 3) });
    assert_eq!((&done["state"], &done["exit_code"]), (&json!("failed"), &json!(3)));
    for query in ["wait=done", "timeout=6m", "timeout=soon", "tail=1"] {
        server.get(&format!("/api/v1/jobs/{id}?{query}")).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    }
}

#[tokio::test]
async fn cancel_tells_a_running_job_and_retry_opens_it_again_under_its_id() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    server.post(&format!("/api/v1/jobs/{id}/retry")).await.problem(StatusCode::CONFLICT, "conflict");
    let asked = server.post(&format!("/api/v1/jobs/{id}/cancel")).await.ok();
    assert!(asked["cancel_requested_at"].is_string() || asked["state"] == "cancelled", "{asked}");
    let done = finished(&server, &id).await;
    assert_eq!((&done["state"], &done["exit_signal"]), (&json!("cancelled"), &json!(15)), "{done}");
    server.post(&format!("/api/v1/jobs/{id}/cancel")).await.problem(StatusCode::CONFLICT, "conflict");
    let again = server.post(&format!("/api/v1/jobs/{id}/retry")).await.ok();
    assert_eq!((&again["job_id"], &again["exit_signal"]), (&json!(id), &json!(null)));
    begun(&server, &id).await;
    shims.exit(&id, 0);
    let done = finished(&server, &id).await;
    assert_eq!((&done["state"], &done["attempt"], &done["id"]), (&json!("succeeded"), &json!(2), &json!(id)));
    let waiting = create(&server, json!({"command": ["true"], "run_at": "2990-01-01T00:00:00Z"})).await;
    assert_eq!(server.post(&format!("/api/v1/jobs/{waiting}/cancel")).await.ok()["state"], "cancelled");
}

#[tokio::test]
async fn a_job_is_deleted_when_it_is_over_and_a_dry_run_only_counts() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    shims.write(&id, everbeat_engine::Stream::Stdout, "12345");
    let path = format!("/api/v1/jobs/{id}");
    server.delete(&path).await.problem(StatusCode::CONFLICT, "conflict");
    server.delete(&format!("{path}?dry_run=true")).await.problem(StatusCode::CONFLICT, "conflict");
    shims.exit(&id, 0);
    finished(&server, &id).await;
    server.delete(&format!("{path}?dry_run=yes")).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    let dry = server.delete(&format!("{path}?dry_run=true")).await.ok();
    assert_eq!(dry, json!({"job_id": id, "removed": false, "dry_run": true, "entries": 4, "bytes": 5}));
    assert!(shims.has(&id));
    shims.change(&id, |folder| folder.unremovable = true);
    server.delete(&path).await.problem(StatusCode::CONFLICT, "conflict");
    server.get(&path).await.ok();
    shims.change(&id, |folder| folder.unremovable = false);
    let gone = server.delete(&path).await.ok();
    assert_eq!(gone, json!({"job_id": id, "removed": true, "dry_run": false, "entries": 4, "bytes": 5}));
    assert!(!shims.has(&id));
    server.get(&path).await.problem(StatusCode::NOT_FOUND, "not-found");
    server.delete(&path).await.problem(StatusCode::NOT_FOUND, "not-found");
    let never = create(&server, json!({"command": ["true"], "run_at": "2990-01-01T00:00:00Z"})).await;
    server.post(&format!("/api/v1/jobs/{never}/cancel")).await.ok();
    assert_eq!(server.delete(&format!("/api/v1/jobs/{never}")).await.ok()["entries"], 0);
}

#[tokio::test]
async fn what_is_no_job_is_not_found_among_them() {
    let (server, _shims) = start().await;
    let run = server.submit(json!({"task": "gate"})).await;
    for (method, rest) in [
        ("GET", ""),
        ("GET", "/logs"),
        ("POST", "/cancel"),
        ("POST", "/retry"),
        ("DELETE", ""),
        ("GET", "?wait=finished"),
    ] {
        for id in [run.as_str(), &Uuid::from_u128(7).to_string()] {
            let path = format!("/api/v1/jobs/{id}{rest}");
            let answer = server.send(request(method, &path, &[], Body::empty())).await;
            let problem = answer.problem(StatusCode::NOT_FOUND, "not-found");
            assert!(problem["detail"].as_str().expect("text").contains("job"), "{problem}");
        }
        for bad in ["7", "%2e%2e", "..%2f..%2fetc%2fpasswd"] {
            let answer = server.send(request(method, &format!("/api/v1/jobs/{bad}{rest}"), &[], Body::empty())).await;
            assert_eq!(answer.problem(StatusCode::BAD_REQUEST, "bad-parameter")["field"], "id");
        }
    }
    assert!(server.get(&format!("/api/v1/runs/{run}")).await.ok()["cancel_requested_at"].is_null());
}

#[tokio::test]
async fn looking_at_jobs_needs_one_scope_and_making_them_another() {
    let tokens = vec![
        token("reader", "r", &[Scope::Read]),
        token("submitter", "s", &[Scope::Submit]),
        token("beat", "h", &[Scope::Heartbeat, Scope::Worker]),
        token("admin", "a", &[Scope::Admin]),
    ];
    let shims = FakeShims::new();
    let server = started_with(Config { tokens, ..Config::default() }, &shims).await;
    let absent = format!("/api/v1/jobs/{}", Uuid::from_u128(7));
    for (method, path, scope) in [
        ("GET", "/api/v1/jobs", "r"),
        ("GET", &absent, "r"),
        ("GET", &format!("{absent}/logs"), "r"),
        ("POST", "/api/v1/jobs", "s"),
        ("POST", &format!("{absent}/cancel"), "s"),
        ("POST", &format!("{absent}/retry"), "s"),
        ("DELETE", &absent, "s"),
    ] {
        for secret in ["r", "s", "h", "a"] {
            let authorization = format!("Bearer {secret}");
            let headers = [("authorization", authorization.as_str())];
            let answer = server.send(request(method, path, &headers, Body::empty())).await;
            match secret == scope || secret == "a" {
                true => assert!([200, 400, 404].contains(&answer.status), "{method} {path}: {}", answer.text()),
                false => _ = answer.problem(StatusCode::FORBIDDEN, "wrong-scope"),
            }
        }
        let answer = server.send(request(method, path, &[], Body::empty())).await;
        answer.problem(StatusCode::UNAUTHORIZED, "unauthenticated");
    }
    assert_eq!(server.runs_stored(), 0);
}

#[tokio::test]
async fn a_read_only_server_shows_jobs_and_changes_none() {
    let shims = FakeShims::new();
    let server = started_with(Config { read_only: true, ..Config::default() }, &shims).await;
    let id = Uuid::from_u128(7);
    for (method, path) in [
        ("POST", "/api/v1/jobs".to_string()),
        ("POST", format!("/api/v1/jobs/{id}/cancel")),
        ("POST", format!("/api/v1/jobs/{id}/retry")),
        ("DELETE", format!("/api/v1/jobs/{id}")),
        ("POST", "/api/admin/recovery/jobs/resume".to_string()),
        ("POST", "/api/admin/recovery/jobs/clean".to_string()),
    ] {
        let answer = server.send(request(method, &path, &[], Body::empty())).await;
        answer.problem(StatusCode::FORBIDDEN, "read-only");
    }
    server.get("/api/v1/jobs").await.ok();
    assert_eq!(server.runs_stored(), 0);
}
