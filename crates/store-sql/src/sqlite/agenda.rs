//! When which execution should be looked at.

use super::fault::Outcome;
use super::writer::Tx;
use everbeat_model::{ExecutionId, StoreTime};
use rusqlite::{OptionalExtension, params};
use std::collections::BTreeSet;
use uuid::Uuid;

pub(super) fn note(tx: &Tx<'_>, execution: ExecutionId, due: StoreTime) -> Outcome<()> {
    let mut insert =
        tx.connection.prepare_cached("insert or ignore into agenda (execution_id, due_at) values (?1, ?2)")?;
    insert.execute(params![execution.0.into_bytes(), due.0])?;
    Ok(())
}

/// Takes every note of an execution.
pub(super) fn take(tx: &Tx<'_>, execution: ExecutionId) -> Outcome<()> {
    let mut delete = tx.connection.prepare_cached("delete from agenda where execution_id = ?1")?;
    delete.execute([execution.0.into_bytes()])?;
    Ok(())
}

/// Executions that are longest due first, each once.
pub(super) fn due(tx: &Tx<'_>, most: usize) -> Outcome<Vec<ExecutionId>> {
    let mut select = tx
        .connection
        .prepare_cached("select execution_id from agenda where due_at <= ?1 order by due_at, execution_id")?;
    let mut rows = select.query([tx.now.0])?;
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    while found.len() < most
        && let Some(row) = rows.next()?
    {
        let id = ExecutionId(Uuid::from_bytes(row.get(0)?));
        if known.insert(id) {
            found.push(id);
        }
    }
    Ok(found)
}

/// When the earliest note is due.
pub(super) fn next(tx: &Tx<'_>) -> Outcome<Option<StoreTime>> {
    let mut select = tx.connection.prepare_cached("select due_at from agenda order by due_at limit 1")?;
    Ok(select.query_row([], |row| row.get(0)).optional()?.map(StoreTime))
}
