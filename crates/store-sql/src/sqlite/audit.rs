//! Counts of everything, and violations of what must hold.

use super::Sqlite;
use super::fault::Outcome;
use crate::columns::{
    AUDIT_COUNTS, AUDIT_COUNTS_SQL, AUDIT_G1_SQL, AUDIT_OWNERLESS_SQL, AUDIT_PLACES_SQL, AUDIT_STRANDED_SQL,
};
use crate::decode::{found_violations, whole};
use async_trait::async_trait;
use everbeat_store::{Audit, Audits, Result};
use rusqlite::Connection;
use uuid::Uuid;

#[async_trait]
impl Audits for Sqlite {
    async fn audit(&self) -> Result<Audit> {
        self.readers.read(audit).await
    }
}

fn audit(connection: &Connection) -> Outcome<Audit> {
    let mut select = connection.prepare_cached(AUDIT_COUNTS_SQL)?;
    let checked = select.query_row([], |row| {
        let count = |(column, name): (usize, &&str)| Ok((name.to_string(), whole(row.get(column)?)));
        AUDIT_COUNTS.iter().enumerate().map(count).collect()
    })?;
    let places = pairs(connection, AUDIT_PLACES_SQL, |row| row.get(1))?;
    let ownerless = pairs(connection, AUDIT_OWNERLESS_SQL, |row| row.get(1).map(Uuid::from_bytes))?;
    let ended_again = pairs(connection, AUDIT_G1_SQL, |row| row.get(1))?;
    Ok(Audit { checked, violations: found_violations(places, ownerless, stranded(connection)?, ended_again) })
}

fn stranded(connection: &Connection) -> Outcome<Vec<(Uuid, String, Uuid)>> {
    let mut select = connection.prepare_cached(AUDIT_STRANDED_SQL)?;
    let found = select.query_map([], |row| {
        let run = row.get::<_, Option<[u8; 16]>>(2)?.unwrap_or_default();
        Ok((Uuid::from_bytes(row.get(0)?), row.get(1)?, Uuid::from_bytes(run)))
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

fn pairs<T>(
    connection: &Connection,
    sql: &str,
    second: fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Outcome<Vec<(Uuid, T)>> {
    let mut select = connection.prepare_cached(sql)?;
    let found = select.query_map([], |row| Ok((Uuid::from_bytes(row.get(0)?), second(row)?)))?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}
