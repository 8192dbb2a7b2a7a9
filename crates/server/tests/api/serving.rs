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
