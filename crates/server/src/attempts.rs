use crate::schema::OutcomeName;
use everbeat_model::{Attempt, Json, Outcome, ReplicaId, StoreTime, VerdictId};
use serde::Serialize;
use utoipa::ToSchema;

/// One try at a run, under one lease.
#[derive(Serialize, ToSchema)]
#[schema(as = Attempt)]
pub(crate) struct AttemptJson {
    pub(crate) attempt: u32,
    /// Absent while it runs.
    #[schema(required, value_type = Option<OutcomeName>)]
    outcome: Option<Outcome>,
    #[schema(value_type = Uuid)]
    replica_id: ReplicaId,
    #[schema(required)]
    worker_id: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    started_at: StoreTime,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    ended_at: Option<StoreTime>,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    last_heartbeat_at: Option<StoreTime>,
    #[schema(required, value_type = Value)]
    error: Option<Json>,
    #[schema(required, value_type = Option<Uuid>)]
    verdict_id: Option<VerdictId>,
}

impl From<Attempt> for AttemptJson {
    fn from(attempt: Attempt) -> AttemptJson {
        let Attempt {
            attempt,
            outcome,
            replica_id,
            worker_id,
            started_at,
            ended_at,
            last_heartbeat_at,
            error,
            verdict_id,
        } = attempt;
        AttemptJson {
            attempt,
            outcome,
            replica_id,
            worker_id,
            started_at,
            ended_at,
            last_heartbeat_at,
            error,
            verdict_id,
        }
    }
}
