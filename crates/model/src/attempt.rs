use crate::id::{ReplicaId, VerdictId};
use crate::json::Json;
use crate::time::StoreTime;
use serde::{Deserialize, Serialize};

/// How one attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    Failed,
    Lost,
    TimedOut,
    Stalled,
    Cancelled,
    Released,
}

impl Outcome {
    pub const ALL: [Outcome; 7] = [
        Outcome::Succeeded,
        Outcome::Failed,
        Outcome::Lost,
        Outcome::TimedOut,
        Outcome::Stalled,
        Outcome::Cancelled,
        Outcome::Released,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::Lost => "lost",
            Outcome::TimedOut => "timed_out",
            Outcome::Stalled => "stalled",
            Outcome::Cancelled => "cancelled",
            Outcome::Released => "released",
        }
    }

    pub fn parse(text: &str) -> Option<Outcome> {
        Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == text)
    }

    /// Whether the attempt uses up one of `max_attempts`.
    pub fn counts(self) -> bool {
        !matches!(self, Outcome::Released | Outcome::Cancelled)
    }
}

/// One try at a run, as its history shows it. `outcome` is absent while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    pub attempt: u32,
    pub outcome: Option<Outcome>,
    pub replica_id: ReplicaId,
    pub worker_id: Option<String>,
    pub started_at: StoreTime,
    pub ended_at: Option<StoreTime>,
    pub last_heartbeat_at: Option<StoreTime>,
    pub error: Option<Json>,
    pub verdict_id: Option<VerdictId>,
}
