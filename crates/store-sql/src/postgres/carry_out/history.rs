//! The history of values: every change, what a silent change replaced, and where a node has too many.

use super::{Decided, metadata};
use crate::cells::stored;
use crate::encode::limit;
use crate::postgres::arrays::{Statement, arrays, given, insert, names, unnest};
use everbeat_model::Json;
use everbeat_model::graph::Change;
use everbeat_store::{cuts, recorded};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use uuid::Uuid;

arrays! {
    Entries of Entry<'a> {
        execution_id: Uuid as "uuid",
        place: i64 as "bigint",
        node: &'a str as "text",
        value: Option<String> as "text",
        revision: i64 as "bigint",
        at: i64 as "bigint",
        metadata: Option<String> as "text",
        run_id: Option<Uuid> as "uuid",
    }
}

static RECORD: LazyLock<String> = LazyLock::new(|| insert("value_history", Entries::COLUMNS));

arrays! {
    Replacements of Replacement<'a> {
        execution_id: Uuid as "uuid",
        node: &'a str as "text",
        revision: i64 as "bigint",
        value: String as "text",
    }
}

/// What a silent change replaced is gone from the history too.
static REPLACE: LazyLock<String> = LazyLock::new(|| {
    let columns = Replacements::COLUMNS;
    format!(
        "update value_history h set value = g.value, metadata = null from {} as g({}) \
         where h.execution_id = g.execution_id and h.node = g.node and h.revision = g.revision",
        unnest(columns),
        names(columns)
    )
});

arrays! {
    Cuts of Cut<'a> {
        execution_id: Uuid as "uuid",
        node: &'a str as "text",
        place: i64 as "bigint",
        keep: i64 as "bigint",
    }
}

/// Cuts off what is older than the last `keep` entries of each node up to a place.
static CUT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with given as materialized ({}), \
         oldest as materialized (select g.execution_id, g.node, o.place from given g cross join lateral (\
           select h.place from value_history h where h.execution_id = g.execution_id and h.node = g.node \
             and h.place <= g.place order by h.place desc offset g.keep - 1 limit 1) o) \
         delete from value_history h where h.ctid = any(array(\
           select x.at from oldest o cross join lateral (select h.ctid as at from value_history h \
             where h.execution_id = o.execution_id and h.node = o.node and h.place < o.place offset 0) x))",
        given(Cuts::COLUMNS)
    )
});

#[derive(Default)]
pub(super) struct History<'a> {
    entries: Entries<'a>,
    replacements: Replacements<'a>,
    cuts: Cuts<'a>,
}

impl<'a> History<'a> {
    pub(super) fn of(piece: &'a [Decided]) -> History<'a> {
        let mut history = History::default();
        for decided in piece {
            let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
            for (place, change) in (decided.read.place + 1..).zip(recorded(&decided.graph, &decided.plan)) {
                let before = decided.read.changes.get(&change.node).copied().unwrap_or(0);
                let count = counts.entry(&change.node).or_insert(before);
                *count += 1;
                history.push(decided, place, change, *count);
            }
        }
        history
    }

    /// What is replaced was written before, and what is cut may have been written just now.
    pub(super) fn statements(&self) -> impl Iterator<Item = Statement<'_>> {
        [self.replacements.statement(&REPLACE), self.entries.statement(&RECORD), self.cuts.statement(&CUT)]
            .into_iter()
            .flatten()
    }

    fn push(&mut self, decided: &Decided, place: u64, change: &'a Change, changes: u64) {
        let (execution_id, node) = (decided.read.id.0, change.node.as_str());
        if let Some(cell) = change.cell.as_ref().filter(|_| change.silent) {
            self.replace(execution_id, node, stored(cell.revision), Json::of(&cell.value).as_str());
        }
        self.entries.push(Entry {
            execution_id,
            place: stored(place),
            node,
            value: change.cell.as_ref().map(|cell| Json::of(&cell.value).as_str().to_string()),
            revision: stored(change.revision),
            at: decided.now.0,
            metadata: metadata(change),
            run_id: change.run.map(|run| run.0),
        });
        let keep = decided.graph.keep(node);
        if cuts(changes, keep) {
            self.cuts.push(Cut { execution_id, node, place: stored(place), keep: limit(keep.max(1)) });
        }
    }

    /// Among what is written now, and among what was written before.
    fn replace(&mut self, execution_id: Uuid, node: &'a str, revision: i64, value: &str) {
        let entries = &mut self.entries;
        for at in 0..entries.node.len() {
            if (entries.execution_id[at], entries.node[at], entries.revision[at]) == (execution_id, node, revision) {
                entries.value[at] = Some(value.to_string());
                entries.metadata[at] = None;
            }
        }
        let before = &mut self.replacements;
        let same = |at: &usize| {
            (before.execution_id[*at], before.node[*at], before.revision[*at]) == (execution_id, node, revision)
        };
        match (0..before.node.len()).find(same) {
            // A row is updated once by a statement: the last one counts.
            Some(at) => before.value[at] = value.to_string(),
            None => before.push(Replacement { execution_id, node, revision, value: value.to_string() }),
        }
    }
}
