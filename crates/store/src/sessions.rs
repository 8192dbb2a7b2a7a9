use crate::Result;
use async_trait::async_trait;
use everbeat_model::{ReplicaId, SessionId};

/// Which replica keeps the strict session of a key. The sessions themselves are in the memory of their replicas.
#[async_trait]
pub trait Sessions {
    /// Takes a session for a replica, unless another one that may hold leases keeps the session of that key. Answers who
    /// keeps it then. Ids rise: a session that the replica has taken since, under a higher id, stays, so that a late call
    /// changes nothing.
    async fn keep_session(&self, kept: KeptSession, replica: ReplicaId) -> Result<ReplicaId>;

    /// Sessions of this replica are over. One that was taken again since, under another id, stays.
    async fn let_go_sessions(&self, over: Vec<KeptSession>, replica: ReplicaId) -> Result<()>;

    /// Of the sessions of a replica in pools of this name, those under lower ids than `before` are over, but for the ones
    /// that are named: what an unanswered call has taken, and nobody uses. Answers how many.
    async fn keep_only(
        &self,
        pool: String,
        replica: ReplicaId,
        before: SessionId,
        ids: Vec<SessionId>,
    ) -> Result<usize>;

    /// Forgets the sessions of replicas that hold no leases any more, at most `limit`; answers how many.
    async fn forget_sessions(&self, limit: usize) -> Result<usize>;
}

/// The strict session of a key in the pools of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptSession {
    pub pool: String,
    pub key: String,
    pub id: SessionId,
}
