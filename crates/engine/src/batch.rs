//! Requests that arrive together go to the store together: whatever waits goes out whenever there is room
//! for another write, never by a timer.

use crate::engine::Core;
use everbeat_store::{Error as StoreError, Obstacle};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Requests that may wait; more are told that the store is too slow.
const CAPACITY: usize = 4096;
/// Writes under way at once: one is being prepared while the other is committed.
const WRITES: usize = 2;
/// Writes that one batch may be taken apart into; when nothing can be stored, everybody is told soon.
const MOST_PARTS: usize = 64;

/// A sort of request that shares writes with its like.
pub(crate) trait Batched: Clone + Send + Sized + 'static {
    type Answer: Send + 'static;

    /// What one write takes, in the unit of `weight`.
    const MOST: usize;

    fn weight(&self) -> usize {
        1
    }

    /// It cannot share a write with others.
    fn alone(&self) -> bool {
        false
    }

    /// Answers each request, in the order given.
    fn write(core: &Arc<Core>, requests: Vec<Self>) -> BoxFuture<'_, Vec<Outcome<Self>>>;
}

pub(crate) type Outcome<Q> = Result<<Q as Batched>::Answer, StoreError>;

pub(crate) struct Waiting<Q: Batched> {
    request: Q,
    answer: oneshot::Sender<Outcome<Q>>,
}

pub(crate) struct Batcher<Q: Batched>(mpsc::Sender<Waiting<Q>>);

impl<Q: Batched> Batcher<Q> {
    pub(crate) fn new() -> (Batcher<Q>, mpsc::Receiver<Waiting<Q>>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Batcher(sender), receiver)
    }

    pub(crate) async fn ask(&self, request: Q) -> Outcome<Q> {
        let (answer, answered) = oneshot::channel();
        let full = |_| StoreError::unavailable(Obstacle::Overloaded, "");
        self.0.try_send(Waiting { request, answer }).map_err(full)?;
        answered.await.unwrap_or_else(|_| Err(StoreError::unavailable(Obstacle::Stopped, "")))
    }
}

pub(crate) async fn run<Q: Batched>(core: Arc<Core>, mut requests: mpsc::Receiver<Waiting<Q>>) {
    let mut writes = FuturesUnordered::new();
    let mut waiting: Option<Waiting<Q>> = None;
    loop {
        if let Some(first) = waiting.take() {
            let (batch, next) = gather(first, &mut requests);
            waiting = next;
            writes.push(write(&core, batch).boxed());
        }
        let room = waiting.is_none() && writes.len() < WRITES;
        tokio::select! {
            biased;
            Some(()) = writes.next() => {}
            received = requests.recv(), if room => match received {
                Some(request) => waiting = Some(request),
                None => return,
            },
        }
    }
}

/// What can share one write.
fn gather<Q: Batched>(
    first: Waiting<Q>,
    requests: &mut mpsc::Receiver<Waiting<Q>>,
) -> (Vec<Waiting<Q>>, Option<Waiting<Q>>) {
    let mut weight = first.request.weight();
    let mut batch = vec![first];
    while weight < Q::MOST && !batch[0].request.alone() {
        match requests.try_recv() {
            Ok(next) if next.request.alone() || weight + next.request.weight() > Q::MOST => {
                return (batch, Some(next));
            }
            Ok(next) => {
                weight += next.request.weight();
                batch.push(next);
            }
            Err(_) => break,
        }
    }
    (batch, None)
}

async fn write<Q: Batched>(core: &Arc<Core>, batch: Vec<Waiting<Q>>) {
    let (requests, answers): (Vec<Q>, Vec<_>) =
        batch.into_iter().map(|waiting| (waiting.request, waiting.answer)).unzip();
    for (answer, outcome) in answers.into_iter().zip(write_in_parts(core, requests).await) {
        let _nobody_waits_any_more = answer.send(outcome);
    }
}

/// One request that cannot be stored takes no other with it: a batch that fails for what is in it, or for its size,
/// is halved.
async fn write_in_parts<Q: Batched>(core: &Arc<Core>, requests: Vec<Q>) -> Vec<Outcome<Q>> {
    let mut outcomes = Vec::with_capacity(requests.len());
    let mut open = vec![requests];
    let mut writes = 0;
    while let Some(part) = open.pop() {
        writes += 1;
        let again = (part.len() > 1 && writes < MOST_PARTS).then(|| part.clone());
        let written = Q::write(core, part).await;
        let failed = written.iter().all(|outcome| outcome.as_ref().is_err_and(StoreError::may_be_content));
        match again.filter(|_| failed) {
            Some(mut first) => {
                let second = first.split_off(first.len() / 2);
                open.extend([second, first]);
            }
            None => outcomes.extend(written),
        }
    }
    outcomes
}
