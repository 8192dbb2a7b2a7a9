//! Attempts whose lease is another's: nothing that they do counts, and that is said of each.

use super::Life;
use crate::Stop;
use crate::attempts::{Conclusion, Draft, Parting, Work};
use crate::figures;
use everbeat_model::verdict::Judgement;
use everbeat_model::{Json, Outcome, Reason, Verdict};
use std::sync::Arc;

const BATCH: usize = 500;

/// The store refused a sign of this attempt, since its end has been stored by somebody else.
pub(crate) fn one(life: &Life, work: &Arc<Work>) {
    match work.terms.parting {
        // The attempt is settled like any other and fenced there too, which frees its slot and is recorded.
        Parting::Ends if work.decide() => {
            work.kill(Stop::Fenced);
            let evidence = serde_json::json!({ "replica_id": life.id, "found_by": "sign" });
            let judged = Conclusion::lost(Reason::Fenced, "its lease was no longer its own", evidence);
            life.settle(work, judged);
        }
        // The attempt goes on, and nothing is said of its end: whoever looks for what is nobody's finds it.
        Parting::GoesOn if work.forsake() => {
            work.kill(Stop::Fenced);
            life.table().settled(work);
        }
        Parting::Ends | Parting::GoesOn => {}
    }
}

/// After a judgement by others nothing of this life counts: stops its work and says so.
pub(super) async fn all(life: &Life) {
    let mut fenced = Vec::new();
    let mut late = Vec::new();
    // Attempts that go on without this replica do so under whoever took them over.
    let going_on = life.table().parting(Parting::GoesOn);
    going_on.iter().for_each(|work| work.kill(Stop::Fenced));
    let ending = life.table().parting(Parting::Ends);
    for work in ending {
        if work.decide() {
            fenced.push(by_death(life, &work, Reason::ReplicaDead));
        } else {
            // The attempt's ending was on its way: it counts, or whoever took the run over was first.
            late.push(work.clone());
        }
        work.kill(Stop::Fenced);
        life.core.keep_former(&work);
    }
    for work in late.iter().take(BATCH) {
        if was_taken_over(life, work).await {
            fenced.push(by_death(life, work, Reason::LateResult));
        }
    }
    let (reasons, fenced): (Vec<Reason>, Vec<Verdict>) = fenced.into_iter().unzip();
    metrics::counter!("everbeat_fenced_writes_total").increment(fenced.len() as u64);
    reasons.into_iter().for_each(|reason| figures::judged(Judgement::Fenced, reason));
    for chunk in fenced.chunks(BATCH) {
        if let Err(error) = life.call(life.core.store.record(chunk.to_vec())).await {
            tracing::warn!(%error, "verdicts of fenced attempts could not be recorded");
        }
    }
}

fn by_death(life: &Life, work: &Work, reason: Reason) -> (Reason, Verdict) {
    let evidence = serde_json::json!({ "replica_id": life.id, "found_by": "renewal" });
    let draft = Draft { judgement: Judgement::Fenced, reason, evidence };
    (reason, draft.verdict(life, work, "its result counts for nothing; the run went on without it".to_string()))
}

/// Whether another replica has ended this attempt as lost. What cannot be looked up, or is not decided
/// yet, is not claimed.
async fn was_taken_over(life: &Life, work: &Work) -> bool {
    let lease = &work.claimed.lease;
    let Ok(attempts) = life.call(life.core.store.attempts(lease.run_id)).await else { return false };
    let mut mine = attempts.iter().filter(|ended| ended.attempt == lease.attempt && ended.replica_id == life.id);
    // The reasons named here are a rescuer's; this replica itself may have judged its attempt lost before.
    let rescued = |error: &Json| Reason::of(error).is_some_and(Reason::is_rescue);
    mine.any(|ended| ended.outcome == Some(Outcome::Lost) && ended.error.as_ref().is_some_and(rescued))
}

/// Whether an ending of this attempt was accepted after all: a write that was never answered may
/// have happened. What cannot be looked up may count too; nothing false is recorded of it.
pub(crate) async fn may_count(life: &Life, work: &Work) -> bool {
    let lease = &work.claimed.lease;
    let Ok(attempts) = life.call(life.core.store.attempts(lease.run_id)).await else { return true };
    let mut mine = attempts.iter().filter(|ended| ended.attempt == lease.attempt && ended.replica_id == life.id);
    mine.any(|ended| ended.outcome.is_some_and(|outcome| outcome != Outcome::Lost))
}
