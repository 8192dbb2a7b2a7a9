use super::fixture::{Fixture, HOUR};
use super::schedule_steps::{PERIOD, flow, hourly, scheduled, stored};
use crate::{
    Deleted, Enqueue, Error, Idempotency, LIST_BYTES, LookedAt, LookedSchedule, MOST_LEFT, Put, PutSchedule, RunFilter,
    ScheduleFilter, StoredSchedule,
};
use everbeat_model::event::EventKind;
use everbeat_model::schedule::{Decision, DueBy, Left, OccurrenceState, ScheduleKind, Situation, WhyLeft, Wish};
use everbeat_model::{OccurrenceOf, RunId, RunState, ScheduleId, StoreTime};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

pub(super) async fn a_schedule_reads_back_as_it_was_written(t: &Fixture) {
    let given = json!({
        "description": "it's \u{1F980} \"every\" night", "schedule": {"cron": "30 2 * * *", "tz": "Europe/Berlin"},
        "overlap": "queue", "catch_up": "all", "late_after": "10m", "queue": "night", "priority": -3,
        "policy": {"max_attempts": 7}, "concurrency": 2, "group": "warehouse", "after": ["products", "prices"],
        "input": {"b": [1.5, null, "\u{0}"], "a": {}},
    });
    let before = t.now().await;
    let request = t.request_for(scheduled("orders", given));
    let Put::Created(made) = t.put_schedule(request.clone()).await.expect("put") else { panic!("it is new") };
    let read = t.of_name("orders").await;
    for stored in [&made, &read] {
        assert_eq!((stored.id, &*stored.schedule), (request.id, &request.schedule));
        assert_eq!((stored.version, stored.enabled), (1, true));
        assert!(stored.created_at >= before && stored.updated_at == stored.created_at);
        assert!(stored.next_due.is_some_and(|due| due > before), "{stored:?}");
        assert_eq!((stored.last_due, stored.late_since, &stored.cursor), (None, None, &None));
        assert_eq!((stored.waiting, stored.unfinished, &stored.last_run), (0, 0, &None));
    }
    let unknown = |kind, name| async move { t.store.schedule(kind, name).await.expect("schedule").is_none() };
    assert!(unknown(ScheduleKind::Flow, "orders").await && unknown(ScheduleKind::Schedule, "Orders").await);
    let off = PutSchedule { enabled: Some(false), ..t.request_for(flow("orders", hourly())) };
    let off = stored(t.put_schedule(off).await.expect("put"));
    assert!(!off.enabled && off.id != made.id, "a flow has a name of its own");
}

pub(super) async fn the_same_again_changes_nothing_and_another_definition_replaces(t: &Fixture) {
    let id = t.plan(scheduled("s", hourly())).await;
    let first = t.glance_begins(id).await;
    let due = t.of_name("s").await.next_due;
    let Put::Unchanged(same) = t.put(scheduled("s", hourly())).await else { panic!("the same") };
    assert_eq!((same.id, same.version, same.next_due), (id, 1, due));
    let Put::Replaced(other) = t.put(scheduled("s", json!({"schedule": {"every": "1h"}, "input": 7}))).await else {
        panic!("another one")
    };
    assert_eq!((other.id, other.version, other.next_due), (id, 2, due), "the rhythm is the same");
    assert_eq!(other.last_run.map(|run| run.id), Some(first));
    assert!(other.updated_at > other.created_at);
    let Put::Replaced(moved) = t.put(scheduled("s", json!({"schedule": {"every": "2h"}}))).await else {
        panic!("another rhythm")
    };
    assert_eq!(moved.next_due, moved.last_due.map(|last| last.plus(2 * HOUR)), "it goes on from what was decided last");
    let off = PutSchedule { enabled: Some(false), ..t.request_for(scheduled("s", json!({}))) };
    let Put::Replaced(off) = t.put_schedule(off).await.expect("put") else { panic!("switched") };
    assert_eq!((off.version, off.enabled, off.next_due), (4, false, None));
    let Put::Unchanged(still) = t.put(scheduled("s", json!({}))).await else { panic!("the same") };
    assert!(!still.enabled, "without a word it stays off");
}

