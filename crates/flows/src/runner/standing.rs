use crate::{Counts, Rejected};
use serde_json::{Value, json};

/// How far a run has come.
pub(super) struct Standing {
    /// The source's, after the last batch that is in the sink.
    pub(super) cursor: Option<Value>,
    pub(super) counts: Counts,
    /// The first rejected records.
    pub(super) kept: Vec<Rejected>,
    /// Committed by this attempt.
    pub(super) batches: u64,
}

/// So many rejected records are part of the result.
const MOST_KEPT: usize = 100;
/// They are part of every checkpoint, too.
const MOST_KEPT_BYTES: usize = 300;

impl Standing {
    /// A checkpoint of another shape reads as none.
    pub(super) fn of(checkpoint: Option<&Value>) -> Standing {
        let part = |name: &str| checkpoint.and_then(|checkpoint| checkpoint.get(name)).filter(|part| !part.is_null());
        let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_string();
        let kept = part("rejected").and_then(Value::as_array).into_iter().flatten().take(MOST_KEPT);
        let kept = kept.map(|kept| Rejected {
            position: text(kept, "position").into(),
            reason: text(kept, "reason"),
            raw: text(kept, "raw"),
        });
        Standing {
            cursor: part("cursor").cloned(),
            counts: part("counts").map(counts).unwrap_or_default(),
            kept: kept.collect(),
            batches: 0,
        }
    }

    pub(super) fn checkpoint(&self) -> Value {
        let rejected: Vec<Value> = self
            .kept
            .iter()
            .map(|kept| json!({"position": kept.position, "reason": kept.reason, "raw": kept.raw}))
            .collect();
        json!({"cursor": self.cursor, "counts": self.counts, "rejected": rejected})
    }

    pub(super) fn keep(&mut self, rejected: &[Rejected]) {
        let cut = |text: &str| text[..text.floor_char_boundary(MOST_KEPT_BYTES)].to_string();
        for one in rejected.iter().take(MOST_KEPT - self.kept.len()) {
            let position = cut(&one.position).into();
            self.kept.push(Rejected { position, reason: cut(&one.reason), raw: cut(&one.raw) });
        }
    }
}

/// What is written into the sink as the cursor: the source's cursor, and the counts without what the sink itself will
/// say about the batch.
pub(super) struct Envelope {
    pub(super) cursor: Value,
    pub(super) counts: Counts,
}

impl Envelope {
    pub(super) fn seal(cursor: &Value, counts: &Counts) -> Value {
        json!({"cursor": cursor, "counts": counts})
    }

    pub(super) fn open(value: &Value) -> Option<Envelope> {
        let cursor = value.get("cursor")?.clone();
        Some(Envelope { cursor, counts: value.get("counts").map(counts).unwrap_or_default() })
    }
}

fn counts(value: &Value) -> Counts {
    serde_json::from_value(value.clone()).unwrap_or_default()
}
