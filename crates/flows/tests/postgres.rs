//! PostgreSQL as source and sink. Needs a server: see `support::postgres`.

mod support;

use everbeat_flows::{Class, Configuration, Counts, Halt, Record, Settings, Written, run};
use serde_json::{Value, json};
use std::fs;
use support::postgres::Schema;
use support::{Memory, around, attempt, configure, failure, lines, numbered, once, once_as};

struct World {
    folder: tempfile::TempDir,
    schema: Schema,
}

impl World {
    async fn new(sql: &str) -> World {
        let world = World { folder: tempfile::tempdir().unwrap(), schema: Schema::create().await };
        world.schema.execute(sql).await;
        world
    }

    fn sink(&self, more: Value) -> Value {
        let mut sink = json!({"type": "sql", "url": self.schema.url, "table": "t"});
        sink.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sink
    }

    fn flow(&self, source: &str, sink: Value) -> Value {
        let path = self.folder.path().join("in.ndjson");
        fs::write(&path, source).unwrap();
        json!({"source": {"type": "file", "path": path}, "sink": sink})
    }
}

fn record(value: Value) -> Record {
    Record { value, position: "here".into() }
}

#[tokio::test]
async fn rows_are_new_updated_or_unchanged_and_counted_exactly() {
    let world = World::new("create table t (id bigint primary key, name text, doc json, at text default 'x')").await;
    let flow = |text: &str| world.flow(text, world.sink(json!({"key": ["id"]})));
    // The same key twice in a batch, once written otherwise: both count, in their order.
    let text = "{\"id\":1,\"name\":\"a\",\"doc\":{\"a\":1}}\n{\"id\":2,\"name\":\"b\"}\n{\"id\":1,\"name\":\"c\"}\n{\"id\":\"01\",\"name\":\"d\"}\n{\"id\":2,\"name\":\"b\"}\n";
    let report = once(&flow(text)).await.unwrap();
    assert_eq!(report.counts, Counts { read: 5, written: 4, updated: 2, unchanged: 1, ..Counts::default() });
    let second = flow("{\"id\":1,\"name\":\"d\",\"doc\":{\"a\":1}}\n{\"id\":2,\"name\":null}\n{\"id\":3}\n");
    let report = once_as(&second, "run-2").await.unwrap();
    assert_eq!(report.counts, Counts { read: 3, written: 2, updated: 1, unchanged: 1, ..Counts::default() });
    let rows = world.schema.rows("select * from t order by id").await;
    assert_eq!(rows, ["(1,d,\"{\"\"a\"\":1}\",x)", "(2,,,x)", "(3,,,x)"]);
    let ignore = world.flow("{\"id\":1,\"name\":\"z\"}\n", world.sink(json!({"key": ["id"], "on_conflict": "ignore"})));
    assert_eq!(once_as(&ignore, "run-3").await.unwrap().counts.unchanged, 1);
}

#[tokio::test]
async fn one_bad_record_is_rejected_and_the_batch_is_written() {
    let world = World::new(
        "create table t (id bigint primary key, name varchar(5) not null, n int check (n < 100), flag boolean, doc jsonb, \
         raw bytea, code text unique, at timestamptz, amount numeric(20,4), tags text[])",
    )
    .await;
    let good = json!({"id": 9_007_199_254_740_993_u64, "name": "a", "n": "7", "flag": true, "doc": {"a": [1]}, "raw": "Zm8=",
        "code": "x", "at": "2026-11-15T08:00:00.25Z", "amount": "1234567890123456.7891", "tags": ["a,b", null]});
    let bad = [
        (json!({"id": 2, "name": "b", "n": "seven"}), "invalid input syntax for type integer"),
        (json!({"name": "b"}), "lacks the key \"id\""),
        (json!({"id": 3}), "null value in column \"name\""),
        (json!({"id": 3, "name": "toolong"}), "too long"),
        (json!({"id": 3, "name": "b", "n": 100}), "check constraint"),
        (json!({"id": 3, "name": "b", "n": 1.5}), "takes integers"),
        (json!({"id": 3, "name": "b", "code": "x"}), "unique constraint"),
        (json!({"id": 3, "name": "b", "colour": "red"}), "\"colour\", which is not a column of the table t"),
        (json!({"id": 3, "name": {"a": 1}}), "an object"),
        (json!({"id": 3, "name": "b", "at": "yesterweek"}), "invalid input syntax for type timestamp"),
        (json!({"id": 3, "name": "a\u{0}b"}), "NUL"),
        (json!({"id": 1e30, "name": "b"}), "takes integers"),
        (json!(5), "is not an object"),
    ];
    let mut text = format!("{good}\n");
    for (value, _) in &bad {
        text.push_str(&format!("{value}\n"));
    }
    let large = "y".repeat(1 << 20);
    text.push_str(&format!("{{\"id\":9,\"name\":\"last\",\"code\":\"z\",\"doc\":\"{large}\"}}\n"));
    let mut value = world.flow(&text, world.sink(json!({"key": ["id"]})));
    value["max_rejected"] = json!(100);
    let report = once(&value).await.unwrap();
    let expected = Counts { read: 15, written: 2, rejected: 13, ..Counts::default() };
    assert_eq!(report.counts, expected, "{:?}", report.rejected);
    for (line, (value, part)) in bad.iter().enumerate() {
        let place = format!("in.ndjson:{}", line + 2);
        let rejected = report.rejected.iter().find(|rejected| rejected.position.ends_with(&place)).unwrap();
        assert!(rejected.reason.contains(part), "{value}: {}", rejected.reason);
    }
    // What was written can be read again as it was.
    let path = world.folder.path().join("out.ndjson");
    let back = json!({"source": {"type": "sql", "url": world.schema.url, "query": "select * from t where name = 'a'"},
        "sink": {"type": "file", "path": path}});
    once(&back).await.unwrap();
    let mut expected = good;
    expected["n"] = json!(7);
    assert_eq!(lines(&path), [expected]);
}

