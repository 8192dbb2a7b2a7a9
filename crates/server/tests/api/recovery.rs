use crate::common::{Server, idle, request, started_with, token};
use crate::jobs::{begun, create, finished, running, start};
use crate::shims::FakeShims;
use axum::body::Body;
use axum::http::StatusCode;
use everbeat_engine::Lock;
use everbeat_server::{Config, Scope};
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

const LAST: &str = "2025-10-15T10:30:45.123Z";

const ADMIN: [(&str, &str); 10] = [
    ("GET", "/api/admin/recovery/jobs/status"),
    ("GET", "/api/admin/recovery/jobs/sentinels"),
    ("GET", "/api/admin/recovery/jobs/heartbeats"),
    ("GET", "/api/admin/recovery/jobs/metrics"),
    ("GET", "/api/admin/recovery/jobs/failed"),
    ("GET", "/api/admin/recovery/jobs/stale"),
    ("POST", "/api/admin/recovery/jobs/resume"),
    ("POST", "/api/admin/recovery/jobs/clean"),
    ("GET", "/api/admin/jobs/00000000-0000-0000-0000-000000000007/health"),
    ("GET", "/api/admin/startup-log"),
];

async fn ask(server: &Server, what: &str) -> Value {
    server.get(&format!("/api/admin/recovery/jobs/{what}")).await.ok()
}

async fn failed(server: &Server) -> String {
    let id = create(server, json!({"command": ["false"]})).await;
    finished(server, &id).await;
    id
}

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap_or_else(|| panic!("an object: {object}")).keys().map(String::as_str).collect()
}

fn check_keys(object: &Value, expected: &[&str]) {
    let (mut keys, mut expected) = (keys(object), expected.to_vec());
    keys.sort_unstable();
    expected.sort_unstable();
    assert_eq!(keys, expected);
}

