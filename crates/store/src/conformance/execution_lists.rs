//! Lists of executions against the pure specification: what a store answers is what `Condition::holds` and
//! `compare` say of what was put in.

use super::fixture::{Fixture, MOMENT};
use super::steps::{MANY, compute, graph, sum};
use crate::{ExecutionFilter, Start, Started};
use everbeat_model::ExecutionId;
use everbeat_model::graph::{Condition, Direction, Field, Operator, Sort, compare};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// An execution as it was put in.
struct Item {
    id: ExecutionId,
    values: BTreeMap<String, Value>,
}

impl Item {
    fn meets(&self, conditions: &[Condition]) -> bool {
        conditions.iter().all(|condition| condition.holds(self.values.get(&condition.node)))
    }
}

/// Values of every kind, and those that are easily taken for one another.
fn assortment() -> Vec<Value> {
    vec![
        json!(0),
        json!(-0.0),
        json!(1),
        json!(1.0),
        json!(-1),
        json!(-1.5),
        json!(0.1),
        json!(10),
        json!(9),
        json!(1e300),
        json!(-1e300),
        json!(1e-7),
        json!(1_u64 << 53),
        json!((1_u64 << 53) + 1),
        json!(i64::MAX),
        json!(1_u64 << 63),
        json!((1_u64 << 63) + 1),
        json!(9_223_372_036_854_775_808.0),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("1"),
        json!("10"),
        json!("9"),
        json!("a"),
        json!("A"),
        json!("ab"),
        json!("aB%_c"),
        json!("100%"),
        json!("100_"),
        json!("it's \"quoted\""),
        json!("back\\slash"),
        json!("two\nlines"),
        json!("nul\u{0}nul"),
        json!("nul\u{fffd}nul"),
        json!("Ü"),
        json!("ü"),
        json!("İstanbul"),
        json!("istanbul"),
        json!("ISTANBUL ΟΔΟΣ"),
        json!("straße"),
        json!("STRASSE ẞ"),
        json!("🦀"),
        json!("\u{ffff}"),
        json!("null"),
        json!("true"),
        json!(true),
        json!(false),
        json!(null),
        json!([]),
        json!([1]),
        json!([1.0, "a", null]),
        json!(["A", true, [1], {"a": 1}]),
        json!(["nul\u{0}nul", u64::MAX]),
        json!([(1_u64 << 53) + 1]),
        json!({}),
        json!({"a": 1}),
        json!({"a": 1.0, "b": [null]}),
        json!({"b": [null], "a": 1}),
        json!({"nul\u{0}": "\u{0}"}),
    ]
}

/// One execution for each of them and some without a value, newest last.
async fn varied(t: &Fixture) -> Vec<Item> {
    t.define(&graph("list", json!(["v", "w"]))).await;
    let mut items = Vec::new();
    let mut starts: Vec<Start> = Vec::new();
    let mut all: Vec<Option<Value>> = assortment().into_iter().map(Some).collect();
    // Not in the order of anything.
    for place in 0..all.len() {
        let other = (place * 37 + 11) % all.len();
        all.swap(place, other);
    }
    all.extend([None, None, None]);
    for (place, value) in all.into_iter().enumerate() {
        let mut given = json!({});
        if let Some(value) = value {
            given["v"] = value;
        }
        if place % 4 != 0 {
            given["w"] = json!(["red", "green", "Blue"][place % 3]);
        }
        let start = t.new_execution("list", given);
        items.push(Item { id: start.id, values: start.values.clone() });
        starts.push(start);
    }
    while !starts.is_empty() {
        let batch = starts.drain(..starts.len().min(20)).collect();
        let started = t.start(batch, t.planner()).await.expect("start");
        assert!(started.iter().all(|started| matches!(started, Started::Created { .. })));
    }
    items
}

fn everything() -> ExecutionFilter {
    ExecutionFilter { limit: MANY, ..ExecutionFilter::default() }
}

async fn list(t: &Fixture, filter: ExecutionFilter) -> Vec<ExecutionId> {
    t.executions(filter).await.expect("executions").into_iter().map(|stored| stored.id).collect()
}

/// The list and the count of what meets the conditions.
async fn check(t: &Fixture, items: &[Item], conditions: Vec<Condition>) -> usize {
    let expected: Vec<ExecutionId> =
        items.iter().rev().filter(|item| item.meets(&conditions)).map(|item| item.id).collect();
    let told: Vec<String> = conditions.iter().map(Condition::to_text).collect();
    let filter = ExecutionFilter { conditions, ..everything() };
    let shown = |ids: &[ExecutionId]| -> Vec<String> {
        let item = |id: &ExecutionId| items.iter().find(|item| item.id == *id).map(|item| &item.values);
        ids.iter().map(|id| format!("{:?}", item(id))).collect()
    };
    let found = list(t, filter.clone()).await;
    assert_eq!(shown(&found), shown(&expected), "{told:?}");
    assert_eq!(found, expected, "{told:?}");
    assert_eq!(t.count(filter).await.expect("count"), expected.len() as u64, "{told:?}");
    expected.len()
}

