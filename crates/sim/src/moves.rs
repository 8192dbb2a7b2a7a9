//! Which moves of a run are right, and whether who made them had the right to.

use crate::checker::Checker;
use crate::graphs::SAVED_TASK;
use crate::handler::Product;
use crate::job_checker;
use crate::truth::Truth;
use everbeat_model::{Attempt, Outcome, ReplicaId, RunId, RunState, Token};
use everbeat_store::memory::{DoneRow, State};

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Scheduled { attempt: u32 },
    Ready { attempt: u32 },
    Leased { attempt: u32, token: Token, replica: ReplicaId },
    Done { attempt: u32, token: Option<Token>, state: RunState, finished_at: i64 },
}

type Checked = Result<(), (&'static str, String)>;

impl Checker {
    /// Whether a run may go from one place to the other.
    pub(crate) fn moved(
        &mut self,
        state: &State,
        truth: &mut Truth,
        id: RunId,
        before: Option<Place>,
        place: Place,
        now: u64,
    ) -> Checked {
        let wrong = || Err(("G1", format!("it went from {before:?} to {place:?}")));
        match (before, place) {
            (None, Place::Scheduled { attempt: 0 } | Place::Ready { attempt: 0 }) => made(state, truth, id),
            (Some(Place::Scheduled { attempt: was }), Place::Ready { attempt }) if was == attempt => Ok(()),
            (
                Some(Place::Scheduled { attempt: was } | Place::Ready { attempt: was }),
                Place::Done { state: RunState::Cancelled, token: None, attempt, .. },
            ) if was == attempt => {
                if let Some(done) = state.done.get(&id) {
                    finished(state, truth, id, done);
                }
                Ok(())
            }
            (Some(Place::Ready { attempt: was }), Place::Leased { attempt, replica, .. }) if attempt == was + 1 => {
                if truth.cancelled.contains(&id) {
                    return Err(("G1", "it was cancelled, and is tried again".to_string()));
                }
                if self.lost_by.remove(&id).is_some_and(|lost_by| lost_by != replica) {
                    truth.report.taken_over += 1;
                }
                if !state.replicas.contains_key(&replica) {
                    return Err(("G2", format!("its lease belongs to {replica}, which has no row")));
                }
                Ok(())
            }
            (
                Some(Place::Leased { attempt: was, token, replica }),
                Place::Ready { attempt } | Place::Scheduled { attempt },
            ) if was == attempt => {
                let Some((ended, by)) = state.attempts.get(&(id, attempt)) else {
                    return Err(("G1", format!("attempt {attempt} left no trace")));
                };
                self.attempt_ended(state, truth, id, ended, (token, *by))?;
                if detached(state, id) {
                    job_checker::ended(state, truth, id, ended, token, None, now)?;
                }
                if ended.outcome == Some(Outcome::Lost) {
                    self.lost_by.insert(id, replica);
                }
                Ok(())
            }
            (Some(Place::Leased { attempt: was, token, replica }), Place::Done { attempt, .. }) if was == attempt => {
                let Some(done) = state.done.get(&id) else { return wrong() };
                let Some((ended, by)) = &done.attempt else { return wrong() };
                self.attempt_ended(state, truth, id, ended, (token, *by))?;
                finished(state, truth, id, done);
                if detached(state, id) {
                    job_checker::ended(state, truth, id, ended, token, done.result.as_ref(), now)?;
                } else if done.state == RunState::Succeeded {
                    produced(state, truth, id, done, attempt, replica)?;
                }
                Ok(())
            }
            (
                Some(Place::Leased { attempt: was, token: before, replica: from }),
                Place::Leased { attempt, token, replica },
            ) if was == attempt && before == token && detached(state, id) => {
                let (from, to) = (truth.machine_of(from), truth.machine_of(replica));
                match from == to {
                    true => Ok(()),
                    false => Err(("adoption", format!("its lease went from host {from:?} to host {to:?}"))),
                }
            }
            (Some(Place::Done { attempt: was, .. }), Place::Ready { attempt }) if was == attempt => {
                match truth.reopenings.get_mut(&id) {
                    Some(times) if *times > 0 => *times -= 1,
                    _ => return Err(("G1", "a finished run came back, and nobody reopened it".to_string())),
                }
                truth.report.reopened += 1;
                Ok(())
            }
            _ => wrong(),
        }
    }

    fn attempt_ended(
        &self,
        state: &State,
        truth: &mut Truth,
        id: RunId,
        ended: &Attempt,
        (held, shown): (Token, Token),
    ) -> Checked {
        let attempt = ended.attempt;
        if held != shown {
            return Err(("G1", format!("attempt {attempt} was ended by somebody who did not hold its lease")));
        }
        if self.attempts.contains(&(id, attempt)) {
            return Err(("G1", format!("attempt {attempt} ended twice")));
        }
        truth.report.released += u64::from(ended.outcome == Some(Outcome::Released));
        let judged = matches!(ended.outcome, Some(Outcome::Lost | Outcome::Stalled | Outcome::TimedOut));
        if judged && !ended.verdict_id.is_some_and(|verdict| state.verdicts.contains_key(&verdict)) {
            return Err(("G15", format!("attempt {attempt} was judged without a verdict")));
        }
        Ok(())
    }
}

fn detached(state: &State, id: RunId) -> bool {
    state.runs.get(&id).is_some_and(|row| row.spec.detached())
}

/// Whether clients have no hand in it: graphs make it themselves.
fn of_graph(state: &State, id: RunId) -> bool {
    state.runs.get(&id).is_some_and(|row| row.spec.parent.is_some() || row.spec.task == SAVED_TASK)
}

/// A new run. Whoever is called after a value was saved is called once for it.
fn made(state: &State, truth: &mut Truth, id: RunId) -> Checked {
    if !of_graph(state, id) {
        let of_schedule = state.runs.get(&id).is_some_and(|row| row.spec.occurrence.is_some());
        truth.report.submitted += u64::from(!of_schedule);
        return Ok(());
    }
    let Some(row) = state.runs.get(&id).filter(|row| row.spec.task == SAVED_TASK) else { return Ok(()) };
    let saved = row.spec.input.value();
    let (Some(execution), Some(node), Some(revision)) =
        (saved["execution"].as_str(), saved["node"].as_str(), saved["revision"].as_u64())
    else {
        return Ok(());
    };
    truth.report.callbacks += 1;
    match truth.callbacks.insert((execution.to_string(), node.to_string(), revision), id) {
        None => Ok(()),
        Some(_) => Err(("graph", format!("{node} was saved once with revision {revision}, and called for twice"))),
    }
}

fn finished(state: &State, truth: &mut Truth, id: RunId, done: &DoneRow) {
    if of_graph(state, id) {
        truth.report.superseded += u64::from(done.state == RunState::Cancelled);
        return;
    }
    match done.state {
        RunState::Succeeded => truth.report.succeeded += 1,
        RunState::Failed => truth.report.failed += 1,
        _ => truth.report.cancelled += 1,
    }
}

/// The stored result must have been made by whoever held the lease, under that very attempt.
fn produced(state: &State, truth: &Truth, id: RunId, done: &DoneRow, attempt: u32, replica: ReplicaId) -> Checked {
    if of_graph(state, id) {
        let owner = truth.lives.get(&replica).map(|life| life.owner);
        let made = truth.made.get(&(id, attempt)).into_iter().flatten();
        let mine =
            made.filter(|(maker, _)| Some(*maker) == owner).any(|(_, result)| Some(result) == done.result.as_ref());
        return if mine { Ok(()) } else { Err(("G1", format!("attempt {attempt} has a result of somebody else"))) };
    }
    let product: Option<Product> = done.result.as_ref().and_then(|result| result.read().ok());
    let Some(product) = product else { return Err(("G1", format!("its result is not one: {:?}", done.result))) };
    let owner = truth.lives.get(&replica).map(|life| life.owner);
    let performed = truth.performers.get(&product.nonce) == Some(&(product.owner, product.run, product.attempt));
    if !performed || product.run != id || product.attempt != attempt || owner != Some(product.owner) {
        return Err((
            "G1",
            format!(
                "attempt {attempt} of {} has the result of attempt {} by {}",
                truth.label_of(replica),
                product.attempt,
                truth.label(product.owner)
            ),
        ));
    }
    Ok(())
}