#[tokio::test]
async fn only_administrators_are_answered() {
    let tokens = vec![
        token("reader", "r", &[Scope::Read]),
        token("submitter", "s", &[Scope::Submit, Scope::Heartbeat, Scope::Worker]),
        token("admin", "a", &[Scope::Admin]),
    ];
    let shims = FakeShims::new();
    let server = started_with(Config { tokens, ..Config::default() }, &shims).await;
    for (method, path) in ADMIN {
        let asked = async |authorization: Option<&str>| {
            let headers: Vec<_> = authorization.map(|value| ("authorization", value)).into_iter().collect();
            server.send(request(method, path, &headers, Body::empty())).await
        };
        asked(None).await.problem(StatusCode::UNAUTHORIZED, "unauthenticated");
        asked(Some("Bearer x")).await.problem(StatusCode::UNAUTHORIZED, "unauthenticated");
        asked(Some("Bearer r")).await.problem(StatusCode::FORBIDDEN, "wrong-scope");
        asked(Some("Bearer s")).await.problem(StatusCode::FORBIDDEN, "wrong-scope");
        let expected = if path.ends_with("/health") { 404 } else { 200 };
        assert_eq!(asked(Some("Bearer a")).await.status, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn a_server_that_performs_no_jobs_answers_in_the_same_shapes() {
    let server = idle(Config::default());
    assert_eq!(ask(&server, "sentinels").await, json!({"sentinels": []}));
    assert_eq!(ask(&server, "failed").await, json!({"failedJobs": []}));
    assert_eq!(ask(&server, "stale").await, json!({"staleJobs": []}));
    let summary = json!({"total": 0, "fresh": 0, "stale": 0, "dead": 0, "unknown": 0});
    assert_eq!(ask(&server, "heartbeats").await, json!({"jobs": [], "summary": summary}));
    let status = ask(&server, "status").await;
    check_keys(&status, &["running", "reattached", "recovered", "lost", "failed", "startedAt", "completedAt"]);
    assert!(status["startedAt"].is_null());
    for what in ["resume", "clean"] {
        let answer = server.post(&format!("/api/admin/recovery/jobs/{what}")).await.ok();
        assert_eq!(answer, json!({"results": []}));
    }
    assert_eq!(server.get("/api/admin/startup-log").await.ok(), json!({"startups": []}));
}

#[tokio::test]
async fn status_and_metrics_count_what_was_found() {
    let (server, _shims) = start().await;
    let id = running(&server).await;
    let status = ask(&server, "status").await;
    check_keys(&status, &["running", "reattached", "recovered", "lost", "failed", "startedAt", "completedAt"]);
    assert_eq!(status["running"], 1, "{status}");
    for key in ["startedAt", "completedAt"] {
        assert!(status[key].as_str().expect("a time").ends_with('Z'), "{status}");
    }
    let metrics = ask(&server, "metrics").await;
    let counts = ["heartbeatWrites", "heartbeatWriteFailures", "staleDetected", "deadDetected", "reattached", "lost"];
    check_keys(&metrics, &[&counts[..], &["checkMs"]].concat());
    assert!(counts.iter().all(|key| metrics[*key].is_u64()), "{metrics}");
    assert!(metrics["checkMs"].is_number(), "{metrics}");
    assert_eq!(metrics["heartbeatWrites"], 3, "{id}: {metrics}");
}

#[tokio::test]
async fn sentinels_are_shown_as_they_are_also_bad_ones() {
    let (server, shims) = start().await;
    let (good, bad) = (running(&server).await, running(&server).await);
    shims.change(&bad, |folder| {
        folder.sentinel.problem = Some("is not valid JSON".to_string());
        folder.sentinel.last_heartbeat = Some("yesterday".to_string());
        folder.sentinel.status = None;
        folder.sentinel.seq = None;
        folder.sentinel.lock = Lock::Unknown;
    });
    let shown = |id: &str| format!("/data/jobs/{id}/.sentinel.json");
    let expected = json!({"sentinels": [
        {"jobId": bad, "path": shown(&bad), "status": null, "lastHeartbeat": null, "seq": null, "valid": false,
            "error": "is not valid JSON", "lock": "unknown", "exitRecord": false},
        {"jobId": good, "path": shown(&good), "status": "running", "lastHeartbeat": LAST, "seq": 3, "valid": true,
            "error": null, "lock": "held", "exitRecord": false},
    ]});
    assert_eq!(ask(&server, "sentinels").await, expected);
    let job = server.get(&format!("/api/v1/jobs/{bad}")).await.ok();
    assert_eq!((&job["heartbeat_status"], &job["heartbeat_error"]), (&json!("unknown"), &json!("is not valid JSON")));
}

#[tokio::test]
async fn heartbeats_are_told_by_age_and_summed_up() {
    let (server, shims) = start().await;
    let id = create(&server, json!({"command": ["train"], "agentEngine": "gemini"})).await;
    begun(&server, &id).await;
    let (stale, dead, unknown) = (running(&server).await, running(&server).await, running(&server).await);
    shims.age(&stale, Duration::from_secs(345));
    shims.age(&dead, Duration::from_secs(601));
    shims.change(&unknown, |folder| folder.sentinel.problem = Some("cannot be read".to_string()));
    let heartbeats = ask(&server, "heartbeats").await;
    let of = |id: &str, last: Value, age: Value, status: &str, engine: Value| json!({"jobId": id, "lastHeartbeat": last, "ageSeconds": age, "status": status, "agentEngine": engine});
    assert_eq!(
        heartbeats["jobs"],
        json!([
            of(&unknown, json!(null), json!(null), "unknown", json!(null)),
            of(&dead, json!(LAST), json!(601), "dead", json!(null)),
            of(&stale, json!(LAST), json!(345), "stale", json!(null)),
            of(&id, json!(LAST), json!(15), "fresh", json!("gemini")),
        ])
    );
    assert_eq!(heartbeats["summary"], json!({"total": 4, "fresh": 1, "stale": 1, "dead": 1, "unknown": 1}));
    check_keys(&heartbeats, &["jobs", "summary"]);
    let stale_jobs = ask(&server, "stale").await;
    let of = |id: &str, age: f64| {
        json!({"jobId": id, "lastHeartbeat": LAST, "ageMinutes": age,
            "workspacePath": format!("/data/jobs/{id}/workspace"), "recommendedAction": "investigate"})
    };
    assert_eq!(stale_jobs, json!({"staleJobs": [of(&dead, 10.02), of(&stale, 5.75)]}));
}

#[tokio::test]
async fn what_was_lost_is_stale_and_can_be_resumed_and_its_exit_is_not_invented() {
    let (server, shims) = start().await;
    let lost = running(&server).await;
    shims.age(&lost, Duration::from_secs(300));
    shims.change(&lost, |folder| folder.sentinel.lock = Lock::Free);
    let action = async || ask(&server, "stale").await["staleJobs"][0]["recommendedAction"].clone();
    assert_eq!(action().await, "investigate");
    shims.age(&lost, Duration::from_secs(3600));
    assert_eq!(action().await, "none");
    shims.lose(&lost);
    finished(&server, &lost).await;
    assert_eq!(action().await, "resume");
    let seven = failed(&server).await;
    shims.change(&seven, |folder| folder.no_workspace = true);
    let answer = ask(&server, "failed").await;
    check_keys(&answer, &["failedJobs"]);
    let jobs = answer["failedJobs"].as_array().expect("a list");
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        let expected = ["jobId", "reason", "failedAt", "exitCode", "exitSignal", "workspacePath", "resumable"];
        check_keys(job, &expected);
        assert!(job["failedAt"].as_str().expect("a time").ends_with('Z'), "{job}");
    }
    let told = |job: &Value| ["jobId", "exitCode", "exitSignal", "resumable"].map(|key| job[key].clone());
    assert_eq!(told(&jobs[0]), [json!(seven), json!(7), json!(null), json!(false)]);
    assert_eq!(told(&jobs[1]), [json!(lost), json!(null), json!(null), json!(true)]);
    assert!(jobs[0]["reason"].as_str().expect("text").contains("code 7"), "{answer}");
    assert!(jobs[1]["reason"].as_str().expect("text").contains("unknown"), "{answer}");
    assert_eq!(jobs[1]["workspacePath"], format!("/data/jobs/{lost}/workspace"));
}

#[tokio::test]
async fn resume_opens_the_failed_ones_that_are_named_and_says_why_not_the_others() {
    let (server, _shims) = start().await;
    let (first, other, live) = (failed(&server).await, failed(&server).await, running(&server).await);
    let unknown = Uuid::from_u128(7).to_string();
    let run = server.submit(json!({"task": "noop"})).await;
    let body = json!({"jobIds": [first, live, unknown, run, "no id"]});
    let answer = server.post_json("/api/admin/recovery/jobs/resume", body).await.ok();
    check_keys(&answer, &["results"]);
    let results = answer["results"].as_array().expect("a list");
    let told: Vec<_> = results.iter().map(|result| [result["jobId"].clone(), result["outcome"].clone()]).collect();
    let expected = [
        [json!(first), json!("resumed")],
        [json!(live), json!("skipped")],
        [json!(unknown), json!("not-found")],
        [json!(run), json!("not-found")],
        [json!("no id"), json!("not-found")],
    ];
    assert_eq!(told, expected);
    for result in results {
        check_keys(result, &["jobId", "outcome", "detail"]);
        assert!(result["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{result}");
    }
    assert_eq!(finished(&server, &first).await["attempt"], 2);
    assert_eq!(server.get(&format!("/api/v1/jobs/{other}")).await.ok()["attempt"], 1);
    let none = server.post_json("/api/admin/recovery/jobs/resume", json!({"jobIds": []})).await.ok();
    assert_eq!(none, json!({"results": []}));
}

#[tokio::test]
async fn resume_without_names_opens_all_that_failed() {
    let (server, _shims) = start().await;
    let mut ids = [failed(&server).await, failed(&server).await];
    ids.sort_unstable();
    running(&server).await;
    for (attempt, body) in [(2, None), (3, Some("{}")), (4, Some(r#"{"jobIds": null}"#)), (5, Some(" null "))] {
        let answer = match body {
            None => server.post("/api/admin/recovery/jobs/resume").await.ok(),
            Some(body) => server.post_json("/api/admin/recovery/jobs/resume", body).await.ok(),
        };
        let results = answer["results"].as_array().expect("a list");
        let mut resumed: Vec<&str> = results.iter().map(|result| result["jobId"].as_str().expect("an id")).collect();
        resumed.sort_unstable();
        assert_eq!(resumed, ids);
        for id in &ids {
            assert_eq!(finished(&server, id).await["attempt"], attempt);
        }
    }
    for (body, field) in [
        (json!({"jobIds": "all"}), "jobIds"),
        (json!({"jobIds": [7]}), "jobIds[0]"),
        (json!({"jobIds": vec!["x"; 10_001]}), "jobIds"),
        (json!({"job_ids": []}), "job_ids"),
    ] {
        let answer = server.post_json("/api/admin/recovery/jobs/resume", body).await;
        assert_eq!(answer.status, 422, "{}", answer.text());
        assert_eq!(answer.json()["field"], field);
    }
}

#[tokio::test]
async fn clean_removes_what_is_over_for_long_enough_and_a_dry_run_only_counts() {
    let (server, shims) = start().await;
    let (old, held, live) = (failed(&server).await, failed(&server).await, running(&server).await);
    shims.change(&held, |folder| folder.unremovable = true);
    let clean = async |body: Value| {
        let answer = server.post_json("/api/admin/recovery/jobs/clean", body).await.ok();
        answer["results"].as_array().expect("a list").clone()
    };
    assert_eq!(clean(json!({})).await, Vec::<Value>::new());
    assert_eq!(clean(json!({"olderThan": "1h"})).await, Vec::<Value>::new());
    let of = |id: &str, outcome: &str, detail: Value, entries: u64, archived: Value| json!({"jobId": id, "outcome": outcome, "detail": detail, "entries": entries, "bytes": 0, "archivedTo": archived});
    let archive = json!(format!("/data/archive/{old}"));
    let left = of(&held, "left-alone", json!("its lock is held"), 0, json!(null));
    let counted = of(&old, "would-remove", json!(null), 4, archive.clone());
    assert_eq!(clean(json!({"dryRun": true, "olderThan": "0s"})).await, [counted, left.clone()]);
    assert!(shims.has(&old));
    let removed = of(&old, "removed", json!(null), 4, archive);
    assert_eq!(clean(json!({"olderThan": 0})).await, [removed, left]);
    assert!(!shims.has(&old) && shims.has(&held) && shims.has(&live));
    for (body, field) in [
        (json!({"olderThan": "old"}), "olderThan"),
        (json!({"olderThan": -1}), "olderThan"),
        (json!({"olderThan": [1]}), "olderThan"),
        (json!({"dryRun": "yes"}), "dryRun"),
        (json!({"dry_run": true}), "dry_run"),
    ] {
        let answer = server.post_json("/api/admin/recovery/jobs/clean", body).await;
        assert_eq!(answer.status, 422, "{}", answer.text());
        assert_eq!(answer.json()["field"], field, "{}", answer.text());
    }
}

#[tokio::test]
async fn the_health_of_a_job_says_what_there_is_of_it() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    shims.change(&id, |folder| folder.session_data = true);
    let health = async |id: &str| server.get(&format!("/api/admin/jobs/{id}/health")).await;
    let expected = json!({"jobId": id, "heartbeatStatus": "fresh", "lastHeartbeat": LAST, "ageSeconds": 15,
        "sentinelFileExists": true, "workspaceExists": true, "sessionDataExists": true, "error": null});
    assert_eq!(health(&id).await.ok(), expected);
    let waiting = create(&server, json!({"command": ["true"], "run_at": "2990-01-01T00:00:00Z"})).await;
    let expected = json!({"jobId": waiting, "heartbeatStatus": "unknown", "lastHeartbeat": null, "ageSeconds": null,
        "sentinelFileExists": false, "workspaceExists": false, "sessionDataExists": false, "error": null});
    assert_eq!(health(&waiting).await.ok(), expected);
    health(&Uuid::from_u128(7).to_string()).await.problem(StatusCode::NOT_FOUND, "not-found");
    let problem = health("7").await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    assert_eq!(problem["field"], "jobId");
}

#[tokio::test]
async fn the_log_of_starts_is_newest_first() {
    let shims = FakeShims::new();
    let first = started_with(Config::default(), &shims).await;
    let of_first = first.engine.replica_id().expect("it joined").to_string();
    let second = started_with(Config::default(), &shims).await;
    let of_second = second.engine.replica_id().expect("it joined").to_string();
    let log = second.get("/api/admin/startup-log").await.ok();
    check_keys(&log, &["startups"]);
    let starts = log["startups"].as_array().expect("a list");
    let replicas: Vec<&Value> = starts.iter().map(|start| &start["replicaId"]).collect();
    assert_eq!(replicas, [&json!(of_second), &json!(of_first)]);
    for start in starts {
        let counts = ["reattached", "recovered", "lost", "failed"];
        check_keys(start, &[&counts[..], &["replicaId", "version", "startedAt", "completedAt", "jobs"]].concat());
    }
}

#[tokio::test]
async fn parameters_are_refused_where_there_are_none() {
    let (server, _shims) = start().await;
    for (method, path) in ADMIN {
        let answer = server.send(request(method, &format!("{path}?all=1"), &[], Body::empty())).await;
        answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    }
}
