//! What each changed value is in the end.

use super::{Decided, metadata};
use crate::cells::{ValueCells, stored};
use crate::postgres::arrays::{arrays, insert};
use everbeat_model::graph::Change;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use uuid::Uuid;

arrays! {
    Values of Value<'a> {
        execution_id: Uuid as "uuid",
        node: &'a str as "text",
        value: Option<String> as "text",
        revision: i64 as "bigint",
        set_at: i64 as "bigint",
        metadata: Option<String> as "text",
        changes: i64 as "bigint",
        first_set_at: Option<i64> as "bigint",
        class: Option<i16> as "smallint",
        number: Option<f64> as "float8",
        text: Option<String> as "text",
        folded: Option<String> as "text",
    }
}

pub(super) static WRITE: LazyLock<String> = LazyLock::new(|| {
    insert("value as v", Values::COLUMNS)
        + " on conflict (execution_id, node) do update set value = excluded.value, revision = excluded.revision, \
           set_at = excluded.set_at, metadata = excluded.metadata, changes = excluded.changes, \
           first_set_at = coalesce(v.first_set_at, excluded.first_set_at), class = excluded.class, \
           number = excluded.number, text = excluded.text, folded = excluded.folded"
});

pub(super) fn rows(piece: &[Decided]) -> Values<'_> {
    let mut values = Values::default();
    for decided in piece {
        let mut nodes: BTreeMap<&str, (u64, bool, &Change)> = BTreeMap::new();
        for change in &decided.plan.changes.changed {
            let before = decided.read.changes.get(&change.node).copied().unwrap_or(0);
            let (changes, set, last) = nodes.entry(&change.node).or_insert((before, false, change));
            *changes += 1;
            *set |= change.cell.is_some();
            *last = change;
        }
        for (node, (changes, set, last)) in nodes {
            let cell = last.cell.as_ref();
            let cells = ValueCells::of(cell.map(|cell| &cell.value));
            values.push(Value {
                execution_id: decided.read.id.0,
                node,
                value: cells.value,
                revision: stored(cell.map_or(last.revision, |cell| cell.revision)),
                set_at: cell.map_or(decided.now, |cell| cell.set_at).0,
                metadata: metadata(last),
                changes: stored(changes),
                first_set_at: set.then_some(decided.now.0),
                class: cells.class,
                number: cells.number,
                text: cells.text,
                folded: cells.folded,
            });
        }
    }
    values
}
