use crate::id::{ReplicaId, RunId, VerdictId};
use crate::json::Json;
use crate::time::StoreTime;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The durable record of a judgement: who was judged, how, by whom, on what evidence, and what
/// happened next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub id: VerdictId,
    pub at: StoreTime,
    pub subject: Subject,
    pub judgement: Judgement,
    /// The word of a [`Reason`](crate::Reason); another one, if a replica of another version judged.
    pub reason: String,
    pub evidence: Json,
    pub judged_by: ReplicaId,
    pub run_id: Option<RunId>,
    pub attempt: Option<u32>,
    /// What followed, in words.
    pub then: String,
}

impl Verdict {
    /// What the log of events tells of the verdict.
    pub fn detail(&self) -> Json {
        Json::of(&json!({ "reason": self.reason, "verdict_id": self.id }))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subject {
    pub kind: SubjectKind,
    pub id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectKind {
    Replica,
    Run,
}

impl SubjectKind {
    pub fn as_str(self) -> &'static str {
        match self {
            SubjectKind::Replica => "replica",
            SubjectKind::Run => "run",
        }
    }

    pub fn parse(text: &str) -> Option<SubjectKind> {
        [SubjectKind::Replica, SubjectKind::Run].into_iter().find(|kind| kind.as_str() == text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    Lost,
    Stalled,
    TimedOut,
    Fenced,
    Cancelled,
    Released,
}

impl Judgement {
    pub const ALL: [Judgement; 6] = [
        Judgement::Lost,
        Judgement::Stalled,
        Judgement::TimedOut,
        Judgement::Fenced,
        Judgement::Cancelled,
        Judgement::Released,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Judgement::Lost => "lost",
            Judgement::Stalled => "stalled",
            Judgement::TimedOut => "timed_out",
            Judgement::Fenced => "fenced",
            Judgement::Cancelled => "cancelled",
            Judgement::Released => "released",
        }
    }

    pub fn parse(text: &str) -> Option<Judgement> {
        Judgement::ALL.into_iter().find(|judgement| judgement.as_str() == text)
    }
}
