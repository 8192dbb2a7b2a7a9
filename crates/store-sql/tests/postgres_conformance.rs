//! The contract, on PostgreSQL.

mod support;

use everbeat_store::conformance::differential::differential;
use everbeat_store::conformance::{HandClock, Open};
use everbeat_store::{Memory, Store};
use std::sync::Arc;
use support::Database;

async fn open() -> Open {
    let database = Database::create().await;
    let store = database.open().await;
    Open::real(Arc::new(store)).keeping(database)
}

everbeat_store::conformance!(postgres, open);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_and_memory_tell_the_same_story() {
    for seed in 1..=3 {
        let database = Database::create().await;
        let memory: Arc<dyn Store> = Arc::new(Memory::new(Arc::new(HandClock::default())));
        let tally = differential(memory, Arc::new(database.open().await), seed, 400).await;
        assert!(!tally.is_empty(), "nothing happened");
    }
}
