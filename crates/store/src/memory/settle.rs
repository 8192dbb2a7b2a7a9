//! Attempts end: their run is finished, or goes back to its lane now or later.

use super::state::{DoneRow, State};
use crate::AT_ONCE;
use everbeat_model::event::{EventKind, line};
use everbeat_model::{Attempt, Hole, Next, Planted, RunId, RunState, Settled, Settlement, Standing, StoreTime};

pub(super) fn settle_one(
    state: &mut State,
    hole: Planted,
    now: StoreTime,
    settlement: Settlement,
    lines: &mut Vec<String>,
) -> Settled {
    let id = settlement.shown.run_id;
    let Some(held) = state.leases.get(&id).filter(|held| held.lease.admits(&settlement.shown, hole)) else {
        return Settled::Fenced;
    };
    if settlement.unless_cancelled() && held.cancel_requested_at.is_some() {
        return Settled::CancelAsked;
    }
    let held = held.clone();
    state.leases.remove(&id);
    // The fence never goes back, whatever number the writer had in mind.
    let standing = Standing { attempt: held.lease.attempt, ..settlement.standing };
    let ended = Attempt {
        attempt: held.lease.attempt,
        outcome: Some(settlement.ending.outcome),
        replica_id: held.lease.replica_id,
        worker_id: settlement.worker_id.map(|worker| worker.to_string()),
        started_at: held.lease.granted_at,
        ended_at: Some(now),
        last_heartbeat_at: Some(settlement.last_heartbeat_at.unwrap_or(held.last_heartbeat_at)),
        error: settlement.ending.error.clone(),
        verdict_id: settlement.verdict.as_ref().map(|verdict| verdict.id),
    };
    if let Some(mut verdict) = settlement.verdict {
        verdict.at = now;
        state.verdicts.insert(verdict.id, verdict);
    }
    let attempt = Some(held.lease.attempt);
    let subject = id.to_string();
    match settlement.next {
        Next::Finish(to) => {
            lines.push(line(EventKind::run(to), &subject, attempt, None));
            let error = (to != RunState::Succeeded).then_some(settlement.ending.error).flatten();
            let done = DoneRow {
                state: to,
                finished_at: now,
                standing,
                result: settlement.ending.result,
                error,
                attempt: Some((ended, settlement.shown.token)),
            };
            finish(state, id, done, hole);
        }
        Next::Ready | Next::After(_) => {
            lines.push(line(EventKind::attempt(settlement.ending.outcome), &subject, attempt, None));
            state.attempts.insert((id, ended.attempt), (ended, settlement.shown.token));
            match settlement.next {
                Next::After(delay) => _ = state.scheduled.insert((now.plus(delay), id), standing),
                _ => {
                    // As it stands in the run: that is what says where it belongs by now.
                    let spec = state.runs.get(&id).map_or_else(|| settlement.spec.clone(), |row| row.spec.clone());
                    state.put_ready(id, &spec, standing);
                }
            }
        }
    }
    Settled::Done
}

pub(super) fn finish(state: &mut State, id: RunId, done: DoneRow, hole: Planted) {
    if let Some(spec) = state.runs.get(&id).map(|row| row.spec.clone()) {
        if let Some(key) = &spec.unique_key {
            state.unique.remove(key);
        }
        if let Some(parent) = spec.parent.as_ref().filter(|_| !hole.is(Hole::NoteForgotten)) {
            state.agenda.insert((AT_ONCE, parent.execution));
        }
        if let Some(occurrence) = spec.occurrence.filter(|_| !hole.is(Hole::NoteForgotten)) {
            state.note_schedule(occurrence.schedule);
        }
    }
    state.done.insert(id, done);
}
