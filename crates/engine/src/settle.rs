//! Ends attempts, in batches, each under its own lease. Whatever is waiting goes out whenever the
//! writer is free.

use crate::figures;
use crate::life::{Life, Phase, Turn};
use crate::perform::Entry;
use crate::waiters::Awaited;
use everbeat_model::settle::decide;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{Ending, Json, Outcome, Settled, Settlement, Verdict, VerdictId};
use everbeat_store::{Class, Error as StoreError, Sign};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

const BATCH: usize = 1000;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// An attempt that has ended, on its way to the store.
pub(crate) struct Ended {
    pub(crate) entry: Arc<Entry>,
    pub(crate) ending: Ending,
    pub(crate) draft: Option<Draft>,
    /// Somebody asked to cancel, as the store knows.
    pub(crate) cancel_asked: bool,
    /// An earlier write of it was not answered.
    pub(crate) tried: bool,
}

/// A verdict before it is known what follows from it.
pub(crate) struct Draft {
    pub(crate) judgement: Judgement,
    pub(crate) reason: &'static str,
    pub(crate) evidence: serde_json::Value,
}

impl Draft {
    pub(crate) fn verdict(&self, life: &Life, entry: &Entry, then: String) -> Verdict {
        let lease = &entry.claimed.lease;
        Verdict {
            id: VerdictId(life.core.new_id()),
            at: life.core.now(),
            subject: Subject { kind: SubjectKind::Run, id: lease.run_id.to_string() },
            judgement: self.judgement,
            reason: self.reason.to_string(),
            evidence: Json::of(&self.evidence),
            judged_by: life.id,
            run_id: Some(lease.run_id),
            attempt: Some(lease.attempt),
            then,
        }
    }
}

