//! One write of endings: the settlements, and what follows from each answer.

use super::conclusion::Draft;
use super::outputs;
use super::settle::Unstored;
use super::table::Table;
use super::work::Work;
use crate::figures;
use crate::replica::{Life, Turn, fence};
use crate::runs::Awaited;
use everbeat_model::settle::decide;
use everbeat_model::verdict::Judgement;
use everbeat_model::{Ending, Hole, Outcome, Reason, Settled, Settlement};
use everbeat_store::{Error as StoreError, Sign};
use std::collections::BTreeSet;

/// Writes endings; those that must be decided again stay.
pub(super) async fn endings(life: &Life, endings: &mut Vec<Unstored>) -> Result<(), StoreError> {
    if !life.core.settings.hole.is(Hole::OutputUnawaited) {
        outputs::last_words(life, endings.iter().map(|unstored| &unstored.work)).await?;
    }
    sign_last_progress(life, endings).await?;
    let settlements = endings.iter().map(|unstored| settlement(life, unstored)).collect();
    let answers = life.call_in(Turn::Settle, life.core.store.settle(settlements)).await?;
    let mut fenced = Vec::new();
    let mut again = Vec::new();
    let mut freed = BTreeSet::new();
    let mut counts = Counts::default();
    {
        let mut table = life.table();
        for (answer, unstored) in answers.into_iter().zip(endings.drain(..)) {
            match answer {
                Settled::Done => {
                    close(&mut table, &unstored.work, &mut freed);
                    told(life, &unstored);
                    counts.add(unstored.ending.outcome);
                }
                Settled::Fenced => {
                    unstored.work.vital().fenced = true;
                    close(&mut table, &unstored.work, &mut freed);
                    fenced.push(unstored);
                }
                Settled::CancelAsked => again.push(Unstored { cancel_asked: true, ..unstored }),
            }
        }
    }
    endings.extend(again);
    life.freed(freed);
    life.core.store.wake();
    record_fenced(life, fenced).await;
    Ok(())
}

fn close(table: &mut Table, work: &Work, freed: &mut BTreeSet<usize>) {
    if table.settled(work) {
        freed.insert(work.crew);
    }
}

/// What an attempt reported just before its end is written while its lease still stands.
async fn sign_last_progress(life: &Life, ending: &[Unstored]) -> Result<(), StoreError> {
    let unsigned = ending.iter().filter(|unstored| std::mem::take(&mut unstored.work.vital().dirty));
    let signs: Vec<Sign> = unsigned
        .map(|unstored| Sign {
            shown: unstored.work.claimed.lease.shown(),
            progress: unstored.work.vital().progress.clone(),
            checkpoint: None,
        })
        .collect();
    if !signs.is_empty() {
        // Progress is for people: one that is fenced or cannot be stored changes nothing about the ending.
        match life.call_in(Turn::Settle, life.core.store.sign(signs)).await {
            Err(error) if !error.may_be_content() => return Err(error),
            Err(error) => tracing::debug!(%error, "the last progress of attempts cannot be stored"),
            Ok(_) => {}
        }
    }
    Ok(())
}

fn settlement(life: &Life, unstored: &Unstored) -> Settlement {
    let claimed = &unstored.work.claimed;
    let cancel_asked = unstored.cancel_asked || unstored.work.vital().cancel_asked.is_some();
    // Success, by far the most frequent, needs no chance.
    let chance = if unstored.ending.outcome == Outcome::Succeeded { 0.0 } else { life.core.env.chance() };
    let (next, standing) = decide(&unstored.ending, &claimed.spec.policy, claimed.standing, cancel_asked, chance);
    Settlement {
        shown: claimed.lease.shown(),
        spec: claimed.spec.clone(),
        ending: unstored.ending.clone(),
        next,
        standing,
        last_heartbeat_at: Some(life.last_heartbeat_at(&unstored.work)),
        worker_id: unstored.work.vital().worker,
        verdict: unstored.draft.as_ref().map(|draft| draft.verdict(life, &unstored.work, next.describe(&standing))),
    }
}

