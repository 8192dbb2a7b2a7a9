use crate::Result;
use async_trait::async_trait;
use everbeat_model::{Json, ReplicaId, StoreTime, WorkerId};

/// What replicas tell of their workers, for people who ask another replica. Nothing is decided by it.
#[async_trait]
pub trait Workers {
    /// Keeps what a replica tells of these workers, in place of what was told of them before, and forgets those of its
    /// workers that are gone. A replica that holds no leases is not listened to.
    async fn tell_workers(&self, replica: ReplicaId, told: Vec<Told>, gone: Vec<WorkerId>) -> Result<()>;

    /// What is told of the workers of replicas that hold leases, by id. What others had told is forgotten with
    /// [`Replicas::forget_replicas`](crate::Replicas::forget_replicas).
    async fn workers(&self, filter: WorkerFilter) -> Result<Vec<WorkerRow>>;
}

/// What is told of one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub id: WorkerId,
    /// None of a worker that belongs to no pool.
    pub pool: Option<String>,
    pub state: String,
    /// All else, as its replica writes it.
    pub report: Json,
}

/// What was told of one worker, by whom, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerRow {
    pub told: Told,
    pub replica_id: ReplicaId,
    pub at: StoreTime,
}

#[derive(Clone, Debug, Default)]
pub struct WorkerFilter {
    /// This one only.
    pub id: Option<WorkerId>,
    /// Those of this replica are left out.
    pub besides: Option<ReplicaId>,
    pub pool: Option<String>,
    pub state: Option<String>,
    pub after: Option<WorkerId>,
    pub limit: usize,
}
