use crate::Result;
use async_trait::async_trait;
use everbeat_model::StoreTime;
use everbeat_model::graph::Graph;
use std::sync::Arc;

/// Definitions. What was stored once is never changed: another definition under the same name and
/// version is stored beside it and counts from then on.
#[async_trait]
pub trait Graphs {
    /// Stores a definition, unless it is the one that the graph's name stands for already. Every
    /// execution of that name which is not archived is looked at soon: it goes on with the new one.
    async fn apply(&self, graph: Arc<Graph>) -> Result<Applied>;

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

#[derive(Clone, Debug)]
pub struct Applied {
    pub definition: Definition,
    /// It was stored just now.
    pub new: bool,
}
