//! Schedules and flows: what users ask of them, and what is due for them.

mod ask;
mod heartbeat;
mod ledger;
pub(crate) mod tick;
mod unsound;

pub use ask::{ScheduleView, Triggered, WriteSchedule};
pub(crate) use heartbeat::Beat as FlowBeat;
pub use heartbeat::Heard;
pub use ledger::LedgerPage;
pub(crate) use tick::ReplicaScheduler;

use everbeat_model::Invalid;
use serde_json::Value;

/// Who knows what flows are made of.
pub trait FlowRules: Send + Sync + 'static {
    /// Checks what a flow says of its source, transforms and sink, of its dead letters and of what it may reject.
    fn check(
        &self,
        configuration: &Value,
        dead_letter: Option<&Value>,
        max_rejected: Option<&Value>,
    ) -> std::result::Result<(), Invalid>;
}