#[tokio::test]
async fn a_run_killed_at_any_step_is_resumed_and_every_row_is_there_once() {
    let world = World::new("create table t (id int, name text)").await;
    // No key: nothing but the cursor keeps rows from being there twice. One record is rejected by the sink.
    let text = numbered(10).replace("\"id\":5", "\"id\":\"five\"");
    let mut value = world.flow(&text, world.sink(json!({})));
    value["batch_size"] = json!(1);
    for polls in 1.. {
        world.schema.execute("truncate t").await;
        let (configuration, ledger, name) = (configure(&value), Memory::default(), format!("run-{polls}"));
        let first = support::killed_after(polls, run(&attempt(&configuration, &name, 1, &ledger))).await;
        let report = match &first {
            Some(report) => report.clone(),
            None => run(&attempt(&configuration, &name, 2, &ledger)).await,
        };
        let report = report.unwrap();
        let counts = Counts { read: 10, written: 9, rejected: 1, ..Counts::default() };
        assert_eq!(report.counts, counts, "killed after {polls} polls");
        assert_eq!(report.rejected.len(), 1, "killed after {polls} polls");
        let ids = [1, 2, 3, 4, 6, 7, 8, 9, 10].map(|id| format!("({id})"));
        assert_eq!(world.schema.rows("select id from t order by id").await, ids, "killed after {polls} polls");
        if first.is_some() {
            assert!(polls > 10, "it had no steps to be killed at");
            break;
        }
    }
}

#[tokio::test]
async fn rows_go_from_table_to_table_exactly_once_whatever_is_killed() {
    let world = World::new(
        "create table s (id int primary key, at timestamptz); create table t (id int, at timestamptz); \
         insert into s select i, '2026-11-15T08:00:00.123456Z'::timestamptz + i / 4 * interval '1 us' from generate_series(1, 10) i",
    )
    .await;
    let value = json!({"source": {"type": "sql", "url": world.schema.url, "table": "s", "cursor": "at"},
        "sink": world.sink(json!({})), "batch_size": 2});
    for polls in 1.. {
        world
            .schema
            .execute("truncate t; delete from s where id > 10; drop table if exists everbeat_flow_cursor")
            .await;
        let (configuration, ledger) = (configure(&value), Memory::default());
        let first = support::killed_after(polls, run(&attempt(&configuration, "run-1", 1, &ledger))).await;
        if first.is_none() {
            let report = run(&attempt(&configuration, "run-1", 2, &ledger)).await.unwrap();
            assert_eq!(report.counts.written, 10, "killed after {polls} polls");
        }
        let same = world.schema.rows("select count(*), count(distinct id) from t join s using (id, at)").await;
        assert_eq!(same, ["(10,10)"], "killed after {polls} polls");
        world.schema.execute("insert into s values (11, '2026-11-15T08:00:00.123458Z'), (12, '2027-01-01')").await;
        assert_eq!(once_as(&value, "run-2").await.unwrap().counts.read, 2, "the next run goes on");
        if first.is_some() {
            break;
        }
    }
}

#[tokio::test]
async fn a_former_attempt_is_fenced() {
    let world = World::new("create table t (id int primary key)").await;
    let configuration = configure(&world.flow("", world.sink(json!({}))));
    let mut former = configuration.sink.open(&around("run-1", 1)).await.unwrap();
    former.write(vec![record(json!({"id": 1}))], &json!({"cursor": 1})).await.unwrap();
    let mut later = configuration.sink.open(&around("run-1", 2)).await.unwrap();
    let committed = later.committed().await.unwrap().unwrap();
    assert_eq!((committed.run.as_str(), committed.cursor), ("run-1", json!({"cursor": 1})));
    assert_eq!(later.outcome().await.unwrap(), Some(Written { written: 1, ..Written::default() }));
    let trouble = former.write(vec![record(json!({"id": 2}))], &json!({"cursor": 2})).await.expect_err("fenced");
    assert_eq!(trouble.class, Class::Fenced);
    assert_eq!(configuration.sink.open(&around("run-1", 1)).await.err().unwrap().class, Class::Fenced);
    assert_eq!(world.schema.rows("select id from t").await, ["(1)"]);
    // The next run of the flow is told what this one has committed, and nothing of its outcome.
    let mut next = configuration.sink.open(&around("run-2", 1)).await.unwrap();
    assert_eq!(next.committed().await.unwrap().unwrap().run, "run-1");
    assert_eq!(next.outcome().await.unwrap(), None);
}

