//! The rows of executions that begin or have changed.

use super::Decided;
use crate::cells::stored;
use crate::postgres::arrays::{arrays, insert};
use everbeat_store::recorded;
use std::sync::LazyLock;
use uuid::Uuid;

arrays! {
    Executions of Execution<'a> {
        id: Uuid as "uuid",
        graph: &'a str as "text",
        definition: i64 as "bigint",
        seen: i64 as "bigint",
        singleton: bool as "boolean",
        revision: i64 as "bigint",
        archived_at: Option<i64> as "bigint",
        stamp: i64 as "bigint",
        place: i64 as "bigint",
        created_at: i64 as "bigint",
        updated_at: i64 as "bigint",
    }
}

/// An execution that is there already, or another one of a singleton graph, keeps a new one out.
pub(super) static BEGIN: LazyLock<String> =
    LazyLock::new(|| insert("execution", Executions::COLUMNS) + " on conflict do nothing returning id");

/// Changes executions by key, without a join that could be planned badly.
pub(super) static CHANGE: LazyLock<String> = LazyLock::new(|| {
    insert("execution", Executions::COLUMNS)
        + " on conflict (id) do update set definition = excluded.definition, seen = excluded.seen, \
             revision = excluded.revision, archived_at = excluded.archived_at, stamp = excluded.stamp, \
             place = excluded.place, updated_at = excluded.updated_at"
});

pub(super) fn rows(piece: &[Decided]) -> Executions<'_> {
    let mut rows = Executions::default();
    for Decided { read, plan, now, graph } in piece {
        rows.push(Execution {
            id: read.id.0,
            graph: &read.graph,
            definition: stored(read.course.definition),
            seen: stored(read.course.seen),
            singleton: read.singleton,
            revision: stored(plan.changes.execution.revision),
            archived_at: plan.changes.execution.archived_at.map(|at| at.0),
            stamp: stored(read.stamp + 1),
            place: stored(read.place + recorded(graph, plan).count() as u64),
            created_at: read.created_at.0,
            updated_at: now.0,
        });
    }
    rows
}
