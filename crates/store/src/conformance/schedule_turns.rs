use super::build::sign;
use super::fixture::Fixture;
use super::schedule_steps::{PERIOD, flow, hourly, scheduled};
use everbeat_model::event::EventKind;
use everbeat_model::schedule::{DueBy, ScheduleKind, WhyLeft, Wish};
use everbeat_model::{RunId, ScheduleId, StoreTime};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Every second, with these words on overlaps and on what was missed.
fn each_second(overlap: &str, catch_up: &str) -> Value {
    json!({ "schedule": { "every": "1s" }, "overlap": overlap, "catch_up": catch_up, "late_after": "1h" })
}

pub(super) async fn what_is_due_while_another_runs_is_left_out_waits_or_begins_beside_it(t: &Fixture) {
    let mut schedules = Vec::new();
    for overlap in ["skip", "queue", "allow"] {
        let id = t.plan(scheduled(overlap, each_second(overlap, "latest"))).await;
        schedules.push((overlap, id, t.glance_begins(id).await));
    }
    t.advance(PERIOD).await;
    for (overlap, id, first) in &schedules {
        let looked = t.glance(*id).await;
        let left = t.left_occurrences(*id, 10).await.expect("left");
        let stands = t.of_name(overlap).await;
        assert!(looked.due, "{overlap} {looked:?}");
        assert_eq!(stands.next_due, stands.last_due.map(|last| last.plus(PERIOD)));
        match *overlap {
            "skip" => {
                assert!(looked.begun.is_empty() && looked.waiting.is_empty() && looked.left >= 1);
                assert_eq!(left[0].left.why, WhyLeft::Overlap);
                assert_eq!(Some(left[0].left.to), stands.last_due);
                assert_eq!((stands.waiting, stands.unfinished), (0, 1));
            }
            "queue" => {
                assert_eq!((looked.begun.len(), looked.waiting.len()), (0, 1));
                assert_eq!((stands.waiting, stands.unfinished), (1, 1));
                let waiting = t.waiting_occurrences(*id).await.expect("waiting");
                assert_eq!((waiting[0].cause, Some(waiting[0].due)), (DueBy::Clock, stands.last_due));
                t.succeed(*first).await;
                let next = t.look_for(*id, Wish::Look { clock: false }).await;
                assert_eq!(next.begun, looked.waiting, "its turn has come");
            }
            _ => {
                assert_eq!((looked.begun.len(), looked.waiting.len()), (1, 0));
                assert_eq!((stands.waiting, stands.unfinished), (0, 2));
            }
        }
    }
}

pub(super) async fn after_five_periods_without_a_look_one_all_or_none_are_made_up_for(t: &Fixture) {
    let mut schedules = Vec::new();
    for catch_up in ["latest", "all", "none"] {
        let id = t.plan(scheduled(catch_up, each_second("allow", catch_up))).await;
        schedules.push((catch_up, id, t.of_name(catch_up).await.created_at));
    }
    t.advance(5 * PERIOD + Duration::from_millis(100)).await;
    for (catch_up, id, made) in schedules {
        let looked = t.glance(id).await;
        let stands = t.of_name(catch_up).await;
        let last = stands.last_due.expect("decided");
        // A store with a real clock may have taken longer.
        let passed = u64::try_from((last.0 - made.0) / 1_000_000).expect("after");
        assert_eq!(last, made.plus(PERIOD * u32::try_from(passed).expect("few")), "due times do not drift");
        assert!(passed >= 5, "{passed}");
        assert_eq!(stands.next_due, Some(last.plus(PERIOD)));
        let mut begun: Vec<StoreTime> = Vec::new();
        for run in &looked.begun {
            begun.push(t.look(*run).await.spec.occurrence.expect("of a schedule").due);
        }
        let left = t.left_occurrences(id, 10).await.expect("left");
        let missed = |from: StoreTime, to: StoreTime, count: u64| {
            left.len() == 1
                && (left[0].left.from, left[0].left.to, left[0].left.count) == (from, to, count)
                && left[0].left.why == WhyLeft::Missed
        };
        match catch_up {
            "latest" => {
                assert_eq!(begun, [last]);
                assert!(missed(made, StoreTime(last.0 - 1_000_000), passed), "{left:?}");
            }
            "all" => {
                let each = (0..=passed).map(|n| made.plus(PERIOD * u32::try_from(n).expect("few")));
                assert_eq!((begun, left.len()), (each.collect(), 0));
            }
            _ => {
                assert!(begun.is_empty() && looked.left == passed + 1, "{looked:?}");
                assert!(missed(made, last, passed + 1), "{left:?}");
            }
        }
    }
}

