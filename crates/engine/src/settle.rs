//! Ends attempts, in batches, each under its own lease. Whatever is waiting goes out whenever the
//! writer is free. One ending that cannot be stored holds up no other.

use crate::figures;
use crate::held::{self, Hold, SMALL_BYTES};
use crate::life::{Life, Phase, Turn};
use crate::perform::Entry;
use crate::waiters::Awaited;
use everbeat_model::settle::decide;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{BootInstant, Ending, Hole, Json, Outcome, Settled, Settlement, Verdict, VerdictId};
use everbeat_store::{Class, Error as StoreError, Obstacle, Sign};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

const BATCH: usize = 1000;
/// So much text in one write, besides the first item.
const BATCH_BYTES: usize = 8 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// An attempt that has ended, on its way to the store.
pub(crate) struct Ended {
    pub(crate) entry: Arc<Entry>,
    pub(crate) ending: Ending,
    pub(crate) draft: Option<Draft>,
    /// Somebody asked to cancel, as the store knows.
    pub(crate) cancel_asked: bool,
    /// That write may have happened all the same: it is looked up before the next.
    pub(crate) unsure: bool,
    /// It could not be stored although it stood alone.
    pub(crate) hold: Option<Hold>,
}

impl Ended {
    pub(crate) fn new(entry: Arc<Entry>, ending: Ending, draft: Option<Draft>) -> Ended {
        Ended { entry, ending, draft, cancel_asked: false, unsure: false, hold: None }
    }
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
    let mut settler = Settler { stored_at: life.core.env.boot(), life, waiting: Vec::new(), held: Vec::new() };
    let mut pause = FIRST_PAUSE;
    loop {
        settler.life.turned(Turn::Settle);
        if matches!(settler.life.phase(), Phase::Fenced | Phase::Left) || !settler.receive(&mut endings).await {
            return;
        }
        let fresh = std::mem::take(&mut settler.waiting);
        let mut passed = settler.pass(fresh).await;
        if passed.is_ok() {
            let due = settler.take_due();
            passed = settler.pass(due).await;
        }
        settler.report();
        match passed {
            Ok(()) => pause = FIRST_PAUSE,
            Err(error) => {
                settler.troubled(&error);
                tracing::debug!(%error, waiting = settler.waiting.len(), "cannot settle yet");
                settler.life.core.env.sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

struct Settler {
    life: Arc<Life>,
    /// To be written as soon as the store can be written to.
    waiting: Vec<Ended>,
    /// To be written at their own times.
    held: Vec<Ended>,
    /// When an ending was stored last.
    stored_at: BootInstant,
}

impl Settler {
    /// Waits until there is something to write. False when nothing will ever come.
    async fn receive(&mut self, endings: &mut mpsc::Receiver<Ended>) -> bool {
        if !self.waiting.is_empty() {
            return true;
        }
        let env = &self.life.core.env;
        let idle = env.boot() + self.life.core.settings.idle_limit();
        let due = self.held.iter().filter_map(|ended| ended.hold.as_ref()).map(|hold| hold.next).min();
        let look_again = env.sleep_until(due.map_or(idle, |due| due.min(idle)));
        tokio::select! {
            biased;
            received = endings.recv_many(&mut self.waiting, BATCH) => received > 0,
            () = look_again => true,
        }
    }

    fn take_due(&mut self) -> Vec<Ended> {
        let now = self.life.core.env.boot();
        // Who leaves has no time for pauses.
        let leaves = self.life.phase() == Phase::Draining;
        let due = |ended: &mut Ended| leaves || ended.hold.as_ref().is_none_or(|hold| hold.next <= now);
        self.held.extract_if(.., due).collect()
    }

    /// Writes what can be written, the small ones first. A batch that fails for what is in it, or for its size, is
    /// halved until the bad one stands alone; that one is held. Fails when the store cannot be written to at all:
    /// then the rest waits.
    async fn pass(&mut self, mut endings: Vec<Ended>) -> Result<(), StoreError> {
        let hole = self.life.core.settings.hole == Some(Hole::WholeBatchWaits);
        endings.sort_by_key(|ended| ended.ending.bytes());
        let mut open = VecDeque::from(in_pieces(endings));
        while let Some(mut piece) = open.pop_front() {
            let Err(error) = self.write(&mut piece).await else {
                if !piece.is_empty() {
                    open.push_front(piece);
                }
                continue;
            };
            if !error.may_be_content() || hole {
                self.waiting.extend(piece);
                self.waiting.extend(open.into_iter().flatten());
                return Err(error);
            }
            if piece.len() > 1 {
                let second = piece.split_off(piece.len() / 2);
                open.push_front(second);
                open.push_front(piece);
                continue;
            }
            let Some(ended) = piece.pop() else { continue };
            if error.class() == Class::Bug {
                open.extend(spoil(&self.life, ended, &error).map(|ended| vec![ended]));
                continue;
            }
            if ended.ending.bytes() <= SMALL_BYTES {
                self.troubled(&error);
            }
            self.hold(ended, &error, true);
            if matches!(error.cause(), Some(Obstacle::DiskFull | Obstacle::NoMemory)) {
                // The rest is larger still.
                open.drain(..).flatten().for_each(|ended| self.hold(ended, &error, false));
            }
        }
        Ok(())
    }

    fn hold(&mut self, ended: Ended, error: &StoreError, tested: bool) {
        let held = held::hold(&self.life, ended, error, self.stored_at, tested);
        self.held.push(held);
    }

    /// Writes a piece; what must be decided again stays in it, and all of it after an error.
    async fn write(&mut self, piece: &mut Vec<Ended>) -> Result<(), StoreError> {
        if piece.iter().any(|ended| ended.unsure) {
            let before = piece.len();
            forget_settled(&self.life, piece).await.map_err(away)?;
            piece.iter_mut().for_each(|ended| ended.unsure = false);
            if piece.len() < before {
                self.stored();
            }
        }
        if piece.is_empty() {
            return Ok(());
        }
        let written = write(&self.life, piece).await;
        match &written {
            Ok(()) => self.stored(),
            Err(_) => piece.iter_mut().for_each(|ended| ended.unsure = true),
        }
        written
    }

    fn stored(&mut self) {
        self.stored_at = self.life.core.env.boot();
        *self.life.unsettled() = None;
    }

    /// No ending can be stored now, however small.
    fn troubled(&self, error: &StoreError) {
        let now = self.life.core.env.boot();
        let mut unsettled = self.life.unsettled();
        let since = unsettled.as_ref().map_or(now, |unsettled| unsettled.since);
        *unsettled = Some(Unsettled { since, error: error.clone(), waiting: self.waiting.len() });
    }

    fn report(&self) {
        let now = self.life.core.env.boot();
        let oldest = self.held.iter().filter_map(|ended| ended.hold.as_ref()).map(|hold| hold.since).min();
        metrics::gauge!("everbeat_endings_held").set(self.held.len() as f64);
        metrics::gauge!("everbeat_endings_held_oldest_seconds")
            .set(oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64()));
    }
}

/// A look that fails, for whatever reason, says nothing about what was to be written.
fn away(error: StoreError) -> StoreError {
    if error.may_be_content() { StoreError::unavailable(Obstacle::NoAnswer, error) } else { error }
}

/// Since when no ending can be stored, and why.
#[derive(Clone)]
pub(crate) struct Unsettled {
    pub(crate) since: BootInstant,
    pub(crate) error: StoreError,
    pub(crate) waiting: usize,
}

/// Pieces that one write takes. One that is too large by itself goes alone.
fn in_pieces(endings: Vec<Ended>) -> Vec<Vec<Ended>> {
    let mut pieces: Vec<Vec<Ended>> = Vec::new();
    let mut room = 0;
    for ended in endings {
        let bytes = ended.ending.bytes();
        match pieces.last_mut() {
            Some(piece) if bytes <= room && piece.len() < BATCH => piece.push(ended),
            _ => {
                pieces.push(vec![ended]);
                room = BATCH_BYTES;
            }
        }
        room = room.saturating_sub(bytes);
    }
    pieces
}

/// Writes endings; those that must be decided again stay.
async fn write(life: &Life, endings: &mut Vec<Ended>) -> Result<(), StoreError> {
    sign_last_progress(life, endings).await?;
    let settlements = endings.iter().map(|ended| settlement(life, ended)).collect();
    let answers = life.call_in(Turn::Settle, life.core.store.settle(settlements)).await?;
    let mut fenced = Vec::new();
    let mut again = Vec::new();
    let mut freed = false;
    let mut counts = Counts::default();
    {
        let mut table = life.table();
        for (answer, ended) in answers.into_iter().zip(endings.drain(..)) {
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
    endings.extend(again);
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
        // Progress is for people: one that is fenced or cannot be stored changes nothing about the ending.
        match life.call_in(Turn::Settle, life.core.store.sign(signs)).await {
            Err(error) if !error.may_be_content() => return Err(error),
            Err(error) => tracing::debug!(%error, "the last progress of attempts cannot be stored"),
            Ok(_) => {}
        }
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
    if let Some(hold) = &ended.hold {
        let (lease, tries) = (&claimed.lease, hold.tries);
        tracing::info!(run = %lease.run_id, attempt = lease.attempt, tries, "an ending that was held is stored");
    }
    life.tally(ended.ending.outcome);
    life.core.waiters.tell(Awaited::Run(claimed.lease.run_id));
    if claimed.spec.parent.is_some() {
        life.core.noted.notify_one();
    }
}

const LATE: &str = "late_result";

async fn record_fenced(life: &Life, late: Vec<Ended>) {
    let mut fenced = Vec::new();
    for ended in late {
        // An earlier write that was never answered may have arrived just before this one; or a store that forgot an
        // ending, so that it was looked for again, has it back.
        life.turned(Turn::Settle);
        if !life.may_count(&ended.entry).await {
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

/// The store can never take this ending: the attempt fails for that reason, in words that it can take. None if not
/// even that can be stored.
fn spoil(life: &Life, mut ended: Ended, error: &StoreError) -> Option<Ended> {
    let lease = &ended.entry.claimed.lease;
    tracing::error!(run = %lease.run_id, attempt = lease.attempt, %error, "the ending cannot be stored");
    if ended.ending.outcome == Outcome::Failed && ended.ending.permanent {
        // Reconciliation returns the lease.
        life.table().settled(&ended.entry);
        return None;
    }
    ended.ending = Ending::failed("the result cannot be stored", true);
    ended.draft = None;
    Some(ended)
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