/// Every value as the one that is compared with, as far as the operator can use it.
async fn check_all(t: &Fixture, operators: &[Operator]) {
    let items = varied(t).await;
    let mut found = 0;
    for operator in operators {
        for value in assortment() {
            if let Ok(condition) = Condition::new("v", *operator, value) {
                found += check(t, &items, vec![condition]).await;
            }
        }
    }
    assert!(found > 0, "some were found");
}

pub(super) async fn eq_finds_what_is_equal(t: &Fixture) {
    check_all(t, &[Operator::Eq]).await;
}

pub(super) async fn neq_finds_what_is_set_and_different(t: &Fixture) {
    check_all(t, &[Operator::Neq]).await;
}

pub(super) async fn lt_and_lte_find_what_is_before(t: &Fixture) {
    check_all(t, &[Operator::Lt, Operator::Lte]).await;
}

pub(super) async fn gt_and_gte_find_what_is_after(t: &Fixture) {
    check_all(t, &[Operator::Gt, Operator::Gte]).await;
}

pub(super) async fn list_contains_finds_lists_with_the_element(t: &Fixture) {
    check_all(t, &[Operator::ListContains]).await;
}

pub(super) async fn is_set_and_is_not_set_find_what_has_a_value(t: &Fixture) {
    let items = varied(t).await;
    for (node, operator) in [("v", Operator::IsSet), ("v", Operator::IsNotSet), ("w", Operator::IsNotSet)] {
        let condition = Condition::new(node, operator, Value::Null).expect("a condition");
        assert!(check(t, &items, vec![condition]).await > 0);
    }
    let unknown = |operator| vec![Condition::new("no-node", operator, Value::Null).expect("a condition")];
    assert_eq!(check(t, &items, unknown(Operator::IsNotSet)).await, items.len());
    assert_eq!(check(t, &items, unknown(Operator::IsSet)).await, 0);
}

pub(super) async fn in_and_not_in_find_by_any_of_a_list(t: &Fixture) {
    let items = varied(t).await;
    let lists = [
        json!([]),
        json!([1]),
        json!([null]),
        json!([1.0, "1", "a", true, (1_u64 << 53) + 1, u64::MAX]),
        json!([[1], {"b": [null], "a": 1}, "nul\u{0}nul"]),
        json!([false, null, "", "Ü", "it's \"quoted\"", 9_223_372_036_854_775_808.0]),
        Value::Array(assortment()),
        Value::Array((0..500).map(Value::from).collect()),
    ];
    for given in lists {
        for operator in [Operator::In, Operator::NotIn] {
            let condition = Condition::new("v", operator, given.clone()).expect("a condition");
            check(t, &items, vec![condition]).await;
        }
    }
}

/// Parts of texts, and what a pattern would make of them.
const PARTS: [&str; 30] = [
    "", "a", "A", "b", "%", "_", "%_", "\\", "'", "\"", "\n", "\u{0}", "\u{fffd}", "l\u{0}n", "ü", "Ü", "İ", "i", "I",
    "ı", "i\u{307}", "ß", "ẞ", "SS", "Σ", "σ", "ς", "🦀", "stan", ".*",
];

pub(super) async fn contains_takes_the_part_as_it_is(t: &Fixture) {
    let items = varied(t).await;
    for part in PARTS {
        let condition = Condition::new("v", Operator::Contains, json!(part)).expect("a condition");
        check(t, &items, vec![condition]).await;
    }
}

pub(super) async fn icontains_knows_the_case_of_all_letters(t: &Fixture) {
    let items = varied(t).await;
    for part in PARTS {
        let condition = Condition::new("v", Operator::Icontains, json!(part)).expect("a condition");
        check(t, &items, vec![condition]).await;
    }
}

pub(super) async fn conditions_narrow_together(t: &Fixture) {
    let items = varied(t).await;
    let sets = [
        vec!["v.gte:0", "v.lt:10"],
        vec!["v.is_set", "w.is_not_set"],
        vec!["w.eq:\"red\"", "v.neq:1"],
        vec!["w.in:[\"red\",\"Blue\"]", "v.icontains:\"A\"", "v.not_in:[\"ab\"]"],
        vec!["w.icontains:\"bL\"", "v.gt:-5", "v.lte:9007199254740993", "v.is_set"],
        vec!["v.eq:1", "v.eq:2"],
        vec!["v.is_set", "v.is_not_set"],
    ];
    for texts in sets {
        let conditions = texts.iter().map(|text| Condition::parse(text).expect("a condition")).collect();
        check(t, &items, conditions).await;
    }
    let many: Vec<Condition> =
        (0..40).map(|n| Condition::new("v", Operator::Neq, json!(n)).expect("a condition")).collect();
    check(t, &items, many).await;
}

