use super::build::{ended, retry, success};
use super::fixture::{Fixture, HOUR, MOMENT};
use super::steps::{MANY, compute, graph, result, setting, sum, tasked, with};
use crate::{Cancelled, Claim, Peek, RunFilter};
use everbeat_model::graph::{Command, Refusal, Status};
use everbeat_model::run::Kind;
use everbeat_model::{Ending, ExecutionId, Json, Next, Outcome, Reason, RunState, Settled};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;

pub(super) async fn a_result_is_there_after_the_next_look(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 2})).await;
    let (run, stamp) = (t.computing(id, "total").await.expect("computed"), t.stamp(id).await);
    let claimed = t.lease_of(id, "total").await;
    assert_eq!(t.stored(id).await.attempts.get("total"), Some(&1));
    assert_eq!(t.stamp(id).await, stamp, "a claim is not written to it");
    assert_eq!(t.end(result(&claimed, &json!(3))).await, Settled::Done);
    assert_eq!(t.status(id, "total").await, Status::Running(run), "until somebody looks");
    assert_eq!(t.catch_up().await, [id]);
    assert_eq!(t.catch_up().await, []);
    let stored = t.stored(id).await;
    let cell = stored.execution.cell("total").expect("computed");
    assert_eq!((&cell.value, cell.revision, cell.set_at), (&json!(3), 2, stored.updated_at));
    let computation = stored.execution.computation("total").expect("computed");
    assert_eq!((&computation.status, computation.run), (&Status::Done, Some(run)));
    assert!(stored.attempts.is_empty() && stored.stamp == stamp + 1);
    let last = t.remembered(id).await.pop().expect("remembered");
    assert_eq!((last.node.as_str(), last.revision, last.run, last.at), ("total", 2, Some(run), stored.updated_at));
    assert_eq!(last.value.map(|value| value.value()), Some(json!(3)));
    t.sound().await;
}

pub(super) async fn an_advance_takes_finished_runs_with_it(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 2})).await;
    let claimed = t.lease_of(id, "total").await;
    t.end(result(&claimed, &json!(3))).await;
    assert_eq!(t.set(id, json!({"b": 3})).await, 3, "the result came first");
    let history: Vec<_> = t.remembered(id).await.into_iter().map(|entry| (entry.node, entry.revision)).collect();
    assert_eq!(history[2..], [("total".to_string(), 2), ("b".to_string(), 3)]);
    assert_eq!(t.catch_up().await, [], "its note was taken");
    assert!(t.computing(id, "total").await.is_some(), "and it is computed anew");
    t.sound().await;
}

fn diamond() -> Value {
    let nodes = json!(["x", compute("left", &["x"]), compute("right", &["x"]), compute("join", &["left", "right"])]);
    graph("diamond", nodes)
}

pub(super) async fn a_join_waits_for_both_sides(t: &Fixture) {
    let id = t.begin_new(&diamond(), json!({"x": 1})).await;
    assert_eq!(t.all_computing(id).await, ["left", "right"]);
    t.perform(id, "left", json!("l1")).await;
    assert_eq!(t.all_computing(id).await, ["right"]);
    t.perform(id, "right", json!("r1")).await;
    assert_eq!(t.all_computing(id).await, ["join"]);
    t.perform(id, "join", json!("j1")).await;
    t.set(id, json!({"x": 2})).await;
    t.perform(id, "right", json!("r2")).await;
    assert_eq!(t.all_computing(id).await, ["left"], "it is never computed from old and new");
    t.perform(id, "left", json!("l1")).await;
    let run = t.look(t.computing(id, "join").await.expect("computed")).await;
    assert_eq!(run.spec.input.value(), json!({"x": 2, "left": "l1", "right": "r2", "join": "j1"}));
    t.sound().await;
}