pub(super) async fn what_comes_after_others_begins_when_each_of_them_has_succeeded(t: &Fixture) {
    let first = t.plan(scheduled("first", json!({}))).await;
    let second = t.plan(scheduled("second", json!({}))).await;
    let last = t.plan(scheduled("last", json!({"after": ["first", "second"]}))).await;
    t.plan(flow("last", json!({"after": ["first", "second"]}))).await;
    assert!(t.settle_down().await.is_empty());
    let succeed = |id: ScheduleId| async move {
        let (run, _) = t.trigger(id).await;
        t.succeed(run).await;
        t.settle_down().await
    };
    assert!(succeed(first).await.is_empty(), "the other one has not");
    assert!(succeed(first).await.is_empty(), "twice is not both");
    let begun = succeed(second).await;
    assert_eq!(begun.len(), 1);
    let run = t.look(begun[0]).await;
    assert_eq!(run.spec.occurrence.map(|of| of.schedule), Some(last));
    assert_eq!(run.spec.args.clone().expect("args").value()["cause"], "after");
    t.succeed(begun[0]).await;
    assert!(t.settle_down().await.is_empty());
    assert!(succeed(second).await.is_empty(), "both anew");
    // Another definition forgets who it no longer comes after.
    t.put(scheduled("last", json!({"after": ["first"]}))).await;
    t.put(scheduled("last", json!({"after": ["first", "second"]}))).await;
    assert!(succeed(first).await.is_empty(), "the second one does not count any more");
    let (run, _) = t.trigger(second).await;
    let claimed = t.lease(run).await;
    t.end(super::build::failure(&claimed)).await;
    assert!(t.settle_down().await.is_empty(), "what failed feeds nobody");
    assert_eq!(succeed(second).await.len(), 1);
    assert_eq!(t.planned(ScheduleKind::Flow, "last").await.last_run, None, "flows come after flows");
}

pub(super) async fn a_group_shares_its_limit_and_the_longest_waiting_goes_first(t: &Fixture) {
    let of_group = |name: &str| flow(name, json!({"group": "warehouse", "overlap": "queue"}));
    let (a, b) = (t.plan(of_group("a")).await, t.plan(of_group("b")).await);
    let alone = t.plan(flow("alone", json!({"group": "other"}))).await;
    let same_name = t.plan(scheduled("s", json!({"group": "warehouse"}))).await;
    t.settle_down().await;
    let (first, looked) = t.trigger(a).await;
    assert_eq!(looked.begun, [first]);
    let (second, looked) = t.trigger(b).await;
    assert_eq!(looked.waiting, [second], "the group is full");
    let (third, looked) = t.trigger(a).await;
    assert_eq!(looked.waiting, [third]);
    for other in [alone, same_name] {
        let (run, looked) = t.trigger(other).await;
        assert_eq!(looked.begun, [run], "another group, or schedules instead of flows");
    }
    assert!(t.settle_down().await.is_empty());
    t.succeed(first).await;
    assert_eq!(t.settle_down().await, [second], "it has waited for longer");
    t.succeed(second).await;
    assert_eq!(t.settle_down().await, [third]);
    // What a deleted flow held is free.
    let (fourth, looked) = t.trigger(b).await;
    assert_eq!(looked.waiting, [fourth]);
    t.delete_schedule(ScheduleKind::Flow, "a", None).await.expect("delete");
    assert_eq!(t.settle_down().await, [fourth]);
}

pub(super) async fn a_flow_that_is_off_holds_up_nobody_of_its_group(t: &Fixture) {
    let of_group = |name: &str| flow(name, json!({"group": "g", "schedule": {"every": "1h"}, "overlap": "queue"}));
    let (a, b, c) = (t.plan(of_group("a")).await, t.plan(of_group("b")).await, t.plan(of_group("c")).await);
    let first = t.glance_begins(a).await;
    let (second, third) = (t.glance(b).await.waiting, t.glance(c).await.waiting);
    assert_eq!((second.len(), third.len()), (1, 1));
    t.settle_down().await;
    t.enable_schedule(ScheduleKind::Flow, "b", false).await.expect("enable");
    t.succeed(first).await;
    assert_eq!(t.settle_down().await, third, "what waits in b may not begin");
    t.enable_schedule(ScheduleKind::Flow, "b", true).await.expect("enable");
    assert!(t.settle_down().await.is_empty());
    t.succeed(third[0]).await;
    assert_eq!(t.settle_down().await[0], second[0]);
}

