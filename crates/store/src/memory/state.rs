use super::outputs::OutputRow;
use crate::{CheckRow, Definition, LeftOut, Remembered, ScheduleRow, WorkerRow, last_heartbeat};
use everbeat_model::check::Ping;
use everbeat_model::graph::{Course, Execution};
use everbeat_model::run::Spec;
use everbeat_model::schedule::Occurrence;
use everbeat_model::{
    Attempt, Event, ExecutionId, Json, Lease, NewRun, Replica, ReplicaId, Run, RunId, RunState, ScheduleId, SessionId,
    Standing, StoreTime, Token, Verdict, VerdictId, WorkerId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Everything that is stored. A run is in exactly one of `ready`, `scheduled`, `leases` and `done`;
/// which one is its state.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub runs: BTreeMap<RunId, RunRow>,
    /// By queue, lane, rank (the lower the earlier) and age.
    pub ready: BTreeMap<(String, String, i32, RunId), Standing>,
    pub scheduled: BTreeMap<(StoreTime, RunId), Standing>,
    pub leases: BTreeMap<RunId, LeaseRow>,
    pub done: BTreeMap<RunId, DoneRow>,
    /// Ended attempts, but for the last one of a finished run, which is in `done`.
    pub attempts: BTreeMap<(RunId, u32), (Attempt, Token)>,
    pub signs: BTreeMap<RunId, (Option<Json>, Option<Json>)>,
    /// What attempts streamed.
    pub outputs: BTreeMap<RunId, OutputRow>,
    pub unique: BTreeMap<String, RunId>,
    pub idempotency: BTreeMap<String, (String, Vec<RunId>, StoreTime)>,
    pub replicas: BTreeMap<ReplicaId, Replica>,
    /// What replicas tell of their workers.
    pub workers: BTreeMap<WorkerId, WorkerRow>,
    pub verdicts: BTreeMap<VerdictId, Verdict>,
    pub events: BTreeMap<u64, (StoreTime, String)>,
    pub last_batch: u64,
    pub paused: BTreeMap<String, bool>,
    pub tasks: BTreeSet<String>,
    /// Who keeps the strict session of a pool and a key, and which session it is.
    pub sessions: BTreeMap<(String, String), (ReplicaId, SessionId)>,
    pub sweeps: BTreeMap<String, StoreTime>,
    /// Every definition ever applied, by its serial number.
    pub graphs: BTreeMap<u64, Definition>,
    pub executions: BTreeMap<ExecutionId, ExecutionRow>,
    /// When which execution should be looked at.
    pub agenda: BTreeSet<(StoreTime, ExecutionId)>,
    pub schedules: BTreeMap<ScheduleId, ScheduleRow>,
    /// Occurrences that were left out, the newest last.
    pub left: BTreeMap<ScheduleId, Vec<LeftOut>>,
    /// What waits and what has begun, by run.
    pub occurrences: BTreeMap<RunId, (ScheduleId, Occurrence)>,
    /// Schedules that should be looked at at once.
    pub schedule_notes: BTreeSet<ScheduleId>,
    pub checks: BTreeMap<String, CheckRow>,
    /// The newest pings of each check, the newest last.
    pub pings: BTreeMap<String, Vec<Ping>>,
    /// Rises with every change.
    pub version: u64,
}

#[derive(Clone, Debug)]
pub struct RunRow {
    pub spec: Arc<Spec>,
    pub created_at: StoreTime,
    pub run_at: Option<StoreTime>,
}

impl RunRow {
    /// When it could first have been claimed.
    pub(super) fn due_at(&self) -> StoreTime {
        self.run_at.map_or(self.created_at, |run_at| run_at.max(self.created_at))
    }
}

#[derive(Clone, Debug)]
pub struct LeaseRow {
    pub lease: Lease,
    pub standing: Standing,
    pub last_heartbeat_at: StoreTime,
    pub cancel_requested_at: Option<StoreTime>,
}

#[derive(Clone, Debug)]
pub struct DoneRow {
    pub state: RunState,
    pub finished_at: StoreTime,
    pub standing: Standing,
    pub result: Option<Json>,
    pub error: Option<Json>,
    /// The attempt that ended it and its token; none for a run cancelled before it ran.
    pub attempt: Option<(Attempt, Token)>,
}

#[derive(Clone, Debug)]
pub struct ExecutionRow {
    pub course: Course,
    pub singleton: bool,
    pub execution: Execution,
    pub stamp: u64,
    pub created_at: StoreTime,
    pub updated_at: StoreTime,
    pub values: BTreeMap<String, ValueRow>,
    pub history: Vec<Remembered>,
    /// Of the last entry that was ever made in its history.
    pub place: u64,
}

