//! From rows to the model. What cannot be read is a `Bug` that names the row; lists pass it over.

use crate::cells::number;
use crate::columns::VIOLATION_LIMIT;
use everbeat_model::output::OutputKind;
use everbeat_model::replica::ReplicaState;
use everbeat_model::run::{Kind, Spec};
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{
    Attempt, ExecutionId, Json, Lease, OccurrenceOf, Outcome, Parent, Policy, Replica, ReplicaId, Run, RunId, RunState,
    ScheduleId, Session, Standing, StoreTime, Token, Verdict, VerdictId,
};
use everbeat_store::{Error, Held, Result, Streamed, Violation, last_heartbeat};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use uuid::Uuid;

static BASELINE: LazyLock<Arc<Policy>> = LazyLock::new(|| Arc::new(Policy::BASELINE));

/// Shares policies among rows that follow one another: in bulk they are mostly the same.
#[derive(Default)]
pub(crate) struct Policies(Option<(String, Arc<Policy>)>);

impl Policies {
    pub(crate) fn read(&mut self, stored: &str) -> Arc<Policy> {
        if stored == "{}" {
            return BASELINE.clone();
        }
        if let Some((text, policy)) = &self.0
            && text == stored
        {
            return policy.clone();
        }
        let policy = Arc::new(Policy::from_stored(stored));
        self.0 = Some((stored.to_string(), policy.clone()));
        policy
    }
}

pub(crate) struct SpecCells {
    pub(crate) kind: String,
    pub(crate) task: String,
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) input: String,
    pub(crate) policy: String,
    pub(crate) unique_key: Option<String>,
    pub(crate) args: Option<String>,
    pub(crate) execution_id: Option<Uuid>,
    pub(crate) node: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) session: Option<String>,
    pub(crate) schedule_id: Option<Uuid>,
    pub(crate) due_at: Option<i64>,
}

impl SpecCells {
    pub(crate) fn read(self, id: Uuid, policies: &mut Policies) -> Result<Arc<Spec>> {
        Ok(Arc::new(Spec {
            kind: known("run", id, "kind", &self.kind, Kind::parse(&self.kind))?,
            policy: policies.read(&self.policy),
            task: self.task,
            queue: self.queue,
            priority: self.priority,
            input: Json::stored(self.input),
            unique_key: self.unique_key,
            args: self.args.map(Json::stored),
            parent: self.execution_id.zip(self.node).map(|(id, node)| Parent { execution: ExecutionId(id), node }),
            host: self.host,
            session: self.session.as_deref().and_then(Session::from_stored),
            occurrence: self
                .schedule_id
                .zip(self.due_at)
                .map(|(id, due)| OccurrenceOf { schedule: ScheduleId(id), due: StoreTime(due) }),
        }))
    }
}

pub(crate) struct RunCells {
    pub(crate) id: Uuid,
    pub(crate) spec: SpecCells,
    pub(crate) created_at: i64,
    pub(crate) run_at: Option<i64>,
    pub(crate) state: String,
    pub(crate) attempt: i64,
    pub(crate) started_at: Option<i64>,
    pub(crate) finished_at: Option<i64>,
    pub(crate) replica_id: Option<Uuid>,
    pub(crate) worker_id: Option<String>,
    pub(crate) last_heartbeat_at: Option<i64>,
    /// The last beat of the replica that performs the run, if one does.
    pub(crate) owner_heartbeat_at: Option<i64>,
    pub(crate) cancel_requested_at: Option<i64>,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) progress: Option<String>,
    pub(crate) checkpoint: Option<String>,
    pub(crate) tenure: i64,
    pub(crate) tries: i64,
}

impl RunCells {
    /// The bytes of the run, as [`Run::bytes`] counts them.
    pub(crate) fn bytes(&self) -> usize {
        let some = [&self.spec.args, &self.result, &self.checkpoint];
        self.spec.input.len() + some.into_iter().flatten().map(String::len).sum::<usize>()
    }

