use super::fixture::{Fixture, HOUR, MOMENT};
use super::steps::{compute, epoch, graph, tasked};
use crate::{Looked, RunFilter};
use everbeat_model::ExecutionId;
use everbeat_model::graph::{Command, Status};
use serde_json::{Value, json};
use std::time::Duration;

/// What a case takes at most on a store with a real clock.
const SLACK: Duration = Duration::from_secs(120);

fn reminder(kind: &str) -> Value {
    graph("reminder", json!(["go", "other", tasked("tick", kind, &["go"]), compute("remind", &["tick"])]))
}

async fn soon(t: &Fixture) -> Value {
    epoch(t.now().await.plus(MOMENT))
}

async fn in_an_hour(t: &Fixture) -> Value {
    epoch(t.now().await.plus(HOUR))
}

async fn looked(t: &Fixture) -> Looked {
    t.store.advance_due(100, t.planner()).await.expect("advance due")
}

async fn reminders(t: &Fixture) -> usize {
    let filter = RunFilter { task: Some("remind".to_string()), limit: 1000, ..RunFilter::default() };
    t.runs(filter).await.expect("runs").items.len()
}

fn within_the_hour(next_in: Option<Duration>) -> bool {
    next_in.is_some_and(|next_in| next_in <= HOUR && next_in >= HOUR - SLACK)
}

pub(super) async fn a_tick_tells_when_it_is_due_and_does_not_fire_before(t: &Fixture) {
    let id = t.begin_new(&reminder("tick_once"), json!({"go": true})).await;
    assert_eq!(looked(t).await.next_in, None);
    t.perform(id, "tick", in_an_hour(t).await).await;
    assert_eq!(t.status(id, "tick").await, Status::Done);
    for _ in 0..2 {
        let looked = looked(t).await;
        assert_eq!(looked.executions, []);
        assert!(within_the_hour(looked.next_in), "{looked:?}");
    }
    assert!(t.all_computing(id).await.is_empty());
    let Some(clock) = &t.clock else { return };
    clock.jump(HOUR - Duration::from_secs(1));
    let before = looked(t).await;
    assert_eq!(before.executions, []);
    assert!(before.next_in.is_some_and(|next_in| next_in <= Duration::from_secs(1) && next_in > Duration::ZERO));
    clock.jump(Duration::from_secs(1));
    assert_eq!(t.catch_up().await, [id]);
    assert_eq!(t.all_computing(id).await, ["remind"]);
    t.sound().await;
}

pub(super) async fn a_due_tick_fires_once_however_many_look(t: &Fixture) {
    t.define(&reminder("tick_once")).await;
    let mut all: Vec<ExecutionId> = Vec::new();
    for n in 0..3 {
        all.push(t.begin("reminder", json!({"go": n})).await);
    }
    for id in &all {
        t.perform(*id, "tick", soon(t).await).await;
    }
    t.advance(MOMENT * 2).await;
    let sides = t.at_once(8, |store| {
        let planner = t.planner();
        async move { store.advance_due(10, planner).await.expect("advance due") }
    });
    sides.await;
    t.catch_up().await;
    assert_eq!(reminders(t).await, all.len());
    for id in all {
        assert_eq!(t.all_computing(id).await, ["remind"]);
        t.perform(id, "remind", json!("done")).await;
        t.set(id, json!({"other": 1})).await;
        assert!(t.all_computing(id).await.is_empty(), "once");
    }
    assert_eq!(looked(t).await.next_in, None);
    t.sound().await;
}

pub(super) async fn a_recurring_tick_is_armed_again_each_time_it_fired(t: &Fixture) {
    let id = t.begin_new(&reminder("tick_recurring"), json!({"go": true})).await;
    for round in 1..=3 {
        t.perform(id, "tick", soon(t).await).await;
        t.advance(MOMENT * 2).await;
        t.catch_up().await;
        assert_eq!(t.all_computing(id).await, ["remind", "tick"]);
        assert_eq!(reminders(t).await, round);
        t.perform(id, "remind", json!(round)).await;
    }
    t.perform(id, "tick", in_an_hour(t).await).await;
    assert!(t.all_computing(id).await.is_empty());
    assert_eq!(t.content(id, "remind").await, Some(json!(3)), "to be armed again takes nothing away");
    assert!(within_the_hour(looked(t).await.next_in));
    t.sound().await;
}

pub(super) async fn a_tick_in_the_past_fires_at_once(t: &Fixture) {
    let id = t.begin_new(&reminder("tick_once"), json!({"go": true})).await;
    t.perform(id, "tick", json!("2020-01-01T00:00:00Z")).await;
    assert_eq!(t.all_computing(id).await, ["remind"]);
    assert_eq!(looked(t).await.next_in, None);
}