pub(super) async fn runs_that_finish_at_once_lose_no_result(t: &Fixture) {
    const SIDES: usize = 8;
    let names: Vec<String> = (0..SIDES).map(|n| format!("n{n}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut nodes = vec![json!("x")];
    nodes.extend(all.iter().map(|name| compute(name, &["x"])));
    nodes.push(compute("join", &all));
    t.define(&graph("fan", Value::from(nodes))).await;
    for round in 0..3 {
        let id = t.begin("fan", json!({"x": round})).await;
        let mut settlements = Vec::new();
        for name in &names {
            settlements.push(result(&t.lease_of(id, name).await, &json!(name)));
        }
        let settlements = Mutex::new(settlements);
        let sides = t.at_once(SIDES, |store| {
            let (mine, planner) = (settlements.lock().expect("unpoisoned").pop().expect("one each"), t.planner());
            async move {
                assert_eq!(store.settle(vec![mine]).await.expect("settle"), [Settled::Done]);
                store.advance_due(10, planner).await.expect("advance due");
            }
        });
        sides.await;
        t.catch_up().await;
        for name in &names {
            assert_eq!(t.content(id, name).await, Some(json!(name)));
            assert_eq!(t.status(id, name).await, Status::Done);
        }
        assert_eq!(t.all_computing(id).await, ["join"], "once");
        let joins = RunFilter { task: Some("join".to_string()), limit: 100, ..RunFilter::default() };
        assert_eq!(t.runs(joins).await.expect("runs").items.len(), round + 1, "no run of it was made and stopped");
        t.sound().await;
    }
}

pub(super) async fn many_lookers_take_many_notes(t: &Fixture) {
    const EXECUTIONS: usize = 30;
    t.define(&sum()).await;
    let mut settlements = Vec::new();
    let mut ids: Vec<ExecutionId> = Vec::new();
    for n in 0..EXECUTIONS {
        ids.push(t.begin("sum", json!({"a": n, "b": n})).await);
    }
    for id in &ids {
        settlements.push(result(&t.lease_of(*id, "total").await, &json!(1)));
    }
    t.settle(settlements).await.expect("settle");
    let looked = t.at_once(6, |store| {
        let planner = t.planner();
        async move {
            let mut mine = Vec::new();
            for _ in 0..10 {
                mine.extend(store.advance_due(3, planner.clone()).await.expect("advance due").executions);
            }
            mine
        }
    });
    let mut looked: Vec<ExecutionId> = looked.await.into_iter().flatten().collect();
    looked.extend(t.catch_up().await);
    looked.sort_unstable();
    looked.dedup();
    assert_eq!(looked, ids, "nobody was passed over for good");
    for id in ids {
        assert_eq!((t.content(id, "total").await, t.stored(id).await.execution.revision), (Some(json!(1)), 2));
    }
    t.sound().await;
}

pub(super) async fn a_look_takes_no_more_than_its_limit_and_the_oldest_first(t: &Fixture) {
    t.define(&sum()).await;
    let mut claimed = Vec::new();
    for n in 0..5 {
        let id = t.begin("sum", json!({"a": n, "b": n})).await;
        claimed.push((id, t.lease_of(id, "total").await));
    }
    for place in [3, 0, 4, 1, 2] {
        t.end(result(&claimed[place].1, &json!(1))).await;
        t.advance(MOMENT).await;
    }
    let none = t.advance_due(0, t.planner()).await.expect("advance due");
    assert_eq!((none.executions.len(), none.next_in), (0, Some(std::time::Duration::ZERO)));
    for (places, more) in [(vec![0, 1], true), (vec![2, 3], true), (vec![4], false)] {
        let looked = t.advance_due(2, t.planner()).await.expect("advance due");
        assert_eq!(looked.executions, places.iter().map(|place| claimed[*place].0).collect::<Vec<_>>());
        assert_eq!(looked.next_in, more.then_some(std::time::Duration::ZERO));
    }
    assert_eq!(t.catch_up().await, []);
}

pub(super) async fn a_run_that_goes_on_notes_nothing(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 2})).await;
    let first = t.lease_of(id, "total").await;
    let stamp = t.stamp(id).await;
    assert_eq!(t.end(retry(&first, Next::Ready)).await, Settled::Done);
    let second = t.running_again_as(&first).await;
    t.end(retry(&second, Next::After(std::time::Duration::ZERO))).await;
    assert_eq!(t.catch_up().await, []);
    assert_eq!(t.status(id, "total").await, Status::Running(first.lease.run_id));
    t.advance(MOMENT).await;
    assert_eq!(t.promote(10).await.expect("promote").moved, 1);
    let third = t.running_again_as(&first).await;
    assert_eq!(t.stored(id).await.attempts.get("total"), Some(&3), "it shows the attempt");
    assert_eq!(t.stamp(id).await, stamp);
    t.end(result(&third, &json!(3))).await;
    t.catch_up().await;
    assert_eq!(t.content(id, "total").await, Some(json!(3)));
    t.sound().await;
}