/// Forgets what an unanswered write did settle: those endings are done, not fenced.
pub(super) async fn forget_settled(life: &Life, waiting: &mut Vec<Unstored>) -> Result<(), StoreError> {
    let leases = waiting.iter().map(|unstored| (unstored.work.claimed.lease.run_id, unstored.work.token())).collect();
    let settled = life.call_in(Turn::Settle, life.core.store.was_settled(leases)).await?;
    let mut settled = settled.into_iter();
    let mut freed = BTreeSet::new();
    let mut counts = Counts::default();
    waiting.retain(|unstored| {
        let done = settled.next().unwrap_or(false);
        if done {
            close(&mut life.table(), &unstored.work, &mut freed);
            told(life, unstored);
            counts.add(unstored.ending.outcome);
        }
        !done
    });
    life.freed(freed);
    Ok(())
}

/// Tells whom the end of an attempt may concern here.
fn told(life: &Life, unstored: &Unstored) {
    let claimed = &unstored.work.claimed;
    if let Some(draft) = &unstored.draft {
        figures::judged(draft.judgement, draft.reason);
    }
    if unstored.ending.outcome == Outcome::Lost {
        life.core.losses.lost(claimed.lease.run_id, life.core.env.boot());
    }
    life.crew(unstored.work.crew).performer.settled(unstored.ending.outcome);
    if let Some(hold) = &unstored.hold {
        let (lease, tries) = (&claimed.lease, hold.tries);
        tracing::info!(run = %lease.run_id, attempt = lease.attempt, tries, "an ending that was held is stored");
    }
    life.tally(unstored.ending.outcome);
    life.core.waiters.tell(Awaited::Run(claimed.lease.run_id));
    if claimed.spec.parent.is_some() {
        life.core.noted.notify_one();
    }
    if claimed.spec.occurrence.is_some() {
        life.core.schedules_noted.notify_one();
    }
}

async fn record_fenced(life: &Life, late: Vec<Unstored>) {
    let mut fenced = Vec::new();
    for unstored in late {
        // An earlier write that was never answered may have arrived just before this one; or a store that forgot an
        // ending, so that it was looked for again, has it back.
        life.turned(Turn::Settle);
        if !fence::may_count(life, &unstored.work).await {
            fenced.push(unstored);
        }
    }
    if fenced.is_empty() {
        return;
    }
    metrics::counter!("everbeat_fenced_writes_total").increment(fenced.len() as u64);
    fenced.iter().for_each(|_| figures::judged(Judgement::Fenced, Reason::LateResult));
    let verdicts = fenced.iter().map(|unstored| {
        let lease = &unstored.work.claimed.lease;
        tracing::warn!(run = %lease.run_id, attempt = lease.attempt, "a late result was fenced");
        let draft = Draft {
            judgement: Judgement::Fenced,
            reason: Reason::LateResult,
            evidence: serde_json::json!({
                "replica_id": life.id,
                "outcome": unstored.ending.outcome,
                "granted_at": lease.granted_at,
            }),
        };
        draft.verdict(life, &unstored.work, "its result counts for nothing; the run went on without it".to_string())
    });
    if let Err(error) = life.call_in(Turn::Settle, life.core.store.record(verdicts.collect())).await {
        tracing::warn!(%error, "verdicts of fenced attempts could not be recorded");
    }
}

/// The store can never take this ending: the attempt fails for that reason, in words that it can take. None if not
/// even that can be stored.
pub(super) fn spoil(life: &Life, mut unstored: Unstored, error: &StoreError) -> Option<Unstored> {
    let lease = &unstored.work.claimed.lease;
    if unstored.leave_words() {
        tracing::error!(run = %lease.run_id, attempt = lease.attempt, %error,
            "what an attempt streamed last cannot be stored, and is left out");
        return Some(unstored);
    }
    tracing::error!(run = %lease.run_id, attempt = lease.attempt, %error, "the ending cannot be stored");
    if unstored.ending.outcome == Outcome::Failed && unstored.ending.permanent {
        // Reconciliation returns the lease.
        life.table().settled(&unstored.work);
        return None;
    }
    unstored.ending = Ending::failed("the result cannot be stored", true);
    unstored.draft = None;
    Some(unstored)
}

/// Counts of one batch, told to the metrics at its end.
#[derive(Default)]
struct Counts([u64; Outcome::ALL.len()]);

impl Counts {
    fn add(&mut self, outcome: Outcome) {
        self.0[outcome as usize] += 1;
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        for (outcome, count) in Outcome::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0) {
            metrics::counter!("everbeat_attempts_total", "outcome" => outcome.as_str()).increment(count);
        }
    }
}
