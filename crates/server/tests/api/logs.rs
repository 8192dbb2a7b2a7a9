use crate::common::{Server, eventually, request};
use crate::jobs::{begun, create, finished, running, start};
use axum::body::Body;
use axum::http::StatusCode;
use everbeat_engine::Stream::{Stderr, Stdout};
use everbeat_server::{Config, serve};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tower::ServiceExt;

/// Neither UTF-8 nor anything else.
const BINARY: [u8; 6] = [0, 0xff, 0xc3, b'\r', b'\n', 0x80];

async fn read(server: &Server, id: &str, query: &str) -> Vec<u8> {
    let answer = server.get(&format!("/api/v1/jobs/{id}/logs{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    answer.bytes.to_vec()
}

/// Somebody who follows, reading a piece at a time.
struct Follower {
    body: Body,
    offset: Option<u64>,
}

impl Follower {
    async fn open(server: &Server, path: &str) -> Follower {
        let asked = request("GET", path, &[], Body::empty());
        let response = server.router.clone().oneshot(asked).await.expect("infallible");
        assert_eq!(response.status(), StatusCode::OK);
        let offset = response.headers().get("everbeat-log-offset");
        let offset = offset.map(|offset| offset.to_str().expect("text").parse().expect("a number"));
        Follower { body: response.into_body(), offset }
    }

    /// The next bytes; none at the end. An error breaks the body off.
    async fn next(&mut self) -> Option<Result<Vec<u8>, String>> {
        let frame = self.body.frame().await?;
        Some(frame.map(|frame| frame.into_data().expect("data").to_vec()).map_err(|error| error.to_string()))
    }

    /// What comes until the body breaks off, which it must.
    async fn until_broken(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            match self.next().await.expect("no proper end") {
                Ok(more) => bytes.extend(more),
                Err(_) => return bytes,
            }
        }
    }

    /// Reads so many bytes.
    async fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            bytes.extend(self.next().await.expect("more").expect("whole"));
        }
        bytes
    }
}

#[tokio::test]
async fn output_is_answered_byte_for_byte() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    assert_eq!(read(&server, &id, "").await, b"");
    let out = ["größe 😀\n".as_bytes(), &BINARY].concat();
    shims.write(&id, Stdout, &out);
    shims.write(&id, Stderr, "warning\n");
    assert_eq!(read(&server, &id, "").await, [&out[..], b"warning\n"].concat());
    assert_eq!(read(&server, &id, "?stream=stdout").await, out);
    assert_eq!(read(&server, &id, "?stream=stderr&follow=false").await, b"warning\n");
    let of_run = server.get(&format!("/api/v1/runs/{id}/logs?stream=stdout")).await;
    assert_eq!((of_run.status, of_run.bytes.to_vec()), (200, out));
    let large: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let other = running(&server).await;
    shims.write(&other, Stdout, &large);
    shims.write(&other, Stderr, "end");
    assert_eq!(read(&server, &other, "").await, [&large[..], b"end"].concat());
}

#[tokio::test]
async fn the_last_lines_are_of_each_stream() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    shims.write(&id, Stdout, "1\n2\n3\nüber");
    shims.write(&id, Stderr, "a\nb\n");
    assert_eq!(read(&server, &id, "?stream=stdout&tail=2").await, "3\nüber".as_bytes());
    assert_eq!(read(&server, &id, "?tail=1").await, "überb\n".as_bytes());
    assert_eq!(read(&server, &id, "?tail=0").await, b"");
    assert_eq!(read(&server, &id, "?tail=1000000&stream=stderr").await, b"a\nb\n");
    let answer = server.get(&format!("/api/v1/jobs/{id}/logs?tail=1&stream=stdout")).await;
    assert_eq!(answer.header("everbeat-log-offset"), "6");
}

#[tokio::test]
async fn an_offset_goes_on_where_another_answer_ended() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    shims.write(&id, Stdout, "0123456789");
    let at = async |query: &str| {
        let answer = server.get(&format!("/api/v1/jobs/{id}/logs?{query}")).await;
        (answer.header("everbeat-log-offset").to_string(), answer.text())
    };
    assert_eq!(at("stream=stdout").await, ("0".to_string(), "0123456789".to_string()));
    assert_eq!(at("stream=stdout&offset=7").await, ("7".to_string(), "789".to_string()));
    assert_eq!(at("stream=stdout&offset=10").await, ("10".to_string(), String::new()));
    assert_eq!(at("").await, (String::new(), "0123456789".to_string()));
    shims.change(&id, |folder| {
        folder.output[0].base = 4;
        folder.output[0].bytes.drain(..4);
    });
    assert_eq!(at("stream=stdout&offset=2").await, ("4".to_string(), "456789".to_string()));
}