pub(super) async fn a_run_that_fails_for_good_fails_its_node(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 2})).await;
    let run = t.computing(id, "total").await.expect("computed");
    let (stamp, before) = (t.stamp(id).await, t.last_event().await.expect("last event"));
    t.break_down(id, "total").await;
    assert_eq!(t.status(id, "total").await, Status::Failed("broken".to_string()));
    let peek = t.value(id, "total").await.expect("value").expect("it exists");
    assert_eq!(peek, Peek { stamp: stamp + 1, known: true, cell: None, failed: Some("broken".to_string()) });
    let told = t.events(before, 100).await.expect("events").events;
    let failed = told.iter().find(|event| event.kind == "execution.node_failed").expect("it is told");
    assert_eq!(failed.subject, id.to_string());
    let detail = failed.detail.as_ref().expect("a failure is explained").value();
    assert_eq!(detail, json!({"node": "total", "error": "broken"}));
    assert_eq!(t.computation(id, "total").await.run, Some(run));
    assert_eq!(t.stored(id).await.execution.revision, 1, "a failure is not a change of a value");
    t.advance_due(10, t.planner()).await.expect("advance due");
    assert!(t.all_computing(id).await.is_empty(), "it is not tried again by itself");
    assert_eq!(t.tell(id, Command::Retry("total".to_string())).await, Ok(1));
    t.perform(id, "total", json!(3)).await;
    let peek = t.value(id, "total").await.expect("value").expect("it exists");
    assert_eq!((peek.cell.map(|cell| cell.value), peek.failed), (Some(json!(3)), None));
    t.sound().await;
}

pub(super) async fn a_failed_node_is_computed_anew_when_something_upstream_changes(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 2})).await;
    t.perform(id, "total", json!(3)).await;
    t.set(id, json!({"a": 2})).await;
    t.break_down(id, "total").await;
    assert_eq!(t.content(id, "total").await, Some(json!(3)), "the old value stays");
    t.set(id, json!({"a": 3})).await;
    t.perform(id, "total", json!(5)).await;
    assert_eq!((t.content(id, "total").await, t.status(id, "total").await), (Some(json!(5)), Status::Done));
    t.sound().await;
}

pub(super) async fn a_changed_input_ends_the_ready_run_as_superseded(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 1})).await;
    let old = t.computing(id, "total").await.expect("computed");
    let before = t.last_event().await.expect("last event");
    t.set(id, json!({"a": 2})).await;
    let run = t.look(old).await;
    assert_eq!((run.state, run.attempt), (RunState::Cancelled, 0));
    assert_eq!(run.error.expect("it says why").value()["reason"], "superseded");
    let told = t.events(before, 100).await.expect("events").events;
    assert!(told.iter().any(|event| event.kind == "run.cancelled" && event.subject == old.to_string()));
    let new = t.computing(id, "total").await.expect("computed anew");
    assert_ne!(new, old);
    assert_eq!(t.look(new).await.spec.input.value(), json!({"a": 2, "b": 1}));
    assert_eq!(t.catch_up().await, [], "nobody looks for its end");
    assert_eq!(t.attempts(old).await.expect("attempts"), []);
    t.sound().await;
}

