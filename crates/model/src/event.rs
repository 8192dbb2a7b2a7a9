use crate::attempt::Outcome;
use crate::json::Json;
use crate::run::RunState;
use crate::spelled::spelled;
use crate::time::StoreTime;
use crate::verdict::Judgement;
use serde::{Deserialize, Serialize};

/// Something that happened, for whoever follows the log. Events explain and notify; nothing is
/// decided from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Rises along the log: the batch's number times `PER_BATCH`, plus the place in the batch.
    pub id: u64,
    pub at: StoreTime,
    /// The word of an [`EventKind`]; another one, if a replica of another version wrote it.
    pub kind: String,
    /// The id or name of what it happened to.
    pub subject: String,
    pub attempt: Option<u32>,
    pub detail: Option<Json>,
}

spelled! {
    /// What happened, by the noun that it happened to.
    pub enum EventKind {
        RunCreated = "run.created",
        RunScheduled = "run.scheduled",
        RunReady = "run.ready",
        RunRunning = "run.running",
        RunSucceeded = "run.succeeded",
        RunFailed = "run.failed",
        RunCancelled = "run.cancelled",
        RunReopened = "run.reopened",
        AttemptSucceeded = "attempt.succeeded",
        AttemptFailed = "attempt.failed",
        AttemptLost = "attempt.lost",
        AttemptTimedOut = "attempt.timed_out",
        AttemptStalled = "attempt.stalled",
        AttemptCancelled = "attempt.cancelled",
        AttemptReleased = "attempt.released",
        AttemptFenced = "attempt.fenced",
        JobStale = "job.stale",
        JobDead = "job.dead",
        ExecutionStarted = "execution.started",
        ExecutionChanged = "execution.changed",
        ExecutionNodeFailed = "execution.node_failed",
        ExecutionArchived = "execution.archived",
        ExecutionUnarchived = "execution.unarchived",
        ScheduleWritten = "schedule.written",
        ScheduleDeleted = "schedule.deleted",
        ScheduleSkipped = "schedule.skipped",
        ScheduleLate = "schedule.late",
        ScheduleRecovered = "schedule.recovered",
        FlowWritten = "flow.written",
        FlowDeleted = "flow.deleted",
        FlowSkipped = "flow.skipped",
        FlowLate = "flow.late",
        FlowRecovered = "flow.recovered",
        CheckWritten = "check.written",
        CheckDeleted = "check.deleted",
        CheckPaused = "check.paused",
        CheckResumed = "check.resumed",
        CheckLate = "check.late",
        CheckDown = "check.down",
        CheckUp = "check.up",
        GraphApplied = "graph.applied",
        QueuePaused = "queue.paused",
        QueueResumed = "queue.resumed",
        PoolScaled = "pool.scaled",
        PoolPaused = "pool.paused",
        PoolResumed = "pool.resumed",
        PoolRestarting = "pool.restarting",
        WorkerRestarting = "worker.restarting",
        WorkerDraining = "worker.draining",
        ReplicaJoined = "replica.joined",
        ReplicaDraining = "replica.draining",
        ReplicaDead = "replica.dead",
        ReplicaLeft = "replica.left",
    }
}

impl EventKind {
    /// A run is in that state from now on.
    pub fn run(state: RunState) -> EventKind {
        match state {
            RunState::Scheduled => EventKind::RunScheduled,
            RunState::Ready => EventKind::RunReady,
            RunState::Running => EventKind::RunRunning,
            RunState::Succeeded => EventKind::RunSucceeded,
            RunState::Failed => EventKind::RunFailed,
            RunState::Cancelled => EventKind::RunCancelled,
        }
    }

    /// An attempt ended, and its run goes on.
    pub fn attempt(outcome: Outcome) -> EventKind {
        match outcome {
            Outcome::Succeeded => EventKind::AttemptSucceeded,
            Outcome::Failed => EventKind::AttemptFailed,
            Outcome::Lost => EventKind::AttemptLost,
            Outcome::TimedOut => EventKind::AttemptTimedOut,
            Outcome::Stalled => EventKind::AttemptStalled,
            Outcome::Cancelled => EventKind::AttemptCancelled,
            Outcome::Released => EventKind::AttemptReleased,
        }
    }

