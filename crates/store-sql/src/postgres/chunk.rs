//! Batches in pieces that one statement takes.

/// Items in one statement, and their text: so that no message to the server grows without limit.
const STATEMENT_ROWS: usize = 5_000;
const STATEMENT_BYTES: usize = 16 << 20;

/// The items in pieces that one statement takes, in order. An item that is too large by itself goes alone.
pub(super) fn chunks<T>(items: &[T], size: impl Fn(&T) -> usize) -> Vec<&[T]> {
    pieces(items, |item| (1, size(item)))
}

/// The same for items of several rows each: `size` is their rows and their bytes.
pub(super) fn pieces<T>(items: &[T], size: impl Fn(&T) -> (usize, usize)) -> Vec<&[T]> {
    let mut pieces = Vec::new();
    let (mut start, mut rows, mut bytes) = (0, 0, 0);
    for (index, item) in items.iter().enumerate() {
        let (more_rows, more_bytes) = size(item);
        if index > start && (rows + more_rows > STATEMENT_ROWS || bytes + more_bytes > STATEMENT_BYTES) {
            pieces.push(&items[start..index]);
            (start, rows, bytes) = (index, 0, 0);
        }
        rows += more_rows;
        bytes += more_bytes;
    }
    if start < items.len() {
        pieces.push(&items[start..]);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_bounded_in_rows_and_in_bytes() {
        let check = |sizes: &[usize], expected: &[usize]| {
            let chunks = chunks(sizes, |size| *size);
            assert_eq!(chunks.concat(), sizes, "nothing is left out");
            assert_eq!(chunks.iter().map(|chunk| chunk.len()).collect::<Vec<_>>(), expected);
        };
        check(&[], &[]);
        check(&[0; 2 * STATEMENT_ROWS + 1], &[STATEMENT_ROWS, STATEMENT_ROWS, 1]);
        check(&[STATEMENT_BYTES / 2; 5], &[2, 2, 1]);
        check(&[1, STATEMENT_BYTES * 3, 1], &[1, 1, 1]);
        let rows = [STATEMENT_ROWS - 1, 1, 1, STATEMENT_ROWS * 2, 0];
        let pieces: Vec<usize> = pieces(&rows, |rows| (*rows, 0)).iter().map(|piece| piece.len()).collect();
        assert_eq!(pieces, [2, 1, 1, 1]);
    }
}
