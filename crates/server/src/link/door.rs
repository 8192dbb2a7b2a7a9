//! Where workers come in: the socket of this host's pools, and the address for workers from elsewhere.

use super::connection::{self, Io, Peer};
use super::tls::Tls;
use crate::Config;
use crate::auth::Guard;
use everbeat_engine::{Engine, within};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::{Arc, Weak};
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
/// Connections at one door on which no worker was welcomed yet. Each is closed after a few seconds; until then nobody
/// else is accepted.
const MOST_STRANGERS: usize = 256;
/// As many of one process of this host: a worker that opens connections without end keeps nobody else from the door.
const MOST_OF_ONE_PROCESS: usize = 8;
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
    strangers: Arc<Semaphore>,
    /// Of each process of this host that has connections without a worker. Its number only counts: nobody is let in or
    /// judged by that.
    processes: BTreeMap<i32, Weak<Semaphore>>,
    connections: JoinSet<()>,
}

/// The place of a connection on which no worker was welcomed yet.
pub(super) struct Newcomer {
    _at_the_door: Option<OwnedSemaphorePermit>,
    _of_its_process: Option<OwnedSemaphorePermit>,
}

impl Door {
    fn new(house: &Arc<House>, listener: Option<Listener>, closing: &watch::Receiver<bool>) -> Door {
        Door {
            house: house.clone(),
            listener,
            closing: closing.clone(),
            places: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
            strangers: Arc::new(Semaphore::new(MOST_STRANGERS)),
            processes: BTreeMap::new(),
            connections: JoinSet::new(),
        }
    }

    async fn attend(mut self) {
        let Some(listener) = self.listener.take() else { return };
        let mut closing = self.closing.clone();
        let env = self.house.engine.env().clone();
        loop {
            let next = async {
                // Both are closed never.
                let place = self.places.clone().acquire_owned().await.ok();
                let stranger = self.strangers.clone().acquire_owned().await.ok();
                (place, stranger, listener.accept().await)
            };
            tokio::select! {
                biased;
                () = async { _ = closing.wait_for(|closing| *closing).await } => break,
                Some(ended) = self.connections.join_next() => {
                    if ended.is_err_and(|error| error.is_panic()) {
                        tracing::error!("a worker's connection ended by a panic");
                    }
                }
                (place, stranger, accepted) = next => match accepted {
                    Ok((accepted, process)) => match self.admit(process) {
                        Ok(of_its_process) => {
                            let newcomer = Newcomer { _at_the_door: stranger, _of_its_process: of_its_process };
                            self.open(accepted, place, newcomer);
                        }
                        Err(TooMany) => tracing::debug!(process, "a process has too many connections without a worker"),
                    },
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

    /// A place among the newcomers of its process, if that is of this host.
    fn admit(&mut self, process: Option<i32>) -> Result<Option<OwnedSemaphorePermit>, TooMany> {
        let Some(process) = process else { return Ok(None) };
        self.processes.retain(|_, places| places.strong_count() > 0);
        let places = self.processes.get(&process).and_then(Weak::upgrade);
        let places = places.unwrap_or_else(|| Arc::new(Semaphore::new(MOST_OF_ONE_PROCESS)));
        self.processes.insert(process, Arc::downgrade(&places));
        places.try_acquire_owned().map(Some).map_err(|_| TooMany)
    }

    fn open(&mut self, accepted: Accepted, place: Option<OwnedSemaphorePermit>, newcomer: Newcomer) {
        let (house, closing) = (self.house.clone(), self.closing.clone());
        self.connections.spawn(async move {
            let _until_it_ends = place;
            connection::serve(&house, accepted, newcomer, closing).await;
        });
    }
}

/// The process has too many connections on which no worker was welcomed yet.
struct TooMany;

/// A connection of which nothing was read yet.
pub(super) enum Accepted {
    Ready(Box<dyn Io>, Peer),
    /// The handshake of TLS comes first.
    Veiled(TcpStream, Tls, Peer),
}

impl Listener {
    /// A connection, and the process at its other end if that is of this host.
    async fn accept(&self) -> io::Result<(Accepted, Option<i32>)> {
        match self {
            Listener::Pools(listener) => {
                let (stream, _) = listener.accept().await?;
                let process = stream.peer_cred().ok().and_then(|peer| peer.pid());
                Ok((Accepted::Ready(Box::new(stream), Peer::Pool), process))
            }
            Listener::Remote(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                // Small messages leave at once; a socket that cannot do this still works.
                let _slower = stream.set_nodelay(true);
                let peer = Peer::Remote(address);
                let accepted = match tls {
                    Some(tls) => Accepted::Veiled(stream, tls.clone(), peer),
                    None => Accepted::Ready(Box::new(stream), peer),
                };
                Ok((accepted, None))
            }
        }
    }
}
