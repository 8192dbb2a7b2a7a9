use crate::Result;
use async_trait::async_trait;
use everbeat_model::replica::{NewReplica, ReplicaState};
use everbeat_model::{Replica, ReplicaId, StoreTime, Verdict};
use std::time::Duration;

/// Replicas, one row per boot.
#[async_trait]
pub trait Replicas {
    /// Joins as active. Joining again changes nothing, whatever became of the row.
    async fn join(&self, replica: NewReplica) -> Result<Joined>;

    /// Renews the replica's row, and with it all its leases.
    async fn renew(&self, replica: ReplicaId) -> Result<Renewal>;

    /// All rows, by id.
    async fn replicas(&self) -> Result<Vec<Replica>>;

    /// The rows of replicas that hold leases, without counting these: what an observer reads at every
    /// beat.
    async fn observe(&self) -> Result<Vec<Replica>> {
        let mut replicas = self.replicas().await?;
        replicas.retain(|replica| replica.state.holds_leases());
        Ok(replicas)
    }

    /// Whether the store is held by this process alone, so that no other replica can be alive.
    fn sole(&self) -> bool {
        false
    }

    /// Marks a replica dead if it still holds leases and its beat is still the one observed (`None`:
    /// whatever its beat, on positive proof); records the verdict with it. Answers whether it did.
    async fn bury(&self, replica: ReplicaId, beat: Option<u64>, verdict: Verdict) -> Result<bool>;

    /// Asks a replica to drain. Answers whether it was active.
    async fn drain(&self, replica: ReplicaId) -> Result<bool>;

    /// A replica's own orderly end.
    async fn leave(&self, replica: ReplicaId) -> Result<()>;

    /// Forgets rows of dead and left replicas without leases whose last beat is older than `keep`, and whatever
    /// replicas that hold no leases have told of their workers. Answers how many replicas were forgotten.
    async fn forget_replicas(&self, keep: Duration) -> Result<usize>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    pub now: StoreTime,
    pub clock_skew_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    Renewed {
        now: StoreTime,
        state: ReplicaState,
    },
    /// The row is dead, left or gone: nothing of this replica stands any more.
    Fenced,
}

/// Throttles a sweep across replicas.
#[async_trait]
pub trait Sweeps {
    /// Whether the caller should sweep now: true for one of all who ask within `every`.
    async fn sweep_due(&self, name: &str, every: Duration) -> Result<bool>;
}
