use crate::common::{Server, eventually, idle, request, start};
use axum::body::Body;
use axum::http::StatusCode;
use everbeat_server::Config;
use serde_json::{Value, json};

fn order() -> Value {
    json!({
        "name": "order",
        "version": 2,
        "nodes": [
            {"name": "total", "kind": "compute", "gate": ["price", "count"], "task": "echo", "options": {"max_attempts": 5}},
            {"name": "price", "kind": "input"},
            {"name": "count", "kind": "input"},
            {"name": "big", "kind": "compute", "gate": {"gt": ["count", 100]}, "task": "noop", "args": {"a": 1.0}},
        ],
    })
}

#[tokio::test]
async fn a_graph_is_new_once_and_read_back_as_it_was_given() {
    let server = idle(Config::default());
    let answer = server.post_json("/api/v1/graphs", order()).await;
    assert_eq!((answer.status, answer.header("location")), (201, "/api/v1/graphs/order"), "{}", answer.text());
    let graph = answer.json();
    assert_eq!((&graph["name"], &graph["version"], &graph["singleton"]), (&json!("order"), &json!("2"), &json!(false)));
    assert_eq!(graph["nodes"][0]["options"], json!({"max_attempts": 5}));
    assert_eq!(graph["nodes"][1], json!({"name": "price", "kind": "input"}));
    assert_eq!(graph["shape"].as_str().expect("a hash").len(), 16);
    assert!(graph["applied_at"].is_string() && graph.get("on_save").is_none(), "{graph}");
    assert_eq!(server.post_json("/api/v1/graphs", order()).await.ok(), graph);
    assert_eq!(server.get("/api/v1/graphs/order").await.ok(), graph);
    let again = json!({"name": "order", "version": "2", "nodes": graph["nodes"]});
    server.post_with("/api/v1/graphs", &[("idempotency-key", "k")], again).await.ok();
}

#[tokio::test]
async fn the_latest_definition_counts_and_earlier_versions_stay() {
    let server = idle(Config::default());
    for version in ["1", "2", "1"] {
        let nodes = json!([{"name": format!("of_{version}"), "kind": "input"}]);
        let body = json!({"name": "g", "version": version, "nodes": nodes});
        assert_eq!(server.post_json("/api/v1/graphs", body).await.status, 201, "{version}");
    }
    assert_eq!(server.get("/api/v1/graphs/g").await.ok()["version"], "1");
    assert_eq!(server.get("/api/v1/graphs/g?version=2").await.ok()["nodes"][0]["name"], "of_2");
    for path in
        ["/api/v1/graphs/g?version=3", "/api/v1/graphs/h", "/api/v1/graphs/h/mermaid", "/api/v1/graphs/h/analytics"]
    {
        server.get(path).await.problem(StatusCode::NOT_FOUND, "not-found");
    }
    for path in ["/api/v1/graphs/a%20b", "/api/v1/graphs/g?version=%00", "/api/v1/graphs?cursor=%09"] {
        server.get(path).await.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    }
}

#[tokio::test]
async fn graphs_are_listed_by_name_part_by_part() {
    let server = idle(Config::default());
    for name in ["c", "a", "b/ä"] {
        server.apply(name, json!([{"name": "x", "kind": "input"}])).await;
    }
    let (mut seen, mut path) = (Vec::new(), "/api/v1/graphs?limit=2".to_string());
    loop {
        let page = server.get(&path).await.ok();
        seen.extend(page["items"].as_array().expect("items").iter().map(|graph| graph["name"].clone()));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/graphs?limit=2&cursor={}", cursor.replace("ä", "%C3%A4")),
            None => break,
        }
    }
    assert_eq!(seen, ["a", "b/ä", "c"]);
    assert_eq!(server.get("/api/v1/graphs/b%2F%C3%A4").await.ok()["name"], "b/ä");
}

