use super::build::success;
use super::fixture::Fixture;
use crate::{Renewal, VerdictFilter};
use everbeat_model::replica::{NewReplica, ReplicaState};
use everbeat_model::{Replica, ReplicaId};
use std::time::Duration;

pub(super) async fn a_replica_joins_active_with_its_own_settings(t: &Fixture) {
    let given = NewReplica {
        host: "a 'host'".to_string(),
        machine: Some("a \"machine\"".to_string()),
        version: "9.9.9-β".to_string(),
        heartbeat_interval: Duration::from_millis(150),
        heartbeat_timeout: Duration::from_millis(1250),
        ..t.new_replica()
    };
    let joined = t.join(given.clone()).await.expect("join");
    let row = row(t, given.id).await;
    assert_eq!((row.host, row.machine, row.version), (given.host, given.machine, given.version));
    assert_eq!((row.state, row.beat, row.running), (ReplicaState::Active, 1, 0));
    assert_eq!((row.started_at, row.last_heartbeat_at), (joined.now, joined.now));
    assert_eq!((row.heartbeat_interval, row.heartbeat_timeout), (given.heartbeat_interval, given.heartbeat_timeout));
    assert_eq!(row.clock_skew_ms, joined.clock_skew_ms);
    assert_eq!(joined.clock_skew_ms, -joined.now.0 / 1000, "its wall clock stood at 1970");
    let ahead = NewReplica { wall: joined.now.plus(Duration::from_secs(7200)), ..t.new_replica() };
    let skew = t.join(ahead).await.expect("join").clock_skew_ms;
    assert!((3_600_000..=7_200_000).contains(&skew), "{skew}");
}

pub(super) async fn a_repeated_join_changes_nothing_and_revives_nobody(t: &Fixture) {
    let given = t.new_replica();
    t.join(given.clone()).await.expect("join");
    t.renew(given.id).await.expect("renew");
    let before = row(t, given.id).await;
    t.join(given.clone()).await.expect("join again");
    assert_eq!(row(t, given.id).await, before);
    t.leave(given.id).await.expect("leave");
    t.join(given.clone()).await.expect("join too late");
    assert_eq!(row(t, given.id).await.state, ReplicaState::Left);
    assert_eq!(t.renew(given.id).await.expect("renew"), Renewal::Fenced);
}

pub(super) async fn a_renewal_raises_the_beat_and_the_heartbeat_of_its_runs(t: &Fixture) {
    let claimed = t.running().await;
    let (id, replica) = (claimed.lease.run_id, claimed.lease.replica_id);
    let (before, run) = (row(t, replica).await, t.look(id).await);
    let Renewal::Renewed { now, state } = t.renew(replica).await.expect("renew") else { panic!("it is active") };
    let after = row(t, replica).await;
    assert_eq!(state, ReplicaState::Active);
    assert_eq!((after.beat, after.last_heartbeat_at), (before.beat + 1, now));
    assert_eq!(after.started_at, before.started_at);
    assert!(now > before.last_heartbeat_at);
    assert_eq!(t.look(id).await.last_heartbeat_at, Some(now), "one write renews all its leases");
    assert!(Some(now) > run.last_heartbeat_at);
    t.end(success(&claimed)).await;
}

pub(super) async fn burying_is_a_compare_and_set_on_the_beat(t: &Fixture) {
    let (replica, judge) = (t.replica().await, t.replica().await);
    t.renew(replica).await.expect("renew");
    let verdict = t.verdict(replica);
    assert!(!t.bury(replica, Some(1), verdict.clone()).await.expect("bury"), "it has beaten since");
    assert_eq!(row(t, replica).await.state, ReplicaState::Active);
    assert_eq!(t.store.verdict(verdict.id).await.expect("verdict"), None, "no verdict without a death");
    assert!(t.bury(replica, Some(2), verdict.clone()).await.expect("bury"));
    let dead = row(t, replica).await;
    assert_eq!((dead.state, dead.beat), (ReplicaState::Dead, 2));
    assert!(t.store.verdict(verdict.id).await.expect("verdict").is_some());
    let second = t.verdict(replica);
    assert!(!t.bury(replica, Some(2), second.clone()).await.expect("bury"), "one death each");
    assert_eq!(t.store.verdict(second.id).await.expect("verdict"), None);
    assert_eq!(row(t, judge).await.state, ReplicaState::Active, "and nobody else's");
}

pub(super) async fn positive_proof_buries_whatever_the_beat(t: &Fixture) {
    let (active, draining) = (t.replica().await, t.replica().await);
    t.renew(active).await.expect("renew");
    t.drain(draining).await.expect("drain");
    for replica in [active, draining] {
        assert!(t.bury(replica, None, t.verdict(replica)).await.expect("bury"));
        assert_eq!(row(t, replica).await.state, ReplicaState::Dead);
    }
    let unknown = t.new_replica().id;
    assert!(!t.bury(unknown, None, t.verdict(unknown)).await.expect("bury"));
}

