use crate::hole::{Hole, Planted};
use crate::id::ReplicaId;
use crate::time::StoreTime;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One boot of one server, as its row shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    pub id: ReplicaId,
    /// The machine (its data folder), which outlives restarts.
    pub host: String,
    /// The machine on which it runs, by a name that nobody can trace back. Rows of earlier versions have none.
    pub machine: Option<String>,
    pub version: String,
    pub state: ReplicaState,
    /// Rises with every renewal; observers time its changes, never its timestamps.
    pub beat: u64,
    pub started_at: StoreTime,
    pub last_heartbeat_at: StoreTime,
    /// The replica's own settings: observers judge it by these.
    pub heartbeat_interval: Duration,
    pub heartbeat_timeout: Duration,
    /// Its wall clock against the store's when it joined, in milliseconds. Shown, never judged by.
    pub clock_skew_ms: i64,
    pub running: u64,
}

impl Replica {
    /// Whether both run on one machine, but with two data folders: neither can look after the other's jobs.
    pub fn estranged(&self, other: &Replica) -> bool {
        let living = self.state.holds_leases() && other.state.holds_leases();
        living && self.machine.is_some() && self.machine == other.machine && self.host != other.host
    }
}

/// `active → draining → left`, and from either of the first two `→ dead`. Nothing leaves `dead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaState {
    Active,
    Draining,
    Dead,
    Left,
}

impl ReplicaState {
    pub const ALL: [ReplicaState; 4] =
        [ReplicaState::Active, ReplicaState::Draining, ReplicaState::Dead, ReplicaState::Left];

    pub fn as_str(self) -> &'static str {
        match self {
            ReplicaState::Active => "active",
            ReplicaState::Draining => "draining",
            ReplicaState::Dead => "dead",
            ReplicaState::Left => "left",
        }
    }

    pub fn parse(text: &str) -> Option<ReplicaState> {
        ReplicaState::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether its leases stand.
    pub fn holds_leases(self) -> bool {
        matches!(self, ReplicaState::Active | ReplicaState::Draining)
    }
}

/// Whether a replica with this row (or none) may claim.
pub fn may_claim(state: Option<ReplicaState>, hole: Planted) -> bool {
    state == Some(ReplicaState::Active) || (state.is_none() && hole.is(Hole::ClaimBeforeReplica))
}

/// What a replica writes when it joins.
#[derive(Clone, Debug)]
pub struct NewReplica {
    pub id: ReplicaId,
    pub host: String,
    pub machine: Option<String>,
    pub version: String,
    pub heartbeat_interval: Duration,
    pub heartbeat_timeout: Duration,
    /// Its wall clock now.
    pub wall: StoreTime,
}
