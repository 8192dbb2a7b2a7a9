use super::fixture::Fixture;
use super::steps::{compute, graph, setting, sum, unsetting, values, with};
use crate::{Advance, Advanced, Enqueue, Idempotency, Start, Started};
use everbeat_model::graph::{Command, Refusal, Status};
use everbeat_model::run::Kind;
use everbeat_model::{ExecutionId, RunState};
use serde_json::{Value, json};
use std::sync::Mutex;

pub(super) async fn a_start_without_values_creates_an_empty_execution(t: &Fixture) {
    t.define(&sum()).await;
    let start = t.new_execution("sum", json!({}));
    let id = start.id;
    let before = t.now().await;
    assert_eq!(t.start_one(start).await, Started::Created { id, revision: 0 });
    let stored = t.stored(id).await;
    assert_eq!((stored.id, stored.graph.name.as_str(), stored.execution.revision), (id, "sum", 0));
    assert!(stored.execution.nodes.is_empty() && stored.execution.archived_at.is_none() && stored.attempts.is_empty());
    assert!(stored.created_at > before && stored.updated_at == stored.created_at);
    assert_eq!(t.remembered(id).await, []);
    assert!(t.stamp(id).await > 0);
    assert_eq!(t.catch_up().await, [], "there is nothing to look at");
    t.sound().await;
}

pub(super) async fn values_given_with_a_start_are_set_as_one_revision(t: &Fixture) {
    t.define(&sum()).await;
    let start = Start { metadata: Some(json!({"by": "ann"})), ..t.new_execution("sum", json!({"a": 1, "b": [2]})) };
    let id = start.id;
    assert_eq!(t.start_one(start).await, Started::Created { id, revision: 1 });
    let stored = t.stored(id).await;
    for (node, value) in [("a", json!(1)), ("b", json!([2]))] {
        let cell = stored.execution.cell(node).expect("set");
        assert_eq!((&cell.value, cell.revision, cell.set_at), (&value, 1, stored.created_at));
        assert_eq!(cell.metadata, Some(json!({"by": "ann"})));
    }
    let history = t.remembered(id).await;
    let told: Vec<_> = history.iter().map(|entry| (entry.node.as_str(), entry.revision, entry.run)).collect();
    assert_eq!(told, [("a", 1, None), ("b", 1, None)]);
    assert!(
        history.iter().all(|entry| entry.metadata.as_ref().is_some_and(|data| data.value() == json!({"by": "ann"})))
    );
    assert_eq!(t.all_computing(id).await, ["total"], "what can be computed begins with the start");
    t.sound().await;
}

pub(super) async fn an_unknown_graph_or_version_starts_nothing(t: &Fixture) {
    t.define(&sum()).await;
    let wrong = [
        t.new_execution("sun", json!({})),
        Start { version: Some("2".to_string()), ..t.new_execution("sum", json!({})) },
    ];
    for start in wrong {
        let id = start.id;
        assert_eq!(t.start_one(start).await, Started::NoGraph);
        assert!(t.execution(id).await.expect("execution").is_none());
    }
}

pub(super) async fn refused_values_store_nothing(t: &Fixture) {
    t.define(&sum()).await;
    let before = t.last_event().await.expect("last event");
    let key = Idempotency { key: "k".to_string(), fingerprint: "f".to_string() };
    for given in [json!({"a": 1, "c": 1}), json!({"a": 1, "total": 1})] {
        let start = Start { idempotency: Some(key.clone()), ..t.new_execution("sum", given) };
        let id = start.id;
        assert!(matches!(t.start_one(start).await, Started::Refused(Refusal::Invalid(_))));
        assert!(t.execution(id).await.expect("execution").is_none());
        assert!(t.stamps(vec![id]).await.expect("stamps").is_empty());
    }
    assert_eq!(t.last_event().await.expect("last event"), before);
    let start = Start { idempotency: Some(key), ..t.new_execution("sum", json!({"a": 1})) };
    assert!(matches!(t.start_one(start).await, Started::Created { .. }), "the key is not used up");
}

pub(super) async fn a_batch_of_starts_answers_in_order_with_mixed_fates(t: &Fixture) {
    t.define(&sum()).await;
    let first = t.new_execution("sum", json!({"a": 1}));
    let starts = vec![
        first.clone(),
        t.new_execution("none", json!({})),
        t.new_execution("sum", json!({"x": 1})),
        first.clone(),
        t.new_execution("sum", json!({"a": 1, "b": 2})),
    ];
    let ids: Vec<ExecutionId> = starts.iter().map(|start| start.id).collect();
    let started = t.start(starts, t.planner()).await.expect("start");
    assert_eq!(started[0], Started::Created { id: ids[0], revision: 1 });
    assert_eq!(started[1], Started::NoGraph);
    assert!(matches!(&started[2], Started::Refused(Refusal::Invalid(invalid)) if invalid.field == "x"));
    assert_eq!(started[3], Started::Exists(ids[0]));
    assert_eq!(started[4], Started::Created { id: ids[4], revision: 1 });
    assert_eq!(t.start(Vec::new(), t.planner()).await.expect("start"), []);
    t.sound().await;
}

