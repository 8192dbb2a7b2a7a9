//! What cases about graphs and executions are written with: a planner that decides as the engine's does,
//! and the steps that an execution takes.

use super::build::{ended, failure};
use super::fixture::Fixture;
use crate::{
    Advance, Advanced, Applied, Claim, Definition, Executions, Graphs, Planner, Remembered, Start, Started, Stored,
};
use everbeat_model::graph::{Command, Computation, Defaults, Graph, Plan, Refusal, Snapshot, Status, plan};
use everbeat_model::run::Claimed;
use everbeat_model::{Ending, ExecutionId, Json, Next, Planted, Policy, RunId, RunState, Settled, StoreTime, id};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Decides by the model; its runs get rising ids.
pub(super) struct Plans {
    ids: Arc<id::Sequence>,
    defaults: Defaults,
}

impl Plans {
    pub(super) fn new(ids: Arc<id::Sequence>) -> Plans {
        Plans {
            ids,
            defaults: Defaults {
                policy: Arc::new(Policy::BASELINE),
                queue: "default".to_string(),
                hole: Planted::default(),
            },
        }
    }
}

impl Planner for Plans {
    fn plan(&self, snapshot: Snapshot, commands: Vec<Command>) -> Plan {
        plan(snapshot, commands, &self.defaults, &mut || RunId(self.ids.next(1_767_225_600_000, 0)))
    }
}

/// More than any case makes.
pub(super) const MANY: usize = 10_000;

/// A definition whose nodes are given in short: the name of an input, or a node in full.
pub(super) fn graph(name: &str, nodes: Value) -> Value {
    let nodes: Vec<Value> = nodes.as_array().expect("a list of nodes").iter().map(node).collect();
    json!({ "name": name, "nodes": nodes })
}

fn node(short: &Value) -> Value {
    match short {
        Value::String(name) => json!({ "name": name, "kind": "input" }),
        full => full.clone(),
    }
}

/// A node that the task of its own name computes.
pub(super) fn compute(name: &str, gate: &[&str]) -> Value {
    tasked(name, "compute", gate)
}

pub(super) fn tasked(name: &str, kind: &str, gate: &[&str]) -> Value {
    json!({ "name": name, "kind": kind, "gate": gate, "task": name })
}

/// One more field of a definition or a node.
pub(super) fn with(mut value: Value, field: &str, content: Value) -> Value {
    value[field] = content;
    value
}

/// `a` and `b` are set; `total` is computed from both.
pub(super) fn sum() -> Value {
    graph("sum", json!(["a", "b", compute("total", &["a", "b"])]))
}

pub(super) fn values(object: Value) -> BTreeMap<String, Value> {
    object.as_object().expect("an object").clone().into_iter().collect()
}

pub(super) fn setting(object: Value) -> Command {
    Command::Set { values: values(object), metadata: None }
}

pub(super) fn unsetting(nodes: &[&str]) -> Command {
    Command::Unset(nodes.iter().map(ToString::to_string).collect::<BTreeSet<_>>())
}

/// A claim's success with this result.
pub(super) fn result(claimed: &Claimed, value: &Value) -> everbeat_model::Settlement {
    ended(claimed, Ending::succeeded(Json::of(value)), Next::Finish(RunState::Succeeded))
}

/// A time as a tick's task gives it.
pub(super) fn epoch(at: StoreTime) -> Value {
    json!(at.0 as f64 / 1e6)
}

impl Fixture {
    pub(super) fn planner(&self) -> Arc<dyn Planner> {
        Arc::new(Plans::new(self.ids.clone()))
    }

    pub(super) async fn apply_graph(&self, definition: &Value) -> Applied {
        let graph = Graph::parse(definition).expect("a valid definition");
        Graphs::apply(&*self.store, Arc::new(graph), None).await.expect("apply")
    }

    /// Applies a definition that must be new.
    pub(super) async fn define(&self, definition: &Value) -> Definition {
        let applied = self.apply_graph(definition).await;
        assert!(applied.new, "it was not there before");
        applied.definition
    }

    pub(super) fn new_execution(&self, graph: &str, given: Value) -> Start {
        Start {
            id: ExecutionId(self.next_id()),
            graph: graph.to_string(),
            version: None,
            values: values(given),
            metadata: None,
            idempotency: None,
        }
    }

    pub(super) async fn start_one(&self, start: Start) -> Started {
        self.store.start(vec![start], self.planner()).await.expect("start").remove(0)
    }

    /// Starts an execution that must be new.
    pub(super) async fn begin(&self, graph: &str, given: Value) -> ExecutionId {
        let start = self.new_execution(graph, given);
        let id = start.id;
        let started = self.start_one(start).await;
        assert!(matches!(started, Started::Created { id: made, .. } if made == id), "{started:?}");
        id
    }

    /// Applies a definition and starts an execution of it.
    pub(super) async fn begin_new(&self, definition: &Value, given: Value) -> ExecutionId {
        let name = self.define(definition).await.graph.name.clone();
        self.begin(&name, given).await
    }

    pub(super) async fn tell_all(&self, id: ExecutionId, commands: Vec<Command>) -> Vec<Result<u64, Refusal>> {
        let advance = Advance { execution: id, commands };
        match self.store.advance(vec![advance], self.planner()).await.expect("advance").remove(0) {
            Advanced::Done(answers) => answers,
            Advanced::NotFound => panic!("{id} exists"),
        }
    }

