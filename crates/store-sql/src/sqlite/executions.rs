//! Executions, as they are asked for and read.

use super::advance::{Work, looked};
use super::fault::{Fault, Outcome};
use super::writer::Tx;
use super::{Sqlite, agenda, analytics, execution_list, peek, snapshot};
use crate::encode::{UNSTORABLE_PAUSE, unstorable_change};
use crate::halves::Halves;
use async_trait::async_trait;
use everbeat_model::ExecutionId;
use everbeat_store::{
    AT_ONCE, Advance, Advanced, Analytics, Class, ExecutionFilter, Executions, Looked, Peek, Planner, Remembered,
    Result, Start, Started, Stored,
};
use std::sync::Arc;

#[async_trait]
impl Executions for Sqlite {
    async fn start(&self, starts: Vec<Start>, planner: Arc<dyn Planner>) -> Result<Vec<Started>> {
        let starts: Arc<[Start]> = starts.into();
        let mut answers = vec![Started::NoGraph; starts.len()];
        let mut open = Halves::of((0..starts.len()).collect());
        while let Some(places) = open.next() {
            let (all, piece) = (starts.clone(), places.clone());
            let start = move |work: Work<'_, '_>| work.start_all(&at_places(&all, &piece));
            match self.work(planner.clone(), start).await {
                Ok(started) => places.iter().zip(started).for_each(|(place, started)| answers[*place] = started),
                Err(Fault::Data(reason)) => {
                    if let Some(place) = open.halve(places) {
                        answers[place] = Started::Refused(unstorable_change(starts[place].id, &reason));
                    }
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(answers)
    }

    async fn advance(&self, advances: Vec<Advance>, planner: Arc<dyn Planner>) -> Result<Vec<Advanced>> {
        let advances: Arc<[Advance]> = advances.into();
        let mut answers = vec![Advanced::NotFound; advances.len()];
        let mut open = Halves::of((0..advances.len()).collect());
        while let Some(places) = open.next() {
            let (all, piece) = (advances.clone(), places.clone());
            let advance = move |work: Work<'_, '_>| work.advance_all(&at_places(&all, &piece));
            match self.work(planner.clone(), advance).await {
                Ok(advanced) => places.iter().zip(advanced).for_each(|(place, advanced)| answers[*place] = advanced),
                Err(Fault::Data(reason)) => {
                    if let Some(place) = open.halve(places) {
                        answers[place] = self.unstorable(&advances[place], &reason).await?;
                    }
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(answers)
    }

    async fn advance_due(&self, limit: usize, planner: Arc<dyn Planner>) -> Result<Looked> {
        let fault = match self.work(planner.clone(), move |work| work.advance_due(limit)).await {
            Ok(looked) => return Ok(looked),
            Err(fault) => fault,
        };
        let due = self.writer.write(move |tx| agenda::due(tx, limit)).await?;
        match fault {
            Fault::Data(_) => {
                let alone = due.iter().map(|id| Advance { execution: *id, commands: Vec::new() });
                self.advance(alone.collect(), planner).await?;
                self.writer.write(move |tx| looked(tx, due)).await
            }
            Fault::Other(error) => {
                if let ([culprit], Class::Bug) = (&due[..], error.class()) {
                    // Alone, the execution is what cannot be carried out: it must not keep the others waiting for ever.
                    tracing::error!(execution = %culprit, %error, "an execution cannot be looked at and is put off");
                    let culprit = *culprit;
                    self.writer.write(move |tx| put_off(tx, culprit)).await?;
                }
                Err(error)
            }
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
    ) -> Outcome<T> {
        let definitions = self.definitions.clone();
        self.writer
            .try_write(0, move |tx| work(Work { tx, definitions: &definitions, planner: &*planner, lines: Vec::new() }))
            .await
    }

    /// Answers a change of which nothing was written. The notes of its execution stand; where there are no commands, the
    /// notes are what cannot be carried out, and must not be taken up again and again.
    async fn unstorable(&self, advance: &Advance, reason: &str) -> Result<Advanced> {
        let (id, refusal) = (advance.execution, unstorable_change(advance.execution, reason));
        if advance.commands.is_empty() {
            self.writer.write(move |tx| put_off(tx, id)).await?;
        }
        Ok(Advanced::refused(&advance.commands, &refusal))
    }
}

fn at_places<'a, T>(all: &'a [T], places: &[usize]) -> Vec<&'a T> {
    places.iter().map(|place| &all[*place]).collect()
}

fn put_off(tx: &Tx<'_>, id: ExecutionId) -> Outcome<()> {
    agenda::take(tx, id)?;
    agenda::note(tx, id, tx.now.plus(UNSTORABLE_PAUSE))
}