pub(super) async fn a_changed_input_ends_the_scheduled_run_too(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 1})).await;
    let claimed = t.lease_of(id, "total").await;
    t.end(retry(&claimed, Next::After(HOUR))).await;
    t.unset(id, &["a"]).await;
    let run = t.look(claimed.lease.run_id).await;
    assert_eq!((run.state, run.attempt), (RunState::Cancelled, 1));
    assert_eq!(run.error.expect("it says why").value()["reason"], "superseded");
    assert!(t.all_computing(id).await.is_empty());
    assert_eq!(t.attempts(claimed.lease.run_id).await.expect("attempts").len(), 1, "its history stays");
    t.sound().await;
}

pub(super) async fn a_changed_input_asks_the_leased_run_to_cancel_and_its_result_is_ignored(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 1})).await;
    let old = t.lease_of(id, "total").await;
    assert_eq!(t.cancel_asked(old.lease.replica_id).await.expect("cancel asked"), []);
    t.set(id, json!({"a": 2})).await;
    assert_eq!(t.cancel_asked(old.lease.replica_id).await.expect("cancel asked"), [old.lease.shown()]);
    assert_eq!(t.state(old.lease.run_id).await, RunState::Running);
    let new = t.lease_of(id, "total").await;
    assert_ne!(new.lease.run_id, old.lease.run_id);
    let before = t.stored(id).await;
    assert_eq!(t.end(result(&old, &json!("old"))).await, Settled::Done, "its work is its own");
    t.catch_up().await;
    let after = t.stored(id).await;
    assert_eq!((after.stamp, &after.execution), (before.stamp, &before.execution), "but nobody wants it");
    assert_eq!(t.state(old.lease.run_id).await, RunState::Succeeded);
    t.end(result(&new, &json!("new"))).await;
    t.catch_up().await;
    assert_eq!(t.content(id, "total").await, Some(json!("new")));
    t.sound().await;
}

pub(super) async fn a_gate_that_shuts_clears_what_was_computed_and_stops_what_runs(t: &Fixture) {
    let nodes = json!(["a", compute("c", &["a"]), compute("d", &["c"])]);
    let id = t.begin_new(&graph("chain", nodes), json!({"a": 1})).await;
    t.perform(id, "c", json!("c")).await;
    let run = t.computing(id, "d").await.expect("computed");
    assert_eq!(t.unset(id, &["a"]).await, 3);
    assert_eq!(t.state(run).await, RunState::Cancelled);
    let execution = t.stored(id).await.execution;
    assert!(["a", "c", "d"].iter().all(|node| execution.cell(node).is_none() && execution.running(node).is_none()));
    let last: Vec<_> = t.remembered(id).await.split_off(2).into_iter().map(|e| (e.node, e.value, e.revision)).collect();
    assert_eq!(last, [("a".to_string(), None, 3), ("c".to_string(), None, 3)]);
    t.set(id, json!({"a": 1})).await;
    assert_eq!(t.all_computing(id).await, ["c"], "it begins anew");
    t.sound().await;
}

pub(super) async fn a_node_run_that_a_user_cancels_fails_its_node(t: &Fixture) {
    t.define(&sum()).await;
    let (ready, leased) =
        (t.begin("sum", json!({"a": 1, "b": 1})).await, t.begin("sum", json!({"a": 1, "b": 1})).await);
    let run = t.computing(ready, "total").await.expect("computed");
    assert_eq!(t.cancel(run).await.expect("cancel"), Cancelled::Ended);
    assert_eq!(t.catch_up().await, [ready]);
    assert_eq!(t.status(ready, "total").await, Status::Failed("cancelled on request".to_string()));
    let claimed = t.lease_of(leased, "total").await;
    assert_eq!(t.cancel(claimed.lease.run_id).await.expect("cancel"), Cancelled::Asked);
    assert_eq!(t.catch_up().await, [], "it goes on until its owner ends it");
    let ending = Ending::because(Outcome::Cancelled, Reason::Cancelled, "somebody asked");
    t.end(ended(&claimed, ending, Next::Finish(RunState::Cancelled))).await;
    t.catch_up().await;
    assert_eq!(t.status(leased, "total").await, Status::Failed("somebody asked".to_string()));
    t.sound().await;
}

