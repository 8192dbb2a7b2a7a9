//! What one attempt has streamed and the store does not hold yet.

use super::outputs::Room;
use everbeat_model::Lease;
use everbeat_model::output::{Item, OutputKind};
use everbeat_store::Piece;
use std::collections::VecDeque;
use std::sync::Arc;

/// So much of one attempt may wait for the store; then the attempt waits.
const MOST_BYTES: usize = 4 << 20;
/// So many items are sent together.
const PIECE_ITEMS: usize = 1000;
/// What an item takes in memory besides its text, about.
const ITEM_BYTES: usize = 64;

/// What one attempt has streamed.
#[derive(Default)]
pub(crate) struct Said {
    /// Not written yet, oldest first.
    items: VecDeque<Item>,
    /// How many are written.
    written: u64,
    bytes: usize,
    /// So many of the first were sent together and may be stored: if they are sent again, then not with others.
    sealed: usize,
    /// Nothing more is taken.
    closed: bool,
    /// What is left goes with the ending.
    handed_over: bool,
    /// The number of the item that gave way to words about it.
    gave_way: Option<u64>,
    room: Option<Arc<Room>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Yes,
    /// The store has too much to take already.
    NoRoom,
    /// Nothing is taken of this attempt any more.
    Closed,
}

impl Said {
    pub(super) fn take(&mut self, item: &Item, room: &Arc<Room>) -> Taken {
        if self.closed {
            return Taken::Closed;
        }
        let bytes = taken_by(item);
        let fits = self.items.is_empty() || self.bytes + bytes <= MOST_BYTES;
        if !fits || !room.take(bytes) {
            return Taken::NoRoom;
        }
        self.room.get_or_insert_with(|| room.clone());
        self.bytes += bytes;
        self.items.push_back(item.clone());
        Taken::Yes
    }

    /// How many items were taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.written + self.items.len() as u64
    }

    /// How many of them the store holds.
    pub(super) fn stored(&self) -> u64 {
        self.written
    }

    /// How much text is not written yet.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes nothing more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Takes nothing more, and leaves what is not written to whoever writes the ending.
    pub(super) fn hand_over(&mut self) {
        self.closed = true;
        self.handed_over = true;
    }

    /// What to send next while the attempt goes on.
    pub(super) fn next_piece(&mut self, lease: &Lease) -> Option<Piece> {
        if self.handed_over { None } else { self.piece(lease) }
    }

    /// What to send next: what was sent before, or as much as goes together.
    pub(super) fn piece(&mut self, lease: &Lease) -> Option<Piece> {
        if self.sealed == 0 {
            self.sealed = self.items.len().min(PIECE_ITEMS);
        }
        let items: Vec<Item> = self.items.iter().take(self.sealed).cloned().collect();
        (!items.is_empty()).then(|| Piece { shown: lease.shown(), after: self.written, items })
    }

    /// The store holds this piece.
    pub(super) fn written(&mut self, piece: &Piece) {
        let through = piece.after + piece.items.len() as u64;
        let mut freed = 0;
        while self.written < through
            && let Some(item) = self.items.pop_front()
        {
            self.written += 1;
            self.sealed = self.sealed.saturating_sub(1);
            freed += taken_by(&item);
        }
        self.free(freed);
    }

    /// The store cannot hold this piece: less of it is sent next, and an item that stands alone gives way to a line in
    /// the log that says so.
    pub(super) fn spoilt(&mut self, piece: &Piece, why: &str) {
        if piece.after != self.written || self.items.is_empty() {
            return;
        }
        if piece.items.len() > 1 {
            self.sealed = self.sealed.min(piece.items.len() / 2).max(1);
            return;
        }
        if self.gave_way == Some(self.written) {
            // Not even those words can be stored: the item is left out.
            return self.written(piece);
        }
        let text = format!("everbeat: an item of {} bytes could not be stored: {why}", self.items[0].text.len());
        let instead = Item { kind: OutputKind::Log, text: text.replace('\0', "").into() };
        self.free(taken_by(&self.items[0]));
        self.bytes += taken_by(&instead);
        if let Some(room) = &self.room {
            room.add(taken_by(&instead));
        }
        self.items[0] = instead;
        self.gave_way = Some(self.written);
    }

    /// Nothing of what is not written counts any more.
    pub(super) fn discard(&mut self) {
        self.closed = true;
        self.items.clear();
        self.sealed = 0;
        self.free(self.bytes);
    }

    fn free(&mut self, bytes: usize) {
        self.bytes -= bytes;
        if let Some(room) = self.room.as_ref().filter(|_| bytes > 0) {
            room.free(bytes);
        }
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        self.free(self.bytes);
    }
}

