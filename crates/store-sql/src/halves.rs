//! Batches with an item that cannot be stored. Halving finds that item, so that it spoils no other; both databases use
//! it wherever they refuse one item of a batch.

/// What is yet to be written, in pieces.
pub(crate) struct Halves<T> {
    open: Vec<Vec<T>>,
}

impl<T> Halves<T> {
    pub(crate) fn of(items: Vec<T>) -> Halves<T> {
        let mut halves = Halves { open: Vec::new() };
        halves.add(items);
        halves
    }

    /// The next piece to write.
    pub(crate) fn next(&mut self) -> Option<Vec<T>> {
        self.open.pop()
    }

    /// Takes back a piece that cannot be stored as a whole. Answers the item that stands alone in it: that one cannot be
    /// stored.
    pub(crate) fn halve(&mut self, mut piece: Vec<T>) -> Option<T> {
        if piece.len() <= 1 {
            return piece.pop();
        }
        let second = piece.split_off(piece.len() / 2);
        self.open.extend([second, piece]);
        None
    }

    /// Adds a piece, to be written next.
    pub(crate) fn add(&mut self, piece: Vec<T>) {
        if !piece.is_empty() {
            self.open.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_stored_is_found_and_all_else_is_written_in_order() {
        let check = |count: u32, bad: &[u32]| {
            let mut halves = Halves::of((0..count).collect());
            let (mut written, mut refused) = (Vec::new(), Vec::new());
            while let Some(piece) = halves.next() {
                if piece.iter().any(|item| bad.contains(item)) {
                    refused.extend(halves.halve(piece));
                } else {
                    written.extend(piece);
                }
            }
            assert_eq!(refused, bad);
            assert_eq!(written, (0..count).filter(|item| !bad.contains(item)).collect::<Vec<_>>());
        };
        check(0, &[]);
        check(1, &[0]);
        check(7, &[]);
        check(7, &[3]);
        check(8, &[0, 6, 7]);
    }
}
