use super::Memory;
use crate::{Ids, Noun, Result};
use async_trait::async_trait;
use everbeat_model::RunId;
use everbeat_model::run::Kind;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use uuid::Uuid;

#[async_trait]
impl Ids for Memory {
    async fn ids(&self, of: Noun, within: RangeInclusive<Uuid>, limit: usize) -> Result<Vec<Uuid>> {
        let state = self.lock();
        let newest: Box<dyn Iterator<Item = Uuid>> = match of {
            Noun::Run => Box::new(state.runs.keys().rev().map(|id| id.0)),
            Noun::RunningRun => Box::new(state.leases.keys().rev().map(|id| id.0)),
            Noun::Execution => Box::new(state.executions.keys().rev().map(|id| id.0)),
            Noun::Verdict => Box::new(state.verdicts.keys().rev().map(|id| id.0)),
            Noun::Worker => Box::new(state.workers.keys().rev().map(|id| id.0)),
        };
        Ok(newest.filter(|id| within.contains(id)).take(limit).collect())
    }

    async fn jobs_with(&self, text: String, window: usize) -> Result<Vec<RunId>> {
        let state = self.lock();
        let candidates: BTreeSet<RunId> =
            state.runs.keys().rev().take(window).chain(state.leases.keys()).copied().collect();
        let fits = |id: &RunId| {
            state.runs.get(id).is_some_and(|run| run.spec.kind == Kind::Job && run.spec.input.as_str().contains(&text))
        };
        Ok(candidates.into_iter().rev().filter(fits).collect())
    }
}
