use crate::Result;
use async_trait::async_trait;
use std::collections::BTreeSet;

/// The tasks that some replica or worker has ever offered.
#[async_trait]
pub trait Tasks {
    async fn offer(&self, tasks: &BTreeSet<String>) -> Result<()>;

    async fn tasks(&self) -> Result<BTreeSet<String>>;
}
