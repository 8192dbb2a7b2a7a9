//! Executions, as they are asked for and read.

use super::advance::{Work, looked};
use super::fault::Outcome;
use super::writer::Tx;
use super::{Sqlite, agenda, analytics, execution_list, peek, snapshot};
use crate::encode::{UNSTORABLE_PAUSE, unstorable_change};
use async_trait::async_trait;
use everbeat_model::ExecutionId;
use everbeat_store::{
    AT_ONCE, Advance, Advanced, Analytics, Error, ExecutionFilter, Executions, Looked, Peek, Planner, Remembered,
    Result, Start, Started, Stored,
};
use std::sync::Arc;

#[async_trait]
impl Executions for Sqlite {
    async fn start(&self, starts: Vec<Start>, planner: Arc<dyn Planner>) -> Result<Vec<Started>> {
        let starts: Arc<[Start]> = starts.into();
        let all = starts.clone();
        match self.work(planner.clone(), move |work| work.start_all(&all)).await {
            Err(Error::Bug(reason)) => self.start_singly(&starts, &planner, &reason).await,
            answer => answer,
        }
    }

    async fn advance(&self, advances: Vec<Advance>, planner: Arc<dyn Planner>) -> Result<Vec<Advanced>> {
        let advances: Arc<[Advance]> = advances.into();
        let all = advances.clone();
        match self.work(planner.clone(), move |work| work.advance_all(&all)).await {
            Err(Error::Bug(reason)) => self.advance_singly(&advances, &planner, &reason).await,
            answer => answer,
        }
    }

    async fn advance_due(&self, limit: usize, planner: Arc<dyn Planner>) -> Result<Looked> {
        match self.work(planner.clone(), move |work| work.advance_due(limit)).await {
            Err(Error::Bug(_)) => self.advance_due_singly(limit, &planner).await,
            answer => answer,
        }
    }

    async fn note_stranded(&self, limit: usize) -> Result<usize> {
        // Finding is left to a reader: it looks through all that is being computed.
        let found = self.readers.read(move |connection| peek::stranded(connection, limit)).await?;
        if found.is_empty() {
            return Ok(0);
        }
        self.writer
            .write(move |tx| {
                found.iter().try_for_each(|id| agenda::note(tx, *id, AT_ONCE))?;
                Ok(found.len())
            })
            .await
    }

    async fn execution(&self, id: ExecutionId) -> Result<Option<Stored>> {
        let definitions = self.definitions.clone();
        self.readers.read(move |connection| snapshot::stored(connection, &definitions, id)).await
    }

    async fn value(&self, id: ExecutionId, node: &str) -> Result<Option<Peek>> {
        let (definitions, node) = (self.definitions.clone(), node.to_string());
        self.readers.read(move |connection| peek::value(connection, &definitions, id, &node)).await
    }

    async fn executions(&self, filter: ExecutionFilter) -> Result<Vec<Stored>> {
        let definitions = self.definitions.clone();
        self.readers.read(move |connection| execution_list::executions(connection, &definitions, &filter)).await
    }

    async fn count(&self, filter: ExecutionFilter) -> Result<u64> {
        self.readers.read(move |connection| execution_list::count(connection, &filter)).await
    }

    async fn stamps(&self, executions: Vec<ExecutionId>) -> Result<Vec<(ExecutionId, u64)>> {
        self.readers.read(move |connection| peek::stamps(connection, executions)).await
    }

    async fn history(&self, id: ExecutionId, after: u64, limit: usize) -> Result<Vec<Remembered>> {
        self.readers.read(move |connection| peek::history(connection, id, after, limit)).await
    }

    async fn analytics(&self, graph: &str) -> Result<Analytics> {
        let graph = graph.to_string();
        self.readers.read(move |connection| analytics::analytics(connection, &graph)).await
    }
}

impl Sqlite {
    /// The steps by which the database would find a list of executions, in its own words.
    pub async fn list_plan(&self, filter: ExecutionFilter) -> Result<Vec<String>> {
        self.readers.read(move |connection| execution_list::plan(connection, &filter)).await
    }

    async fn work<T: Send + 'static>(
        &self,
        planner: Arc<dyn Planner>,
        work: impl FnOnce(Work<'_, '_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let definitions = self.definitions.clone();
        self.writer
            .write(move |tx| work(Work { tx, definitions: &definitions, planner: &*planner, lines: Vec::new() }))
            .await
    }

    /// Something in the batch cannot be stored. Each start goes alone, and one that still cannot be stored is refused with
    /// that reason, so that it does not harm the others.
    async fn start_singly(&self, starts: &[Start], planner: &Arc<dyn Planner>, reason: &str) -> Result<Vec<Started>> {
        let mut answers = Vec::with_capacity(starts.len());
        for start in starts {
            let one = [start.clone()];
            match self.work(planner.clone(), move |work| work.start_all(&one)).await {
                Err(Error::Bug(_)) => answers.push(Started::Refused(unstorable_change(start.id, reason))),
                answer => answers.extend(answer?),
            }
        }
        Ok(answers)
    }

    async fn advance_singly(
        &self,
        advances: &[Advance],
        planner: &Arc<dyn Planner>,
        reason: &str,
    ) -> Result<Vec<Advanced>> {
        let mut answers = Vec::with_capacity(advances.len());
        for advance in advances {
            let one = [advance.clone()];
            match self.work(planner.clone(), move |work| work.advance_all(&one)).await {
                Err(Error::Bug(_)) => {
                    let refusal = unstorable_change(advance.execution, reason);
                    answers.push(Advanced::refused(&advance.commands, &refusal));
                }
                answer => answers.extend(answer?),
            }
        }
        Ok(answers)
    }

    /// Executions whose changes cannot be stored are looked at again later, so that they do not hold up the others.
    async fn advance_due_singly(&self, limit: usize, planner: &Arc<dyn Planner>) -> Result<Looked> {
        let due = self.writer.write(move |tx| agenda::due(tx, limit)).await?;
        for id in due.clone() {
            let one = [Advance { execution: id, commands: Vec::new() }];
            match self.work(planner.clone(), move |work| work.advance_all(&one)).await {
                Err(Error::Bug(reason)) => {
                    _ = unstorable_change(id, &reason);
                    self.writer.write(move |tx| put_off(tx, id)).await?;
                }
                answer => _ = answer?,
            }
        }
        self.writer.write(move |tx| looked(tx, due)).await
    }
}

fn put_off(tx: &Tx<'_>, id: ExecutionId) -> Outcome<()> {
    agenda::take(tx, id)?;
    agenda::note(tx, id, tx.now.plus(UNSTORABLE_PAUSE))
}
