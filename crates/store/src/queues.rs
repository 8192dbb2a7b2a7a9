use crate::Result;
use async_trait::async_trait;
use everbeat_model::RunId;
use everbeat_model::queue::Queue;
use everbeat_model::run::Spec;

#[async_trait]
pub trait Queues {
    /// Every queue that has unfinished runs or was ever paused, by name.
    async fn queues(&self) -> Result<Vec<Queue>>;

    /// How many ready runs are claimed before this one in its lane; counted up to `limit`, however long the lane is.
    async fn ahead(&self, spec: &Spec, run: RunId, limit: usize) -> Result<u64>;

    /// Stops or allows claims from a queue. Answers whether that changed anything.
    async fn pause(&self, queue: &str, paused: bool) -> Result<bool>;
}