pub(super) async fn another_version_is_a_conflict_and_changes_nothing(t: &Fixture) {
    let at = |version: u64, input: u64| PutSchedule {
        version: Some(version),
        ..t.request_for(scheduled("s", json!({ "input": input })))
    };
    let put = |request: PutSchedule| async move { t.put_schedule(request).await.expect("put") };
    assert!(matches!(put(at(1, 1)).await, Put::Conflict(None)), "there is none");
    let id = t.plan(scheduled("s", json!({}))).await;
    assert!(matches!(put(at(2, 1)).await, Put::Conflict(Some(1))));
    assert!(matches!(put(at(1, 1)).await, Put::Replaced(now) if now.version == 2 && now.id == id));
    assert!(matches!(put(at(1, 2)).await, Put::Conflict(Some(2))));
    let delete =
        |version| async move { t.delete_schedule(ScheduleKind::Schedule, "s", version).await.expect("delete") };
    assert_eq!(delete(Some(1)).await, Deleted::Conflict(2));
    assert_eq!(t.of_name("s").await.version, 2);
    assert_eq!((delete(Some(2)).await, delete(None).await), (Deleted::Done, Deleted::NotFound));
}

pub(super) async fn one_name_written_from_many_sides_at_once_is_one_schedule(t: &Fixture) {
    let sides = t.at_once(8, |store| {
        let request = t.request_for(scheduled("s", hourly()));
        async move { store.put_schedule(request).await.expect("put") }
    });
    let answers = sides.await;
    assert_eq!(answers.iter().filter(|put| matches!(put, Put::Created(_))).count(), 1, "{answers:?}");
    let ids: Vec<ScheduleId> = answers.into_iter().map(|put| stored(put).id).collect();
    assert_eq!(ids, [ids[0]; 8]);
}

pub(super) async fn schedules_are_listed_by_name_in_pages(t: &Fixture) {
    for name in ["b", "a", "B", "it's"] {
        t.plan(scheduled(name, hourly())).await;
    }
    t.plan(flow("a", hourly())).await;
    let list = |kind: Option<ScheduleKind>, after: Option<&str>, limit: usize| {
        let filter = ScheduleFilter { kind, after: after.map(str::to_string), limit };
        async move {
            let found = t.schedules(filter).await.expect("schedules");
            assert!(!found.cut_short);
            found.items.iter().map(|one| (one.schedule.kind, one.schedule.name.clone())).collect::<Vec<_>>()
        }
    };
    let named = |names: &[&str]| -> Vec<(ScheduleKind, String)> {
        names.iter().map(|name| (ScheduleKind::Schedule, name.to_string())).collect()
    };
    let flow = (ScheduleKind::Flow, "a".to_string());
    assert_eq!(list(Some(ScheduleKind::Schedule), None, 10).await, named(&["B", "a", "b", "it's"]));
    assert_eq!(list(Some(ScheduleKind::Schedule), Some("a"), 1).await, named(&["b"]));
    assert_eq!(list(Some(ScheduleKind::Flow), None, 10).await, std::slice::from_ref(&flow));
    let mut all = named(&["B", "a", "b", "it's"]);
    all.insert(2, flow);
    assert_eq!(list(None, None, 10).await, all);
}

pub(super) async fn a_list_of_large_schedules_ends_early_and_goes_on(t: &Fixture) {
    let large = "x".repeat(3 << 20);
    let names: Vec<String> = (0..9).map(|number| format!("s{number}")).collect();
    for name in &names {
        let id = t.plan(scheduled(name, json!({ "input": large }))).await;
        if name == "s1" {
            t.trigger(id).await;
        }
    }
    let mut seen: Vec<String> = Vec::new();
    let mut parts = 0;
    loop {
        let filter = ScheduleFilter { kind: Some(ScheduleKind::Schedule), after: seen.last().cloned(), limit: 100 };
        let part = t.schedules(filter).await.expect("schedules");
        let bytes: usize = part.items.iter().map(StoredSchedule::bytes).sum();
        let last = part.items.last().map_or(0, StoredSchedule::bytes);
        assert!(bytes - last < LIST_BYTES && (!part.cut_short || bytes >= LIST_BYTES), "{bytes}, {}", part.cut_short);
        seen.extend(part.items.iter().map(|one| one.schedule.name.clone()));
        parts += 1;
        if !part.cut_short {
            break;
        }
    }
    assert_eq!((seen, parts), (names, 2));
}

