use crate::common::{Server, eventually, idle, idle_with_settings, request, start, started_with_settings, token};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use everbeat_server::{Config, Scope};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A flow whose body is a task.
fn of_task(task: &str) -> Value {
    json!({"run_interval": 3600, "configuration": {"task": task, "table": "products"}})
}

async fn put(server: &Server, name: &str, body: Value) -> Value {
    let answer = server.put_json(&format!("/api/v1/flows/{name}"), body).await;
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    answer.json()
}

async fn runs(server: &Server, name: &str) -> Vec<Value> {
    let page = server.get(&format!("/api/v1/flows/{name}/runs")).await.ok();
    page["items"].as_array().expect("items").clone()
}

async fn heartbeat(server: &Server) -> (u64, u64) {
    let answer = server.post("/dataflow/heartbeat").await.ok();
    assert_eq!(answer["status"], "Heartbeat processed");
    assert_eq!(answer.as_object().map(serde_json::Map::len), Some(3));
    (answer["flows_due"].as_u64().expect("a count"), answer["flows_triggered"].as_u64().expect("a count"))
}

/// One that leaves the clock to whoever calls.
async fn called() -> Server {
    started_with_settings(Config::default(), |settings| settings.flow_ticker = false).await
}

#[tokio::test]
async fn a_flow_is_written_read_back_replaced_and_deleted() {
    let server = idle(Config::default());
    let answer = server.put_json("/api/v1/flows/products", of_task("echo")).await;
    assert_eq!((answer.status, answer.header("location")), (201, "/api/v1/flows/products"), "{}", answer.text());
    assert_eq!(answer.header("etag"), "\"1\"");
    let flow = answer.json();
    for (field, value) in [
        ("name", json!("products")),
        ("enabled", json!(true)),
        ("run_interval", json!(3600)),
        ("schedule", json!({"every": "1h"})),
        ("overlap", json!("skip")),
        ("catch_up", json!("latest")),
        ("configuration", json!({"task": "echo", "table": "products"})),
        ("last_run_at", Value::Null),
        ("last_run_status", Value::Null),
        ("last_run_error", Value::Null),
    ] {
        assert_eq!(flow[field], value, "{field} of {flow}");
    }
    assert!(flow["next_due_at"].is_string() && flow["created_at"].is_string(), "{flow}");
    assert_eq!(server.get("/api/v1/flows/products").await.ok(), flow);
    // What was read may be sent back.
    let again = server.put_json("/api/v1/flows/products", flow.clone()).await;
    assert_eq!((again.status, again.header("etag")), (200, "\"1\""), "{}", again.text());
    let other = json!({"schedule": {"cron": "30 2 * * *", "tz": "Europe/Berlin"}, "configuration": {"task": "noop"}});
    let stale = request("PUT", "/api/v1/flows/products", &JSON_IF_7, other.to_string());
    server.send(stale).await.problem(StatusCode::PRECONDITION_FAILED, "precondition-failed");
    let fresh = request("PUT", "/api/v1/flows/products", &JSON_IF_1, other.to_string());
    let answer = server.send(fresh).await;
    assert_eq!((answer.status, answer.header("etag")), (200, "\"2\""), "{}", answer.text());
    assert_eq!(answer.json()["run_interval"], Value::Null);
    let taken = request("PUT", "/api/v1/flows/products", &JSON_IF_NONE, other.to_string());
    server.send(taken).await.problem(StatusCode::PRECONDITION_FAILED, "precondition-failed");
    put(&server, "b", of_task("noop")).await;
    let names = server.get("/api/v1/flows?limit=1").await.ok();
    assert_eq!((&names["items"][0]["name"], &names["next_cursor"]), (&json!("b"), &json!("b")));
    assert_eq!(server.get("/api/v1/flows?cursor=b").await.ok()["items"][0]["name"], "products");
    assert_eq!(server.delete("/api/v1/flows/products").await.status, 204);
    server.get("/api/v1/flows/products").await.problem(StatusCode::NOT_FOUND, "not-found");
    server.delete("/api/v1/flows/products").await.problem(StatusCode::NOT_FOUND, "not-found");
}

const JSON_IF_7: [(&str, &str); 2] = [("content-type", "application/json"), ("if-match", "\"7\"")];
const JSON_IF_1: [(&str, &str); 2] = [("content-type", "application/json"), ("if-match", "\"1\"")];
const JSON_IF_NONE: [(&str, &str); 2] = [("content-type", "application/json"), ("if-none-match", "*")];

