//! Pieces of statements.

/// The time of a statement, read once. `clock_timestamp()`, since `now()` stands still in a
/// transaction.
macro_rules! now {
    () => {
        "t as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now)"
    };
}

/// The head of a statement that appends a batch of events: `at` and `body` follow.
macro_rules! append_event {
    () => {
        "insert into event (batch, at, body) select next_event_batch(), "
    };
}

pub(super) use {append_event, now};
