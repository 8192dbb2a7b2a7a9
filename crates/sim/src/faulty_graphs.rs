//! One replica's way to the graphs and executions in the store. Planners travel with their call: what a
//! dead replica asked for may still be decided and written.

use crate::faulty_store::FaultyStore;
use crate::shared::Shared;
use async_trait::async_trait;
use everbeat_model::ExecutionId;
use everbeat_model::graph::Graph;
use everbeat_store::{
    Advance, Advanced, Analytics, Applied, Definition, ExecutionFilter, Executions, Graphs, Idempotency, Looked, Peek,
    Planner, Remembered, Result, Start, Started, Stored,
};
use std::sync::Arc;

#[async_trait]
impl Graphs for FaultyStore {
    async fn apply(&self, graph: Arc<Graph>, idempotency: Option<Idempotency>) -> Result<Applied> {
        self.call("apply", move |store| async move { store.apply(graph, idempotency).await }).await
    }

    async fn graph(&self, name: &str, version: Option<&str>) -> Result<Option<Definition>> {
        let (name, version) = (name.to_string(), version.map(ToString::to_string));
        self.call("graph", move |store| async move { store.graph(&name, version.as_deref()).await }).await
    }

    async fn graphs(&self, after: Option<&str>, limit: usize) -> Result<Vec<Definition>> {
        let after = after.map(ToString::to_string);
        self.call("graphs", move |store| async move { store.graphs(after.as_deref(), limit).await }).await
    }
}

#[async_trait]
impl Executions for FaultyStore {
    async fn start(&self, starts: Vec<Start>, planner: Arc<dyn Planner>) -> Result<Vec<Started>> {
        self.call("start", move |store| async move { store.start(starts, planner).await }).await
    }

    async fn advance(&self, advances: Vec<Advance>, planner: Arc<dyn Planner>) -> Result<Vec<Advanced>> {
        self.call("advance", move |store| async move { store.advance(advances, planner).await }).await
    }

    async fn advance_due(&self, limit: usize, planner: Arc<dyn Planner>) -> Result<Looked> {
        let looked = |shared: &Shared, looked: &Looked| shared.truth().report.looks += looked.executions.len() as u64;
        self.call_and("advance_due", move |store| async move { store.advance_due(limit, planner).await }, looked).await
    }

    async fn note_stranded(&self, limit: usize) -> Result<usize> {
        let noted = |shared: &Shared, noted: &usize| shared.truth().report.stranded += *noted as u64;
        self.call_and("note_stranded", move |store| async move { store.note_stranded(limit).await }, noted).await
    }

    async fn execution(&self, id: ExecutionId) -> Result<Option<Stored>> {
        self.call("execution", move |store| async move { store.execution(id).await }).await
    }

    async fn value(&self, id: ExecutionId, node: &str) -> Result<Option<Peek>> {
        let node = node.to_string();
        self.call("value", move |store| async move { store.value(id, &node).await }).await
    }

    async fn executions(&self, filter: ExecutionFilter) -> Result<Vec<Stored>> {
        self.call("executions", move |store| async move { store.executions(filter).await }).await
    }

    async fn count(&self, filter: ExecutionFilter) -> Result<u64> {
        self.call("count", move |store| async move { store.count(filter).await }).await
    }

    async fn stamps(&self, executions: Vec<ExecutionId>) -> Result<Vec<(ExecutionId, u64)>> {
        self.call("stamps", move |store| async move { store.stamps(executions).await }).await
    }

    async fn history(&self, id: ExecutionId, after: u64, limit: usize) -> Result<Vec<Remembered>> {
        self.call("history", move |store| async move { store.history(id, after, limit).await }).await
    }

    async fn analytics(&self, graph: &str) -> Result<Analytics> {
        let graph = graph.to_string();
        self.call("analytics", move |store| async move { store.analytics(&graph).await }).await
    }
}