pub(super) async fn the_same_start_again_exists(t: &Fixture) {
    t.define(&sum()).await;
    let start = t.new_execution("sum", json!({"a": 1, "b": 1}));
    let id = start.id;
    t.start_one(start.clone()).await;
    let (stamp, event) = (t.stamp(id).await, t.last_event().await.expect("last event"));
    assert_eq!(t.start_one(start).await, Started::Exists(id));
    assert_eq!((t.stamp(id).await, t.last_event().await.expect("last event")), (stamp, event));
}

pub(super) async fn an_idempotency_key_answers_with_the_execution_it_started(t: &Fixture) {
    t.define(&sum()).await;
    let keyed = |fingerprint: &str| Start {
        idempotency: Some(Idempotency { key: "k".to_string(), fingerprint: fingerprint.to_string() }),
        ..t.new_execution("sum", json!({"a": 1}))
    };
    let first = keyed("f");
    let id = first.id;
    assert_eq!(t.start_one(first).await, Started::Created { id, revision: 1 });
    let again = keyed("f");
    let unused = again.id;
    assert_eq!(t.start_one(again).await, Started::Exists(id));
    assert!(t.execution(unused).await.expect("execution").is_none());
    assert_eq!(t.start_one(keyed("g")).await, Started::KeyReused);
    t.archive(id).await;
    assert_eq!(t.start_one(keyed("f")).await, Started::Exists(id), "whatever became of it");
}

pub(super) async fn a_key_of_runs_is_not_one_of_starts(t: &Fixture) {
    t.define(&sum()).await;
    let idempotency =
        |fingerprint: &str| Some(Idempotency { key: "k".to_string(), fingerprint: fingerprint.to_string() });
    t.request(Enqueue { runs: vec![t.draft().done()], idempotency: idempotency("runs") }).await.expect("enqueue");
    let start = Start { idempotency: idempotency("start"), ..t.new_execution("sum", json!({})) };
    assert_eq!(t.start_one(start).await, Started::KeyReused);
}

pub(super) async fn one_idempotency_key_from_many_sides_at_once_starts_one(t: &Fixture) {
    t.define(&sum()).await;
    let starts = Mutex::new(
        (0..16)
            .map(|_| Start {
                idempotency: Some(Idempotency { key: "k".to_string(), fingerprint: "f".to_string() }),
                ..t.new_execution("sum", json!({"a": 1}))
            })
            .collect::<Vec<_>>(),
    );
    made_once(t, &starts).await;
}

fn lonely() -> Value {
    with(sum(), "singleton", json!(true))
}

pub(super) async fn a_singleton_finds_the_standing_one(t: &Fixture) {
    let id = t.begin_new(&lonely(), json!({"a": 1})).await;
    let (stamp, again) = (t.stamp(id).await, t.new_execution("sum", json!({"a": 2})));
    let unused = again.id;
    assert_eq!(t.start_one(again).await, Started::Exists(id));
    assert!(t.execution(unused).await.expect("execution").is_none());
    assert_eq!((t.content(id, "a").await, t.stamp(id).await), (Some(json!(1)), stamp), "its values stay");
    t.define(&graph("other", json!(["a"]))).await;
    t.begin("other", json!({})).await;
    t.begin("other", json!({})).await;
}

pub(super) async fn a_singleton_from_many_sides_at_once_makes_one(t: &Fixture) {
    t.define(&lonely()).await;
    let starts = Mutex::new((0..16).map(|_| t.new_execution("sum", json!({"a": 1}))).collect::<Vec<_>>());
    made_once(t, &starts).await;
}

async fn made_once(t: &Fixture, starts: &Mutex<Vec<Start>>) {
    let sides = starts.lock().expect("unpoisoned").len();
    let all = t.at_once(sides, |store| {
        let (start, planner) = (starts.lock().expect("unpoisoned").pop().expect("one each"), t.planner());
        async move { store.start(vec![start], planner).await.expect("start").remove(0) }
    });
    let all = all.await;
    let made = all.iter().filter_map(|started| match started {
        Started::Created { id, .. } => Some(*id),
        _ => None,
    });
    let made: Vec<ExecutionId> = made.collect();
    assert_eq!(made.len(), 1);
    assert_eq!(all.iter().filter(|started| **started == Started::Exists(made[0])).count(), sides - 1);
    assert_eq!(t.audit().await.expect("audit").checked["executions"], 1);
}

