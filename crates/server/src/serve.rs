use crate::app::App;
use crate::connections::Connections;
use crate::limits::{CLOSE_GRACE, bound};
use crate::openapi::{self, Written};
use crate::problem::{Kind, Problem};
use crate::routes::Routes;
use crate::{Config, auth, metrics};
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};
use everbeat_engine::Engine;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Answers requests until `shutdown` resolves, then lets those under way finish for a bounded time.
pub async fn serve(
    engine: Engine,
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let refused = |invalid| io::Error::new(io::ErrorKind::InvalidInput, invalid);
    config.check().map_err(refused)?;
    config.check_address("server.listen", listener.local_addr()?).map_err(refused)?;
    let (close, closing) = watch::channel(false);
    let env = engine.env().clone();
    let most = config.connections;
    let mut connections = Connections::new(routes(App::new(engine, config, closing)), env.clone(), most);
    let door = connections.door();
    let mut upkeep_at = env.boot() + UPKEEP;
    // Accepted, and waits for a place. Nobody else is accepted meanwhile.
    let mut waiting = None;
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
            place = door.place(), if waiting.is_some() => {
                if let Some((stream, peer)) = waiting.take() {
                    connections.open(stream, peer, place?);
                }
            }
            accepted = listener.accept(), if waiting.is_none() => match accepted {
                Ok(accepted) => waiting = Some(accepted),
                Err(error) => {
                    // Out of descriptors, most likely: without a pause this would be asked again at once, for ever.
                    tracing::warn!(%error, "a connection could not be accepted");
                    door.yield_one();
                    env.sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    close.send_replace(true);
    connections.close(CLOSE_GRACE).await;
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
    let (router, mut document, needs) = Routes::all().into_parts();
    openapi::complete(&mut document, &needs, !app.config.tokens.is_empty());
    let written = Written(serde_json::to_vec(&document).unwrap_or_default().into());
    router
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(Extension(written))
        .layer(from_fn_with_state(app.clone(), bound))
        .layer(from_fn_with_state((app.clone(), Arc::new(needs)), auth::admit))
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
/// After a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