#[tokio::test]
async fn what_is_wrong_with_a_flow_is_named() {
    let server = idle(Config::default());
    for (body, field) in [
        (json!({"configuration": {"task": "noop"}, "run_interval": 0}), "run_interval"),
        (json!({"configuration": {"task": "noop"}, "schedule": {"cron": "x"}}), "schedule.cron"),
        (json!({"configuration": {"task": "noop"}, "schedule": {"cron": "* * * * *", "tz": "Mars"}}), "schedule.tz"),
        (json!({"configuration": {"task": "noop"}, "overlaps": "skip"}), "overlaps"),
        (json!({"configuration": {"task": "noop"}, "enabled": "yes"}), "enabled"),
        (json!({"configuration": {"task": "noop"}, "policy": {"max_attempts": 0}}), "policy.max_attempts"),
        (json!({"configuration": {"task": "noop"}, "after": ["f"]}), "after[0]"),
        (json!({"run_interval": 5}), "configuration"),
    ] {
        let answer = server.put_json("/api/v1/flows/f", &body).await;
        let problem = answer.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value");
        assert_eq!(problem["field"], field, "{body}");
    }
    let unknown = server.put_json("/api/v1/flows/f", of_task("no-such-task")).await;
    unknown.problem(StatusCode::UNPROCESSABLE_ENTITY, "unknown-task");
    put(&server, "a", json!({"configuration": {"task": "noop"}, "after": ["b"]})).await;
    let looped = server.put_json("/api/v1/flows/b", json!({"configuration": {"task": "noop"}, "after": ["a"]})).await;
    assert_eq!(looped.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value")["field"], "after");
    for path in ["/api/v1/flows/none/trigger", "/api/v1/flows/none/enable", "/api/v1/schedules/none/trigger"] {
        server.post(path).await.problem(StatusCode::NOT_FOUND, "not-found");
    }
    assert_eq!(server.runs_stored(), 0);
}

#[tokio::test]
async fn a_heartbeat_makes_the_runs_that_are_due_and_no_others() {
    let server = called().await;
    assert_eq!(heartbeat(&server).await, (0, 0));
    put(&server, "never-run", of_task("echo")).await;
    put(&server, "fails", of_task("fail")).await;
    put(&server, "off", json!({"run_interval": 1, "enabled": false, "configuration": {"task": "noop"}})).await;
    put(&server, "unscheduled", json!({"configuration": {"task": "noop"}})).await;
    put(&server, "later", json!({"schedule": {"cron": "0 0 1 1 *"}, "configuration": {"task": "noop"}})).await;
    assert_eq!(heartbeat(&server).await, (2, 2));
    assert_eq!(heartbeat(&server).await, (0, 0), "nothing is due twice");
    let done = eventually(|| async {
        let run = runs(&server, "never-run").await.pop().expect("its run");
        (run["status"] == "success").then_some(run)
    })
    .await;
    assert_eq!(done["flow"], "never-run");
    assert!(done["due_at"].is_string() && done["started_at"].is_string() && done["duration_ms"].is_u64(), "{done}");
    let run = server.get(&format!("/api/v1/runs/{}", done["id"].as_str().expect("an id"))).await.ok();
    assert_eq!((&run["kind"], &run["result"]), (&json!("flow"), &json!({"task": "echo", "table": "products"})));
    assert_eq!(run["args"]["flow"], "never-run");
    let flow = server.get("/api/v1/flows/never-run").await.ok();
    assert_eq!(flow["last_run_status"], "success");
    for quiet in ["off", "unscheduled", "later"] {
        assert!(runs(&server, quiet).await.is_empty(), "{quiet}");
    }
}

#[tokio::test]
async fn many_heartbeats_at_once_make_each_run_once() {
    let server = called().await;
    for number in 0..200 {
        put(&server, &format!("flow-{number}"), of_task("noop")).await;
    }
    let calls = (0..32).map(|_| heartbeat(&server));
    let heard = futures_util::future::join_all(calls).await;
    assert_eq!(heard.iter().map(|(_, triggered)| triggered).sum::<u64>(), 200);
    assert!(heard.iter().any(|(due, _)| *due == 200), "{heard:?}");
    assert_eq!(server.runs_stored(), 200);
}

#[tokio::test]
async fn what_is_still_running_is_skipped_and_a_trigger_waits_for_its_turn() {
    let server = called().await;
    put(&server, "slow", json!({"run_interval": 1, "configuration": {"task": "gate"}})).await;
    assert_eq!(heartbeat(&server).await, (1, 1));
    eventually(|| async { (heartbeat(&server).await == (1, 0)).then_some(()) }).await;
    let waiting = server.post("/api/v1/flows/slow/trigger").await;
    assert_eq!((waiting.status, &waiting.json()["status"]), (202, &json!("pending")), "{}", waiting.text());
    let flow = server.get("/api/v1/flows/slow").await.ok();
    assert_eq!((&flow["waiting"], &flow["running"]), (&json!(1), &json!(1)));
    assert_eq!(server.runs_stored(), 1);
    assert_eq!(runs(&server, "slow").await.len(), 2);
    // What cannot be read is refused: a part that is asked for must not become the whole.
    let unreadable = server.post_json("/api/v1/flows/slow/trigger", "{\"from\": 1e999}").await;
    assert_eq!(unreadable.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value")["field"], "from");
    server.gate.send_replace(true);
    let id = waiting.json()["id"].as_str().expect("an id").to_string();
    eventually(|| async { (server.get(&format!("/api/v1/runs/{id}")).await.status == 200).then_some(()) }).await;
    assert_eq!(server.finished(&id).await["state"], "succeeded");
}

#[tokio::test]
async fn the_ticker_needs_no_heartbeat_and_a_chain_follows() {
    let server = start().await;
    put(&server, "second", json!({"after": ["first"], "configuration": {"task": "echo"}})).await;
    put(&server, "first", json!({"run_interval": 3600, "configuration": {"task": "noop"}})).await;
    let chained = eventually(|| async {
        let run = runs(&server, "second").await.pop()?;
        (run["status"] == "success").then_some(run)
    })
    .await;
    let run = server.get(&format!("/api/v1/runs/{}", chained["id"].as_str().expect("an id"))).await.ok();
    assert_eq!(run["args"]["cause"], "after");
}

#[tokio::test]
async fn a_schedule_runs_any_task_and_says_when_it_is_due() {
    let server = start().await;
    let body = json!({"task": "echo", "input": {"a": 1}, "schedule": {"every": "1h"}});
    let answer = server.put_json("/api/v1/schedules/hourly", body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let done = eventually(|| async {
        let page = server.get("/api/v1/schedules/hourly/runs").await.ok();
        (page["items"][0]["status"] == "success").then(|| page["items"][0].clone())
    })
    .await;
    let run = server.get(&format!("/api/v1/runs/{}", done["id"].as_str().expect("an id"))).await.ok();
    assert_eq!((&run["kind"], &run["result"]), (&json!("task"), &json!({"a": 1})));
    assert_eq!(
        server.get("/api/v1/schedules/hourly/next?limit=3").await.ok()["items"].as_array().map(Vec::len),
        Some(3)
    );
    assert_eq!(server.post("/api/v1/schedules/hourly/disable").await.ok()["next_due_at"], Value::Null);
    assert_eq!(server.get("/api/v1/schedules/hourly/next").await.ok()["items"], json!([]));
    assert_eq!(server.post("/api/v1/schedules/hourly/trigger").await.status, 201);
    assert!(server.post("/api/v1/schedules/hourly/enable").await.ok()["next_due_at"].is_string());
}

#[tokio::test]
async fn a_trigger_with_an_idempotency_key_makes_one_run() {
    let server = called().await;
    put(&server, "f", json!({"configuration": {"task": "noop"}})).await;
    put(&server, "g", json!({"configuration": {"task": "noop"}})).await;
    let trigger = |name: &'static str, body: Value| {
        let headers = [("content-type", "application/json"), ("idempotency-key", "k")];
        let path = format!("/api/v1/flows/{name}/trigger");
        server.send(request("POST", &path, &headers, body.to_string()))
    };
    let first = trigger("f", json!({"from": 1, "to": 5})).await;
    assert_eq!(first.status, 201, "{}", first.text());
    let again = trigger("f", json!({"to": 5, "from": 1})).await;
    assert_eq!((again.status, &again.json()["id"]), (200, &first.json()["id"]), "{}", again.text());
    for (name, body) in [("f", json!({"from": 2})), ("f", json!({})), ("g", json!({"from": 1, "to": 5}))] {
        let refused = trigger(name, body).await;
        refused.problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused");
    }
    assert_eq!((runs(&server, "f").await.len(), runs(&server, "g").await.len()), (1, 0));
    server.put_json("/api/v1/schedules/s", json!({"task": "noop"})).await;
    let path = "/api/v1/schedules/s/trigger";
    let keyed = [("idempotency-key", "s")];
    let first = server.send(request("POST", path, &keyed, Body::empty())).await;
    let again = server.send(request("POST", path, &keyed, Body::empty())).await;
    assert_eq!((first.status, again.status, &again.json()["id"]), (201, 200, &first.json()["id"]));
}

#[tokio::test]
async fn a_list_of_large_schedules_comes_in_parts() {
    let server = idle(Config::default());
    for number in 0..6 {
        let body = json!({"task": "echo", "input": "x".repeat(7 << 19)});
        let answer = server.put_json(&format!("/api/v1/schedules/s{number}"), body).await;
        assert_eq!(answer.status, 201, "{}", answer.status);
    }
    let page = server.get("/api/v1/schedules").await.ok();
    assert_eq!((page["items"].as_array().map(Vec::len), &page["next_cursor"]), (Some(5), &json!("s4")));
    let rest = server.get("/api/v1/schedules?cursor=s4").await.ok();
    assert_eq!((&rest["items"][0]["name"], &rest["next_cursor"]), (&json!("s5"), &Value::Null));
}

fn guarded() -> Config {
    let tokens = vec![
        token("cron", "h-secret-1", &[Scope::Heartbeat]),
        token("cron, next", "h-secret-2", &[Scope::Heartbeat]),
        token("reader", "r-secret", &[Scope::Read]),
    ];
    Config {
        tokens,
        allow: vec!["10.0.0.0/8".parse().expect("net")],
        trusted_proxies: vec!["192.0.2.0/24".parse().expect("net")],
        ..Config::default()
    }
}

#[tokio::test]
async fn the_heartbeat_endpoint_opens_to_its_tokens_and_addresses_alone() {
    let server = idle_with_settings(guarded(), |settings| settings.flow_ticker = false);
    let before = server.store.inspect(|state| state.version);
    let bearer = |secret: &str| vec![("authorization".to_string(), format!("Bearer {secret}"))];
    let own = |secret: &str| vec![("x-heartbeat-token".to_string(), secret.to_string())];
    let with = |mut headers: Vec<(String, String)>, hops: &str| {
        headers.push(("x-forwarded-for".to_string(), hops.to_string()));
        headers
    };
    for (peer, headers, status) in [
        ("10.0.0.1:5", vec![], 401),
        ("10.0.0.1:5", bearer("nonsense"), 401),
        ("10.0.0.1:5", own("nonsense"), 401),
        ("10.0.0.1:5", bearer("r-secret"), 403),
        ("10.0.0.1:5", own("r-secret"), 403),
        ("172.16.0.1:5", bearer("h-secret-1"), 403),
        ("172.16.0.1:5", with(bearer("h-secret-1"), "10.0.0.1"), 403),
        ("192.0.2.7:5", with(bearer("h-secret-1"), "172.16.0.1"), 403),
        ("10.0.0.1:5", bearer("h-secret-1"), 200),
        ("10.0.0.1:5", bearer("h-secret-2"), 200),
        ("10.0.0.1:5", own("h-secret-1"), 200),
        ("[::ffff:10.0.0.1]:5", own("h-secret-2"), 200),
        ("192.0.2.7:5", with(bearer("h-secret-1"), "10.0.0.1"), 200),
    ] {
        let shown: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut request = request("POST", "/dataflow/heartbeat", &shown, Body::empty());
        let address: SocketAddr = peer.parse().expect("an address");
        request.extensions_mut().insert(ConnectInfo(address));
        let answer = server.send(request).await;
        assert_eq!(answer.status, status, "{peer} {headers:?}: {}", answer.text());
    }
    // The header of its own opens nothing else.
    let mut elsewhere = request("GET", "/api/v1/runs", &[("x-heartbeat-token", "r-secret")], Body::empty());
    elsewhere.extensions_mut().insert(ConnectInfo("10.0.0.1:5".parse::<SocketAddr>().expect("an address")));
    assert_eq!(server.send(elsewhere).await.status, 401);
    assert_eq!(server.store.inspect(|state| state.version), before, "nothing was written");
}
