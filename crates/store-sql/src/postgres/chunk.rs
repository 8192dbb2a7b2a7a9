//! Batches in pieces that one statement takes.

/// Items in one statement, and their text: so that no message to the server grows without limit.
const STATEMENT_ROWS: usize = 5_000;
const STATEMENT_BYTES: usize = 16 << 20;

/// The items in pieces that one statement takes, in order. An item that is too large by itself goes alone.
pub(super) fn chunks<T>(items: &[T], size: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, item) in items.iter().enumerate() {
        let size = size(item);
        if index > start && (index - start == STATEMENT_ROWS || bytes + size > STATEMENT_BYTES) {
            chunks.push(&items[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    if start < items.len() {
        chunks.push(&items[start..]);
    }
    chunks
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
    }
}
