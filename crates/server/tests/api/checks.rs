use crate::common::{Answer, Server, eventually, idle, request, start, token};
use axum::body::Body;
use axum::http::StatusCode;
use everbeat_server::{Config, Scope};
use serde_json::{Value, json};

async fn ping(server: &Server, method: &str, path: &str) -> Value {
    let answer = server.send(request(method, path, &[], Body::empty())).await;
    assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
    if method == "HEAD" { Value::Null } else { answer.json() }
}

async fn check(server: &Server, name: &str) -> Value {
    server.get(&format!("/api/v1/checks/{name}")).await.ok()
}

#[tokio::test]
async fn a_check_is_written_read_back_replaced_and_deleted() {
    let server = idle(Config::default());
    let body = json!({"description": "Backups", "cron": "30 2 * * *", "tz": "Europe/Berlin", "grace": 90});
    let answer = server.put_json("/api/v1/checks/backup", body).await;
    assert_eq!((answer.status, answer.header("location")), (201, "/api/v1/checks/backup"), "{}", answer.text());
    assert_eq!(answer.header("etag"), "\"1\"");
    let made = answer.json();
    for (field, value) in [
        ("name", json!("backup")),
        ("description", json!("Backups")),
        ("period", Value::Null),
        ("cron", json!("30 2 * * *")),
        ("tz", json!("Europe/Berlin")),
        ("grace", json!("90s")),
        ("state", json!("new")),
        ("next_due_at", Value::Null),
        ("pings", json!(0)),
    ] {
        assert_eq!(made[field], value, "{field} of {made}");
    }
    assert_eq!(check(&server, "backup").await, made);
    // What was read may be sent back.
    let again = server.put_json("/api/v1/checks/backup", made.clone()).await;
    assert_eq!((again.status, again.header("etag")), (200, "\"1\""), "{}", again.text());
    let put = |header: (&'static str, &'static str), period: &str| {
        let headers = [("content-type", "application/json"), header];
        server.send(request("PUT", "/api/v1/checks/backup", &headers, json!({ "period": period }).to_string()))
    };
    for header in [("if-match", "\"7\""), ("if-none-match", "*")] {
        put(header, "2h").await.problem(StatusCode::PRECONDITION_FAILED, "precondition-failed");
    }
    let other = put(("if-match", "\"1\""), "2h").await;
    assert_eq!((other.status, other.header("etag")), (200, "\"2\""), "{}", other.text());
    assert_eq!((&other.json()["period"], &other.json()["cron"]), (&json!("2h"), &Value::Null));
    server.put_json("/api/v1/checks/a", json!({})).await;
    let page = server.get("/api/v1/checks?limit=1").await.ok();
    assert_eq!((&page["items"][0]["name"], &page["next_cursor"]), (&json!("a"), &json!("a")));
    assert_eq!(server.get("/api/v1/checks?cursor=a").await.ok()["items"][0]["name"], "backup");
    assert_eq!(server.get("/api/v1/checks?state=up").await.ok()["items"], json!([]));
    assert_eq!(server.delete("/api/v1/checks/backup").await.status, 204);
    server.get("/api/v1/checks/backup").await.problem(StatusCode::NOT_FOUND, "not-found");
    server.delete("/api/v1/checks/backup").await.problem(StatusCode::NOT_FOUND, "not-found");
}

#[tokio::test]
async fn what_is_wrong_with_a_check_or_a_ping_is_named_and_writes_nothing() {
    let server = idle(Config::default());
    let before = server.store.inspect(|state| state.version);
    for (body, field) in [
        (json!({"perod": "1h"}), "perod"),
        (json!({"period": "1h", "cron": "* * * * *"}), "cron"),
        (json!({"cron": "x"}), "cron"),
        (json!({"grace": "0s"}), "grace"),
        (json!({"name": "other"}), "name"),
    ] {
        let answer = server.put_json("/api/v1/checks/backup", body.clone()).await;
        let problem = answer.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value");
        assert_eq!(problem["field"], field, "{body}");
    }
    for path in ["/ping/backup/stop", "/ping/backup/256", "/ping/a%20b", "/ping/a%20b/start", "/ping/backup?rid=1"] {
        server.post(path).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    }
    server.get("/api/v1/checks?state=dead").await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    server.get("/api/v1/checks/backup/pings").await.problem(StatusCode::NOT_FOUND, "not-found");
    server.post("/api/v1/checks/backup/pause").await.problem(StatusCode::NOT_FOUND, "not-found");
    assert_eq!(server.store.inspect(|state| state.version), before, "nothing was written");
}

