use crate::hole::{Hole, Planted};
use crate::id::{ReplicaId, RunId, Token};
use crate::time::StoreTime;

/// An attempt's exclusive right to report on a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub run_id: RunId,
    /// The fence: it rises with every lease of the run.
    pub attempt: u32,
    pub token: Token,
    pub replica_id: ReplicaId,
    /// Rises whenever the lease passes from one replica to another, which only those of detached runs do.
    /// The token stays; a shim obeys the latest owner only.
    pub tenure: u32,
    pub granted_at: StoreTime,
}

/// What a writer shows to prove its right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub run_id: RunId,
    pub attempt: u32,
    pub token: Token,
    /// The owner of the lease, as the writer knows it: itself, or whom a rescuer observed.
    pub replica_id: ReplicaId,
    /// The writer is a rescuer acting on what it observed, not the performer.
    pub rescue: bool,
}

impl Lease {
    pub fn shown(&self) -> Shown {
        Shown {
            run_id: self.run_id,
            attempt: self.attempt,
            token: self.token,
            replica_id: self.replica_id,
            rescue: false,
        }
    }

    /// Whether a write with this proof may act under this lease. The token decides, since attempt numbers
    /// repeat when a failover forgets a grant; and the owner, since a lease that was adopted keeps its token.
    pub fn admits(&self, shown: &Shown, hole: Planted) -> bool {
        let unproven = if shown.rescue { Hole::RescueWithoutCompare } else { Hole::SettleWithoutToken };
        if hole.is(unproven) {
            return true;
        }
        if hole.is(Hole::AttemptAsToken) {
            return self.attempt == shown.attempt;
        }
        self.token == shown.token && (self.replica_id == shown.replica_id || hole.is(Hole::FormerOwner))
    }
}