    pub(super) async fn tell(&self, id: ExecutionId, command: Command) -> Result<u64, Refusal> {
        self.tell_all(id, vec![command]).await.remove(0)
    }

    /// Answers the revision.
    pub(super) async fn set(&self, id: ExecutionId, given: Value) -> u64 {
        self.tell(id, setting(given)).await.expect("set")
    }

    pub(super) async fn unset(&self, id: ExecutionId, nodes: &[&str]) -> u64 {
        self.tell(id, unsetting(nodes)).await.expect("unset")
    }

    pub(super) async fn archive(&self, id: ExecutionId) {
        self.tell(id, Command::Archive).await.expect("archive");
    }

    pub(super) async fn unarchive(&self, id: ExecutionId) {
        self.tell(id, Command::Unarchive).await.expect("unarchive");
    }

    /// Looks until nothing is due any more; answers at what, in this order.
    pub(super) async fn catch_up(&self) -> Vec<ExecutionId> {
        let mut all = Vec::new();
        loop {
            let looked = self.store.advance_due(100, self.planner()).await.expect("advance due");
            if looked.executions.is_empty() {
                return all;
            }
            all.extend(looked.executions);
        }
    }

    pub(super) async fn stored(&self, id: ExecutionId) -> Stored {
        Executions::execution(&*self.store, id).await.expect("execution").expect("the execution exists")
    }

    /// The value of a node.
    pub(super) async fn content(&self, id: ExecutionId, node: &str) -> Option<Value> {
        self.stored(id).await.execution.cell(node).map(|cell| cell.value.clone())
    }

    pub(super) async fn computation(&self, id: ExecutionId, node: &str) -> Computation {
        self.stored(id).await.execution.computation(node).cloned().expect("there was a computation")
    }

    pub(super) async fn status(&self, id: ExecutionId, node: &str) -> Status {
        self.computation(id, node).await.status
    }

    /// The run that computes a node, if one does.
    pub(super) async fn computing(&self, id: ExecutionId, node: &str) -> Option<RunId> {
        self.stored(id).await.execution.running(node)
    }

    /// Every node that is being computed.
    pub(super) async fn all_computing(&self, id: ExecutionId) -> Vec<String> {
        let execution = self.stored(id).await.execution;
        execution.nodes.keys().filter(|node| execution.running(node).is_some()).cloned().collect()
    }

    pub(super) async fn remembered(&self, id: ExecutionId) -> Vec<Remembered> {
        self.store.history(id, 0, MANY).await.expect("history")
    }

    pub(super) async fn stamp(&self, id: ExecutionId) -> u64 {
        self.stored(id).await.stamp
    }

    /// The number of the newest batch of events.
    pub(super) async fn news(&self) -> u64 {
        self.store.advance_due(0, self.planner()).await.expect("advance due").news
    }

    /// A lease of the run that computes a node now. Other runs of its task are leased with it, and kept for
    /// when they are asked for.
    pub(super) async fn lease_of(&self, id: ExecutionId, node: &str) -> Claimed {
        let run = self.computing(id, node).await.unwrap_or_else(|| panic!("{node} is being computed"));
        if let Some(claimed) = self.leased(run) {
            return claimed;
        }
        let task = self.look(run).await.spec.task.clone();
        let tasks = BTreeMap::from([(task, MANY)]);
        let replica = self.replica().await;
        let request = Claim { replica, limit: MANY, tasks, queues: BTreeMap::new(), among: None };
        self.keep_leased(self.claim(request).await.expect("claim"));
        self.leased(run).unwrap_or_else(|| panic!("the run of {node} is ready"))
    }

    /// Another lease of a run that is ready again.
    pub(super) async fn running_again_as(&self, earlier: &Claimed) -> Claimed {
        let tasks = BTreeMap::from([(earlier.spec.task.clone(), 1)]);
        let replica = self.replica().await;
        let request = Claim { replica, limit: 1, tasks, queues: BTreeMap::new(), among: None };
        let claimed = self.claim(request).await.expect("claim").pop().expect("there is something to claim");
        assert_eq!(claimed.lease.run_id, earlier.lease.run_id);
        claimed
    }

    /// Performs a node with this result, and looks.
    pub(super) async fn perform(&self, id: ExecutionId, node: &str, value: Value) {
        let claimed = self.lease_of(id, node).await;
        assert_eq!(self.end(result(&claimed, &value)).await, Settled::Done);
        self.catch_up().await;
    }

    /// Lets a node fail for good, and looks.
    pub(super) async fn break_down(&self, id: ExecutionId, node: &str) {
        let claimed = self.lease_of(id, node).await;
        assert_eq!(self.end(failure(&claimed)).await, Settled::Done);
        self.catch_up().await;
    }

    /// The store's time.
    pub(super) async fn now(&self) -> StoreTime {
        self.join(self.new_replica()).await.expect("join").now
    }

    /// The audit finds nothing wrong, and no computation is stranded.
    pub(super) async fn sound(&self) {
        assert_eq!(self.audit().await.expect("audit").violations, []);
        assert_eq!(self.store.note_stranded(MANY).await.expect("note stranded"), 0);
    }
}
