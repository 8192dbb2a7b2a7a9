//! Which replica keeps which session, over the network.

use crate::faulty_store::FaultyStore;
use async_trait::async_trait;
use everbeat_model::{ReplicaId, SessionId};
use everbeat_store::{KeptSession, Memory, Result, Sessions};
use std::sync::Arc;

#[async_trait]
impl Sessions for FaultyStore {
    async fn keep_session(&self, kept: KeptSession, replica: ReplicaId) -> Result<ReplicaId> {
        self.call("keep_session", move |store| async move { store.keep_session(kept, replica).await }).await
    }

    async fn let_go_sessions(&self, over: Vec<KeptSession>, replica: ReplicaId) -> Result<()> {
        self.call("let_go_sessions", move |store| async move { store.let_go_sessions(over, replica).await }).await
    }

    async fn keep_only(
        &self,
        pool: String,
        replica: ReplicaId,
        before: SessionId,
        ids: Vec<SessionId>,
    ) -> Result<usize> {
        let keep = move |store: Arc<Memory>| async move { store.keep_only(pool, replica, before, ids).await };
        self.call("keep_only", keep).await
    }

    async fn forget_sessions(&self, limit: usize) -> Result<usize> {
        self.call("forget_sessions", move |store| async move { store.forget_sessions(limit).await }).await
    }
}
