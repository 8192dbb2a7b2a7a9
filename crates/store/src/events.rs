use crate::Result;
use async_trait::async_trait;
use everbeat_model::event::EventKind;
use everbeat_model::{Event, Json};

/// The bounded log of what happened. One write appends one batch, whatever its size.
#[async_trait]
pub trait Events {
    /// Events after an id, oldest first, in whole batches: at least one batch if there is one, and no
    /// further batch once `limit` is reached. Never skips one that is still being written.
    async fn events(&self, after: u64, limit: usize) -> Result<EventPage>;

    /// Appends what happened without any other change, in one batch.
    async fn announce(&self, news: Vec<News>) -> Result<()>;

    /// The id of the newest event, 0 if there is none.
    async fn last_event(&self) -> Result<u64>;

    /// Drops what is older than the newest `keep` batches, oldest first and at most [`TRIM_LIMIT`] of
    /// them; answers how many. Writes nothing where there is nothing to drop.
    async fn trim_events(&self, keep: u64) -> Result<usize>;
}

/// Batches that one trim drops at most, so that none holds up other writes for long.
pub const TRIM_LIMIT: usize = 10_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// Events between `after` and the first of these were dropped by the log's bound.
    pub gap: bool,
}

/// An event to be.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    pub kind: EventKind,
    /// An id: a word without spaces.
    pub subject: String,
    pub attempt: Option<u32>,
    pub detail: Option<Json>,
}
