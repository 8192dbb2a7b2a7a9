//! What tests of flows share.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod postgres;

use async_trait::async_trait;
use everbeat_flows::{
    Attempt, Configuration, Counts, Halt, Ledger, PATIENCE, Ports, Report, Settings, Stop, Surroundings, run,
};
use everbeat_model::StoreTime;
use serde_json::Value;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The engine's side, in memory.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) checkpoint: Mutex<Option<Value>>,
    pub(crate) commits: Mutex<Vec<Counts>>,
    pub(crate) notes: Mutex<Vec<String>>,
    pub(crate) stop: Mutex<Option<Stop>>,
    now: AtomicI64,
}

#[async_trait]
impl Ledger for Memory {
    async fn committed(&self, checkpoint: &Value, counts: &Counts) -> Result<(), Stop> {
        // A store takes a moment: whoever is killed here has a sink that is ahead.
        tokio::task::yield_now().await;
        *self.checkpoint.lock().unwrap() = Some(checkpoint.clone());
        self.commits.lock().unwrap().push(*counts);
        Ok(())
    }

    fn check(&self) -> Result<(), Stop> {
        self.stop.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn beat(&self, note: &str) {
        self.notes.lock().unwrap().push(note.to_string());
    }

    #[allow(clippy::disallowed_methods, reason = "real files and servers need a real moment")]
    async fn sleep(&self, span: Duration) -> Result<(), Stop> {
        self.now.fetch_add(span.as_micros() as i64, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.check()
    }

    fn now(&self) -> StoreTime {
        StoreTime(1_000_000 + self.now.load(Ordering::Relaxed))
    }
}

pub(crate) fn settings() -> Settings {
    Settings { allow_private_targets: true, ..Settings::default() }
}

pub(crate) fn configure(value: &Value) -> Configuration {
    Configuration::parse(value, &settings()).unwrap_or_else(|invalid| panic!("{invalid}; {}", invalid.hint))
}

pub(crate) fn refusal(value: &Value) -> String {
    match Configuration::parse(value, &Settings::default()) {
        Ok(_) => panic!("{value} was taken"),
        Err(invalid) => format!("{invalid}; {}", invalid.hint),
    }
}

pub(crate) fn around(run: &str, fence: u64) -> Surroundings {
    Surroundings { flow: "orders".into(), run: run.into(), fence, range: None }
}

pub(crate) fn attempt<'a>(configuration: &'a Configuration, run: &str, fence: u64, ledger: &'a Memory) -> Attempt<'a> {
    let checkpoint = ledger.checkpoint.lock().unwrap().clone();
    Attempt {
        configuration,
        around: around(run, fence),
        ports: Ports::default(),
        ledger,
        checkpoint,
        previous: None,
        patience: PATIENCE,
    }
}

/// A run that ends with its first attempt.
pub(crate) async fn once(value: &Value) -> Result<Report, Halt> {
    once_as(value, "run-1").await
}

pub(crate) async fn once_as(value: &Value, name: &str) -> Result<Report, Halt> {
    let (configuration, ledger) = (configure(value), Memory::default());
    run(&attempt(&configuration, name, 1, &ledger)).await
}

/// The message of a run that fails for good.
pub(crate) async fn failure(value: &Value) -> String {
    match once(value).await {
        Err(Halt::Failed(trouble)) => {
            assert_eq!(trouble.class, everbeat_flows::Class::Permanent, "{trouble}");
            trouble.message
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// Lines of JSON `{"id": 1, "name": "n1"}` and so on.
pub(crate) fn numbered(count: usize) -> String {
    (1..=count).map(|id| format!("{{\"id\":{id},\"name\":\"n{id}\"}}\n")).collect()
}

/// Polls a future so often, then drops it. None if it was not done by then.
pub(crate) async fn killed_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(context).map(Some);
        if left == 0 && polled.is_pending() {
            return std::task::Poll::Ready(None);
        }
        polled
    })
    .await
}
