//! Where workers come in: the socket of this host's pools, and the address for workers from elsewhere.

use super::connection::{self, Io, Peer};
use super::strangers::{Stranger, Strangers};
use super::tls::Tls;
use crate::Config;
use crate::auth::Guard;
use everbeat_engine::{Engine, within};
use std::future::Future;
use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// Where the link is served.
#[derive(Debug, Default)]
pub struct WorkerDoors {
    /// For the workers of this host's pools.
    pub pools: Option<StdUnixListener>,
    /// For workers that belong to no pool.
    pub remote: Option<TcpListener>,
    /// Without it, what passes over `remote` can be read on the way.
    pub tls: Option<Tls>,
}

/// Connections at one door, of workers and of strangers.
const MOST_CONNECTIONS: usize = 16_384;
/// After a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What is under way when the server is told to end gets this long.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// Serves the link until `shutdown` resolves. By then the engine should have let its workers go: whoever is still
/// connected is cut off.
pub async fn serve_workers(
    engine: Engine,
    config: Config,
    doors: WorkerDoors,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let refused = |invalid| io::Error::new(io::ErrorKind::InvalidInput, invalid);
    config.check().map_err(refused)?;
    if let Some(remote) = &doors.remote {
        config.check_address("server.worker_listen", remote.local_addr()?).map_err(refused)?;
    }
    let house = Arc::new(House { guard: Guard::new(&config), engine, config });
    let (close, closing) = watch::channel(false);
    let pools = doors.pools.map(|listener| {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    });
    let pools = Door::new(&house, pools.transpose()?.map(Listener::Pools), &closing);
    let remote = Door::new(&house, doors.remote.map(|listener| Listener::Remote(listener, doors.tls)), &closing);
    let closed = async {
        shutdown.await;
        close.send_replace(true);
    };
    tokio::join!(pools.attend(), remote.attend(), closed);
    Ok(())
}

/// What all connections share.
pub(super) struct House {
    pub(super) engine: Engine,
    pub(super) guard: Guard,
    pub(super) config: Config,
}

enum Listener {
    Pools(UnixListener),
    Remote(TcpListener, Option<Tls>),
}

/// One listener and its connections, which end with it.
struct Door {
    house: Arc<House>,
    listener: Option<Listener>,
    closing: watch::Receiver<bool>,
    places: Arc<Semaphore>,
    strangers: Arc<Strangers>,
    connections: JoinSet<()>,
}

impl Door {
    fn new(house: &Arc<House>, listener: Option<Listener>, closing: &watch::Receiver<bool>) -> Door {
        Door {
            house: house.clone(),
            listener,
            closing: closing.clone(),
            places: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
            strangers: Strangers::new(house.engine.env().clone()),
            connections: JoinSet::new(),
        }
    }

    async fn attend(mut self) {
        let Some(listener) = self.listener.take() else { return };
        let mut closing = self.closing.clone();
        let env = self.house.engine.env().clone();
        let mut next = None;
        loop {
            let room = async {
                // The semaphore is never closed.
                let place = self.places.clone().acquire_owned().await.ok();
                (place, self.strangers.place().await)
            };
            tokio::select! {
                biased;
                () = async { _ = closing.wait_for(|closing| *closing).await } => break,
                Some(ended) = self.connections.join_next() => {
                    if ended.is_err_and(|error| error.is_panic()) {
                        tracing::error!("a worker's connection ended by a panic");
                    }
                }
                (place, stranger) = room, if next.is_some() => {
                    if let Some(accepted) = next.take() {
                        self.open(accepted, place, stranger);
                    }
                }
                accepted = listener.accept(), if next.is_none() => match accepted {
                    Ok(accepted) => next = Some(accepted),
                    Err(error) => {
                        // Out of descriptors, most likely: without a pause this would be asked again at once, for ever.
                        tracing::warn!(%error, "the connection of a worker could not be accepted");
                        env.sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        let connections = &mut self.connections;
        within(&*env, CLOSE_GRACE, async { while connections.join_next().await.is_some() {} }).await;
    }

    fn open(&mut self, accepted: Accepted, place: Option<OwnedSemaphorePermit>, stranger: Stranger) {
        let (house, closing) = (self.house.clone(), self.closing.clone());
        self.connections.spawn(async move {
            let _until_it_ends = place;
            connection::serve(&house, accepted, stranger, closing).await;
        });
    }
}

/// A connection of which nothing was read yet.
pub(super) enum Accepted {
    Ready(Box<dyn Io>, Peer),
    /// The handshake of TLS comes first.
    Veiled(TcpStream, Tls, Peer),
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listener::Pools(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(Accepted::Ready(Box::new(stream), Peer::Pool))
            }
            Listener::Remote(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                // Small messages leave at once; a socket that cannot do this still works.
                let _slower = stream.set_nodelay(true);
                let peer = Peer::Remote(address);
                Ok(match tls {
                    Some(tls) => Accepted::Veiled(stream, tls.clone(), peer),
                    None => Accepted::Ready(Box::new(stream), peer),
                })
            }
        }
    }
}
