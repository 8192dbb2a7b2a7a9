use crate::Result;
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::graph::{Cell, Change, Command, Condition, Execution, Graph, Plan, Refusal, Snapshot, Sort};
use everbeat_model::{ExecutionId, Idempotency, Json, Reason, RunId, Sent, StoreTime};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Instances of graphs. Every change of one is decided under its lock, over a snapshot of it, and
/// written with all that follows from it (runs made, runs stopped, when to look again) in one
/// transaction.
///
/// A run that computes a node notes its execution in the transaction that finishes it; so does a tick
/// when it is armed, and a new definition of the graph. Whoever looks next takes the note and carries
/// on. A note that is taken twice costs a look, nothing else.
#[async_trait]
pub trait Executions {
    /// Starts executions, each wholly or not at all. Answers in the order given.
    async fn start(&self, starts: Vec<Start>, planner: Arc<dyn Planner>) -> Result<Vec<Started>>;

    /// Carries out what is asked of executions, each wholly or not at all, and with it whatever is due
    /// for them. No execution is named twice. Answers in the order given. An execution goes on with a
    /// definition of its graph that was applied after it began. One of a singleton graph is not brought
    /// back from the archive while another stands: that is a conflict.
    async fn advance(&self, advances: Vec<Advance>, planner: Arc<dyn Planner>) -> Result<Vec<Advanced>>;

    /// Looks at up to `limit` executions that a due note names: first those whose note waits for no time, the
    /// oldest first, then those longest due. Executions that somebody else looks at just now are passed over.
    async fn advance_due(&self, limit: usize, planner: Arc<dyn Planner>) -> Result<Looked>;

    /// Notes executions whose computation counts as running although its run is over or unknown, at most
    /// `limit`; answers how many. There are none unless something went wrong: it is the net.
    async fn note_stranded(&self, limit: usize) -> Result<usize>;

    async fn execution(&self, id: ExecutionId) -> Result<Option<Stored>>;

    /// One value, without loading the rest; none if there is no such execution.
    async fn value(&self, id: ExecutionId, node: &str) -> Result<Option<Peek>>;

    /// In the order asked for, else newest first.
    async fn executions(&self, filter: ExecutionFilter) -> Result<Vec<Stored>>;

    async fn count(&self, filter: ExecutionFilter) -> Result<u64>;

    /// The stamps of these executions, in the order given; those unknown are left out.
    async fn stamps(&self, executions: Vec<ExecutionId>) -> Result<Vec<(ExecutionId, u64)>>;

    /// What was set and cleared, oldest first, after place `after`.
    async fn history(&self, id: ExecutionId, after: u64, limit: usize) -> Result<Vec<Remembered>>;

    /// How far executions of a graph have come. Archived ones count too.
    async fn analytics(&self, graph: &str) -> Result<Analytics>;
}

/// What decides over a snapshot. Pure, and quick: it is called inside a transaction, again if that has
/// to be repeated.
pub trait Planner: Send + Sync + 'static {
    fn plan(&self, snapshot: Snapshot, commands: Vec<Command>) -> Plan;
}

#[derive(Clone, Debug)]
pub struct Start {
    pub id: ExecutionId,
    pub graph: String,
    /// The latest definition of this version, or of all.
    pub version: Option<String>,
    /// Set with the start, as one change.
    pub values: BTreeMap<String, Value>,
    pub metadata: Option<Value>,
    pub idempotency: Option<Idempotency>,
}

impl Start {
    /// What is asked of the execution as it begins.
    pub fn commands(&self) -> Vec<Command> {
        if self.values.is_empty() {
            return Vec::new();
        }
        vec![Command::Set { values: self.values.clone(), metadata: self.metadata.clone() }]
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    Created {
        id: ExecutionId,
        revision: u64,
    },
    /// The one execution of a singleton graph; what an earlier request with the same idempotency key
    /// started; or this very start again.
    Exists(ExecutionId),
    NoGraph,
    /// The idempotency key was used for another request.
    KeyReused,
    Refused(Refusal),
}

impl Started {
    /// The answer to a start that is not the first of its kind.
    pub fn earlier(sent: Sent<ExecutionId>) -> Option<Started> {
        match sent {
            Sent::First => None,
            Sent::Again(id) => Some(Started::Exists(id)),
            Sent::Reused => Some(Started::KeyReused),
        }
    }

