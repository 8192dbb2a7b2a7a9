use crate::task::Typed;
use crate::{IntoGate, Key, Values};
use everbeat_engine::{Ctx, Failure, Tasks};
use everbeat_model::graph::{Graph, Node, NodeKind, NodeOptions};
use everbeat_model::schedule::Rhythm;
use everbeat_model::{ExecutionId, Invalid, StoreTime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::future::Future;

/// A graph with the functions that compute its nodes.
pub struct GraphDefinition {
    pub(crate) graph: Graph,
    pub(crate) tasks: Tasks,
}

impl GraphDefinition {
    /// Begins a definition. Another version, or another definition under the same one, reaches executions
    /// that run already.
    pub fn builder(name: impl Into<String>, version: impl Into<String>) -> GraphBuilder {
        GraphBuilder {
            name: name.into(),
            version: version.into(),
            singleton: false,
            on_save: None,
            nodes: Vec::new(),
            tasks: Tasks::default(),
            problem: None,
        }
    }

    /// The definition as data.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }
}

/// A graph that is being put together. Mistakes are told by `build`, each with the name of its node.
pub struct GraphBuilder {
    name: String,
    version: String,
    singleton: bool,
    on_save: Option<String>,
    nodes: Vec<Node>,
    tasks: Tasks,
    problem: Option<Invalid>,
}

/// What an iteration of a loop gives.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Iteration<S, T> {
    /// Another iteration follows; it finds this under the loop's own name.
    Continue {
        #[serde(rename = "continue")]
        state: S,
    },
    /// The same, with what becomes the value if this was the last one allowed.
    ContinueOr {
        #[serde(rename = "continue")]
        state: S,
        fallback: T,
    },
    Done {
        done: T,
    },
}

/// What a callback is told.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Saved {
    pub execution: ExecutionId,
    pub node: String,
    /// `saved` or `failed`.
    pub status: String,
    #[serde(default)]
    pub value: Option<Value>,
    #[serde(default)]
    pub revision: Option<u64>,
    #[serde(default)]
    pub error: Option<String>,
}

impl GraphBuilder {
    /// There is at most one execution of it that is not archived.
    pub fn singleton(mut self) -> GraphBuilder {
        self.singleton = true;
        self
    }

    /// A node that is set from outside.
    pub fn input<T>(mut self, key: Key<T>) -> GraphBuilder {
        self.nodes.push(Node::input(key.name()));
        self
    }