    /// An attempt was judged after its end.
    pub fn judged(judgement: Judgement) -> EventKind {
        match judgement {
            Judgement::Lost => EventKind::AttemptLost,
            Judgement::Stalled => EventKind::AttemptStalled,
            Judgement::TimedOut => EventKind::AttemptTimedOut,
            Judgement::Fenced => EventKind::AttemptFenced,
            Judgement::Cancelled => EventKind::AttemptCancelled,
            Judgement::Released => EventKind::AttemptReleased,
        }
    }
}

/// Events of one write are stored as one row; so many fit.
pub const PER_BATCH: u64 = 1 << 16;

/// One line of a stored batch: `kind subject attempt detail`, the last two optional.
pub fn line(kind: EventKind, subject: &str, attempt: Option<u32>, detail: Option<&Json>) -> String {
    let attempt = attempt.map_or_else(|| "-".to_string(), |attempt| attempt.to_string());
    match detail {
        Some(detail) => format!("{kind} {subject} {attempt} {detail}"),
        None => format!("{kind} {subject} {attempt}"),
    }
}

/// Reads a stored batch back. Lines of another version that cannot be read are passed over.
pub fn expand(batch: u64, at: StoreTime, body: &str) -> Vec<Event> {
    let mut events = Vec::new();
    for (place, line) in (0_u64..PER_BATCH).zip(body.lines()) {
        let mut parts = line.splitn(4, ' ');
        let (Some(kind), Some(subject)) = (parts.next(), parts.next()) else { continue };
        events.push(Event {
            id: batch * PER_BATCH + place,
            at,
            kind: kind.to_string(),
            subject: subject.to_string(),
            attempt: parts.next().and_then(|attempt| attempt.parse().ok()),
            detail: parts.next().map(Json::stored),
        });
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_kind_has_one_spelling_that_never_changes() {
        let spelled: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(
            spelled.join(" "),
            "run.created run.scheduled run.ready run.running run.succeeded run.failed run.cancelled run.reopened \
             attempt.succeeded attempt.failed attempt.lost attempt.timed_out attempt.stalled attempt.cancelled \
             attempt.released attempt.fenced job.stale job.dead execution.started execution.changed \
             execution.node_failed execution.archived execution.unarchived schedule.written schedule.deleted \
             schedule.skipped schedule.late schedule.recovered flow.written flow.deleted flow.skipped flow.late \
             flow.recovered check.written check.deleted check.paused check.resumed check.late check.down check.up \
             graph.applied queue.paused queue.resumed pool.scaled pool.paused pool.resumed pool.restarting worker.restarting worker.draining \
             replica.joined replica.draining replica.dead replica.left"
        );
        assert_eq!(spelled.iter().collect::<BTreeSet<_>>().len(), spelled.len());
        assert!(EventKind::ALL.iter().all(|kind| EventKind::parse(kind.as_str()) == Some(*kind)));
        assert_eq!(EventKind::parse("run.bored"), None);
    }

    /// Statements of PostgreSQL put the kind of an event together from these words.
    #[test]
    fn a_kind_is_its_noun_and_the_word_of_its_state_or_outcome() {
        for state in RunState::ALL {
            assert_eq!(EventKind::run(state).as_str(), format!("run.{}", state.as_str()));
        }
        for outcome in Outcome::ALL {
            assert_eq!(EventKind::attempt(outcome).as_str(), format!("attempt.{}", outcome.as_str()));
        }
        for judgement in Judgement::ALL {
            assert_eq!(EventKind::judged(judgement).as_str(), format!("attempt.{}", judgement.as_str()));
        }
    }

    #[test]
    fn an_event_of_another_version_is_shown_as_it_is() {
        let events = expand(2, StoreTime(0), "run.bored r 3\nqueue.paused q -");
        let told: Vec<_> = events.iter().map(|event| (event.kind.as_str(), event.attempt)).collect();
        assert_eq!(told, [("run.bored", Some(3)), ("queue.paused", None)]);
    }
}