#[tokio::test]
async fn any_plain_request_pings_and_the_first_one_makes_the_check() {
    let server = idle(Config::default());
    let first = ping(&server, "GET", "/ping/backup/start").await;
    assert_eq!(first, json!({"check": "backup", "state": "new", "created": true}));
    assert!(check(&server, "backup").await["started_at"].is_string());
    let ended = ping(&server, "POST", "/ping/backup").await;
    assert_eq!(ended, json!({"check": "backup", "state": "up", "created": false}));
    let seen = check(&server, "backup").await;
    assert!(seen["last_duration_ms"].is_u64() && seen["started_at"].is_null(), "{seen}");
    assert_eq!((&seen["period"], &seen["grace"]), (&json!("1d"), &json!("1h")));
    assert!(seen["next_due_at"].is_string() && seen["last_success_at"].is_string(), "{seen}");
    ping(&server, "HEAD", "/ping/backup").await;
    assert_eq!(ping(&server, "POST", "/ping/backup/3").await["state"], "down");
    let down = check(&server, "backup").await;
    assert_eq!((&down["down_why"], down["down_since"].is_string()), (&json!("failed"), true), "{down}");
    assert_eq!(ping(&server, "GET", "/ping/backup/log").await["state"], "down");
    assert_eq!(ping(&server, "GET", "/ping/backup/0").await["state"], "up");
    assert_eq!(ping(&server, "POST", "/ping/backup/fail").await["state"], "down");
    let page = server.get("/api/v1/checks/backup/pings?limit=3").await.ok();
    let told: Vec<_> = page["items"].as_array().expect("items").iter().map(|ping| ping["kind"].clone()).collect();
    assert_eq!(told, ["fail", "success", "log"]);
    assert_eq!(page["items"][1]["exit_code"], 0);
    let cursor = page["next_cursor"].as_str().expect("more");
    let rest = server.get(&format!("/api/v1/checks/backup/pings?cursor={cursor}")).await.ok();
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(4));
    assert_eq!((&rest["items"][0]["exit_code"], &rest["next_cursor"]), (&json!(3), &Value::Null));
    let paused = server.post("/api/v1/checks/backup/pause").await.ok();
    assert_eq!((&paused["state"], &paused["next_due_at"]), (&json!("paused"), &Value::Null));
    assert_eq!(ping(&server, "GET", "/ping/backup").await["state"], "paused");
    assert_eq!(server.post("/api/v1/checks/backup/resume").await.ok()["state"], "new");
}

#[tokio::test]
async fn the_beginning_of_what_comes_with_a_ping_is_kept_whatever_it_is() {
    let server = idle(Config::default());
    let send = |kind: &'static str, body: Vec<u8>| {
        let headers: &[(&str, &str)] = if kind.is_empty() { &[] } else { &[("content-type", kind)] };
        server.send(request("POST", "/ping/c/log", headers, body))
    };
    let form = "application/x-www-form-urlencoded";
    for (kind, body) in
        [(form, b"done: 3 files".to_vec()), ("", b"\xff\0x".to_vec()), ("text/plain", vec![b'y'; 60_000])]
    {
        let answer = send(kind, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // More than the limit of bodies: the ping counts all the same.
    let large = send(form, vec![b'z'; 5 << 20]).await;
    assert_eq!(large.status, 200, "{}", large.text());
    let items = server.get("/api/v1/checks/c/pings").await.ok()["items"].clone();
    assert_eq!(items[0]["body"].as_str().map(str::len), Some(10_000));
    assert_eq!(items[1]["body"], "y".repeat(10_000));
    assert_eq!(items[2]["body"], "\u{fffd}\u{fffd}x");
    assert_eq!(items[3]["body"], "done: 3 files");
    // Nothing else takes such bodies.
    let elsewhere = request("PUT", "/api/v1/checks/c", &[("content-type", form)], "a=1");
    server.send(elsewhere).await.problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json");
}

#[tokio::test]
async fn no_page_of_another_site_can_ping() {
    let server = idle(Config::default());
    let before = server.store.inspect(|state| state.version);
    let from = |headers: &'static [(&'static str, &'static str)], method: &'static str| {
        server.send(request(method, "/ping/backup", headers, Body::empty()))
    };
    for method in ["GET", "HEAD", "POST"] {
        for site in ["cross-site", "same-site"] {
            let headers: &'static [_] = if site == "cross-site" {
                &[("sec-fetch-site", "cross-site")]
            } else {
                &[("sec-fetch-site", "same-site")]
            };
            assert_eq!(from(headers, method).await.status, 403, "{method} {site}");
        }
        assert_eq!(from(&[("origin", "http://evil.example")], method).await.status, 403, "{method}");
        assert_eq!(from(&[("host", "evil.example")], method).await.status, 403, "{method}");
    }
    assert_eq!(server.store.inspect(|state| state.version), before, "nothing was written");
    assert_eq!(from(&[("sec-fetch-site", "none")], "GET").await.status, 200, "typed by hand");
}

