use super::build::{failure, forged, ids, retry};
use super::fixture::{Fixture, MOMENT};
use super::steps::{graph, with};
use crate::{Cancelled, Claim, Reopened};
use everbeat_model::lease::Shown;
use everbeat_model::run::{COMMAND, Claimed, lane_on};
use everbeat_model::{Next, ReplicaId, RunState, Settled};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) const HOST: &str = "host-1";

pub(super) async fn a_placed_run_is_claimed_by_its_lane_only(t: &Fixture) {
    let first = placed(t).await;
    let (id, replica) = (first.lease.run_id, first.lease.replica_id);
    assert_eq!(t.look(id).await.spec.host.as_deref(), Some(HOST));
    t.end(retry(&first, Next::Ready)).await;
    let second = only_there(t, replica).await;
    assert_eq!((second.lease.run_id, second.lease.attempt), (id, 2));
    assert_eq!(second.spec.host.as_deref(), Some(HOST));
    t.end(retry(&second, Next::After(Duration::ZERO))).await;
    t.promote(10).await.expect("promote");
    let third = only_there(t, replica).await;
    t.end(failure(&third)).await;
    assert_eq!(t.reopen(id, 3).await.expect("reopen"), Reopened::Ready);
    let fourth = only_there(t, replica).await;
    assert_eq!((fourth.lease.run_id, fourth.lease.attempt), (id, 4));
    assert_eq!(t.audit().await.expect("audit").violations, []);
}

pub(super) async fn a_placed_run_that_is_ready_is_seen_and_cancelled(t: &Fixture) {
    let claimed = placed(t).await;
    let id = claimed.lease.run_id;
    t.end(retry(&claimed, Next::Ready)).await;
    let run = t.look(id).await;
    assert_eq!((run.state, run.attempt, run.error.is_some()), (RunState::Ready, 1, true));
    assert_eq!(t.cancel(id).await.expect("cancel"), Cancelled::Ended);
    let run = t.look(id).await;
    assert_eq!((run.state, run.attempt), (RunState::Cancelled, 1));
    assert_eq!(t.reopen(id, 1).await.expect("reopen"), Reopened::Ready);
    only_there(t, claimed.lease.replica_id).await;
}

pub(super) async fn a_run_that_belongs_nowhere_any_more_is_claimed_by_its_task_again(t: &Fixture) {
    let first = placed(t).await;
    t.end(retry(&first, Next::Ready)).await;
    let second = only_there(t, first.lease.replica_id).await;
    assert!(t.place(second.lease.shown(), None).await.expect("place"));
    assert_eq!(t.look(first.lease.run_id).await.spec.host, None);
    t.end(retry(&second, Next::Ready)).await;
    assert!(t.take_lanes(first.lease.replica_id, &[&lane_on(COMMAND, HOST)], 10).await.is_empty());
    let third = t.take_lanes(first.lease.replica_id, &[COMMAND], 10).await;
    assert_eq!(ids(&third), [first.lease.run_id]);
    assert_eq!(third[0].spec.host, None);
}

pub(super) async fn a_run_moves_from_one_host_to_another(t: &Fixture) {
    let first = placed(t).await;
    assert!(t.place(first.lease.shown(), Some("host-2".to_string())).await.expect("place"));
    t.end(retry(&first, Next::Ready)).await;
    let replica = first.lease.replica_id;
    assert!(t.take_lanes(replica, &[&lane_on(COMMAND, HOST), COMMAND], 10).await.is_empty());
    assert_eq!(t.take_lanes(replica, &[&lane_on(COMMAND, "host-2")], 10).await.len(), 1);
}

pub(super) async fn a_run_may_be_given_its_place_from_the_start(t: &Fixture) {
    let replica = t.replica().await;
    let draft = || t.draft().task(COMMAND).host(HOST);
    let expected = [t.accept(draft()).await, t.accept(draft().key("k")).await];
    assert_eq!(t.state(expected[0]).await, RunState::Ready);
    assert!(t.take_lanes(replica, &[COMMAND], 10).await.is_empty());
    assert_eq!(ids(&t.take_lanes(replica, &[&lane_on(COMMAND, HOST)], 10).await), expected);
}