pub(super) async fn a_paused_tick_is_never_due(t: &Fixture) {
    let id = t.begin_new(&reminder("tick_recurring"), json!({"go": 1})).await;
    t.perform(id, "tick", Value::Null).await;
    assert_eq!(looked(t).await.next_in, None);
    t.set(id, json!({"go": 2})).await;
    t.perform(id, "tick", in_an_hour(t).await).await;
    assert!(within_the_hour(looked(t).await.next_in));
    t.unset(id, &["go"]).await;
    let shut = looked(t).await;
    assert!(within_the_hour(shut.next_in) && shut.executions.is_empty(), "a gate that shuts leaves a tick as it is");
}

pub(super) async fn what_is_no_time_fails_the_tick(t: &Fixture) {
    let id = t.begin_new(&reminder("tick_once"), json!({"go": true})).await;
    t.perform(id, "tick", json!("tomorrow")).await;
    assert!(matches!(t.status(id, "tick").await, Status::Failed(_)));
    assert_eq!((t.content(id, "tick").await, looked(t).await.next_in), (None, None));
}

pub(super) async fn a_look_or_a_change_in_between_leaves_a_tick_armed(t: &Fixture) {
    let id = t.begin_new(&reminder("tick_once"), json!({"go": true})).await;
    t.perform(id, "tick", in_an_hour(t).await).await;
    let stamp = t.stamp(id).await;
    for commands in [vec![], vec![super::steps::setting(json!({"go": true}))]] {
        t.tell_all(id, commands).await;
        assert!(within_the_hour(looked(t).await.next_in), "where nothing changed");
    }
    assert_eq!(t.stamp(id).await, stamp);
    t.set(id, json!({"other": 1})).await;
    assert!(within_the_hour(looked(t).await.next_in), "where something else did");
    assert!(t.tell(id, super::steps::setting(json!({"nope": 1}))).await.is_err());
    assert!(within_the_hour(looked(t).await.next_in), "where it was refused");
    t.sound().await;
}

pub(super) async fn the_soonest_tick_counts(t: &Fixture) {
    let nodes = json!([tasked("late", "tick_once", &[]), tasked("early", "tick_once", &[]), "x"]);
    t.define(&graph("two", nodes)).await;
    let (one, two) = (t.begin("two", json!({})).await, t.begin("two", json!({})).await);
    assert_eq!(t.all_computing(one).await, ["early", "late"], "a tick without a gate begins with the start");
    let day = Duration::from_secs(86_400);
    for (id, node, span) in [(two, "late", day * 3), (one, "late", day * 2), (one, "early", HOUR), (two, "early", day)]
    {
        let due = epoch(t.now().await.plus(span));
        t.perform(id, node, due).await;
    }
    assert!(within_the_hour(looked(t).await.next_in));
    t.archive(one).await;
    let next_in = looked(t).await.next_in.expect("the other one waits");
    assert!(next_in <= day && next_in >= day - SLACK, "{next_in:?}");
}

pub(super) async fn an_archived_execution_waits_for_no_tick(t: &Fixture) {
    let id = t.begin_new(&reminder("tick_once"), json!({"go": true})).await;
    t.perform(id, "tick", in_an_hour(t).await).await;
    t.archive(id).await;
    assert_eq!(looked(t).await.next_in, None);
    t.unarchive(id).await;
    assert!(within_the_hour(looked(t).await.next_in));
    t.set(id, json!({"go": 2})).await;
    let claimed = t.lease_of(id, "tick").await;
    t.archive(id).await;
    t.end(super::steps::result(&claimed, &soon(t).await)).await;
    t.catch_up().await;
    t.advance(MOMENT * 2).await;
    assert_eq!(t.catch_up().await, []);
    t.unarchive(id).await;
    assert_eq!(t.all_computing(id).await, ["remind"], "what became due meanwhile fires when it comes back");
    t.sound().await;
}

pub(super) async fn an_archive_node_archives_by_itself(t: &Fixture) {
    let bye = json!({"name": "bye", "kind": "archive", "gate": ["tick"]});
    let nodes = json!(["go", tasked("tick", "tick_once", &["go"]), bye]);
    let id = t.begin_new(&graph("ends", nodes), json!({"go": 1})).await;
    t.perform(id, "tick", soon(t).await).await;
    t.advance(MOMENT * 2).await;
    t.catch_up().await;
    let stored = t.stored(id).await;
    assert!(stored.execution.archived_at.is_some() && stored.execution.cell("bye").is_some());
    assert_eq!(looked(t).await.next_in, None);
    t.tell(id, Command::Unarchive).await.expect("unarchive");
    assert!(t.stored(id).await.execution.archived_at.is_none(), "it does so once");
    t.sound().await;
}
