use crate::common::{eventually, idle, started};
use everbeat_server::{Config, serve};
use serde_json::json;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

async fn exchange(stream: &mut TcpStream, request: &str, until: &str) -> String {
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains(until) {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).await.expect("read");
        assert_ne!(read, 0, "the connection ended after {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..read]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_server_that_ends_ends_streams_and_waits_and_itself() {
    let server = started(Config::default()).await;
    let run = server.submit(json!({"task": "gate"})).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let (end, ended) = oneshot::channel::<()>();
    let shutdown = async { _ = ended.await };
    let serving = serve(server.engine.clone(), Config::default(), listener, shutdown);
    let client = async {
        let mut idle = TcpStream::connect(address).await.expect("connected");
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
        let answer = exchange(&mut idle, &get("/livez"), "alive").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let mut events = TcpStream::connect(address).await.expect("connected");
        exchange(&mut events, &get("/api/v1/events"), "retry:").await;
        let mut waiting = TcpStream::connect(address).await.expect("connected");
        waiting.write_all(get(&format!("/api/v1/runs/{run}?wait=finished")).as_bytes()).await.expect("sent");
        // One more exchange gives the wait time to begin; whether it did or not, it must end in order.
        exchange(&mut idle, &get("/readyz"), "ready").await;
        end.send(()).expect("serving");
        let mut rest = String::new();
        events.read_to_string(&mut rest).await.expect("the stream ends in order");
        assert!(rest.ends_with("0\r\n\r\n"), "{rest:?}");
        rest.clear();
        waiting.read_to_string(&mut rest).await.expect("the wait ends in order");
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 503"), "{rest}");
    };
    let (served, ()) = tokio::join!(serving, client);
    served.expect("an orderly end");
    eventually(|| async { TcpStream::connect(address).await.is_err().then_some(()) }).await;
}

#[tokio::test]
async fn an_open_server_does_not_listen_to_other_machines() {
    let server = idle(Config::default());
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("bound");
    let refused = serve(server.engine.clone(), Config::default(), listener, std::future::pending()).await;
    let error = refused.expect_err("refused");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("loopback"), "{error}");
}

#[tokio::test]
async fn a_large_body_is_refused_over_a_real_connection_with_an_answer() {
    let server = idle(Config::default());
    let config = Config { body_limit: 1000, ..Config::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let body = "x".repeat(3000);
    let request = format!(
        "POST /api/v1/runs HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: 3000\r\n\r\n{body}"
    );
    let client = async {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let answer = exchange(&mut stream, &request, "body-too-large").await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    };
    tokio::select! {
        served = serve(server.engine.clone(), config, listener, std::future::pending()) => panic!("{served:?}"),
        () = client => {}
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_or_could_mean_two_things_is_refused_over_a_raw_connection() {
    let server = idle(Config::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let at = listener.local_addr().expect("an address");
    let get = |target: &str, headers: &str| format!("GET {target} HTTP/1.1\r\n{headers}\r\n");
    let host = format!("host: {at}\r\n");
    let large = format!("{host}x-large: {}\r\n", "x".repeat(100_000));
    let (long, half) = (format!("/livez?{}", "x".repeat(40_000)), format!("{host}x-half: {}\r\n", "x".repeat(40_000)));
    let client = async {
        for (request, status, said) in [
            (get("/livez", &host), "200", "alive"),
            (get(&format!("http://{at}/livez"), &host), "200", "alive"),
            (get("/api/v1/runs", &format!("{host}{host}")), "400", "more than one Host"),
            (get("/livez", &format!("{host}{host}")), "400", "more than one Host"),
            (get("/api/v1/runs", &format!("{host}host: evil.example\r\n")), "400", "more than one Host"),
            (get("/api/v1/runs", &format!("host: me@{at}\r\n")), "400", "malformed-request"),
            (get("/api/v1/runs", &format!("host: evil.example@{at}\r\n")), "400", "malformed-request"),
            (get("/api/v1/runs", "host: a b\r\n"), "400", "malformed-request"),
            (get(&format!("http://me@{at}/api/v1/runs"), &host), "400", "names a user"),
            (get("http://evil.example/api/v1/runs", &host), "400", "names evil.example"),
            (get(&format!("http://{at}/api/v1/runs"), "host: evil.example\r\n"), "400", "malformed-request"),
            (get("/api/v1/runs", &large), "431", "head-too-large"),
            (get("/livez", &large), "431", "head-too-large"),
            (get(&long, &half), "431", "head-too-large"),
        ] {
            let mut stream = TcpStream::connect(at).await.expect("connected");
            let answer = exchange(&mut stream, &request, said).await;
            let shown: String = request.chars().take(100).collect();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{shown}: {answer}");
        }
        // Too many headers, or so much that it is not even read to its end: the status is all there is to say.
        let many: String = (0..500).map(|n| format!("x-{n}: 1\r\n")).collect();
        let mut stream = TcpStream::connect(at).await.expect("connected");
        let answer = exchange(&mut stream, &get("/livez", &format!("{host}{many}")), "\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    };
    tokio::select! {
        served = serve(server.engine.clone(), Config::default(), listener, std::future::pending()) => panic!("{served:?}"),
        () = client => {}
    }
}

#[tokio::test]
async fn whoever_is_idle_for_longest_makes_room_and_whoever_is_busy_does_not() {
    let server = idle(Config::default());
    let config = Config { connections: 3, ..Config::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let client = async {
        let mut busy = TcpStream::connect(address).await.expect("connected");
        exchange(&mut busy, &get("/api/v1/events"), "retry:").await;
        let mut silent = TcpStream::connect(address).await.expect("connected");
        let mut used = TcpStream::connect(address).await.expect("connected");
        exchange(&mut used, &get("/livez"), "alive").await;
        // There is no place left; each of these needs one.
        for _ in 0..2 {
            let mut fresh = TcpStream::connect(address).await.expect("connected");
            exchange(&mut fresh, &get("/livez"), "alive").await;
        }
        for closed in [&mut silent, &mut used] {
            let ended = closed.read(&mut [0; 64]).await;
            assert!(!matches!(ended, Ok(1..)), "{ended:?}");
        }
        server.post("/api/v1/queues/slow/pause").await.ok();
        exchange(&mut busy, "", "queue.paused").await;
        let answer = server.get("/metrics").await;
        assert!(answer.text().contains("everbeat_http_connections_evicted_total"), "{}", answer.text());
    };
    tokio::select! {
        served = serve(server.engine.clone(), config, listener, std::future::pending()) => panic!("{served:?}"),
        () = client => {}
    }
}