#[tokio::test]
async fn pings_open_to_tokens_of_heartbeats_alone() {
    let tokens = vec![
        token("cron", "h", &[Scope::Heartbeat]),
        token("reader", "r", &[Scope::Read]),
        token("submitter", "s", &[Scope::Submit]),
    ];
    let server = idle(Config { tokens, ..Config::default() });
    let ask = |method: &'static str, path: &'static str, secret: &'static str| {
        let bearer = format!("Bearer {secret}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        let body = if method == "PUT" { Body::from("{}") } else { Body::empty() };
        let request = request(method, path, &headers, body);
        async { server.send(request).await }
    };
    let before = server.store.inspect(|state| state.version);
    for (method, path, secret, status) in [
        ("GET", "/ping/c", "nobody", 401),
        ("GET", "/ping/c", "r", 403),
        ("POST", "/ping/c/start", "s", 403),
        ("GET", "/ping/c/5/x", "r", 403),
        ("PUT", "/api/v1/checks/c", "h", 403),
        ("PUT", "/api/v1/checks/c", "r", 403),
        ("GET", "/api/v1/checks", "h", 403),
        ("DELETE", "/api/v1/checks/c", "h", 403),
        ("POST", "/api/v1/checks/c/pause", "r", 403),
    ] {
        assert_eq!(ask(method, path, secret).await.status, status, "{method} {path} {secret}");
    }
    assert_eq!(server.store.inspect(|state| state.version), before, "nothing was written");
    assert_eq!(ask("GET", "/ping/c", "h").await.status, 200);
    assert_eq!(ask("GET", "/api/v1/checks/c/pings", "r").await.status, 200);
    assert_eq!(ask("PUT", "/api/v1/checks/c", "s").await.status, 200);
    let own: Answer = server.send(request("POST", "/ping/c/1", &[("x-heartbeat-token", "h")], Body::empty())).await;
    assert_eq!(own.status, 200, "{}", own.text());
}

#[tokio::test]
async fn a_server_that_is_read_only_takes_no_ping() {
    let server = idle(Config { read_only: true, ..Config::default() });
    for method in ["GET", "POST"] {
        let answer = server.send(request(method, "/ping/c", &[], Body::empty())).await;
        answer.problem(StatusCode::FORBIDDEN, "read-only");
    }
    assert_eq!(server.get("/api/v1/checks").await.ok()["items"], json!([]));
}

#[tokio::test]
async fn a_check_that_is_missed_goes_down_and_is_in_the_figures() {
    let server = start().await;
    server.put_json("/api/v1/checks/c", json!({"period": "1s", "grace": "1s"})).await;
    ping(&server, "POST", "/ping/c").await;
    let down = eventually(|| async {
        let seen = check(&server, "c").await;
        (seen["state"] == "down").then_some(seen)
    })
    .await;
    assert_eq!(down["down_why"], "missed");
    let figures = server.get("/metrics").await.text();
    assert!(figures.contains("everbeat_checks{state=\"down\"} 1\n"), "{figures}");
    assert!(figures.contains("everbeat_checks{state=\"up\"} 0\n"));
    assert!(figures.contains("everbeat_schedules_late{kind=\"flow\"} 0\n"));
    assert_eq!(ping(&server, "POST", "/ping/c").await["state"], "up");
}