pub(super) async fn an_abandoned_computation_fails_and_its_run_is_stopped(t: &Fixture) {
    t.define(&sum()).await;
    let (ready, leased) =
        (t.begin("sum", json!({"a": 1, "b": 1})).await, t.begin("sum", json!({"a": 1, "b": 1})).await);
    let run = t.computing(ready, "total").await.expect("computed");
    t.tell(ready, Command::Abandon("total".to_string())).await.expect("abandon");
    assert_eq!(t.state(run).await, RunState::Cancelled);
    assert!(matches!(t.status(ready, "total").await, Status::Failed(_)));
    let claimed = t.lease_of(leased, "total").await;
    t.tell(leased, Command::Abandon("total".to_string())).await.expect("abandon");
    assert_eq!(t.cancel_asked(claimed.lease.replica_id).await.expect("cancel asked"), [claimed.lease.shown()]);
    t.end(result(&claimed, &json!(2))).await;
    t.catch_up().await;
    assert_eq!(t.content(leased, "total").await, None);
    assert!(matches!(t.tell(leased, Command::Abandon("total".to_string())).await, Err(Refusal::Conflict { .. })));
    t.sound().await;
}

pub(super) async fn a_retry_stops_the_run_and_computes_anew(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 1})).await;
    let old = t.computing(id, "total").await.expect("computed");
    t.tell(id, Command::Retry("total".to_string())).await.expect("retry");
    assert_eq!(t.state(old).await, RunState::Cancelled);
    let new = t.computing(id, "total").await.expect("computed anew");
    assert_ne!(new, old);
    t.perform(id, "total", json!(2)).await;
    t.tell(id, Command::Retry("total".to_string())).await.expect("retry");
    t.perform(id, "total", json!(3)).await;
    assert_eq!(t.content(id, "total").await, Some(json!(3)));
    t.sound().await;
}

pub(super) async fn a_run_that_ends_in_an_archived_execution_is_taken_note_of(t: &Fixture) {
    let id = t.begin_new(&diamond(), json!({"x": 1})).await;
    let (left, right) = (t.lease_of(id, "left").await, t.lease_of(id, "right").await);
    t.archive(id).await;
    assert_eq!(t.cancel_asked(left.lease.replica_id).await.expect("cancel asked"), [], "what runs may end");
    t.settle(vec![result(&left, &json!(1)), result(&right, &json!(2))]).await.expect("settle");
    t.catch_up().await;
    assert_eq!((t.content(id, "left").await, t.content(id, "right").await), (Some(json!(1)), Some(json!(2))));
    assert!(t.all_computing(id).await.is_empty(), "nothing starts");
    t.unarchive(id).await;
    assert_eq!(t.all_computing(id).await, ["join"]);
    t.sound().await;
}

pub(super) async fn an_unchanged_result_wakes_nobody(t: &Fixture) {
    let nodes = json!(["a", compute("c", &["a"]), compute("d", &["c"])]);
    let id = t.begin_new(&graph("chain", nodes), json!({"a": 1})).await;
    t.perform(id, "c", json!("same")).await;
    t.perform(id, "d", json!("d")).await;
    t.set(id, json!({"a": 2})).await;
    let history = t.remembered(id).await.len();
    t.perform(id, "c", json!("same")).await;
    assert!(t.all_computing(id).await.is_empty());
    assert_eq!((t.remembered(id).await.len(), t.status(id, "c").await), (history, Status::Done));
    t.sound().await;
}

pub(super) async fn a_run_without_a_result_gives_null_which_is_a_value(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 1})).await;
    let claimed = t.lease_of(id, "total").await;
    let ending = Ending::plain(Outcome::Succeeded);
    t.end(ended(&claimed, ending, Next::Finish(RunState::Succeeded))).await;
    t.catch_up().await;
    assert_eq!(t.content(id, "total").await, Some(Value::Null));
    let peek = t.value(id, "total").await.expect("value").expect("it exists");
    assert_eq!(peek.cell.map(|cell| cell.value), Some(Value::Null), "null is a value");
    let last = t.remembered(id).await.pop().expect("remembered");
    assert_eq!(last.value, Some(Json::null()), "and not a value cleared");
}

