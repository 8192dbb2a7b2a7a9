use super::fixture::{Fixture, MOMENT};
use super::steps::{MANY, compute, graph, setting, sum, unsetting};
use crate::{CUT_EVERY, ExecutionFilter, Peek, Remembered};
use everbeat_model::ExecutionId;
use everbeat_model::graph::{Command, Condition, Operator};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) async fn a_history_is_oldest_first_and_pages_without_gap_or_repeat(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": 0})).await;
    let other = t.begin("sum", json!({"a": 0})).await;
    for n in 1..8 {
        t.set(id, json!({"a": n, "b": n})).await;
        t.set(other, json!({"a": n})).await;
        t.unset(id, &["b"]).await;
    }
    let all = t.remembered(id).await;
    assert_eq!(all.len(), 22, "that of others is theirs");
    assert!(all.is_sorted_by(|a, b| a.place < b.place && a.revision <= b.revision && a.at <= b.at));
    assert_eq!(all.iter().filter(|entry| entry.value.is_none()).count(), 7);
    for limit in [1, 4, 100] {
        let mut read: Vec<Remembered> = Vec::new();
        loop {
            let after = read.last().map_or(0, |entry| entry.place);
            let page = t.history(id, after, limit).await.expect("history");
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= limit);
            read.extend(page);
        }
        assert_eq!(read, all, "in pages of {limit}");
    }
    assert_eq!(t.history(id, 0, 0).await.expect("history"), []);
}

fn kept(history: &[Remembered], node: &str) -> Vec<u64> {
    history.iter().filter(|entry| entry.node == node).map(|entry| entry.place).collect()
}

pub(super) async fn a_history_is_cut_to_what_its_node_keeps_at_every_so_many_changes(t: &Fixture) {
    let node = |name: &str, keep: u64| json!({"name": name, "kind": "input", "options": {"keep_latest": keep}});
    let id = t.begin_new(&graph("g", json!([node("few", 5), node("more", 70), "all"])), json!({"all": 0})).await;
    let sets = |from: u64, to: u64| (from..to).map(|n| setting(json!({"few": n, "more": n}))).collect::<Vec<_>>();
    let most = usize::try_from(CUT_EVERY).expect("small");
    let count = |history: &[Remembered]| ["few", "more", "all"].map(|node| kept(history, node).len());
    t.tell_all(id, sets(0, 2 * CUT_EVERY - 1)).await;
    let before = t.remembered(id).await;
    assert_eq!(count(&before), [5, 2 * most - 1, 1], "a short one at once, a long one not yet");
    t.set(id, json!({"few": "last", "more": "last"})).await;
    let after = t.remembered(id).await;
    assert_eq!(count(&after), [5, 70, 1]);
    assert_eq!(kept(&after, "few")[..4], kept(&before, "few")[1..], "the latest stay, in their places");
    assert_eq!(after.last().map(|entry| entry.node.as_str()), Some("more"));
    assert!(after.is_sorted_by(|a, b| a.place < b.place));
    // Cleared values count too, and a cut may come in the middle of a write.
    let mut commands = sets(0, CUT_EVERY - 1);
    commands.push(unsetting(&["few", "more"]));
    commands.extend(sets(0, 3));
    t.tell_all(id, commands).await;
    let last = t.remembered(id).await;
    assert_eq!(count(&last), [5, 73, 1]);
    assert!(last.is_sorted_by(|a, b| a.place < b.place && a.revision <= b.revision));
    assert_eq!(last.iter().filter(|entry| entry.value.is_none()).count(), 2);
}

