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

/// The lanes that something stands in, for a recursive statement: walked through the key of `ready`, without
/// reading what stands in them.
macro_rules! lanes {
    () => {
        "lane as (\
           (select queue, task from ready order by queue, task limit 1) \
           union all \
           select n.queue, n.task from lane l cross join lateral (\
             select r.queue, r.task from ready r where (r.queue, r.task) > (l.queue, l.task) \
             order by r.queue, r.task limit 1) n)"
    };
}

pub(super) use {append_event, lanes, now};
