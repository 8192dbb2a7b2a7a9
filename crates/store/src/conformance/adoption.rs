use super::build::{ids, rescue, retry, sign, success};
use super::fixture::Fixture;
use crate::{Held, Signed, Which};
use everbeat_model::lease::Shown;
use everbeat_model::run::{COMMAND, Claimed};
use everbeat_model::{Lease, Next, ReplicaId, RunId, RunState, Settled};
use std::collections::BTreeSet;

pub(super) async fn a_lease_passes_on_within_its_host_and_keeps_its_token(t: &Fixture) {
    let claimed = t.detached(1).await.remove(0);
    let (id, former) = (claimed.lease.run_id, claimed.lease.replica_id);
    t.kill(former).await;
    let next = t.replica().await;
    let adopted = t.adopt(next, 10).await.expect("adopt");
    assert_eq!(leases(&adopted), [Lease { replica_id: next, tenure: 1, ..claimed.lease.clone() }]);
    let held = &adopted[0];
    assert_eq!((&held.spec, held.standing, held.cancel_asked), (&claimed.spec, claimed.standing, false));
    assert_eq!(held.owner.as_ref().map(|owner| owner.id), Some(next));
    assert_eq!(leases(&[t.held_of(id).await]), leases(&adopted));
    assert_eq!(t.adopt(next, 10).await.expect("adopt").len(), 0, "it has passed on");
    let second = as_owner(&claimed, held);
    assert_eq!(told(t, &second).await, Signed::Accepted { cancel_asked: false });
    assert_eq!(t.end(success(&second)).await, Settled::Done);
    let attempts = t.attempts(id).await.expect("attempts");
    assert_eq!((attempts.len(), attempts[0].replica_id), (1, next), "it is one attempt, ended by its last owner");
    let by_token = vec![(id, claimed.lease.token)];
    assert_eq!(t.was_settled(by_token).await.expect("was settled"), [true]);
}

pub(super) async fn a_former_owner_can_neither_settle_nor_sign_nor_place(t: &Fixture) {
    let zombie = t.detached(1).await.remove(0);
    let id = zombie.lease.run_id;
    t.kill(zombie.lease.replica_id).await;
    let adopted = t.adopt(t.replica().await, 10).await.expect("adopt").remove(0);
    for late in [success(&zombie), retry(&zombie, Next::Ready)] {
        assert_eq!(t.end(late).await, Settled::Fenced);
    }
    assert_eq!(told(t, &zombie).await, Signed::Fenced);
    assert!(!t.place(zombie.lease.shown(), Some("host-1".to_string())).await.expect("place"));
    let run = t.look(id).await;
    assert_eq!((run.state, run.progress, run.spec.host.clone()), (RunState::Running, None, None));
    t.cancel(id).await.expect("cancel");
    assert_eq!(t.end(retry(&zombie, Next::Ready)).await, Settled::Fenced, "also when a cancel was asked");
    let (late, own) = (success(&zombie), success(&as_owner(&zombie, &adopted)));
    let answers = t.settle(vec![late.clone(), own, late]).await.expect("settle");
    assert_eq!(answers, [Settled::Fenced, Settled::Done, Settled::Fenced], "also beside the owner's own");
}

pub(super) async fn both_owners_in_one_batch_of_signs_are_told_apart(t: &Fixture) {
    let zombie = t.detached(1).await.remove(0);
    t.kill(zombie.lease.replica_id).await;
    let adopted = t.adopt(t.replica().await, 10).await.expect("adopt").remove(0);
    let owner = as_owner(&zombie, &adopted);
    let batch = vec![sign(&zombie, Some("1"), None), sign(&owner, Some("2"), None), sign(&zombie, Some("3"), None)];
    let heard = Signed::Accepted { cancel_asked: false };
    assert_eq!(t.sign(batch).await.expect("sign"), [Signed::Fenced, heard, Signed::Fenced]);
    assert_eq!(t.look(zombie.lease.run_id).await.progress, Some(super::build::json("2")));
}

