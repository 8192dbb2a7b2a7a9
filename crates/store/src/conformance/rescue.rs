use super::build::{ids, rescue, sign, success};
use super::fixture::Fixture;
use crate::{Signed, Which};
use everbeat_model::replica::ReplicaState;
use everbeat_model::{Outcome, ReplicaId, RunId, RunState, Settled};
use std::collections::BTreeSet;

pub(super) async fn orphaned_leases_are_those_of_dead_and_left_replicas(t: &Fixture) {
    t.accept_many(8).await;
    let mut owners = Vec::new();
    for _ in 0..4 {
        let replica = t.replica().await;
        owners.push((replica, ids(&t.take(replica, 2).await)));
    }
    let [(_, _), (draining, _), (dead, of_dead), (left, of_left)] = &owners[..] else { panic!("four owners") };
    assert!(orphans(t, 100).await.is_empty());
    t.drain(*draining).await.expect("drain");
    t.kill(*dead).await;
    t.leave(*left).await.expect("leave");
    let expected: BTreeSet<RunId> = of_dead.iter().chain(of_left).copied().collect();
    let found: BTreeSet<RunId> = orphans(t, 100).await.into_iter().map(|(_, run)| run).collect();
    assert_eq!(found, expected);
    let three = orphans(t, 3).await;
    assert_eq!(three.len(), 3, "no more than asked for");
    assert!(three.iter().all(|(owner, run)| (owner == dead || owner == left) && expected.contains(run)));
    for held in t.held(Which::Orphaned(None, 100)).await.expect("held") {
        assert_eq!(t.end(rescue(&held)).await, Settled::Done);
    }
    assert!(orphans(t, 100).await.is_empty(), "what was rescued is no orphan");
}

pub(super) async fn a_rescue_is_a_compare_and_set_on_the_token(t: &Fixture) {
    let first = t.running().await;
    let id = first.lease.run_id;
    let seen = t.held_of(id).await;
    assert_eq!(seen.lease, first.lease);
    assert_eq!(t.end(rescue(&seen)).await, Settled::Done);
    assert_eq!(t.end(rescue(&seen)).await, Settled::Fenced, "the run is ready");
    let second = t.running_again(id).await;
    assert_eq!(t.end(rescue(&seen)).await, Settled::Fenced, "that lease is gone; this one is another's");
    assert_eq!(t.state(id).await, RunState::Running);
    assert_eq!(t.end(success(&second)).await, Settled::Done);
    let outcomes: Vec<_> = t.attempts(id).await.expect("attempts").iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::Lost), Some(Outcome::Succeeded)]);
}

pub(super) async fn a_lease_stands_until_it_is_rescued_even_when_its_owner_is_dead(t: &Fixture) {
    let claimed = t.running().await;
    t.kill(claimed.lease.replica_id).await;
    let heard = t.sign(vec![sign(&claimed, Some("1"), None)]).await.expect("sign");
    assert_eq!(heard, [Signed::Accepted { cancel_asked: false }]);
    let seen = t.held_of(claimed.lease.run_id).await;
    assert_eq!(t.end(success(&claimed)).await, Settled::Done, "its result is not thrown away");
    assert_eq!(t.end(rescue(&seen)).await, Settled::Fenced);
    assert_eq!(t.state(claimed.lease.run_id).await, RunState::Succeeded);
}

pub(super) async fn a_lease_shows_all_that_settling_it_needs(t: &Fixture) {
    let claimed = t.running().await;
    let id = claimed.lease.run_id;
    t.cancel(id).await.expect("cancel");
    t.kill(claimed.lease.replica_id).await;
    let held = t.held_of(id).await;
    assert_eq!((&held.lease, &held.spec, held.standing), (&claimed.lease, &claimed.spec, claimed.standing));
    assert!(held.cancel_asked);
    assert!(held.last_heartbeat_at >= claimed.lease.granted_at);
    let owner = held.owner.expect("its owner has a row");
    assert_eq!((owner.id, owner.state), (claimed.lease.replica_id, ReplicaState::Dead));
    let ready = t.accept(t.draft()).await;
    let some = t.held(Which::Of(vec![ready, id, t.draft().id])).await.expect("held");
    assert_eq!(some.len(), 1, "what is not leased is left out");
    assert!(t.held(Which::Of(Vec::new())).await.expect("held").is_empty());
}

pub(super) async fn of_many_rescuers_at_once_one_rescues(t: &Fixture) {
    let claimed = t.running().await;
    t.kill(claimed.lease.replica_id).await;
    let seen = t.held_of(claimed.lease.run_id).await;
    let answers = t
        .at_once(12, |store| {
            let settlement = rescue(&seen);
            async move { store.settle(vec![settlement]).await.expect("settle")[0] }
        })
        .await;
    assert_eq!(answers.iter().filter(|settled| **settled == Settled::Done).count(), 1);
    assert_eq!(t.attempts(claimed.lease.run_id).await.expect("attempts").len(), 1);
    t.running_again(claimed.lease.run_id).await;
}

async fn orphans(t: &Fixture, limit: usize) -> Vec<(ReplicaId, RunId)> {
    let held = t.held(Which::Orphaned(None, limit)).await.expect("held");
    held.iter().map(|held| (held.lease.replica_id, held.lease.run_id)).collect()
}
