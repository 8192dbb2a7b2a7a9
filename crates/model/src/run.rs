use crate::error::Invalid;
use crate::id::{ExecutionId, ReplicaId, RunId, ScheduleId};
use crate::json::Json;
use crate::lease::Lease;
use crate::policy::Policy;
use crate::session::Session;
use crate::time::StoreTime;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// A durable unit of work, as the store shows it now.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub id: RunId,
    pub spec: Arc<Spec>,
    pub created_at: StoreTime,
    pub run_at: Option<StoreTime>,
    pub state: RunState,
    /// The last attempt's number, 0 before the first.
    pub attempt: u32,
    /// Tries used up of `max_attempts`. An attempt that runs, was released or cancelled has used none.
    pub tries: u32,
    pub started_at: Option<StoreTime>,
    pub finished_at: Option<StoreTime>,
    pub replica_id: Option<ReplicaId>,
    /// How often the running attempt passed from one replica to the next.
    pub tenure: u32,
    pub worker_id: Option<String>,
    /// While it runs: the later of what the lease records and its replica's own beat.
    pub last_heartbeat_at: Option<StoreTime>,
    pub cancel_requested_at: Option<StoreTime>,
    pub result: Option<Json>,
    pub error: Option<Json>,
    pub progress: Option<Json>,
    pub checkpoint: Option<Json>,
}

impl Run {
    /// What it holds of its users' data.
    pub fn bytes(&self) -> usize {
        let spec = &self.spec;
        let all = [Some(&spec.input), spec.args.as_ref(), self.result.as_ref(), self.checkpoint.as_ref()];
        all.into_iter().flatten().map(|json| json.as_str().len()).sum()
    }
}

/// What a run is, fixed when it is enqueued.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub kind: Kind,
    pub task: String,
    pub queue: String,
    /// Higher is claimed first.
    pub priority: i16,
    pub input: Json,
    /// What is said besides the input: by the definition of its node, or by what it is due by.
    pub args: Option<Json>,
    pub policy: Arc<Policy>,
    pub unique_key: Option<String>,
    pub parent: Option<Parent>,
    /// Of a detached run: the host where it has begun, and where its workspace is. It is tried again there
    /// and nowhere else, until that host is given up. Of a run that waits for the worker of its session: that worker,
    /// as `session::waits_for` writes it.
    pub host: Option<String>,
    /// The session that it belongs to.
    pub session: Option<Session>,
    /// The due time of a schedule that it stands for.
    pub occurrence: Option<OccurrenceOf>,
}

/// The task of whatever is performed as a detached command: jobs, and nodes that are commands.
pub const COMMAND: &str = "command";

impl Spec {
    /// Whether a shim performs it, which outlives the replica that started it.
    pub fn detached(&self) -> bool {
        self.task == COMMAND
    }

    /// What a task that is told how to work reads: the arguments of its node, or else the input.
    pub fn orders(&self) -> &Json {
        self.args.as_ref().filter(|_| self.parent.is_some()).unwrap_or(&self.input)
    }

    /// What it is claimed by: its task, or its task on the host where it belongs.
    pub fn lane(&self) -> Cow<'_, str> {
        match &self.host {
            None => Cow::Borrowed(&self.task),
            Some(host) => Cow::Owned(lane_on(&self.task, host)),
        }
    }
}

/// The lane of what belongs to a host.
pub fn lane_on(task: &str, host: &str) -> String {
    format!("{task}@{host}")
}

/// What a run computes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Parent {
    pub execution: ExecutionId,
    pub node: String,
}

/// Which due time of a schedule a run stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OccurrenceOf {
    pub schedule: ScheduleId,
    pub due: StoreTime,
}

/// A run to be enqueued.
#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: RunId,
    pub spec: Arc<Spec>,
    pub run_at: Option<StoreTime>,
}

impl NewRun {
    /// Which run stands for this one, if it is not to be made: itself, if it is stored already, since an earlier answer
    /// was lost; or the unfinished run that holds its unique key.
    pub fn stood_for(&self, stored: bool, holder: Option<RunId>) -> Option<RunId> {
        if stored { Some(self.id) } else { holder }
    }

