use super::build::{Draft, failure, ids, retry};
use super::fixture::{Fixture, HOUR};
use super::place::HOST;
use super::steps::{graph, with};
use crate::{Cancelled, Claim, Reopened, Store};
use everbeat_model::run::{COMMAND, Claimed, lane_on};
use everbeat_model::{Next, ReplicaId, RunId, RunState, Settlement, Standing};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) async fn what_waits_for_a_host_begins_anywhere_once_it_is_unbound(t: &Fixture) {
    let replica = t.replica().await;
    let begun = begun(t, replica, 2).await;
    for (claimed, next) in begun.iter().zip([Next::Ready, Next::After(Duration::ZERO)]) {
        let standing = Standing { attempt: 1, tries: 2, losses: 1 };
        t.end(Settlement { standing, ..retry(claimed, next) }).await;
    }
    assert_eq!(t.bound_hosts().await.expect("bound hosts"), [HOST]);
    let before = [t.look(begun[0].lease.run_id).await, t.look(begun[1].lease.run_id).await];
    assert_eq!(unbind(t, 10).await, 2);
    assert!(t.bound_hosts().await.expect("bound hosts").is_empty());
    assert_eq!(unbind(t, 10).await, 0, "nothing is left to do");
    for (mut before, state) in before.into_iter().zip([RunState::Ready, RunState::Scheduled]) {
        assert_eq!((before.state, before.attempt), (state, 1));
        Arc::make_mut(&mut before.spec).host = None;
        assert_eq!(t.look(before.id).await, before, "all else stays");
    }
    for claimed in &begun {
        assert!(there(t, replica).await.is_empty());
        let again = t.take_lanes(replica, &[COMMAND], 10).await;
        assert_eq!(ids(&again), [claimed.lease.run_id]);
        assert_eq!(again[0].standing, Standing { attempt: 2, tries: 2, losses: 1 });
        assert_eq!(again[0].spec.host, None);
        t.promote(10).await.expect("promote");
    }
    t.sound().await;
}

pub(super) async fn only_what_waits_for_the_very_host_is_unbound(t: &Fixture) {
    let replica = t.replica().await;
    let begun = begun(t, replica, 3).await;
    let [running, finished, cancelled] = [0, 1, 2].map(|place: usize| begun[place].lease.run_id);
    t.end(failure(&begun[1])).await;
    t.end(retry(&begun[2], Next::Ready)).await;
    assert_eq!(t.cancel(cancelled).await.expect("cancel"), Cancelled::Ended);
    let free = [t.accept(t.draft()).await, t.accept(t.draft().task(COMMAND).far_off()).await];
    let mut others = Vec::new();
    for host in ["host-2", "host-1@host-1", "host-11", "HOST-1", "%", ""] {
        others.push((t.accept(on(t, host)).await, host));
        others.push((t.accept(on(t, host).far_off()).await, host));
    }
    assert!(!t.bound_hosts().await.expect("bound hosts").contains(&HOST.to_string()), "nothing waits for it");
    assert_eq!(unbind(t, 100).await, 0);
    for run in [running, finished, cancelled] {
        assert_eq!(t.look(run).await.spec.host.as_deref(), Some(HOST));
    }
    assert_eq!(t.reopen(finished, 1).await.expect("reopen"), Reopened::Ready);
    assert_eq!(unbind(t, 100).await, 1, "now it waits");
    assert_eq!(t.look(running).await.state, RunState::Running);
    assert_eq!(ids(&t.take_lanes(replica, &[COMMAND], 100).await), [finished]);
    for (run, host) in others {
        assert_eq!(t.look(run).await.spec.host.as_deref(), Some(host));
    }
    for run in free {
        assert_eq!(t.look(run).await.spec.host, None);
    }
    t.end(retry(&begun[0], Next::Ready)).await;
    assert_eq!(ids(&there(t, replica).await), [running], "it has stayed where it ran");
    t.sound().await;
}

pub(super) async fn hosts_are_named_once_and_in_order(t: &Fixture) {
    assert!(t.bound_hosts().await.expect("bound hosts").is_empty());
    t.accept_many(3).await;
    for (host, queue) in [("b", "q"), ("b", "default"), ("a", "q"), ("c@d", "q"), ("B", "q")] {
        t.accept(on(t, host).queue(queue)).await;
    }
    for host in ["b", "z", "z", "", "é"] {
        t.accept(on(t, host).far_off()).await;
    }
    t.accept(t.draft().task("a@plain.name")).await;
    let hosts = t.bound_hosts().await.expect("bound hosts");
    assert_eq!(hosts, ["", "B", "a", "b", "c@d", "z", "é"]);
    for host in hosts {
        let waiting = match host.as_str() {
            "b" => 3,
            "z" => 2,
            _ => 1,
        };
        assert_eq!(t.unbind(host.clone(), 100).await.expect("unbind"), waiting, "{host:?}");
    }
    assert!(t.bound_hosts().await.expect("bound hosts").is_empty());
}

pub(super) async fn an_unbinding_takes_no_more_than_its_limit_and_the_oldest_first(t: &Fixture) {
    let draft = || on(t, HOST);
    let drafts = vec![
        draft().priority(-5),
        draft().far_off(),
        draft().queue("a"),
        draft().priority(9),
        draft().far_off().queue("a"),
        draft().queue("z").priority(9),
        draft(),
    ];
    let runs: Vec<RunId> = drafts.iter().map(|draft| draft.id).collect();
    t.submit_all(drafts.into_iter().rev().collect()).await;
    assert_eq!(unbind(t, 0).await, 0);
    for (most, free) in [(2, 2), (1, 3), (3, 6), (3, 7), (3, 7)] {
        let before = free_ones(t, &runs).await.len();
        assert_eq!(unbind(t, most).await, free - before);
        assert_eq!(free_ones(t, &runs).await, &runs[..free]);
    }
    let replica = t.replica().await;
    let order = [3, 5, 2, 6, 0].map(|place: usize| runs[place]);
    assert_eq!(ids(&t.take_lanes(replica, &[COMMAND], 100).await), order, "each has kept its rank");
}

