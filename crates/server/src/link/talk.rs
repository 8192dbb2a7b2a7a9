//! What passes between a worker and the engine once the worker is welcomed.

use super::grpc::{self, Code, Incoming, MESSAGE_LIMIT, Status};
use super::{proto, words};
use bytes::Bytes;
use everbeat_engine::Env;
use everbeat_engine::pools::{Heard, Link};
use h2::{Ping, PingPong, SendStream};
use std::future::Future;
use std::sync::Arc;

/// A worker that was welcomed. Dropped, its link is cut.
pub(super) struct Talk {
    pub(super) link: Link,
    pub(super) incoming: Incoming,
    pub(super) outgoing: SendStream<Bytes>,
}

impl Talk {
    /// Passes on what both say, until one of them ends it or the server closes.
    pub(super) async fn run(self, env: &Arc<dyn Env>, pings: PingPong, closed: impl Future<Output = ()>) {
        let Talk { mut link, mut incoming, mut outgoing } = self;
        let heard = link.heard();
        let status = tokio::select! {
            biased;
            status = hear(&mut incoming, &heard) => status,
            status = speak(&mut link, &mut outgoing) => status,
            () = closed => Status::new(Code::Unavailable, "the server ends"),
            () = probe(env, pings, &heard) => Status::new(Code::Unavailable, "the connection broke"),
        };
        tracing::debug!(worker = %link.worker(), "the link of a worker ends: {}", status.message());
        grpc::end(&mut outgoing, &status);
    }
}

/// Reads one message after the other; the next only when the engine has taken the one before.
async fn hear(incoming: &mut Incoming, heard: &Heard) -> Status {
    loop {
        let message = match incoming.next::<proto::FromWorker>(MESSAGE_LIMIT).await {
            Ok(Some(message)) => message,
            Ok(None) => return Status::ok(),
            Err(status) => return status,
        };
        match words::from_worker(message) {
            Ok(word) => heard.heard(word).await,
            Err(status) => return status,
        }
    }
}

async fn speak(link: &mut Link, outgoing: &mut SendStream<Bytes>) -> Status {
    while let Some(word) = link.next().await {
        if !grpc::send(outgoing, &words::to_worker(word)).await {
            return Status::new(Code::Unavailable, "the worker does not read any more");
        }
    }
    Status::new(Code::Unavailable, "the server lets the worker go")
}

/// Asks the worker's transport whether it is there, one question at a time. It answers even while the worker's program
/// does not.
async fn probe(env: &Arc<dyn Env>, mut pings: PingPong, heard: &Heard) {
    loop {
        let next = env.boot() + heard.probe_interval();
        if pings.ping(Ping::opaque()).await.is_err() {
            return;
        }
        heard.transport();
        env.sleep_until(next).await;
    }
}