    /// A node that its function computes when the gate holds, and again when something that the gate
    /// names has changed.
    pub fn compute<T, F, Fut>(self, key: Key<T>, gate: impl IntoGate, function: F) -> GraphBuilder
    where
        T: Serialize + 'static,
        F: Fn(Ctx, Values) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.function(key.name(), NodeKind::Compute, gate, Vec::new(), function)
    }

    /// A node that a task known by name computes: one of the engine's own, or of another program.
    pub fn compute_by<T>(mut self, key: Key<T>, gate: impl IntoGate, task: &str, args: Value) -> GraphBuilder {
        let node = Node { args: Some(args), ..node(key.name(), NodeKind::Compute, gate, Some(task.to_string())) };
        self.nodes.push(node);
        self
    }

    /// A node whose function gives a new value for another one. It leaves that one's revision alone, so
    /// that nothing is computed anew, unless the option `update_revision_on_change` is set.
    pub fn mutate<T, F, Fut>(self, key: Key<String>, gate: impl IntoGate, target: Key<T>, function: F) -> GraphBuilder
    where
        T: Serialize + 'static,
        F: Fn(Ctx, Values) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.function(key.name(), NodeKind::Mutate, gate, vec![target.name().to_string()], function)
    }

    /// A node whose function gives new values for several others.
    pub fn mutate_all<F, Fut>(
        self,
        key: Key<String>,
        gate: impl IntoGate,
        targets: &[&str],
        function: F,
    ) -> GraphBuilder
    where
        F: Fn(Ctx, Values) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Values, Failure>> + Send + 'static,
    {
        let targets = targets.iter().map(ToString::to_string).collect();
        self.function(key.name(), NodeKind::Mutate, gate, targets, function)
    }

    /// A node that keeps what the nodes of its gate have been, newest first.
    pub fn historian(mut self, key: Key<Vec<Value>>, gate: impl IntoGate) -> GraphBuilder {
        self.nodes.push(node(key.name(), NodeKind::Historian, gate, None));
        self
    }

    /// A node that archives the execution when its gate holds.
    pub fn archive(mut self, key: Key<StoreTime>, gate: impl IntoGate) -> GraphBuilder {
        self.nodes.push(node(key.name(), NodeKind::Archive, gate, None));
        self
    }

    /// A node that is due once, at the time its function gives; none pauses it.
    pub fn tick_once<F, Fut>(self, key: Key<Option<StoreTime>>, gate: impl IntoGate, function: F) -> GraphBuilder
    where
        F: Fn(Ctx, Values) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<StoreTime>, Failure>> + Send + 'static,
    {
        self.function(key.name(), NodeKind::TickOnce, gate, Vec::new(), function)
    }

    /// A node that is due again and again, each time at the time its function gives.
    pub fn tick_recurring<F, Fut>(self, key: Key<Option<StoreTime>>, gate: impl IntoGate, function: F) -> GraphBuilder
    where
        F: Fn(Ctx, Values) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<StoreTime>, Failure>> + Send + 'static,
    {
        self.function(key.name(), NodeKind::TickRecurring, gate, Vec::new(), function)
    }

    /// A node that is due once, by a schedule such as `{"every": "10m"}`, ten minutes after its gate opened, or
    /// `{"cron": "0 9 * * *", "tz": "Europe/Berlin"}`, at nine o'clock.
    pub fn tick_once_by(self, key: Key<Option<StoreTime>>, gate: impl IntoGate, schedule: Value) -> GraphBuilder {
        self.scheduled(key.name(), NodeKind::TickOnce, gate, &schedule)
    }

    /// A node that is due again and again, by a schedule as [`GraphBuilder::tick_once_by`] takes it. It does not drift.
    pub fn tick_recurring_by(self, key: Key<Option<StoreTime>>, gate: impl IntoGate, schedule: Value) -> GraphBuilder {
        self.scheduled(key.name(), NodeKind::TickRecurring, gate, &schedule)
    }

    fn scheduled(mut self, name: &str, kind: NodeKind, gate: impl IntoGate, schedule: &Value) -> GraphBuilder {
        match Rhythm::parse(schedule) {
            Ok(rhythm) => self.nodes.push(Node { schedule: Some(rhythm), ..node(name, kind, gate, None) }),
            Err(problem) => _ = self.problem.get_or_insert(problem.within("schedule").within(name)),
        }
        self
    }

    /// A node whose function is called again and again until it is done, at most `most` times. Every
    /// iteration is durable and has all the tries of a run.
    pub fn iterate<S, T, F, Fut>(mut self, key: Key<T>, gate: impl IntoGate, most: u32, function: F) -> GraphBuilder
    where
        S: Serialize + 'static,
        T: Serialize + 'static,
        F: Fn(Ctx, Values) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Iteration<S, T>, Failure>> + Send + 'static,
    {
        self = self.function(key.name(), NodeKind::Loop, gate, Vec::new(), function);
        self.options(json!({ "max_iterations": most }))
    }

    /// Options of the node added last, as in a graph's JSON form; they add to those it has.
    pub fn options(mut self, options: Value) -> GraphBuilder {
        let Some(node) = self.nodes.last_mut() else {
            let problem = Invalid::new("options", options, "belongs to no node", "add a node first");
            self.problem.get_or_insert(problem);
            return self;
        };
        let mut merged = node.options.to_value();
        match (&mut merged, options) {
            (Value::Object(merged), Value::Object(options)) => merged.extend(options),
            (merged, options) => *merged = options,
        }
        match NodeOptions::parse(Some(&merged)) {
            Ok(options) => node.options = options,
            Err(problem) => _ = self.problem.get_or_insert(problem.within(&node.name)),
        }
        self
    }

    /// Calls the function after a value of the node added last was saved or its computation failed.
    pub fn on_save<F, Fut>(mut self, function: F) -> GraphBuilder
    where
        F: Fn(Ctx, Saved) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let Some(node) = self.nodes.last_mut() else { return self };
        let task = format!("{}/{}/on_save", self.name, node.name);
        node.options.on_save = Some(task.clone());
        self.tasks.add(task, Typed::new(function));
        self
    }

    /// Calls the function after any value of an execution was saved or any computation failed.
    pub fn on_any_save<F, Fut>(mut self, function: F) -> GraphBuilder
    where
        F: Fn(Ctx, Saved) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let task = format!("{}/on_save", self.name);
        self.on_save = Some(task.clone());
        self.tasks.add(task, Typed::new(function));
        self
    }

    pub fn build(self) -> Result<GraphDefinition, crate::Error> {
        if let Some(problem) = self.problem {
            return Err(everbeat_engine::Error::Invalid(problem).into());
        }
        let graph = Graph::new(self.name, self.version, self.singleton, self.on_save, self.nodes)
            .map_err(everbeat_engine::Error::Invalid)?;
        Ok(GraphDefinition { graph, tasks: self.tasks })
    }

    fn function<T, F, Fut>(
        mut self,
        name: &str,
        kind: NodeKind,
        gate: impl IntoGate,
        mutates: Vec<String>,
        function: F,
    ) -> GraphBuilder
    where
        T: Serialize + 'static,
        F: Fn(Ctx, Values) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let task = format!("{}/{name}", self.name);
        self.nodes.push(Node { mutates, ..node(name, kind, gate, Some(task.clone())) });
        self.tasks.add(task, Typed::new(function));
        self
    }
}

fn node(name: &str, kind: NodeKind, gate: impl IntoGate, task: Option<String>) -> Node {
    Node { kind, gate: gate.into_gate(), task, ..Node::input(name) }
}
