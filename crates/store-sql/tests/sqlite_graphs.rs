//! Executions on SQLite: what is found how, what cannot be stored, and how fast they go on.

mod support;

use everbeat_model::graph::{
    Command, Condition, Defaults, Direction, Field, Graph, Plan, Snapshot, Sort, compare, plan,
};
use everbeat_model::{Ending, ExecutionId, Json, Policy, RunId};
use everbeat_store::{Advance, Advanced, Audits, ExecutionFilter, Executions, Graphs, Planner, Runs, Start, Started};
use everbeat_store_sql::Sqlite;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use support::{sqlite_at, steps};

struct Plans(Defaults);

impl Planner for Plans {
    fn plan(&self, snapshot: Snapshot, commands: Vec<Command>) -> Plan {
        plan(snapshot, commands, &self.0, &mut || RunId(steps::next_id()))
    }
}

fn planner() -> Arc<dyn Planner> {
    Arc::new(Plans(Defaults { policy: Arc::new(Policy::BASELINE), queue: "default".to_string(), hole: None }))
}

fn start(graph: &str, values: Value) -> Start {
    Start {
        id: ExecutionId(steps::next_id()),
        graph: graph.to_string(),
        version: None,
        values: values.as_object().expect("an object").clone().into_iter().collect(),
        metadata: None,
        idempotency: None,
    }
}

async fn apply(store: &Sqlite, name: &str, nodes: Value) {
    let graph = Graph::parse(&json!({ "name": name, "nodes": nodes })).expect("a graph");
    store.apply(Arc::new(graph), None).await.expect("apply");
}

async fn begin(store: &Sqlite, starts: Vec<Start>) -> Vec<ExecutionId> {
    let ids = starts.iter().map(|start| start.id).collect();
    let started = store.start(starts, planner()).await.expect("start");
    assert!(started.iter().all(|started| matches!(started, Started::Created { .. })), "{started:?}");
    ids
}

fn of(graph: &str, conditions: &[&str]) -> ExecutionFilter {
    ExecutionFilter {
        graph: Some(graph.to_string()),
        conditions: conditions.iter().map(|text| Condition::parse(text).expect("a condition")).collect(),
        limit: 100,
        ..ExecutionFilter::default()
    }
}

#[tokio::test]
async fn a_filtered_list_of_one_graph_among_10000_executions_goes_through_the_indexes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = sqlite_at(&folder.path().join("store.db")).expect("open");
    let inputs = json!([{ "name": "age", "kind": "input" }, { "name": "name", "kind": "input" }]);
    apply(&store, "small", inputs.clone()).await;
    apply(&store, "large", inputs).await;
    for hundred in 0..100 {
        let of_hundred = |number: i32| {
            let graph = if number == 7 { "small" } else { "large" };
            start(graph, json!({ "age": number, "name": format!("name {hundred}") }))
        };
        begin(&store, (0..100).map(of_hundred).collect()).await;
    }
    let conditions =
        ["age.gte:5", "name.icontains:\"NAME 4\"", "age.in:[1,7]", "age.neq:8", "name.is_set", "x.is_not_set"];
    let mut filter = of("small", &conditions);
    for sort in [None, Some("-age"), Some("created_at"), Some("-id")] {
        filter.sort = sort.map(|sort| Sort::parse(sort).expect("a sort"));
        let steps = store.list_plan(filter.clone()).await.expect("explain");
        let all = steps.join("\n");
        assert!(all.contains("SEARCH e USING INDEX execution_graph (graph=?"), "{all}");
        assert!(all.contains("SEARCH v USING PRIMARY KEY (execution_id=? AND node=?"), "{all}");
        assert!(!steps.iter().any(|step| step.starts_with("SCAN")), "{all}");
        assert_eq!(all.contains("TEMP B-TREE"), !matches!(sort, None | Some("-id")), "{sort:?}: {all}");
        assert_eq!(store.executions(filter.clone()).await.expect("list").len(), 11);
    }
    assert_eq!(store.count(filter).await.expect("count"), 11);
}

/// Values that are alike in one way and different in another.
fn curious() -> Vec<Value> {
    let texts =
        ["", "a", "A", "ab", "ä", "Äb", "İ", "1", "null", "%", "_", "'", "\"", "\\", "a\0b", "a\u{fffd}b", "😀"];
    let mut values: Vec<Value> = texts.iter().map(|text| json!(text)).collect();
    let big = 9_007_199_254_740_993_u64;
    values.extend([json!(null), json!(true), json!(false), json!(0), json!(-0.0), json!(1), json!(1.0), json!(-1)]);
    values.extend([
        json!(1.5),
        json!(1e300),
        json!(-1e-300),
        json!(0.1),
        json!(big),
        json!(big - 1),
        json!(big as f64),
    ]);
    values.extend([json!(u64::MAX), json!(u64::MAX as f64), json!(i64::MIN), json!(i64::MIN as f64), json!(1e21)]);
    values.extend([json!([]), json!([1]), json!([1.0]), json!([[1]]), json!({}), json!({"a": 1}), json!({"a": 1.0})]);
    values.extend([json!([null, "a"]), json!([{"a": [big]}]), json!([{"a": [big - 1]}]), json!({"b": 2, "a": 1})]);
    values
}

