//! Ids within a range, and jobs whose input holds a text.

use super::Postgres;
use crate::columns::{id_column, jobs_with_sql};
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::RunId;
use everbeat_store::{Ids, Noun, Result};
use std::ops::RangeInclusive;
use uuid::Uuid;

#[async_trait]
impl Ids for Postgres {
    async fn ids(&self, of: Noun, within: RangeInclusive<Uuid>, most: usize) -> Result<Vec<Uuid>> {
        let (table, id) = id_column(of);
        let sql = format!("select {id} from {table} where {id} between $1 and $2 order by {id} desc limit $3");
        let (first, last) = within.into_inner();
        let rows = self.read().query(&sql, &[&first, &last, &limit(most)]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn jobs_with(&self, text: String, window: usize) -> Result<Vec<RunId>> {
        let sql = jobs_with_sql("strpos(r.input, $1::text)", "$2");
        let rows = self.read().query(&sql, &[&text, &limit(window)]).await?;
        Ok(rows.iter().map(|row| RunId(row.get(0))).collect())
    }
}