pub(super) async fn a_rescuer_who_observed_the_former_owner_is_fenced(t: &Fixture) {
    let claimed = t.detached(1).await.remove(0);
    let id = claimed.lease.run_id;
    t.kill(claimed.lease.replica_id).await;
    let seen = t.held_of(id).await;
    let next = t.replica().await;
    t.adopt(next, 10).await.expect("adopt");
    assert_eq!(t.end(rescue(&seen)).await, Settled::Fenced);
    assert_eq!(t.state(id).await, RunState::Running);
    t.kill(next).await;
    assert_eq!(t.end(rescue(&seen)).await, Settled::Fenced, "its owner is dead too, but it is another");
    assert_eq!(t.end(rescue(&t.held_of(id).await)).await, Settled::Done);
    assert_eq!(t.state(id).await, RunState::Ready);
}

pub(super) async fn the_tenure_rises_with_every_adoption_and_shows_in_the_run(t: &Fixture) {
    let claimed = t.detached(1).await.remove(0);
    let id = claimed.lease.run_id;
    assert_eq!((claimed.lease.tenure, t.look(id).await.tenure), (0, 0));
    let mut owner = claimed.lease.replica_id;
    for tenure in 1..=3 {
        t.leave(owner).await.expect("leave");
        owner = t.replica().await;
        assert_eq!(t.adopt(owner, 10).await.expect("adopt")[0].lease.tenure, tenure);
        let run = t.look(id).await;
        assert_eq!((run.tenure, run.replica_id, run.attempt), (tenure, Some(owner), 1));
        assert_eq!(run.started_at, Some(claimed.lease.granted_at), "the attempt is the same");
    }
    t.end(rescue(&t.held_of(id).await)).await;
    assert_eq!(t.look(id).await.tenure, 0, "nobody owns what is ready");
    let again = t.take_lanes(owner, &[COMMAND], 1).await.remove(0);
    assert_eq!((again.lease.tenure, t.look(id).await.tenure), (0, 0), "another attempt begins anew");
}

pub(super) async fn only_detached_leases_of_the_dead_and_left_of_its_host_are_adopted(t: &Fixture) {
    let here = t.replica().await;
    let elsewhere = t.replica_on("host-2").await;
    let [alive, draining, dead, left] = [t.replica().await, t.replica().await, t.replica().await, t.replica().await];
    let mut of = Vec::new();
    for owner in [elsewhere, alive, draining, dead, left] {
        of.push(t.detached_by(owner, 1).await.remove(0).lease.run_id);
        t.accept(t.draft()).await;
        t.take_one(owner).await;
    }
    t.drain(draining).await.expect("drain");
    for gone in [elsewhere, dead] {
        t.kill(gone).await;
    }
    t.leave(left).await.expect("leave");
    assert_eq!(runs(&t.adopt(here, 10).await.expect("adopt")), of[3..]);
    assert_eq!(t.held_of(of[0]).await.lease.replica_id, elsewhere, "that is for its own host");
    let there = t.replica_on("host-2").await;
    assert_eq!(runs(&t.adopt(there, 10).await.expect("adopt")), of[..1]);
}

pub(super) async fn a_dead_left_or_unknown_replica_adopts_nothing_and_a_draining_one_does(t: &Fixture) {
    let claimed = t.detached(1).await.remove(0);
    let [dead, left, draining] = [t.replica().await, t.replica().await, t.replica().await];
    t.kill(claimed.lease.replica_id).await;
    t.kill(dead).await;
    t.leave(left).await.expect("leave");
    t.drain(draining).await.expect("drain");
    for nobody in [dead, left, claimed.lease.replica_id, ReplicaId(t.next_id())] {
        assert_eq!(t.adopt(nobody, 10).await.expect("adopt").len(), 0);
    }
    assert_eq!(t.held_of(claimed.lease.run_id).await.lease, claimed.lease, "nothing was changed");
    assert_eq!(t.adopt(draining, 10).await.expect("adopt").len(), 1, "it still holds leases");
}

