//! From the model to what columns hold.

use everbeat_model::event::line;
use everbeat_model::graph::Refusal;
use everbeat_model::{Ending, ExecutionId, Next, Outcome, Reason, RunState, Settlement};
use everbeat_store::News;
use std::time::Duration;

/// Longer spans are stored as this one, so that no sum with a time overflows. That is about 70,000
/// years.
const SPAN_US_MAX: i64 = i64::MAX / 4;

pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(SPAN_US_MAX).min(SPAN_US_MAX)
}

/// A limit as the databases take it.
pub(crate) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// What is announced, as the log keeps it.
pub(crate) fn lines(news: &[News]) -> Vec<String> {
    news.iter().map(|news| line(news.kind, &news.subject, news.attempt, news.detail.as_ref())).collect()
}

/// What ends a run whose own ending the database cannot hold.
pub(crate) fn unstorable(settlement: &Settlement, reason: &str) -> Settlement {
    let message = format!("the outcome could not be stored: {reason}");
    Settlement {
        ending: Ending::because(Outcome::Failed, Reason::Unstorable, &message.replace('\0', "")),
        next: Next::Finish(RunState::Failed),
        verdict: None,
        ..settlement.clone()
    }
}

/// An execution whose change cannot be stored is looked at again after so long.
pub(crate) const UNSTORABLE_PAUSE: Duration = Duration::from_secs(60);

/// Refuses a change of an execution that the database cannot hold, and says so to whoever runs the server.
pub(crate) fn unstorable_change(execution: ExecutionId, reason: &str) -> Refusal {
    tracing::error!(%execution, reason, "a change of an execution cannot be stored");
    Refusal::unstorable(reason)
}

/// Counters as PostgreSQL's `integer` holds them.
pub(crate) fn int(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
