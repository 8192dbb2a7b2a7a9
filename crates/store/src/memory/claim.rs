//! Ready runs become leases.

use super::state::{LeaseRow, State};
use crate::Claim;
use everbeat_model::replica::may_claim;
use everbeat_model::run::Claimed;
use everbeat_model::{Lease, Planted, RunId, Standing, StoreTime, Token};

pub(super) fn claim(
    state: &mut State,
    request: Claim,
    now: StoreTime,
    hole: Planted,
    token: impl Fn() -> Token,
) -> Vec<Claimed> {
    let row = state.replicas.get(&request.replica).map(|replica| replica.state);
    if !may_claim(row, hole) {
        return Vec::new();
    }
    let mut candidates: Vec<(i32, RunId, String, String)> = state
        .ready
        .keys()
        .filter(|(queue, ..)| request.takes_from(queue) && !state.paused.get(queue).copied().unwrap_or(false))
        .map(|(queue, lane, rank, id)| (*rank, *id, queue.clone(), lane.clone()))
        .collect();
    candidates.sort();
    let (mut tasks, mut queues) = (request.tasks, request.queues);
    let mut claimed = Vec::new();
    for (rank, id, queue, task) in candidates {
        if claimed.len() == request.limit {
            break;
        }
        let Some(task_free) = tasks.get_mut(&task).filter(|free| **free > 0) else { continue };
        match queues.get_mut(&queue) {
            Some(0) => continue,
            Some(queue_free) => *queue_free -= 1,
            None => {}
        }
        *task_free -= 1;
        let Some(standing) = state.ready.remove(&(queue, task, rank, id)) else { continue };
        let standing = Standing { attempt: standing.attempt + 1, ..standing };
        let lease = Lease {
            run_id: id,
            attempt: standing.attempt,
            token: token(),
            replica_id: request.replica,
            tenure: 0,
            granted_at: now,
        };
        let row = LeaseRow { lease: lease.clone(), standing, last_heartbeat_at: now, cancel_requested_at: None };
        state.leases.insert(id, row);
        let checkpoint = state.signs.get(&id).and_then(|(_, checkpoint)| checkpoint.clone());
        let row = &state.runs[&id];
        claimed.push(Claimed { lease, spec: row.spec.clone(), standing, checkpoint, due_at: row.due_at() });
    }
    state.version += u64::from(!claimed.is_empty());
    claimed
}
