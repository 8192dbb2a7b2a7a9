//! Brings the schema of a database up to date.

use super::fault::Fault;
use super::identity::APPLICATION_ID;
use crate::migrations::{self, SQLITE};
use everbeat_model::StoreTime;
use everbeat_store::{Error, Result};
use rusqlite::{Connection, TransactionBehavior, params};
use std::path::Path;

/// Brings the file to this program's schema, all in one transaction.
pub(super) fn migrate(connection: &mut Connection, path: &Path, now: StoreTime) -> Result<()> {
    apply(connection, path, now).map_err(Error::from)
}

fn apply(connection: &mut Connection, path: &Path, now: StoreTime) -> std::result::Result<(), Fault> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "create table if not exists schema_version (
           version integer not null primary key, name text not null, checksum text not null, applied_at integer not null)",
    )?;
    let applied = transaction
        .prepare("select version, checksum from schema_version order by version")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<(i64, String)>>>()?;
    for migration in migrations::pending(SQLITE, &applied, &path.display().to_string())? {
        transaction.execute_batch(migration.sql)?;
        transaction.execute(
            "insert into schema_version (version, name, checksum, applied_at) values (?1, ?2, ?3, ?4)",
            params![migration.version, migration.name, migration.checksum(), now.0],
        )?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.commit()?;
    Ok(())
}