#[tokio::test]
async fn every_condition_finds_what_the_model_finds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = sqlite_at(&folder.path().join("store.db")).expect("open");
    apply(&store, "one", json!([{ "name": "n", "kind": "input" }, { "name": "o", "kind": "input" }])).await;
    let values: Vec<Option<Value>> = curious().into_iter().map(Some).chain([None]).collect();
    let object = |value: &Option<Value>| value.as_ref().map_or(json!({}), |value| json!({ "n": value }));
    let ids = begin(&store, values.iter().map(|value| start("one", object(value))).collect()).await;
    let cleared = begin(&store, vec![start("one", json!({ "n": 1 }))]).await[0];
    let clear = Advance { execution: cleared, commands: vec![Command::Unset(["n".to_string()].into())] };
    let answers = store.advance(vec![clear], planner()).await.expect("advance");
    assert!(matches!(&answers[..], [Advanced::Done(done)] if done[0].is_ok()), "{answers:?}");
    let (ids, values) = ([ids, vec![cleared]].concat(), [values, vec![None]].concat());
    let list = Value::Array(curious().into_iter().step_by(2).collect());
    let mut asked = 0;
    for operator in everbeat_model::graph::Operator::ALL {
        for value in curious().into_iter().chain([list.clone()]) {
            let condition = Condition { node: "n".to_string(), operator, value };
            let filter = ExecutionFilter { conditions: vec![condition.clone()], limit: 1000, ..Default::default() };
            let found = store.executions(filter.clone()).await.expect("list");
            let held = |place: &usize| condition.holds(values[*place].as_ref());
            let right: Vec<usize> = (0..ids.len()).rev().filter(held).collect();
            let found: Vec<usize> =
                found.iter().filter_map(|found| ids.iter().position(|id| *id == found.id)).collect();
            assert_eq!(found, right, "{}", condition.to_text());
            assert_eq!(store.count(filter).await.expect("count"), right.len() as u64, "{}", condition.to_text());
            asked += 1;
        }
    }
    assert!(asked > 500, "{asked}");
    for direction in [Direction::Ascending, Direction::Descending] {
        let sort = Some(Sort::Node("n".to_string(), direction));
        let filter = ExecutionFilter { sort, limit: 1000, ..Default::default() };
        let found: Vec<ExecutionId> =
            store.executions(filter).await.expect("list").iter().map(|found| found.id).collect();
        let mut right: Vec<usize> = (0..ids.len()).collect();
        right.sort_by(|a, b| {
            let ids = if direction == Direction::Ascending { a.cmp(b) } else { b.cmp(a) };
            compare(values[*a].as_ref(), values[*b].as_ref(), direction).then(ids)
        });
        assert_eq!(found, right.iter().map(|place| ids[*place]).collect::<Vec<_>>(), "{direction:?}");
    }
}

#[tokio::test]
async fn many_conditions_and_long_lists_are_answered() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = sqlite_at(&folder.path().join("store.db")).expect("open");
    apply(&store, "one", json!([{ "name": "n", "kind": "input" }])).await;
    begin(&store, (0..10).map(|number| start("one", json!({ "n": number }))).collect()).await;
    let long = format!("n.in:{}", json!((5..20_000).collect::<Vec<i32>>()));
    let mut conditions = vec![long.as_str()];
    conditions.extend(["n.lte:8"; 100]);
    conditions.extend(["n.neq:6"; 100]);
    let mut filter = of("one", &conditions);
    filter.sort = Some(Sort::Field(Field::Id, Direction::Ascending));
    assert_eq!(store.executions(filter).await.expect("list").len(), 3);
}

