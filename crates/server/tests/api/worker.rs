//! A worker that says what its test tells it to.

#![allow(clippy::disallowed_methods, reason = "a worker is a task of its own, in real time")]

use crate::common::Server;
use crate::proto::{self, from_server, from_worker};
use axum::http::{HeaderMap, Request};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use everbeat_server::{Config, WorkerDoors, serve_workers};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use prost::Message;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) const PATH: &str = "/everbeat.worker.v1.WorkerLink/Connect";

/// How a stream ended: its code and its message.
pub(crate) type Ended = (u16, String);

/// Where a server listens to workers, for as long as this is kept.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    pub(crate) close: Option<oneshot::Sender<()>>,
    pub(crate) served: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.served.abort();
    }
}

/// Serves the link of a server's engine on some port.
pub(crate) async fn listen(server: &Server, config: Config) -> Listening {
    listen_at(server, config, WorkerDoors::default()).await
}

pub(crate) async fn listen_at(server: &Server, config: Config, doors: WorkerDoors) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let doors = WorkerDoors { remote: Some(listener), ..doors };
    let (close, closed) = oneshot::channel();
    let engine = server.engine.clone();
    let served = tokio::spawn(async move {
        let closed = async {
            if closed.await.is_err() {
                std::future::pending().await
            }
        };
        serve_workers(engine, config, doors, closed).await.expect("served");
    });
    Listening { address, close: Some(close), served }
}

/// An HTTP/2 connection of a worker.
pub(crate) struct Line {
    send: SendRequest<Bytes>,
    authority: String,
    task: JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Line {
    pub(crate) async fn open(address: SocketAddr) -> Line {
        let stream = TcpStream::connect(address).await.expect("connected");
        Line::over(stream, &address.to_string()).await
    }

    pub(crate) async fn over(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, authority: &str) -> Line {
        let (send, connection) = h2::client::handshake(io).await.expect("a handshake");
        let task = tokio::spawn(async move { _ = connection.await });
        Line { send, authority: authority.to_string(), task }
    }

    /// Calls a method.
    pub(crate) async fn call(&self, path: &str, headers: &[(&str, &str)]) -> Stream {
        let mut request = Request::post(format!("http://{}{path}", self.authority));
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut send = self.send.clone().ready().await.expect("ready");
        let (answer, to) = send.send_request(request.body(()).expect("a request"), false).expect("sent");
        Stream { to, answer: Some(answer), from: None, buffer: BytesMut::new() }
    }
}

/// One call, from both of its ends.
pub(crate) struct Stream {
    to: SendStream<Bytes>,
    answer: Option<h2::client::ResponseFuture>,
    from: Option<RecvStream>,
    buffer: BytesMut,
}

impl Stream {
    /// Sends bytes as they are. Whoever was cut off meanwhile reads why.
    pub(crate) async fn send(&mut self, mut bytes: Bytes) {
        while !bytes.is_empty() {
            self.to.reserve_capacity(bytes.len());
            if self.to.capacity() == 0 && !matches!(poll_fn(|cx| self.to.poll_capacity(cx)).await, Some(Ok(_))) {
                return;
            }
            let part = bytes.split_to(self.to.capacity().min(bytes.len()));
            if self.to.send_data(part, false).is_err() {
                return;
            }
        }
    }

    pub(crate) async fn say(&mut self, message: from_worker::Message) {
        self.send(framed(&proto::FromWorker { message: Some(message) })).await;
    }

    pub(crate) fn finish(&mut self) {
        self.to.send_data(Bytes::new(), true).expect("sent");
    }

    /// What the server says next, pings aside, which are answered; or how it ended the stream.
    pub(crate) async fn hear(&mut self) -> Result<from_server::Message, Ended> {
        let heard = async {
            loop {
                match self.next().await? {
                    from_server::Message::Ping(ping) => {
                        let pong = proto::Pong { sequence: ping.sequence, ..proto::Pong::default() };
                        self.say(from_worker::Message::Pong(pong)).await;
                    }
                    other => return Ok(other),
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), heard).await.expect("heard within 20 s")
    }

    async fn next(&mut self) -> Result<from_server::Message, Ended> {
        if let Some(answer) = self.answer.take() {
            let (head, body) = answer.await.expect("an answer").into_parts();
            assert_eq!(head.headers["content-type"], "application/grpc");
            if let Some(ended) = ended(&head.headers) {
                return Err(ended);
            }
            self.from = Some(body);
        }
        let from = self.from.as_mut().expect("answered");
        loop {
            if let Some(message) = whole(&mut self.buffer) {
                return Ok(proto::FromServer::decode(message).expect("a message").message.expect("something"));
            }
            match from.data().await {
                Some(part) => {
                    let part = part.unwrap_or_else(|error| panic!("the stream broke: {error}"));
                    from.flow_control().release_capacity(part.len()).expect("released");
                    self.buffer.extend_from_slice(&part);
                }
                None => {
                    let trailers = from.trailers().await.expect("trailers").unwrap_or_default();
                    return Err(ended(&trailers).expect("a status"));
                }
            }
        }
    }

    /// How the stream ends, whatever is said before.
    pub(crate) async fn ended(&mut self) -> Ended {
        loop {
            if let Err(ended) = self.hear().await {
                return ended;
            }
        }
    }
}

fn ended(headers: &HeaderMap) -> Option<Ended> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().expect("text").to_string());
    Some((text("grpc-status")?.parse().expect("a number"), text("grpc-message").unwrap_or_default()))
}

