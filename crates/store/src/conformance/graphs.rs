use super::fixture::{Fixture, MOMENT};
use super::steps::{compute, graph, sum, with};
use crate::{Error, Idempotency};
use everbeat_model::graph::Graph;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn a_definition_reads_back_as_it_was_applied(t: &Fixture) {
    let definition = json!({"name": "full", "version": "2026-11", "singleton": true, "on_save": "audit", "nodes": [
        {"name": "a", "kind": "input"},
        {"name": "b", "kind": "input", "options": {"keep_latest": 7}},
        {"name": "c", "kind": "compute", "task": "work", "args": {"of": ["\u{0}", "ü", 1.0]},
         "gate": {"and": [{"gte": ["a", 5]}, {"or": [{"is_true": "b"}, {"not": {"provided": "b"}}]}]},
         "options": {"max_attempts": 3, "deadline": "5m", "on_save": "mail"}},
        {"name": "m", "kind": "mutate", "gate": ["c"], "task": "work", "mutates": ["a", "b"]},
        {"name": "h", "kind": "historian", "gate": ["a"], "options": {"max_entries": null}},
        {"name": "l", "kind": "loop", "gate": ["a"], "task": "work", "options": {"max_iterations": 3, "fallback": null}},
        {"name": "t", "kind": "tick_once", "task": "work"},
        {"name": "r", "kind": "tick_recurring", "gate": ["a"], "task": "work"},
        {"name": "z", "kind": "archive", "gate": ["t"]},
    ]});
    let before = t.now().await;
    let applied = t.apply_graph(&definition).await;
    assert!(applied.new);
    assert!(applied.definition.applied_at > before);
    let read = t.graph("full", None).await.expect("graph").expect("it is there");
    assert_eq!(*read.graph, Graph::parse(&definition).expect("valid"));
    assert_eq!((read.serial, read.applied_at), (applied.definition.serial, applied.definition.applied_at));
    let listed = t.graphs(None, 10).await.expect("graphs").remove(0);
    assert_eq!((listed.serial, &listed.graph), (read.serial, &read.graph));
}

pub(super) async fn the_same_definition_again_is_not_new(t: &Fixture) {
    let first = t.apply_graph(&sum()).await;
    let before = t.last_event().await.expect("last event");
    t.advance(MOMENT).await;
    let again = t.apply_graph(&sum()).await;
    assert!(!again.new);
    assert_eq!(again.definition.serial, first.definition.serial);
    assert_eq!(again.definition.applied_at, first.definition.applied_at);
    assert_eq!(t.last_event().await.expect("last event"), before, "nothing happened");
}

pub(super) async fn other_content_under_the_same_version_is_another_definition_and_counts(t: &Fixture) {
    let first = t.define(&sum()).await;
    let other = with(sum(), "nodes", json!([{"name": "a", "kind": "input"}]));
    let second = t.define(&other).await;
    assert!(second.serial > first.serial);
    for version in [None, Some("1")] {
        let counts = t.graph("sum", version).await.expect("graph").expect("it is there");
        assert_eq!((counts.serial, counts.graph.nodes().len()), (second.serial, 1));
    }
    let back = t.define(&sum()).await;
    assert!(back.serial > second.serial, "an earlier one that is applied again is new: it counts from now on");
    assert_eq!(t.graph("sum", None).await.expect("graph").expect("it is there").serial, back.serial);
}

pub(super) async fn the_order_of_nodes_belongs_to_a_definition(t: &Fixture) {
    t.define(&graph("g", json!(["a", "b"]))).await;
    t.define(&graph("g", json!(["b", "a"]))).await;
    let counts = t.graph("g", None).await.expect("graph").expect("it is there");
    let names: Vec<_> = counts.graph.nodes().iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["b", "a"]);
}

