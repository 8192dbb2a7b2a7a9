//! What sources of messages have in common.

use crate::{Surroundings, Trouble};
use serde_json::{Map, Value};

/// Refuses a run that asks for a part of what the source has, if the source cannot tell parts.
pub(super) fn refuse_range(around: &Surroundings, source: &str) -> Result<(), Trouble> {
    match around.range {
        None => Ok(()),
        Some(_) => Err(Trouble::permanent(format!(
            "a {source} source cannot read a range: it has no column to go by; trigger the flow without one"
        ))),
    }
}

/// The object that a text holds as JSON, if it does.
pub(super) fn object(bytes: &[u8]) -> Option<Map<String, Value>> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    serde_json::from_slice(bytes).ok()
}

/// How many messages are asked for at once. A server counts messages, not bytes: messages that were large until now are
/// asked for in smaller numbers.
pub(super) struct Appetite {
    average_bytes: usize,
}

/// More would make cursors, which name each message, too large.
const MOST_MESSAGES: usize = 1000;
/// Asked for before the size of any message is known.
const FIRST_MESSAGES: usize = 100;

impl Appetite {
    pub(super) fn new() -> Appetite {
        Appetite { average_bytes: 0 }
    }

    pub(super) fn messages(&self, room: crate::Room) -> usize {
        let by_bytes = room.bytes.checked_div(self.average_bytes).unwrap_or(FIRST_MESSAGES);
        room.records.min(by_bytes).clamp(1, MOST_MESSAGES)
    }

    pub(super) fn learn(&mut self, messages: usize, bytes: usize) {
        if let Some(average) = bytes.checked_div(messages) {
            self.average_bytes = average.max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Room;

    #[test]
    fn large_messages_are_asked_for_in_small_numbers() {
        let room = Room { records: 5000, bytes: 1 << 20 };
        let mut appetite = Appetite::new();
        assert_eq!(appetite.messages(room), FIRST_MESSAGES);
        appetite.learn(100, 100 * 100);
        assert_eq!(appetite.messages(room), MOST_MESSAGES);
        appetite.learn(10, 10 << 20);
        assert_eq!(appetite.messages(room), 1);
        assert_eq!(appetite.messages(Room { records: 0, bytes: 0 }), 1);
    }
}
