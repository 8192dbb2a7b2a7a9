use super::build::{Draft, failure, retry, sign, success};
use super::fixture::{Fixture, HOUR, MOMENT};
use super::steps::graph;
use crate::{Enqueue, Enqueued, Idempotency, Reopened, RunFilter};
use everbeat_model::{Next, RunId};
use serde_json::json;
use std::time::Duration;

pub(super) async fn retention_forgets_only_what_finished_long_ago(t: &Fixture) {
    let replica = t.replica().await;
    t.accept_many(5).await;
    let c = t.take(replica, 5).await;
    t.end(success(&c[0])).await;
    t.end(failure(&c[1])).await;
    t.end(retry(&c[2], Next::Ready)).await;
    t.end(retry(&c[3], Next::After(HOUR))).await;
    let cancelled = t.accept(t.draft()).await;
    t.cancel(cancelled).await.expect("cancel");
    assert_eq!(t.forget_runs(HOUR, 100).await.expect("forget"), 0, "nothing is that old");
    t.advance(MOMENT).await;
    assert_eq!(t.forget_runs(MOMENT / 2, 100).await.expect("forget"), 3);
    let left: Vec<RunId> = list(t).await;
    let unfinished: Vec<RunId> = c[2..].iter().rev().map(|claimed| claimed.lease.run_id).collect();
    assert_eq!(left, unfinished, "however old");
}

pub(super) async fn a_forgotten_run_leaves_nothing_behind(t: &Fixture) {
    let id = t.accept(t.draft().key("k")).await;
    let first = t.running_again(id).await;
    t.sign(vec![sign(&first, Some("1"), Some("2"))]).await.expect("sign");
    t.end(retry(&first, Next::Ready)).await;
    let second = t.take_one(first.lease.replica_id).await;
    t.end(failure(&second)).await;
    let kept = t.running().await;
    t.end(retry(&kept, Next::Ready)).await;
    t.advance(MOMENT).await;
    assert_eq!(t.forget_runs(MOMENT / 2, 100).await.expect("forget"), 1);
    assert_eq!(t.run(id).await.expect("run"), None);
    assert_eq!(t.attempts(id).await.expect("attempts"), []);
    assert_eq!(t.reopen(id, 2).await.expect("reopen"), Reopened::NotFound);
    let leases = vec![(id, first.lease.token), (id, second.lease.token)];
    assert_eq!(t.was_settled(leases).await.expect("was settled"), [false, false]);
    assert_eq!(t.attempts(kept.lease.run_id).await.expect("attempts").len(), 1, "others keep their history");
    assert_eq!(t.audit().await.expect("audit").checked["attempts"], 1);
    t.accept(t.draft().key("k")).await;
}

pub(super) async fn one_finished_run_is_forgotten_with_all_of_it(t: &Fixture) {
    let id = t.accept(t.draft().key("k")).await;
    let first = t.running_again(id).await;
    t.sign(vec![sign(&first, Some("1"), Some("2"))]).await.expect("sign");
    t.end(retry(&first, Next::Ready)).await;
    let second = t.take_one(first.lease.replica_id).await;
    t.end(failure(&second)).await;
    let other = t.running().await;
    t.end(retry(&other, Next::Ready)).await;
    t.end(success(&t.take_one(first.lease.replica_id).await)).await;
    assert!(t.forget(id).await.expect("forget"));
    assert_eq!(t.run(id).await.expect("run"), None);
    assert_eq!(t.attempts(id).await.expect("attempts"), []);
    let leases = vec![(id, first.lease.token), (id, second.lease.token)];
    assert_eq!(t.was_settled(leases).await.expect("was settled"), [false, false]);
    assert_eq!(list(t).await, [other.lease.run_id], "others stay, also finished ones");
    assert_eq!(t.attempts(other.lease.run_id).await.expect("attempts").len(), 2);
    // The same id again begins with nothing.
    let anew = Draft::plain(id).key("k");
    assert_eq!(t.submit(anew).await, Enqueued::Created(id));
    let run = t.look(id).await;
    assert_eq!((run.attempt, run.progress, run.checkpoint), (0, None, None));
    assert_eq!(t.audit().await.expect("audit").violations, []);
}

