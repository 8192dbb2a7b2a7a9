//! One connection: its handshake, the greeting of a worker, and its end.

use super::door::{Accepted, House};
use super::greet::greet;
use super::grpc::{self, Code, Status};
use super::strangers::Stranger;
use super::talk::Talk;
use bytes::Bytes;
use everbeat_engine::{Env, within};
use h2::server::{Builder, Connection};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The socket of this host's pools.
    Pool,
    Remote(SocketAddr),
}

/// All that comes before the first request arrives within this.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// So many requests of a connection may be refused before it is closed.
const MOST_REFUSALS: usize = 16;
/// What was last said to a worker gets this long to leave.
const PARTING: Duration = Duration::from_secs(2);

pub(super) async fn serve(house: &House, accepted: Accepted, stranger: Stranger, mut closing: watch::Receiver<bool>) {
    let env = house.engine.env();
    let opened = async {
        let (io, peer) = match accepted {
            Accepted::Ready(io, peer) => (io, peer),
            Accepted::Veiled(stream, tls, peer) => (Box::new(tls.accept(stream).await.ok()?) as Box<dyn Io>, peer),
        };
        Some((builder().handshake(io).await.ok()?, peer))
    };
    let closed = async { _ = closing.wait_for(|closing| *closing).await };
    tokio::pin!(closed);
    let opened = tokio::select! {
        biased;
        () = &mut closed => return,
        () = stranger.has_to_go() => return,
        opened = within(&**env, HANDSHAKE_LIMIT, opened) => opened.flatten(),
    };
    let Some((mut connection, peer)) = opened else { return };
    let talk = tokio::select! {
        biased;
        () = &mut closed => None,
        () = stranger.has_to_go() => return,
        talk = meet(&mut connection, house, peer, &stranger) => talk,
    };
    let pings = connection.ping_pong();
    if let (Some(talk), Some(pings)) = (talk, pings) {
        drop(stranger);
        let talk = talk.run(env, pings, &mut closed);
        tokio::pin!(talk);
        if along(&mut connection, &mut talk).await.is_none() {
            return;
        }
    }
    part(&**env, connection).await;
}

/// Bounds for whoever connects: two streams, of which the second is told why it is one too many, and what may wait
/// unread.
fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(2)
        .max_concurrent_reset_streams(16)
        .max_header_list_size(16 << 10)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        // A worker that waits for this server may have filled its window with small messages: that is no attack.
        .data_frame_budget(16 * WINDOW as usize)
        .max_send_buffer_size(WINDOW as usize);
    builder
}

/// What a worker may send before any of it is read.
const WINDOW: u32 = 256 << 10;

/// Waits for a worker that is welcomed. None: nobody comes, or the connection is gone.
async fn meet(
    connection: &mut Connection<Box<dyn Io>, Bytes>,
    house: &House,
    peer: Peer,
    stranger: &Stranger,
) -> Option<Talk> {
    let env = house.engine.env();
    for _ in 0..MOST_REFUSALS {
        stranger.is_silent();
        let request = within(&**env, HANDSHAKE_LIMIT, connection.accept()).await??;
        let (request, respond) = request.ok()?;
        let greeting = greet(house, peer, stranger, request, respond);
        tokio::pin!(greeting);
        if let Some(talk) = along(connection, &mut greeting).await? {
            return Some(talk);
        }
    }
    None
}

/// Drives the connection until a future is done. None: the connection is gone.
async fn along<T>(
    connection: &mut Connection<Box<dyn Io>, Bytes>,
    future: &mut (impl Future<Output = T> + Unpin),
) -> Option<T> {
    loop {
        tokio::select! {
            biased;
            done = &mut *future => return Some(done),
            another = connection.accept() => {
                let (_, mut respond) = another?.ok()?;
                let surplus = Status::new(Code::ResourceExhausted, "a connection carries one worker; open another");
                grpc::refuse(&mut respond, &surplus);
            }
        }
    }
}

/// Ends the connection: what was said last may still leave.
async fn part(env: &dyn Env, mut connection: Connection<Box<dyn Io>, Bytes>) {
    connection.graceful_shutdown();
    let gone = async { while let Some(Ok(_too_late)) = connection.accept().await {} };
    within(env, PARTING, gone).await;
}
