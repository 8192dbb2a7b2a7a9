//! What replicas tell of their workers.

use super::Memory;
use crate::{Result, Told, WorkerFilter, WorkerRow, Workers};
use async_trait::async_trait;
use everbeat_model::{Replica, ReplicaId, WorkerId};

#[async_trait]
impl Workers for Memory {
    async fn tell_workers(&self, replica: ReplicaId, told: Vec<Told>, gone: Vec<WorkerId>) -> Result<()> {
        let at = self.now();
        let mut state = self.lock();
        for id in gone {
            if state.workers.get(&id).is_some_and(|row| row.replica_id == replica) {
                state.workers.remove(&id);
            }
        }
        if state.replicas.get(&replica).is_some_and(|row| row.state.holds_leases()) {
            let rows = told.into_iter().map(|told| (told.id, WorkerRow { told, replica_id: replica, at }));
            state.workers.extend(rows);
        }
        state.version += 1;
        Ok(())
    }

    async fn workers(&self, filter: WorkerFilter) -> Result<Vec<WorkerRow>> {
        let state = self.lock();
        let stands = |replica: &Replica| replica.state.holds_leases();
        let wanted = |row: &&WorkerRow| {
            state.replicas.get(&row.replica_id).is_some_and(stands)
                && filter.id.is_none_or(|id| row.told.id == id)
                && filter.besides != Some(row.replica_id)
                && (filter.pool.is_none() || row.told.pool == filter.pool)
                && filter.state.as_ref().is_none_or(|state| row.told.state == *state)
                && filter.after.is_none_or(|after| row.told.id > after)
        };
        Ok(state.workers.values().filter(wanted).take(filter.limit).cloned().collect())
    }
}