pub(super) async fn what_is_due_at_once_begins_and_comes_again_after_its_interval(t: &Fixture) {
    let id = t.plan(scheduled("s", json!({"schedule": {"every": "2s"}, "overlap": "allow", "input": [7]}))).await;
    let made = t.of_name("s").await;
    assert_eq!(made.next_due, Some(made.created_at));
    let first = t.glance_begins(id).await;
    let run = t.look(first).await;
    assert_eq!((run.state, run.spec.task.as_str(), run.spec.queue.as_str()), (RunState::Ready, "work", "default"));
    assert_eq!(run.spec.occurrence, Some(OccurrenceOf { schedule: id, due: made.created_at }));
    assert_eq!(run.spec.input.as_str(), "[7]");
    assert_eq!(t.lease(first).await.spec, run.spec, "a claim reads it too");
    assert_eq!(t.held_of(first).await.spec, run.spec, "and a rescuer");
    let after = t.of_name("s").await;
    assert_eq!((after.last_due, after.next_due), (made.next_due, made.next_due.map(|due| due.plus(2 * PERIOD))));
    assert_eq!((after.unfinished, after.last_run.map(|run| run.id)), (1, Some(first)));
    t.advance(2 * PERIOD).await;
    let due = t.due(10).await;
    assert!(due.schedules.iter().any(|due| due.id == id && due.by_clock), "{due:?}");
    let second = t.glance_begins(id).await;
    let due = after.next_due.expect("due again");
    assert_eq!(t.look(second).await.spec.occurrence, Some(OccurrenceOf { schedule: id, due }));
    assert_eq!(t.of_name("s").await.unfinished, 2);
}

pub(super) async fn one_look_makes_one_run_and_a_second_none(t: &Fixture) {
    let id = t.plan(scheduled("s", hourly())).await;
    let looked = t.glance(id).await;
    assert!(looked.due && looked.begun.len() == 1 && !looked.again, "{looked:?}");
    assert_eq!(t.glance(id).await, LookedSchedule::default());
    let next = t.due(10).await;
    assert_eq!(next.schedules, []);
    assert!(next.next_in.is_some_and(|next| next <= HOUR && next > HOUR - Duration::from_secs(120)), "{next:?}");
    let unknown = ScheduleId(t.next_id());
    let look = t.look_at_schedule(unknown, Wish::Look { clock: true }, t.scheduler()).await.expect("look");
    assert_eq!(look, LookedAt::NotFound);
}

pub(super) async fn many_who_look_at_once_make_each_run_once(t: &Fixture) {
    for number in 0..12 {
        t.plan(scheduled(&format!("s{number}"), hourly())).await;
    }
    let sides = t.at_once(8, |store| {
        let scheduler = t.scheduler();
        async move {
            for due in store.due_schedules(ScheduleKind::ALL, 100).await.expect("due").schedules {
                let wish = Wish::Look { clock: due.by_clock };
                store.look_at_schedule(due.id, wish, scheduler.clone()).await.expect("look");
            }
        }
    });
    sides.await;
    t.settle_down().await;
    let runs = t.runs(RunFilter { limit: 100, ..RunFilter::default() }).await.expect("runs").items;
    assert_eq!(runs.len(), 12);
    let mut schedules: Vec<_> = runs.iter().filter_map(|run| run.spec.occurrence).map(|of| of.schedule).collect();
    schedules.sort();
    schedules.dedup();
    assert_eq!(schedules.len(), 12);
    t.sound().await;
}

