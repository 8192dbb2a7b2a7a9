//! From a snapshot and what is asked of it to everything that one transaction writes.

use super::decide::{Changes, Command, Start, decide_with};
use super::execution::Execution;
use super::kind::NodeKind;
use super::node::Graph;
use crate::error::{Invalid, nearest};
use crate::hole::Planted;
use crate::id::{ExecutionId, RunId};
use crate::json::Json;
use crate::policy::{Policy, PolicyPatch};
use crate::run::{Kind, NewRun, Parent, RunState, Spec};
use crate::time::StoreTime;
use serde_json::{Value, json};
use std::sync::Arc;

/// An execution as one transaction sees it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub id: ExecutionId,
    pub graph: Arc<Graph>,
    pub execution: Execution,
    /// Finished runs of computations that count as running.
    pub ended: Vec<Ended>,
    pub now: StoreTime,
}

impl Snapshot {
    /// An execution that is about to begin.
    pub fn before(id: ExecutionId, graph: Arc<Graph>, now: StoreTime) -> Snapshot {
        Snapshot { id, graph, execution: Execution::default(), ended: Vec::new(), now }
    }
}

/// A run of a node that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub node: String,
    pub run: RunId,
    pub state: RunState,
    pub result: Option<Json>,
    pub error: Option<Json>,
}

impl Ended {
    /// A run that counts as running and is not stored any more.
    pub fn unknown(node: String, run: RunId) -> Ended {
        let error = Json::of(&json!({ "message": "its run is no longer known" }));
        Ended { node, run, state: RunState::Failed, result: None, error: Some(error) }
    }
}

/// What one transaction writes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The execution's revision after each command, or why it was not carried out; in the order given.
    pub answers: Vec<Result<u64, Refusal>>,
    pub changes: Changes,
    /// The runs of what starts, and the callbacks of what was saved.
    pub runs: Vec<NewRun>,
}

impl Plan {
    /// Why an execution does not begin: what was asked of it with its start was refused.
    pub fn refused_start(&self) -> Option<Refusal> {
        self.answers.first()?.clone().err()
    }
}

/// Why a command was not carried out. It changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Invalid(Invalid),
    /// It does not fit the state of the execution.
    Conflict {
        problem: String,
        hint: String,
    },
}

impl Refusal {
    /// The store cannot hold what the command leads to, for a reason that lies in its values: trying again does not
    /// help.
    pub fn unstorable(reason: &str) -> Refusal {
        let hint = "send other or smaller values; the server's log names the execution";
        Refusal::Invalid(Invalid::new("", reason, "the store cannot hold it", hint))
    }
}

/// What node runs are made with, where the definition says nothing.
#[derive(Clone, Debug)]
pub struct Defaults {
    pub policy: Arc<Policy>,
    pub queue: String,
    /// The mistake to plant; only the simulation sets it.
    pub hole: Planted,
}

/// Decides, with the results of finished runs first: they came before what is asked now.
pub fn plan(
    snapshot: Snapshot,
    commands: Vec<Command>,
    defaults: &Defaults,
    new_run: &mut dyn FnMut() -> RunId,
) -> Plan {
    let Snapshot { id, graph, execution, ended, now } = snapshot;
    let (ended, more) = some_of(ended);
    let mut accepted: Vec<Command> = ended.into_iter().map(over).collect();
    let results = accepted.len();
    let mut archived = execution.archived_at.is_some();
    let mut refusals = Vec::with_capacity(commands.len());
    for command in commands {
        match check(&graph, &execution, archived, &command) {
            Err(refusal) => refusals.push(Some(refusal)),
            Ok(()) => {
                archived = (archived || command == Command::Archive) && command != Command::Unarchive;
                accepted.push(command);
                refusals.push(None);
            }
        }
    }
    let changes = decide_with(defaults.hole, &graph, execution, accepted, now, new_run);
    let mut changes = changes;
    if more {
        changes.ticks.insert(String::new(), StoreTime(0));
    }
    let mut revisions = changes.revisions[results..].iter().copied();
    let answers = refusals
        .into_iter()
        .map(|refusal| refusal.map_or_else(|| Ok(revisions.next().unwrap_or(changes.execution.revision)), Err))
        .collect();
    let mut runs: Vec<NewRun> =
        changes.start.iter().filter_map(|start| node_run(id, &graph, start, defaults)).collect();
    runs.extend(callbacks(id, &graph, &changes, defaults, new_run));
    Plan { answers, changes, runs }
}

/// One decision takes no more than this in; what is left is decided at once after it.
const MOST_ENDED: usize = 10_000;
const MOST_ENDED_BYTES: usize = 32 << 20;

/// As many as one decision takes, and whether there are more.
fn some_of(mut ended: Vec<Ended>) -> (Vec<Ended>, bool) {
    let mut bytes = 0;
    let taken = ended.iter().take(MOST_ENDED).take_while(|ended| {
        bytes += ended.result.as_ref().map_or(0, |result| result.as_str().len());
        bytes <= MOST_ENDED_BYTES
    });
    let count = taken.count().max(1);
    let more = ended.len() > count;
    ended.truncate(count);
    (ended, more)
}

fn over(ended: Ended) -> Command {
    let Ended { node, run, state, result, error } = ended;
    let read = result.as_ref().map(Json::read::<Value>);
    match (state, read) {
        (RunState::Succeeded, Some(Ok(result))) => Command::Computed { node, run, result },
        (RunState::Succeeded, None) => Command::Computed { node, run, result: Value::Null },
        (RunState::Succeeded, Some(Err(error))) => {
            Command::Failed { node, run, error: format!("its result cannot be read: {error}") }
        }
        (RunState::Cancelled, _) => Command::Failed { node, run, error: reason(error, "cancelled on request") },
        _ => Command::Failed { node, run, error: reason(error, "failed without a reason") },
    }
}