pub(super) async fn of_many_buriers_at_once_one_buries(t: &Fixture) {
    let replica = t.replica().await;
    let verdicts = std::sync::Mutex::new((0..12).map(|_| t.verdict(replica)).collect::<Vec<_>>());
    let answers = t
        .at_once(12, |store| {
            let verdict = verdicts.lock().expect("unpoisoned").pop().expect("one each");
            async move { store.bury(replica, Some(1), verdict).await.expect("bury") }
        })
        .await;
    assert_eq!(answers.iter().filter(|buried| **buried).count(), 1);
    let kept = t.verdicts(VerdictFilter { limit: 100, ..VerdictFilter::default() }).await.expect("verdicts");
    assert_eq!(kept.len(), 1);
}

pub(super) async fn a_dead_replica_cannot_renew_or_leave(t: &Fixture) {
    let replica = t.replica().await;
    t.kill(replica).await;
    let before = row(t, replica).await;
    assert_eq!(t.renew(replica).await.expect("renew"), Renewal::Fenced);
    t.leave(replica).await.expect("leave");
    assert!(!t.drain(replica).await.expect("drain"));
    assert_eq!(row(t, replica).await, before, "nothing leaves dead");
}

pub(super) async fn a_draining_replica_renews_and_is_told(t: &Fixture) {
    let replica = t.replica().await;
    assert!(t.drain(replica).await.expect("drain"));
    let renewal = t.renew(replica).await.expect("renew");
    assert!(matches!(renewal, Renewal::Renewed { state: ReplicaState::Draining, .. }), "{renewal:?}");
    assert_eq!(row(t, replica).await.beat, 2);
}

pub(super) async fn a_replica_drains_once(t: &Fixture) {
    let replica = t.replica().await;
    assert!(t.drain(replica).await.expect("drain"));
    assert!(!t.drain(replica).await.expect("drain"));
    assert_eq!(row(t, replica).await.state, ReplicaState::Draining);
    assert!(!t.drain(t.new_replica().id).await.expect("drain"));
}

pub(super) async fn a_left_replica_is_neither_buried_nor_renewed(t: &Fixture) {
    let replica = t.replica().await;
    t.drain(replica).await.expect("drain");
    t.leave(replica).await.expect("leave");
    assert_eq!(row(t, replica).await.state, ReplicaState::Left);
    assert_eq!(t.renew(replica).await.expect("renew"), Renewal::Fenced);
    assert!(!t.bury(replica, None, t.verdict(replica)).await.expect("bury"));
    assert!(!t.bury(replica, Some(1), t.verdict(replica)).await.expect("bury"));
    t.leave(replica).await.expect("leave");
    assert_eq!(row(t, replica).await.state, ReplicaState::Left);
}

pub(super) async fn an_unknown_replica_is_fenced(t: &Fixture) {
    let unknown = t.new_replica().id;
    assert_eq!(t.renew(unknown).await.expect("renew"), Renewal::Fenced);
    t.leave(unknown).await.expect("leave");
    assert_eq!(t.replicas().await.expect("replicas"), [], "and nothing is made of it");
}

pub(super) async fn replicas_count_what_they_run(t: &Fixture) {
    let (first, second) = (t.replica().await, t.replica().await);
    t.accept_many(5).await;
    let claimed = t.take(first, 3).await;
    t.take(second, 1).await;
    let rows = t.replicas().await.expect("replicas");
    let counts: Vec<(ReplicaId, u64)> = rows.iter().map(|row| (row.id, row.running)).collect();
    assert_eq!(counts, [(first, 3), (second, 1)], "by id");
    t.end(success(&claimed[0])).await;
    assert_eq!(row(t, first).await.running, 2);
    t.kill(first).await;
    assert_eq!(row(t, first).await.running, 2, "until somebody rescues them");
}

pub(super) async fn observers_see_those_that_hold_leases(t: &Fixture) {
    let (active, draining, dead, left) = (t.replica().await, t.replica().await, t.replica().await, t.replica().await);
    t.drain(draining).await.expect("drain");
    t.kill(dead).await;
    t.leave(left).await.expect("leave");
    t.renew(active).await.expect("renew");
    let seen = t.observe().await.expect("observe");
    let beats: Vec<(ReplicaId, u64)> = seen.iter().map(|row| (row.id, row.beat)).collect();
    assert_eq!(beats, [(active, 2), (draining, 1)]);
    assert_eq!(seen[0].heartbeat_timeout, row(t, active).await.heartbeat_timeout);
}

async fn row(t: &Fixture, id: ReplicaId) -> Replica {
    let rows = t.replicas().await.expect("replicas");
    rows.into_iter().find(|row| row.id == id).expect("the replica has a row")
}