pub(super) async fn stamps_rise_with_everything_that_is_written(t: &Fixture) {
    t.define(&sum()).await;
    let (one, two) = (t.begin("sum", json!({})).await, t.begin("sum", json!({})).await);
    let unknown = ExecutionId(t.next_id());
    let stamps = async || t.stamps(vec![two, unknown, one, two]).await.expect("stamps");
    let first = stamps().await;
    assert_eq!(first.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [two, one, two]);
    let mut last = t.stamp(one).await;
    let mut rises = async |what: &str| {
        let now = t.stamp(one).await;
        assert!(now > last, "{what}");
        last = now;
    };
    t.set(one, json!({"a": 1})).await;
    rises("a value").await;
    t.set(one, json!({"b": 1})).await;
    t.perform(one, "total", json!(2)).await;
    rises("a result").await;
    t.set(one, json!({"b": 2})).await;
    t.break_down(one, "total").await;
    rises("a failure").await;
    t.tell(one, Command::Retry("total".to_string())).await.expect("retry");
    rises("another try").await;
    t.archive(one).await;
    rises("an archive").await;
    t.unarchive(one).await;
    rises("a return").await;
    assert_eq!(stamps().await[0], first[0], "that of others stays");
    t.advance(MOMENT).await;
    let (before, at) = (t.stamp(one).await, t.stored(one).await.updated_at);
    t.tell_all(one, Vec::new()).await;
    t.catch_up().await;
    assert_eq!((t.stamp(one).await, t.stored(one).await.updated_at), (before, at), "a look is not a change");
    assert_eq!(t.stamps(Vec::new()).await.expect("stamps"), []);
}

pub(super) async fn news_change_with_everything_that_happens_and_only_then(t: &Fixture) {
    let mut last = t.news().await;
    assert_eq!(t.news().await, last);
    let mut rises = async |what: &str| {
        let now = t.news().await;
        assert!(now > last, "{what}");
        assert_eq!(t.news().await, now, "{what}");
        last = now;
    };
    let id = t.begin_new(&sum(), json!({"a": 1})).await;
    rises("a start").await;
    t.set(id, json!({"b": 1})).await;
    rises("a value").await;
    let claimed = t.lease_of(id, "total").await;
    t.now().await;
    t.end(super::steps::result(&claimed, &json!(2))).await;
    rises("the end of a run").await;
    t.catch_up().await;
    rises("a result").await;
    let looked = t.advance_due(10, t.planner()).await.expect("advance due");
    assert_eq!(looked.news, t.news().await);
    t.archive(id).await;
    rises("an archive").await;
    let before = t.news().await;
    t.tell_all(id, vec![setting(json!({"a": 7}))]).await;
    assert_eq!(t.news().await, before, "what was refused is no news");
}

pub(super) async fn a_peek_tells_what_is_known_of_a_node(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": null, "b": [1]})).await;
    let stored = t.stored(id).await;
    let peek = async |node: &str| t.value(id, node).await.expect("value").expect("it exists");
    let unset = Peek { stamp: stored.stamp, known: true, cell: None, failed: None };
    assert_eq!(peek("total").await, unset, "being computed");
    assert_eq!(peek("nothing").await, Peek { known: false, ..unset.clone() });
    for node in ["a", "b"] {
        assert_eq!(peek(node).await, Peek { cell: stored.execution.cell(node).cloned(), ..unset.clone() });
    }
    t.unset(id, &["a"]).await;
    assert_eq!(peek("a").await.cell, None);
    assert!(peek("a").await.stamp > stored.stamp);
}

pub(super) async fn what_happens_to_an_execution_is_told(t: &Fixture) {
    t.define(&sum()).await;
    let before = t.last_event().await.expect("last event");
    let id = t.begin("sum", json!({"a": 1})).await;
    t.set(id, json!({"b": 1})).await;
    let old = t.computing(id, "total").await.expect("computed");
    t.set(id, json!({"b": 2})).await;
    let new = t.computing(id, "total").await.expect("computed");
    t.archive(id).await;
    t.unarchive(id).await;
    let told = t.events(before, 100).await.expect("events").events;
    let lines: Vec<_> = told.iter().map(|event| (event.kind.as_str(), event.subject.clone())).collect();
    let (id, old, new) = (id.to_string(), old.to_string(), new.to_string());
    let expected = [
        ("execution.started", &id),
        ("execution.changed", &id),
        ("run.created", &old),
        ("execution.changed", &id),
        ("run.created", &new),
        ("run.cancelled", &old),
        ("execution.archived", &id),
        ("execution.unarchived", &id),
    ];
    assert_eq!(lines, expected.map(|(kind, subject)| (kind, subject.clone())));
    let revisions: Vec<_> =
        told.iter().filter_map(|event| Some(event.detail.as_ref()?.value()["revision"].clone())).collect();
    assert_eq!(revisions, [json!(1), json!(2), json!(3), json!(3), json!(3)]);
}