#[tokio::test]
async fn each_mistake_in_a_definition_names_the_node() {
    let server = idle(Config::default());
    let node = |node: Value| json!({"name": "g", "nodes": [{"name": "x", "kind": "input"}, node]});
    for (body, kind, field, hint) in [
        (node(json!({"name": "x", "kind": "input"})), "invalid-value", "x", "name of its own"),
        (node(json!({"name": "y", "kind": "computer"})), "invalid-value", "y.kind", "compute"),
        (node(json!({"name": "y", "kind": "compute", "gate": ["z"], "task": "noop"})), "invalid-value", "y.gate", "x"),
        (node(json!({"name": "y", "kind": "compute", "gate": ["x"]})), "invalid-value", "y.task", "task"),
        (
            node(json!({"name": "y", "kind": "compute", "gate": ["x"], "task": "nop"})),
            "invalid-value",
            "y.task",
            "noop",
        ),
        (node(json!({"name": "y", "kind": "input", "colour": 1})), "invalid-value", "nodes[1].colour", "known"),
        (
            node(json!({"name": "y", "kind": "compute", "gate": ["x"], "task": "noop", "options": {"dedline": 1}})),
            "invalid-value",
            "y.options.dedline",
            "deadline",
        ),
        (json!({"name": "g"}), "invalid-value", "nodes", "add"),
        (json!({"name": "g", "nodes": []}), "invalid-value", "nodes", "at least one"),
        (json!({"name": "g", "nodes": {}}), "invalid-value", "nodes", "list"),
        (json!({"name": "a b", "nodes": [{"name": "x", "kind": "input"}]}), "invalid-value", "name", "visible"),
        (json!({"name": 5, "nodes": []}), "invalid-value", "name", "text"),
        (json!({"name": "g", "nodez": []}), "unknown-field", "nodez", "nodes"),
        (json!({"name": "g", "nodes": [], "accept_unknown": 1}), "invalid-value", "accept_unknown", "true"),
    ] {
        let answer = server.post_json("/api/v1/graphs", &body).await;
        let problem = answer.problem(StatusCode::UNPROCESSABLE_ENTITY, kind);
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["hint"].as_str().expect("text").contains(hint), "{hint} in {problem}");
    }
    let unreadable = r#"{"name": "g", "nodes": [{"name": "x", "kind": "input", "args": 1e999}]}"#;
    let answer = server.post_json("/api/v1/graphs", unreadable).await;
    assert_eq!(answer.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value")["field"], "nodes");
    let deep = format!(r#"{{"name": "g", "nodes": {}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let answer = server.post_json("/api/v1/graphs", deep).await;
    assert_eq!(answer.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value")["field"], "nodes");
    for body in ["", "{]", "{"] {
        server.post_json("/api/v1/graphs", body).await.problem(StatusCode::BAD_REQUEST, "malformed-request");
    }
    assert_eq!(server.get("/api/v1/graphs").await.ok()["items"], json!([]));
    let later = json!({"name": "g", "accept_unknown": true, "nodes": [
        {"name": "x", "kind": "input"}, {"name": "y", "kind": "compute", "gate": ["x"], "task": "comes.later"},
    ]});
    let applied = server.post_json("/api/v1/graphs", later).await;
    assert_eq!((applied.status, applied.json().get("accept_unknown")), (201, None));
}

#[tokio::test]
async fn a_graph_is_drawn_as_text() {
    let server = idle(Config::default());
    server.post_json("/api/v1/graphs", order()).await;
    let answer = server.get("/api/v1/graphs/order/mermaid").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/plain; charset=utf-8"));
    assert!(answer.text().starts_with("graph TD") && answer.text().contains("price"), "{}", answer.text());
    server
        .send(request("PUT", "/api/v1/graphs/order", &[], Body::empty()))
        .await
        .problem(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed");
}

async fn analytics(server: &Server) -> Value {
    server.get("/api/v1/graphs/order/analytics").await.ok()
}

#[tokio::test]
async fn analytics_tell_of_every_node_how_far_executions_came() {
    let server = start().await;
    server.post_json("/api/v1/graphs", order()).await;
    let none = analytics(&server).await;
    assert_eq!((&none["executions"], &none["nodes"]["price"]["reached_percent"]), (&json!(0), &json!(0.0)));
    server.execute("order", json!({"price": 2})).await;
    server.execute("order", json!({})).await;
    let whole = server.execute("order", json!({"price": 2, "count": 3})).await;
    server.get(&format!("{whole}/values/total?wait=any")).await.ok();
    server.post(&format!("{whole}/archive")).await.ok();
    let all = eventually(|| async {
        let all = analytics(&server).await;
        (all["nodes"]["total"]["reached"] == 1).then_some(all)
    })
    .await;
    assert_eq!((&all["graph"], &all["executions"], &all["archived"]), (&json!("order"), &json!(3), &json!(1)));
    let of = |node: &str, key: &str| all["nodes"][node][key].clone();
    assert_eq!((of("price", "kind"), of("price", "reached")), (json!("input"), json!(2)));
    assert_eq!(of("price", "reached_percent"), json!(66.667));
    assert_eq!((of("price", "flow_ends_here"), of("total", "flow_ends_here")), (json!(1), json!(1)));
    assert_eq!(of("total", "flow_ends_here_percent"), json!(33.333));
    assert!(of("total", "average_ms").is_number(), "{all}");
    let never = json!({"kind": "compute", "reached": 0, "reached_percent": 0.0, "average_ms": null,
        "flow_ends_here": 0, "flow_ends_here_percent": 0.0});
    assert_eq!(all["nodes"]["big"], never);
}
