//! Lost answers, dead networks, stopped servers: every call ends in time, nothing is guessed, and the
//! store heals without being opened again.

mod support;

use everbeat_store::{Error, Replicas, Result, Runs};
use everbeat_store_sql::{Postgres, PostgresOptions};
use std::time::{Duration, Instant};
use support::proxy::{Proxy, Way};
use support::{Database, steps};

/// Far above the limits given below, far below those of any default.
const BOUND: Duration = Duration::from_secs(4);

async fn open(database: &Database, proxy: &Proxy) -> Postgres {
    let options = PostgresOptions {
        statement_timeout: Duration::from_millis(700),
        connect_timeout: Duration::from_millis(500),
        ..database.options()
    };
    Postgres::open(&proxy.through(&database.url), options).await.expect("open")
}

#[allow(clippy::disallowed_methods, reason = "measures a real wait")]
async fn bounded<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let started = Instant::now();
    let answer = call.await;
    assert!(started.elapsed() < BOUND, "took {:?}", started.elapsed());
    answer
}

fn unavailable<T: std::fmt::Debug>(answer: Result<T>) {
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_lost_is_found_by_its_leases() {
    let database = Database::create().await;
    let proxy = Proxy::start(&database.url).await;
    let store = open(&database, &proxy).await;
    let replica = steps::join(&store).await;
    steps::enqueue(&store, 5).await;
    // The connection stands and the statement is prepared, so that the claim is a single message.
    let first = store.claim(steps::claim(replica, 1)).await.expect("claim");
    proxy.set(Way::NoAnswers);
    unavailable(bounded(store.claim(steps::claim(replica, 2))).await);
    proxy.set(Way::Open);
    let index = store.lease_index(replica, None, 10).await.expect("lease index");
    assert_eq!(index.len(), 3, "the claim happened, though its answer was lost");
    assert_eq!(index[0], first[0].lease.shown());
    let rest = store.claim(steps::claim(replica, 10)).await.expect("claim");
    assert_eq!(rest.len(), 2, "the store works again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_whose_answer_is_lost_can_be_looked_up() {
    let database = Database::create().await;
    let proxy = Proxy::start(&database.url).await;
    let store = open(&database, &proxy).await;
    let replica = steps::join(&store).await;
    steps::enqueue(&store, 2).await;
    let claimed = store.claim(steps::claim(replica, 2)).await.expect("claim");
    store.settle(vec![steps::success(&claimed[0])]).await.expect("settle");
    proxy.set(Way::NoAnswers);
    unavailable(bounded(store.settle(vec![steps::success(&claimed[1])])).await);
    proxy.set(Way::Open);
    let lease = |index: usize| (claimed[index].lease.run_id, claimed[index].lease.token);
    assert_eq!(store.was_settled(vec![lease(0), lease(1)]).await, Ok(vec![true, true]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_ends_in_time_while_the_server_is_stopped_and_works_when_it_is_back() {
    let database = Database::create().await;
    let proxy = Proxy::start(&database.url).await;
    let store = open(&database, &proxy).await;
    let replica = steps::join(&store).await;
    let run = steps::enqueue(&store, 1).await[0];
    for way in [Way::Frozen, Way::Closed] {
        proxy.set(way);
        unavailable(bounded(store.renew(replica)).await);
        unavailable(bounded(store.claim(steps::claim(replica, 1))).await);
        unavailable(bounded(store.settle(Vec::new())).await.and(store.run(run).await));
        unavailable(bounded(store.reopen(run, 1)).await);
        proxy.set(Way::Open);
        assert!(store.renew(replica).await.is_ok(), "after {way:?}");
        assert!(store.reopen(run, 1).await.is_ok(), "after {way:?}");
        assert!(store.run(run).await.expect("read").is_some(), "after {way:?}");
    }
    assert_eq!(store.claim(steps::claim(replica, 1)).await.expect("claim").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_ended_by_an_operator_come_back() {
    let database = Database::create().await;
    let name = database.schema.clone();
    let options = PostgresOptions { application_name: name.clone(), ..database.options() };
    let store = Postgres::open(&database.url, options).await.expect("open");
    let replica = steps::join(&store).await;
    steps::enqueue(&store, 1).await;
    let end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like $1";
    database.session().await.query(end, &[&format!("{name} %")]).await.expect("terminate");
    // The first call may meet the dead connection; the next one does not.
    _ = bounded(store.renew(replica)).await;
    assert!(store.renew(replica).await.is_ok());
    assert_eq!(store.claim(steps::claim(replica, 1)).await.expect("claim").len(), 1);
}