pub(super) async fn a_disabled_schedule_is_not_due_and_begins_only_what_is_asked_for(t: &Fixture) {
    let id = t.plan(scheduled("s", hourly())).await;
    let switch = |enabled| async move {
        t.enable_schedule(ScheduleKind::Schedule, "s", enabled).await.expect("enable").expect("there")
    };
    let off = switch(false).await;
    assert!(!off.enabled && off.version == 1, "{off:?}");
    assert!(t.settle_down().await.is_empty());
    assert_eq!(t.due(10).await.next_in, None);
    let (run, looked) = t.trigger(id).await;
    assert_eq!((looked.begun, looked.due), (vec![run], false));
    t.succeed(run).await;
    assert!(t.settle_down().await.is_empty());
    let on = switch(true).await;
    assert!(on.enabled && on.next_due.is_some_and(|due| due >= off.updated_at), "{on:?}");
    assert_eq!(t.settle_down().await.len(), 1);
    assert!(t.enable_schedule(ScheduleKind::Flow, "s", true).await.expect("enable").is_none());
}

pub(super) async fn what_is_due_by_the_clock_is_left_to_whoever_asks_for_it(t: &Fixture) {
    let id = t.plan(flow("f", hourly())).await;
    let of = |kinds: &'static [ScheduleKind]| async move { t.due_schedules(kinds, 10).await.expect("due").schedules };
    let noted = of(&[ScheduleKind::Schedule]).await;
    assert_eq!(noted.iter().map(|due| (due.id, due.by_clock)).collect::<Vec<_>>(), [(id, false)], "it was written");
    assert_eq!(t.look_for(id, Wish::Look { clock: false }).await, LookedSchedule::default());
    assert_eq!(of(&[ScheduleKind::Schedule]).await, []);
    let due = of(&[ScheduleKind::Flow]).await;
    assert_eq!(
        due.iter().map(|due| (due.id, due.kind, due.by_clock)).collect::<Vec<_>>(),
        [(id, ScheduleKind::Flow, true)]
    );
    assert_eq!(t.glance(id).await.begun.len(), 1);
}

pub(super) async fn the_longest_due_come_first_and_no_more_than_asked_for(t: &Fixture) {
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(t.plan(scheduled(&format!("s{number}"), hourly())).await);
    }
    for id in &ids {
        t.look_for(*id, Wish::Look { clock: false }).await;
    }
    let some = t.due(3).await;
    assert_eq!(some.schedules.iter().map(|due| due.id).collect::<Vec<_>>(), ids[..3]);
    assert_eq!(some.next_in, Some(Duration::ZERO), "there are more");
    // What is noted comes before what is due since.
    t.put(scheduled("s4", json!({"schedule": {"every": "1h"}, "input": 1}))).await;
    assert_eq!(t.due(2).await.schedules.iter().map(|due| due.id).collect::<Vec<_>>(), [ids[4], ids[0]]);
    assert_eq!(t.due_ids().await.len(), 5, "each once");
    assert_eq!(t.due(0).await.schedules, []);
}

pub(super) async fn a_trigger_waits_for_its_turn_and_is_made_once(t: &Fixture) {
    let id = t.plan(scheduled("s", json!({"overlap": "skip"}))).await;
    let (first, looked) = t.trigger_with(id, Some(json!({"why": "a test"}))).await;
    assert_eq!((looked.begun, looked.waiting), (vec![first], vec![]));
    let args = t.look(first).await.spec.args.clone().expect("args").value();
    assert_eq!((&args["cause"], &args["why"], &args["schedule"]), (&json!("asked"), &json!("a test"), &json!("s")));
    let (second, looked) = t.trigger_with(id, Some(json!({"n": 2}))).await;
    assert_eq!((looked.begun, looked.waiting), (vec![], vec![second]));
    let waiting = t.waiting_occurrences(id).await.expect("waiting");
    assert_eq!(waiting.len(), 1);
    assert_eq!(
        (waiting[0].run, waiting[0].cause, &waiting[0].state),
        (second, DueBy::Asked, &OccurrenceState::Waiting)
    );
    assert_eq!(waiting[0].wish.as_ref().map(|wish| wish.value()), Some(json!({"n": 2})));
    let stands = t.of_name("s").await;
    assert_eq!((stands.waiting, stands.unfinished), (1, 1));
    for (run, waits) in [(first, false), (second, true)] {
        let again = t.look_for(id, Wish::Trigger { run, wish: None, idempotency: None }).await;
        assert_eq!(again, LookedSchedule::again(run, waits), "asked for again");
    }
    assert!(t.store.run(second).await.expect("run").is_none(), "there is no run yet");
    t.settle_down().await;
    t.succeed(first).await;
    assert_eq!(t.settle_down().await, [second]);
    assert_eq!(t.state(second).await, RunState::Ready);
    assert_eq!(t.waiting(id).await, []);
}

