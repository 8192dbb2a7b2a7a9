//! The names of tasks that anybody has offered.

use super::Postgres;
use async_trait::async_trait;
use everbeat_store::{Result, Tasks};
use std::collections::BTreeSet;

#[async_trait]
impl Tasks for Postgres {
    async fn offer(&self, tasks: &BTreeSet<String>) -> Result<()> {
        let names: Vec<&str> = tasks.iter().map(String::as_str).collect();
        let insert = "insert into task (name) select * from unnest($1::text[]) on conflict do nothing";
        self.command.query(insert, &[&names]).await?;
        Ok(())
    }

    async fn tasks(&self) -> Result<BTreeSet<String>> {
        let rows = self.read().query("select name from task", &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}
