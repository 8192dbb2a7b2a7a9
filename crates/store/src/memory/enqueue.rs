//! New runs, and requests that are the same as before.

use super::state::State;
use crate::{Enqueue, Enqueued, Error, Result};
use everbeat_model::event::{EventKind, line};
use everbeat_model::{Sent, StoreTime};

pub(super) fn enqueue(state: &mut State, requests: Vec<Enqueue>, now: StoreTime) -> Vec<Result<Vec<Enqueued>>> {
    let mut lines = Vec::new();
    let answers = requests.into_iter().map(|request| enqueue_one(state, request, now, &mut lines)).collect();
    state.append(now, &lines);
    state.version += 1;
    answers
}

fn enqueue_one(state: &mut State, request: Enqueue, now: StoreTime, lines: &mut Vec<String>) -> Result<Vec<Enqueued>> {
    if let Some(idempotency) = &request.idempotency {
        let kept = state.idempotency.get(&idempotency.key);
        match idempotency.sent(kept.map(|(fingerprint, ids, _)| (fingerprint.as_str(), ids))) {
            Sent::First => {}
            Sent::Again(ids) => return Ok(ids.iter().map(|id| Enqueued::Exists(*id)).collect()),
            Sent::Reused => return Err(Error::KeyReused { key: idempotency.key.clone() }),
        }
    }
    let mut answers = Vec::with_capacity(request.runs.len());
    for run in request.runs {
        let holder = run.spec.unique_key.as_ref().and_then(|key| state.unique.get(key)).copied();
        if let Some(other) = run.stood_for(state.runs.contains_key(&run.id), holder) {
            answers.push(Enqueued::Exists(other));
            continue;
        }
        if let Some(key) = &run.spec.unique_key {
            state.unique.insert(key.clone(), run.id);
        }
        lines.push(line(EventKind::RunCreated, &run.id.to_string(), None, None));
        answers.push(Enqueued::Created(run.id));
        state.put_run(run, now);
    }
    if let Some(idempotency) = request.idempotency {
        let ids = answers.iter().map(|answer| answer.id()).collect();
        state.idempotency.insert(idempotency.key, (idempotency.fingerprint, ids, now));
    }
    Ok(answers)
}
