use everbeat_engine::{Env, Task};
use everbeat_model::{BootInstant, StoreTime};
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The real world: the kernel's clocks, its randomness, and the Tokio runtime that it was made in.
pub struct System {
    runtime: tokio::runtime::Handle,
}

impl System {
    /// Must be called inside a Tokio runtime, which then runs every task of the engine.
    pub fn new() -> Arc<System> {
        Arc::new(System { runtime: tokio::runtime::Handle::current() })
    }
}

// The clocks are read through the C library, not by raw calls: tools that shift a process's time
// preload that library, and must be seen.
impl Env for System {
    fn boot(&self) -> BootInstant {
        let now = clock_gettime(ClockId::Boottime);
        BootInstant(Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default()))
    }

    fn wall(&self) -> StoreTime {
        let now = clock_gettime(ClockId::Realtime);
        StoreTime(now.tv_sec * 1_000_000 + now.tv_nsec / 1000)
    }

    fn random(&self) -> u128 {
        // The version and variant bits of a random UUID are fixed; two of them fill the gaps.
        let (first, second) = (Uuid::new_v4().as_u128(), Uuid::new_v4().as_u128());
        first ^ second.rotate_left(64)
    }

    #[allow(clippy::disallowed_methods, reason = "this is the door")]
    fn sleep_until(&self, at: BootInstant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let span = at.since(self.boot());
        let _inside = self.runtime.enter();
        Box::pin(tokio::time::sleep(span))
    }

    fn spawn(&self, _name: &'static str, task: Pin<Box<dyn Future<Output = ()> + Send>>) -> Task {
        let handle = self.runtime.spawn(task).abort_handle();
        Task::new(move || handle.abort())
    }
}