pub(super) async fn args_and_parent_are_read_back_everywhere(t: &Fixture) {
    let args = json!({"z": "\u{0}'\"\\", "a": [1.0, null, 18_446_744_073_709_551_615_u64]});
    let total = with(compute("total.of-all", &["a"]), "args", args.clone());
    let id = t.begin_new(&graph("g", json!(["a", total])), json!({"a": 1})).await;
    let plain = t.accept(t.draft()).await;
    let run = t.computing(id, "total.of-all").await.expect("computed");
    let claimed = t.lease_of(id, "total.of-all").await;
    let nodes = RunFilter { kind: Some(Kind::Node), limit: 10, ..RunFilter::default() };
    let listed = t.runs(nodes).await.expect("runs").items;
    assert_eq!(listed.iter().map(|run| run.id).collect::<Vec<_>>(), [run]);
    let specs = [t.look(run).await.spec, listed[0].spec.clone(), claimed.spec.clone(), t.held_of(run).await.spec];
    for spec in specs {
        assert_eq!(spec.args.as_ref().map(Json::value), Some(args.clone()));
        let parent = spec.parent.as_ref().expect("it has one");
        assert_eq!((parent.execution, parent.node.as_str(), spec.kind), (id, "total.of-all", Kind::Node));
    }
    t.end(success(&claimed)).await;
    let done = t.look(run).await.spec;
    assert_eq!((done.args.as_ref().map(Json::value), done.parent.is_some()), (Some(args), true), "when it is over too");
    let plain = t.look(plain).await.spec;
    assert!(plain.args.is_none() && plain.parent.is_none());
}

pub(super) async fn a_plain_run_keeps_its_args(t: &Fixture) {
    let mut draft = t.draft();
    draft.spec.args = Some(Json::of(&json!({"deep": ["\u{0}"]})));
    let id = t.accept(draft).await;
    let claimed = t.running_again(id).await;
    for spec in [t.look(id).await.spec, claimed.spec.clone(), t.held_of(id).await.spec] {
        assert_eq!(spec.args.as_ref().map(Json::as_str), Some("{\"deep\":[\"\\u0000\"]}"));
    }
}

pub(super) async fn retention_keeps_a_finished_run_that_its_execution_has_not_noted(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 1})).await;
    let claimed = t.lease_of(id, "total").await;
    t.end(result(&claimed, &json!(2))).await;
    t.advance(MOMENT).await;
    assert_eq!(t.forget_runs(MOMENT / 2, 100).await.expect("forget"), 0);
    t.catch_up().await;
    assert_eq!(t.content(id, "total").await, Some(json!(2)));
    assert_eq!(t.forget_runs(MOMENT / 2, 100).await.expect("forget"), 1);
    assert_eq!(t.run(claimed.lease.run_id).await.expect("run"), None);
    let stored = t.stored(id).await;
    assert_eq!(stored.execution.computation("total").expect("computed").run, Some(claimed.lease.run_id));
    assert_eq!(t.remembered(id).await.pop().expect("remembered").run, Some(claimed.lease.run_id));
    t.set(id, json!({"a": 2})).await;
    t.perform(id, "total", json!(3)).await;
    t.sound().await;
}

pub(super) async fn a_result_is_taken_up_though_the_clock_went_back(t: &Fixture) {
    // A database's own clock cannot be set back from here.
    let Some(clock) = &t.clock else { return };
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 2})).await;
    let claimed = t.lease_of(id, "total").await;
    assert_eq!(t.end(result(&claimed, &json!(3))).await, Settled::Done);
    clock.jump_back(HOUR);
    t.catch_up().await;
    assert_eq!(t.content(id, "total").await, Some(json!(3)));
    t.sound().await;
}

