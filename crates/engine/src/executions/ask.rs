//! What users ask of executions.

use crate::executions::advance::{Answer, Ask};
use crate::runs::Awaited;
use crate::{Engine, Error, Result, within};
use everbeat_model::graph::{Cell, Command, NodeView, Refusal, describe, mermaid_of, summary};
use everbeat_model::run::check_key;
use everbeat_model::{BootInstant, ExecutionId, Invalid};
use everbeat_store::{ExecutionFilter, Idempotency, Peek, Remembered, Start, Started, Stored};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// An execution to be started.
#[derive(Clone, Debug, Default)]
pub struct StartExecution {
    pub graph: String,
    pub version: Option<String>,
    /// Set with the start, as one change.
    pub values: BTreeMap<String, Value>,
    pub metadata: Option<Value>,
}

/// An execution with what each of its nodes does.
#[derive(Clone, Debug)]
pub struct ExecutionView {
    pub stored: Stored,
    pub nodes: BTreeMap<String, NodeView>,
}

impl ExecutionView {
    /// The execution for people to read.
    pub fn summary(&self) -> String {
        let Stored { id, graph, execution, created_at, updated_at, .. } = &self.stored;
        summary(graph, execution, &self.nodes, &id.to_string(), *created_at, *updated_at)
    }
}

/// Which value is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// None: whatever there is now.
    Immediate,
    /// Any value.
    Any,
    /// A value that is newer than what there is now.
    Newer,
    /// A value of a later revision.
    NewerThan(u64),
}

/// What became of asking for a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Got {
    Value(Cell),
    NotSet,
    /// The computation of the node failed for good, with this reason; no value will come until something changes.
    Failed(String),
    /// What the node is still waiting for, in words.
    TimedOut(Option<String>),
}

impl Engine {
    /// Starts an execution; true if it is new.
    pub async fn start_execution(
        &self,
        start: StartExecution,
        idempotency: Option<Idempotency>,
    ) -> Result<(ExecutionId, bool)> {
        if let Some(idempotency) = &idempotency {
            check_key("Idempotency-Key", &idempotency.key)?;
        }
        let StartExecution { graph, version, values, metadata } = start;
        let key = idempotency.as_ref().map(|idempotency| idempotency.key.clone());
        let (name, asked) = (graph.clone(), version.clone());
        let id = ExecutionId(self.core.new_id());
        let start = Start { id, graph, version, values, metadata, idempotency };
        match self.core.starts.ask(start).await? {
            Started::Created { id, .. } => Ok((id, true)),
            Started::Exists(id) => Ok((id, false)),
            Started::NoGraph => Err(self.no_graph(&name, asked.as_deref()).await?),
            Started::KeyReused => Err(everbeat_store::Error::KeyReused { key: key.unwrap_or_default() }.into()),
            Started::Refused(refusal) => Err(refused(refusal)),
        }
    }