pub(super) async fn a_place_under_a_wrong_token_or_owner_changes_nothing(t: &Fixture) {
    let claimed = t.detached(1).await.remove(0);
    let shown = claimed.lease.shown();
    let wrong = [
        Shown { token: forged(), ..shown },
        Shown { replica_id: t.replica().await, ..shown },
        Shown { run_id: t.draft().id, ..shown },
    ];
    let host = || Some(HOST.to_string());
    for wrong in wrong {
        assert!(!t.place(wrong, host()).await.expect("place"));
    }
    assert_eq!(t.look(claimed.lease.run_id).await.spec, claimed.spec);
    assert_eq!(t.end(retry(&claimed, Next::Ready)).await, Settled::Done);
    assert!(!t.place(shown, host()).await.expect("place"), "its lease is gone");
    assert_eq!(t.take_lanes(claimed.lease.replica_id, &[COMMAND], 10).await.len(), 1);
    assert!(!t.place(shown, host()).await.expect("place"), "there is another lease");
}

pub(super) async fn a_place_stays_with_the_run_when_its_lease_is_adopted_and_returned(t: &Fixture) {
    let claimed = placed(t).await;
    t.kill(claimed.lease.replica_id).await;
    let next = t.replica().await;
    let adopted = t.adopt(next, 10).await.expect("adopt").remove(0);
    assert_eq!(adopted.spec.host.as_deref(), Some(HOST));
    // The spec that a settlement carries may be older than the place.
    let mut returned = super::build::rescue(&adopted);
    returned.spec = t.draft().task(COMMAND).done().spec;
    assert_eq!(t.end(returned).await, Settled::Done);
    only_there(t, next).await;
}

pub(super) async fn a_changed_input_ends_a_placed_run_that_is_ready(t: &Fixture) {
    let node = with(json!({ "name": "made", "kind": "compute", "gate": ["a"] }), "command", json!(["true"]));
    let id = t.begin_new(&graph("commands", json!(["a", node])), json!({"a": 1})).await;
    let claimed = t.lease_of(id, "made").await;
    assert!(t.place(claimed.lease.shown(), Some(HOST.to_string())).await.expect("place"));
    t.end(retry(&claimed, Next::Ready)).await;
    assert_eq!(t.stored(id).await.attempts.get("made"), Some(&1), "it is found in its lane");
    t.set(id, json!({"a": 2})).await;
    let run = t.look(claimed.lease.run_id).await;
    assert_eq!((run.state, run.attempt), (RunState::Cancelled, 1));
    assert_eq!(run.error.expect("it says why").value()["reason"], "superseded");
    assert!(t.take_lanes(claimed.lease.replica_id, &[&lane_on(COMMAND, HOST)], 10).await.is_empty());
    assert_eq!(t.look(t.computing(id, "made").await.expect("anew")).await.spec.host, None, "the next one is free");
    t.sound().await;
}

pub(super) async fn a_placed_run_for_later_stands_in_its_lane_when_its_time_comes(t: &Fixture) {
    let replica = t.replica().await;
    let now = t.look(t.accept(t.draft()).await).await.created_at;
    let draft = || t.draft().task(COMMAND).host(HOST).at(now.plus(MOMENT * 5));
    for draft in [draft(), draft().key("k")] {
        let id = t.accept(draft).await;
        t.advance(MOMENT * 6).await;
        t.promote(10).await.expect("promote");
        assert_eq!(only_there(t, replica).await.lease.run_id, id);
    }
}

impl Fixture {
    pub(super) async fn take_lanes(&self, replica: ReplicaId, lanes: &[&str], limit: usize) -> Vec<Claimed> {
        let tasks = lanes.iter().map(|lane| (lane.to_string(), limit)).collect();
        self.claim(Claim { replica, limit, tasks, queues: BTreeMap::new(), among: None }).await.expect("claim")
    }

    pub(super) async fn begun_on(&self, host: &str, claimed: &Claimed) {
        assert!(self.place(claimed.lease.shown(), Some(host.to_string())).await.expect("place"));
    }
}

/// A detached run that has begun on the host.
async fn placed(t: &Fixture) -> Claimed {
    let claimed = t.detached(1).await.remove(0);
    t.begun_on(HOST, &claimed).await;
    claimed
}

/// Claims the one run that stands in the lane of the host, and in no other.
async fn only_there(t: &Fixture, replica: ReplicaId) -> Claimed {
    let others = [COMMAND, &lane_on(COMMAND, "host-2"), &lane_on(COMMAND, "")];
    assert!(t.take_lanes(replica, &others, 10).await.is_empty(), "it belongs elsewhere");
    let mut claimed = t.take_lanes(replica, &[&lane_on(COMMAND, HOST)], 10).await;
    assert_eq!(claimed.len(), 1);
    claimed.remove(0)
}