pub(super) async fn an_unbound_run_of_a_node_is_found_where_it_stands(t: &Fixture) {
    let node = with(json!({ "name": "made", "kind": "compute", "gate": ["a"] }), "command", json!(["true"]));
    let id = t.begin_new(&graph("commands", json!(["a", node])), json!({"a": 1})).await;
    for next in [Next::Ready, Next::After(HOUR)] {
        let claimed = t.lease_of(id, "made").await;
        t.begun_on(HOST, &claimed).await;
        t.end(retry(&claimed, next)).await;
        assert_eq!(unbind(t, 10).await, 1);
        assert_eq!(t.stored(id).await.attempts.get("made"), Some(&1));
        t.set(id, json!({"a": format!("after {next:?}")})).await;
        let run = t.look(claimed.lease.run_id).await;
        assert_eq!((run.state, run.attempt), (RunState::Cancelled, 1));
    }
    t.sound().await;
}

pub(super) async fn unbinding_promoting_and_claiming_at_once_strands_no_run(t: &Fixture) {
    const RUNS: usize = 60;
    let replica = t.replica().await;
    let begun = begun(t, replica, RUNS).await;
    let all: Vec<RunId> = ids(&begun);
    let next = |place: usize| if place.is_multiple_of(2) { Next::Ready } else { Next::After(Duration::ZERO) };
    let returned = begun.iter().enumerate().map(|(place, claimed)| retry(claimed, next(place)));
    t.settle(returned.collect()).await.expect("settle");
    let taken = t.at_once(6, |store| async move {
        let mut taken = Vec::new();
        for _ in 0..RUNS / 6 {
            store.unbind(HOST.to_string(), 3).await.expect("unbind");
            taken.extend(take(&store, replica, &lane_on(COMMAND, HOST), Some(HOST)).await);
            store.promote(2).await.expect("promote");
            taken.extend(take(&store, replica, COMMAND, None).await);
        }
        taken
    });
    let mut taken: Vec<RunId> = taken.await.into_iter().flatten().collect();
    // Whoever was passed over is found by the next sweep.
    unbind(t, RUNS).await;
    t.promote(RUNS).await.expect("promote");
    unbind(t, RUNS).await;
    taken.extend(ids(&t.take_lanes(replica, &[COMMAND], RUNS).await));
    taken.sort();
    assert_eq!(taken, all, "each is claimed, and once");
    t.sound().await;
}

pub(super) async fn unbinding_cancelling_and_reopening_at_once_strands_no_run(t: &Fixture) {
    const RUNS: usize = 20;
    let replica = t.replica().await;
    let drafts = (0..RUNS).map(|place| if place.is_multiple_of(2) { on(t, HOST) } else { on(t, HOST).far_off() });
    let runs: Arc<[RunId]> = t.submit_all(drafts.collect()).await.into_iter().map(|made| made.id()).collect();
    t.at_once(6, |store| {
        let runs = runs.clone();
        async move {
            for run in runs.iter() {
                store.unbind(HOST.to_string(), 1).await.expect("unbind");
                store.cancel(*run).await.expect("cancel");
                store.reopen(*run, 0).await.expect("reopen");
            }
        }
    })
    .await;
    unbind(t, RUNS).await;
    let mut open = Vec::new();
    for run in runs.iter() {
        let state = t.state(*run).await;
        assert!(matches!(state, RunState::Ready | RunState::Cancelled), "{state:?}");
        open.extend((state == RunState::Ready).then_some(*run));
    }
    assert_eq!(ids(&t.take_lanes(replica, &[COMMAND], RUNS).await), open);
    t.sound().await;
}

/// Runs that a replica has begun on the host.
async fn begun(t: &Fixture, replica: ReplicaId, count: usize) -> Vec<Claimed> {
    let begun = t.detached_by(replica, count).await;
    for claimed in &begun {
        t.begun_on(HOST, claimed).await;
    }
    begun
}

fn on(t: &Fixture, host: &str) -> Draft {
    t.draft().task(COMMAND).host(host)
}

async fn unbind(t: &Fixture, most: usize) -> usize {
    t.unbind(HOST.to_string(), most).await.expect("unbind")
}

async fn there(t: &Fixture, replica: ReplicaId) -> Vec<Claimed> {
    t.take_lanes(replica, &[&lane_on(COMMAND, HOST)], 100).await
}

/// Those that belong to no host.
async fn free_ones(t: &Fixture, runs: &[RunId]) -> Vec<RunId> {
    let mut free = Vec::new();
    for run in runs {
        free.extend(t.look(*run).await.spec.host.is_none().then_some(*run));
    }
    free
}

/// A few of the lane, each of which must belong where it was claimed.
async fn take(store: &Arc<dyn Store>, replica: ReplicaId, lane: &str, host: Option<&str>) -> Vec<RunId> {
    let tasks = [(lane.to_string(), 2)].into();
    let claim = Claim { replica, limit: 2, tasks, queues: BTreeMap::new(), among: None };
    let claimed = store.claim(claim).await.expect("claim");
    assert!(claimed.iter().all(|claimed| claimed.spec.host.as_deref() == host), "{claimed:?}");
    ids(&claimed)
}
