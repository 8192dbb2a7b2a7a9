//! JSON is the same wherever it enters: what one way in refuses, all do, in the same words.

use crate::common::{Server, idle};
use axum::http::StatusCode;
use everbeat_model::NotJson;
use everbeat_server::Config;
use serde_json::{Value, json};

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// A way in: what is sent with the value in it, and the field that a refusal names.
struct Way {
    method: &'static str,
    path: String,
    body: fn(&str) -> String,
    field: &'static str,
}

async fn ways(server: &Server) -> Vec<Way> {
    server.apply("g", json!([{"name": "a", "kind": "input"}])).await;
    let values = format!("{}/values", server.execute("g", json!({})).await);
    let way = |method, path: &str, body, field| Way { method, path: path.to_string(), body, field };
    vec![
        way("POST", "/api/v1/runs", |value| format!(r#"{{"task": "noop", "input": {value}}}"#), "input"),
        way(
            "POST",
            "/api/v1/runs:batch",
            |value| format!(r#"{{"runs": [{{"task": "noop", "input": {value}}}]}}"#),
            "runs[0].input",
        ),
        way(
            "POST",
            "/api/v1/executions",
            |value| format!(r#"{{"graph": "g", "values": {{"a": {value}}}}}"#),
            "values.a",
        ),
        way("PUT", &values, |value| format!(r#"{{"values": {{"a": {value}}}}}"#), "values.a"),
        way("PUT", &values, |value| format!(r#"{{"values": {{"a": 1}}, "metadata": {value}}}"#), "metadata"),
    ]
}

#[tokio::test]
async fn every_way_in_takes_and_refuses_the_same_json() {
    let server = idle(Config::default());
    let ways = ways(&server).await;
    let send = async |way: &Way, value: &str| match way.method {
        "PUT" => server.put_json(&way.path, (way.body)(value)).await,
        _ => server.post_json(&way.path, (way.body)(value)).await,
    };
    for way in &ways {
        for (value, why) in [
            (nested(101), NotJson::TooDeep),
            (nested(3000), NotJson::TooDeep),
            ("1e999".to_string(), NotJson::NumberTooLarge),
            ("[{\"a\": -1e400}]".to_string(), NotJson::NumberTooLarge),
            (r#""\ud800""#.to_string(), NotJson::LoneSurrogate),
            (r#"{"\udc00": 1}"#.to_string(), NotJson::LoneSurrogate),
        ] {
            let problem = send(way, &value).await.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value");
            let shown: String = value.chars().take(40).collect();
            assert_eq!(problem["field"], way.field, "{} {shown}: {problem}", way.path);
            assert!(problem["detail"].as_str().expect("text").contains(&why.problem()), "{shown}: {problem}");
            assert_eq!(problem["hint"], why.hint(), "{shown}: {problem}");
        }
        for value in [&*nested(100), "1e308", "123456789012345678901234567890", r#""\ud83e\udd80""#, r#""\u0000""#] {
            let status = send(way, value).await.status;
            assert!((200..300).contains(&status), "{} {value}: {status}", way.path);
        }
    }
    for (value, why) in [("1e999", NotJson::NumberTooLarge), (r#""%5Cud800""#, NotJson::LoneSurrogate)] {
        let answer = server.get(&format!("/api/v1/executions?graph=g&where=a.eq:{}", value.replace('"', "%22"))).await;
        let problem = answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
        assert!(problem["detail"].as_str().expect("text").contains(&why.problem()), "{problem}");
    }
}

#[tokio::test]
async fn of_several_fields_with_one_name_the_last_counts() {
    let server = idle(Config::default());
    server.apply("g", json!([{"name": "a", "kind": "input"}])).await;
    let values = format!("{}/values", server.execute("g", json!({})).await);
    server.put_json(&values, r#"{"values": {"a": {"x": 1, "x": 2}}}"#).await.ok();
    assert_eq!(server.get(&format!("{values}/a")).await.ok()["value"], json!({"x": 2}));
    let twice = server.post_json("/api/v1/runs", r#"{"task": "noop", "task": "echo"}"#).await;
    let problem: Value = twice.problem(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value");
    assert!(problem["detail"].as_str().expect("text").contains("duplicate field `task`"), "{problem}");
}
