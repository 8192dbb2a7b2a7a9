use crate::common::{Server, idle, request, start};
use axum::body::Body;
use axum::http::StatusCode;
use everbeat_server::Config;
use everbeat_store::Events;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A follower of the stream, reading one event at a time.
struct Stream {
    body: Body,
    text: String,
}

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    id: Option<u64>,
    kind: String,
    data: Value,
}

impl Stream {
    async fn open(server: &Server, path: &str, headers: &[(&str, &str)]) -> Stream {
        let response =
            server.router.clone().oneshot(request("GET", path, headers, Body::empty())).await.expect("infallible");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Stream { body: response.into_body(), text: String::new() }
    }

    /// The next event, comments and settings passed over; none at the end of the stream.
    async fn next(&mut self) -> Option<Seen> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_string(), rest.to_string());
                self.text = rest;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
                if let (Some(kind), Some(data)) = (field("event: "), field("data: ")) {
                    let id = field("id: ").map(|id| id.parse().expect("a number"));
                    return Some(Seen { id, kind: kind.to_string(), data: serde_json::from_str(data).expect("JSON") });
                }
            }
            let frame = self.body.frame().await?.expect("a whole stream");
            self.text.push_str(std::str::from_utf8(frame.data_ref().expect("data")).expect("text"));
        }
    }

    async fn take(&mut self, count: usize) -> Vec<Seen> {
        let mut seen = Vec::new();
        while seen.len() < count {
            seen.push(self.next().await.expect("more"));
        }
        seen
    }
}

async fn stored(server: &Server) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    loop {
        let after = all.last().map_or(0, |(id, _)| *id);
        let page = server.store.events(after, 100).await.expect("events");
        if page.events.is_empty() {
            return all;
        }
        all.extend(page.events.into_iter().map(|event| (event.id, event.kind)));
    }
}

#[tokio::test]
async fn a_follower_that_comes_back_misses_and_repeats_nothing() {
    let server = start().await;
    let id = server.submit(json!({"task": "noop"})).await;
    server.finished(&id).await;
    let mut first = Stream::open(&server, "/api/v1/events?after=0", &[]).await;
    let mut seen = first.take(2).await;
    drop(first);
    for _ in 0..5 {
        let id = server.submit(json!({"task": "noop"})).await;
        server.finished(&id).await;
    }
    let expected = stored(&server).await;
    let last = seen[1].id.expect("an id").to_string();
    // The header says where a reconnecting browser is; the query is that of its first request.
    let mut second = Stream::open(&server, "/api/v1/events?after=0", &[("last-event-id", &last)]).await;
    seen.extend(second.take(expected.len() - 2).await);
    let seen: Vec<(u64, String)> = seen.into_iter().map(|event| (event.id.expect("an id"), event.kind)).collect();
    assert_eq!(seen, expected);
    let later = server.submit(json!({"task": "noop"})).await;
    let next = second.next().await.expect("live");
    assert!(next.id > Some(expected.last().expect("events").0));
    assert_eq!(next.data["subject"], later);
    assert_eq!(next.data["kind"], next.kind);
    assert_eq!(next.data["id"], next.id.expect("an id"));
}

#[tokio::test]
async fn a_new_follower_starts_with_what_happens_next() {
    let server = start().await;
    let before = server.submit(json!({"task": "noop"})).await;
    server.finished(&before).await;
    let mut stream = Stream::open(&server, "/api/v1/events", &[]).await;
    server.post("/api/v1/queues/slow/pause").await.ok();
    let first = stream.next().await.expect("live");
    assert_eq!((first.kind.as_str(), &first.data["subject"]), ("queue.paused", &json!("slow")));
}

