//! What a sink remembers of its last write beside the cursor, for whoever lost the answer.

use crate::{Rejected, Written};
use serde_json::{Value, json};

/// Rejected records of one write that are remembered. The others are only counted.
const MOST_REJECTED: usize = 1000;
const MOST_RAW_BYTES: usize = 1 << 20;

pub(crate) fn to_text(written: &Written) -> String {
    let mut bytes = 0;
    let kept = written.rejected.iter().take(MOST_REJECTED).take_while(|rejected| {
        bytes += rejected.raw.len() + rejected.reason.len();
        bytes <= MOST_RAW_BYTES
    });
    let kept: Vec<Value> = kept
        .map(|rejected| json!({"position": rejected.position, "reason": rejected.reason, "raw": rejected.raw}))
        .collect();
    let Written { written: new, updated, unchanged, rejected } = written;
    json!({"written": new, "updated": updated, "unchanged": unchanged, "count": rejected.len(), "rejected": kept})
        .to_string()
}

/// Anything else than what was written above reads as nothing.
pub(crate) fn from_text(text: &str) -> Option<Written> {
    let value: Value = serde_json::from_str(text).ok()?;
    let count = |name: &str| value.get(name).and_then(Value::as_u64);
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_string);
    let kept = value.get("rejected")?.as_array()?.iter();
    let mut rejected: Vec<Rejected> = kept
        .filter_map(|kept| {
            let position = text(kept, "position")?.into();
            Some(Rejected { position, reason: text(kept, "reason")?, raw: text(kept, "raw")? })
        })
        .collect();
    let all = usize::try_from(count("count")?).ok()?.min(1_000_000);
    while rejected.len() < all {
        rejected.push(Rejected::new("unknown", "was rejected by a write whose answer was lost", b""));
    }
    Some(Written { written: count("written")?, updated: count("updated")?, unchanged: count("unchanged")?, rejected })
}
