use crate::{Result, Signed};
use async_trait::async_trait;
use everbeat_model::lease::Shown;
use everbeat_model::output::{Item, OutputKind};
use everbeat_model::{RunId, StoreTime};
use std::sync::Arc;

/// What attempts stream while they go on: pieces of results and lines of logs. A run keeps the newest of it, and loses
/// it when it is forgotten.
#[async_trait]
pub trait Outputs {
    /// Appends pieces, each wholly or not at all, and only under the lease it shows. Answers in the order given. An
    /// accepted piece is a sign of life, like a sign. A piece that begins before the end of what the same owner of the
    /// same lease has appended was appended before: it is accepted, and adds nothing. So a piece whose answer was lost
    /// may be sent again, as it was or in parts.
    ///
    /// When a run has more than `keep` says, its oldest items go, and a bit more than that: the next ones have room.
    async fn append(&self, pieces: Vec<Piece>, keep: Keep) -> Result<Vec<Signed>>;

    /// What a run has streamed, oldest first. An unknown run has nothing.
    async fn output(&self, filter: OutputFilter) -> Result<OutputPage>;
}

/// What one attempt streamed in a row.
#[derive(Clone, Debug)]
pub struct Piece {
    pub shown: Shown,
    /// How many items the owner of this lease has streamed before.
    pub after: u64,
    pub items: Vec<Item>,
}

impl Piece {
    /// How much text it is.
    pub fn bytes(&self) -> usize {
        self.items.iter().map(|item| item.text.len()).sum()
    }
}

/// How much of what a run streamed is kept. The newest item always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    pub bytes: u64,
    pub items: u64,
}

impl Keep {
    /// What is left when the bound was exceeded. So what goes is paid for once in many appends.
    pub fn left(self) -> Keep {
        Keep { bytes: self.bytes - self.bytes / 8, items: self.items - self.items / 8 }
    }

    pub fn holds(self, bytes: u64, items: u64) -> bool {
        bytes <= self.bytes && items <= self.items
    }
}

#[derive(Clone, Copy, Debug)]
pub struct OutputFilter {
    pub run: RunId,
    /// Of this kind only.
    pub kind: Option<OutputKind>,
    /// Only above this number.
    pub after: u64,
    pub limit: usize,
    /// A page ends with the item by which it has as many bytes.
    pub bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPage {
    pub items: Vec<Streamed>,
    /// The number of the oldest item that is kept, of whatever kind; one above `last` if none is.
    pub first: u64,
    /// The number of the newest item that the run ever streamed, of whatever kind; 0 if there is none.
    pub last: u64,
}

impl OutputPage {
    /// Of a run that has streamed nothing.
    pub fn empty() -> OutputPage {
        OutputPage { items: Vec::new(), first: 1, last: 0 }
    }
}

/// One item as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streamed {
    /// Rises within the run, across attempts and kinds, without a gap.
    pub seq: u64,
    pub attempt: u32,
    /// When it was stored.
    pub at: StoreTime,
    pub kind: OutputKind,
    pub text: Arc<str>,
}

/// Runs that have streamed more items than this are forgotten in smaller batches, so that no batch holds up other writes
/// for long.
pub const FORGET_ITEMS: u64 = 100_000;