#[tokio::test]
async fn what_is_no_longer_kept_is_a_gap_and_not_silence() {
    let server = idle(Config::default());
    for n in 0..10 {
        server.submit(json!({"task": "noop", "input": n})).await;
    }
    let all = stored(&server).await;
    server.store.trim_events(3).await.expect("trimmed");
    let kept = stored(&server).await;
    assert!(kept.len() < all.len());
    let mut stream = Stream::open(&server, &format!("/api/v1/events?after={}", all[0].0), &[]).await;
    let gap = stream.next().await.expect("a gap");
    assert_eq!((gap.kind.as_str(), gap.id), ("gap", None));
    assert_eq!(gap.data, json!({"after": all[0].0, "next": kept[0].0}));
    let seen: Vec<u64> = stream.take(kept.len()).await.iter().map(|event| event.id.expect("an id")).collect();
    assert_eq!(seen, kept.iter().map(|(id, _)| *id).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_place_that_the_log_has_not_reached_is_refused() {
    let server = idle(Config::default());
    server.submit(json!({"task": "noop"})).await;
    let newest = stored(&server).await.last().expect("events").0;
    let ahead = (newest + 1).to_string();
    for (path, headers, field) in [
        (format!("/api/v1/events?after={ahead}"), vec![], "after"),
        (format!("/api/v1/events?follow=false&after={ahead}"), vec![], "after"),
        ("/api/v1/events?after=0".to_string(), vec![("last-event-id", ahead.as_str())], "Last-Event-ID"),
    ] {
        let answer = server.send(request("GET", &path, &headers, Body::empty())).await;
        let problem = answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["detail"].as_str().expect("text").contains(&newest.to_string()), "{problem}");
    }
    let mut at_the_end = Stream::open(&server, &format!("/api/v1/events?after={newest}&follow=false"), &[]).await;
    assert_eq!(at_the_end.next().await, None);
}

#[tokio::test]
async fn events_are_chosen_by_kind_and_subject_and_counted() {
    let server = start().await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        let id = server.submit(json!({"task": "noop"})).await;
        server.finished(&id).await;
        runs.push(id);
    }
    server.post("/api/v1/queues/slow/pause").await.ok();
    let all = stored(&server).await;
    let of = |kind: &str| all.iter().filter(|(_, found)| found.starts_with(kind)).count();
    for (query, count) in [
        ("".to_string(), all.len()),
        ("&kind=run.succeeded".to_string(), 3),
        ("&kind=run".to_string(), of("run.")),
        ("&kind=queue&kind=run.succeeded".to_string(), 4),
        ("&kind=ru".to_string(), 0),
        ("&subject=slow".to_string(), 1),
        (format!("&subject={}&kind=run.succeeded", runs[1]), 1),
        (format!("&subject={}&subject={}&kind=run.succeeded", runs[0], runs[2]), 2),
        ("&kind=run.succeeded&limit=2".to_string(), 2),
        ("&limit=1".to_string(), 1),
    ] {
        let mut stream = Stream::open(&server, &format!("/api/v1/events?after=0&follow=false{query}"), &[]).await;
        let mut seen = 0;
        while stream.next().await.is_some() {
            seen += 1;
        }
        assert_eq!(seen, count, "{query}");
    }
    // A stream that follows ends after so many, too.
    let mut stream = Stream::open(&server, "/api/v1/events?kind=queue.resumed&limit=1", &[]).await;
    server.post("/api/v1/queues/slow/resume").await.ok();
    assert_eq!(stream.next().await.expect("live").data["subject"], "slow");
    assert_eq!(stream.next().await, None);
    for query in ["limit=0", "limit=100001", "limit=x", "kind=a%20b", "subject="] {
        let answer = server.get(&format!("/api/v1/events?{query}")).await;
        answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
    }
}

#[tokio::test]
async fn the_number_of_followers_is_bounded() {
    let server = idle(Config::default());
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(Stream::open(&server, "/api/v1/events", &[]).await);
    }
    let answer = server.get("/api/v1/events").await;
    answer.problem(StatusCode::SERVICE_UNAVAILABLE, "too-busy");
    streams.pop();
    Stream::open(&server, "/api/v1/events", &[]).await;
}
