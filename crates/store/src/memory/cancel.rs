//! Runs that somebody asked to end.

use super::settle::finish;
use super::state::{DoneRow, State};
use crate::Cancelled;
use everbeat_model::{Json, Planted, RunId, RunState, StoreTime};

/// Ends a run that is not running; asks for the end of one that is.
pub(super) fn cancel_one(state: &mut State, run: RunId, now: StoreTime, error: Option<Json>) -> Cancelled {
    let Some(spec) = state.runs.get(&run).map(|row| row.spec.clone()) else { return Cancelled::NotFound };
    if state.done.contains_key(&run) {
        return Cancelled::AlreadyFinished;
    }
    if let Some(held) = state.leases.get_mut(&run) {
        held.cancel_requested_at.get_or_insert(now);
        return Cancelled::Asked;
    }
    let standing = match state.scheduled_at(run) {
        Some((at, standing)) => {
            state.scheduled.remove(&(at, run));
            standing
        }
        None => state.take_ready(run, &spec).unwrap_or_default(),
    };
    let done = DoneRow { state: RunState::Cancelled, finished_at: now, standing, result: None, error, attempt: None };
    finish(state, run, done, Planted::default());
    Cancelled::Ended
}