fn directed(order: Ordering, direction: Direction) -> Ordering {
    match direction {
        Direction::Ascending => order,
        Direction::Descending => order.reverse(),
    }
}

pub(super) async fn a_list_is_sorted_by_the_value_of_a_node(t: &Fixture) {
    let mut items = varied(t).await;
    for (node, direction) in ["v", "w", "no-node"]
        .into_iter()
        .flat_map(|node| [Direction::Ascending, Direction::Descending].map(|direction| (node, direction)))
    {
        items.sort_by(|a, b| {
            let order = compare(a.values.get(node), b.values.get(node), direction);
            order.then_with(|| directed(a.id.cmp(&b.id), direction))
        });
        let sort = Some(Sort::Node(node.to_string(), direction));
        let found = t.executions(ExecutionFilter { sort: sort.clone(), ..everything() }).await.expect("executions");
        let shown: Vec<_> =
            found.iter().map(|stored| stored.execution.cell(node).map(|cell| cell.value.to_string())).collect();
        let expected: Vec<_> = items.iter().map(|item| item.values.get(node).map(Value::to_string)).collect();
        assert_eq!(shown, expected, "{node} {direction:?}");
        let expected: Vec<ExecutionId> = items.iter().map(|item| item.id).collect();
        assert_eq!(found.iter().map(|stored| stored.id).collect::<Vec<_>>(), expected, "{node} {direction:?}");
        check_pages(t, ExecutionFilter { sort, ..everything() }, &expected).await;
    }
    let conditions = vec![Condition::parse("w.eq:\"red\"").expect("a condition")];
    items.sort_by(|a, b| compare(a.values.get("v"), b.values.get("v"), Direction::Descending).then(b.id.cmp(&a.id)));
    let expected: Vec<ExecutionId> = items.iter().filter(|item| item.meets(&conditions)).map(|item| item.id).collect();
    let sort = Some(Sort::Node("v".to_string(), Direction::Descending));
    check_pages(t, ExecutionFilter { sort, conditions, ..everything() }, &expected).await;
}

/// Pages by offset are parts of the whole.
async fn check_pages(t: &Fixture, filter: ExecutionFilter, expected: &[ExecutionId]) {
    for (offset, limit) in [(0, MANY), (0, 1), (3, 7), (expected.len().saturating_sub(2), 10), (MANY, 10), (5, 0)] {
        let page = ExecutionFilter { offset, limit, ..filter.clone() };
        let part: Vec<ExecutionId> = expected.iter().skip(offset).take(limit).copied().collect();
        assert_eq!(list(t, page.clone()).await, part, "{offset} {limit} {:?}", filter.sort);
        assert_eq!(t.count(page).await.expect("count"), expected.len() as u64, "a count is of all pages");
    }
}

pub(super) async fn a_list_is_sorted_by_each_field(t: &Fixture) {
    let items = varied(t).await;
    for (place, item) in items.iter().enumerate().filter(|(place, _)| place % 3 == 0) {
        for n in 0..=place % 4 {
            t.set(items[(place * 7) % items.len()].id, json!({"v": format!("{place} {n} {}", item.id)})).await;
        }
    }
    let all = t.executions(everything()).await.expect("executions");
    for direction in [Direction::Ascending, Direction::Descending] {
        for field in Field::ALL {
            let mut sorted: Vec<_> = all.iter().collect();
            sorted.sort_by(|a, b| {
                let order = match field {
                    Field::CreatedAt => a.created_at.cmp(&b.created_at),
                    Field::UpdatedAt => a.updated_at.cmp(&b.updated_at),
                    Field::Revision => a.execution.revision.cmp(&b.execution.revision),
                    Field::Id => Ordering::Equal,
                };
                directed(order.then(a.id.cmp(&b.id)), direction)
            });
            let expected: Vec<ExecutionId> = sorted.iter().map(|stored| stored.id).collect();
            let sort = Some(Sort::Field(field, direction));
            check_pages(t, ExecutionFilter { sort, ..everything() }, &expected).await;
        }
    }
}

