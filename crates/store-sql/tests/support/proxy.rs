//! A proxy between a store and its server, which can be stopped and cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to bytes on their way to the server and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Way {
    Open,
    /// Requests arrive; the first answer cuts the connection instead.
    NoAnswers,
    /// Nothing moves, nothing is closed: a stopped server, a dead network.
    Frozen,
    /// Every connection is closed, old and new.
    Closed,
}

/// A way to the server that a test can spoil.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    way: Arc<AtomicU8>,
    turns: Arc<AtomicUsize>,
}

impl Proxy {
    #[allow(clippy::disallowed_methods, reason = "a server inside a test")]
    pub(crate) async fn start(server: &str) -> Proxy {
        let config: tokio_postgres::Config = server.parse().expect("a PostgreSQL URL");
        let tokio_postgres::config::Host::Tcp(host) = &config.get_hosts()[0] else { panic!("a TCP host is needed") };
        let upstream = format!("{host}:{}", config.get_ports()[0]);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let way = Arc::new(AtomicU8::new(Way::Open as u8));
        let turns = Arc::new(AtomicUsize::new(0));
        let (seen, counted) = (way.clone(), turns.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, upstream.clone(), seen.clone(), counted.clone()));
            }
        });
        Proxy { address, way, turns }
    }

    pub(crate) fn set(&self, way: Way) {
        self.way.store(way as u8, Ordering::SeqCst);
    }

    /// How often a client spoke after the server had answered it, on all connections together.
    pub(crate) fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }

    pub(crate) fn through(&self, url: &str) -> String {
        let config: tokio_postgres::Config = url.parse().expect("a PostgreSQL URL");
        let user = config.get_user().expect("a user");
        let password = config.get_password().map(|secret| format!(":{}", String::from_utf8_lossy(secret)));
        let database = config.get_dbname().expect("a database");
        format!("postgres://{user}{}@{}/{database}", password.unwrap_or_default(), self.address)
    }
}

#[allow(clippy::disallowed_methods, reason = "looks again and again whether the way has changed")]
async fn carry(client: TcpStream, upstream: String, way: Arc<AtomicU8>, turns: Arc<AtomicUsize>) {
    let is = |wanted: Way| way.load(Ordering::SeqCst) == wanted as u8;
    if is(Way::Closed) {
        return;
    }
    let Ok(server) = TcpStream::connect(upstream).await else { return };
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let (mut request, mut answer) = (vec![0; 65_536], vec![0; 65_536]);
    let mut answered = true;
    let mut look = tokio::time::interval(std::time::Duration::from_millis(5));
    loop {
        if is(Way::Closed) {
            return;
        }
        if is(Way::Frozen) {
            look.tick().await;
            continue;
        }
        tokio::select! {
            read = from_client.read(&mut request) => match read {
                Ok(size) if size > 0 && !is(Way::Frozen) => {
                    turns.fetch_add(usize::from(answered), Ordering::SeqCst);
                    answered = false;
                    if to_server.write_all(&request[..size]).await.is_err() { return }
                }
                Ok(size) if size > 0 => {}
                _ => return,
            },
            read = from_server.read(&mut answer) => match read {
                Ok(size) if size > 0 && !is(Way::NoAnswers) => {
                    answered = true;
                    if to_client.write_all(&answer[..size]).await.is_err() { return }
                }
                _ => return,
            },
            _ = look.tick() => {}
        }
    }
}
