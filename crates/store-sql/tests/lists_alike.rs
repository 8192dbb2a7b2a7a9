//! Lists of ten thousand executions: SQLite, PostgreSQL and memory give the same answers, in the same order.

mod support;

use everbeat_model::ExecutionId;
use everbeat_model::graph::{Condition, Graph, Operator, Sort};
use everbeat_store::{ExecutionFilter, Memory, Start, Started, Store};
use serde_json::{Value, json};
use std::sync::Arc;
use support::steps::planner;
use support::{Database, sqlite_at, steps, wall_clock};

const EXECUTIONS: usize = 10_000;

/// Numbers, texts and others, with what makes databases differ: case, wildcards, escapes, 1 and 1.0, large
/// integers, arrays and objects.
fn values(n: usize) -> Value {
    let mixed = match n % 9 {
        0 => json!(n % 50),
        1 => json!((n % 50) as f64 + 0.5),
        2 => json!(format!("Text {}%_\\\" Ü", n % 40)),
        3 => json!(n.is_multiple_of(2)),
        4 => Value::Null,
        5 => json!([n % 7, "x", 1.0]),
        6 => json!({ "k": n % 5, "list": [1] }),
        7 => json!(9_007_199_254_740_992_u64 + (n % 3) as u64),
        _ => return json!({ "number": n % 100 }),
    };
    json!({ "number": n % 100, "mixed": mixed })
}

async fn fill(store: &dyn Store, starts: &[Start]) {
    let nodes = json!([{ "name": "number", "kind": "input" }, { "name": "mixed", "kind": "input" }]);
    let graph = Graph::parse(&json!({ "name": "g", "nodes": nodes })).expect("a graph");
    store.apply(Arc::new(graph), None).await.expect("apply");
    for starts in starts.chunks(500) {
        let started = store.start(starts.to_vec(), planner()).await.expect("start");
        assert!(started.iter().all(|started| matches!(started, Started::Created { .. })));
    }
}

fn filters() -> Vec<ExecutionFilter> {
    let operands = [
        json!(7),
        json!(7.0),
        json!("Text 3%_\\\" Ü"),
        json!("ü"),
        json!(true),
        Value::Null,
        json!([3, "x", 1]),
        json!({ "k": 2, "list": [1.0] }),
        json!(9_007_199_254_740_993_u64),
        json!([7, "Text 3%_\\\" Ü", 9_007_199_254_740_992_u64, [1, "x", 1.0]]),
        json!("%"),
        json!(1),
    ];
    let mut conditions: Vec<Condition> = Vec::new();
    for operator in Operator::ALL {
        conditions.extend(operands.iter().filter_map(|value| Condition::new("mixed", operator, value.clone()).ok()));
    }
    let sorts = [None, Some("mixed"), Some("-mixed"), Some("-number"), Some("revision"), Some("-id")];
    let filter = |conditions: Vec<Condition>, sort: Option<&str>| ExecutionFilter {
        graph: Some("g".to_string()),
        conditions,
        sort: sort.map(|sort| Sort::parse(sort).expect("a sort")),
        offset: 13,
        limit: 200,
        ..ExecutionFilter::default()
    };
    let number = Condition::parse("number.gte:10").expect("a condition");
    let alone = conditions
        .iter()
        .enumerate()
        .map(|(n, condition)| filter(vec![condition.clone(), number.clone()], sorts[n % sorts.len()]));
    alone.chain(sorts.map(|sort| filter(Vec::new(), sort))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operator_and_order_answers_alike_over_ten_thousand_executions() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let database = Database::create().await;
    let stores: [(&str, Arc<dyn Store>); 3] = [
        ("memory", Arc::new(Memory::new(Arc::new(wall_clock)))),
        ("sqlite", Arc::new(sqlite_at(&folder.path().join("store.db")).expect("open"))),
        ("postgres", Arc::new(database.open().await)),
    ];
    let starts: Vec<Start> = (0..EXECUTIONS)
        .map(|n| Start {
            id: ExecutionId(steps::next_id()),
            graph: "g".to_string(),
            version: None,
            values: values(n).as_object().expect("an object").clone().into_iter().collect(),
            metadata: None,
            idempotency: None,
        })
        .collect();
    for (_, store) in &stores {
        fill(&**store, &starts).await;
    }
    let filters = filters();
    assert!(filters.len() > 80, "only {} filters", filters.len());
    let mut found = 0;
    for filter in filters {
        let mut answers = Vec::new();
        for (name, store) in &stores {
            let listed = store.executions(filter.clone()).await.expect("executions");
            let ids: Vec<ExecutionId> = listed.iter().map(|stored| stored.id).collect();
            answers.push((*name, ids, store.count(filter.clone()).await.expect("count")));
        }
        let (_, ids, count) = &answers[0];
        found += ids.len();
        for (name, other, others) in &answers[1..] {
            assert_eq!(count, others, "{name}: {filter:?}");
            assert_eq!(ids, other, "{name}: {filter:?}");
        }
    }
    assert!(found > 2000, "the filters find too little: {found}");
}