#[tokio::test]
async fn what_cannot_be_asked_for_together_is_refused() {
    let (server, _shims) = start().await;
    let id = running(&server).await;
    for (query, field) in [
        ("stream=both", "stream"),
        ("tail=-1", "tail"),
        ("tail=1000001", "tail"),
        ("tail=ten", "tail"),
        ("stream=stdout&offset=-1", "offset"),
        ("stream=stdout&offset=9223372036854775808", "offset"),
        ("stream=stdout&offset=5&tail=5", "offset"),
        ("offset=5", "offset"),
        ("follow=1", "follow"),
        ("lines=5", "lines"),
    ] {
        for of in ["jobs", "runs"] {
            let answer = server.get(&format!("/api/v1/{of}/{id}/logs?{query}")).await;
            let problem = answer.problem(StatusCode::BAD_REQUEST, "bad-parameter");
            assert_eq!(problem["field"], field, "{problem}");
        }
    }
}

#[tokio::test]
async fn output_that_was_cleaned_is_a_conflict_and_not_silence() {
    let (server, shims) = start().await;
    let id = create(&server, json!({"command": ["true"]})).await;
    finished(&server, &id).await;
    assert_eq!(read(&server, &id, "?follow=true").await, b"");
    let cleaned = server.post_json("/api/admin/recovery/jobs/clean", json!({"olderThan": 0})).await.ok();
    assert_eq!(cleaned["results"][0]["outcome"], "removed", "{cleaned}");
    assert!(!shims.has(&id));
    for query in ["", "?follow=true"] {
        let answer = server.get(&format!("/api/v1/jobs/{id}/logs{query}")).await;
        answer.problem(StatusCode::CONFLICT, "conflict");
    }
}

#[tokio::test]
async fn a_follower_gets_everything_and_then_the_end() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    shims.write(&id, Stdout, "one\n");
    let mut both = Follower::open(&server, &format!("/api/v1/jobs/{id}/logs?follow=true")).await;
    let mut errors = Follower::open(&server, &format!("/api/v1/runs/{id}/logs?follow=true&stream=stderr")).await;
    assert_eq!((both.offset, errors.offset), (None, Some(0)));
    assert_eq!(both.take(4).await, b"one\n");
    shims.write(&id, Stderr, BINARY);
    assert_eq!(both.take(6).await, BINARY);
    assert_eq!(errors.take(6).await, BINARY);
    shims.write(&id, Stdout, "größe".as_bytes().split_at(3).0);
    assert_eq!(both.take(3).await, "größe".as_bytes().split_at(3).0);
    let large = vec![b'x'; 700_000];
    shims.write(&id, Stdout, &large);
    shims.write(&id, Stderr, "last");
    shims.exit(&id, 0);
    assert_eq!(both.take(700_004).await.len(), 700_004);
    assert_eq!(errors.take(4).await, b"last");
    assert_eq!(both.next().await, None);
    assert_eq!(errors.next().await, None);
}

#[tokio::test]
async fn a_follower_waits_for_a_job_that_has_not_begun() {
    let (server, shims) = start().await;
    server.post("/api/v1/queues/later/pause").await.ok();
    let id = create(&server, json!({"command": ["train"], "queue": "later"})).await;
    assert_eq!(read(&server, &id, "").await, b"");
    let path = format!("/api/v1/jobs/{id}/logs?follow=true&tail=5&stream=stdout");
    let mut follower = Follower::open(&server, &path).await;
    assert_eq!(follower.offset, Some(0));
    server.post("/api/v1/queues/later/resume").await.ok();
    begun(&server, &id).await;
    shims.write(&id, Stdout, "at last");
    assert_eq!(follower.take(7).await, b"at last");
    shims.exit(&id, 0);
    assert_eq!(follower.next().await, None);
    let never = create(&server, json!({"command": ["true"], "run_at": "2990-01-01T00:00:00Z"})).await;
    let mut follower = Follower::open(&server, &format!("/api/v1/jobs/{never}/logs?follow=true")).await;
    server.post(&format!("/api/v1/jobs/{never}/cancel")).await.ok();
    assert_eq!(follower.next().await, None);
}

