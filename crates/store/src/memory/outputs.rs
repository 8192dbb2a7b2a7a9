//! What attempts stream.

use super::Memory;
use crate::{Keep, OutputFilter, OutputPage, Outputs, Piece, Result, Signed, Streamed};
use async_trait::async_trait;
use everbeat_model::{ReplicaId, StoreTime, Token};
use std::collections::VecDeque;

/// What a run has streamed.
#[derive(Clone, Debug, Default)]
pub struct OutputRow {
    pub items: VecDeque<Streamed>,
    /// The number of the newest item ever.
    pub last: u64,
    bytes: u64,
    /// Who streamed last, under which lease, and how many items so far.
    said: Option<(Token, ReplicaId, u64)>,
}

#[async_trait]
impl Outputs for Memory {
    async fn append(&self, pieces: Vec<Piece>, keep: Keep) -> Result<Vec<Signed>> {
        let now = self.now();
        let mut state = self.lock();
        let mut answers = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let run = piece.shown.run_id;
            let Some(held) = state.leases.get_mut(&run).filter(|held| held.lease.admits(&piece.shown, self.hole))
            else {
                answers.push(Signed::Fenced);
                continue;
            };
            held.last_heartbeat_at = now;
            answers.push(Signed::Accepted { cancel_asked: held.cancel_requested_at.is_some() });
            let attempt = held.lease.attempt;
            if !piece.items.is_empty() {
                state.outputs.entry(run).or_default().append(piece, attempt, now, keep);
            }
        }
        state.version += 1;
        Ok(answers)
    }

    async fn output(&self, filter: OutputFilter) -> Result<OutputPage> {
        let state = self.lock();
        Ok(state.outputs.get(&filter.run).map_or_else(OutputPage::empty, |row| row.page(&filter)))
    }
}

impl OutputRow {
    fn append(&mut self, piece: Piece, attempt: u32, at: StoreTime, keep: Keep) {
        let by = (piece.shown.token, piece.shown.replica_id);
        let said = self.said.filter(|(token, owner, _)| (*token, *owner) == by).map_or(0, |(.., said)| said);
        if piece.after < said {
            return;
        }
        self.said = Some((by.0, by.1, piece.after + piece.items.len() as u64));
        self.bytes += piece.bytes() as u64;
        for item in piece.items {
            self.last += 1;
            self.items.push_back(Streamed { seq: self.last, attempt, at, kind: item.kind, text: item.text });
        }
        if !keep.holds(self.bytes, self.items.len() as u64) {
            self.shrink(keep.left());
        }
    }

    fn shrink(&mut self, to: Keep) {
        while self.items.len() > 1
            && !to.holds(self.bytes, self.items.len() as u64)
            && let Some(oldest) = self.items.pop_front()
        {
            self.bytes -= oldest.text.len() as u64;
        }
    }

    fn page(&self, filter: &OutputFilter) -> OutputPage {
        let wanted = |item: &&Streamed| item.seq > filter.after && filter.kind.is_none_or(|kind| item.kind == kind);
        let mut wanted = self.items.iter().filter(wanted).take(filter.limit);
        let (mut items, mut bytes) = (Vec::new(), 0);
        while bytes < filter.bytes
            && let Some(item) = wanted.next()
        {
            bytes += item.text.len();
            items.push(item.clone());
        }
        OutputPage { items, first: self.items.front().map_or(self.last + 1, |oldest| oldest.seq), last: self.last }
    }
}
