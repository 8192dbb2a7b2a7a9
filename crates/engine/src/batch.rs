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
    while weight < Q::MOST {
        match requests.try_recv() {
            Ok(next) if weight + next.request.weight() > Q::MOST => return (batch, Some(next)),
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
    for (answer, outcome) in answers.into_iter().zip(in_parts(requests, |part| Q::write(core, part)).await) {
        let _nobody_waits_any_more = answer.send(outcome);
    }
}

/// One request that cannot be stored takes no other with it: a batch that fails for what is in it, or for its size,
/// is halved.
async fn in_parts<Q: Clone, A, F>(requests: Vec<Q>, write: impl Fn(Vec<Q>) -> F) -> Vec<Result<A, StoreError>>
where
    F: Future<Output = Vec<Result<A, StoreError>>>,
{
    let mut outcomes = Vec::with_capacity(requests.len());
    let mut open = vec![requests];
    let mut writes = 0;
    while let Some(part) = open.pop() {
        writes += 1;
        let again = (part.len() > 1 && writes < MOST_PARTS).then(|| part.clone());
        let written = write(part).await;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[derive(Clone)]
    struct Part(usize);

    impl Batched for Part {
        type Answer = usize;
        const MOST: usize = 10;

        fn weight(&self) -> usize {
            self.0
        }

        fn write(_core: &Arc<Core>, requests: Vec<Part>) -> BoxFuture<'_, Vec<Outcome<Part>>> {
            async move { requests.into_iter().map(|part| Ok(part.0)).collect() }.boxed()
        }
    }

    /// The weights that go out together, batch by batch.
    fn batches(weights: &[usize]) -> Vec<Vec<usize>> {
        let (batcher, mut requests) = Batcher::<Part>::new();
        for weight in weights {
            let (answer, _) = oneshot::channel();
            assert!(batcher.0.try_send(Waiting { request: Part(*weight), answer }).is_ok());
        }
        let (mut batches, mut next) = (Vec::new(), requests.try_recv().ok());
        while let Some(first) = next {
            let (batch, over) = gather(first, &mut requests);
            batches.push(batch.iter().map(|waiting| waiting.request.0).collect());
            next = over.or_else(|| requests.try_recv().ok());
        }
        batches
    }

    #[test]
    fn a_batch_ends_before_what_would_be_too_much() {
        assert_eq!(batches(&[4, 4, 2, 1]), [vec![4, 4, 2], vec![1]]);
        assert_eq!(batches(&[6, 5, 5]), [vec![6], vec![5, 5]]);
        assert_eq!(batches(&[30, 1]), [vec![30], vec![1]], "one that is too much by itself goes alone");
    }

    /// Writes numbers; a write with a bad one in it fails as a whole. Answers what became of each, and the writes.
    async fn written(count: u32, bad: impl Fn(u32) -> bool, error: StoreError) -> (Vec<bool>, usize) {
        let writes = Cell::new(0);
        let outcomes = in_parts((0..count).collect(), |part: Vec<u32>| {
            writes.set(writes.get() + 1);
            let fails = part.iter().any(|number| bad(*number));
            let write = |number| if fails { Err(error.clone()) } else { Ok(number) };
            std::future::ready(part.into_iter().map(write).collect())
        });
        let outcomes: Vec<_> = outcomes.await;
        let in_order = outcomes
            .iter()
            .zip(0..)
            .all(|(outcome, place)| outcome.as_ref().is_ok_and(|is| *is == place) || outcome.is_err());
        assert!(in_order, "{outcomes:?}");
        (outcomes.iter().map(Result::is_ok).collect(), writes.get())
    }

    #[tokio::test]
    async fn one_that_cannot_be_stored_takes_no_other_with_it() {
        let broken = StoreError::Bug("for one of them".to_string());
        let (stored, writes) = written(16, |number| number == 11, broken.clone()).await;
        assert_eq!(stored.iter().filter(|stored| **stored).count(), 15);
        assert!(!stored[11]);
        assert_eq!(writes, 9, "the whole, and two halves at each of four levels");
        let (stored, writes) = written(1000, |_| true, broken).await;
        assert!(stored.iter().all(|stored| !stored));
        assert!(writes <= 2 * MOST_PARTS, "{writes} writes when nothing can be stored");
    }

    #[tokio::test]
    async fn a_store_that_is_away_is_not_asked_again_in_parts() {
        let away = StoreError::unavailable(Obstacle::Unreachable, "");
        let (stored, writes) = written(16, |number| number == 3, away).await;
        assert!(stored.iter().all(|stored| !stored));
        assert_eq!(writes, 1);
    }
}
