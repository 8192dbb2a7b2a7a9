use crate::Config;
use crate::auth::Guard;
use crate::limits::{MOST_FOLLOWERS, MOST_STREAMS, MOST_WAITS, RateLimit};
use crate::problem::{Kind, Problem, Result};
use everbeat_engine::Engine;
use everbeat_model::BootInstant;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, watch};

/// What every handler shares.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) started: BootInstant,
    pub(crate) guard: Guard,
    pub(crate) rate_limit: Option<RateLimit>,
    pub(crate) config: Config,
    /// The server is about to end: streams and waits end too.
    pub(crate) closing: watch::Receiver<bool>,
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) followers: Arc<Semaphore>,
    pub(crate) waits: Semaphore,
    /// When the ages of what waits were last looked up, and what they were.
    pub(crate) ready_ages: Mutex<Option<(BootInstant, BTreeMap<String, Duration>)>>,
}

impl App {
    pub(crate) fn new(engine: Engine, config: Config, closing: watch::Receiver<bool>) -> App {
        let connections = config.connections;
        App(Arc::new(Shared {
            started: engine.env().boot(),
            engine,
            guard: Guard::new(&config),
            rate_limit: config.rate_limit.map(RateLimit::new),
            config,
            closing,
            // Each takes a connection for long; together they leave some to everybody else.
            streams: Arc::new(Semaphore::new(MOST_STREAMS.min(connections.div_ceil(8)))),
            followers: Arc::new(Semaphore::new(MOST_FOLLOWERS.min(connections.div_ceil(8)))),
            waits: Semaphore::new(MOST_WAITS.min(connections.div_ceil(2))),
            ready_ages: Mutex::default(),
        }))
    }

    /// Waits with the engine, while there is a place for it and until the server is about to end.
    pub(crate) async fn wait<T>(&self, waiting: impl Future<Output = everbeat_engine::Result<T>>) -> Result<T> {
        let _place = self.waits.try_acquire().map_err(|_| {
            let hint = "ask without wait, or follow /api/v1/events";
            Problem::new(Kind::TooBusy, "too many requests wait", hint)
        })?;
        tokio::select! {
            biased;
            answer = waiting => Ok(answer?),
            () = self.closed() => {
                Err(Problem::new(Kind::NotReady, "the server ends", "wait again, at another replica if need be"))
            }
        }
    }

    pub(crate) fn closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Resolves when the server is about to end; never, if nothing can end it.
    pub(crate) async fn closed(&self) {
        let mut closing = self.closing.clone();
        if closing.wait_for(|closing| *closing).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
