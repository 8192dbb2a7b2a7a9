//! The open connections: how many there may be, and which one goes when one more comes.

use crate::limits::{HEAD_BUFFER, HEAD_TIMEOUT, SHORTEST_IDLE};
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::ConnectInfo;
use everbeat_engine::{Env, within};
use everbeat_model::BootInstant;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tower::ServiceExt;

/// One task each. The server owns them: they end with it.
pub(crate) struct Connections {
    routes: Router,
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
    door: Door,
}

/// What lets connections in, one at a time.
#[derive(Clone)]
pub(crate) struct Door {
    places: Arc<Semaphore>,
    lines: Arc<Lines>,
}

impl Connections {
    pub(crate) fn new(routes: Router, env: Arc<dyn Env>, most: usize) -> Connections {
        Connections {
            routes,
            graceful: GracefulShutdown::new(),
            tasks: JoinSet::new(),
            door: Door {
                places: Arc::new(Semaphore::new(most)),
                lines: Arc::new(Lines { env, open: Mutex::default() }),
            },
        }
    }

    pub(crate) fn door(&self) -> Door {
        self.door.clone()
    }

    pub(crate) fn open(&mut self, stream: TcpStream, peer: SocketAddr, place: OwnedSemaphorePermit) {
        // Small answers leave at once; a socket that cannot do this still works.
        let _slower = stream.set_nodelay(true);
        let line = self.door.lines.open();
        let (routes, state) = (self.routes.clone(), line.clone());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            let (routes, busy) = (routes.clone(), state.begin());
            async move {
                let Some(busy) = busy else { return Err(io::Error::other("the connection was about to be closed")) };
                let Ok(response) = routes.oneshot(request).await;
                Ok(response.map(|body| Answer { body, _busy: busy }))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_BUFFER)
            .serve_connection(TokioIo::new(stream), service);
        let connection = self.graceful.watch(connection);
        let (id, held) = (line.id, line.clone());
        let task = self.tasks.spawn(async move {
            let _until_it_ends = (held, place);
            if let Err(error) = connection.await {
                tracing::debug!(%error, %peer, "a connection broke");
            }
        });
        self.door.lines.may_abort(id, task);
    }

    /// Forgets a connection that ended.
    pub(crate) async fn one_ended(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending().await
        }
    }

    /// Lets what is under way finish for so long.
    pub(crate) async fn close(self, grace: Duration) {
        let Connections { graceful, tasks, door, .. } = self;
        if within(&*door.lines.env, grace, graceful.shutdown()).await.is_none() {
            tracing::warn!(left = tasks.len(), "connections were cut off when the server ended");
        }
    }
}

impl Door {
    /// Waits for a place. While there is none, whoever has been idle for longest has to go.
    pub(crate) async fn place(&self) -> io::Result<OwnedSemaphorePermit> {
        let env = &*self.lines.env;
        loop {
            if let Ok(place) = self.places.clone().try_acquire_owned() {
                return Ok(place);
            }
            self.lines.close_idle(SHORTEST_IDLE);
            if let Some(place) = within(env, LOOK_AGAIN, self.places.clone().acquire_owned()).await {
                return place.map_err(io::Error::other);
            }
        }
    }

    /// Closes the connection that has been idle for longest, if there is one: something else needs its descriptor.
    pub(crate) fn yield_one(&self) {
        self.lines.close_idle(Duration::ZERO);
    }
}

/// So often it is looked whether a connection has become idle for long enough.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What is known of every open connection.
struct Lines {
    env: Arc<dyn Env>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    of: BTreeMap<u64, (State, Option<AbortHandle>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No request is on it since then.
    Idle(BootInstant),
    Busy,
    Closing,
}

impl Lines {
    fn locked(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(self: &Arc<Lines>) -> Arc<Line> {
        let now = self.env.boot();
        let mut open = self.locked();
        let id = open.next;
        open.next += 1;
        open.of.insert(id, (State::Idle(now), None));
        metrics::gauge!("everbeat_http_connections").set(open.of.len() as f64);
        Arc::new(Line { id, lines: self.clone() })
    }

    fn may_abort(&self, id: u64, task: AbortHandle) {
        if let Some((_, abort)) = self.locked().of.get_mut(&id) {
            *abort = Some(task);
        }
    }

    /// Closes whoever has been idle for longest, and at least that long.
    fn close_idle(&self, least: Duration) {
        let now = self.env.boot();
        let mut open = self.locked();
        let idle = open.of.values_mut().filter_map(|(state, abort)| match state {
            State::Idle(since) if now.since(*since) >= least => Some((*since, state, abort)),
            _ => None,
        });
        if let Some((_, state, abort)) = idle.min_by_key(|(since, ..)| *since) {
            *state = State::Closing;
            if let Some(abort) = abort {
                abort.abort();
            }
            metrics::counter!("everbeat_http_connections_evicted_total").increment(1);
        }
    }
}

/// One connection, for as long as it is open.
struct Line {
    id: u64,
    lines: Arc<Lines>,
}

impl Line {
    /// A request has come. None: too late, the connection is being closed.
    fn begin(self: &Arc<Line>) -> Option<Busy> {
        let mut open = self.lines.locked();
        let (state, _) = open.of.get_mut(&self.id)?;
        if *state == State::Closing {
            return None;
        }
        *state = State::Busy;
        Some(Busy(self.clone()))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut open = self.lines.locked();
        open.of.remove(&self.id);
        metrics::gauge!("everbeat_http_connections").set(open.of.len() as f64);
    }
}

/// A request is on the connection, until its answer is written.
struct Busy(Arc<Line>);

impl Drop for Busy {
    fn drop(&mut self) {
        let now = self.0.lines.env.boot();
        if let Some((state, _)) = self.0.lines.locked().of.get_mut(&self.0.id) {
            *state = State::Idle(now);
        }
    }
}

/// The body of an answer; the connection is not idle before its end.
struct Answer {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
