//! Batches of requests for runs on a server with several sessions: what they cost, and how they meet.

mod support;

use everbeat_model::{Json, RunId};
use everbeat_store::{Enqueue, Enqueued, Runs};
use everbeat_store_sql::{Postgres, PostgresOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use support::proxy::Proxy;
use support::steps::{keyed, request, unique};
use support::{Database, steps, until_blocked};

async fn open(database: &Database) -> Arc<Postgres> {
    let options = PostgresOptions { application_name: database.schema.clone(), ..database.options() };
    Arc::new(Postgres::open(&database.url, options).await.expect("open"))
}

fn created(requests: &[Enqueue]) -> Vec<everbeat_store::Result<Vec<Enqueued>>> {
    let made = |request: &Enqueue| Ok(request.runs.iter().map(|run| Enqueued::Created(run.id)).collect());
    requests.iter().map(made).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_round_trips_of_a_batch_do_not_grow_with_its_requests() {
    let database = Database::create().await;
    let proxy = Proxy::start(&database.url).await;
    let store = Postgres::open(&proxy.through(&database.url), database.options()).await.expect("open");
    let first = |round: usize| (0..200).map(|n| keyed(request(1), &format!("{round} {n}"), "f")).collect::<Vec<_>>();
    let mixed = |round: usize| {
        let each = |n: usize| match n % 4 {
            0 => keyed(request(2), &format!("{round} {n}"), "f"),
            1 => unique(request(1), &format!("{round} {n}")),
            2 => keyed(unique(request(1), &format!("{round} {n}")), &format!("{round} {n}"), "f"),
            // Sent before, by another round or as another request.
            _ => keyed(request(1), "0 0", if n % 8 == 3 { "f" } else { "another" }),
        };
        (0..200).map(each).collect::<Vec<_>>()
    };
    // Connections are made and statements prepared at first use.
    store.enqueue(first(0)).await.expect("enqueue");
    store.enqueue(mixed(1)).await.expect("enqueue");
    let batch = first(2);
    let before = proxy.turns();
    assert_eq!(store.enqueue(batch.clone()).await.expect("enqueue"), created(&batch));
    let new = proxy.turns() - before;
    let answers = store.enqueue(mixed(3)).await.expect("enqueue");
    let decided = proxy.turns() - before - new;
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 25, "a key was used for another request");
    // Hints and the like take turns of their own; statements that are sent together may be answered one by one.
    assert!(new <= 4, "{new} turns for requests that are new");
    assert!(decided <= 20, "{decided} turns for requests that are decided about");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_waits_for_another_request_with_one_of_its_keys_and_goes_by_what_became_of_it() {
    let database = Database::create().await;
    let (store, mut session, looker) = (open(&database).await, database.session().await, database.session().await);
    let elsewhere = RunId(steps::next_id());
    let take = [
        "insert into idempotency (key, fingerprint, run_ids, created_at) values ('k', 'f', array[$1::uuid], 0)",
        "insert into unique_key (key, run_id) values ('k', $1)",
    ];
    for (sql, commits) in [(take[0], false), (take[0], true), (take[1], false), (take[1], true)] {
        let name = |request: Enqueue| if sql == take[0] { keyed(request, "k", "f") } else { unique(request, "k") };
        let batch = vec![keyed(request(1), &format!("{sql} {commits}"), "f"), name(request(1)), request(1)];
        let mut expected = created(&batch);
        let other = session.transaction().await.expect("begin");
        other.execute(sql, &[&elsewhere.0]).await.expect("insert");
        let end = async {
            until_blocked(&looker, 1).await;
            if commits { other.commit().await.expect("commit") } else { other.rollback().await.expect("rollback") }
        };
        let (answers, ()) = tokio::join!(store.enqueue(batch), end);
        if commits {
            expected[1] = Ok(vec![Enqueued::Exists(elsewhere)]);
        }
        assert_eq!(answers.expect("enqueue"), expected, "{sql} {commits}");
        session.batch_execute("delete from idempotency where key = 'k'; delete from unique_key").await.expect("delete");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_take_the_same_keys_in_batches_agree_and_never_wait_in_a_circle() {
    const KEYS: usize = 8;
    let database = Database::create().await;
    // A deadlock is not resolved by the server in time, so that it would show as an error.
    let patient = "do $$ begin execute format('alter database %I set deadlock_timeout to ''1min''', current_database()); \
                   end $$";
    drop(database.open().await);
    database.session().await.batch_execute(patient).await.expect("alter");
    let servers = futures_util::future::join_all((0..4).map(|_| open(&database))).await;
    for round in 0..12 {
        let batch = |server: usize| -> Vec<Enqueue> {
            // Each server has the keys in another order, and mixes what is new with what has to be decided.
            let place = |n: usize| if server.is_multiple_of(2) { n } else { KEYS - 1 - n };
            let each = |n: usize| match (n, (server + round) % 3) {
                (n, 0) => keyed(request(1), &format!("{round} i {n}"), "f"),
                (n, 1) if n % 2 == 0 => unique(request(1), &format!("{round} u {n}")),
                (n, _) => keyed(
                    unique(request(1), &format!("{round} u {n}")),
                    &format!("{round} i {}", n + KEYS * (server + 1)),
                    "f",
                ),
            };
            (0..KEYS).map(|n| each(place(n))).collect()
        };
        let batches: Vec<Vec<Enqueue>> = (0..servers.len()).map(batch).collect();
        let calls = servers.iter().zip(&batches).map(|(server, batch)| server.enqueue(batch.clone()));
        let answers = futures_util::future::join_all(calls).await;
        let mut by_key: BTreeMap<String, BTreeSet<RunId>> = BTreeMap::new();
        for (batch, answers) in batches.iter().zip(answers) {
            for (request, answer) in batch.iter().zip(answers.expect("enqueue")) {
                let idempotency = request.idempotency.as_ref().map(|idempotency| &idempotency.key);
                let key = request.runs[0].spec.unique_key.as_ref().or(idempotency).expect("one of both");
                by_key.entry(key.clone()).or_default().insert(answer.expect("accepted")[0].id());
            }
        }
        assert!(by_key.values().all(|runs| runs.len() == 1), "round {round}: {by_key:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_cannot_be_stored_is_told_so_and_harms_no_other() {
    let database = Database::create().await;
    let store = open(&database).await;
    let bound = "alter table run add constraint bound check (length(input) < 100)";
    database.session().await.batch_execute(bound).await.expect("a limit that is cheap to reach");
    steps::unstorable_requests_stand_alone(&*store, &Json::of(&"x".repeat(100))).await;
}