pub(super) async fn analytics_tell_how_far_executions_came(t: &Fixture) {
    t.define(&sum()).await;
    assert_eq!(t.analytics("sum").await.expect("analytics"), crate::Analytics::default());
    t.define(&graph("other", json!(["a"]))).await;
    t.begin("other", json!({"a": 1})).await;
    t.begin("sum", json!({})).await;
    let given = [json!({"a": 1}), json!({"a": 1, "b": 1}), json!({"a": 1, "b": 1})];
    let mut ids = Vec::new();
    for values in given {
        ids.push(t.begin("sum", values).await);
    }
    t.advance(MOMENT).await;
    t.perform(ids[1], "total", json!(2)).await;
    t.unset(ids[2], &["a"]).await;
    t.archive(ids[0]).await;
    let analytics = t.analytics("sum").await.expect("analytics");
    assert_eq!((analytics.executions, analytics.archived), (4, 1));
    let reached: Vec<_> =
        analytics.nodes.iter().map(|(node, reach)| (node.as_str(), reach.reached, reach.ended)).collect();
    assert_eq!(reached, [("a", 3, 2), ("b", 2, 0), ("total", 1, 1)], "a value that was cleared was reached");
    assert_eq!(analytics.nodes["a"].average, Duration::ZERO);
    let stored = t.stored(ids[1]).await;
    let took = stored.execution.cell("total").expect("computed").set_at.since(stored.created_at);
    let average = analytics.nodes["total"].average;
    assert!(average.abs_diff(took) <= Duration::from_micros(1) && took >= MOMENT, "{average:?} {took:?}");
    assert_eq!(t.analytics("none").await.expect("analytics"), crate::Analytics::default());
}

pub(super) async fn analytics_average_over_those_that_came_so_far(t: &Fixture) {
    t.define(&sum()).await;
    let (one, two) = (t.begin("sum", json!({})).await, t.begin("sum", json!({})).await);
    t.begin("sum", json!({})).await;
    let mut total = Duration::ZERO;
    for (id, span) in [(one, MOMENT), (two, MOMENT * 2)] {
        t.advance(span).await;
        t.set(id, json!({"a": 1})).await;
        let stored = t.stored(id).await;
        total += stored.execution.cell("a").expect("set").set_at.since(stored.created_at);
        t.set(id, json!({"a": 2})).await;
    }
    let reach = t.analytics("sum").await.expect("analytics").nodes["a"].clone();
    assert_eq!((reach.reached, reach.ended), (2, 2));
    assert!(reach.average.abs_diff(total / 2) <= Duration::from_micros(1), "the first time counts");
}