pub(super) async fn a_mutation_writes_its_target_without_a_revision(t: &Fixture) {
    let scrub = with(tasked("scrub", "mutate", &["paid"]), "mutates", json!("card"));
    let id = t.begin_new(&graph("shop", json!(["card", "paid", scrub])), json!({"card": "4242", "paid": true})).await;
    let run = t.computing(id, "scrub").await.expect("computed");
    t.perform(id, "scrub", json!("redacted")).await;
    let stored = t.stored(id).await;
    let card = stored.execution.cell("card").expect("set");
    assert_eq!((&card.value, card.revision), (&json!("redacted"), 1));
    assert_eq!(stored.execution.cell("scrub").expect("set").value, json!("updated card"));
    assert_eq!(stored.execution.revision, 2);
    let told: Vec<_> = t.remembered(id).await.split_off(2).into_iter().map(|entry| (entry.node, entry.run)).collect();
    assert_eq!(told, [("card".to_string(), Some(run)), ("scrub".to_string(), Some(run))]);
    let card: Vec<_> = t.remembered(id).await.into_iter().filter(|entry| entry.node == "card").collect();
    let gone = Some(Json::of("redacted"));
    assert!(card.len() == 2 && card.iter().all(|entry| entry.value == gone), "what was there is gone: {card:?}");
    assert!(t.all_computing(id).await.is_empty());
    t.sound().await;
}

pub(super) async fn a_mutation_of_several_takes_them_by_name(t: &Fixture) {
    let split = with(tasked("split", "mutate", &["full"]), "mutates", json!(["first", "last"]));
    let split = with(split, "options", json!({"update_revision_on_change": true}));
    let nodes = json!(["full", "first", "last", split, compute("greet", &["first"])]);
    let id = t.begin_new(&graph("names", nodes), json!({"full": "Ann Lee", "last": "?"})).await;
    t.perform(id, "split", json!({"first": "Ann", "last": "Lee", "other": 1})).await;
    assert_eq!((t.content(id, "first").await, t.content(id, "last").await), (Some(json!("Ann")), Some(json!("Lee"))));
    assert_eq!(t.all_computing(id).await, ["greet"], "a new revision sets off what depends on it");
    t.set(id, json!({"full": "Bob"})).await;
    t.perform(id, "split", json!("no object")).await;
    assert!(matches!(t.status(id, "split").await, Status::Failed(_)));
    t.sound().await;
}

pub(super) async fn a_historian_keeps_what_its_upstreams_were(t: &Fixture) {
    let log = json!({"name": "log", "kind": "historian", "gate": {"or": ["a", "b"]}, "options": {"max_entries": 3}});
    let id = t.begin_new(&graph("h", json!(["a", "b", log])), json!({"a": 1})).await;
    t.set(id, json!({"a": 2, "b": 3})).await;
    t.tell_all(id, vec![setting(json!({"b": 4})), setting(json!({"a": "\u{0}"}))]).await;
    let log = t.content(id, "log").await.expect("kept");
    let kept: Vec<_> =
        log.as_array().expect("a list").iter().map(|e| (e["node"].clone(), e["value"].clone())).collect();
    assert_eq!(kept, [(json!("a"), json!("\u{0}")), (json!("b"), json!(4)), (json!("b"), json!(3))]);
    let computation = t.computation(id, "log").await;
    assert_eq!((computation.status, computation.run), (Status::Done, None));
    let revision = t.stored(id).await.execution.revision;
    t.tell_all(id, Vec::new()).await;
    assert_eq!(t.stored(id).await.execution.revision, revision, "nothing is noted twice");
    t.unset(id, &["a", "b"]).await;
    assert_eq!(t.content(id, "log").await, Some(log), "what was seen stays seen");
}

