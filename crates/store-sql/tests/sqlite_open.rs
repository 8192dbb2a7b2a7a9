//! Opening a SQLite store.

mod support;

use everbeat_store::{Error, Runs};
use support::{sqlite_at, steps};

fn refusal<T>(result: everbeat_store::Result<T>) -> String {
    match result {
        Err(Error::Refused(message)) => message,
        Err(error) => panic!("not refused, but {error:?}"),
        Ok(_) => panic!("not refused"),
    }
}

#[tokio::test]
async fn a_second_open_of_one_file_is_refused_until_the_first_is_dropped() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("store.db");
    let first = sqlite_at(&path).expect("open");
    let runs = steps::enqueue(&first, 3).await;
    let message = refusal(sqlite_at(&path));
    assert!(message.contains("store.db") && message.contains("another everbeat server"), "{message}");
    drop(first);
    let again = sqlite_at(&path).expect("open again");
    assert!(again.run(runs[0]).await.expect("read").is_some(), "what was written is there");
}

#[test]
fn a_newer_schema_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("store.db");
    drop(sqlite_at(&path).expect("open"));
    let file = rusqlite::Connection::open(&path).expect("open the file");
    file.execute("insert into schema_version values (99, 'future', '', 0)", []).expect("insert");
    drop(file);
    let message = refusal(sqlite_at(&path));
    assert!(message.contains("schema version 99") && message.contains("newer"), "{message}");
}

#[tokio::test]
async fn a_file_of_the_second_version_is_brought_up_to_date_with_what_runs_in_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("store.db");
    let store = sqlite_at(&path).expect("open");
    let (replica, claimed) = steps::begin_both(&store).await;
    drop(store);
    let file = rusqlite::Connection::open(&path).expect("open the file");
    let back = "drop index lease_detached; drop index scheduled_host; alter table scheduled drop column host;
                alter table lease drop column detached;
                alter table lease drop column tenure; alter table run drop column host;
                delete from schema_version where version = 3";
    file.execute_batch(back).expect("the second version");
    drop(file);
    let store = sqlite_at(&path).expect("open again");
    steps::go_on_with_both(&store, replica, &claimed).await;
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("store.db");
    std::fs::write(&path, "this is a text of a certain length, and not a database at all. ".repeat(40)).expect("write");
    assert!(refusal(sqlite_at(&path)).contains("store.db"));
}

#[tokio::test]
async fn a_sign_that_cannot_be_stored_is_told_so_and_harms_no_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("store.db");
    let store = sqlite_at(&path).expect("open");
    let file = rusqlite::Connection::open(&path).expect("open the file");
    let bound = "create trigger bound before insert on run_sign when length(new.progress) >= 100
                 begin select raise(abort, 'too long'); end";
    file.execute_batch(bound).expect("a limit that is cheap to reach");
    steps::unstorable_signs_stand_alone(&store, &everbeat_model::Json::of(&"x".repeat(100))).await;
}

#[tokio::test]
async fn a_failing_command_does_not_harm_the_others_of_its_group() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = std::sync::Arc::new(sqlite_at(&folder.path().join("store.db")).expect("open"));
    let replica = steps::join(&*store).await;
    steps::enqueue(&*store, 200).await;
    let mut settles = tokio::task::JoinSet::new();
    for number in 0..50 {
        let claimed = store.claim(steps::claim(replica, 4)).await.expect("claim");
        let store = store.clone();
        settles.spawn(async move {
            let keyed = everbeat_store::Idempotency { key: "same".to_string(), fingerprint: number.to_string() };
            let refused = store.enqueue(everbeat_store::Enqueue { runs: Vec::new(), idempotency: Some(keyed) });
            let settled = store.settle(claimed.iter().map(steps::success).collect());
            let (refused, settled) = tokio::join!(refused, settled);
            (usize::from(refused.is_err()), settled.expect("settle").len())
        });
    }
    let (mut refused, mut settled) = (0, 0);
    while let Some(ended) = settles.join_next().await {
        let (one, four) = ended.expect("no panic");
        refused += one;
        settled += four;
    }
    assert_eq!((refused, settled), (49, 200));
}
