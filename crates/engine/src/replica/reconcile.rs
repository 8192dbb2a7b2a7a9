//! Leases of this replica that it does not perform.

use super::crew::Begun;
use super::{Life, Turn};
use everbeat_model::settle::decide;
use everbeat_model::{Ending, Outcome, Reason, RunId, Settlement, Token};
use everbeat_store::{Error as StoreError, Held, Which};
use std::collections::BTreeMap;
use std::sync::Arc;

const BATCH: usize = 500;
const INDEX_PAGE: usize = 10_000;

/// Leases found without a performer, each with the number of claims begun by then.
pub(super) type Unperformed = BTreeMap<Token, Begun>;

/// Finds leases of this replica that it does not perform (the claim's answer was lost, a failover
/// undid a settle) and releases them, at no cost to the run. A claim that is still unanswered may have
/// been granted what was found: such a lease waits for a later sweep.
pub(super) async fn run(life: &Arc<Life>, unperformed: &mut Unperformed) -> Result<(), StoreError> {
    let mut after: Option<RunId> = None;
    let mut found = Unperformed::new();
    let mut lost: Vec<RunId> = Vec::new();
    loop {
        life.turned(Turn::Sweep);
        let page = life.call_in(Turn::Sweep, life.core.store.lease_index(life.id, after, INDEX_PAGE)).await?;
        let begun = life.claims_begun();
        let table = life.table();
        for shown in page.iter().filter(|shown| table.get(shown.token).is_none()) {
            let begun = unperformed.get(&shown.token).cloned().unwrap_or_else(|| begun.clone());
            if life.claims_over(&begun) {
                lost.push(shown.run_id);
            } else {
                found.insert(shown.token, begun);
            }
        }
        drop(table);
        match page.last() {
            Some(last) if page.len() == INDEX_PAGE => after = Some(last.run_id),
            _ => break,
        }
    }
    *unperformed = found;
    let mut lost_leases = Vec::new();
    for held in unperformed_of(life, lost).await? {
        let given_back = match life.crew_of(&held.spec) {
            Some(crew) => life.crew(crew).performer.resume(&life.post(crew), held),
            None => Some(held),
        };
        lost_leases.extend(given_back);
    }
    release(life, lost_leases).await
}

/// Releases leases of which nothing has begun.
pub(crate) async fn release_unbegun(life: &Life, runs: Vec<RunId>) -> Result<(), StoreError> {
    let held = unperformed_of(life, runs).await?;
    release(life, held).await
}

/// The leases of these runs that are this replica's and that nobody performs: settled or passed on meanwhile means there
/// is nothing to do.
async fn unperformed_of(life: &Life, runs: Vec<RunId>) -> Result<Vec<Held>, StoreError> {
    let mut mine = Vec::new();
    for runs in runs.chunks(BATCH) {
        let held = life.call_in(Turn::Sweep, life.core.store.held(Which::Of(runs.to_vec()))).await?;
        let table = life.table();
        let unperformed = |held: &Held| held.lease.replica_id == life.id && table.get(held.lease.token).is_none();
        mine.extend(held.into_iter().filter(unperformed));
    }
    Ok(mine)
}

async fn release(life: &Life, held: Vec<Held>) -> Result<(), StoreError> {
    for held in held.chunks(BATCH) {
        let settlements: Vec<Settlement> = held.iter().map(released).collect();
        tracing::warn!(leases = settlements.len(), "leases that nobody performed are released");
        life.call_in(Turn::Sweep, life.core.store.settle(settlements)).await?;
        life.core.store.wake();
        life.all_freed();
    }
    Ok(())
}

fn released(held: &Held) -> Settlement {
    let ending = Ending::because(Outcome::Released, Reason::NotPerformed, "its owner did not know of the lease");
    let (next, standing) = decide(&ending, &held.spec.policy, held.standing, held.cancel_asked, 0.0);
    Settlement {
        shown: held.lease.shown(),
        spec: held.spec.clone(),
        ending,
        next,
        standing,
        last_heartbeat_at: Some(held.last_heartbeat_at),
        worker_id: None,
        verdict: None,
    }
}
