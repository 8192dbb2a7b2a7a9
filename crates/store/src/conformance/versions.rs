use super::fixture::Fixture;
use super::steps::{compute, epoch, graph, result, setting, sum, tasked, values, with};
use crate::{Start, Started};
use everbeat_model::graph::Graph;
use everbeat_model::{ExecutionId, RunState};
use serde_json::{Value, json};
use std::sync::Arc;

fn version(number: u64, nodes: Value) -> Value {
    with(graph("g", nodes), "version", json!(number))
}

async fn goes_by(t: &Fixture, id: ExecutionId) -> String {
    t.stored(id).await.graph.version.clone()
}

pub(super) async fn a_new_definition_reaches_every_standing_execution(t: &Fixture) {
    t.define(&version(1, json!(["a"]))).await;
    t.define(&sum()).await;
    let (one, two) = (t.begin("g", json!({"a": 1})).await, t.begin("g", json!({})).await);
    let (archived, other) = (t.begin("g", json!({"a": 1})).await, t.begin("sum", json!({"a": 1})).await);
    t.archive(archived).await;
    let stamps = (t.stamp(one).await, t.stamp(two).await, t.stamp(archived).await, t.stamp(other).await);
    t.define(&version(2, json!(["a", "b", compute("extra", &["a"])]))).await;
    assert_eq!(goes_by(t, one).await, "1", "until somebody looks");
    let mut looked = t.catch_up().await;
    looked.sort_unstable();
    assert_eq!(looked, [one, two]);
    assert_eq!((goes_by(t, one).await, goes_by(t, two).await), ("2".to_string(), "2".to_string()));
    assert_eq!(t.all_computing(one).await, ["extra"], "a node is added to what stands");
    t.perform(one, "extra", json!("e")).await;
    assert_eq!(t.content(one, "extra").await, Some(json!("e")));
    assert!(t.all_computing(two).await.is_empty());
    t.set(two, json!({"b": 1})).await;
    let after = (t.stamp(one).await, t.stamp(two).await, t.stamp(archived).await, t.stamp(other).await);
    assert!(after.0 > stamps.0 && after.1 > stamps.1);
    assert_eq!((after.2, after.3), (stamps.2, stamps.3));
    assert_eq!((goes_by(t, archived).await, goes_by(t, other).await), ("1".to_string(), "1".to_string()));
    t.unarchive(archived).await;
    assert_eq!(goes_by(t, archived).await, "2", "who comes back goes on with what counts now");
    assert_eq!(t.all_computing(archived).await, ["extra"]);
    t.sound().await;
}

pub(super) async fn the_same_definition_again_reaches_nobody(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 1})).await;
    let stamp = t.stamp(id).await;
    t.apply_graph(&sum()).await;
    assert_eq!(t.catch_up().await, []);
    assert_eq!(t.stamp(id).await, stamp);
}

pub(super) async fn the_next_command_goes_by_the_new_definition(t: &Fixture) {
    let id = t.begin_new(&version(1, json!(["a"])), json!({"a": 1})).await;
    t.define(&version(2, json!(["b", compute("c", &["b"])]))).await;
    assert!(t.tell(id, setting(json!({"a": 2}))).await.is_err(), "it has no such node any more");
    assert_eq!(goes_by(t, id).await, "2");
    assert_eq!(t.set(id, json!({"b": 1})).await, 2);
    assert_eq!(t.all_computing(id).await, ["c"]);
    assert_eq!(t.catch_up().await, [], "its note was taken");
    t.sound().await;
}

pub(super) async fn a_node_removed_in_flight_does_no_harm(t: &Fixture) {
    t.define(&version(1, json!(["a", compute("c", &["a"]), compute("d", &["a"])]))).await;
    let id = t.begin("g", json!({"a": 1})).await;
    t.perform(id, "d", json!("d")).await;
    let claimed = t.lease_of(id, "c").await;
    t.define(&version(2, json!(["a"]))).await;
    t.catch_up().await;
    t.end(result(&claimed, &json!("late"))).await;
    t.catch_up().await;
    assert_eq!(t.content(id, "c").await, None);
    assert!(t.stored(id).await.execution.computation("c").is_none(), "nothing is known of it any more");
    let peek = t.value(id, "c").await.expect("value").expect("it exists");
    assert!(!peek.known && peek.cell.is_none());
    let peek = t.value(id, "d").await.expect("value").expect("it exists");
    assert_eq!((peek.known, peek.cell.map(|cell| cell.value)), (false, Some(json!("d"))), "what was set stays");
    t.set(id, json!({"a": 2})).await;
    assert!(t.all_computing(id).await.is_empty());
    t.sound().await;
}

pub(super) async fn a_removed_node_that_comes_back_is_computed_anew(t: &Fixture) {
    let (with_c, without) = (json!(["a", compute("c", &["a"])]), json!(["a"]));
    let id = t.begin_new(&version(1, with_c.clone()), json!({"a": 1})).await;
    t.perform(id, "c", json!("c1")).await;
    t.define(&version(2, without)).await;
    t.catch_up().await;
    t.set(id, json!({"a": 2})).await;
    t.define(&version(3, with_c)).await;
    t.catch_up().await;
    t.perform(id, "c", json!("c2")).await;
    assert_eq!(t.content(id, "c").await, Some(json!("c2")));
    t.sound().await;
}

