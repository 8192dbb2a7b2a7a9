use crate::app::App;
use crate::limits::{CLOSE_GRACE, HEAD_LIMIT, HEAD_TIMEOUT, MOST_CONNECTIONS, bound};
use crate::openapi::{self, Written};
use crate::problem::{Kind, Problem};
use crate::{Config, auth, metrics};
use axum::extract::ConnectInfo;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};
use everbeat_engine::{Engine, within};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// Answers requests until `shutdown` resolves, then lets those under way finish for a bounded time.
pub async fn serve(
    engine: Engine,
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let refused = |invalid| io::Error::new(io::ErrorKind::InvalidInput, invalid);
    config.check().map_err(refused)?;
    config.check_address(listener.local_addr()?).map_err(refused)?;
    let (close, closing) = watch::channel(false);
    let env = engine.env().clone();
    let mut connections = Connections::new(routes(App::new(engine, config, closing)));
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut upkeep_at = env.boot() + UPKEEP;
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            () = env.sleep_until(upkeep_at) => {
                metrics::upkeep();
                upkeep_at = env.boot() + UPKEEP;
            }
            () = connections.one_ended() => {}
            accepted = accept(&listener, &places) => match accepted {
                Ok((stream, peer, place)) => connections.open(stream, peer, place),
                Err(error) => {
                    // Out of descriptors, most likely; connections that end will free some.
                    tracing::warn!(%error, "a connection could not be accepted");
                    env.sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
    drop(listener);
    close.send_replace(true);
    let Connections { graceful, tasks, .. } = connections;
    if within(&*env, CLOSE_GRACE, graceful.shutdown()).await.is_none() {
        tracing::warn!(left = tasks.len(), "connections were cut off when the server ended");
    }
    Ok(())
}

/// The whole API, for tests and for servers of another make. Such a server should hand on the client's
/// address as `ConnectInfo<SocketAddr>`; without it an allow list lets nobody in.
pub fn router(engine: Engine, config: Config) -> Router {
    let (_nobody_closes_it, closing) = watch::channel(false);
    routes(App::new(engine, config, closing))
}

fn routes(app: App) -> Router {
    metrics::recorder();
    let (routes, mut document) = openapi::endpoints().split_for_parts();
    openapi::complete(&mut document, !app.config.tokens.is_empty());
    let written = Written(serde_json::to_vec(&document).unwrap_or_default().into());
    routes
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(Extension(written))
        .layer(from_fn_with_state(app.clone(), bound))
        .layer(from_fn_with_state(app.clone(), auth::admit))
        .layer(from_fn_with_state(app.clone(), metrics::observe))
        .with_state(app)
}

async fn no_such_path(uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(200).collect();
    Problem::new(Kind::NoSuchPath, format!("{path} does not exist"), "/openapi.json lists every path")
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not know {method}", uri.path());
    Problem::new(Kind::MethodNotAllowed, detail, "the Allow header names the methods it knows")
}

/// The recorder condenses what was measured this often, so that unread figures take no memory.
const UPKEEP: Duration = Duration::from_secs(5);

/// Connections are accepted only while there is a place for them.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, place))
}

/// The open connections, one task each. The server owns them: they end with it.
struct Connections {
    routes: Router,
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
}

impl Connections {
    fn new(routes: Router) -> Connections {
        Connections { routes, graceful: GracefulShutdown::new(), tasks: JoinSet::new() }
    }

    fn open(&mut self, stream: TcpStream, peer: SocketAddr, place: OwnedSemaphorePermit) {
        // Small answers leave at once; a socket that cannot do this still works.
        let _slower = stream.set_nodelay(true);
        let routes = self.routes.clone();
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            routes.clone().oneshot(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_LIMIT)
            .serve_connection(TokioIo::new(stream), service);
        let connection = self.graceful.watch(connection);
        self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, %peer, "a connection broke");
            }
            drop(place);
        });
    }

    /// Forgets a connection that ended.
    async fn one_ended(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending().await
        }
    }
}
