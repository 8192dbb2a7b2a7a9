//! One replica's way to what is told of workers.

use crate::faulty_store::FaultyStore;
use async_trait::async_trait;
use everbeat_model::{ReplicaId, WorkerId};
use everbeat_store::{Result, Told, WorkerFilter, WorkerRow, Workers};

#[async_trait]
impl Workers for FaultyStore {
    async fn tell_workers(&self, replica: ReplicaId, told: Vec<Told>, gone: Vec<WorkerId>) -> Result<()> {
        self.call("tell_workers", move |store| async move { store.tell_workers(replica, told, gone).await }).await
    }

    async fn workers(&self, filter: WorkerFilter) -> Result<Vec<WorkerRow>> {
        self.call("workers", move |store| async move { store.workers(filter).await }).await
    }
}