pub(super) async fn an_adoption_takes_no_more_than_its_limit_and_the_oldest_first(t: &Fixture) {
    let [first, second] = [t.replica().await, t.replica().await];
    // Alternating, so that the age of runs is not that of owners.
    let mut all = Vec::new();
    for owner in [second, first, second, first, second] {
        all.push(t.detached_by(owner, 1).await.remove(0).lease.run_id);
    }
    t.kill(first).await;
    t.kill(second).await;
    let next = t.replica().await;
    assert_eq!(t.adopt(next, 0).await.expect("adopt").len(), 0);
    assert_eq!(runs(&t.adopt(next, 2).await.expect("adopt")), all[..2]);
    assert_eq!(runs(&t.adopt(next, 2).await.expect("adopt")), all[2..4]);
    assert_eq!(runs(&t.adopt(next, 2).await.expect("adopt")), all[4..]);
}

pub(super) async fn many_adopters_at_once_share_the_leases_and_none_goes_twice(t: &Fixture) {
    let claimed = t.detached(60).await;
    t.kill(claimed[0].lease.replica_id).await;
    let adopters = [t.replica().await, t.replica().await];
    let adopted = t
        .at_once(6, |store| async move {
            let mut mine = Vec::new();
            for to in adopters {
                for held in store.adopt(to, 7).await.expect("adopt") {
                    assert_eq!((held.lease.replica_id, held.lease.tenure), (to, 1));
                    mine.push(held.lease.run_id);
                }
            }
            mine
        })
        .await;
    let mut all: Vec<RunId> = adopted.concat();
    all.extend(runs(&t.adopt(adopters[0], 100).await.expect("adopt")));
    let distinct: BTreeSet<RunId> = all.iter().copied().collect();
    assert_eq!((all.len(), distinct.len()), (60, 60));
    for id in ids(&claimed) {
        assert_eq!(t.held_of(id).await.lease.tenure, 1);
    }
}

pub(super) async fn of_an_adoption_and_a_settle_at_once_exactly_one_wins(t: &Fixture) {
    let claimed = t.detached(40).await;
    t.kill(claimed[0].lease.replica_id).await;
    let next = t.replica().await;
    let adopting = t.at_once(1, |store| async move {
        let mut adopted = BTreeSet::new();
        for _ in 0..20 {
            adopted.extend(runs(&store.adopt(next, 3).await.expect("adopt")));
        }
        adopted
    });
    let settling = async {
        let mut settled = Vec::new();
        for pair in claimed.rchunks(2) {
            settled.extend(t.settle(pair.iter().map(success).collect()).await.expect("settle"));
        }
        settled
    };
    let (adopted, settled) = tokio::join!(adopting, settling);
    let pairs = claimed.rchunks(2).flatten().zip(settled);
    for (claimed, settled) in pairs {
        let expected = if adopted[0].contains(&claimed.lease.run_id) { Settled::Fenced } else { Settled::Done };
        assert_eq!(settled, expected);
    }
}

