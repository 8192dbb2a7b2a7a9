//! What attempts streamed, as the store holds it: of each a beginning without a gap, nothing by who did not hold the
//! lease, and all of what a success had streamed.

use crate::handler::Product;
use crate::shortage::Shortage;
use crate::truth::Truth;
use everbeat_model::output::OutputKind;
use everbeat_model::{RunId, RunState};
use everbeat_store::memory::State;
use everbeat_store::{Piece, Streamed};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What the handler streams: who says it, and how many items it said before.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Word {
    pub(crate) nonce: u64,
    pub(crate) nth: u64,
}

/// What really was streamed under a nonce.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speech {
    /// Items given to the engine.
    pub(crate) given: u64,
    /// Of these, those that it took without a word of stopping.
    pub(crate) taken: u64,
    /// A failover, or a store that cannot hold some of it, may have left gaps.
    pub(crate) broken: bool,
}

/// What the checker knows of it from its last look.
#[derive(Default)]
pub(crate) struct OutputChecker {
    /// The newest item of each run.
    last: BTreeMap<RunId, u64>,
    /// How many items of each speaker are stored.
    heard: BTreeMap<u64, u64>,
    finished: BTreeSet<RunId>,
}

impl OutputChecker {
    /// `held`: which attempt held the lease of a run at the last look.
    pub(crate) fn look(&mut self, state: &State, truth: &mut Truth, held: impl Fn(RunId) -> Option<u32>) {
        for (run, row) in &state.outputs {
            let known = self.last.insert(*run, row.last).unwrap_or(0);
            if known == row.last {
                continue;
            }
            let now = state.leases.get(run).map(|held| held.lease.attempt);
            for item in row.items.iter().rev().take_while(|item| item.seq > known).collect::<Vec<_>>().into_iter().rev()
            {
                if ![now, held(*run)].contains(&Some(item.attempt)) {
                    let name = truth.name(*run);
                    truth.violate("G1", format!("{name} attempt {} streams without its lease", item.attempt));
                }
                self.said(truth, *run, item);
            }
        }
        self.last.retain(|run, _| state.outputs.contains_key(run));
    }

    fn said(&mut self, truth: &mut Truth, run: RunId, item: &Streamed) {
        // What cannot be stored gives way to words about it.
        let word: Option<Word> = serde_json::from_str(&item.text).ok().filter(|_| item.kind == OutputKind::Output);
        let Some(word) = word else { return };
        let heard = self.heard.entry(word.nonce).or_default();
        let expected = *heard;
        *heard = word.nth + 1;
        let speech = truth.said.get(&word.nonce).copied().unwrap_or_default();
        if speech.broken {
            return;
        }
        if word.nth != expected || word.nth >= speech.given {
            let (name, given) = (truth.name(run), speech.given);
            let detail = format!("item {} of attempt {} follows {expected}, of {given}", word.nth, item.attempt);
            truth.violate("output", format!("{name}: {detail}"));
        }
    }

    /// Whoever succeeded has all stored that it streamed.
    pub(crate) fn finished(&mut self, state: &State, truth: &mut Truth) {
        for (run, done) in state.done.iter().filter(|(_, done)| done.state == RunState::Succeeded) {
            if !self.finished.insert(*run) {
                continue;
            }
            let Some(product) = done.result.as_ref().and_then(|result| result.read::<Product>().ok()) else { continue };
            let speech = truth.said.get(&product.nonce).copied().unwrap_or_default();
            let heard = self.heard.get(&product.nonce).copied().unwrap_or(0);
            if heard < speech.taken && !speech.broken {
                let (name, taken) = (truth.name(*run), speech.taken);
                truth.violate("output", format!("{name} succeeded, and {heard} of {taken} items are stored"));
            }
        }
        self.finished.retain(|run| state.done.contains_key(run));
    }

    /// Starts from what a failover left: what it took may be missing in the middle.
    pub(crate) fn rebased(state: &State, truth: &mut Truth) -> OutputChecker {
        truth.said.values_mut().for_each(|speech| speech.broken = true);
        OutputChecker {
            last: state.outputs.iter().map(|(run, row)| (*run, row.last)).collect(),
            heard: BTreeMap::new(),
            finished: state.done.keys().copied().collect(),
        }
    }
}

impl Truth {
    /// The store could not take these pieces: who has too much for it may have to leave something out.
    pub(crate) fn unstored(&mut self, pieces: &[Piece]) {
        for item in pieces.iter().filter(|piece| Shortage::large(piece.shown.run_id)).flat_map(|piece| &piece.items) {
            if let Ok(Word { nonce, .. }) = serde_json::from_str(&item.text) {
                self.said.entry(nonce).or_default().broken = true;
            }
        }
    }
}