pub(super) async fn an_archived_singleton_lets_another_one_start(t: &Fixture) {
    let first = t.begin_new(&lonely(), json!({})).await;
    t.archive(first).await;
    let second = t.begin("sum", json!({})).await;
    assert_eq!(t.start_one(t.new_execution("sum", json!({}))).await, Started::Exists(second));
}

pub(super) async fn a_singleton_is_not_brought_back_while_another_one_stands(t: &Fixture) {
    let first = t.begin_new(&lonely(), json!({"a": 1, "b": 1})).await;
    let claimed = t.lease_of(first, "total").await;
    t.archive(first).await;
    let second = t.begin("sum", json!({})).await;
    let stamp = t.stamp(first).await;
    t.end(super::steps::result(&claimed, &json!(2))).await;
    let answers = t.tell_all(first, vec![Command::Unarchive, setting(json!({"a": 5}))]).await;
    assert!(answers.iter().all(|answer| matches!(answer, Err(Refusal::Conflict { .. }))), "{answers:?}");
    let Err(Refusal::Conflict { problem, hint }) = &answers[0] else { panic!("a conflict") };
    assert!(problem.contains(&second.to_string()) && !hint.is_empty(), "{problem}");
    let stored = t.stored(first).await;
    assert!(stored.execution.archived_at.is_some() && stored.stamp == stamp, "nothing of it was done");
    assert_eq!(t.audit().await.expect("audit").violations, [], "its note was not taken either");
    assert_eq!(t.catch_up().await, [first]);
    assert_eq!(t.content(first, "total").await, Some(json!(2)));
    t.archive(second).await;
    t.unarchive(first).await;
    assert!(t.stored(first).await.execution.archived_at.is_none());
    t.sound().await;
}

pub(super) async fn a_node_run_becomes_ready_with_the_set_that_opens_its_gate(t: &Fixture) {
    let total = with(with(compute("total", &["a", "b"]), "task", json!("work")), "args", json!({"round": "up"}));
    let definition = graph("sum", json!(["a", "b", total]));
    let id = t.begin_new(&definition, json!({"a": 1})).await;
    assert!(t.all_computing(id).await.is_empty());
    assert_eq!(t.set(id, json!({"b": "two"})).await, 2);
    let run = t.look(t.computing(id, "total").await.expect("it begins in the same call")).await;
    assert_eq!((run.state, run.spec.kind, run.spec.task.as_str()), (RunState::Ready, Kind::Node, "work"));
    assert_eq!((run.spec.queue.as_str(), run.spec.priority, run.attempt), ("default", 0, 0));
    assert_eq!(run.spec.input.value(), json!({"a": 1, "b": "two"}));
    assert_eq!(run.spec.args.as_ref().map(|args| args.value()), Some(json!({"round": "up"})));
    let parent = run.spec.parent.as_ref().expect("it has one");
    assert_eq!((parent.execution, parent.node.as_str()), (id, "total"));
    let computation = t.computation(id, "total").await;
    assert_eq!((computation.status, computation.run), (Status::Running(run.id), Some(run.id)));
    assert_eq!(computation.computed_with.into_iter().collect::<Vec<_>>(), [("a".to_string(), 1), ("b".to_string(), 2)]);
    assert_eq!(t.stored(id).await.attempts.get("total"), Some(&0));
    t.sound().await;
}

pub(super) async fn the_same_value_again_changes_neither_revision_nor_stamp(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": {"x": [1, null]}, "b": 1})).await;
    let (before, event) = (t.stored(id).await, t.last_event().await.expect("last event"));
    for same in [json!({"a": {"x": [1, null]}}), json!({"b": 1}), json!({"b": 1.0}), json!({})] {
        assert_eq!(t.set(id, same).await, 1);
    }
    assert_eq!(t.unset(id, &[]).await, 1);
    let after = t.stored(id).await;
    assert_eq!((after.stamp, after.updated_at, &after.execution), (before.stamp, before.updated_at, &before.execution));
    assert_eq!(t.last_event().await.expect("last event"), event);
    assert_eq!(t.remembered(id).await.len(), 2);
}

