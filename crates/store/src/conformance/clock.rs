use crate::Clock;
use everbeat_model::StoreTime;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// A wall clock that a test moves. Each reading is a microsecond later than the one before, as it is
/// with real clocks: two writes never share a time by chance.
#[derive(Debug)]
pub struct HandClock(AtomicI64);

/// 2026-01-01, so that ids made from it look as they do in use.
const START_MICROS: i64 = 1_767_225_600_000_000;

impl HandClock {
    pub fn jump(&self, span: Duration) {
        self.0.fetch_add(micros(span), Ordering::SeqCst);
    }

    /// What an operator's correction of the clock does.
    pub fn jump_back(&self, span: Duration) {
        self.0.fetch_sub(micros(span), Ordering::SeqCst);
    }
}

impl Default for HandClock {
    fn default() -> HandClock {
        HandClock(AtomicI64::new(START_MICROS))
    }
}

impl Clock for HandClock {
    fn now(&self) -> StoreTime {
        StoreTime(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