pub(super) async fn a_node_whose_run_ended_while_it_was_removed_is_computed_when_it_comes_back(t: &Fixture) {
    let (with_c, without) = (json!(["a", compute("c", &["a"])]), json!(["a"]));
    let id = t.begin_new(&version(1, with_c.clone()), json!({"a": 1})).await;
    let claimed = t.lease_of(id, "c").await;
    t.define(&version(2, without)).await;
    t.catch_up().await;
    t.end(result(&claimed, &json!("late"))).await;
    t.catch_up().await;
    t.define(&version(3, with_c)).await;
    t.catch_up().await;
    t.perform(id, "c", json!("anew")).await;
    assert_eq!(t.content(id, "c").await, Some(json!("anew")));
    t.sound().await;
}

pub(super) async fn an_execution_of_an_older_version_stays_until_something_newer_is_applied(t: &Fixture) {
    t.define(&version(1, json!(["a"]))).await;
    t.define(&version(2, json!(["a", "b"]))).await;
    let start = Start { version: Some("1".to_string()), ..t.new_execution("g", json!({"a": 1})) };
    let id = start.id;
    assert_eq!(t.start_one(start).await, Started::Created { id, revision: 1 });
    assert_eq!(t.catch_up().await, []);
    t.set(id, json!({"a": 2})).await;
    assert!(t.tell(id, setting(json!({"b": 2}))).await.is_err());
    assert_eq!(goes_by(t, id).await, "1");
    assert_eq!(goes_by(t, t.begin("g", json!({})).await).await, "2");
    t.define(&version(3, json!(["a", "b", "c"]))).await;
    assert!(t.catch_up().await.contains(&id));
    assert_eq!(goes_by(t, id).await, "3");
    t.set(id, json!({"c": 2})).await;
}

pub(super) async fn a_start_takes_the_definition_that_counts_for_its_version(t: &Fixture) {
    t.define(&version(1, json!(["a"]))).await;
    t.define(&version(2, json!(["a", "b"]))).await;
    t.define(&version(1, json!(["a", "c"]))).await;
    for (version, node) in [(Some("1"), "c"), (Some("2"), "b"), (None, "c")] {
        let given = Start {
            version: version.map(ToString::to_string),
            values: values(json!({node: 1})),
            ..t.new_execution("g", json!({}))
        };
        assert!(matches!(t.start_one(given).await, Started::Created { .. }), "{version:?}");
    }
}

pub(super) async fn a_gate_that_a_new_definition_shuts_takes_the_value_and_the_run(t: &Fixture) {
    t.define(&version(1, json!(["a", "b", compute("c", &["a"]), compute("d", &["a"])]))).await;
    let id = t.begin("g", json!({"a": 1})).await;
    t.perform(id, "c", json!("c")).await;
    let run = t.computing(id, "d").await.expect("computed");
    t.define(&version(2, json!(["a", "b", compute("c", &["a", "b"]), compute("d", &["b"])]))).await;
    t.catch_up().await;
    assert_eq!((t.content(id, "c").await, t.state(run).await), (None, RunState::Cancelled));
    assert!(t.all_computing(id).await.is_empty());
    t.sound().await;
}

pub(super) async fn a_new_definition_leaves_ticks_armed(t: &Fixture) {
    let tick = tasked("tick", "tick_once", &["a"]);
    let id = t.begin_new(&version(1, json!(["a", tick])), json!({"a": 1})).await;
    let hour = std::time::Duration::from_secs(3600);
    t.perform(id, "tick", epoch(t.now().await.plus(hour))).await;
    t.define(&version(2, json!(["a", tick, "b"]))).await;
    t.catch_up().await;
    let next_in = t.store.advance_due(10, t.planner()).await.expect("advance due").next_in;
    assert!(next_in.is_some_and(|next_in| next_in <= hour), "{next_in:?}");
    assert!(t.all_computing(id).await.is_empty());
}

pub(super) async fn many_definitions_and_many_looks_at_once_end_with_the_last(t: &Fixture) {
    t.define(&version(1, json!(["a"]))).await;
    let mut all: Vec<ExecutionId> = Vec::new();
    for n in 0..6 {
        all.push(t.begin("g", json!({"a": n})).await);
    }
    let definitions: Vec<Arc<Graph>> =
        (2..8).map(|n| Arc::new(Graph::parse(&version(n, json!(["a", format!("n{n}")]))).expect("valid"))).collect();
    let apply = async {
        for graph in definitions {
            assert!(t.store.apply(graph, None).await.expect("apply").new);
        }
    };
    let sides = t.at_once(4, |store| {
        let planner = t.planner();
        async move {
            for _ in 0..8 {
                store.advance_due(3, planner.clone()).await.expect("advance due");
            }
        }
    });
    tokio::join!(apply, sides);
    t.catch_up().await;
    for id in all {
        assert_eq!(goes_by(t, id).await, "7");
    }
    t.sound().await;
}