pub(super) async fn several_commands_in_one_advance_each_get_their_revision(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({})).await;
    let before = t.stamp(id).await;
    let answers = t.tell_all(
        id,
        vec![
            setting(json!({"a": 1})),
            setting(json!({"a": 1})),
            setting(json!({"c": 1})),
            setting(json!({"a": 2, "b": 1})),
            unsetting(&["b"]),
            setting(json!({"b": 3})),
        ],
    );
    let answers = answers.await;
    assert!(matches!(&answers[2], Err(Refusal::Invalid(_))));
    let revisions: Vec<u64> = answers.iter().filter_map(|answer| answer.as_ref().ok()).copied().collect();
    assert_eq!(revisions, [1, 1, 2, 3, 4]);
    let stored = t.stored(id).await;
    assert_eq!((stored.execution.revision, stored.stamp), (4, before + 1), "it is one write");
    let told: Vec<_> =
        t.remembered(id).await.into_iter().map(|e| (e.node, e.value.map(|v| v.value()), e.revision)).collect();
    let expected = [
        ("a", Some(json!(1)), 1),
        ("a", Some(json!(2)), 2),
        ("b", Some(json!(1)), 2),
        ("b", None, 3),
        ("b", Some(json!(3)), 4),
    ];
    assert_eq!(told, expected.map(|(node, value, revision)| (node.to_string(), value, revision)));
    assert_eq!(t.audit().await.expect("audit").checked["runs"], 1, "what starts is decided at the end");
    let run = t.look(t.computing(id, "total").await.expect("computed")).await;
    assert_eq!(run.spec.input.value(), json!({"a": 2, "b": 3}));
}

pub(super) async fn a_refused_command_changes_nothing(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1})).await;
    let (before, event) = (t.stored(id).await, t.last_event().await.expect("last event"));
    for wrong in [
        setting(json!({"b": 1, "tottal": 1})),
        setting(json!({"b": 1, "total": 1})),
        unsetting(&["a", "total"]),
        unsetting(&["a", "zzz"]),
        Command::Retry("a".to_string()),
        Command::Retry("zzz".to_string()),
        Command::Abandon("total".to_string()),
    ] {
        assert!(t.tell(id, wrong.clone()).await.is_err(), "{wrong:?}");
    }
    let after = t.stored(id).await;
    assert_eq!((after.stamp, &after.execution), (before.stamp, &before.execution));
    assert_eq!(t.last_event().await.expect("last event"), event);
}

pub(super) async fn an_archived_execution_refuses_to_be_changed(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1})).await;
    t.archive(id).await;
    let stamp = t.stamp(id).await;
    for wrong in [setting(json!({"b": 1})), unsetting(&["a"]), Command::Retry("total".to_string())] {
        assert!(matches!(t.tell(id, wrong).await, Err(Refusal::Conflict { .. })));
    }
    t.archive(id).await;
    assert_eq!(t.stamp(id).await, stamp, "to archive it again changes nothing");
    let answers = t.tell_all(id, vec![Command::Unarchive, setting(json!({"b": 1})), Command::Archive]).await;
    assert_eq!(answers, [Ok(1), Ok(2), Ok(2)]);
    assert!(t.stored(id).await.execution.archived_at.is_some());
    assert!(t.all_computing(id).await.is_empty(), "nothing starts in an archived execution");
    t.unarchive(id).await;
    assert_eq!(t.all_computing(id).await, ["total"]);
}

pub(super) async fn a_batch_of_advances_answers_in_order(t: &Fixture) {
    t.define(&sum()).await;
    let (one, two) = (t.begin("sum", json!({})).await, t.begin("sum", json!({"a": 1})).await);
    let unknown = t.new_execution("sum", json!({})).id;
    let advance = |execution, commands| Advance { execution, commands };
    let advances = vec![
        advance(two, vec![setting(json!({"b": 1})), setting(json!({"nope": 1}))]),
        advance(unknown, vec![setting(json!({"a": 1}))]),
        advance(one, vec![]),
    ];
    let answers = t.store.advance(advances, t.planner()).await.expect("advance");
    assert!(matches!(&answers[0], Advanced::Done(done) if done[0] == Ok(2) && done[1].is_err()), "{answers:?}");
    assert_eq!(answers[1..], [Advanced::NotFound, Advanced::Done(Vec::new())]);
    assert_eq!(t.store.advance(Vec::new(), t.planner()).await.expect("advance"), []);
    assert_eq!((t.content(two, "b").await, t.content(one, "a").await), (Some(json!(1)), None));
}

