//! Finished runs that are forgotten.

use super::state::State;
use everbeat_model::RunId;

/// Whether an execution has not taken note of its end yet.
pub(super) fn awaited(state: &State, id: RunId) -> bool {
    let parent = state.runs.get(&id).and_then(|row| row.spec.parent.as_ref());
    let row = parent.and_then(|parent| Some((state.executions.get(&parent.execution)?, &parent.node)));
    row.is_some_and(|(row, node)| row.execution.running(node) == Some(id))
}

pub(super) fn forget_one(state: &mut State, id: RunId) {
    state.done.remove(&id);
    state.runs.remove(&id);
    state.signs.remove(&id);
    state.outputs.remove(&id);
    state.attempts.retain(|(run, _), _| *run != id);
    state.version += 1;
}