pub(super) async fn many_of_a_group_at_once_stay_within_its_limit(t: &Fixture) {
    let mut all: Vec<ScheduleId> = Vec::new();
    for number in 0..6 {
        let fields = json!({"group": "g", "concurrency": 2, "schedule": {"every": "1h"}});
        all.push(t.plan(flow(&format!("f{number}"), fields)).await);
    }
    let mut ended: Vec<RunId> = Vec::new();
    while ended.len() < 6 {
        let (looked_at, scheduler) = (all.clone(), t.scheduler());
        let sides = t.at_once(4, |store| {
            let (all, scheduler) = (looked_at.clone(), scheduler.clone());
            async move {
                let mut begun = Vec::new();
                for id in all {
                    let looked = store.look_at_schedule(id, Wish::Look { clock: true }, scheduler.clone());
                    if let crate::LookedAt::Done(looked) = looked.await.expect("look") {
                        begun.extend(looked.begun);
                    }
                }
                begun
            }
        });
        let mut begun: Vec<RunId> = sides.await.into_iter().flatten().collect();
        begun.extend(t.settle_down().await);
        assert_eq!(begun.len(), 2, "never more, and never fewer while some wait");
        for run in begun {
            t.succeed(run).await;
            ended.push(run);
        }
    }
    assert!(t.settle_down().await.is_empty());
}

pub(super) async fn what_is_not_over_in_time_is_late_until_it_is(t: &Fixture) {
    let id = t.plan(scheduled("s", json!({"schedule": {"every": "1h"}, "late_after": "2s"}))).await;
    let run = t.glance_begins(id).await;
    let due = t.of_name("s").await.last_due.expect("decided");
    assert_eq!(t.of_name("s").await.late_since, None);
    t.advance(Duration::from_millis(2100)).await;
    assert_eq!(t.due_ids().await, [id], "it may have become late");
    t.glance(id).await;
    let since = due.plus(Duration::from_secs(2));
    assert_eq!(t.of_name("s").await.late_since, Some(since));
    assert_eq!(t.late_schedules().await.expect("late"), BTreeMap::from([(ScheduleKind::Schedule, 1)]));
    assert_eq!(t.due_ids().await, [], "that is said once");
    t.succeed(run).await;
    t.settle_down().await;
    assert_eq!(t.of_name("s").await.late_since, None);
    assert_eq!(t.late_schedules().await.expect("late"), BTreeMap::new());
    let events = t.events(0, 100).await.expect("events").events;
    let told = |kind: EventKind| {
        let found: Vec<_> = events.iter().filter(|event| event.kind == kind.as_str()).collect();
        assert_eq!((found.len(), found[0].subject.as_str()), (1, "s"));
        found[0].detail.clone().expect("a detail").value()
    };
    assert_eq!(told(EventKind::ScheduleLate), json!({ "since": since }));
    assert_eq!(told(EventKind::ScheduleRecovered), json!({ "late_since": since }));
}

pub(super) async fn the_checkpoint_of_the_last_run_is_where_the_next_one_begins(t: &Fixture) {
    let id = t.plan(flow("f", json!({}))).await;
    let (first, _) = t.trigger(id).await;
    let args = |run: RunId| async move { t.look(run).await.spec.args.clone().expect("args").value() };
    assert_eq!(args(first).await.get("cursor"), None);
    let claimed = t.lease(first).await;
    t.sign(vec![sign(&claimed, None, Some("{\"id\":17}"))]).await.expect("sign");
    t.succeed(first).await;
    t.settle_down().await;
    let stands = t.planned(ScheduleKind::Flow, "f").await;
    assert_eq!(stands.cursor.map(|cursor| cursor.value()), Some(json!({"id": 17})));
    let (second, _) = t.trigger(id).await;
    assert_eq!(args(second).await["cursor"], json!({"id": 17}));
    t.succeed(second).await;
    t.settle_down().await;
    let stands = t.planned(ScheduleKind::Flow, "f").await;
    assert_eq!(stands.cursor.map(|cursor| cursor.value()), Some(json!({"id": 17})), "it stands until there is another");
    let other = t.plan(scheduled("s", hourly())).await;
    let run = t.glance_begins(other).await;
    assert_eq!(args(run).await.get("cursor"), None, "a plain task is handed none");
}
