//! Schedules and flows: what users ask of them, and what is due for them.

mod ask;
mod declare;
mod heartbeat;
mod ledger;
pub(crate) mod tick;
mod unsound;

pub use ask::{ScheduleView, Triggered, WriteSchedule};
pub(crate) use heartbeat::Beat as FlowBeat;
pub use heartbeat::Heard;
pub use ledger::LedgerPage;
pub(crate) use tick::ReplicaScheduler;

use async_trait::async_trait;
use everbeat_model::{Invalid, StoreTime};
use serde_json::Value;

/// Who knows what flows are made of.
#[async_trait]
pub trait FlowRules: Send + Sync + 'static {
    /// Checks what a flow says of its source, transforms and sink, of its dead letters and of what it may reject.
    fn check(
        &self,
        configuration: &Value,
        dead_letter: Option<&Value>,
        max_rejected: Option<&Value>,
    ) -> std::result::Result<(), Invalid>;

    /// Reads up to `most` records of a source, and transforms them. Writes nothing. `configuration` was checked.
    async fn try_out(
        &self,
        flow: &str,
        configuration: &Value,
        most: usize,
        now: StoreTime,
    ) -> std::result::Result<Tried, Invalid>;
}

/// What a flow would do with the first records of its source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tried {
    pub read: u64,
    /// What would be written.
    pub records: Vec<Value>,
    /// What would be rejected, with position and reason.
    pub rejected: Vec<Value>,
    /// Records of which a transform makes nothing.
    pub dropped: u64,
    /// Each record is in the sink exactly once, whatever is lost; otherwise at least once.
    pub exactly_once: bool,
}
