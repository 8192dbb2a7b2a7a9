//! Accepts runs.

use crate::batch::{Batched, Outcome};
use crate::engine::Core;
use crate::within;
use everbeat_model::NewRun;
use everbeat_store::{Enqueue, Enqueued, Error as StoreError};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;

impl Batched for Enqueue {
    type Answer = Vec<Enqueued>;

    /// Runs in one write.
    const MOST: usize = 2000;

    fn weight(&self) -> usize {
        self.runs.len()
    }

    /// A request with keys of its own goes alone: its answer depends on them.
    fn alone(&self) -> bool {
        self.idempotency.is_some() || self.runs.iter().any(|run| run.spec.unique_key.is_some())
    }

    fn write(core: &Arc<Core>, requests: Vec<Enqueue>) -> BoxFuture<'_, Vec<Outcome<Enqueue>>> {
        write(core, requests).boxed()
    }
}

async fn write(core: &Core, mut requests: Vec<Enqueue>) -> Vec<Outcome<Enqueue>> {
    let sizes: Vec<usize> = requests.iter().map(|request| request.runs.len()).collect();
    let idempotency = requests.first_mut().and_then(|request| request.idempotency.take());
    let runs: Vec<NewRun> = requests.into_iter().flat_map(|request| request.runs).collect();
    // Bounded: two writes that are never answered would otherwise end all submissions for good.
    let written = core.store.enqueue(Enqueue { runs, idempotency });
    let late = || Err(StoreError::no_answer());
    let answer = within(&*core.env, core.settings.call_limit(), written).await.unwrap_or_else(late);
    core.store.wake();
    metrics::counter!("everbeat_runs_enqueued_total").increment(answer.as_ref().map_or(0, Vec::len) as u64);
    let mut rest = answer.as_ref().map(|answers| answers.as_slice());
    let mine = |size: usize| match &mut rest {
        Ok(answers) => {
            let (mine, others) = answers.split_at(size.min(answers.len()));
            *answers = others;
            Ok(mine.to_vec())
        }
        Err(error) => Err((*error).clone()),
    };
    sizes.into_iter().map(mine).collect()
}