pub(super) async fn a_trigger_with_an_idempotency_key_makes_one_run(t: &Fixture) {
    let id = t.plan(scheduled("s", json!({"overlap": "skip"}))).await;
    let keyed = |key: &str, fingerprint: &str| {
        let idempotency = Some(Idempotency { key: key.to_string(), fingerprint: fingerprint.to_string() });
        Wish::Trigger { run: RunId(t.next_id()), wish: None, idempotency }
    };
    let first = t.look_for(id, keyed("k", "f")).await;
    let again = t.look_for(id, keyed("k", "f")).await;
    assert_eq!((first.begun.len(), first.repeats), (1, false));
    assert_eq!(again, LookedSchedule::again(first.begun[0], false));
    let other = t.look_at_schedule(id, keyed("k", "another request"), t.scheduler()).await;
    assert_eq!(other, Err(Error::KeyReused { key: "k".to_string() }));
    let waits = t.at_once(8, |store| {
        let (wish, scheduler) = (keyed("k 2", "f"), t.scheduler());
        async move { store.look_at_schedule(id, wish, scheduler).await.expect("trigger") }
    });
    let runs: BTreeSet<RunId> = waits
        .await
        .into_iter()
        .map(|looked| match looked {
            LookedAt::Done(looked) => looked.waiting[0],
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(runs.len(), 1, "many at once");
    assert_eq!(t.of_name("s").await.waiting, 1);
    // A key of a request for runs is no key of a trigger.
    let idempotency = Some(Idempotency { key: "k 3".to_string(), fingerprint: "runs".to_string() });
    t.request(Enqueue { runs: vec![t.draft().done()], idempotency }).await.expect("accepted");
    let reused = t.look_at_schedule(id, keyed("k 3", "f"), t.scheduler()).await;
    assert_eq!(reused, Err(Error::KeyReused { key: "k 3".to_string() }));
}

pub(super) async fn a_deleted_schedule_leaves_its_runs_and_nothing_else(t: &Fixture) {
    let id = t.plan(scheduled("s", hourly())).await;
    let first = t.glance_begins(id).await;
    let (second, _) = t.trigger(id).await;
    let claimed = t.lease(first).await;
    assert_eq!(t.delete_schedule(ScheduleKind::Schedule, "s", None).await.expect("delete"), Deleted::Done);
    assert!(t.waiting(id).await.is_empty() && t.due_ids().await.is_empty());
    assert_eq!(t.state(first).await, RunState::Running);
    let again = t.plan(scheduled("s", hourly())).await;
    assert!(again != id && t.of_name("s").await.last_run.is_none());
    assert_eq!(t.settle_down().await.len(), 1, "it begins anew");
    t.end(super::build::success(&claimed)).await;
    assert_eq!(t.due_ids().await, [], "nobody is told of a schedule that is gone");
    assert!(t.store.run(second).await.expect("run").is_none());
    assert_eq!(t.note_stranded_schedules(10).await.expect("note stranded"), 0);
    let attempt = t.look(first).await.attempt;
    t.reopen(first, attempt).await.expect("reopen");
    assert_eq!((t.state(first).await, t.due_ids().await), (RunState::Ready, vec![]));
    assert_eq!(t.of_name("s").await.unfinished, 1);
}

pub(super) async fn the_runs_of_a_schedule_are_listed_by_state(t: &Fixture) {
    let id = t.plan(scheduled("s", json!({"overlap": "allow"}))).await;
    let other = t.plan(scheduled("other", json!({}))).await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(t.trigger(id).await.0);
        t.trigger(other).await;
        t.accept(t.draft()).await;
    }
    t.succeed(runs[0]).await;
    let running = t.lease(runs[1]).await.lease.run_id;
    runs.push(t.trigger(id).await.0);
    let cancelled = t.trigger(id).await.0;
    runs.push(cancelled);
    t.cancel(cancelled).await.expect("cancel");
    let list = |state: Option<RunState>, before: Option<RunId>, limit: usize| {
        let filter = RunFilter { schedule: Some(id), state, before, limit, ..RunFilter::default() };
        async move { t.runs(filter).await.expect("runs").items.iter().map(|run| run.id).collect::<Vec<_>>() }
    };
    let newest: Vec<RunId> = runs.iter().rev().copied().collect();
    assert_eq!(list(None, None, 100).await, newest);
    assert_eq!(list(None, Some(newest[1]), 2).await, newest[2..4]);
    assert_eq!(list(Some(RunState::Succeeded), None, 100).await, [runs[0]]);
    assert_eq!(list(Some(RunState::Running), None, 100).await, [runs[3], runs[2], running]);
    assert_eq!(list(Some(RunState::Ready), None, 100).await, [runs[4]]);
    assert_eq!(list(Some(RunState::Cancelled), None, 100).await, [cancelled]);
    assert!(list(Some(RunState::Scheduled), None, 100).await.is_empty());
    assert!(list(Some(RunState::Failed), None, 100).await.is_empty());
}

pub(super) async fn the_newest_of_what_was_left_out_is_kept(t: &Fixture) {
    fn leaves(situation: &Situation) -> Decision {
        let left = |n: usize| Left {
            from: StoreTime(n as i64),
            to: StoreTime(n as i64 + 5),
            count: n as u64,
            why: if n.is_multiple_of(2) { WhyLeft::Overlap } else { WhyLeft::Backlog },
        };
        let (next_due, again) = (situation.next_due, true);
        Decision { left: (1..=MOST_LEFT - 1).map(left).collect(), next_due, again, ..Decision::default() }
    }
    let id = t.plan(scheduled("s", hourly())).await;
    assert!(t.left_occurrences(id, 10).await.expect("left").is_empty());
    for _ in 0..2 {
        let LookedAt::Done(looked) = t.decide(id, leaves).await else { panic!("done") };
        assert_eq!((looked.left, looked.again), ((1..MOST_LEFT as u64).sum(), true));
    }
    let left = t.left_occurrences(id, 5000).await.expect("left");
    assert_eq!(left.len(), MOST_LEFT);
    let counts: Vec<u64> = left.iter().map(|one| one.left.count).collect();
    let (newest, oldest) = ((1..MOST_LEFT as u64).rev(), [MOST_LEFT as u64 - 1]);
    assert_eq!(counts, newest.chain(oldest).collect::<Vec<_>>(), "newest first");
    assert_eq!((left[0].left.from, left[0].left.to), (StoreTime(999), StoreTime(1004)));
    assert_eq!((left[0].left.why, left[1].left.why), (WhyLeft::Backlog, WhyLeft::Overlap));
    assert_eq!(t.left_occurrences(id, 1).await.expect("left"), left[..1]);
}

pub(super) async fn what_happens_to_a_schedule_is_told(t: &Fixture) {
    let id = t.plan(scheduled("s", hourly())).await;
    let run = t.glance_begins(id).await;
    t.put(scheduled("s", hourly())).await;
    t.enable_schedule(ScheduleKind::Schedule, "s", true).await.expect("enable");
    t.enable_schedule(ScheduleKind::Schedule, "s", false).await.expect("enable");
    t.plan(flow("f", json!({}))).await;
    t.delete_schedule(ScheduleKind::Flow, "f", None).await.expect("delete");
    t.delete_schedule(ScheduleKind::Schedule, "s", None).await.expect("delete");
    let page = t.events(0, 100).await.expect("events");
    let told: Vec<(String, String)> = page.events.into_iter().map(|event| (event.kind, event.subject)).collect();
    let expected = [
        (EventKind::ScheduleWritten, "s".to_string()),
        (EventKind::RunCreated, run.to_string()),
        (EventKind::ScheduleWritten, "s".to_string()),
        (EventKind::FlowWritten, "f".to_string()),
        (EventKind::FlowDeleted, "f".to_string()),
        (EventKind::ScheduleDeleted, "s".to_string()),
    ];
    assert_eq!(told, expected.map(|(kind, subject)| (kind.as_str().to_string(), subject)));
}