    async fn no_graph(&self, name: &str, version: Option<&str>) -> Result<Error> {
        if let Some(version) = version
            && let Ok(latest) = self.graph(name, None).await
        {
            let hint = format!("the latest is {:?}", latest.graph.version);
            let problem = format!("is not a version of graph {name:?}");
            return Ok(Invalid::new("version", format!("{version:?}"), problem, hint).into());
        }
        let known = self.graphs(None, MOST_NAMED).await?;
        let names: Vec<&str> = known.iter().map(|known| known.graph.name.as_str()).collect();
        let hint = match everbeat_model::error::nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None if names.is_empty() => "apply a graph first: everbeat graph apply FILE".to_string(),
            None => format!("known graphs are {}", names.join(", ")),
        };
        Ok(Invalid::new("graph", format!("{name:?}"), "is not a graph", hint).into())
    }

    /// Sets values as one change; answers the execution's revision afterwards.
    pub async fn set(&self, id: ExecutionId, values: BTreeMap<String, Value>, metadata: Option<Value>) -> Result<u64> {
        self.command(id, Command::Set { values, metadata }).await
    }

    pub async fn unset(&self, id: ExecutionId, nodes: BTreeSet<String>) -> Result<u64> {
        self.command(id, Command::Unset(nodes)).await
    }

    pub async fn archive(&self, id: ExecutionId) -> Result<u64> {
        self.command(id, Command::Archive).await
    }

    pub async fn unarchive(&self, id: ExecutionId) -> Result<u64> {
        self.command(id, Command::Unarchive).await
    }

    /// Computes a node again, with all its tries, as soon as its gate holds.
    pub async fn retry_node(&self, id: ExecutionId, node: &str) -> Result<u64> {
        self.command(id, Command::Retry(node.to_string())).await
    }

    /// Gives a computation up: the node has failed.
    pub async fn abandon_node(&self, id: ExecutionId, node: &str) -> Result<u64> {
        self.command(id, Command::Abandon(node.to_string())).await
    }

    async fn command(&self, execution: ExecutionId, command: Command) -> Result<u64> {
        let answer: Answer = self.core.asks.ask(Ask { execution, command }).await?;
        answer.ok_or_else(|| not_found(execution))?.map_err(refused)
    }

    pub async fn execution(&self, id: ExecutionId) -> Result<ExecutionView> {
        let stored = self.core.store.execution(id).await?.ok_or_else(|| not_found(id))?;
        Ok(self.execution_view(stored))
    }

    /// The execution as a Mermaid flowchart, with the state of each node.
    pub async fn draw_execution(&self, id: ExecutionId) -> Result<String> {
        let stored = self.core.store.execution(id).await?.ok_or_else(|| not_found(id))?;
        Ok(mermaid_of(&stored.graph, &stored.execution, self.core.now()))
    }

    pub async fn executions(&self, filter: ExecutionFilter) -> Result<Vec<ExecutionView>> {
        let found = self.core.store.executions(filter).await?;
        Ok(found.into_iter().map(|stored| self.execution_view(stored)).collect())
    }

    pub async fn count_executions(&self, filter: ExecutionFilter) -> Result<u64> {
        Ok(self.core.store.count(filter).await?)
    }

    /// What was set and cleared, oldest first, after place `after`.
    pub async fn history(&self, id: ExecutionId, after: u64, limit: usize) -> Result<Vec<Remembered>> {
        let entries = self.core.store.history(id, after, limit).await?;
        if entries.is_empty() && self.core.store.stamps(vec![id]).await?.is_empty() {
            return Err(not_found(id));
        }
        Ok(entries)
    }

    fn execution_view(&self, stored: Stored) -> ExecutionView {
        let nodes = describe(&stored.graph, &stored.execution, self.core.now());
        ExecutionView { stored, nodes }
    }

    /// A node's value, waited for at most `timeout`. A node whose computation failed for good is told at
    /// once.
    pub async fn value(&self, id: ExecutionId, node: &str, wait: Wait, timeout: Duration) -> Result<Got> {
        let waiting = self.core.waiters.register(Awaited::Execution(id));
        let until = self.core.env.boot() + timeout;
        let (mut wait, mut looked) = (wait, false);
        loop {
            let told = waiting.notify.notified();
            tokio::pin!(told);
            // Enabled before the look, so that a change in between is not missed.
            told.as_mut().enable();
            let peek = self.core.bounded(self.core.store.value(id, node)).await?.ok_or_else(|| not_found(id))?;
            waiting.saw(peek.stamp);
            if !peek.known && peek.cell.is_none() {
                if std::mem::replace(&mut looked, true) {
                    return Err(Error::NotFound { what: "node", id: node.to_string() });
                }
                // A definition that was applied just now may have the node; the execution goes on with that one first.
                self.core.look_at(id).await?;
                continue;
            }
            if wait == Wait::Newer {
                // From now on: what there is at the first look.
                wait = peek.cell.as_ref().map_or(Wait::Any, |cell| Wait::NewerThan(cell.revision));
            }
            if let Some(got) = got(peek, wait) {
                return Ok(got);
            }
            if !self.told(told, until).await {
                return Ok(Got::TimedOut(self.waits_for(id, node).await?));
            }
        }
    }

    /// Waits for a hint until then; whether there is time left.
    async fn told(&self, told: impl Future<Output = ()>, until: BootInstant) -> bool {
        let env = &self.core.env;
        let left = until.since(env.boot());
        !left.is_zero() && within(&**env, left, told).await.is_some()
    }

    async fn waits_for(&self, id: ExecutionId, node: &str) -> Result<Option<String>> {
        let stored = self.core.bounded(self.core.store.execution(id)).await?.ok_or_else(|| not_found(id))?;
        let view = self.execution_view(stored);
        Ok(view.nodes.get(node).and_then(|node| match node.waiting_for.clone() {
            None if node.run.is_some() => Some("its computation to end".to_string()),
            waiting_for => waiting_for,
        }))
    }
}

/// Whether this is what is waited for.
fn got(peek: Peek, wait: Wait) -> Option<Got> {
    let fits = |cell: &Cell| match wait {
        Wait::NewerThan(revision) => cell.revision > revision,
        Wait::Immediate | Wait::Any | Wait::Newer => true,
    };
    match (peek.cell.filter(fits), peek.failed) {
        (Some(cell), _) => Some(Got::Value(cell)),
        (None, Some(reason)) => Some(Got::Failed(reason)),
        (None, None) if wait == Wait::Immediate => Some(Got::NotSet),
        (None, None) => None,
    }
}

/// Names in a hint; more would not be read.
const MOST_NAMED: usize = 20;

fn not_found(id: ExecutionId) -> Error {
    Error::NotFound { what: "execution", id: id.to_string() }
}

fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Invalid(invalid) => invalid.into(),
        Refusal::Conflict { problem, hint } => Error::Conflict { problem, hint },
    }
}
