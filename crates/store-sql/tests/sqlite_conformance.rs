//! The contract, on SQLite.

mod support;

use everbeat_store::conformance::differential::differential;
use everbeat_store::conformance::{HandClock, Open};
use everbeat_store::{Memory, Store};
use everbeat_store_sql::Sqlite;
use std::sync::Arc;
use uuid::Uuid;

async fn open() -> Open {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let clock = Arc::new(HandClock::default());
    let random = Arc::new(|| Uuid::new_v4().as_u128());
    let store = Sqlite::open(&folder.path().join("store.db"), clock.clone(), random).expect("open");
    Open::steered(Arc::new(store), clock).keeping(folder)
}

everbeat_store::conformance!(sqlite, open);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_and_memory_tell_the_same_story() {
    for seed in 1..=6 {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let random = Arc::new(|| Uuid::new_v4().as_u128());
        let clock = Arc::new(HandClock::default());
        let store = Sqlite::open(&folder.path().join("store.db"), clock, random).expect("open");
        let memory: Arc<dyn Store> = Arc::new(Memory::new(Arc::new(HandClock::default())));
        let tally = differential(memory, Arc::new(store), seed, 400).await;
        assert!(!tally.is_empty(), "nothing happened");
    }
}