#[tokio::test]
async fn a_follower_stays_through_the_tries_of_a_job() {
    let (server, shims) = start().await;
    let policy = json!({"max_attempts": 2, "backoff": {"initial": "1ms"}});
    let id = create(&server, json!({"command": ["train"], "policy": policy})).await;
    begun(&server, &id).await;
    let path = format!("/api/v1/jobs/{id}/logs?follow=true&stream=stdout");
    let mut follower = Follower::open(&server, &path).await;
    shims.write(&id, Stdout, "first ");
    assert_eq!(follower.take(6).await, b"first ");
    shims.exit(&id, 1);
    eventually(|| async {
        let job = server.get(&format!("/api/v1/jobs/{id}")).await.ok();
        (job["attempt"] == 2 && job["heartbeat_status"] == "fresh").then_some(())
    })
    .await;
    shims.write(&id, Stdout, "second");
    assert_eq!(follower.take(6).await, b"second");
    shims.exit(&id, 0);
    assert_eq!(follower.next().await, None);
    assert_eq!(read(&server, &id, "?stream=stdout&offset=3").await, b"st second");
}

#[tokio::test]
async fn a_body_that_misses_bytes_breaks_off() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    shims.write(&id, Stdout, "0123");
    let path = format!("/api/v1/jobs/{id}/logs?follow=true&stream=stdout");
    let mut follower = Follower::open(&server, &path).await;
    assert_eq!(follower.take(4).await, b"0123");
    shims.change(&id, |folder| {
        folder.output[0].base = 100;
        folder.output[0].bytes = b"new".to_vec();
    });
    let broken = follower.next().await.expect("not the end");
    assert!(broken.as_ref().is_err_and(|error| error.contains("rotated")), "{broken:?}");
    let again = Follower::open(&server, &format!("{path}&offset=4")).await;
    assert_eq!(again.offset, Some(100));
}

#[tokio::test]
async fn a_job_that_is_deleted_breaks_off_what_follows_it() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    let mut follower = Follower::open(&server, &format!("/api/v1/jobs/{id}/logs?follow=true")).await;
    shims.write(&id, Stdout, "x");
    assert_eq!(follower.take(1).await, b"x");
    shims.exit(&id, 0);
    finished(&server, &id).await;
    server.delete(&format!("/api/v1/jobs/{id}")).await.ok();
    let broken = follower.next().await.expect("not the end");
    assert!(broken.is_err(), "{broken:?}");
}

#[tokio::test]
async fn whoever_follows_beyond_the_limit_is_sent_away_after_each_piece() {
    let (server, shims) = start().await;
    let id = running(&server).await;
    let path = format!("/api/v1/jobs/{id}/logs?stream=stdout&follow=true");
    let mut followers = Vec::new();
    for _ in 0..256 {
        followers.push(Follower::open(&server, &path).await);
    }
    shims.write(&id, Stdout, "so far");
    let mut beyond = Follower::open(&server, &path).await;
    assert_eq!(beyond.until_broken().await, b"so far", "what is there, and then no proper end");
    assert_eq!(read(&server, &id, "?stream=stdout").await, b"so far", "readers have no limit");
    shims.exit(&id, 0);
    finished(&server, &id).await;
    let whole = read(&server, &id, "?stream=stdout&follow=true").await;
    assert_eq!(whole, b"so far", "a finished job is read to its end without a place");
}

#[tokio::test]
async fn a_server_that_ends_breaks_off_what_is_not_complete() {
    let (server, shims) = start().await;
    let (going, done) = (running(&server).await, running(&server).await);
    shims.write(&going, Stdout, "so far");
    shims.write(&done, Stdout, "all of it");
    shims.exit(&done, 0);
    finished(&server, &done).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let (end, ended) = oneshot::channel::<()>();
    let shutdown = async { _ = ended.await };
    let serving = serve(server.engine.clone(), Config::default(), listener, shutdown);
    let follow = async |id: &str, until: &str| {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let asked = format!("GET /api/v1/jobs/{id}/logs?follow=true HTTP/1.1\r\nhost: {address}\r\n\r\n");
        stream.write_all(asked.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        while !answer.contains(until) {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).await.expect("read");
            assert_ne!(read, 0, "{answer}");
            answer.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
        (stream, answer)
    };
    let client = async {
        let (_stream, answer) = follow(&done, "\r\n0\r\n\r\n").await;
        assert!(answer.contains("all of it"), "{answer}");
        let (mut stream, answer) = follow(&going, "so far").await;
        assert!(answer.contains("transfer-encoding: chunked"), "{answer}");
        end.send(()).expect("serving");
        let mut rest = Vec::new();
        let _either_way_it_ends = stream.read_to_end(&mut rest).await;
        assert!(!String::from_utf8_lossy(&rest).contains("0\r\n\r\n"), "{rest:?}");
    };
    let (served, ()) = tokio::join!(serving, client);
    served.expect("an orderly end");
}
