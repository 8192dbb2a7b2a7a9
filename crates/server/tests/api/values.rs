use crate::common::{Server, eventually, idle, start, started};
use axum::http::StatusCode;
use everbeat_server::{Config, serve};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

async fn begun(server: &Server) -> String {
    let nodes = json!([
        {"name": "a", "kind": "input"},
        {"name": "b", "kind": "input"},
        {"name": "copy", "kind": "compute", "gate": ["a"], "task": "echo"},
        {"name": "broken", "kind": "compute", "gate": ["b"], "task": "fail", "args": {"message": "out of luck"},
            "options": {"max_attempts": 1}},
        {"name": "log", "kind": "historian", "gate": ["a"]},
    ]);
    server.apply("g", nodes).await;
    server.execute("g", json!({})).await
}

async fn set(server: &Server, path: &str, values: Value) -> Value {
    server.put_json(&format!("{path}/values"), json!({"values": values, "metadata": {"by": "me"}})).await.ok()
}

#[tokio::test]
async fn a_change_answers_the_revision_and_no_change_the_same_one() {
    let server = idle(Config::default());
    let path = begun(&server).await;
    assert_eq!(set(&server, &path, json!({"a": 1, "b": [null]})).await, json!({"revision": 1}));
    assert_eq!(set(&server, &path, json!({"a": 1.0})).await["revision"], 1);
    assert_eq!(set(&server, &path, json!({"a": 2})).await["revision"], 2);
    let value = server.get(&format!("{path}/values/a")).await.ok();
    assert!(value["set_at"].is_string(), "{value}");
    let mut rest = value.clone();
    rest.as_object_mut().expect("an object").remove("set_at");
    assert_eq!(rest, json!({"node": "a", "value": 2, "revision": 2, "metadata": {"by": "me"}}));
    assert_eq!(server.delete(&format!("{path}/values/a")).await.ok(), json!({"revision": 3}));
    assert_eq!(server.delete(&format!("{path}/values/a")).await.ok(), json!({"revision": 3}));
    let problem = server.get(&format!("{path}/values/a")).await.problem(StatusCode::NOT_FOUND, "not-set");
    assert!(problem["detail"].as_str().expect("text").contains("\"a\""), "{problem}");
    assert_eq!(server.get(&format!("{path}/values/log")).await.ok()["value"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn values_are_set_wholly_or_not_at_all_and_mistakes_are_named() {
    let server = idle(Config::default());
    let path = begun(&server).await;
    let deep = |levels: usize| format!(r#"{{"values": {{"a": {}1{}}}}}"#, "[".repeat(levels), "]".repeat(levels));
    for (body, kind, field) in [
        (json!({"values": {"a": 1, "aa": 2}}).to_string(), "invalid-value", "aa"),
        (json!({"values": {"a": 1, "copy": 2}}).to_string(), "invalid-value", "copy"),
        (json!({"values": {"a": 1}, "meta": 2}).to_string(), "unknown-field", "meta"),
        (json!({"values": 5}).to_string(), "invalid-value", "values"),
        (json!({"metadata": 5}).to_string(), "invalid-value", "values"),
        (json!([{"a": 1}, null]).to_string(), "invalid-value", "the body"),
        (r#"{"values": {"a": 1e999}}"#.to_string(), "invalid-value", "values.a"),
        (r#"{"values": {"a": "\ud800"}}"#.to_string(), "invalid-value", "values.a"),
        (r#"{"values": {"a": 1}, "metadata": -1e999}"#.to_string(), "invalid-value", "metadata"),
        (deep(101), "invalid-value", "values.a"),
        (deep(5000), "invalid-value", "values.a"),
    ] {
        let shown: String = body.chars().take(60).collect();
        let answer = server.put_json(&format!("{path}/values"), body).await;
        let problem = answer.problem(StatusCode::UNPROCESSABLE_ENTITY, kind);
        assert_eq!(problem["field"], field, "{shown}: {problem}");
    }
    for body in ["", "{", "nonsense"] {
        let answer = server.put_json(&format!("{path}/values"), body).await;
        answer.problem(StatusCode::BAD_REQUEST, "malformed-request");
    }
    assert_eq!(server.get(&path).await.ok()["revision"], 0);
    server.put_json(&format!("{path}/values"), deep(100)).await.ok();
    server.get(&path).await.ok();
    let computed = server.delete(&format!("{path}/values/copy")).await;
    computed.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value");
    for path in [format!("{path}/values/aa"), format!("{path}/values/aa?wait=any")] {
        server.get(&path).await.problem(StatusCode::NOT_FOUND, "not-found");
    }
    server.delete(&format!("{path}/values/aa")).await.problem(StatusCode::NOT_FOUND, "not-found");
    server.get(&format!("{path}/values/%00")).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    server.get(&format!("{path}/values/%ff")).await.problem(StatusCode::BAD_REQUEST, "malformed-request");
}

#[tokio::test]
async fn a_wait_ends_with_the_value_that_was_asked_for() {
    let server = start().await;
    let path = begun(&server).await;
    let copy = format!("{path}/values/copy");
    let any = format!("{copy}?wait=any");
    let (any, revision) = tokio::join!(server.get(&any), set(&server, &path, json!({"a": 1})));
    assert_eq!(any.ok()["value"]["a"], 1);
    assert_eq!(revision["revision"], 1);
    let first = server.get(&format!("{copy}?wait=immediate")).await.ok()["revision"].as_u64().expect("a revision");
    let newer = format!("{copy}?wait=newer_than&revision={first}&timeout=20s");
    let (newer, _) = tokio::join!(server.get(&newer), set(&server, &path, json!({"a": 2})));
    let newer = newer.ok();
    assert_eq!(newer["value"]["a"], 2);
    assert!(newer["revision"].as_u64() > Some(first), "{newer}");
    assert_eq!(server.get(&format!("{copy}?wait=newer_than&revision=0")).await.ok(), newer);
    let newest = async {
        let waited = server.get(&format!("{copy}?wait=newer")).await.ok();
        assert_eq!(waited["value"]["a"], 3);
    };
    tokio::join!(newest, set(&server, &path, json!({"a": 3})));
}

#[tokio::test]
async fn a_wait_that_is_over_says_what_is_waited_for() {
    let server = idle(Config::default());
    let path = begun(&server).await;
    for (query, said) in [
        ("copy?wait=any&timeout=20ms", "a is not set"),
        ("copy?wait=newer&timeout=0", "a is not set"),
        ("a?wait=any&timeout=1ms", "to be set"),
    ] {
        let answer = server.get(&format!("{path}/values/{query}")).await;
        let problem = answer.problem(StatusCode::REQUEST_TIMEOUT, "wait-timed-out");
        assert!(problem["detail"].as_str().expect("text").contains(said), "{problem}");
    }
    for (query, field) in [
        ("wait=newer_than", "revision"),
        ("revision=1", "revision"),
        ("wait=any&revision=1", "revision"),
        ("wait=newer_than&revision=-1", "revision"),
        ("wait=newer_than&revision=x", "revision"),
        ("wait=finished", "wait"),
        ("wait=any&timeout=6m", "timeout"),
        ("wait=any&timeout=soon", "timeout"),
        ("wiat=any", "wiat"),
    ] {
        let answer = server.get(&format!("{path}/values/a?{query}")).await;
        assert_eq!(answer.problem(StatusCode::BAD_REQUEST, "bad-parameter")["field"], field, "{query}");
    }
}

#[tokio::test]
async fn a_computation_that_failed_for_good_is_told_at_once_with_its_reason() {
    let server = start().await;
    let path = begun(&server).await;
    let wait = format!("{path}/values/broken?wait=any&timeout=20s");
    let (answer, _) = tokio::join!(server.get(&wait), set(&server, &path, json!({"b": 1})));
    let problem = answer.problem(StatusCode::CONFLICT, "computation-failed");
    assert!(problem["detail"].as_str().expect("text").contains("out of luck"), "{problem}");
    let now = server.get(&format!("{path}/values/broken")).await;
    now.problem(StatusCode::CONFLICT, "computation-failed");
    let node = server.get(&path).await.ok()["nodes"]["broken"].clone();
    assert_eq!((&node["state"], &node["attempt"]), (&json!("failed"), &Value::Null));
    assert!(node["error"].as_str().expect("text").contains("out of luck"), "{node}");
}

#[tokio::test]
async fn history_is_oldest_first_and_read_part_by_part() {
    let server = start().await;
    let path = begun(&server).await;
    set(&server, &path, json!({"a": 1})).await;
    server.get(&format!("{path}/values/copy?wait=any")).await.ok();
    server.delete(&format!("{path}/values/a")).await.ok();
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("{path}/history?limit=2{cursor}")).await.ok();
        seen.extend(page["items"].as_array().expect("items").clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let told: Vec<Value> = seen.iter().map(|item| json!([item["node"], item["kind"]])).collect();
    let expected = json!([["a", "set"], ["log", "set"], ["copy", "set"], ["a", "cleared"], ["copy", "cleared"]]);
    assert_eq!(Value::from(told), expected, "{seen:?}");
    let mut first = seen[0].clone();
    assert!(first["at"].is_string() && first["place"].is_u64(), "{first}");
    let fields = first.as_object_mut().expect("an object");
    fields.retain(|name, _| !["at", "place"].contains(&name.as_str()));
    assert_eq!(
        first,
        json!({"node": "a", "kind": "set", "value": 1, "revision": 1, "metadata": {"by": "me"}, "run_id": null})
    );
    assert!(seen[2]["run_id"].is_string() && seen[3]["value"].is_null(), "{seen:?}");
    for cursor in ["x", "-1", "9223372036854775808"] {
        let answer = server.get(&format!("{path}/history?cursor={cursor}")).await;
        answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    }
}

#[tokio::test]
async fn a_node_that_is_gone_from_the_graph_keeps_its_value() {
    let server = start().await;
    let path = begun(&server).await;
    set(&server, &path, json!({"a": 1, "b": 2})).await;
    server.apply("g", json!([{"name": "b", "kind": "input"}])).await;
    let execution = eventually(|| async {
        let execution = server.get(&path).await.ok();
        (execution["nodes"].as_object().map(|nodes| nodes.len()) == Some(1)).then_some(execution)
    })
    .await;
    assert_eq!(execution["values"]["a"]["value"], 1);
    assert_eq!(server.get(&format!("{path}/values/a")).await.ok()["value"], 1);
    server.delete(&format!("{path}/values/a")).await.problem(StatusCode::NOT_FOUND, "not-found");
}

#[tokio::test]
async fn waits_end_with_their_client_and_with_the_server() {
    let server = started(Config::default()).await;
    let path = begun(&server).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let (end, ended) = oneshot::channel::<()>();
    let serving = serve(server.engine.clone(), Config::default(), listener, async { _ = ended.await });
    let client = async {
        let get = format!("GET {path}/values/a?wait=any HTTP/1.1\r\nhost: {address}\r\n\r\n");
        let mut gone = TcpStream::connect(address).await.expect("connected");
        gone.write_all(get.as_bytes()).await.expect("sent");
        drop(gone);
        let mut waiting = TcpStream::connect(address).await.expect("connected");
        waiting.write_all(get.as_bytes()).await.expect("sent");
        // One more exchange gives the wait time to begin; whether it did or not, it must end in order.
        let mut probe = TcpStream::connect(address).await.expect("connected");
        let asked = format!("GET /livez HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        probe.write_all(asked.as_bytes()).await.expect("sent");
        probe.read_to_string(&mut String::new()).await.expect("answered");
        end.send(()).expect("serving");
        let mut rest = String::new();
        waiting.read_to_string(&mut rest).await.expect("the wait ends in order");
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 503"), "{rest}");
    };
    let (served, ()) = tokio::join!(serving, client);
    served.expect("an orderly end");
}
