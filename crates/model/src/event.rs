use crate::json::Json;
use crate::time::StoreTime;
use serde::{Deserialize, Serialize};

/// Something that happened, for whoever follows the log. Events explain and notify; nothing is
/// decided from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Rises along the log: the batch's number times `PER_BATCH`, plus the place in the batch.
    pub id: u64,
    pub at: StoreTime,
    /// `run.succeeded`, `replica.dead`, `queue.paused`, …
    pub kind: String,
    /// The id or name of what it happened to.
    pub subject: String,
    pub attempt: Option<u32>,
    pub detail: Option<Json>,
}

/// Events of one write are stored as one row; so many fit.
pub const PER_BATCH: u64 = 1 << 16;

/// One line of a stored batch: `kind subject attempt detail`, the last two optional.
pub fn line(kind: &str, subject: &str, attempt: Option<u32>, detail: Option<&Json>) -> String {
    let attempt = attempt.map_or_else(|| "-".to_string(), |attempt| attempt.to_string());
    match detail {
        Some(detail) => format!("{kind} {subject} {attempt} {detail}"),
        None => format!("{kind} {subject} {attempt}"),
    }
}

/// Reads a stored batch back. Lines of another version that cannot be read are passed over.
pub fn expand(batch: u64, at: StoreTime, body: &str) -> Vec<Event> {
    let mut events = Vec::new();
    for (place, line) in (0_u64..PER_BATCH).zip(body.lines()) {
        let mut parts = line.splitn(4, ' ');
        let (Some(kind), Some(subject)) = (parts.next(), parts.next()) else { continue };
        events.push(Event {
            id: batch * PER_BATCH + place,
            at,
            kind: kind.to_string(),
            subject: subject.to_string(),
            attempt: parts.next().and_then(|attempt| attempt.parse().ok()),
            detail: parts.next().map(Json::stored),
        });
    }
    events
}