pub(super) async fn a_loop_keeps_each_iteration(t: &Fixture) {
    let poll = with(tasked("poll", "loop", &["a"]), "options", json!({"max_iterations": 3, "fallback": "gave up"}));
    t.define(&graph("l", json!(["a", poll]))).await;
    let id = t.begin("l", json!({"a": 1})).await;
    let first = t.computing(id, "poll").await.expect("computed");
    t.perform(id, "poll", json!({"continue": {"page": "\u{0}2"}})).await;
    let computation = t.computation(id, "poll").await;
    assert_eq!((computation.iterations, &computation.state), (1, &Some(json!({"page": "\u{0}2"}))));
    let second = t.computing(id, "poll").await.expect("the next iteration");
    assert_ne!(first, second);
    assert_eq!(t.look(second).await.spec.input.value(), json!({"a": 1, "poll": {"page": "\u{0}2"}}));
    t.perform(id, "poll", json!({"continue": null})).await;
    assert_eq!((t.computation(id, "poll").await.iterations, t.content(id, "poll").await), (2, None));
    t.perform(id, "poll", json!({"done": "found"})).await;
    assert_eq!((t.content(id, "poll").await, t.status(id, "poll").await), (Some(json!("found")), Status::Done));
    let endless = t.begin("l", json!({"a": 1})).await;
    for n in 0..3 {
        t.perform(endless, "poll", json!({"continue": n})).await;
    }
    assert_eq!(t.content(endless, "poll").await, Some(json!("gave up")));
    assert!(t.all_computing(endless).await.is_empty());
    t.sound().await;
}

pub(super) async fn callbacks_are_runs_made_with_the_change(t: &Fixture) {
    let total = with(compute("total", &["a"]), "options", json!({"on_save": "mail"}));
    let definition = with(graph("g", json!(["a", total])), "on_save", json!("report"));
    let id = t.begin_new(&definition, json!({"a": 1})).await;
    t.perform(id, "total", json!(2)).await;
    t.set(id, json!({"a": 2})).await;
    t.break_down(id, "total").await;
    let mut told: Vec<(String, Value)> = Vec::new();
    for run in
        t.runs(RunFilter { kind: Some(Kind::Task), limit: MANY, ..RunFilter::default() }).await.expect("runs").items
    {
        assert!(run.spec.parent.is_none() && run.state == RunState::Ready);
        let input = run.spec.input.value();
        assert_eq!(input["execution"], json!(id));
        told.push((run.spec.task.clone(), json!([input["node"], input["status"], input["value"], input["error"]])));
    }
    told.reverse();
    let expected = [
        ("report", json!(["a", "saved", 1, null])),
        ("mail", json!(["total", "saved", 2, null])),
        ("report", json!(["total", "saved", 2, null])),
        ("report", json!(["a", "saved", 2, null])),
        ("mail", json!(["total", "failed", null, "broken"])),
        ("report", json!(["total", "failed", null, "broken"])),
    ];
    assert_eq!(told, expected.map(|(task, input)| (task.to_string(), input)));
    t.sound().await;
}

pub(super) async fn a_reopened_run_of_a_finished_node_changes_nothing(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1, "b": 1})).await;
    let run = t.computing(id, "total").await.expect("computed");
    t.break_down(id, "total").await;
    t.reopen(run, 1).await.expect("reopen");
    let before = t.stored(id).await;
    let replica = t.replica().await;
    let tasks = BTreeMap::from([("total".to_string(), 1)]);
    let again = t.claim(Claim { replica, limit: 1, tasks, queues: BTreeMap::new(), among: None }).await.expect("claim");
    t.end(result(&again[0], &json!(2))).await;
    t.catch_up().await;
    let after = t.stored(id).await;
    assert_eq!((after.stamp, &after.execution), (before.stamp, &before.execution));
    t.sound().await;
}

pub(super) async fn an_execution_is_written_to_while_its_runs_end(t: &Fixture) {
    const ROUNDS: u64 = 12;
    let id = t.begin_new(&sum(), json!({"a": 0, "b": 0})).await;
    for round in 1..=ROUNDS {
        let claimed = t.lease_of(id, "total").await;
        let old = claimed.spec.input.value()["a"].clone();
        let settle = async {
            t.end(result(&claimed, &old)).await;
            t.store.advance_due(10, t.planner()).await.expect("advance due");
        };
        tokio::join!(settle, t.set(id, json!({"a": round})));
        t.catch_up().await;
        t.sound().await;
    }
    let last = t.lease_of(id, "total").await;
    assert_eq!(last.spec.input.value()["a"], json!(ROUNDS));
    t.end(result(&last, &json!(ROUNDS))).await;
    t.catch_up().await;
    assert_eq!(t.content(id, "total").await, Some(json!(ROUNDS)));
    assert!(t.all_computing(id).await.is_empty());
}