pub(super) async fn an_unfinished_unknown_or_awaited_run_is_not_forgotten(t: &Fixture) {
    let replica = t.replica().await;
    let ids = t.accept_many(3).await;
    let claimed = t.take(replica, 2).await;
    t.end(retry(&claimed[0], Next::After(HOUR))).await;
    for id in ids.into_iter().chain([t.draft().id]) {
        let before = t.run(id).await.expect("run");
        assert!(!t.forget(id).await.expect("forget"), "{before:?}");
        assert_eq!(t.run(id).await.expect("run"), before);
    }
    let node = json!({ "name": "made", "kind": "compute", "task": "work", "gate": ["a"] });
    let execution = t.begin_new(&graph("made", json!(["a", node])), json!({"a": 1})).await;
    let awaited = t.lease_of(execution, "made").await;
    t.end(success(&awaited)).await;
    let id = awaited.lease.run_id;
    assert!(!t.forget(id).await.expect("forget"), "its execution has not taken note of it");
    t.catch_up().await;
    assert_eq!(t.content(execution, "made").await, Some(json!("done")));
    assert!(t.forget(id).await.expect("forget"));
    assert!(!t.forget(id).await.expect("forget"), "it is forgotten");
    t.sound().await;
}

pub(super) async fn retention_takes_no_more_than_its_limit(t: &Fixture) {
    for id in t.accept_many(5).await {
        t.cancel(id).await.expect("cancel");
    }
    t.advance(MOMENT).await;
    for expected in [2, 2, 1, 0] {
        assert_eq!(t.forget_runs(MOMENT / 2, 2).await.expect("forget"), expected);
    }
}

pub(super) async fn retention_forgets_only_ended_replicas_without_leases(t: &Fixture) {
    let (active, draining, dead, left) = (t.replica().await, t.replica().await, t.replica().await, t.replica().await);
    let claimed = t.running().await;
    t.drain(draining).await.expect("drain");
    t.kill(dead).await;
    t.leave(left).await.expect("leave");
    t.kill(claimed.lease.replica_id).await;
    assert_eq!(t.forget_replicas(HOUR).await.expect("forget"), 0, "nobody is that long gone");
    t.advance(MOMENT).await;
    assert_eq!(t.forget_replicas(MOMENT / 2).await.expect("forget"), 2);
    let rows = async || -> Vec<_> { t.replicas().await.expect("replicas").iter().map(|row| row.id).collect() };
    assert_eq!(rows().await, [active, draining, claimed.lease.replica_id], "whose leases still stand is still named");
    t.end(success(&claimed)).await;
    assert_eq!(t.forget_replicas(MOMENT / 2).await.expect("forget"), 1);
    assert_eq!(rows().await, [active, draining]);
}

pub(super) async fn an_idempotency_key_outlives_its_run_for_a_day(t: &Fixture) {
    let request = |draft: Draft| Enqueue {
        runs: vec![draft.done()],
        idempotency: Some(Idempotency { key: "k".to_string(), fingerprint: "f".to_string() }),
    };
    let first = t.draft();
    let id = first.id;
    t.request(request(first)).await.expect("enqueue");
    t.cancel(id).await.expect("cancel");
    t.advance(MOMENT).await;
    assert_eq!(t.forget_runs(MOMENT / 2, 100).await.expect("forget"), 1);
    let again = t.request(request(t.draft())).await.expect("enqueue");
    assert_eq!(again, [Enqueued::Exists(id)], "a late repetition makes no second run");
    let Some(clock) = &t.clock else { return };
    clock.jump(Duration::from_secs(25 * 3600));
    t.forget_runs(HOUR, 100).await.expect("forget");
    let anew = t.draft();
    let id = anew.id;
    assert_eq!(t.request(request(anew)).await.expect("enqueue"), [Enqueued::Created(id)]);
}

async fn list(t: &Fixture) -> Vec<RunId> {
    let runs = t.runs(RunFilter { limit: 100, ..RunFilter::default() }).await.expect("runs").items;
    runs.into_iter().map(|run| run.id).collect()
}