fn reason(error: Option<Json>, otherwise: &str) -> String {
    let error = error.and_then(|error| error.read::<Value>().ok());
    let message = error.as_ref().and_then(|error| error.get("message")).and_then(Value::as_str);
    message.unwrap_or(otherwise).to_string()
}

fn check(graph: &Graph, execution: &Execution, archived: bool, command: &Command) -> Result<(), Refusal> {
    let conflict = |problem: String, hint: &str| Err(Refusal::Conflict { problem, hint: hint.to_string() });
    match command {
        Command::Set { .. } | Command::Unset(_) | Command::Retry(_) if archived => {
            conflict("the execution is archived".to_string(), "unarchive it first")
        }
        Command::Set { values, .. } => values.keys().try_for_each(|node| check_input(graph, node, "set")),
        Command::Unset(nodes) => nodes.iter().try_for_each(|node| check_input(graph, node, "unset")),
        Command::Retry(node) | Command::Abandon(node) => {
            if !known(graph, node)?.has_task() {
                let problem = format!("node {node:?} is never computed by a task");
                return conflict(problem, "choose a node that a task computes");
            }
            if matches!(command, Command::Abandon(_)) && execution.running(node).is_none() {
                let problem = format!("node {node:?} is not being computed");
                return conflict(problem, "only a computation that runs, or waits to, can be abandoned");
            }
            Ok(())
        }
        Command::Computed { .. } | Command::Failed { .. } | Command::Archive | Command::Unarchive => Ok(()),
    }
}

fn known(graph: &Graph, node: &str) -> Result<NodeKind, Refusal> {
    graph.node(node).map(|node| node.kind).ok_or_else(|| {
        let hint = match nearest(node, graph.nodes().iter().map(|node| node.name.as_str())) {
            Some(near) => format!("did you mean {near:?}?"),
            None => "look at the graph's nodes".to_string(),
        };
        Refusal::Invalid(Invalid::new(node, format!("{node:?}"), format!("is not a node of {:?}", graph.name), hint))
    })
}

fn check_input(graph: &Graph, node: &str, verb: &str) -> Result<(), Refusal> {
    let kind = known(graph, node)?;
    if kind == NodeKind::Input {
        return Ok(());
    }
    let problem = format!("is a {} node and computes itself", kind.as_str());
    let hint = format!("{verb} one of the input nodes");
    Err(Refusal::Invalid(Invalid::new(node, format!("{node:?}"), problem, hint)))
}

fn node_run(execution: ExecutionId, graph: &Graph, start: &Start, defaults: &Defaults) -> Option<NewRun> {
    let node = graph.node(&start.node)?;
    let spec = Spec {
        kind: Kind::Node,
        task: node.task.clone()?,
        queue: defaults.queue.clone(),
        priority: 0,
        input: start.input.clone(),
        args: node.args.as_ref().map(Json::of),
        policy: policy(&node.options.policy, &defaults.policy),
        unique_key: None,
        parent: Some(Parent { execution, node: start.node.clone() }),
        host: None,
        session: None,
        occurrence: None,
    };
    Some(NewRun { id: start.run, spec: Arc::new(spec), run_at: None })
}

/// The node's own options over the configured ones. They were checked when the graph was defined; should
/// the configuration have changed so that they no longer go together, the built-in ones stand in.
fn policy(options: &serde_json::Map<String, Value>, base: &Arc<Policy>) -> Arc<Policy> {
    if options.is_empty() {
        return base.clone();
    }
    let over = |base: &Policy| PolicyPatch::parse(&Value::Object(options.clone())).and_then(|patch| patch.over(base));
    over(base).or_else(|_| over(&Policy::BASELINE)).map_or_else(|_| base.clone(), Arc::new)
}

/// A run of the callback for every value that was saved and every computation that failed. They are
/// written with the change itself, so that each is called once, after it is committed.
fn callbacks(
    id: ExecutionId,
    graph: &Graph,
    changes: &Changes,
    defaults: &Defaults,
    new_run: &mut dyn FnMut() -> RunId,
) -> Vec<NewRun> {
    let tasks = |name: &str| {
        let own = graph.node(name).and_then(|node| node.options.on_save.clone());
        own.into_iter().chain(graph.on_save.clone())
    };
    let mut runs = Vec::new();
    let mut call = |node: &str, input: Value| {
        for task in tasks(node) {
            let spec = Spec {
                kind: Kind::Task,
                task,
                queue: defaults.queue.clone(),
                priority: 0,
                input: Json::of(&input),
                args: None,
                policy: defaults.policy.clone(),
                unique_key: None,
                parent: None,
                host: None,
                session: None,
                occurrence: None,
            };
            runs.push(NewRun { id: new_run(), spec: Arc::new(spec), run_at: None });
        }
    };
    for change in &changes.changed {
        if let Some(cell) = &change.cell {
            let (value, revision) = (&cell.value, cell.revision);
            let saved =
                json!({"execution": id, "node": change.node, "status": "saved", "value": value, "revision": revision});
            call(&change.node, saved);
        }
    }
    for (node, error) in &changes.failed {
        call(node, json!({"execution": id, "node": node, "status": "failed", "error": error}));
    }
    runs
}
