//! The names of tasks that anybody has offered.

use super::Sqlite;
use async_trait::async_trait;
use everbeat_store::{Result, Tasks};
use std::collections::BTreeSet;

#[async_trait]
impl Tasks for Sqlite {
    async fn offer(&self, tasks: &BTreeSet<String>) -> Result<()> {
        let tasks = tasks.clone();
        self.writer
            .write(move |tx| {
                let mut insert = tx.connection.prepare_cached("insert or ignore into task (name) values (?1)")?;
                for task in &tasks {
                    insert.execute([task])?;
                }
                Ok(())
            })
            .await
    }

    async fn tasks(&self) -> Result<BTreeSet<String>> {
        self.readers
            .read(|connection| {
                let mut select = connection.prepare_cached("select name from task")?;
                let names = select.query_map([], |row| row.get(0))?;
                Ok(names.collect::<rusqlite::Result<_>>()?)
            })
            .await
    }
}
