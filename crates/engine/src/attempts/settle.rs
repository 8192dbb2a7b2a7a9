//! Ends attempts, in batches, each under its own lease. Whatever is waiting goes out whenever the
//! writer is free. One ending that cannot be stored holds up no other.

use super::conclusion::{Conclusion, Draft};
use super::held::{self, Hold, SMALL_BYTES};
use super::work::Work;
use super::write;
use crate::replica::{Life, Phase, Turn};
use everbeat_model::{BootInstant, Ending, Hole};
use everbeat_store::{Class, Error as StoreError, Obstacle};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

const BATCH: usize = 1000;
/// So much text in one write, besides the first item.
const BATCH_BYTES: usize = 8 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The ending of an attempt, on its way to the store.
pub(crate) struct Unstored {
    pub(crate) work: Arc<Work>,
    pub(crate) ending: Ending,
    pub(crate) draft: Option<Draft>,
    /// Somebody asked to cancel, as the store knows.
    pub(crate) cancel_asked: bool,
    /// The last write of this ending was not answered and may have happened: it is looked up before the next.
    pub(crate) unsure: bool,
    /// Of an ending that could not be stored although it stood alone.
    pub(crate) hold: Option<Hold>,
}

impl Unstored {
    pub(crate) fn new(work: Arc<Work>, conclusion: Conclusion) -> Unstored {
        let Conclusion { ending, draft } = conclusion;
        Unstored { work, ending, draft, cancel_asked: false, unsure: false, hold: None }
    }

    /// How much text is to be stored: the ending, and what its attempt streamed before.
    pub(crate) fn bytes(&self) -> usize {
        self.ending.bytes() + self.work.said().bytes()
    }

    /// Leaves out what the attempt streamed and the store does not hold. False if there is nothing.
    pub(crate) fn leave_words(&self) -> bool {
        let mut said = self.work.said();
        let left = said.bytes() > 0;
        said.discard();
        left
    }
}

pub(crate) async fn run(life: Arc<Life>, mut endings: mpsc::UnboundedReceiver<Unstored>) {
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
    waiting: Vec<Unstored>,
    /// To be written at their own times.
    held: Vec<Unstored>,
    /// When an ending was stored last.
    stored_at: BootInstant,
}

impl Settler {
    /// Waits until there is something to write. False when nothing will ever come.
    async fn receive(&mut self, endings: &mut mpsc::UnboundedReceiver<Unstored>) -> bool {
        if !self.waiting.is_empty() {
            return true;
        }
        let env = &self.life.core.env;
        let idle = env.boot() + self.life.core.settings.idle_limit();
        let due = self.held.iter().filter_map(|unstored| unstored.hold.as_ref()).map(|hold| hold.next).min();
        let look_again = env.sleep_until(due.map_or(idle, |due| due.min(idle)));
        tokio::select! {
            biased;
            received = endings.recv_many(&mut self.waiting, BATCH) => received > 0,
            () = look_again => true,
        }
    }

    fn take_due(&mut self) -> Vec<Unstored> {
        let now = self.life.core.env.boot();
        // Who leaves has no time for pauses.
        let leaves = self.life.phase() == Phase::Draining;
        let due = |unstored: &mut Unstored| leaves || unstored.hold.as_ref().is_none_or(|hold| hold.next <= now);
        self.held.extract_if(.., due).collect()
    }

    /// Writes what can be written, the small ones first. A batch that fails for what is in it, or for its size, is
    /// halved until the bad one stands alone; that one is held. Fails when the store cannot be written to at all:
    /// then the rest waits.
    async fn pass(&mut self, mut endings: Vec<Unstored>) -> Result<(), StoreError> {
        let hole = self.life.core.settings.hole.is(Hole::WholeBatchWaits);
        endings.sort_by_key(Unstored::bytes);
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
            let Some(unstored) = piece.pop() else { continue };
            if error.class() == Class::Bug {
                open.extend(write::spoil(&self.life, unstored, &error).map(|unstored| vec![unstored]));
                continue;
            }
            if unstored.bytes() <= SMALL_BYTES {
                self.troubled(&error);
            }
            self.hold(unstored, &error, true);
            if matches!(error.cause(), Some(Obstacle::DiskFull | Obstacle::NoMemory)) {
                // The rest is larger still.
                open.drain(..).flatten().for_each(|unstored| self.hold(unstored, &error, false));
            }
        }
        Ok(())
    }

    fn hold(&mut self, unstored: Unstored, error: &StoreError, tested: bool) {
        let held = held::hold(&self.life, unstored, error, self.stored_at, tested);
        self.held.push(held);
    }

    /// Writes a piece; what must be decided again stays in it, and all of it after an error.
    async fn write(&mut self, piece: &mut Vec<Unstored>) -> Result<(), StoreError> {
        if piece.iter().any(|unstored| unstored.unsure) {
            let before = piece.len();
            write::forget_settled(&self.life, piece).await.map_err(away)?;
            piece.iter_mut().for_each(|unstored| unstored.unsure = false);
            if piece.len() < before {
                self.stored();
            }
        }
        if piece.is_empty() {
            return Ok(());
        }
        let written = write::endings(&self.life, piece).await;
        match &written {
            Ok(()) => self.stored(),
            Err(_) => piece.iter_mut().for_each(|unstored| unstored.unsure = true),
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
        let oldest = self.held.iter().filter_map(|unstored| unstored.hold.as_ref()).map(|hold| hold.since).min();
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
fn in_pieces(endings: Vec<Unstored>) -> Vec<Vec<Unstored>> {
    let mut pieces: Vec<Vec<Unstored>> = Vec::new();
    let mut room = 0;
    for unstored in endings {
        let bytes = unstored.bytes();
        match pieces.last_mut() {
            Some(piece) if bytes <= room && piece.len() < BATCH => piece.push(unstored),
            _ => {
                pieces.push(vec![unstored]);
                room = BATCH_BYTES;
            }
        }
        room = room.saturating_sub(bytes);
    }
    pieces
}