pub(super) async fn cancels_and_the_lease_index_follow_the_new_owner(t: &Fixture) {
    let claimed = t.detached(3).await;
    let former = claimed[0].lease.replica_id;
    t.cancel(claimed[1].lease.run_id).await.expect("cancel");
    t.kill(former).await;
    let next = t.replica().await;
    let adopted = t.adopt(next, 10).await.expect("adopt");
    assert_eq!(adopted.iter().map(|held| held.cancel_asked).collect::<Vec<_>>(), [false, true, false]);
    let shown = |held: &Held| held.lease.shown();
    assert_eq!(t.cancel_asked(former).await.expect("cancel asked"), []);
    assert_eq!(t.cancel_asked(next).await.expect("cancel asked"), [shown(&adopted[1])]);
    assert_eq!(t.lease_index(former, None, 10).await.expect("lease index"), []);
    let index: Vec<Shown> = adopted.iter().map(shown).collect();
    assert_eq!(t.lease_index(next, None, 10).await.expect("lease index"), index);
    assert!(index.iter().all(|shown| shown.replica_id == next));
    t.cancel(claimed[2].lease.run_id).await.expect("cancel");
    assert_eq!(t.cancel_asked(next).await.expect("cancel asked"), index[1..], "later ones reach it too");
}

pub(super) async fn detached_orphans_are_listed_apart_and_in_pages(t: &Fixture) {
    let [dead, alive] = [t.replica().await, t.replica().await];
    let mut detached = ids(&t.detached_by(dead, 3).await);
    t.detached_by(alive, 1).await;
    t.accept_many(4).await;
    let plain = ids(&t.take(dead, 3).await);
    t.take(alive, 1).await;
    assert_eq!(listed(t, Which::Detached(None, 10)).await, []);
    t.kill(dead).await;
    let left = t.replica().await;
    detached.extend(ids(&t.detached_by(left, 2).await));
    t.leave(left).await.expect("leave");
    assert_eq!(listed(t, Which::Orphaned(None, 10)).await, plain);
    assert_eq!(listed(t, Which::Orphaned(None, 2)).await, plain[..2]);
    assert_eq!(listed(t, Which::Orphaned(Some(plain[0]), 1)).await, plain[1..2]);
    assert_eq!(listed(t, Which::Orphaned(Some(plain[2]), 10)).await, []);
    assert_eq!(listed(t, Which::Detached(None, 10)).await, detached);
    assert_eq!(listed(t, Which::Detached(None, 2)).await, detached[..2]);
    assert_eq!(listed(t, Which::Detached(Some(detached[1]), 2)).await, detached[2..4]);
    assert_eq!(listed(t, Which::Detached(Some(detached[4]), 2)).await, []);
    t.adopt(alive, 4).await.expect("adopt");
    assert_eq!(listed(t, Which::Detached(None, 10)).await, detached[4..], "what was adopted is no orphan");
}

impl Fixture {
    pub(super) async fn replica_on(&self, host: &str) -> ReplicaId {
        let replica = everbeat_model::replica::NewReplica { host: host.to_string(), ..self.new_replica() };
        let id = replica.id;
        self.join(replica).await.expect("join");
        id
    }

    /// New detached runs that a new replica performs.
    pub(super) async fn detached(&self, count: usize) -> Vec<Claimed> {
        let replica = self.replica().await;
        self.detached_by(replica, count).await
    }

    pub(super) async fn detached_by(&self, replica: ReplicaId, count: usize) -> Vec<Claimed> {
        self.submit_all((0..count).map(|_| self.draft().task(COMMAND)).collect()).await;
        let claimed = self.take_lanes(replica, &[COMMAND], count).await;
        assert_eq!(claimed.len(), count);
        claimed
    }
}

/// The same claim as whoever adopted it would show it.
fn as_owner(claimed: &Claimed, held: &Held) -> Claimed {
    Claimed { lease: held.lease.clone(), ..claimed.clone() }
}

async fn told(t: &Fixture, claimed: &Claimed) -> Signed {
    t.sign(vec![sign(claimed, Some("1"), None)]).await.expect("sign")[0]
}

async fn listed(t: &Fixture, which: Which) -> Vec<RunId> {
    runs(&t.held(which).await.expect("held"))
}

fn leases(held: &[Held]) -> Vec<Lease> {
    held.iter().map(|held| held.lease.clone()).collect()
}

fn runs(held: &[Held]) -> Vec<RunId> {
    held.iter().map(|held| held.lease.run_id).collect()
}