/// What is kept of a value besides its content, also when it is cleared.
#[derive(Clone, Copy, Debug)]
pub struct ValueRow {
    pub changes: u64,
    pub first_set_at: Option<StoreTime>,
}

impl State {
    pub(super) fn rank(spec: &Spec) -> i32 {
        -i32::from(spec.priority)
    }

    /// Where a ready run stands: by queue, lane (its task, maybe on a host), rank and age.
    pub(super) fn place(spec: &Spec, id: RunId) -> (String, String, i32, RunId) {
        (spec.queue.clone(), spec.lane().into_owned(), State::rank(spec), id)
    }

    pub(super) fn put_ready(&mut self, id: RunId, spec: &Spec, standing: Standing) {
        self.ready.insert(State::place(spec, id), standing);
    }

    pub(super) fn put_run(&mut self, run: NewRun, now: StoreTime) {
        match run.run_at {
            Some(at) if at > now => _ = self.scheduled.insert((at, run.id), Standing::default()),
            _ => self.put_ready(run.id, &run.spec, Standing::default()),
        }
        self.runs.insert(run.id, RunRow { spec: run.spec, created_at: now, run_at: run.run_at });
    }

    pub(super) fn take_ready(&mut self, id: RunId, spec: &Spec) -> Option<Standing> {
        self.ready.remove(&State::place(spec, id))
    }

    pub(super) fn scheduled_at(&self, id: RunId) -> Option<(StoreTime, Standing)> {
        self.scheduled.iter().find(|((_, run), _)| *run == id).map(|((at, _), standing)| (*at, *standing))
    }

    pub(super) fn append(&mut self, now: StoreTime, lines: &[String]) {
        if !lines.is_empty() {
            self.last_batch += 1;
            self.events.insert(self.last_batch, (now, lines.join("\n")));
        }
    }

    pub(super) fn expanded(&self, batch: u64) -> Vec<Event> {
        self.events.get(&batch).map_or_else(Vec::new, |(at, body)| everbeat_model::event::expand(batch, *at, body))
    }

    /// A run put together from the tables, as the SQL stores join them.
    pub fn run(&self, id: RunId) -> Option<Run> {
        let row = self.runs.get(&id)?;
        let (progress, checkpoint) = self.signs.get(&id).cloned().unwrap_or_default();
        let mut run = Run {
            id,
            spec: row.spec.clone(),
            created_at: row.created_at,
            run_at: row.run_at,
            state: RunState::Ready,
            attempt: 0,
            tries: 0,
            started_at: None,
            finished_at: None,
            replica_id: None,
            tenure: 0,
            worker_id: None,
            last_heartbeat_at: None,
            cancel_requested_at: None,
            result: None,
            error: None,
            progress,
            checkpoint,
        };
        let key = State::place(&row.spec, id);
        if let Some(held) = self.leases.get(&id) {
            let beat = self.replicas.get(&held.lease.replica_id).map(|replica| replica.last_heartbeat_at);
            run.state = RunState::Running;
            run.attempt = held.lease.attempt;
            run.tries = held.standing.tries;
            run.started_at = Some(held.lease.granted_at);
            run.replica_id = Some(held.lease.replica_id);
            run.tenure = held.lease.tenure;
            run.last_heartbeat_at = Some(last_heartbeat(&row.spec.policy, held.last_heartbeat_at, beat));
            run.cancel_requested_at = held.cancel_requested_at;
        } else if let Some(done) = self.done.get(&id) {
            run.state = done.state;
            run.attempt = done.standing.attempt;
            run.tries = done.standing.tries;
            run.finished_at = Some(done.finished_at);
            run.result = done.result.clone();
            run.error = done.error.clone();
            if let Some((attempt, _)) = &done.attempt {
                run.started_at = Some(attempt.started_at);
                run.replica_id = Some(attempt.replica_id);
                run.worker_id = attempt.worker_id.clone();
                run.last_heartbeat_at = attempt.last_heartbeat_at;
            }
        } else if let Some(standing) = self.ready.get(&key) {
            (run.attempt, run.tries) = (standing.attempt, standing.tries);
            run.error = self.last_error(id, standing.attempt);
        } else if let Some((at, standing)) = self.scheduled_at(id) {
            run.state = RunState::Scheduled;
            run.run_at = Some(at);
            (run.attempt, run.tries) = (standing.attempt, standing.tries);
            run.error = self.last_error(id, standing.attempt);
        }
        Some(run)
    }

    /// Between attempts a run shows why the last one ended.
    fn last_error(&self, id: RunId, attempt: u32) -> Option<Json> {
        self.attempts.get(&(id, attempt)).and_then(|(attempt, _)| attempt.error.clone())
    }
}
