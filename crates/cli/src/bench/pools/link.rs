//! One link of a worker that takes no work: says hello, and answers pings.
//!
//! Knows the few messages of `proto/everbeat/worker/v1/worker.proto` that this takes; what else comes is skipped, as
//! any reader of that format skips what it does not know.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use prost::Message;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use ureq::http::Request;

#[derive(Message)]
struct FromWorker {
    #[prost(message, optional, tag = "1")]
    hello: Option<Hello>,
    #[prost(message, optional, tag = "2")]
    pong: Option<Pong>,
}

#[derive(Message)]
struct Hello {
    #[prost(string, tag = "3")]
    sdk: String,
    #[prost(string, repeated, tag = "4")]
    tasks: Vec<String>,
    #[prost(uint32, tag = "5")]
    slots: u32,
    #[prost(string, repeated, tag = "6")]
    queues: Vec<String>,
}

#[derive(Message)]
struct Pong {
    #[prost(uint64, tag = "1")]
    sequence: u64,
}

#[derive(Message)]
struct FromServer {
    #[prost(message, optional, tag = "1")]
    welcome: Option<Welcome>,
    #[prost(message, optional, tag = "2")]
    ping: Option<Ping>,
}

#[derive(Message)]
struct Welcome {
    #[prost(uint32, tag = "3")]
    ping_interval_ms: u32,
}

#[derive(Message)]
struct Ping {
    #[prost(uint64, tag = "1")]
    sequence: u64,
}

const PATH: &str = "/everbeat.worker.v1.WorkerLink/Connect";
/// A flag and a length stand before each message.
const PREFIX: usize = 5;

pub(super) struct Link {
    pub(super) ping_interval: Duration,
    to: SendStream<Bytes>,
    from: RecvStream,
    buffer: BytesMut,
    _connection: Connection,
}

impl Link {
    /// Dials, says hello, and waits for the welcome.
    pub(super) async fn open(address: SocketAddr) -> Result<Link, String> {
        let broken = |error: h2::Error| format!("a link broke: {error}");
        let stream = TcpStream::connect(address).await.map_err(|error| format!("{address}: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let (send, connection) = h2::client::handshake(stream).await.map_err(broken)?;
        let connection = Connection(spawn(async move { _ = connection.await }));
        let request = Request::post(format!("http://{address}{PATH}")).header("content-type", "application/grpc");
        let request = request.body(()).map_err(|error| error.to_string())?;
        let mut send = send.ready().await.map_err(broken)?;
        let (answer, mut to) = send.send_request(request, false).map_err(broken)?;
        let hello =
            Hello { sdk: "everbeat bench".into(), tasks: vec![TASK.into()], slots: 1, queues: vec![TASK.into()] };
        say(&mut to, &FromWorker { hello: Some(hello), pong: None }).map_err(broken)?;
        let from = answer.await.map_err(broken)?.into_body();
        let mut link =
            Link { ping_interval: Duration::ZERO, to, from, buffer: BytesMut::new(), _connection: connection };
        let welcome = link.next().await.and_then(|message| message.welcome).ok_or("a worker was not welcomed")?;
        link.ping_interval = Duration::from_millis(welcome.ping_interval_ms.into());
        Ok(link)
    }

    /// Answers pings until the link ends.
    pub(super) async fn answer(mut self) {
        while let Some(message) = self.next().await {
            let Some(Ping { sequence }) = message.ping else { continue };
            let pong = FromWorker { hello: None, pong: Some(Pong { sequence }) };
            if say(&mut self.to, &pong).is_err() {
                return;
            }
        }
    }

    /// None: the link is over, or what it carries cannot be read.
    async fn next(&mut self) -> Option<FromServer> {
        loop {
            if let Some(message) = whole(&mut self.buffer) {
                return FromServer::decode(message).ok();
            }
            let part = self.from.data().await?.ok()?;
            self.from.flow_control().release_capacity(part.len()).ok()?;
            self.buffer.extend_from_slice(&part);
        }
    }
}

/// A task that nobody submits.
const TASK: &str = "bench_idle";

/// Drives the connection of a link for as long as the link is kept.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[allow(clippy::disallowed_methods, reason = "the load's own task, which ends with its link")]
fn spawn(future: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(future)
}

/// Messages are few and small: the window never fills.
fn say(to: &mut SendStream<Bytes>, message: &FromWorker) -> Result<(), h2::Error> {
    let mut frame = BytesMut::with_capacity(PREFIX + message.encoded_len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.encoded_len()).unwrap_or(u32::MAX));
    frame.put_slice(&message.encode_to_vec());
    to.send_data(frame.freeze(), false)
}

/// Takes the first message out of what has arrived, if all of it is there.
fn whole(buffer: &mut BytesMut) -> Option<Bytes> {
    let mut prefix = buffer.get(1..PREFIX)?;
    let length = usize::try_from(prefix.get_u32()).ok()?;
    if buffer.len() < PREFIX + length {
        return None;
    }
    buffer.advance(PREFIX);
    Some(buffer.split_to(length).freeze())
}