pub(super) async fn the_latest_definition_of_each_version_is_found(t: &Fixture) {
    let version = |version: Value, node: &str| with(graph("g", json!([node])), "version", version);
    let mut serials = Vec::new();
    for definition in
        [version(json!(1), "a"), version(json!(2), "a"), version(json!(1), "b"), version(json!("10-rc"), "a")]
    {
        serials.push(t.define(&definition).await.serial);
    }
    assert!(serials.is_sorted_by(|a, b| a < b));
    for (version, serial) in
        [(None, serials[3]), (Some("1"), serials[2]), (Some("2"), serials[1]), (Some("10-rc"), serials[3])]
    {
        let found = t.graph("g", version).await.expect("graph").expect("it is there");
        assert_eq!(found.serial, serial, "{version:?}");
    }
    assert!(t.graph("g", Some("3")).await.expect("graph").is_none());
    assert!(t.graph("h", None).await.expect("graph").is_none());
    assert!(t.graph("G", None).await.expect("graph").is_none(), "names are taken as they are");
}

pub(super) async fn graphs_are_listed_by_name_in_pages(t: &Fixture) {
    let mut names = ["b", "a", "ü", "a.b", "Z", "a-b", "10", "9", "a_b", "ab"];
    for name in names {
        t.define(&graph(name, json!(["old"]))).await;
        t.define(&graph(name, json!(["new"]))).await;
    }
    names.sort_unstable();
    for limit in [1, 3, 100] {
        let mut read: Vec<String> = Vec::new();
        loop {
            let page = t.graphs(read.last().map(String::as_str), limit).await.expect("graphs");
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= limit);
            for definition in page {
                assert_eq!(definition.graph.nodes()[0].name, "new", "only the one that counts");
                read.push(definition.graph.name.clone());
            }
        }
        assert_eq!(read, names, "in pages of {limit}, by bytes");
    }
}

pub(super) async fn the_same_definition_from_many_sides_at_once_is_new_once(t: &Fixture) {
    let graph = Arc::new(Graph::parse(&sum()).expect("valid"));
    let all = t.at_once(12, |store| {
        let graph = graph.clone();
        async move { store.apply(graph, None).await.expect("apply") }
    });
    let all = all.await;
    assert_eq!(all.iter().filter(|applied| applied.new).count(), 1);
    assert!(all.iter().all(|applied| applied.definition.serial == all[0].definition.serial));
}

pub(super) async fn a_graph_of_thousands_of_nodes_reads_back(t: &Fixture) {
    let nodes: Vec<Value> = (0..3000)
        .map(|n| if n == 0 { json!("n0") } else { compute(&format!("n{n}"), &[&format!("n{}", n - 1)]) })
        .collect();
    let definition = graph("long", Value::from(nodes));
    t.define(&definition).await;
    let read = t.graph("long", None).await.expect("graph").expect("it is there");
    assert_eq!(*read.graph, Graph::parse(&definition).expect("valid"));
    assert!(!t.apply_graph(&definition).await.new);
}

pub(super) async fn an_idempotency_key_answers_with_what_it_applied(t: &Fixture) {
    let key = |fingerprint: &str| Some(Idempotency { key: "k".to_string(), fingerprint: fingerprint.to_string() });
    let graph = |version: u64| {
        let graph = json!({"name": "g", "version": version, "nodes": [{"name": "a", "kind": "input"}]});
        Arc::new(Graph::parse(&graph).expect("valid"))
    };
    let first = t.store.apply(graph(1), key("one")).await.expect("apply");
    assert!(first.new);
    assert!(t.store.apply(graph(2), None).await.expect("apply").new);
    let again = t.store.apply(graph(1), key("one")).await.expect("apply");
    assert_eq!((again.new, again.definition.serial), (false, first.definition.serial));
    let latest = t.store.graph("g", None).await.expect("graph").expect("known");
    assert_eq!(latest.graph.version, "2", "a late repetition brings nothing back");
    assert!(matches!(t.store.apply(graph(3), key("other")).await, Err(Error::KeyReused { .. })));
    assert_eq!(t.store.graph("g", Some("3")).await.expect("graph").map(|found| found.serial), None);
}
