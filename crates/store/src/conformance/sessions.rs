use super::build::{ids, retry};
use super::fixture::Fixture;
use crate::KeptSession;
use everbeat_model::run::lane_on;
use everbeat_model::session::{Affinity, waits_for};
use everbeat_model::{Next, ReplicaId, Session, SessionId, WorkerId};
use std::collections::BTreeSet;
use std::time::Duration;

pub(super) async fn a_run_keeps_its_session(t: &Fixture) {
    let replica = t.replica().await;
    let session =
        Session { key: "it's é".to_string(), affinity: Affinity::Strict, ttl: Some(Duration::from_secs(90)) };
    let mut draft = t.draft();
    draft.spec.session = Some(session.clone());
    let run = t.accept(draft).await;
    t.accept(t.draft()).await;
    assert_eq!(t.look(run).await.spec.session, Some(session.clone()));
    let claimed = t.take(replica, 2).await;
    assert_eq!(claimed[0].spec.session, Some(session));
    assert_eq!(claimed[1].spec.session, None);
}

pub(super) async fn a_session_is_kept_by_one_replica_for_as_long_as_that_may_hold_leases(t: &Fixture) {
    let [one, other] = [t.replica().await, t.replica().await];
    let (user, same) = (kept(t, "pool", "user"), kept(t, "pool", "user"));
    assert_eq!(keep(t, &user, one).await, one);
    assert_eq!(keep(t, &user, one).await, one, "asked again");
    assert_eq!(keep(t, &same, other).await, one);
    for apart in [kept(t, "pool 2", "user"), kept(t, "pool", "USER")] {
        assert_eq!(keep(t, &apart, other).await, other);
    }
    assert!(t.drain(one).await.expect("drain"));
    assert_eq!(keep(t, &same, other).await, one, "who drains may still perform in it");
    t.leave(one).await.expect("leave");
    assert_eq!(keep(t, &same, other).await, other);
    assert_eq!(keep(t, &user, t.replica().await).await, other);
}

pub(super) async fn of_many_replicas_at_once_one_keeps_a_session(t: &Fixture) {
    let answers = t.at_once(8, |store| {
        let (replica, kept) = (t.new_replica(), kept(t, "pool", "user"));
        async move {
            let id = replica.id;
            store.join(replica).await.expect("join");
            store.keep_session(kept, id).await.expect("keep")
        }
    });
    let keepers: BTreeSet<ReplicaId> = answers.await.into_iter().collect();
    assert_eq!(keepers.len(), 1);
}

pub(super) async fn a_session_that_was_taken_again_is_not_let_go(t: &Fixture) {
    let [one, other] = [t.replica().await, t.replica().await];
    let (first, second) = (kept(t, "pool", "user"), kept(t, "pool", "user"));
    for session in [&first, &second, &first] {
        assert_eq!(keep(t, session, one).await, one, "a call that comes late changes nothing");
    }
    t.let_go_sessions(vec![first.clone(), kept(t, "pool", "unknown")], one).await.expect("let go");
    t.let_go_sessions(vec![second.clone()], other).await.expect("let go");
    assert_eq!(keep(t, &first, other).await, one);
    t.let_go_sessions(vec![first.clone(), second], one).await.expect("let go");
    assert_eq!(keep(t, &first, other).await, other);
    t.let_go_sessions(Vec::new(), other).await.expect("let go");
}

pub(super) async fn what_a_replica_has_taken_and_does_not_use_is_let_go(t: &Fixture) {
    let [one, other, third] = [t.replica().await, t.replica().await, t.replica().await];
    let [old, used, elsewhere, foreign] =
        [("pool", "a"), ("pool", "b"), ("pool 2", "a"), ("pool", "c")].map(|(pool, key)| kept(t, pool, key));
    for session in [&old, &used, &elsewhere] {
        keep(t, session, one).await;
    }
    keep(t, &foreign, other).await;
    let before = SessionId(t.next_id());
    let late = kept(t, "pool", "d");
    keep(t, &late, one).await;
    for over in [1, 0] {
        let kept = t.keep_only("pool".to_string(), one, before, vec![used.id]).await.expect("keep only");
        assert_eq!(kept, over);
    }
    for (session, keeper) in [(old, third), (used, one), (elsewhere, one), (foreign, other), (late, one)] {
        assert_eq!(keep(t, &session, third).await, keeper, "{session:?}");
    }
    assert_eq!(t.keep_only("pool".to_string(), third, SessionId(t.next_id()), Vec::new()).await.expect("keep only"), 1);
}

pub(super) async fn sessions_of_replicas_that_are_gone_are_forgotten(t: &Fixture) {
    let [one, other] = [t.replica().await, t.replica().await];
    for key in ["a", "b", "c"] {
        keep(t, &kept(t, "pool", key), one).await;
    }
    keep(t, &kept(t, "pool", "d"), other).await;
    assert_eq!(t.forget_sessions(10).await.expect("forget"), 0);
    t.leave(one).await.expect("leave");
    assert_eq!(t.forget_sessions(2).await.expect("forget"), 2);
    assert_eq!(t.forget_sessions(10).await.expect("forget"), 1);
    assert_eq!(t.forget_sessions(10).await.expect("forget"), 0);
    assert_eq!(keep(t, &kept(t, "pool", "d"), t.replica().await).await, other);
}

pub(super) async fn what_waits_for_a_session_is_unbound_whatever_its_task(t: &Fixture) {
    let replica = t.replica().await;
    let worker = WorkerId(t.next_id());
    let hosts = [waits_for(replica, None), waits_for(replica, Some(worker))];
    let tasks = ["mail", "a@b", "a@session"];
    for task in tasks {
        for _ in 0..3 {
            t.accept(t.draft().task(task)).await;
        }
    }
    let claimed = t.take_lanes(replica, &tasks, 100).await;
    for (place, claimed) in claimed.iter().enumerate() {
        if place % 3 < 2 {
            let host = Some(hosts[place % 3].clone());
            assert!(t.place(claimed.lease.shown(), host).await.expect("place"));
        }
        let next = if place < 6 { Next::Ready } else { Next::After(Duration::ZERO) };
        t.end(retry(claimed, next)).await;
    }
    assert_eq!(t.bound_hosts().await.expect("bound hosts"), hosts);
    let lanes: Vec<String> = tasks.iter().map(|task| lane_on(task, &hosts[1])).collect();
    let there: Vec<&str> = lanes.iter().map(String::as_str).collect();
    assert_eq!(ids(&t.take_lanes(replica, &there[..1], 100).await), [claimed[1].lease.run_id]);
    assert_eq!(t.unbind(hosts[1].clone(), 100).await.expect("unbind"), 2);
    assert_eq!(t.unbind(hosts[0].clone(), 100).await.expect("unbind"), 3);
    assert!(t.bound_hosts().await.expect("bound hosts").is_empty());
    t.promote(100).await.expect("promote");
    assert_eq!(t.take_lanes(replica, &tasks, 100).await.len(), 8, "all but the one that was taken");
    t.sound().await;
}

fn kept(t: &Fixture, pool: &str, key: &str) -> KeptSession {
    KeptSession { pool: pool.to_string(), key: key.to_string(), id: SessionId(t.next_id()) }
}

async fn keep(t: &Fixture, kept: &KeptSession, replica: ReplicaId) -> ReplicaId {
    t.keep_session(kept.clone(), replica).await.expect("keep")
}
