use crate::common::{Server, idle, request, start};
use axum::body::Body;
use axum::http::StatusCode;
use everbeat_server::Config;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use uuid::Uuid;

fn nodes() -> Value {
    json!([
        {"name": "a", "kind": "input"},
        {"name": "b", "kind": "input"},
        {"name": "copy", "kind": "compute", "gate": ["a"], "task": "echo", "args": {"k": 1}},
        {"name": "slow", "kind": "compute", "gate": ["b"], "task": "gate"},
    ])
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).keys().map(String::as_str).collect()
}

#[tokio::test]
async fn an_execution_shows_its_values_and_what_each_node_does() {
    let server = start().await;
    server.apply("g", nodes()).await;
    let body = json!({"graph": "g", "version": 1, "values": {"a": {"x": 1.0}}, "metadata": {"by": "me"}});
    let answer = server.post_json("/api/v1/executions", body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let begun = answer.json();
    let path = answer.header("location").to_string();
    assert_eq!(path, format!("/api/v1/executions/{}", begun["id"].as_str().expect("an id")));
    server.get(&format!("{path}/values/copy?wait=any")).await.ok();
    server.put_json(&format!("{path}/values"), json!({"values": {"b": null}})).await.ok();
    let execution = server.get(&path).await.ok();
    let known = ["id", "graph", "version", "revision", "archived_at", "created_at", "updated_at", "values", "nodes"];
    assert_eq!(keys(&execution), known.into());
    assert_eq!(
        (&execution["graph"], &execution["version"], &execution["archived_at"]),
        (&json!("g"), &json!("1"), &Value::Null)
    );
    assert_eq!(execution["revision"], 3);
    let a = &execution["values"]["a"];
    assert_eq!(keys(a), ["value", "revision", "set_at", "metadata"].into());
    assert_eq!((&a["value"], &a["revision"], &a["metadata"]), (&json!({"x": 1.0}), &json!(1), &json!({"by": "me"})));
    assert_eq!(execution["values"]["b"]["value"], Value::Null);
    let of = |node: &str| execution["nodes"][node].clone();
    let known = ["kind", "state", "waiting_for", "attempt", "error", "run_id", "iterations", "due_at"];
    assert_eq!(keys(&of("a")), known.into());
    assert_eq!(
        (&of("a")["kind"], &of("a")["state"], &of("a")["attempt"]),
        (&json!("input"), &json!("set"), &Value::Null)
    );
    assert_eq!((&of("copy")["state"], &of("copy")["attempt"]), (&json!("computed"), &Value::Null));
    assert_eq!(of("slow")["state"], "computing");
    assert!(of("slow")["attempt"].is_u64() && of("slow")["run_id"].is_string(), "{execution}");
    let run = server.get(&format!("/api/v1/runs/{}", of("copy")["run_id"].as_str().expect("a run"))).await.ok();
    assert_eq!((&run["kind"], &run["args"]), (&json!("node"), &json!({"k": 1})));
    assert_eq!(run["parent"], json!({"execution": begun["id"], "node": "copy"}));
    assert_eq!(run["input"], json!({"a": {"x": 1.0}}));
    let task = server.submit(json!({"task": "noop"})).await;
    let task = server.get(&format!("/api/v1/runs/{task}")).await.ok();
    assert_eq!((&task["parent"], &task["args"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn a_start_is_made_once_per_key_and_per_singleton() {
    let server = idle(Config::default());
    server.apply("g", nodes()).await;
    let key = [("idempotency-key", "k-1")];
    let first = server.post_with("/api/v1/executions", &key, r#"{"graph": "g", "values": {"a": 1, "b": 2}}"#).await;
    assert_eq!(first.status, 201);
    let again = server.post_with("/api/v1/executions", &key, r#"{"values":{"b":2,"a":1},"graph":"g"}"#).await.ok();
    assert_eq!(again["id"], first.json()["id"]);
    let other = server.post_with("/api/v1/executions", &key, r#"{"graph": "g"}"#).await;
    other.problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused");
    let only = json!({"name": "only", "singleton": true, "nodes": nodes()});
    assert_eq!(server.post_json("/api/v1/graphs", only).await.json()["singleton"], true);
    let first = server.execute("only", json!({})).await;
    let second = server.post_json("/api/v1/executions", json!({"graph": "only"})).await.ok();
    assert!(first.ends_with(second["id"].as_str().expect("an id")), "{first} {second}");
    server.post(&format!("{first}/archive")).await.ok();
    let third = server.execute("only", json!({})).await;
    assert_ne!(first, third);
    server.post(&format!("{first}/unarchive")).await.problem(StatusCode::CONFLICT, "conflict");
}

#[tokio::test]
async fn what_cannot_be_started_is_refused_by_name() {
    let server = idle(Config::default());
    server.apply("order", nodes()).await;
    for (body, kind, field, hint) in [
        (json!({"graph": "ordr"}), "invalid-value", "graph", "order"),
        (json!({"graph": "a b"}), "invalid-value", "graph", "visible"),
        (json!({"graph": "order", "version": "9"}), "invalid-value", "version", "1"),
        (json!({"graph": "order", "version": []}), "invalid-value", "version", "text"),
        (json!({"graph": "order", "values": {"aa": 1}}), "invalid-value", "aa", "\"a\""),
        (json!({"graph": "order", "values": {"copy": 1}}), "invalid-value", "copy", "input"),
        (json!({"graph": "order", "values": [1]}), "invalid-value", "values", "shape"),
        (json!({"graph": "order", "value": {}}), "unknown-field", "value", "values"),
        (json!({}), "invalid-value", "graph", "add"),
    ] {
        let answer = server.post_json("/api/v1/executions", &body).await;
        let problem = answer.problem(StatusCode::UNPROCESSABLE_ENTITY, kind);
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["hint"].as_str().expect("text").contains(hint), "{hint} in {problem}");
    }
    assert_eq!(server.get("/api/v1/executions/count").await.ok(), json!({"count": 0}));
}

async fn listed(server: &Server, query: &str) -> Vec<Value> {
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/api/v1/executions?limit=2&{query}{cursor}")).await.ok();
        let items = page["items"].as_array().expect("items");
        seen.extend(items.iter().map(|execution| execution["values"]["a"]["value"].clone()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return seen,
        }
    }
}

#[tokio::test]
async fn executions_are_filtered_sorted_and_counted() {
    let server = idle(Config::default());
    server.apply("g", nodes()).await;
    server.apply("h", nodes()).await;
    for a in [3, 1, 2, 5, 4] {
        server.execute("g", json!({"a": a})).await;
    }
    server.execute("h", json!({"a": "x"})).await;
    let gone = server.execute("g", json!({"a": 9})).await;
    server.post(&format!("{gone}/archive")).await.ok();
    for (query, expected) in [
        ("graph=g", json!([4, 5, 2, 1, 3])),
        ("", json!(["x", 4, 5, 2, 1, 3])),
        ("graph=g&sort=a", json!([1, 2, 3, 4, 5])),
        ("graph=g&sort=-a", json!([5, 4, 3, 2, 1])),
        ("graph=g&sort=created_at", json!([3, 1, 2, 5, 4])),
        ("graph=g&archived=true", json!([9, 4, 5, 2, 1, 3])),
        ("where=a.gte:2&where=a.lt:5", json!([4, 2, 3])),
        ("where=a.eq:%22x%22", json!(["x"])),
        ("where=a.in:%5B1,5%5D&sort=a", json!([1, 5])),
        ("where=b.is_set", json!([])),
        ("graph=h&where=b.is_not_set", json!(["x"])),
    ] {
        assert_eq!(Value::from(listed(&server, query).await), expected, "{query}");
        let filter: Vec<&str> = query.split('&').filter(|part| !part.starts_with("sort")).collect();
        let count = server.get(&format!("/api/v1/executions/count?{}", filter.join("&"))).await.ok();
        assert_eq!(count["count"], expected.as_array().expect("a list").len(), "{query}");
    }
}

#[tokio::test]
async fn bad_questions_about_executions_are_named() {
    let server = idle(Config::default());
    let many = "where=a.is_set&".repeat(51);
    for (query, field, hint) in [
        ("where=a", "where", "age.gte:18"),
        ("where=a.eqq:1", "where", "eq"),
        ("where=a.eq:oops", "where", "JSON"),
        ("sort=a%20b", "sort", "created_at"),
        ("archived=yes", "archived", "true"),
        ("cursor=7", "cursor", "looks like"),
        ("sort=a&cursor=00000000-0000-0000-0000-000000000007", "cursor", "next_cursor"),
        ("sort=a&cursor=99999999999999999999", "cursor", "next_cursor"),
        ("graph=a&graph=b", "graph", "once"),
        ("grap=a", "grap", "graph"),
        ("limit=0", "limit", "1 to"),
        (&many, "where", "at most 50"),
    ] {
        let answer = server.get(&format!("/api/v1/executions?{query}")).await;
        let problem = answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["hint"].as_str().expect("text").contains(hint), "{hint} in {problem}");
    }
    server.get("/api/v1/executions/count?limit=1").await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
}

#[tokio::test]
async fn an_execution_is_drawn_and_summed_up() {
    let server = idle(Config::default());
    server.apply("g", nodes()).await;
    let path = server.execute("g", json!({"a": "grüße"})).await;
    let answer = server.get(&format!("{path}/mermaid")).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/plain; charset=utf-8"));
    assert!(answer.text().contains("classDef computing"), "{}", answer.text());
    let whole = server.get(&format!("{path}/summary")).await.ok();
    let text = whole["text"].as_str().expect("a text");
    assert!(text.contains("grüße") && text.contains("slow (compute): b is not set"), "{text}");
    assert_eq!((&whole["graph"], &whole["nodes"]["slow"]["state"]), (&json!("g"), &json!("waiting")));
    for (query, accept, plain) in [
        ("", "text/plain", true),
        ("", "text/plain; charset=utf-8, */*", true),
        ("", "application/json, text/plain", false),
        ("", "*/*", false),
        ("?format=text", "application/json", true),
        ("?format=json", "text/plain", false),
    ] {
        let path = format!("{path}/summary{query}");
        let answer = server.send(request("GET", &path, &[("accept", accept)], Body::empty())).await;
        let expected = if plain { "text/plain; charset=utf-8" } else { "application/json" };
        assert_eq!((answer.status, answer.header("content-type")), (200, expected), "{query} {accept}");
        assert!(!plain || answer.text() == text, "{query} {accept}");
    }
    server.get(&format!("{path}/summary?format=xml")).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
}

#[tokio::test]
async fn an_archived_execution_rests_until_it_is_brought_back() {
    let server = idle(Config::default());
    server.apply("g", nodes()).await;
    let path = server.execute("g", json!({})).await;
    for _ in 0..2 {
        assert!(server.post(&format!("{path}/archive")).await.ok()["archived_at"].is_string());
    }
    let set = server.put_json(&format!("{path}/values"), json!({"values": {"a": 1}})).await;
    set.problem(StatusCode::CONFLICT, "conflict");
    server.delete(&format!("{path}/values/a")).await.problem(StatusCode::CONFLICT, "conflict");
    server.post(&format!("{path}/nodes/copy/retry")).await.problem(StatusCode::CONFLICT, "conflict");
    assert!(server.post(&format!("{path}/unarchive")).await.ok()["archived_at"].is_null());
    server.put_json(&format!("{path}/values"), json!({"values": {"a": 1}})).await.ok();
}

#[tokio::test]
async fn a_computation_is_abandoned_and_retried() {
    let server = start().await;
    server.apply("g", nodes()).await;
    let path = server.execute("g", json!({"b": 1})).await;
    let slow = async |verb: &str| server.post(&format!("{path}/nodes/slow/{verb}")).await;
    let abandoned = slow("abandon").await.ok();
    assert_eq!(abandoned["nodes"]["slow"]["state"], "failed");
    assert_eq!(abandoned["nodes"]["slow"]["error"], "abandoned on request");
    slow("abandon").await.problem(StatusCode::CONFLICT, "conflict");
    assert_eq!(slow("retry").await.ok()["nodes"]["slow"]["state"], "computing");
    server.gate.send_replace(true);
    assert_eq!(server.get(&format!("{path}/values/slow?wait=any")).await.ok()["value"], json!({"b": 1}));
    server.post(&format!("{path}/nodes/a/retry")).await.problem(StatusCode::CONFLICT, "conflict");
    let problem = server.post(&format!("{path}/nodes/slo/retry")).await.problem(StatusCode::NOT_FOUND, "not-found");
    assert!(problem["hint"].as_str().expect("text").contains("slow"), "{problem}");
    server.post(&format!("{path}/nodes/slo/abandon")).await.problem(StatusCode::NOT_FOUND, "not-found");
    server.post(&format!("{path}/nodes/a%20b/retry")).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
}

#[tokio::test]
async fn executions_that_do_not_exist_are_not_found_and_bad_ids_are_refused() {
    let server = idle(Config::default());
    let absent = Uuid::from_u128(7).to_string();
    for (method, rest) in [
        ("GET", ""),
        ("GET", "/mermaid"),
        ("GET", "/summary"),
        ("GET", "/history"),
        ("GET", "/values/a"),
        ("GET", "/values/a?wait=any"),
        ("DELETE", "/values/a"),
        ("PUT", "/values"),
        ("POST", "/archive"),
        ("POST", "/unarchive"),
        ("POST", "/nodes/a/retry"),
        ("POST", "/nodes/a/abandon"),
    ] {
        let ask = async |id: &str| {
            let body = if method == "PUT" { Body::from(r#"{"values": {}}"#) } else { Body::empty() };
            let headers = [("content-type", "application/json")];
            server.send(request(method, &format!("/api/v1/executions/{id}{rest}"), &headers, body)).await
        };
        ask(&absent).await.problem(StatusCode::NOT_FOUND, "not-found");
        for bad in ["7", "%2e%2e", &"a".repeat(4096)] {
            let problem = ask(bad).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
            assert_eq!(problem["field"], "id", "{method} {rest}");
        }
    }
}
