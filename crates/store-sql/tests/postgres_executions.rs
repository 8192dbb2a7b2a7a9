//! Executions on a server with several sessions: each race is held still by a session of the test's own.

mod support;

use everbeat_model::graph::{Command, Condition, Graph, Refusal, Sort};
use everbeat_model::run::Claimed;
use everbeat_model::{Ending, ExecutionId, Json, ReplicaId, Settlement};
use everbeat_store::{
    Advance, Advanced, Audits, Claim, ExecutionFilter, Executions, Graphs, Looked, Runs, Start, Started,
};
use everbeat_store_sql::{Postgres, PostgresOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::steps::planner;
use support::{Database, steps, until_blocked};

async fn open(database: &Database) -> Arc<Postgres> {
    let options = PostgresOptions { application_name: database.schema.clone(), ..database.options() };
    Arc::new(Postgres::open(&database.url, options).await.expect("open"))
}

fn compute(name: &str, gate: &str) -> Value {
    json!({ "name": name, "kind": "compute", "gate": [gate], "task": "work" })
}

async fn apply(store: &Postgres, definition: Value) {
    let graph = Graph::parse(&definition).expect("a valid definition");
    assert!(Graphs::apply(store, Arc::new(graph), None).await.expect("apply").new);
}

/// `x` and `y` are computed from `a`.
async fn fork(store: &Postgres) -> ExecutionId {
    let input = json!({ "name": "a", "kind": "input" });
    apply(store, json!({ "name": "fork", "nodes": [input, compute("x", "a"), compute("y", "a")] })).await;
    begin(store, "fork", json!({ "a": 1 })).await
}

fn new(graph: &str, values: Value) -> Start {
    Start {
        id: ExecutionId(steps::next_id()),
        graph: graph.to_string(),
        version: None,
        values: values.as_object().expect("an object").clone().into_iter().collect(),
        metadata: None,
        idempotency: None,
    }
}

async fn begin(store: &Postgres, graph: &str, values: Value) -> ExecutionId {
    let start = new(graph, values);
    let id = start.id;
    let started = store.start(vec![start], planner()).await.expect("start");
    assert!(matches!(started[0], Started::Created { .. }), "{started:?}");
    id
}

fn set(execution: ExecutionId, values: Value) -> Advance {
    let values = values.as_object().expect("an object").clone().into_iter().collect();
    Advance { execution, commands: vec![Command::Set { values, metadata: None }] }
}

async fn look(store: &Postgres) -> Looked {
    store.advance_due(200, planner()).await.expect("look")
}

async fn claim(store: &Postgres, replica: ReplicaId) -> Vec<Claimed> {
    let tasks = BTreeMap::from([("work".to_string(), 200)]);
    store.claim(Claim { replica, limit: 200, tasks, queues: BTreeMap::new(), among: None }).await.expect("claim")
}

fn result(claimed: &Claimed, value: &Value) -> Settlement {
    Settlement { ending: Ending::succeeded(Json::of(value)), ..steps::success(claimed) }
}

fn node(claimed: &Claimed) -> &str {
    &claimed.spec.parent.as_ref().expect("a run of a node").node
}

/// Claims, settles and looks until nothing is left to do.
async fn drive(store: &Postgres, replica: ReplicaId) {
    loop {
        let claimed = claim(store, replica).await;
        store.settle(claimed.iter().map(|claimed| result(claimed, &json!(7))).collect()).await.expect("settle");
        if look(store).await.executions.is_empty() && claimed.is_empty() {
            return;
        }
    }
}

async fn values(store: &Postgres, id: ExecutionId) -> BTreeMap<String, Value> {
    let stored = store.execution(id).await.expect("read").expect("there");
    let cells = stored.execution.nodes.into_iter();
    cells.filter_map(|(node, state)| Some((node, state.cell?.value))).collect()
}

async fn sound(store: &Postgres) {
    assert_eq!(store.audit().await.expect("audit").violations, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_finishes_while_notes_are_taken_is_not_lost() {
    let database = Database::create().await;
    let (store, other) = (open(&database).await, open(&database).await);
    let (mut session, looker) = (database.session().await, database.session().await);
    let replica = steps::join(&*store).await;
    let id = fork(&store).await;
    let claimed = claim(&store, replica).await;
    // The statements of a look are prepared, so that the look waits for nothing before it has taken the notes.
    store.advance(vec![Advance { execution: id, commands: Vec::new() }], planner()).await.expect("advance");
    store.settle(vec![result(&claimed[0], &json!(1))]).await.expect("settle");
    let held = session.transaction().await.expect("begin");
    held.batch_execute("lock table computation in access exclusive mode").await.expect("lock");
    let finish = async {
        // The note of the first is deleted by now, and nothing is read yet.
        until_blocked(&looker, 1).await;
        other.settle(vec![result(&claimed[1], &json!(2))]).await.expect("settle");
        held.rollback().await.expect("release");
    };
    let (looked, ()) = tokio::join!(look(&store), finish);
    assert_eq!(looked.executions, [id]);
    assert_eq!(looked.next_in, Some(Duration::ZERO), "the second note is still there");
    assert_eq!(look(&store).await.executions, [id]);
    assert_eq!(values(&store, id).await.len(), 3);
    sound(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_that_look_at_once_carry_on_once() {
    let database = Database::create().await;
    let (store, other) = (open(&database).await, open(&database).await);
    let (mut session, looker) = (database.session().await, database.session().await);
    let replica = steps::join(&*store).await;
    let id = fork(&store).await;
    let claimed = claim(&store, replica).await;
    store.settle(claimed.iter().map(|claimed| result(claimed, &json!(1))).collect()).await.expect("settle");
    let held = session.transaction().await.expect("begin");
    held.batch_execute("lock table computation in access exclusive mode").await.expect("lock");
    let second = async {
        until_blocked(&looker, 1).await;
        let looked = look(&other).await;
        held.rollback().await.expect("release");
        looked
    };
    let (first, second) = tokio::join!(look(&store), second);
    assert_eq!((first.executions, second.executions), (vec![id], Vec::new()));
    assert_eq!(store.history(id, 0, 10).await.expect("history").len(), 3);
    sound(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_set_while_a_run_finishes_is_computed_with() {
    let database = Database::create().await;
    let (store, other) = (open(&database).await, open(&database).await);
    let (mut session, looker) = (database.session().await, database.session().await);
    let replica = steps::join(&*store).await;
    let id = fork(&store).await;
    let claimed = claim(&store, replica).await;
    let held = session.transaction().await.expect("begin");
    held.query("select 1 from execution where id = $1 for update", &[&id.0]).await.expect("lock");
    let finish = async {
        until_blocked(&looker, 1).await;
        let x = claimed.iter().find(|claimed| node(claimed) == "x").expect("x runs");
        other.settle(vec![result(x, &json!("old"))]).await.expect("settle");
        held.rollback().await.expect("release");
    };
    let (advanced, ()) = tokio::join!(store.advance(vec![set(id, json!({ "a": 2 }))], planner()), finish);
    assert_eq!(advanced, Ok(vec![Advanced::Done(vec![Ok(3)])]), "the result came first");
    let y = claimed.iter().find(|claimed| node(claimed) == "y").expect("y runs");
    assert!(store.run(y.lease.run_id).await.expect("read").expect("there").cancel_requested_at.is_some());
    store.settle(vec![result(y, &json!("old"))]).await.expect("settle");
    drive(&store, replica).await;
    let values = values(&store, id).await;
    assert_eq!((&values["a"], &values["x"], &values["y"]), (&json!(2), &json!(7), &json!(7)));
    sound(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_starts_of_a_singleton_at_once_one_begins() {
    let database = Database::create().await;
    let (store, other) = (open(&database).await, open(&database).await);
    let (mut session, looker) = (database.session().await, database.session().await);
    apply(&store, json!({ "name": "one", "singleton": true, "nodes": [{ "name": "a", "kind": "input" }] })).await;
    let held = session.transaction().await.expect("begin");
    held.batch_execute("lock table event in exclusive mode").await.expect("lock");
    let release = async {
        until_blocked(&looker, 2).await;
        held.rollback().await.expect("release");
    };
    let (starts, others) = (vec![new("one", json!({}))], vec![new("one", json!({}))]);
    let (a, b, ()) = tokio::join!(store.start(starts, planner()), other.start(others, planner()), release);
    let (a, b) = (a.expect("start").remove(0), b.expect("start").remove(0));
    let agree = |made: &Started, found: &Started| match (made, found) {
        (Started::Created { id, .. }, Started::Exists(found)) => id == found,
        _ => false,
    };
    assert!(agree(&a, &b) || agree(&b, &a), "{a:?} {b:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_singleton_is_not_brought_back_past_one_that_is_being_started() {
    let database = Database::create().await;
    let (store, other) = (open(&database).await, open(&database).await);
    let (mut session, looker) = (database.session().await, database.session().await);
    apply(&store, json!({ "name": "one", "singleton": true, "nodes": [{ "name": "a", "kind": "input" }] })).await;
    let old = begin(&store, "one", json!({})).await;
    let tell = |command: Command| vec![Advance { execution: old, commands: vec![command] }];
    store.advance(tell(Command::Archive), planner()).await.expect("archive");
    let held = session.transaction().await.expect("begin");
    held.batch_execute("lock table event in exclusive mode").await.expect("lock");
    let returning = async {
        until_blocked(&looker, 1).await;
        let release = async {
            until_blocked(&looker, 2).await;
            held.rollback().await.expect("release");
        };
        tokio::join!(other.advance(tell(Command::Unarchive), planner()), release).0
    };
    let (started, returned) = tokio::join!(store.start(vec![new("one", json!({}))], planner()), returning);
    assert!(matches!(started.expect("start")[0], Started::Created { .. }));
    let returned = returned.expect("advance").remove(0);
    let refused = matches!(&returned, Advanced::Done(answers) if matches!(answers[0], Err(Refusal::Conflict { .. })));
    assert!(refused, "{returned:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_execution_that_is_being_started_hears_of_a_definition_applied_meanwhile() {
    let database = Database::create().await;
    let (store, other) = (open(&database).await, open(&database).await);
    let (mut session, looker) = (database.session().await, database.session().await);
    let input = json!({ "name": "a", "kind": "input" });
    apply(&store, json!({ "name": "g", "nodes": [input] })).await;
    let held = session.transaction().await.expect("begin");
    held.batch_execute("lock table event in exclusive mode").await.expect("lock");
    let applying = async {
        until_blocked(&looker, 1).await;
        let release = async {
            until_blocked(&looker, 2).await;
            held.rollback().await.expect("release");
        };
        tokio::join!(apply(&other, json!({ "name": "g", "nodes": [input, compute("x", "a")] })), release);
    };
    let (id, ()) = tokio::join!(begin(&store, "g", json!({ "a": 1 })), applying);
    assert_eq!(look(&store).await.executions, [id]);
    assert_eq!(store.execution(id).await.expect("read").expect("there").graph.nodes().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_stored_spoils_no_other_execution_and_is_not_taken_up_for_ever() {
    let database = Database::create().await;
    let (store, session) = (open(&database).await, database.session().await);
    let bound = "alter table value add constraint bound check (length(value) < 100)";
    session.batch_execute(bound).await.expect("a limit that is cheap to reach");
    let replica = steps::join(&*store).await;
    let long = json!("x".repeat(100));
    let mut ids = vec![fork(&store).await];
    for _ in 0..4 {
        ids.push(begin(&store, "fork", json!({ "a": 1 })).await);
    }
    let bad = store.start(vec![new("fork", json!({ "a": 1 })), new("fork", json!({ "a": long }))], planner()).await;
    let bad = bad.expect("start");
    assert!(matches!(bad[0], Started::Created { .. }) && matches!(bad[1], Started::Refused(_)), "{bad:?}");
    let advances =
        ids.iter().enumerate().map(|(at, id)| set(*id, if at == 3 { json!({ "a": long }) } else { json!({ "a": 2 }) }));
    let advanced = store.advance(advances.collect(), planner()).await.expect("advance");
    for (at, advanced) in advanced.into_iter().enumerate() {
        let Advanced::Done(answers) = advanced else { panic!("{at} exists") };
        assert_eq!(matches!(answers[0], Err(Refusal::Invalid(_))), at == 3, "{at}: {answers:?}");
    }
    let claimed = claim(&store, replica).await;
    let bad = |claimed: &&Claimed| claimed.spec.parent.as_ref().is_some_and(|parent| parent.execution == ids[1]);
    assert_eq!(claimed.iter().filter(bad).count(), 2);
    let short = json!(5);
    let ending = |claimed: &Claimed| result(claimed, if bad(&claimed) { &long } else { &short });
    store.settle(claimed.iter().map(ending).collect()).await.expect("settle");
    let looked = look(&store).await;
    assert_eq!(looked.executions.len(), 6);
    assert!(looked.next_in.is_some_and(|next| next > Duration::from_secs(30)), "{looked:?}");
    for (at, id) in ids.iter().enumerate() {
        assert_eq!(values(&store, *id).await.contains_key("x"), at != 1, "{at}");
    }
    session.batch_execute("alter table value drop constraint bound; update agenda set due_at = 0").await.expect("heal");
    assert_eq!(look(&store).await.executions, [ids[1]]);
    assert_eq!(values(&store, ids[1]).await["x"], long);
    sound(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_finds_executions_and_values_by_their_keys() {
    let database = Database::create().await;
    let (store, session) = (open(&database).await, database.session().await);
    let fill = "\
        insert into execution select gen_random_uuid(), 'g' || n % 20, 1, 1, false, 1, null, 1, 5, n, n \
          from generate_series(1, 10000) as n; \
        insert into value (execution_id, node, value, revision, set_at, changes, first_set_at, class, number) \
          select e.id, 'n' || k, e.created_at::text, 1, 0, 1, 0, 0, e.created_at from execution e, \
          generate_series(1, 5) as k; \
        analyze execution; analyze value";
    session.batch_execute(fill).await.expect("fill");
    let condition = |text: &str| Condition::parse(text).expect("a condition");
    for sort in [None, Some("n3"), Some("-n3"), Some("-updated_at")] {
        let filter = ExecutionFilter {
            graph: Some("g7".to_string()),
            conditions: vec![condition("n1.gt:100"), condition("n2.in:[7,4007,5007,9007]"), condition("n4.is_set")],
            sort: sort.map(|sort| Sort::parse(sort).expect("a sort")),
            limit: 50,
            ..ExecutionFilter::default()
        };
        let plan = store.explain_executions(&filter).await.expect("explain");
        assert!(!plan.contains("Seq Scan on value"), "{plan}");
        assert!(!plan.contains("Seq Scan on execution"), "{plan}");
        assert_eq!(store.count(filter).await.expect("count"), 3);
    }
}

/// Figures, not a test: `cargo test --test postgres_executions -- --ignored --nocapture rates`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints rates"]
#[allow(clippy::disallowed_methods, reason = "measures real time")]
async fn rates_of_a_chain_of_ten() {
    let database = Database::create().await;
    let store = open(&database).await;
    let replica = steps::join(&*store).await;
    let mut nodes = vec![json!({ "name": "n0", "kind": "input" })];
    nodes.extend((1..10).map(|at| compute(&format!("n{at}"), &format!("n{}", at - 1))));
    apply(&store, json!({ "name": "chain", "nodes": nodes })).await;
    let (mut start, mut claims, mut settle, mut advance) = Default::default();
    let timed = |sum: &mut Duration, since: Instant| *sum += since.elapsed();
    for _ in 0..5 {
        let since = Instant::now();
        let starts = (0..200).map(|_| new("chain", json!({ "n0": 1 }))).collect();
        store.start(starts, planner()).await.expect("start");
        timed(&mut start, since);
    }
    let mut runs = 0;
    loop {
        let since = Instant::now();
        let claimed = claim(&store, replica).await;
        timed(&mut claims, since);
        let since = Instant::now();
        store.settle(claimed.iter().map(|claimed| result(claimed, &json!(7))).collect()).await.expect("settle");
        timed(&mut settle, since);
        let since = Instant::now();
        look(&store).await;
        timed(&mut advance, since);
        if claimed.is_empty() {
            break;
        }
        runs += claimed.len();
    }
    assert_eq!(runs, 9_000);
    sound(&store).await;
    let per_s = |count: usize, span: Duration| (count as f64 / span.as_secs_f64()) as u64;
    println!(
        "start {}/s, claim {}/s, settle {}/s, advance {}/s, together {} nodes/s",
        per_s(1000, start),
        per_s(runs, claims),
        per_s(runs, settle),
        per_s(runs, advance),
        per_s(runs, claims + settle + advance)
    );
}