    pub(crate) fn read(self, policies: &mut Policies) -> Result<Run> {
        let spec = self.spec.read(self.id, policies)?;
        let owner = self.owner_heartbeat_at.map(StoreTime);
        let heard = self.last_heartbeat_at.map(|signed| last_heartbeat(&spec.policy, StoreTime(signed), owner));
        Ok(Run {
            id: RunId(self.id),
            spec,
            created_at: StoreTime(self.created_at),
            run_at: self.run_at.map(StoreTime),
            state: known("run", self.id, "state", &self.state, RunState::parse(&self.state))?,
            attempt: count(self.attempt),
            tries: count(self.tries),
            started_at: self.started_at.map(StoreTime),
            finished_at: self.finished_at.map(StoreTime),
            replica_id: self.replica_id.map(ReplicaId),
            tenure: count(self.tenure),
            worker_id: self.worker_id,
            last_heartbeat_at: heard,
            cancel_requested_at: self.cancel_requested_at.map(StoreTime),
            result: self.result.map(Json::stored),
            error: self.error.map(Json::stored),
            progress: self.progress.map(Json::stored),
            checkpoint: self.checkpoint.map(Json::stored),
        })
    }
}

pub(crate) struct AttemptCells {
    pub(crate) attempt: i64,
    pub(crate) outcome: Option<String>,
    pub(crate) replica_id: Uuid,
    pub(crate) worker_id: Option<String>,
    pub(crate) started_at: i64,
    pub(crate) ended_at: Option<i64>,
    pub(crate) last_heartbeat_at: Option<i64>,
    pub(crate) error: Option<String>,
    pub(crate) verdict_id: Option<Uuid>,
}

impl AttemptCells {
    pub(crate) fn read(self, run: Uuid) -> Result<Attempt> {
        let outcome = self.outcome.map(|text| known("attempt of run", run, "outcome", &text, Outcome::parse(&text)));
        Ok(Attempt {
            attempt: count(self.attempt),
            outcome: outcome.transpose()?,
            replica_id: ReplicaId(self.replica_id),
            worker_id: self.worker_id,
            started_at: StoreTime(self.started_at),
            ended_at: self.ended_at.map(StoreTime),
            last_heartbeat_at: self.last_heartbeat_at.map(StoreTime),
            error: self.error.map(Json::stored),
            verdict_id: self.verdict_id.map(VerdictId),
        })
    }
}

pub(crate) struct OutputCells {
    pub(crate) seq: i64,
    pub(crate) attempt: i64,
    pub(crate) at: i64,
    pub(crate) kind: String,
    pub(crate) text: String,
}

impl OutputCells {
    pub(crate) fn read(self, run: Uuid) -> Result<Streamed> {
        Ok(Streamed {
            seq: whole(self.seq),
            attempt: count(self.attempt),
            at: StoreTime(self.at),
            kind: known("output of run", run, "kind", &self.kind, OutputKind::parse(&self.kind))?,
            text: self.text.into(),
        })
    }
}

pub(crate) struct ReplicaCells {
    pub(crate) id: Uuid,
    pub(crate) host: String,
    pub(crate) version: String,
    pub(crate) state: String,
    pub(crate) beat: i64,
    pub(crate) started_at: i64,
    pub(crate) last_heartbeat_at: i64,
    pub(crate) heartbeat_interval_us: i64,
    pub(crate) heartbeat_timeout_us: i64,
    pub(crate) clock_skew_ms: i64,
    pub(crate) machine: Option<String>,
    pub(crate) running: i64,
}

impl ReplicaCells {
    pub(crate) fn read(self) -> Result<Replica> {
        Ok(Replica {
            id: ReplicaId(self.id),
            host: self.host,
            machine: self.machine,
            version: self.version,
            state: known("replica", self.id, "state", &self.state, ReplicaState::parse(&self.state))?,
            beat: whole(self.beat),
            started_at: StoreTime(self.started_at),
            last_heartbeat_at: StoreTime(self.last_heartbeat_at),
            heartbeat_interval: Duration::from_micros(whole(self.heartbeat_interval_us)),
            heartbeat_timeout: Duration::from_micros(whole(self.heartbeat_timeout_us)),
            clock_skew_ms: self.clock_skew_ms,
            running: whole(self.running),
        })
    }
}

pub(crate) struct HeldCells {
    pub(crate) run_id: Uuid,
    pub(crate) replica_id: Uuid,
    pub(crate) attempt: i64,
    pub(crate) tries: i64,
    pub(crate) losses: i64,
    pub(crate) token: Uuid,
    pub(crate) granted_at: i64,
    pub(crate) last_heartbeat_at: i64,
    pub(crate) cancel_requested_at: Option<i64>,
    pub(crate) tenure: i64,
    pub(crate) spec: SpecCells,
    pub(crate) owner: Option<ReplicaCells>,
}

