//! Writes what was decided about an execution, all but its own row.

use super::enqueue::Inserts;
use super::fault::Outcome;
use super::writer::Tx;
use super::{agenda, cancel};
use crate::cells::{ComputationCells, ValueCells, number, stored};
use crate::encode::limit;
use everbeat_model::event::{EventKind, line};
use everbeat_model::graph::{Change, Changes, Graph, Plan};
use everbeat_model::{ExecutionId, Json};
use everbeat_store::{Cancelled, cuts, superseded};
use rusqlite::params;

/// Answers with the place of the last entry in its history.
pub(super) fn carry_out(
    tx: &Tx<'_>,
    id: ExecutionId,
    graph: &Graph,
    place: u64,
    plan: &Plan,
    lines: &mut Vec<String>,
) -> Outcome<u64> {
    let changes = &plan.changes;
    if let Some(due) = changes.next_look() {
        agenda::note(tx, id, due)?;
    }
    if !plan.runs.is_empty() {
        let mut inserts = Inserts::prepare(tx)?;
        for run in &plan.runs {
            inserts.add(tx, run)?;
        }
    }
    stop(tx, changes, lines)?;
    let mut place = place;
    for change in &changes.changed {
        let keep = graph.keep(&change.node);
        place += u64::from(keep > 0);
        let latest = write_value(tx, id, change, (keep > 0).then_some(place))?;
        if keep > 0 && cuts(latest, keep) {
            cut(tx, id, &change.node, keep)?;
        }
    }
    write_computations(tx, id, changes)?;
    Ok(place)
}

/// Stops runs. Nobody looks for their ends any more, so no end is noted.
fn stop(tx: &Tx<'_>, changes: &Changes, lines: &mut Vec<String>) -> Outcome<()> {
    for run in &changes.stop {
        let (cancelled, _) = cancel::end(tx, *run, Some(&superseded()))?;
        if cancelled == Cancelled::Ended {
            lines.push(line(EventKind::RunCancelled, &run.to_string(), None, None));
        }
    }
    Ok(())
}

/// The value and its entry in the history, if it has one; answers how often the value has changed.
fn write_value(tx: &Tx<'_>, id: ExecutionId, change: &Change, place: Option<u64>) -> Outcome<u64> {
    let cells = ValueCells::of(change.cell.as_ref().map(|cell| &cell.value));
    let metadata = change.cell.as_ref().and_then(|cell| cell.metadata.as_ref()).map(Json::of);
    let metadata = metadata.as_ref().map(|metadata| metadata.as_str());
    if let Some(place) = place {
        record(tx, id, change, &cells, metadata, place)?;
    }
    upsert(tx, id, change, &cells, metadata)
}

fn record(
    tx: &Tx<'_>,
    id: ExecutionId,
    change: &Change,
    cells: &ValueCells,
    metadata: Option<&str>,
    place: u64,
) -> Outcome<()> {
    if let Some(cell) = change.cell.as_ref().filter(|_| change.silent) {
        tx.connection
            .prepare_cached(
                "update value_history set value = ?4, metadata = null
                 where execution_id = ?1 and node = ?2 and revision = ?3",
            )?
            .execute(params![id.0.into_bytes(), change.node, stored(cell.revision), cells.value])?;
    }
    tx.connection
        .prepare_cached(
            "insert into value_history (execution_id, place, node, value, revision, at, metadata, run_id)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            id.0.into_bytes(),
            stored(place),
            change.node,
            cells.value,
            stored(change.revision),
            tx.now.0,
            metadata,
            change.run.map(|run| run.0.into_bytes()),
        ])?;
    Ok(())
}

fn upsert(tx: &Tx<'_>, id: ExecutionId, change: &Change, cells: &ValueCells, metadata: Option<&str>) -> Outcome<u64> {
    let mut upsert = tx.connection.prepare_cached(
        "insert into value (execution_id, node, value, revision, set_at, metadata, changes, first_set_at, class,
           number, text, folded)
         values (?1, ?2, ?3, ?4, ?5, ?6, 1, iif(?3 is null, null, ?5), ?7, ?8, ?9, ?10)
         on conflict (execution_id, node) do update set value = excluded.value, revision = excluded.revision,
           set_at = excluded.set_at, metadata = excluded.metadata, changes = changes + 1,
           first_set_at = coalesce(first_set_at, excluded.first_set_at), class = excluded.class,
           number = excluded.number, text = excluded.text, folded = excluded.folded
         returning changes",
    )?;
    let changes = upsert.query_row(
        params![
            id.0.into_bytes(),
            change.node,
            cells.value,
            stored(change.cell.as_ref().map_or(change.revision, |cell| cell.revision)),
            tx.now.0,
            metadata,
            cells.class,
            cells.number,
            cells.text,
            cells.folded,
        ],
        |row| row.get(0),
    )?;
    Ok(number(changes))
}

/// Leaves the latest `keep` entries of a node.
fn cut(tx: &Tx<'_>, id: ExecutionId, node: &str, keep: usize) -> Outcome<()> {
    let mut delete = tx.connection.prepare_cached(
        "delete from value_history where execution_id = ?1 and node = ?2 and place < (
           select place from value_history where execution_id = ?1 and node = ?2
           order by place desc limit 1 offset ?3)",
    )?;
    delete.execute(params![id.0.into_bytes(), node, limit(keep.saturating_sub(1))])?;
    Ok(())
}

fn write_computations(tx: &Tx<'_>, id: ExecutionId, changes: &Changes) -> Outcome<()> {
    for node in &changes.computations {
        let Some(computation) = changes.execution.computation(node) else {
            tx.connection
                .prepare_cached("delete from computation where execution_id = ?1 and node = ?2")?
                .execute(params![id.0.into_bytes(), node])?;
            continue;
        };
        let cells = ComputationCells::of(computation);
        tx.connection
            .prepare_cached(
                "insert or replace into computation (execution_id, node, status, run_id, computed_with, iterations,
                   state, error)
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                id.0.into_bytes(),
                node,
                cells.status,
                cells.run_id.map(|run| run.into_bytes()),
                cells.computed_with,
                cells.iterations,
                cells.state,
                cells.error,
            ])?;
    }
    Ok(())
}
