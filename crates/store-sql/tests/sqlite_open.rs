//! Opening a SQLite store.

mod support;

use everbeat_store::{Cause, Error, Runs};
use support::{sqlite_at, steps};

fn refusal<T>(result: everbeat_store::Result<T>) -> String {
    match result {
        Err(Error::Refused(_, message)) => message,
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
                alter table run drop column session; drop table session;
                alter table replica drop column machine;
                drop table output; drop table output_tally; drop table worker;
                drop index run_schedule; alter table run drop column schedule_id; alter table run drop column due_at;
                drop table schedule; drop table occurrence; drop table occurrence_left; drop table schedule_note;
                drop table schedule_after; drop table checks; drop table ping;
                delete from schema_version where version >= 3";
    file.execute_batch(back).expect("the second version");
    drop(file);
    let store = sqlite_at(&path).expect("open again");
    steps::go_on_with_both(&store, replica, &claimed).await;
}

fn of_another_program(path: &std::path::Path, sql: &str) {
    let file = rusqlite::Connection::open(path).expect("open the file");
    file.execute_batch(sql).expect("a database");
}

#[test]
fn what_is_not_ours_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let own_id = "pragma application_id = 252006675; create table layer (id integer primary key)";
    let own_tables = "create table person (name text); insert into person values ('Ada')";
    let similar =
        "create table schema_version (version integer, name text); insert into schema_version values (1, 'x')";
    for (name, sql) in [("id", own_id), ("tables", own_tables), ("similar", similar)] {
        for journal in ["delete", "wal"] {
            let path = folder.path().join(format!("{name}-{journal}.db"));
            of_another_program(&path, &format!("pragma journal_mode = {journal}; {sql}"));
            refused_untouched(folder.path(), &path);
        }
    }
    let path = folder.path().join("text.db");
    std::fs::write(&path, "this is a text of a certain length, and not a database at all. ".repeat(40)).expect("write");
    refused_untouched(folder.path(), &path);
    std::fs::write(&path, "short").expect("write");
    refused_untouched(folder.path(), &path);
}

fn refused_untouched(folder: &std::path::Path, path: &std::path::Path) {
    let look = || {
        let entries = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path());
        let mut files: Vec<_> = entries.map(|path| (std::fs::read(&path).expect("its bytes"), path)).collect();
        files.sort();
        files
    };
    let before = look();
    match sqlite_at(path) {
        Err(Error::Refused(Cause::Foreign, said)) => assert!(said.contains(&path.display().to_string()), "{said}"),
        Err(error) => panic!("{}: {error:?}", path.display()),
        Ok(_) => panic!("{} was taken", path.display()),
    }
    assert!(look() == before, "{} left a trace", path.display());
}

#[test]
fn an_open_database_of_another_program_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("live.db");
    let file = rusqlite::Connection::open(&path).expect("open the file");
    file.execute_batch("pragma journal_mode = wal; create table person (name text)").expect("what its log says only");
    let said = refusal(sqlite_at(&path));
    assert!(said.contains("another program"), "{said}");
    file.execute_batch("insert into person values ('Ada')").expect("it works on");
}

#[test]
fn an_empty_file_and_one_of_an_earlier_version_are_taken_and_marked() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let id = |path: &std::path::Path| -> i64 {
        let file = rusqlite::Connection::open(path).expect("open the file");
        file.pragma_query_value(None, "application_id", |row| row.get(0)).expect("an id")
    };
    let empty = folder.path().join("empty.db");
    std::fs::write(&empty, "").expect("write");
    drop(sqlite_at(&empty).expect("open"));
    assert_eq!(id(&empty), 0x4576_6274);
    of_another_program(&empty, "pragma application_id = 0");
    drop(sqlite_at(&empty).expect("open"));
    assert_eq!(id(&empty), 0x4576_6274);
    let headed = folder.path().join("headed.db");
    of_another_program(&headed, "pragma journal_mode = wal; pragma user_version = 0; vacuum");
    drop(sqlite_at(&headed).expect("open"));
}

#[test]
fn a_folder_and_a_missing_folder_are_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let said = refusal(sqlite_at(folder.path()));
    assert!(said.contains("a folder"), "{said}");
    let said = refusal(sqlite_at(&folder.path().join("missing").join("store.db")));
    assert!(said.contains("its folder does not exist"), "{said}");
}

#[test]
fn nobody_else_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("an open folder");
    let path = folder.path().join("store.db");
    let check = |when: &str| {
        let files: Vec<_> =
            std::fs::read_dir(folder.path()).expect("the folder").map(|entry| entry.expect("one")).collect();
        assert!(files.len() >= 4, "{when}: {files:?}");
        for file in files {
            let mode = file.metadata().expect("its mode").permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{when}: {}", file.path().display());
        }
    };
    let store = sqlite_at(&path).expect("open");
    check("new");
    drop(store);
    for name in ["store.db", "store.db.lock"] {
        let file = folder.path().join(name);
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).expect("as an earlier version left it");
    }
    let _store = sqlite_at(&path).expect("open");
    check("old");
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
async fn a_request_that_cannot_be_stored_is_told_so_and_harms_no_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("store.db");
    let store = sqlite_at(&path).expect("open");
    let file = rusqlite::Connection::open(&path).expect("open the file");
    let bound = "create trigger bound before insert on run when length(new.input) >= 100
                 begin select raise(abort, 'too long'); end";
    file.execute_batch(bound).expect("a limit that is cheap to reach");
    steps::unstorable_requests_stand_alone(&store, &everbeat_model::Json::of(&"x".repeat(100))).await;
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
            let refused = store.enqueue(vec![everbeat_store::Enqueue { runs: Vec::new(), idempotency: Some(keyed) }]);
            let settled = store.settle(claimed.iter().map(steps::success).collect());
            let (refused, settled) = tokio::join!(refused, settled);
            (usize::from(refused.expect("enqueue")[0].is_err()), settled.expect("settle").len())
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
