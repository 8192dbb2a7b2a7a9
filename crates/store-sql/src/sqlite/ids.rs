//! Ids within a range, and jobs whose input holds a text.

use super::Sqlite;
use crate::columns::{id_column, jobs_with_sql};
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::RunId;
use everbeat_store::{Ids, Noun, Result};
use rusqlite::params;
use std::ops::RangeInclusive;
use uuid::Uuid;

#[async_trait]
impl Ids for Sqlite {
    async fn ids(&self, of: Noun, within: RangeInclusive<Uuid>, most: usize) -> Result<Vec<Uuid>> {
        let (table, id) = id_column(of);
        let sql = format!("select {id} from {table} where {id} between ?1 and ?2 order by {id} desc limit ?3");
        self.readers
            .read(move |connection| {
                let mut select = connection.prepare_cached(&sql)?;
                let (first, last) = within.into_inner();
                let found = select.query_map(params![first.into_bytes(), last.into_bytes(), limit(most)], |row| {
                    Ok(Uuid::from_bytes(row.get(0)?))
                })?;
                Ok(found.collect::<rusqlite::Result<_>>()?)
            })
            .await
    }

    async fn jobs_with(&self, text: String, window: usize) -> Result<Vec<RunId>> {
        let sql = jobs_with_sql("instr(r.input, ?1)", "?2");
        self.readers
            .read(move |connection| {
                let mut select = connection.prepare_cached(&sql)?;
                let found =
                    select.query_map(params![text, limit(window)], |row| Ok(RunId(Uuid::from_bytes(row.get(0)?))))?;
                Ok(found.collect::<rusqlite::Result<_>>()?)
            })
            .await
    }
}