/// Values that some database, driver or parser somewhere reinterprets.
fn hard() -> Vec<Value> {
    vec![
        json!("\u{0}"),
        json!({"a\u{0}b": "\u{0}", "\u{0}": [null]}),
        json!(1),
        json!(1.0),
        json!(-0.0),
        json!(1_u64 << 63),
        json!((1_u64 << 63) + 1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!((1_u64 << 53) + 1),
        json!(1e300),
        json!(0.1),
        json!("🦀 ẞ\u{301} \u{202e} \u{feff} \u{2028} İ"),
        json!("it's \"; DROP TABLE run; -- $1 ?1 :name \\ % _ \\u0000"),
        json!(" \r\n\t "),
        json!([[], {}, "", null, true, false]),
        json!({"z": 1, "a": {"z": [1.0, 1]}}),
        json!(null),
        json!(false),
        json!(""),
    ]
}

pub(super) async fn hard_values_survive_and_are_found_again(t: &Fixture) {
    t.define(&graph("g", json!(["v", compute("c", &["v"])]))).await;
    for value in hard() {
        let id = t.begin("g", json!({"v": value})).await;
        t.perform(id, "c", value.clone()).await;
        for node in ["v", "c"] {
            let told = format!("{node} {value}");
            let content = t.content(id, node).await.expect("set");
            assert_eq!(content.to_string(), value.to_string(), "{told}");
            let peek = t.value(id, node).await.expect("value").expect("it exists");
            assert_eq!(peek.cell.expect("set").value.to_string(), value.to_string(), "{told}");
            let entry = t.remembered(id).await.into_iter().find(|entry| entry.node == node).expect("remembered");
            assert_eq!(entry.value.expect("set").as_str(), value.to_string(), "{told}");
            let condition = Condition::new(node, Operator::Eq, value.clone()).expect("a condition");
            let filter = ExecutionFilter { conditions: vec![condition], limit: MANY, ..ExecutionFilter::default() };
            let found = t.executions(filter).await.expect("executions");
            let stored = found.iter().find(|stored| stored.id == id).unwrap_or_else(|| panic!("{told} is found"));
            assert_eq!(stored.execution.cell(node).expect("set").value.to_string(), value.to_string(), "{told}");
        }
        let input = t.look(t.computation(id, "c").await.run.expect("its run")).await.spec.input.value();
        assert_eq!(input["v"].to_string(), value.to_string());
    }
}

pub(super) async fn whole_numbers_that_differ_are_different_values(t: &Fixture) {
    let id = t.begin_new(&graph("g", json!(["v"])), json!({})).await;
    let numbers = [1_u64 << 53, (1 << 53) + 1, 1 << 63, (1 << 63) + 1, u64::MAX - 1, u64::MAX];
    for (place, number) in (1..).zip(numbers) {
        assert_eq!(t.set(id, json!({"v": number})).await, place, "{number}");
        assert_eq!(t.content(id, "v").await, Some(json!(number)));
    }
}

pub(super) async fn a_large_value_survives_and_is_found_again(t: &Fixture) {
    // No part of it repeats, so that no index can take it for shorter than it is.
    let mut state = 7_u64;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from_u32(0x21 + u32::try_from(state >> 40).unwrap_or(0) % 0x150).unwrap_or('x')
    };
    let text: String = (0..100_000).map(|_| letter()).collect();
    let part: String = text.chars().skip(50_000).take(40).collect();
    let id = t.begin_new(&graph("g", json!(["v"])), json!({"v": text})).await;
    t.begin("g", json!({"v": format!("{text}!")})).await;
    assert_eq!(t.content(id, "v").await, Some(json!(text)));
    for (operator, value, count) in
        [(Operator::Eq, json!(text), 1), (Operator::Contains, json!(part), 2), (Operator::Gt, json!(text), 1)]
    {
        let condition = Condition::new("v", operator, value).expect("a condition");
        let filter = ExecutionFilter { conditions: vec![condition], limit: MANY, ..ExecutionFilter::default() };
        assert_eq!(t.count(filter).await.expect("count"), count, "{operator:?}");
    }
}

pub(super) async fn names_of_nodes_are_never_code(t: &Fixture) {
    let names = ["it's", "a\"b", "$1", "?1", "a.b", "a-b", "100%_", "{a}", "NULL", "ü🦀"];
    let given: serde_json::Map<String, Value> = names.iter().map(|name| (name.to_string(), json!(name))).collect();
    let id = t.begin_new(&graph("g", json!(names)), Value::Object(given)).await;
    for name in names {
        assert_eq!(t.value(id, name).await.expect("value").expect("it exists").cell.expect("set").value, json!(name));
        let condition = Condition::new(name, Operator::Eq, json!(name)).expect("a condition");
        let filter = ExecutionFilter { conditions: vec![condition], limit: 10, ..ExecutionFilter::default() };
        assert_eq!(t.count(filter).await.expect("count"), 1, "{name}");
    }
}
