//! What attempts stream, gathered in memory and appended in batches. Whoever streams more than the store takes waits.

use super::said::{Said, Taken};
use super::work::Work;
use crate::Stop;
use crate::replica::{Life, Phase, Turn, fence};
use crate::runs::Awaited;
use everbeat_model::output::Item;
use everbeat_model::{BootInstant, Token};
use everbeat_store::{Class, Error as StoreError, Keep, Piece, Signed};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// While more comes, so long it is gathered between two writes, unless somebody waits for room.
const GATHER: Duration = Duration::from_millis(50);
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const FIRST_HOLD: Duration = Duration::from_millis(250);
const LONGEST_HOLD: Duration = Duration::from_secs(10);
const WARN_AGAIN: Duration = Duration::from_secs(300);
const BATCH: usize = 1000;
/// So much text in one write, besides the first piece.
const BATCH_BYTES: usize = 8 << 20;
/// So much of all attempts may wait for the store; then all who stream wait.
const MOST_IN_ALL: usize = 64 << 20;
/// So many items of a run are kept.
const KEPT_ITEMS: u64 = 100_000;

/// What the attempts of one life of a replica have streamed and the store does not hold yet.
#[derive(Default)]
pub(crate) struct Outbox {
    pending: Mutex<BTreeMap<Token, Arc<Work>>>,
    pub(super) room: Arc<Room>,
    /// There is something to write.
    said: Notify,
    /// Somebody waits for room.
    urgent: Notify,
    trouble: Mutex<Option<Unwritten>>,
}

/// Room for what is not written yet, of all attempts together.
#[derive(Default)]
pub(super) struct Room {
    taken: AtomicUsize,
    freed: Notify,
}

impl Room {
    /// Takes room, if there is enough.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let fits = |taken: usize| Some(taken + bytes).filter(|taken| *taken <= MOST_IN_ALL);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Takes room, whether there is enough or not.
    pub(super) fn add(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn free(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        self.freed.notify_waiters();
    }
}

/// Since when what was streamed cannot be stored, and why.
#[derive(Clone)]
pub(crate) struct Unwritten {
    pub(crate) since: BootInstant,
    pub(crate) error: StoreError,
    warned: BootInstant,
}

impl Outbox {
    /// Takes an item, as soon as there is room for it. Refused once the attempt should stop and there is none; from
    /// then on everything is, so that nothing is missing between what is kept.
    pub(super) async fn take(&self, work: &Arc<Work>, item: Item) -> Result<(), Stop> {
        let mut waits = None;
        loop {
            let freed = self.room.freed.notified();
            tokio::pin!(freed);
            // Enabled before the look, so that room in between is not missed.
            freed.as_mut().enable();
            let taken = work.said().take(&item, &self.room);
            match taken {
                Taken::Yes => break,
                Taken::Closed => return Err(work.stop().unwrap_or(Stop::Judged)),
                Taken::NoRoom => {}
            }
            waits.get_or_insert_with(|| work.awaits_room());
            self.urgent.notify_one();
            tokio::select! {
                biased;
                () = freed => {}
                stop = work.cancelled() => {
                    work.said().close();
                    return Err(stop);
                }
            }
        }
        self.pending().entry(work.token()).or_insert_with(|| work.clone());
        self.said.notify_one();
        Ok(())
    }

    /// Why what was streamed cannot be stored now, if so.
    pub(crate) fn trouble(&self) -> Option<Unwritten> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes that wait to be written.
    pub(crate) fn unwritten(&self) -> usize {
        self.room.taken.load(Ordering::Relaxed)
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<Token, Arc<Work>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn troubled(&self, now: BootInstant, error: &StoreError) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let known = trouble.get_or_insert_with(|| {
            tracing::warn!(%error, "what attempts stream cannot be stored yet; it is kept, and they wait when it is much");
            Unwritten { since: now, error: error.clone(), warned: now }
        });
        known.error = error.clone();
        if now.since(known.warned) >= WARN_AGAIN {
            known.warned = now;
            tracing::warn!(%error, bytes = self.unwritten(), "what attempts stream still cannot be stored");
        }
    }

    fn untroubled(&self) {
        let before = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take();
        if before.is_some() {
            tracing::info!("what attempts stream is stored again");
        }
    }
}

pub(crate) async fn run(life: Arc<Life>) {
    let env = life.core.env.clone();
    let mut held = Held::default();
    loop {
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        let try_again = env.sleep_until(held.until);
        tokio::select! {
            biased;
            () = life.outbox.said.notified() => {}
            () = try_again, if !held.works.is_empty() => {}
        }
        let mut open = std::mem::take(&mut *life.outbox.pending());
        if env.boot() >= held.until {
            open.append(&mut held.works);
        }
        if write(&life, open, &mut held).await && held.works.is_empty() {
            held.pause = FIRST_HOLD;
            life.outbox.untroubled();
        }
        metrics::gauge!("everbeat_outputs_unwritten_bytes").set(life.outbox.unwritten() as f64);
        let gathered = env.sleep_until(env.boot() + GATHER);
        tokio::select! {
            biased;
            () = life.outbox.urgent.notified() => {}
            () = gathered => {}
        }
    }
}

/// Attempts of which the store could not take even one item by itself. They hold back no other.
struct Held {
    works: BTreeMap<Token, Arc<Work>>,
    /// When they are tried again.
    until: BootInstant,
    pause: Duration,
}

impl Default for Held {
    fn default() -> Held {
        Held { works: BTreeMap::new(), until: BootInstant(Duration::ZERO), pause: FIRST_HOLD }
    }
}

impl Held {
    fn hold(&mut self, work: Arc<Work>, now: BootInstant) {
        if self.works.is_empty() {
            self.until = now + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_HOLD);
        }
        self.works.insert(work.token(), work);
    }
}

