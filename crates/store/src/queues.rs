use crate::Result;
use async_trait::async_trait;
use everbeat_model::queue::Queue;

#[async_trait]
pub trait Queues {
    /// Every queue that has unfinished runs or was ever paused, by name.
    async fn queues(&self) -> Result<Vec<Queue>>;

    /// Stops or allows claims from a queue. Answers whether that changed anything.
    async fn pause(&self, queue: &str, paused: bool) -> Result<bool>;
}