impl HeldCells {
    pub(crate) fn read(self, policies: &mut Policies) -> Result<Held> {
        Ok(Held {
            lease: Lease {
                run_id: RunId(self.run_id),
                attempt: count(self.attempt),
                token: Token(self.token),
                replica_id: ReplicaId(self.replica_id),
                tenure: count(self.tenure),
                granted_at: StoreTime(self.granted_at),
            },
            spec: self.spec.read(self.run_id, policies)?,
            standing: standing(self.attempt, self.tries, self.losses),
            cancel_asked: self.cancel_requested_at.is_some(),
            last_heartbeat_at: StoreTime(self.last_heartbeat_at),
            owner: self.owner.map(ReplicaCells::read).transpose()?,
        })
    }
}

pub(crate) struct VerdictCells {
    pub(crate) id: Uuid,
    pub(crate) at: i64,
    pub(crate) subject_kind: String,
    pub(crate) subject_id: String,
    pub(crate) judgement: String,
    pub(crate) reason: String,
    pub(crate) evidence: String,
    pub(crate) judged_by: Uuid,
    pub(crate) run_id: Option<Uuid>,
    pub(crate) attempt: Option<i64>,
    pub(crate) followed_by: String,
}

impl VerdictCells {
    pub(crate) fn read(self) -> Result<Verdict> {
        let kind = SubjectKind::parse(&self.subject_kind);
        let judgement = Judgement::parse(&self.judgement);
        Ok(Verdict {
            id: VerdictId(self.id),
            at: StoreTime(self.at),
            subject: Subject {
                kind: known("verdict", self.id, "subject_kind", &self.subject_kind, kind)?,
                id: self.subject_id,
            },
            judgement: known("verdict", self.id, "judgement", &self.judgement, judgement)?,
            reason: self.reason,
            evidence: Json::stored(self.evidence),
            judged_by: ReplicaId(self.judged_by),
            run_id: self.run_id.map(RunId),
            attempt: self.attempt.map(count),
            then: self.followed_by,
        })
    }
}

pub(crate) fn standing(attempt: i64, tries: i64, losses: i64) -> Standing {
    Standing { attempt: count(attempt), tries: count(tries), losses: count(losses) }
}

/// Keeps what could be read. What could not is logged: one bad row must not hide the others.
pub(crate) fn readable<T>(rows: impl Iterator<Item = Result<T>>) -> Vec<T> {
    rows.filter_map(|row| row.inspect_err(|error| tracing::error!(%error, "a stored row was passed over")).ok())
        .collect()
}

pub(crate) fn count(stored: i64) -> u32 {
    u32::try_from(stored.max(0)).unwrap_or(u32::MAX)
}

pub(crate) fn whole(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

pub(crate) fn known<T>(noun: &str, id: impl Display, field: &str, value: &str, parsed: Option<T>) -> Result<T> {
    parsed.ok_or_else(|| Error::Bug(format!("the stored {noun} {id} has the unknown {field} {value:?}")))
}

/// In the words and the order of the in-memory store.
pub(crate) fn found_violations(
    places: Vec<(Uuid, i64)>,
    ownerless: Vec<(Uuid, Uuid)>,
    stranded: Vec<(Uuid, String, Uuid)>,
    ended_again: Vec<(Uuid, i32)>,
) -> Vec<Violation> {
    let violation = |guarantee: &str, id: Uuid, detail: String| Violation {
        guarantee: guarantee.to_string(),
        subject: id.to_string(),
        detail,
    };
    let misplaced = places.into_iter().map(|(id, places)| {
        violation("G2", id, format!("the run is in {places} of scheduled, ready, running and finished"))
    });
    let ownerless = ownerless
        .into_iter()
        .map(|(id, replica)| violation("G2", id, format!("its lease belongs to replica {replica}, which is unknown")));
    let stranded = stranded.into_iter().map(|(id, node, run)| {
        violation("G2", id, format!("node {node} waits for run {run}, which is over, and nobody will look"))
    });
    let ended_again = ended_again
        .into_iter()
        .map(|(id, attempt)| violation("G1", id, format!("attempt {attempt} ended, yet an earlier one counts")));
    misplaced.chain(ownerless).chain(stranded).chain(ended_again).take(VIOLATION_LIMIT).collect()
}

/// How many there are of each word that is known here.
pub(crate) fn counts<K: Ord>(
    rows: impl Iterator<Item = (String, i64)>,
    parse: fn(&str) -> Option<K>,
) -> BTreeMap<K, u64> {
    rows.filter_map(|(word, count)| Some((parse(&word)?, number(count)))).collect()
}
