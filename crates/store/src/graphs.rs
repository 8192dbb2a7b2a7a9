use crate::{Idempotency, Result};
use async_trait::async_trait;
use everbeat_model::StoreTime;
use everbeat_model::graph::Graph;
use std::sync::Arc;
use uuid::Uuid;

/// Definitions. What was stored once is never changed: another definition under the same name and
/// version is stored beside it and counts from then on.
#[async_trait]
pub trait Graphs {
    /// Stores a definition, unless it is the one that the graph's name stands for already. Every
    /// execution of that name which is not archived is looked at soon: it goes on with the new one. A
    /// request whose idempotency key was seen is answered with what it applied then.
    async fn apply(&self, graph: Arc<Graph>, idempotency: Option<Idempotency>) -> Result<Applied>;

    /// The definition that counts: the latest of this version, or of all.
    async fn graph(&self, name: &str, version: Option<&str>) -> Result<Option<Definition>>;

    /// The latest definition of each name, by name, after `after`.
    async fn graphs(&self, after: Option<&str>, limit: usize) -> Result<Vec<Definition>>;
}

/// A stored definition.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Rises with every definition that is stored, of whatever name.
    pub serial: u64,
    pub graph: Arc<Graph>,
    pub applied_at: StoreTime,
}

impl Definition {
    /// Its serial in the place of an id, where idempotency keys are kept.
    pub fn key_id(&self) -> Uuid {
        Uuid::from_u128(u128::from(self.serial))
    }

    pub fn serial_of(key_id: Uuid) -> u64 {
        u64::try_from(key_id.as_u128()).unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
pub struct Applied {
    pub definition: Definition,
    /// It was stored just now.
    pub new: bool,
}