#[tokio::test]
async fn tables_of_rails_with_identity_columns_are_written_and_partitioned_ones_are_refused() {
    let world = World::new(
        "create table people (id bigint generated always as identity primary key, name text, \
         created_at timestamp not null, updated_at timestamptz not null)",
    )
    .await;
    let sink = json!({"type": "ActiveRecord", "url": world.schema.url, "model_name": "Person"});
    let report = once(&world.flow("{\"id\":7,\"name\":\"a\"}\n{\"name\":\"b\"}\n", sink.clone())).await.unwrap();
    assert_eq!(report.counts.written, 2, "{:?}", report.rejected);
    let report =
        once_as(&world.flow("{\"id\":7,\"name\":\"c\"}\n{\"id\":1,\"name\":\"b\"}\n", sink), "run-2").await.unwrap();
    assert_eq!((report.counts.updated, report.counts.unchanged), (1, 1));
    world
        .schema
        .execute("create table t (id int primary key) partition by range (id); create table t1 partition of t default")
        .await;
    let said = failure(&world.flow("{\"id\":1}\n", world.sink(json!({"key": ["id"]})))).await;
    assert!(said.contains("a partitioned table cannot be a sink"), "{said}");
}

#[tokio::test]
async fn a_table_is_created_and_a_query_is_streamed() {
    let world =
        World::new("create table s (id int, v float8); insert into s select i, i / 2.0 from generate_series(1, 5) i")
            .await;
    let value = json!({"source": {"type": "sql", "url": world.schema.url, "query": "select id, v, null::int as none from s order by id desc"},
        "sink": world.sink(json!({"create": true, "key": ["id"]})), "batch_size": 2});
    assert_eq!(once(&value).await.unwrap().counts, Counts { read: 5, written: 5, ..Counts::default() });
    let types = "select column_name, data_type from information_schema.columns where table_name = 't' \
                 and table_schema = current_schema() order by 1";
    assert_eq!(world.schema.rows(types).await, ["(id,bigint)", "(none,text)", "(v,\"double precision\")"]);
    assert_eq!(once_as(&value, "run-2").await.unwrap().counts.unchanged, 5);
}

#[tokio::test]
async fn what_cannot_work_is_said_and_what_may_work_later_is_tried_again() {
    let world = World::new("create table t (id int, name text)").await;
    let said = failure(&world.flow("{\"id\":1}\n", world.sink(json!({"key": ["id"]})))).await;
    assert!(said.contains("unique index"), "{said}");
    let said = failure(&world.flow("{\"id\":1}\n", world.sink(json!({"table": "no"})))).await;
    assert!(said.contains("table no does not exist"), "{said}");
    let source = json!({"source": {"type": "sql", "url": world.schema.url, "table": "no"}, "sink": {"type": "stdout"}});
    assert!(failure(&source).await.contains("no does not exist"));
    // Nobody listens there.
    let gone = world.flow("1\n", json!({"type": "sql", "connection": "gone", "table": "t"}));
    let named = json!({"gone": "postgres://u:hush@127.0.0.1:1/d"});
    let settings = Settings { connections: Settings::parse_connections(&named).unwrap(), allow_private_targets: false };
    let (configuration, ledger) = (Configuration::parse(&gone, &settings).unwrap(), Memory::default());
    let Err(Halt::Failed(trouble)) = run(&attempt(&configuration, "run-1", 1, &ledger)).await else {
        panic!("it ended")
    };
    assert_eq!(trouble.class, Class::Transient);
    assert!(trouble.message.contains("cannot be reached") && !trouble.message.contains("hush"), "{trouble}");
    assert!(ledger.notes.lock().unwrap().len() > 10, "it was tried again and again");
    // A flow does not reach this machine unless the operator allows it.
    let own = |host: &str| {
        let url = format!("postgres://u@{host}:1/d");
        Configuration::parse(&world.flow("1\n", json!({"type": "sql", "url": url, "table": "t"})), &Settings::default())
    };
    assert!(own("127.0.0.1").err().unwrap().hint.contains("allow_private_targets"));
    let configuration = own("localhost").unwrap();
    let trouble = configuration.sink.open(&around("run-1", 1)).await.err().unwrap();
    assert!(trouble.class == Class::Permanent && trouble.message.contains("allow_private_targets"), "{trouble}");
}