pub(super) async fn a_plain_list_is_newest_first_and_pages_by_id(t: &Fixture) {
    let items = varied(t).await;
    let expected: Vec<ExecutionId> = items.iter().rev().map(|item| item.id).collect();
    check_pages(t, everything(), &expected).await;
    let conditions = vec![Condition::parse("v.is_set").expect("a condition")];
    let set: Vec<ExecutionId> = items.iter().rev().filter(|item| item.meets(&conditions)).map(|item| item.id).collect();
    let mut read: Vec<ExecutionId> = Vec::new();
    loop {
        let before = read.last().copied();
        let filter = ExecutionFilter { conditions: conditions.clone(), before, limit: 7, ..everything() };
        let left = set.iter().filter(|id| before.is_none_or(|before| **id < before)).count();
        assert_eq!(t.count(filter.clone()).await.expect("count"), left as u64);
        let page = list(t, filter).await;
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 7);
        read.extend(page);
    }
    assert_eq!(read, set);
}

pub(super) async fn a_list_shows_executions_as_they_are(t: &Fixture) {
    t.define(&graph("g", json!(["a", compute("c", &["a"]), compute("d", &["c"])]))).await;
    t.define(&sum()).await;
    let (one, two) = (t.begin("g", json!({"a": 1})).await, t.begin("g", json!({"a": [1.0, "\u{0}"]})).await);
    t.begin("sum", json!({"a": 1})).await;
    t.perform(one, "c", json!("c")).await;
    t.break_down(two, "c").await;
    t.lease_of(one, "d").await;
    let filter = ExecutionFilter { graph: Some("g".to_string()), ..everything() };
    let listed = t.executions(filter.clone()).await.expect("executions");
    assert_eq!(t.count(filter).await.expect("count"), 2);
    for (listed, id) in listed.iter().zip([two, one]) {
        let stored = t.stored(id).await;
        assert_eq!((listed.id, &listed.graph, &listed.execution), (id, &stored.graph, &stored.execution));
        assert_eq!((listed.stamp, &listed.attempts), (stored.stamp, &stored.attempts));
        assert_eq!((listed.created_at, listed.updated_at), (stored.created_at, stored.updated_at));
    }
    assert_eq!(listed[1].attempts, BTreeMap::from([("d".to_string(), 1)]));
    let none = ExecutionFilter { graph: Some("h".to_string()), ..everything() };
    assert_eq!(t.count(none.clone()).await.expect("count"), 0);
    assert_eq!(list(t, none).await, []);
}

pub(super) async fn an_archived_execution_is_hidden_unless_asked_for(t: &Fixture) {
    t.define(&sum()).await;
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(t.begin("sum", json!({"a": n})).await);
        t.advance(MOMENT / 10).await;
    }
    t.archive(ids[1]).await;
    assert!(t.stored(ids[1]).await.execution.archived_at.is_some());
    let with_archived = ExecutionFilter { include_archived: true, ..everything() };
    assert_eq!(list(t, everything()).await, [ids[3], ids[2], ids[0]]);
    assert_eq!(list(t, with_archived.clone()).await, [ids[3], ids[2], ids[1], ids[0]]);
    assert_eq!(t.count(everything()).await.expect("count"), 3);
    assert_eq!(t.count(with_archived.clone()).await.expect("count"), 4);
    let conditions = vec![Condition::parse("a.lte:1").expect("a condition")];
    assert_eq!(list(t, ExecutionFilter { conditions: conditions.clone(), ..everything() }).await, [ids[0]]);
    assert_eq!(list(t, ExecutionFilter { conditions, ..with_archived }).await, [ids[1], ids[0]]);
    t.unarchive(ids[1]).await;
    assert_eq!(list(t, everything()).await, [ids[3], ids[2], ids[1], ids[0]]);
}

pub(super) async fn a_changed_value_is_found_as_it_is_now(t: &Fixture) {
    let id = t.begin_new(&sum(), json!({"a": "old", "b": 1})).await;
    let count = async |text: &str| {
        let conditions = vec![Condition::parse(text).expect("a condition")];
        t.count(ExecutionFilter { conditions, ..everything() }).await.expect("count")
    };
    assert_eq!(count("a.eq:\"old\"").await, 1);
    t.set(id, json!({"a": 7})).await;
    assert_eq!((count("a.eq:\"old\"").await, count("a.contains:\"o\"").await, count("a.gt:6").await), (0, 0, 1));
    t.set(id, json!({"a": [7]})).await;
    assert_eq!((count("a.eq:7").await, count("a.gt:6").await, count("a.list_contains:7").await), (0, 0, 1));
    t.unset(id, &["a"]).await;
    assert_eq!((count("a.is_set").await, count("a.is_not_set").await, count("a.neq:1").await), (0, 1, 0));
    t.set(id, json!({"a": null})).await;
    assert_eq!((count("a.is_set").await, count("a.eq:null").await), (1, 1));
    t.perform(id, "total", json!("done")).await;
    assert_eq!((count("total.eq:\"done\"").await, count("total.icontains:\"DO\"").await), (1, 1));
}