fn whole(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = u32::from_be_bytes(buffer.get(1..5)?.try_into().expect("4 bytes")) as usize;
    if buffer.len() < 5 + length {
        return None;
    }
    buffer.advance(5);
    Some(buffer.split_to(length).freeze())
}

pub(crate) fn framed(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(&message);
    frame.freeze()
}

pub(crate) fn hello(tasks: &[&str]) -> proto::Hello {
    proto::Hello {
        sdk: "test 1".to_string(),
        tasks: tasks.iter().map(ToString::to_string).collect(),
        slots: 2,
        host: "elsewhere".to_string(),
        ..proto::Hello::default()
    }
}

/// A worker that was welcomed.
pub(crate) struct Worker {
    pub(crate) welcome: proto::Welcome,
    pub(crate) stream: Stream,
    _line: Line,
}

impl Worker {
    pub(crate) async fn connect(address: SocketAddr, tasks: &[&str]) -> Worker {
        Worker::connect_as(address, hello(tasks)).await
    }

    pub(crate) async fn connect_as(address: SocketAddr, hello: proto::Hello) -> Worker {
        Worker::over(Line::open(address).await, hello).await
    }

    pub(crate) async fn over(line: Line, hello: proto::Hello) -> Worker {
        let mut stream = line.call(PATH, &[]).await;
        stream.say(from_worker::Message::Hello(hello)).await;
        match stream.hear().await {
            Ok(from_server::Message::Welcome(welcome)) => Worker { welcome, stream, _line: line },
            other => panic!("{other:?} is no welcome"),
        }
    }

    pub(crate) async fn work(&mut self) -> proto::Work {
        match self.stream.hear().await {
            Ok(from_server::Message::Work(work)) => work,
            other => panic!("{other:?} is no work"),
        }
    }

    pub(crate) async fn end(&mut self, lease: &Option<proto::Lease>, outcome: proto::ended::Outcome) {
        let ended = proto::Ended { lease: lease.clone(), outcome: Some(outcome) };
        self.stream.say(from_worker::Message::Ended(ended)).await;
    }

    /// Ends an attempt with this result, and waits until that is heard.
    pub(crate) async fn succeed(&mut self, lease: &Option<proto::Lease>, result: &str) {
        self.end(lease, proto::ended::Outcome::Result(result.to_string())).await;
        self.ended_is_answered(lease).await;
    }

    pub(crate) async fn ended_is_answered(&mut self, lease: &Option<proto::Lease>) {
        loop {
            match self.stream.hear().await {
                Ok(from_server::Message::EndedAnswer(answer)) => return assert_eq!(&answer.lease, lease),
                // What was streamed before is answered as well.
                Ok(from_server::Message::OutputAnswer(_)) => {}
                other => panic!("{other:?} does not answer an end"),
            }
        }
    }

    pub(crate) async fn output(&mut self, lease: &Option<proto::Lease>, sequence: u64, item: &str) {
        let output = proto::Output { lease: lease.clone(), sequence, item: item.to_string() };
        self.stream.say(from_worker::Message::Output(output)).await;
    }

    /// Waits until all items up to this one are answered.
    pub(crate) async fn output_is_answered(&mut self, lease: &Option<proto::Lease>, through: u64) {
        loop {
            match self.stream.hear().await {
                Ok(from_server::Message::OutputAnswer(answer)) => {
                    assert_eq!(&answer.lease, lease);
                    assert!(answer.sequence <= through, "{} was never said", answer.sequence);
                    if answer.sequence == through {
                        return;
                    }
                }
                other => panic!("{other:?} answers no item"),
            }
        }
    }

    pub(crate) async fn beat(&mut self, beat: proto::Heartbeat) {
        self.stream.say(from_worker::Message::Heartbeat(beat)).await;
    }

    pub(crate) async fn answer(&mut self) -> (proto::Verdict, proto::HeartbeatAnswer) {
        match self.stream.hear().await {
            Ok(from_server::Message::HeartbeatAnswer(answer)) => (answer.verdict(), answer),
            other => panic!("{other:?} answers no heartbeat"),
        }
    }
}