pub(super) async fn ten_sides_that_set_at_once_lose_nothing(t: &Fixture) {
    const SIDES: u64 = 10;
    const EACH: u64 = 4;
    let inputs: Vec<Value> = (0..SIDES).map(|n| json!(format!("n{n}"))).chain([json!("shared")]).collect();
    let id = t.begin_new(&graph("g", Value::from(inputs)), json!({})).await;
    let numbers = Mutex::new((0..SIDES).collect::<Vec<_>>());
    let all = t.at_once(usize::try_from(SIDES).expect("small"), |store| {
        let (side, planner) = (numbers.lock().expect("unpoisoned").pop().expect("one each"), t.planner());
        async move {
            let mut revisions = Vec::new();
            for nth in 0..EACH {
                let commands = vec![setting(json!({format!("n{side}"): nth, "shared": side * 100 + nth}))];
                let advance = Advance { execution: id, commands };
                match store.advance(vec![advance], planner.clone()).await.expect("advance").remove(0) {
                    Advanced::Done(answers) => revisions.push((*answers[0].as_ref().expect("set"), side * 100 + nth)),
                    Advanced::NotFound => panic!("it exists"),
                }
            }
            revisions
        }
    });
    let all = all.await;
    assert!(all.iter().all(|revisions| revisions.is_sorted_by(|a, b| a.0 < b.0)), "{all:?}");
    let mut revisions: Vec<(u64, u64)> = all.into_iter().flatten().collect();
    revisions.sort_unstable();
    assert_eq!(
        revisions.iter().map(|(revision, _)| *revision).collect::<Vec<_>>(),
        (1..=SIDES * EACH).collect::<Vec<_>>()
    );
    let stored = t.stored(id).await;
    assert_eq!(stored.execution.revision, SIDES * EACH);
    for side in 0..SIDES {
        assert_eq!(stored.execution.cell(&format!("n{side}")).expect("set").value, json!(EACH - 1));
    }
    assert_eq!(stored.execution.cell("shared").expect("set").value, json!(revisions.last().expect("some").1));
    let history = t.remembered(id).await;
    assert!(history.is_sorted_by(|a, b| a.place < b.place && a.revision <= b.revision));
    let shared: Vec<_> = history.iter().filter(|entry| entry.node == "shared").collect();
    assert_eq!(shared.len() as u64, SIDES * EACH, "no two writes were the same");
}

pub(super) async fn metadata_goes_with_the_values_it_was_set_with(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1})).await;
    let metadata = json!({"by": "\u{0}ü", "n": [1.0, 18_446_744_073_709_551_615_u64]});
    let command = Command::Set { values: values(json!({"a": 1, "b": 2})), metadata: Some(metadata.clone()) };
    t.tell(id, command).await.expect("set");
    let execution = t.stored(id).await.execution;
    assert_eq!(execution.cell("a").expect("set").metadata, None, "a value that did not change keeps its own");
    assert_eq!(execution.cell("b").expect("set").metadata, Some(metadata.clone()));
    let history = t.remembered(id).await;
    assert_eq!(history.last().and_then(|entry| entry.metadata.clone()).map(|data| data.value()), Some(metadata));
    t.set(id, json!({"b": 3})).await;
    assert_eq!(t.stored(id).await.execution.cell("b").expect("set").metadata, None);
}

pub(super) async fn an_unknown_execution_has_nothing(t: &Fixture) {
    let unknown = ExecutionId(t.next_id());
    assert!(t.execution(unknown).await.expect("execution").is_none());
    assert_eq!(t.value(unknown, "a").await.expect("value"), None);
    assert_eq!(t.history(unknown, 0, 10).await.expect("history"), []);
    assert_eq!(t.stamps(vec![unknown]).await.expect("stamps"), []);
}

pub(super) async fn an_execution_of_a_thousand_nodes_starts_and_is_set(t: &Fixture) {
    const NODES: usize = 500;
    let nodes: Vec<Value> =
        (0..NODES).flat_map(|n| [json!(format!("in{n}")), compute(&format!("out{n}"), &[&format!("in{n}")])]).collect();
    let given: serde_json::Map<String, Value> = (0..NODES).map(|n| (format!("in{n}"), json!(n))).collect();
    let id = t.begin_new(&graph("wide", Value::from(nodes)), Value::Object(given)).await;
    let stored = t.stored(id).await;
    assert_eq!((stored.execution.nodes.len(), stored.attempts.len()), (2 * NODES, NODES));
    let old = t.computing(id, "out7").await.expect("computed");
    let anew: serde_json::Map<String, Value> = (0..NODES).map(|n| (format!("in{n}"), json!(n + 1))).collect();
    assert_eq!(t.set(id, Value::Object(anew)).await, 2);
    assert_eq!(t.state(old).await, RunState::Cancelled);
    assert_eq!(t.all_computing(id).await.len(), NODES);
    assert_eq!(t.remembered(id).await.len(), 2 * NODES);
    t.sound().await;
}