pub(crate) async fn run(life: Arc<Life>, mut endings: mpsc::Receiver<Ended>) {
    let mut waiting: Vec<Ended> = Vec::new();
    // An earlier write of these was not answered: it may have happened.
    let mut unsure = false;
    let mut batch = BATCH;
    let mut pause = FIRST_PAUSE;
    loop {
        life.turned(Turn::Settle);
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        if waiting.is_empty() {
            (unsure, batch, pause) = (false, BATCH, FIRST_PAUSE);
            let look_again = life.core.env.sleep(life.core.settings.idle_limit());
            tokio::select! {
                biased;
                received = endings.recv_many(&mut waiting, BATCH) => if received == 0 { return },
                () = look_again => continue,
            }
        }
        if unsure {
            match forget_settled(&life, &mut waiting).await {
                Ok(()) => unsure = false,
                Err(error) => tracing::debug!(%error, "cannot look up whether attempts were settled"),
            }
        }
        if waiting.is_empty() {
            continue;
        }
        let written = if unsure {
            Err(StoreError::Unavailable("still away".to_string()))
        } else {
            write(&life, &mut waiting, batch).await
        };
        if written.is_err() {
            waiting.iter_mut().for_each(|ended| ended.tried = true);
        }
        match written {
            Ok(()) => pause = FIRST_PAUSE,
            Err(error) if error.class() == Class::Bug => {
                // One bad item must not hold back the others: alone, it is the culprit.
                unsure = true;
                if batch.min(waiting.len()) > 1 {
                    batch = 1;
                } else if !spoil(&life, &mut waiting[0], &error) {
                    waiting.remove(0);
                }
            }
            Err(error) => {
                tracing::debug!(%error, waiting = waiting.len(), "cannot settle yet");
                unsure = true;
                life.core.env.sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Writes the first `batch` of what waits; what must be decided again stays.
async fn write(life: &Life, waiting: &mut Vec<Ended>, batch: usize) -> Result<(), StoreError> {
    let size = batch.min(waiting.len());
    sign_last_progress(life, &waiting[..size]).await?;
    let settlements = waiting[..size].iter().map(|ended| settlement(life, ended)).collect();
    let answers = life.call_in(Turn::Settle, life.core.store.settle(settlements)).await?;
    let mut fenced = Vec::new();
    let mut again = Vec::new();
    let mut freed = false;
    let mut counts = Counts::default();
    {
        let mut table = life.table();
        for (answer, ended) in answers.into_iter().zip(waiting.drain(..size)) {
            match answer {
                Settled::Done => {
                    freed |= table.settled(&ended.entry);
                    told(life, &ended);
                    counts.add(ended.ending.outcome);
                }
                Settled::Fenced => {
                    ended.entry.vital().fenced = true;
                    freed |= table.settled(&ended.entry);
                    fenced.push(ended);
                }
                Settled::CancelAsked => again.push(Ended { cancel_asked: true, ..ended }),
            }
        }
    }
    waiting.extend(again);
    if freed {
        life.freed.notify_one();
    }
    life.core.store.wake();
    record_fenced(life, fenced).await;
    Ok(())
}

/// What an attempt reported just before its end is written while its lease still stands.
async fn sign_last_progress(life: &Life, ending: &[Ended]) -> Result<(), StoreError> {
    let unsigned = ending.iter().filter(|ended| std::mem::take(&mut ended.entry.vital().dirty));
    let signs: Vec<Sign> = unsigned
        .map(|ended| Sign {
            shown: ended.entry.claimed.lease.shown(),
            progress: ended.entry.vital().progress.clone(),
            checkpoint: None,
        })
        .collect();
    if !signs.is_empty() {
        // Progress is for people: a fenced or unstorable one changes nothing about the ending.
        life.call_in(Turn::Settle, life.core.store.sign(signs)).await?;
    }
    Ok(())
}

fn settlement(life: &Life, ended: &Ended) -> Settlement {
    let claimed = &ended.entry.claimed;
    let cancel_asked = ended.cancel_asked || ended.entry.vital().cancel_asked.is_some();
    // Success, by far the most frequent, needs no chance.
    let chance = if ended.ending.outcome == Outcome::Succeeded { 0.0 } else { life.core.env.chance() };
    let (next, standing) = decide(&ended.ending, &claimed.spec.policy, claimed.standing, cancel_asked, chance);
    Settlement {
        shown: claimed.lease.shown(),
        spec: claimed.spec.clone(),
        ending: ended.ending.clone(),
        next,
        standing,
        last_heartbeat_at: Some(life.last_heartbeat_at(&ended.entry)),
        verdict: ended.draft.as_ref().map(|draft| draft.verdict(life, &ended.entry, next.describe(&standing))),
    }
}

/// After an unanswered write: what it did settle is done, not fenced.
async fn forget_settled(life: &Life, waiting: &mut Vec<Ended>) -> Result<(), StoreError> {
    let leases = waiting.iter().map(|ended| (ended.entry.claimed.lease.run_id, ended.entry.token())).collect();
    let settled = life.call_in(Turn::Settle, life.core.store.was_settled(leases)).await?;
    let mut settled = settled.into_iter();
    let mut freed = false;
    let mut counts = Counts::default();
    waiting.retain(|ended| {
        let done = settled.next().unwrap_or(false);
        if done {
            freed |= life.table().settled(&ended.entry);
            told(life, ended);
            counts.add(ended.ending.outcome);
        }
        !done
    });
    if freed {
        life.freed.notify_one();
    }
    Ok(())
}

/// Tells whom the end of an attempt may concern here.
fn told(life: &Life, ended: &Ended) {
    let claimed = &ended.entry.claimed;
    if let Some(draft) = &ended.draft {
        figures::judged(draft.judgement, draft.reason);
    }
    if ended.ending.outcome == Outcome::Lost {
        life.core.losses.lost(claimed.lease.run_id, life.core.env.boot());
    }
    if ended.entry.detached() {
        metrics::counter!("everbeat_job_exits_total", "outcome" => ended.ending.outcome.as_str()).increment(1);
    }
    life.core.waiters.tell(Awaited::Run(claimed.lease.run_id));
    if claimed.spec.parent.is_some() {
        life.core.noted.notify_one();
    }
}

const LATE: &str = "late_result";

async fn record_fenced(life: &Life, late: Vec<Ended>) {
    let mut fenced = Vec::new();
    for ended in late {
        // An earlier write that was never answered may have arrived just before this one.
        life.turned(Turn::Settle);
        if !ended.tried || !life.may_count(&ended.entry).await {
            fenced.push(ended);
        }
    }
    if fenced.is_empty() {
        return;
    }
    metrics::counter!("everbeat_fenced_writes_total").increment(fenced.len() as u64);
    fenced.iter().for_each(|_| figures::judged(Judgement::Fenced, LATE));
    let verdicts = fenced.iter().map(|ended| {
        let lease = &ended.entry.claimed.lease;
        tracing::warn!(run = %lease.run_id, attempt = lease.attempt, "a late result was fenced");
        let draft = Draft {
            judgement: Judgement::Fenced,
            reason: LATE,
            evidence: serde_json::json!({
                "replica_id": life.id,
                "outcome": ended.ending.outcome,
                "granted_at": lease.granted_at,
            }),
        };
        draft.verdict(life, &ended.entry, "its result counts for nothing; the run went on without it".to_string())
    });
    if let Err(error) = life.call_in(Turn::Settle, life.core.store.record(verdicts.collect())).await {
        tracing::warn!(%error, "verdicts of fenced attempts could not be recorded");
    }
}

/// The store cannot take this ending: the attempt fails for that reason, in words that it can take.
/// Answers whether there is something left to try.
fn spoil(life: &Life, ended: &mut Ended, error: &StoreError) -> bool {
    let lease = &ended.entry.claimed.lease;
    tracing::error!(run = %lease.run_id, attempt = lease.attempt, %error, "the ending cannot be stored");
    if ended.ending.outcome == Outcome::Failed && ended.ending.permanent {
        // Not even that could be stored; reconciliation returns the lease.
        life.table().settled(&ended.entry);
        return false;
    }
    ended.ending = Ending::failed("the result cannot be stored", true);
    ended.draft = None;
    true
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
