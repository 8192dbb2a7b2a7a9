use crate::Result;
use async_trait::async_trait;
use everbeat_model::RunId;
use everbeat_model::queue::Queue;
use everbeat_model::run::Spec;
use std::collections::BTreeMap;
use std::time::Duration;

#[async_trait]
pub trait Queues {
    /// Every queue that has unfinished runs or was ever paused, by name.
    async fn queues(&self) -> Result<Vec<Queue>>;

    /// How many ready runs are claimed before this one in its lane; counted up to `limit`, however long the lane is.
    async fn ahead(&self, spec: &Spec, run: RunId, limit: usize) -> Result<u64>;

    /// Of every queue that has ready runs: for how long the one at the head of a line has been ready, where a line is
    /// what is claimed in order (one task and priority), and the oldest of a queue's lines counts. A run that was tried
    /// before is ready since its last attempt ended. Finds lines by the index, one look each, at most [`MOST_LINES`].
    async fn ready_ages(&self) -> Result<BTreeMap<String, Duration>>;

    /// Stops or allows claims from a queue. Answers whether that changed anything.
    async fn pause(&self, queue: &str, paused: bool) -> Result<bool>;
}

/// Lines of ready runs that one look at their ages goes through.
pub const MOST_LINES: usize = 1000;
