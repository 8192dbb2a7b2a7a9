//! Accepts runs.

use crate::batch::{Batched, Outcome};
use crate::engine::Core;
use crate::within;
use everbeat_store::{Enqueue, Enqueued, Error as StoreError};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;

impl Batched for Enqueue {
    type Answer = Vec<Enqueued>;

    /// Runs in one write.
    const MOST: usize = 2000;

    fn weight(&self) -> usize {
        self.runs.len().max(1)
    }

    fn write(core: &Arc<Core>, requests: Vec<Enqueue>) -> BoxFuture<'_, Vec<Outcome<Enqueue>>> {
        write(core, requests).boxed()
    }
}

async fn write(core: &Core, requests: Vec<Enqueue>) -> Vec<Outcome<Enqueue>> {
    let count = requests.len();
    // Bounded: two writes that are never answered would otherwise end all submissions for good.
    let written = core.store.enqueue(requests);
    let late = || Err(StoreError::no_answer());
    let answers = within(&*core.env, core.settings.call_limit(), written).await.unwrap_or_else(late);
    core.store.wake();
    let answers = answers.unwrap_or_else(|error| vec![Err(error); count]);
    let accepted: usize = answers.iter().flatten().map(Vec::len).sum();
    metrics::counter!("everbeat_runs_enqueued_total").increment(accepted as u64);
    answers
}