    /// How much text it is.
    pub fn bytes(&self) -> usize {
        self.spec.input.as_str().len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Task,
    Node,
    Flow,
    Job,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Task, Kind::Node, Kind::Flow, Kind::Job];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Task => "task",
            Kind::Node => "node",
            Kind::Flow => "flow",
            Kind::Job => "job",
        }
    }

    pub fn parse(text: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// `scheduled → ready → running → succeeded | failed | cancelled`; a run that is tried again goes
/// back from running to ready or scheduled, and a finished one that is reopened to ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Scheduled,
    Ready,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

impl RunState {
    pub const ALL: [RunState; 6] = [
        RunState::Scheduled,
        RunState::Ready,
        RunState::Running,
        RunState::Succeeded,
        RunState::Failed,
        RunState::Cancelled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            RunState::Scheduled => "scheduled",
            RunState::Ready => "ready",
            RunState::Running => "running",
            RunState::Succeeded => "succeeded",
            RunState::Failed => "failed",
            RunState::Cancelled => "cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<RunState> {
        RunState::ALL.into_iter().find(|state| state.as_str() == text)
    }

    pub fn finished(self) -> bool {
        matches!(self, RunState::Succeeded | RunState::Failed | RunState::Cancelled)
    }
}

/// What an unfinished run has behind it. It travels with the run from ready to lease and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The last attempt's number; the next lease gets one more.
    pub attempt: u32,
    /// Attempts used up of `max_attempts`.
    pub tries: u32,
    /// How many of them were lost.
    pub losses: u32,
}

/// A run that has just been claimed, with all that performing and settling it needs.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub lease: Lease,
    pub spec: Arc<Spec>,
    /// Including this attempt's number.
    pub standing: Standing,
    pub checkpoint: Option<Json>,
    /// When it could first have been claimed: when it was accepted, or the time it was to wait for.
    pub due_at: StoreTime,
}

const NAME_LIMIT: usize = 200;

/// Task and queue names: short, visible, without spaces, so that they can stand in logs and paths.
pub fn check_name(field: &str, name: &str) -> Result<(), Invalid> {
    let hint = format!("use 1 to {NAME_LIMIT} visible characters without spaces");
    if name.is_empty() || name.len() > NAME_LIMIT {
        return Err(Invalid::new(field, format!("{name:?}"), "has a bad length", hint));
    }
    if name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(Invalid::new(field, format!("{name:?}"), "has a space or control character", hint));
    }
    Ok(())
}

/// The name of a task that is performed inside a replica or by a worker: commands are asked for otherwise.
pub fn check_task_name(field: &str, name: &str) -> Result<(), Invalid> {
    check_name(field, name)?;
    if name == COMMAND || name.starts_with(&lane_on(COMMAND, "")) {
        let hint = "submit a command as a job: POST /api/v1/jobs, or everbeat run -- CMD";
        return Err(Invalid::new(field, format!("{name:?}"), "is a reserved name", hint));
    }
    Ok(())
}

const KEY_LIMIT: usize = 500;

/// Unique and idempotency keys: any text without control characters, not too long for an index.
pub fn check_key(field: &str, key: &str) -> Result<(), Invalid> {
    let hint = format!("use 1 to {KEY_LIMIT} characters without control characters");
    if key.is_empty() || key.len() > KEY_LIMIT || key.chars().any(char::is_control) {
        return Err(Invalid::new(field, format!("{key:?}"), "cannot be a key", hint));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_run_is_stood_for_by_itself_before_the_holder_of_its_key() {
        let [own, other] = [1, 2].map(|number| RunId(Uuid::from_u128(number)));
        let spec = Spec {
            kind: Kind::Task,
            task: "t".to_string(),
            queue: "q".to_string(),
            priority: 0,
            input: Json::null(),
            args: None,
            policy: Arc::new(Policy::BASELINE),
            unique_key: Some("k".to_string()),
            parent: None,
            host: None,
            session: None,
            occurrence: None,
        };
        let run = NewRun { id: own, spec: Arc::new(spec), run_at: None };
        assert_eq!(run.stood_for(false, None), None);
        assert_eq!(run.stood_for(false, Some(other)), Some(other));
        assert_eq!(run.stood_for(true, None), Some(own));
        assert_eq!(run.stood_for(true, Some(other)), Some(own));
    }
}
