//! Real time for connectors: they talk to real servers, on whatever clock the engine runs.

use std::time::{Duration, Instant};

/// The result, or nothing if the future takes longer.
#[expect(clippy::disallowed_methods, reason = "other systems answer in real time")]
pub(crate) async fn within<T>(span: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(span, future).await.ok()
}

#[expect(clippy::disallowed_methods, reason = "another system asked to be left alone for a while")]
pub(crate) async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}

/// How long ago something was.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "other systems count in real time")]
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
