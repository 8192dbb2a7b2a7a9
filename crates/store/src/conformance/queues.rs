use super::build::{retry, success};
use super::fixture::Fixture;
use everbeat_model::queue::Queue;
use everbeat_model::{Next, RunState, Settled};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) async fn a_queue_counts_what_stands_in_it(t: &Fixture) {
    assert_eq!(t.queues().await.expect("queues"), []);
    let replica = t.replica().await;
    for _ in 0..3 {
        t.accept(t.draft().queue("b")).await;
    }
    let claimed = t.take(replica, 2).await;
    t.accept(t.draft().queue("b").far_off()).await;
    t.accept(t.draft().queue("a")).await;
    assert_eq!(t.queues().await.expect("queues"), [queue("a", 0, 1, 0), queue("b", 1, 1, 2)], "by name");
    t.end(success(&claimed[0])).await;
    assert_eq!(t.queues().await.expect("queues")[1], queue("b", 1, 1, 1));
    for run in t.runs(crate::RunFilter { limit: 10, ..Default::default() }).await.expect("runs").items {
        t.cancel(run.id).await.expect("cancel");
    }
    assert_eq!(t.queues().await.expect("queues"), [queue("b", 0, 0, 1)], "what is empty is not listed");
}

pub(super) async fn what_is_claimed_before_a_run_is_counted_in_its_lane(t: &Fixture) {
    let old = t.accept(t.draft().queue("q")).await;
    let urgent = t.accept(t.draft().queue("q").priority(5)).await;
    let young = t.accept(t.draft().queue("q")).await;
    t.accept(t.draft().queue("q").task("mail").priority(9)).await;
    t.accept(t.draft().queue("r").priority(9)).await;
    let ahead = async |id, limit| {
        let spec = t.look(id).await.spec;
        t.ahead(&spec, id, limit).await.expect("ahead")
    };
    for (id, expected) in [(urgent, 0), (old, 1), (young, 2)] {
        assert_eq!(ahead(id, 100).await, expected);
    }
    assert_eq!(ahead(young, 1).await, 1, "counted no further than asked");
}

pub(super) async fn the_oldest_ready_run_of_a_queue_tells_its_age(t: &Fixture) {
    const STEP: Duration = Duration::from_millis(300);
    assert_eq!(t.ready_ages().await.expect("ages"), BTreeMap::new());
    let replica = t.replica().await;
    let first = t.accept(t.draft().queue("a")).await;
    t.accept(t.draft().queue("a").far_off()).await;
    t.advance(STEP).await;
    t.accept(t.draft().queue("b")).await;
    t.accept(t.draft().queue("a")).await;
    let ages = t.ready_ages().await.expect("ages");
    assert_eq!(ages.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert!(ages["a"] >= STEP && ages["b"] < ages["a"], "{ages:?}");
    let claimed = t.take(replica, 10).await;
    let oldest = claimed.iter().find(|claimed| claimed.lease.run_id == first).expect("claimed");
    assert!(oldest.lease.granted_at.since(oldest.due_at) >= STEP, "{oldest:?}");
    assert_eq!(t.ready_ages().await.expect("ages"), BTreeMap::new(), "what runs is not ready");
    // One that is tried again is ready since its attempt ended.
    t.advance(STEP).await;
    t.end(retry(oldest, Next::Ready)).await;
    let again = t.ready_ages().await.expect("ages")["a"];
    assert!(again < STEP * 2, "{again:?}");
    t.advance(STEP).await;
    assert!(t.ready_ages().await.expect("ages")["a"] >= STEP);
}

pub(super) async fn a_pause_answers_whether_it_changed_anything(t: &Fixture) {
    for (paused, changed) in [(false, false), (true, true), (true, false), (false, true), (false, false), (true, true)]
    {
        assert_eq!(t.pause("q", paused).await.expect("pause"), changed, "{paused}");
    }
}

pub(super) async fn a_paused_queue_is_listed_while_empty_and_after_it_was_resumed(t: &Fixture) {
    t.pause("q", true).await.expect("pause");
    assert_eq!(t.queues().await.expect("queues"), [Queue { paused: true, ..queue("q", 0, 0, 0) }]);
    t.pause("q", false).await.expect("resume");
    assert_eq!(t.queues().await.expect("queues"), [queue("q", 0, 0, 0)]);
}

pub(super) async fn resuming_a_queue_never_paused_leaves_no_trace(t: &Fixture) {
    t.pause("q", false).await.expect("resume");
    assert_eq!(t.queues().await.expect("queues"), []);
    assert_eq!(t.last_event().await.expect("last event"), 0);
}

pub(super) async fn a_pause_leaves_running_work_and_other_queues_alone(t: &Fixture) {
    let claimed = t.running().await;
    t.pause(&claimed.spec.queue, true).await.expect("pause");
    assert_eq!(t.state(claimed.lease.run_id).await, RunState::Running);
    assert_eq!(t.end(success(&claimed)).await, Settled::Done);
    t.accept(t.draft()).await;
    let other = t.accept(t.draft().queue("Default")).await;
    let taken = t.take(claimed.lease.replica_id, 10).await;
    assert_eq!(super::build::ids(&taken), [other], "names are told apart by case");
}

fn queue(name: &str, scheduled: u64, ready: u64, running: u64) -> Queue {
    Queue { name: name.to_string(), paused: false, scheduled, ready, running }
}
