use crate::Counts;
use async_trait::async_trait;
use everbeat_model::StoreTime;
use serde_json::Value;
use std::time::Duration;

/// What an attempt of a flow's run tells its engine, and asks of it.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// A batch is in the sink: stores the checkpoint for the next attempt. Returns when it is stored.
    async fn committed(&self, checkpoint: &Value, counts: &Counts) -> Result<(), Stop>;

    /// Whether to go on. Asked between batches.
    fn check(&self) -> Result<(), Stop>;

    /// The attempt lives, though nothing advances: what it waits for.
    fn beat(&self, note: &str);

    /// Waits by the engine's clock. Ends early when the attempt should stop.
    async fn sleep(&self, span: Duration) -> Result<(), Stop>;

    /// The time by the engine's clock.
    fn now(&self) -> StoreTime;
}

/// Why an attempt should stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    #[error("the run was cancelled")]
    Cancelled,
    #[error("the replica drains")]
    Draining,
    #[error("the attempt was fenced: its lease is no longer its own")]
    Fenced,
    /// The checkpoint cannot be stored, or the attempt was judged.
    #[error("{0}")]
    Other(String),
}
