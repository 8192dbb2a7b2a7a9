use crate::common::{Server, eventually, request, start};
use axum::body::Body;
use axum::http::StatusCode;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

async fn output(server: &Server, id: &str, query: &str) -> Value {
    server.get(&format!("/api/v1/runs/{id}/output{query}")).await.ok()
}

fn items(page: &Value) -> Vec<Value> {
    page["items"].as_array().expect("items").iter().map(|item| item["item"].clone()).collect()
}

#[tokio::test]
async fn what_a_run_streams_is_kept_and_read_in_parts() {
    let server = start().await;
    let said = json!([{"a": 1.5}, "two", null, [4]]);
    let id = server.submit(json!({"task": "stream", "input": {"items": said, "log": ["one", "two\nthree"]}})).await;
    assert_eq!(server.finished(&id).await["result"], "done");
    let page = output(&server, &id, "").await;
    assert_eq!((&json!(items(&page)), &page["first"], &page["last"]), (&said, &json!(1), &json!(7)));
    let first = &page["items"][0];
    assert_eq!((&first["seq"], &first["attempt"]), (&json!(1), &json!(1)));
    assert!(first["at"].as_str().expect("a time").ends_with('Z'), "{first}");
    assert_eq!(page["finished"], false, "lines of its log follow");
    assert_eq!(output(&server, &id, "?after=4").await["finished"], true);
    let part = output(&server, &id, "?after=1&limit=2").await;
    assert_eq!((items(&part), &part["finished"]), (vec![json!("two"), json!(null)], &json!(false)));
    let log = output(&server, &id, "?kind=log").await;
    assert_eq!(items(&log), [json!("one"), json!("two"), json!("three")]);
    assert_eq!((&log["items"][0]["seq"], &log["finished"]), (&json!(5), &json!(true)));
}

#[tokio::test]
async fn a_follower_gets_each_item_as_it_comes_and_learns_of_the_end() {
    let server = start().await;
    let id = server.submit(json!({"task": "stream", "input": {"items": [1, 2], "gate": true}})).await;
    let mut after = 0;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let page = output(&server, &id, &format!("?after={after}&wait=20s")).await;
        assert_eq!(page["finished"], false);
        seen.extend(items(&page));
        after = page["items"].as_array().and_then(|items| items.last()?["seq"].as_u64()).unwrap_or(after);
    }
    let nothing = output(&server, &id, &format!("?after={after}&wait=0")).await;
    assert_eq!((items(&nothing), &nothing["finished"]), (vec![], &json!(false)));
    let more = format!("?after={after}&wait=20");
    let (page, ()) = tokio::join!(output(&server, &id, &more), async { _ = server.gate.send(true) });
    seen.extend(items(&page));
    let page = output(&server, &id, "?after=4&wait=20").await;
    assert_eq!((items(&page), &page["finished"]), (vec![], &json!(true)), "it does not wait beyond the end");
    assert_eq!(items(&output(&server, &id, "").await), [json!(1), json!(2), json!(1), json!(2)]);
    assert_eq!(seen[..2], [json!(1), json!(2)]);
}

#[tokio::test]
async fn the_log_of_a_task_is_text_of_which_the_end_can_be_read_and_followed() {
    let server = start().await;
    let input = json!({"items": [1], "log": ["one", "two", "three"], "gate": true});
    let id = server.submit(json!({"task": "stream", "input": input})).await;
    let path = format!("/api/v1/runs/{id}/logs");
    let asked = request("GET", &format!("{path}?follow=true"), &[], Body::empty());
    let follower = server.router.clone().oneshot(asked).await.expect("infallible");
    assert_eq!(follower.status(), StatusCode::OK);
    assert_eq!(follower.headers()["content-type"], "text/plain; charset=utf-8");
    eventually(|| async { (server.get(&path).await.text() == "one\ntwo\nthree\n").then_some(()) }).await;
    assert_eq!(server.get(&format!("{path}?tail=2")).await.text(), "two\nthree\n");
    assert_eq!(server.get(&format!("{path}?tail=0")).await.text(), "");
    server.gate.send(true).expect("somebody waits");
    let followed = follower.into_body().collect().await.expect("a proper end").to_bytes();
    assert_eq!(followed, "one\ntwo\nthree\none\ntwo\nthree\n");
    assert_eq!(server.get(&format!("{path}?tail=4&follow=true")).await.text(), "three\none\ntwo\nthree\n");
    let silent = server.submit(json!({"task": "noop"})).await;
    server.finished(&silent).await;
    assert_eq!(server.get(&format!("/api/v1/runs/{silent}/logs?follow=true")).await.text(), "");
}

#[tokio::test]
async fn what_cannot_be_asked_of_output_is_refused() {
    let server = start().await;
    let id = server.submit(json!({"task": "noop"})).await;
    server.finished(&id).await;
    assert_eq!(
        output(&server, &id, "").await,
        json!({"items": [], "first": 1, "last": 0, "finished": true}),
        "a run that has streamed nothing"
    );
    for query in ["after=-1", "after=x", "limit=0", "limit=1001", "wait=forever", "wait=6m", "kind=stdout", "tail=1"] {
        let answer = server.get(&format!("/api/v1/runs/{id}/output?{query}")).await;
        answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    }
    for query in ["stream=stdout", "stream=stderr&offset=0"] {
        let answer = server.get(&format!("/api/v1/runs/{id}/logs?{query}")).await;
        answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    }
    let unknown = "01890000-0000-7000-8000-000000000000";
    for path in ["output", "output?wait=20", "logs"] {
        server.get(&format!("/api/v1/runs/{unknown}/{path}")).await.problem(StatusCode::NOT_FOUND, "not-found");
    }
}
