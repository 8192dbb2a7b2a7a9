//! The client's clocks: for ages on the screen and for how long it has waited. The server has its own.

use everbeat_model::StoreTime;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[allow(clippy::disallowed_methods, reason = "the client is no part of the engine's time")]
pub(crate) fn wall() -> StoreTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    StoreTime(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// How much of a wait is left; without a limit there is always more.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    until: Option<Instant>,
    limit: Option<Duration>,
}

#[allow(clippy::disallowed_methods, reason = "the client is no part of the engine's time")]
impl Patience {
    pub(crate) fn new(limit: Option<Duration>) -> Patience {
        Patience { until: limit.and_then(|limit| Instant::now().checked_add(limit)), limit }
    }

    /// How long the wait may take as a whole.
    pub(crate) fn limit(self) -> Option<Duration> {
        self.limit
    }

    pub(crate) fn left(self) -> Duration {
        self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn pause(self, span: Duration) {
        std::thread::sleep(span.min(self.left()));
    }
}

/// How long something has taken.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

#[allow(clippy::disallowed_methods, reason = "the client is no part of the engine's time")]
impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
