//! Computations that are another than before, and those that are forgotten.

use super::Decided;
use crate::cells::ComputationCells;
use crate::encode::int;
use crate::postgres::arrays::{Statement, array, arrays, insert, unnest};
use std::sync::LazyLock;
use uuid::Uuid;

arrays! {
    Kept of Keep<'a> {
        execution_id: Uuid as "uuid",
        node: &'a str as "text",
        status: String as "text",
        run_id: Option<Uuid> as "uuid",
        computed_with: String as "text",
        iterations: i32 as "int",
        state: Option<String> as "text",
        error: Option<String> as "text",
    }
}

static KEEP: LazyLock<String> = LazyLock::new(|| {
    insert("computation as c", Kept::COLUMNS)
        + " on conflict (execution_id, node) do update set status = excluded.status, run_id = excluded.run_id, \
             computed_with = excluded.computed_with, iterations = excluded.iterations, state = excluded.state, \
             error = excluded.error"
});

arrays! {
    Forgotten of Forget<'a> {
        execution_id: Uuid as "uuid",
        node: &'a str as "text",
    }
}

static FORGET: LazyLock<String> = LazyLock::new(|| {
    let columns = Forgotten::COLUMNS;
    format!(
        "delete from computation c where c.execution_id = any({}) \
           and ((c.execution_id, c.node) in (select * from {}) or false)",
        array(columns, "execution_id"),
        unnest(columns)
    )
});

#[derive(Default)]
pub(super) struct Computations<'a> {
    kept: Kept<'a>,
    forgotten: Forgotten<'a>,
}

impl<'a> Computations<'a> {
    pub(super) fn of(piece: &'a [Decided]) -> Computations<'a> {
        let mut computations = Computations::default();
        for Decided { read, plan, .. } in piece {
            for node in &plan.changes.computations {
                computations.push(read.id.0, node, plan.changes.execution.computation(node).map(ComputationCells::of));
            }
        }
        computations
    }

    fn push(&mut self, execution_id: Uuid, node: &'a str, cells: Option<ComputationCells>) {
        let Some(cells) = cells else { return self.forgotten.push(Forget { execution_id, node }) };
        self.kept.push(Keep {
            execution_id,
            node,
            status: cells.status,
            run_id: cells.run_id,
            computed_with: cells.computed_with,
            iterations: int(cells.iterations),
            state: cells.state,
            error: cells.error,
        });
    }

    pub(super) fn statements(&self) -> impl Iterator<Item = Statement<'_>> {
        [self.kept.statement(&KEEP), self.forgotten.statement(&FORGET)].into_iter().flatten()
    }
}