fn taken_by(item: &Item) -> usize {
    item.text.len() + ITEM_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use everbeat_model::{ReplicaId, RunId, StoreTime, Token};
    use uuid::Uuid;

    fn lease() -> Lease {
        Lease {
            run_id: RunId(Uuid::nil()),
            attempt: 1,
            token: Token(Uuid::nil()),
            replica_id: ReplicaId(Uuid::nil()),
            tenure: 0,
            granted_at: StoreTime(0),
        }
    }

    fn item(text: &str) -> Item {
        Item { kind: OutputKind::Output, text: text.into() }
    }

    fn said(texts: &[&str]) -> (Said, Arc<Room>) {
        let (mut said, room) = (Said::default(), Arc::<Room>::default());
        texts.iter().for_each(|text| assert_eq!(said.take(&item(text), &room), Taken::Yes));
        (said, room)
    }

    fn texts(piece: &Piece) -> (u64, Vec<&str>) {
        (piece.after, piece.items.iter().map(|item| &*item.text).collect())
    }

    #[test]
    fn what_was_sent_together_is_sent_again_without_others() {
        let (mut said, room) = said(&["a", "b"]);
        let first = said.piece(&lease()).expect("a piece");
        said.take(&item("c"), &room);
        let again = said.piece(&lease()).expect("a piece");
        assert_eq!((texts(&first), texts(&again)), ((0, vec!["a", "b"]), (0, vec!["a", "b"])));
        said.written(&again);
        said.written(&first);
        assert_eq!(texts(&said.piece(&lease()).expect("the rest")), (2, vec!["c"]), "a late answer changes nothing");
    }

    #[test]
    fn an_item_that_cannot_be_stored_is_found_and_gives_way_to_words() {
        let (mut said, _room) = said(&["a", "bad", "c"]);
        let mut kept = Vec::new();
        while let Some(piece) = said.piece(&lease()) {
            if piece.items.iter().any(|item| &*item.text == "bad") {
                said.spoilt(&piece, "too bad");
            } else {
                kept.extend(piece.items.iter().map(|item| item.text.to_string()));
                said.written(&piece);
            }
        }
        assert_eq!(kept, ["a", "everbeat: an item of 3 bytes could not be stored: too bad", "c"]);
        let (mut said, _room) = self::said(&["a", "b"]);
        while let Some(piece) = said.piece(&lease()) {
            said.spoilt(&piece, "it breaks");
        }
        assert_eq!(said.bytes(), 0, "what breaks on words too is left out");
    }

    #[test]
    fn memory_is_bounded_for_one_and_in_all_and_given_back() {
        let (mut said, room) = said(&[]);
        let large = item(&"x".repeat(1 << 20));
        let taken = (0..100).take_while(|_| said.take(&large, &room) == Taken::Yes).count();
        assert_eq!(taken, 3, "of one attempt");
        let mut others: Vec<Said> = Vec::new();
        let mut all = taken;
        loop {
            let mut other = Said::default();
            if other.take(&large, &room) != Taken::Yes {
                break;
            }
            others.push(other);
            all += 1;
        }
        assert_eq!(all, 63, "of all");
        others.clear();
        said.discard();
        assert_eq!(said.take(&large, &room), Taken::Closed);
        assert_eq!(self::said(&["a"]).0.take(&large, &room), Taken::Yes, "room that is given back is there");
    }

    #[test]
    fn nothing_is_sent_apart_from_an_ending_that_takes_the_rest_along() {
        let (mut said, room) = said(&["a"]);
        said.hand_over();
        assert_eq!(said.take(&item("b"), &room), Taken::Closed);
        assert!(said.next_piece(&lease()).is_none());
        assert!(said.piece(&lease()).is_some());
    }
}