/// Writes all that these attempts have streamed, in batches of bounded size. What could not be written stays pending, or
/// is held. Answers whether the store could be written to.
async fn write(life: &Life, mut open: BTreeMap<Token, Arc<Work>>, held: &mut Held) -> bool {
    let mut most = BATCH;
    while let Some(batch) = next_batch(&mut open, most) {
        let pieces = batch.iter().map(|(_, piece)| piece.clone()).collect();
        match life.call(life.core.store.append(pieces, keep(life))).await {
            Ok(answers) => {
                most = (most * 2).min(BATCH);
                for (answer, (work, piece)) in answers.into_iter().zip(batch) {
                    if answer == Signed::Fenced {
                        fence::one(life, &work);
                    }
                    answered(life, &work, &piece, answer);
                    open.insert(work.token(), work);
                }
            }
            Err(error) if error.may_be_content() && batch.len() > 1 => {
                // The fault may lie in one piece, or in the size of all: fewer at a time, until that piece is alone.
                most = batch.len() / 2;
                open.extend(batch.into_iter().map(|(work, _)| (work.token(), work)));
            }
            Err(error) if error.may_be_content() => {
                for (work, piece) in batch {
                    if piece.items.len() > 1 || error.class() == Class::Bug {
                        work.said().spoilt(&piece, &error.to_string());
                        work.stored.notify_waiters();
                        open.insert(work.token(), work);
                    } else {
                        life.outbox.troubled(life.core.env.boot(), &error);
                        held.hold(work, life.core.env.boot());
                    }
                }
            }
            Err(error) => {
                life.outbox.troubled(life.core.env.boot(), &error);
                open.extend(batch.into_iter().map(|(work, _)| (work.token(), work)));
                life.outbox.pending().append(&mut open);
                life.outbox.said.notify_one();
                life.core.env.sleep(RETRY_PAUSE).await;
                return false;
            }
        }
    }
    true
}

/// The next pieces to write, one of each attempt at most.
fn next_batch(open: &mut BTreeMap<Token, Arc<Work>>, most: usize) -> Option<Vec<(Arc<Work>, Piece)>> {
    let mut batch: Vec<(Arc<Work>, Piece)> = Vec::new();
    let mut bytes = 0;
    while batch.len() < most && bytes < BATCH_BYTES {
        let Some((_, work)) = open.pop_first() else { break };
        // Of an attempt whose ending is on its way the rest goes with that.
        let piece = work.said().next_piece(&work.claimed.lease);
        if let Some(piece) = piece {
            bytes += piece.bytes();
            batch.push((work, piece));
        }
    }
    Some(batch).filter(|batch| !batch.is_empty())
}

/// Notes what became of a piece.
fn answered(life: &Life, work: &Arc<Work>, piece: &Piece, answer: Signed) {
    match answer {
        Signed::Accepted { cancel_asked } => {
            work.said().written(piece);
            life.core.waiters.tell(Awaited::Output(piece.shown.run_id));
            if cancel_asked && work.ask_cancel(life.core.env.boot()) {
                life.rearm(work);
            }
        }
        Signed::Unstorable => work.said().spoilt(piece, "the store cannot hold it"),
        Signed::Fenced => work.said().discard(),
    }
    work.stored.notify_waiters();
}

/// Writes what attempts streamed and the store does not hold, before their endings: nothing is taken of them any more.
pub(super) async fn last_words<'a>(
    life: &Life,
    works: impl Iterator<Item = &'a Arc<Work>> + Clone,
) -> Result<(), StoreError> {
    loop {
        let rest = works.clone().filter_map(|work| {
            let mut said = work.said();
            said.hand_over();
            Some((work, said.piece(&work.claimed.lease)?))
        });
        let rest: Vec<(&Arc<Work>, Piece)> = rest.collect();
        if rest.is_empty() {
            return Ok(());
        }
        let pieces = rest.iter().map(|(_, piece)| piece.clone()).collect();
        let answers = life.call_in(Turn::Settle, life.core.store.append(pieces, keep(life))).await?;
        answers.into_iter().zip(rest).for_each(|(answer, (work, piece))| answered(life, work, &piece, answer));
    }
}

fn keep(life: &Life) -> Keep {
    Keep { bytes: life.core.settings.output_limit, items: KEPT_ITEMS }
}

impl Work {
    /// Resolves when the store holds so many of the items that the attempt has streamed.
    pub(super) async fn stores(&self, items: u64) {
        loop {
            let stored = self.stored.notified();
            tokio::pin!(stored);
            // Enabled before the look, so that a write in between is not missed.
            stored.as_mut().enable();
            if self.said().stored() >= items {
                return;
            }
            stored.await;
        }
    }

    pub(crate) fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
