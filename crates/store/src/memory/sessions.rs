//! Which replica keeps which session.

use super::{Memory, State};
use crate::{KeptSession, Result, Sessions};
use async_trait::async_trait;
use everbeat_model::{ReplicaId, SessionId};

#[async_trait]
impl Sessions for Memory {
    async fn keep_session(&self, kept: KeptSession, replica: ReplicaId) -> Result<ReplicaId> {
        let mut state = self.lock();
        let place = (kept.pool, kept.key);
        match state.sessions.get(&place) {
            Some((other, _)) if *other != replica && holds(&state, *other) => return Ok(*other),
            Some((same, later)) if *same == replica && *later >= kept.id => return Ok(replica),
            _ => {}
        }
        state.sessions.insert(place, (replica, kept.id));
        state.version += 1;
        Ok(replica)
    }

    async fn let_go_sessions(&self, over: Vec<KeptSession>, replica: ReplicaId) -> Result<()> {
        let mut state = self.lock();
        for KeptSession { pool, key, id } in over {
            let place = (pool, key);
            if state.sessions.get(&place) == Some(&(replica, id)) {
                state.sessions.remove(&place);
                state.version += 1;
            }
        }
        Ok(())
    }

    async fn keep_only(
        &self,
        pool: String,
        replica: ReplicaId,
        before: SessionId,
        ids: Vec<SessionId>,
    ) -> Result<usize> {
        let mut state = self.lock();
        let count = state.sessions.len();
        let over = |place: &(String, String), kept: &(ReplicaId, SessionId)| {
            place.0 == pool && kept.0 == replica && kept.1 < before && !ids.contains(&kept.1)
        };
        state.sessions.retain(|place, kept| !over(place, kept));
        let over = count - state.sessions.len();
        state.version += u64::from(over > 0);
        Ok(over)
    }

    async fn forget_sessions(&self, limit: usize) -> Result<usize> {
        let mut state = self.lock();
        let orphaned = state.sessions.iter().filter(|(_, (replica, _))| !holds(&state, *replica));
        let forgotten: Vec<(String, String)> = orphaned.map(|(place, _)| place.clone()).take(limit).collect();
        for place in &forgotten {
            state.sessions.remove(place);
        }
        state.version += u64::from(!forgotten.is_empty());
        Ok(forgotten.len())
    }
}

fn holds(state: &State, replica: ReplicaId) -> bool {
    state.replicas.get(&replica).is_some_and(|row| row.state.holds_leases())
}