    /// The execution that the idempotency key of the start stands for from now on. A start that made nothing and found
    /// nothing leaves its key free.
    pub fn kept(&self) -> Option<ExecutionId> {
        match self {
            Started::Created { id, .. } | Started::Exists(id) => Some(*id),
            Started::NoGraph | Started::KeyReused | Started::Refused(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Advance {
    pub execution: ExecutionId,
    /// None at all: only what is due for it.
    pub commands: Vec<Command>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advanced {
    NotFound,
    /// The answer to each command.
    Done(Vec<std::result::Result<u64, Refusal>>),
}

impl Advanced {
    /// The answer where all commands are refused for one reason.
    pub fn refused(commands: &[Command], refusal: &Refusal) -> Advanced {
        Advanced::Done(commands.iter().map(|_| Err(refusal.clone())).collect())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    pub executions: Vec<ExecutionId>,
    /// How long until the next note is due; zero if there may be more that are due now.
    pub next_in: Option<Duration>,
    /// The newest batch of events: as long as it stays the same, nothing has changed for those who wait.
    pub news: u64,
}

/// An execution as it is stored.
#[derive(Clone, Debug)]
pub struct Stored {
    pub id: ExecutionId,
    /// The definition that it goes by.
    pub graph: Arc<Graph>,
    pub execution: Execution,
    /// Rises with everything that is written to it, also where no revision does.
    pub stamp: u64,
    pub created_at: StoreTime,
    pub updated_at: StoreTime,
    /// The attempt that each computation's run is at, by node; only of those that are running.
    pub attempts: BTreeMap<String, u32>,
}

/// A node of an execution, for whoever waits for its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Peek {
    pub stamp: u64,
    /// The definition that the execution goes by has the node.
    pub known: bool,
    pub cell: Option<Cell>,
    /// Why its last computation failed for good, if it did.
    pub failed: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct ExecutionFilter {
    pub graph: Option<String>,
    /// All of them hold.
    pub conditions: Vec<Condition>,
    pub include_archived: bool,
    /// None is newest first.
    pub sort: Option<Sort>,
    /// Only older than this one; for lists that are not sorted.
    pub before: Option<ExecutionId>,
    pub offset: usize,
    pub limit: usize,
}

/// One change of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Remembered {
    /// Rises within the execution; the cursor of its history.
    pub place: u64,
    pub node: String,
    /// None: it was cleared.
    pub value: Option<Json>,
    pub revision: u64,
    pub at: StoreTime,
    pub metadata: Option<Json>,
    /// The run whose result it was.
    pub run: Option<RunId>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Analytics {
    pub executions: u64,
    pub archived: u64,
    pub nodes: BTreeMap<String, Reach>,
}

/// How many executions have ever set a node, how long that took from their start on average, and for how
/// many it was the last one that changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reach {
    pub reached: u64,
    pub average: Duration,
    pub ended: u64,
}

/// When a note is due that waits for no time: whatever the store's clock does, it is due.
pub const AT_ONCE: StoreTime = StoreTime(0);

/// A long history of a node is cut to what it keeps at every so many changes of it, not at each.
pub const CUT_EVERY: u64 = 64;

/// Whether the history of a node is cut after its change number `changes`.
pub fn cuts(changes: u64, keep: usize) -> bool {
    let keep = keep as u64;
    changes > keep && (keep < CUT_EVERY || changes.is_multiple_of(CUT_EVERY))
}

/// The changes that go into the history.
pub fn recorded<'a>(graph: &'a Graph, plan: &'a Plan) -> impl Iterator<Item = &'a Change> {
    plan.changes.changed.iter().filter(|change| graph.keep(&change.node) > 0)
}

/// Why a run that its execution no longer wants ended.
pub fn superseded() -> Json {
    Json::of(&serde_json::json!({
        "reason": Reason::Superseded.as_str(),
        "message": "its execution no longer wants it: something that it depends on changed, or somebody ended it",
    }))
}

/// What a plan tells those who follow the log.
pub fn events(id: ExecutionId, plan: &Plan, began: bool) -> Vec<String> {
    let changes = &plan.changes;
    let kind = match (began, changes.archived, changes.execution.archived_at) {
        (true, ..) => EventKind::ExecutionStarted,
        (false, true, Some(_)) => EventKind::ExecutionArchived,
        (false, true, None) => EventKind::ExecutionUnarchived,
        (false, false, _) => EventKind::ExecutionChanged,
    };
    let subject = id.to_string();
    let detail = Json::of(&serde_json::json!({ "revision": changes.execution.revision }));
    let mut lines = vec![line(kind, &subject, None, Some(&detail))];
    for (node, error) in &changes.failed {
        let detail = Json::of(&serde_json::json!({ "node": node, "error": error }));
        lines.push(line(EventKind::ExecutionNodeFailed, &subject, None, Some(&detail)));
    }
    lines.extend(plan.runs.iter().map(|run| line(EventKind::RunCreated, &run.id.to_string(), None, None)));
    lines
}