#[tokio::test]
async fn what_cannot_be_stored_harms_no_other_execution() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("store.db");
    let store = sqlite_at(&path).expect("open");
    apply(
        &store,
        "one",
        json!([
            { "name": "n", "kind": "input" },
            { "name": "work", "kind": "compute", "gate": ["n"], "task": "work" },
        ]),
    )
    .await;
    let file = rusqlite::Connection::open(&path).expect("open the file");
    let bound = "create trigger bound before insert on value when length(new.value) >= 100
                 begin select raise(abort, 'too long'); end";
    file.execute_batch(bound).expect("a limit that is cheap to reach");
    let long = json!({ "n": "x".repeat(100) });
    let starts = vec![start("one", json!({ "n": 1 })), start("one", long.clone()), start("one", json!({ "n": 2 }))];
    let ids: Vec<ExecutionId> = starts.iter().map(|start| start.id).collect();
    let started = store.start(starts, planner()).await.expect("start");
    let refused =
        |started: &Started| matches!(started, Started::Refused(refusal) if format!("{refusal:?}").contains("too long"));
    assert_eq!(started.iter().map(refused).collect::<Vec<_>>(), [false, true, false], "{started:?}");
    assert!(store.execution(ids[1]).await.expect("read").is_none(), "nothing of it is left");

    let set = |values: &Value| Command::Set {
        values: values.as_object().expect("an object").clone().into_iter().collect(),
        metadata: None,
    };
    let advances = [(ids[0], long), (ids[2], json!({ "n": 3 }))];
    let advances = advances.iter().map(|(id, values)| Advance { execution: *id, commands: vec![set(values)] });
    let answers = store.advance(advances.collect(), planner()).await.expect("advance");
    let done: Vec<bool> =
        answers.iter().map(|answer| matches!(answer, Advanced::Done(answers) if answers[0].is_ok())).collect();
    assert_eq!(done, [false, true], "{answers:?}");

    let replica = steps::join(&store).await;
    let claimed = store.claim(steps::claim(replica, 10)).await.expect("claim");
    let settlements = claimed.iter().enumerate().map(|(place, claimed)| {
        let result = if place == 0 { json!("x".repeat(100)) } else { json!("short") };
        everbeat_model::Settlement { ending: Ending::succeeded(Json::of(&result)), ..steps::success(claimed) }
    });
    store.settle(settlements.collect()).await.expect("settle");
    let looked = store.advance_due(100, planner()).await.expect("look");
    assert_eq!(looked.executions.len(), 2);
    let wait = looked.next_in.expect("it is looked at again");
    assert!(wait > Duration::from_secs(30), "{wait:?}");
    let mut done = 0;
    for id in [ids[0], ids[2]] {
        done += usize::from(store.value(id, "work").await.expect("read").is_some_and(|peek| peek.cell.is_some()));
    }
    assert_eq!(done, 1, "the other one went on");
    assert_eq!(store.audit().await.expect("audit").violations, []);
}

const EXECUTIONS: usize = 1000;
const STEPS: usize = 10;
const BATCH: usize = 100;

/// Prints how fast executions go on; a figure for whoever changes how.
#[tokio::test]
#[ignore = "a measurement"]
#[allow(clippy::disallowed_methods, reason = "a measurement takes real time")]
async fn a_thousand_chains_of_ten_are_carried_to_their_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = sqlite_at(&folder.path().join("store.db")).expect("open");
    let mut nodes = vec![json!({ "name": "n00", "kind": "input" })];
    nodes.extend((1..=STEPS).map(|step| {
        let (name, before) = (format!("n{step:02}"), format!("n{:02}", step - 1));
        json!({ "name": name, "kind": "compute", "gate": [before], "task": "work" })
    }));
    apply(&store, "chain", Value::Array(nodes)).await;
    let replica = steps::join(&store).await;
    let mut spent: BTreeMap<&str, Duration> = BTreeMap::new();
    let now = std::time::Instant::now;
    let all = now();
    for _ in 0..EXECUTIONS / BATCH {
        let started = now();
        begin(&store, (0..BATCH).map(|number| start("chain", json!({ "n00": number }))).collect()).await;
        *spent.entry("start").or_default() += started.elapsed();
    }
    let mut looks = 0;
    while looks < EXECUTIONS * STEPS {
        let started = now();
        let claimed = store.claim(steps::claim(replica, BATCH)).await.expect("claim");
        *spent.entry("claim").or_default() += started.elapsed();
        let started = now();
        store.settle(claimed.iter().map(steps::success).collect()).await.expect("settle");
        *spent.entry("settle").or_default() += started.elapsed();
        let started = now();
        looks += store.advance_due(BATCH, planner()).await.expect("look").executions.len();
        *spent.entry("advance").or_default() += started.elapsed();
    }
    let (all, steps) = (all.elapsed(), (EXECUTIONS * STEPS) as f64);
    println!("{EXECUTIONS} executions of {STEPS} steps in {all:?}: {:.0} steps per second", steps / all.as_secs_f64());
    spent.iter().for_each(|(what, span)| println!("{what}: {span:?}, {:.0} us each", span.as_secs_f64() * 1e6 / steps));
    let reached = store.analytics("chain").await.expect("analytics").nodes[&format!("n{STEPS:02}")].reached;
    assert_eq!(reached, EXECUTIONS as u64);
}
