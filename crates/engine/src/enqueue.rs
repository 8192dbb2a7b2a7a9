//! Accepts runs. Requests that arrive together go to the store together.

use crate::engine::Core;
use crate::within;
use everbeat_model::NewRun;
use everbeat_store::{Enqueue, Enqueued, Error as StoreError};
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Requests that may wait; more are told that the store is too slow.
const CAPACITY: usize = 4096;
/// Runs in one write.
const BATCH: usize = 2000;
/// Writes under way at once: one is being prepared while the other is committed.
const WRITES: usize = 2;

type Answer = Result<Vec<Enqueued>, StoreError>;

pub(crate) struct Submission {
    request: Enqueue,
    answer: oneshot::Sender<Answer>,
}

pub(crate) struct Enqueuer(mpsc::Sender<Submission>);

impl Enqueuer {
    pub(crate) fn new() -> (Enqueuer, mpsc::Receiver<Submission>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Enqueuer(sender), receiver)
    }

    pub(crate) async fn enqueue(&self, request: Enqueue) -> Answer {
        let (answer, answered) = oneshot::channel();
        let submission = Submission { request, answer };
        let full = |_| StoreError::Unavailable("too many submissions wait for the store".to_string());
        self.0.try_send(submission).map_err(full)?;
        answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the engine stopped".to_string())))
    }
}

pub(crate) async fn run(core: Arc<Core>, mut submissions: mpsc::Receiver<Submission>) {
    let mut writes = FuturesUnordered::new();
    let mut waiting: Option<Submission> = None;
    loop {
        if let Some(first) = waiting.take() {
            let (batch, next) = gather(first, &mut submissions);
            waiting = next;
            writes.push(write(&core, batch).boxed());
        }
        let room = waiting.is_none() && writes.len() < WRITES;
        tokio::select! {
            biased;
            Some(()) = writes.next() => {}
            received = submissions.recv(), if room => match received {
                Some(submission) => waiting = Some(submission),
                None => return,
            },
        }
    }
}

/// What can share one write. A request with keys of its own goes alone: its answer depends on them.
fn gather(first: Submission, submissions: &mut mpsc::Receiver<Submission>) -> (Vec<Submission>, Option<Submission>) {
    let mut batch = vec![first];
    let mut runs = batch[0].request.runs.len();
    while runs < BATCH && !has_keys(&batch[0].request) {
        match submissions.try_recv() {
            Ok(next) if has_keys(&next.request) || runs + next.request.runs.len() > BATCH => {
                return (batch, Some(next));
            }
            Ok(next) => {
                runs += next.request.runs.len();
                batch.push(next);
            }
            Err(_) => break,
        }
    }
    (batch, None)
}

fn has_keys(request: &Enqueue) -> bool {
    request.idempotency.is_some() || request.runs.iter().any(|run| run.spec.unique_key.is_some())
}

async fn write(core: &Core, mut batch: Vec<Submission>) {
    let sizes: Vec<usize> = batch.iter().map(|submission| submission.request.runs.len()).collect();
    let runs: Vec<NewRun> =
        batch.iter_mut().flat_map(|submission| std::mem::take(&mut submission.request.runs)).collect();
    let idempotency = batch[0].request.idempotency.take();
    // Bounded: two writes that are never answered would otherwise end all submissions for good.
    let written = core.store.enqueue(Enqueue { runs, idempotency });
    let late = || Err(StoreError::Unavailable("no answer in time".to_string()));
    let answer = within(&*core.env, core.settings.call_limit(), written).await.unwrap_or_else(late);
    core.store.wake();
    metrics::counter!("everbeat_enqueued_total").increment(answer.as_ref().map_or(0, Vec::len) as u64);
    let mut rest = answer.as_ref().map(|answers| answers.as_slice());
    for (submission, size) in batch.into_iter().zip(sizes) {
        let mine = match &mut rest {
            Ok(answers) => {
                let (mine, others) = answers.split_at(size.min(answers.len()));
                *answers = others;
                Ok(mine.to_vec())
            }
            Err(error) => Err((*error).clone()),
        };
        let _nobody_waits_any_more = submission.answer.send(mine);
    }
}
