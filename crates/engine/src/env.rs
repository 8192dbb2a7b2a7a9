//! Time, chance and new tasks: the door through which they enter.

use everbeat_model::{BootInstant, StoreTime};
use futures_util::future::BoxFuture;
use std::future::Future;
use std::time::Duration;

/// The one door through which time, chance and new tasks enter.
pub trait Env: Send + Sync + 'static {
    /// This host's boot clock: it goes on during suspend and no wall-clock change moves it.
    fn boot(&self) -> BootInstant;

    /// This host's wall clock. For display, and for ids before the store's time is known.
    fn wall(&self) -> StoreTime;

    fn random(&self) -> u128;

    fn sleep_until(&self, at: BootInstant) -> BoxFuture<'static, ()>;

    /// Starts a task. Dropping the handle ends it at its next await.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) -> Task;
}

/// The handle of a spawned task, which owns it.
pub struct Task(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Task {
    pub fn new(abort: impl FnOnce() + Send + Sync + 'static) -> Task {
        Task(Some(Box::new(abort)))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(abort) = self.0.take() {
            abort();
        }
    }
}

impl dyn Env {
    pub async fn sleep(&self, span: Duration) {
        self.sleep_until(self.boot() + span).await;
    }

    /// A number in `0..1`.
    pub fn chance(&self) -> f64 {
        // 53 bits are what a double holds.
        (self.random() >> 75) as f64 / (1_u64 << 53) as f64
    }

    /// Shortens an interval by up to a fifth, so that replicas do not beat in step; it never
    /// lengthens one.
    pub fn jittered(&self, interval: Duration) -> Duration {
        interval.mul_f64(1.0 - 0.2 * self.chance())
    }
}

/// Waits for `future` at most `span`; none when time ran out. What it had begun may still happen.
pub async fn within<T>(env: &dyn Env, span: Duration, future: impl Future<Output = T>) -> Option<T> {
    let limit = env.sleep_until(env.boot() + span);
    tokio::select! {
        biased;
        answer = future => Some(answer),
        () = limit => None,
    }
}
