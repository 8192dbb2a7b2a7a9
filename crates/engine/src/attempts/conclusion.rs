//! How an attempt ended, and the verdict on it before it is known what follows.

use super::work::Work;
use crate::replica::Life;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{Ending, Json, Outcome, Reason, Verdict, VerdictId};

/// How an attempt ended, with the verdict on it if it needs one.
pub struct Conclusion {
    pub(crate) ending: Ending,
    pub(crate) draft: Option<Draft>,
}

impl Conclusion {
    /// Whoever performed the attempt is gone, or had to be ended. The evidence says what was seen.
    pub fn lost(reason: Reason, message: &str, evidence: serde_json::Value) -> Conclusion {
        Conclusion::because((Outcome::Lost, Judgement::Lost), reason, message, evidence)
    }

    /// The attempt is judged: the verdict says for the same reason what its ending says.
    pub(crate) fn because(
        (outcome, judgement): (Outcome, Judgement),
        reason: Reason,
        message: &str,
        evidence: serde_json::Value,
    ) -> Conclusion {
        Conclusion::judged(Ending::because(outcome, reason, message), Draft { judgement, reason, evidence })
    }

    pub(crate) fn judged(ending: Ending, draft: Draft) -> Conclusion {
        Conclusion { ending, draft: Some(draft) }
    }
}

impl From<Ending> for Conclusion {
    fn from(ending: Ending) -> Conclusion {
        Conclusion { ending, draft: None }
    }
}

/// A verdict before it is known what follows from it.
pub(crate) struct Draft {
    pub(crate) judgement: Judgement,
    pub(crate) reason: Reason,
    pub(crate) evidence: serde_json::Value,
}

impl Draft {
    pub(crate) fn verdict(&self, life: &Life, work: &Work, then: String) -> Verdict {
        let lease = &work.claimed.lease;
        Verdict {
            id: VerdictId(life.core.new_id()),
            at: life.core.now(),
            subject: Subject { kind: SubjectKind::Run, id: lease.run_id.to_string() },
            judgement: self.judgement,
            reason: self.reason.to_string(),
            evidence: Json::of(&self.evidence),
            judged_by: life.id,
            run_id: Some(lease.run_id),
            attempt: Some(lease.attempt),
            then,
        }
    }
}
