//! Tells the store which workers there are, for people who ask another replica.

use super::pool::Pool;
use super::view::{WorkerView, view_worker};
use crate::replica::Life;
use everbeat_model::WorkerId;
use everbeat_model::worker::Class;
use everbeat_store::Error as StoreError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What changed is told that often at most; what did not is never told again.
const PAUSE: Duration = Duration::from_secs(5);
/// So many workers are told of in one call.
const BATCH: usize = 500;

/// What must be told when it changes. All else is told along with it, as it is at that time.
#[derive(PartialEq, Eq)]
struct Shape {
    state: String,
    class: String,
    retiring: bool,
}

/// The loop of one pool in one life of the replica.
pub(super) async fn run(life: Arc<Life>, pool: Arc<Pool>) {
    if life.core.store.sole() {
        // There is no other replica that could be asked.
        return;
    }
    let mut told = BTreeMap::new();
    loop {
        life.core.env.sleep(PAUSE).await;
        if let Err(error) = tell(&life, &pool, &mut told).await {
            tracing::debug!(pool = pool.settings.name, %error, "what workers there are could not be told; it will be");
        }
    }
}

async fn tell(life: &Life, pool: &Pool, told: &mut BTreeMap<WorkerId, Shape>) -> Result<(), StoreError> {
    let core = &life.core;
    let mut workers: Vec<WorkerView> = pool.workers().iter().map(|worker| view_worker(core, pool, worker)).collect();
    workers.retain(|worker| worker.state != "dead");
    let there: BTreeSet<WorkerId> = workers.iter().map(|worker| worker.id).collect();
    let gone: Vec<WorkerId> = told.keys().filter(|id| !there.contains(id)).copied().collect();
    for gone in gone.chunks(BATCH) {
        life.call(core.store.tell_workers(life.id, Vec::new(), gone.to_vec())).await?;
        gone.iter().for_each(|id| _ = told.remove(id));
    }
    workers.retain(|worker| told.get(&worker.id) != Some(&Shape::of(worker)));
    for changed in workers.chunks(BATCH) {
        let rows = changed.iter().map(WorkerView::told).collect();
        life.call(core.store.tell_workers(life.id, rows, Vec::new())).await?;
        told.extend(changed.iter().map(|worker| (worker.id, Shape::of(worker))));
    }
    Ok(())
}

impl Shape {
    /// A worker that is a little late is not worth a word to others: it answers in a moment, or is called something else.
    fn of(worker: &WorkerView) -> Shape {
        let late = worker.class == Class::Suspect.as_str();
        let class = if late { Class::Alive.as_str() } else { &worker.class };
        Shape { state: worker.told_state().to_string(), class: class.to_string(), retiring: worker.retiring.is_some() }
    }
}
