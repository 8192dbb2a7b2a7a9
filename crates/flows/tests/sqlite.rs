//! SQLite as source and sink.

mod support;

use everbeat_flows::{Class, Counts, Halt, Record, Written, run};
use rusqlite::Connection;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use support::{Memory, around, attempt, configure, failure, lines, numbered, once, once_as, refusal};

struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new(sql: &str) -> World {
        let world = World { folder: tempfile::tempdir().unwrap() };
        world.database().execute_batch(sql).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn database(&self) -> Connection {
        Connection::open(self.path("data.db")).unwrap()
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.path("data.db").display())
    }

    fn sink(&self, more: Value) -> Value {
        let mut sink = json!({"type": "sql", "url": self.url(), "table": "t"});
        sink.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sink
    }

    fn flow(&self, source: &str, sink: Value) -> Value {
        fs::write(self.path("in.ndjson"), source).unwrap();
        json!({"source": {"type": "file", "path": self.path("in.ndjson")}, "sink": sink})
    }

    fn rows(&self, sql: &str) -> Vec<String> {
        let database = self.database();
        let mut statement = database.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| {
            let cells = (0..row.as_ref().column_count()).map(|cell| row.get::<_, rusqlite::types::Value>(cell));
            Ok(cells.map(|cell| format!("{:?}", cell.unwrap())).collect::<Vec<_>>().join(" "))
        });
        rows.unwrap().map(Result::unwrap).collect()
    }
}

fn record(value: Value) -> Record {
    Record { value, position: "here".into() }
}

#[tokio::test]
async fn rows_are_new_updated_or_unchanged_and_counted_exactly() {
    let world = World::new("create table t (id integer primary key, name text, n real, at text default 'x')");
    let flow = |text: &str| world.flow(text, world.sink(json!({"key": ["id"]})));
    let report = once(&flow(
        "{\"id\":1,\"name\":\"a\",\"n\":1}\n{\"id\":2,\"name\":\"b\",\"n\":2}\n{\"id\":1,\"name\":\"c\"}\n",
    ))
    .await;
    assert_eq!(report.unwrap().counts, Counts { read: 3, written: 3, updated: 1, ..Counts::default() });
    let second = flow("{\"id\":1,\"name\":\"c\",\"n\":1.0}\n{\"id\":2,\"name\":\"d\"}\n{\"id\":3}\n");
    let report = once_as(&second, "run-2").await.unwrap();
    assert_eq!(report.counts, Counts { read: 3, written: 2, updated: 1, unchanged: 1, ..Counts::default() });
    assert_eq!(
        world.rows("select id, name, n, at from t order by id"),
        [
            "Integer(1) Text(\"c\") Real(1.0) Text(\"x\")",
            "Integer(2) Text(\"d\") Real(2.0) Text(\"x\")",
            "Integer(3) Null Null Text(\"x\")"
        ]
    );
    let ignore = world.flow("{\"id\":1,\"name\":\"z\"}\n", world.sink(json!({"key": ["id"], "on_conflict": "ignore"})));
    assert_eq!(once_as(&ignore, "run-3").await.unwrap().counts.unchanged, 1);
}

#[tokio::test]
async fn one_bad_record_is_rejected_and_the_batch_is_written() {
    let world = World::new(
        "create table t (id integer primary key, name text not null, n integer, flag boolean, doc json, raw blob, \
         code text unique, check (n < 100))",
    );
    let good = json!({"id": 1, "name": "a", "n": "7", "flag": true, "doc": {"a": [1]}, "raw": "Zm8=", "code": "x"});
    let bad = [
        (json!({"id": 2, "name": "b", "n": "seven"}), "where the column takes an integer"),
        (json!({"name": "b"}), "lacks the key \"id\""),
        (json!({"id": null, "name": "b"}), "lacks the key \"id\""),
        (json!({"id": 3}), "NOT NULL"),
        (json!({"id": 3, "name": "b", "n": 100}), "CHECK"),
        (json!({"id": 3, "name": "b", "code": "x"}), "UNIQUE"),
        (json!({"id": 3, "name": "b", "colour": "red"}), "\"colour\", which is not a column of the table t"),
        (json!({"id": 3, "name": {"a": 1}}), "an object"),
        (json!({"id": 3, "name": "b", "raw": "not base64"}), "base64"),
        (json!({"id": 18_446_744_073_709_551_615_u64, "name": "b"}), "64 bits"),
        (json!([1]), "is not an object"),
    ];
    let mut text = format!("{good}\n");
    for (value, _) in &bad {
        text.push_str(&format!("{value}\n"));
    }
    text.push_str("{\"id\":9,\"name\":\"last\"}\n");
    let report = once(&world.flow(&text, world.sink(json!({"key": ["id"]})))).await.unwrap();
    let expected = Counts { read: 13, written: 2, rejected: 11, ..Counts::default() };
    assert_eq!(report.counts, expected, "{:?}", report.rejected);
    for (line, ((value, part), rejected)) in bad.iter().zip(&report.rejected).enumerate() {
        assert!(rejected.reason.contains(part), "{value}: {}", rejected.reason);
        assert!(rejected.position.ends_with(&format!("in.ndjson:{}", line + 2)), "{}", rejected.position);
    }
    let extra = world.sink(json!({"key": ["id"], "extra": "ignore"}));
    let report = once_as(&world.flow("{\"id\":3,\"name\":\"b\",\"colour\":\"red\"}\n", extra), "run-2").await.unwrap();
    assert_eq!(report.counts.written, 1);
    // What was written can be read again as it was.
    let back = json!({"source": {"type": "sql", "url": world.url(), "query": "select * from t where id = 1"},
        "sink": {"type": "file", "path": world.path("out.ndjson")}});
    once(&back).await.unwrap();
    let mut expected = good;
    expected["n"] = json!(7);
    assert_eq!(lines(&world.path("out.ndjson")), [expected]);
}

#[tokio::test]
async fn a_run_killed_at_any_step_is_resumed_and_every_row_is_there_once() {
    for polls in 1.. {
        let world = World::new("create table t (id integer, name text)");
        // No key: nothing but the cursor keeps rows from being there twice. One record is rejected by the sink.
        let text = numbered(10).replace("\"id\":5", "\"id\":\"five\"");
        let mut value = world.flow(&text, world.sink(json!({})));
        value["batch_size"] = json!(1);
        value["dead_letter"] = json!({"type": "sql", "url": world.url(), "table": "dead", "create": true});
        let (configuration, ledger) = (configure(&value), Memory::default());
        let first = support::killed_after(polls, run(&attempt(&configuration, "run-1", 1, &ledger))).await;
        let report = match &first {
            Some(report) => report.clone(),
            None => run(&attempt(&configuration, "run-1", 2, &ledger)).await,
        };
        let counts = Counts { read: 10, written: 9, rejected: 1, ..Counts::default() };
        assert_eq!(report.unwrap().counts, counts, "killed after {polls} polls");
        let ids = [1, 2, 3, 4, 6, 7, 8, 9, 10].map(|id| format!("Integer({id})"));
        assert_eq!(world.rows("select id from t order by id"), ids, "killed after {polls} polls");
        let letters = world.rows("select distinct raw from dead");
        assert_eq!(
            letters,
            ["Text(\"{\\\"id\\\":\\\"five\\\",\\\"name\\\":\\\"n5\\\"}\")"],
            "killed after {polls} polls"
        );
        if first.is_some() {
            assert!(polls > 10, "it had no steps to be killed at");
            break;
        }
    }
}

#[tokio::test]
async fn rows_go_from_table_to_table_exactly_once_whatever_is_killed() {
    for polls in 1.. {
        // The cursor is not unique: rows with the same one are told apart by the primary key.
        let world = World::new(
            "create table s (id integer primary key, at integer); create table t (id integer, at integer); \
             with recursive n(i) as (select 1 union all select i + 1 from n where i < 10) insert into s select i, i / 4 from n",
        );
        let value = json!({"source": {"type": "sql", "url": world.url(), "table": "s", "cursor": "at"},
            "sink": world.sink(json!({})), "batch_size": 2});
        let (configuration, ledger) = (configure(&value), Memory::default());
        let first = support::killed_after(polls, run(&attempt(&configuration, "run-1", 1, &ledger))).await;
        if first.is_none() {
            let report = run(&attempt(&configuration, "run-1", 2, &ledger)).await.unwrap();
            assert_eq!(report.counts.written, 10, "killed after {polls} polls");
        }
        assert_eq!(world.rows("select id from t order by id").len(), 10, "killed after {polls} polls");
        assert_eq!(world.rows("select distinct id from t").len(), 10, "killed after {polls} polls");
        // The next run goes on where this one ended.
        world.database().execute_batch("insert into s values (11, 2), (12, 7)").unwrap();
        assert_eq!(once_as(&value, "run-2").await.unwrap().counts.read, 2);
        assert_eq!(once_as(&value, "run-3").await.unwrap().counts.read, 0);
        if first.is_some() {
            break;
        }
    }
}

#[tokio::test]
async fn a_range_is_read_by_itself_and_the_next_run_does_not_go_on_after_it() {
    let world = World::new("create table s (id integer primary key); insert into s values (1), (2), (3), (4), (5)");
    let value = json!({"source": {"type": "sql", "url": world.url(), "table": "s", "cursor": "id"},
        "sink": world.sink(json!({"create": true}))});
    let configuration = configure(&value);
    assert_eq!(once(&value).await.unwrap().counts.read, 5);
    let ledger = Memory::default();
    let mut ranged = attempt(&configuration, "run-2", 1, &ledger);
    ranged.around.range = Some(everbeat_flows::Range { from: Some(json!(2)), to: Some(json!(4)) });
    let report = run(&ranged).await.unwrap();
    assert_eq!((report.counts.read, report.counts.written), (2, 2), "there is no key: the rows are there again");
    assert_eq!(once_as(&value, "run-3").await.unwrap().counts.read, 0);
}

#[tokio::test]
async fn a_former_attempt_is_fenced_and_old_runs_are_forgotten() {
    let world = World::new("create table t (id integer primary key)");
    let configuration = configure(&world.flow("", world.sink(json!({}))));
    let mut former = configuration.sink.open(&around("run-1", 1)).await.unwrap();
    assert_eq!(former.committed().await.unwrap(), None);
    former.write(vec![record(json!({"id": 1}))], &json!({"cursor": 1})).await.unwrap();
    let mut later = configuration.sink.open(&around("run-1", 2)).await.unwrap();
    let committed = later.committed().await.unwrap().unwrap();
    assert_eq!((committed.run.as_str(), committed.cursor), ("run-1", json!({"cursor": 1})));
    assert_eq!(later.outcome().await.unwrap(), Some(Written { written: 1, ..Written::default() }));
    let trouble = former.write(vec![record(json!({"id": 2}))], &json!({"cursor": 2})).await.expect_err("fenced");
    assert_eq!(trouble.class, Class::Fenced);
    assert_eq!(configuration.sink.open(&around("run-1", 1)).await.err().unwrap().class, Class::Fenced);
    assert_eq!(world.rows("select id from t"), ["Integer(1)"]);
    for other in 0..150 {
        configuration.sink.open(&around(&format!("other-{other}"), 1)).await.unwrap();
    }
    assert!(world.rows("select run from everbeat_flow_cursor").len() <= 101);
}

#[tokio::test]
async fn a_table_is_created_from_the_first_batch_only_if_asked_for() {
    let world = World::new("create table other (id integer)");
    let text = "{\"id\":1,\"name\":\"a\",\"n\":1}\n{\"id\":2,\"n\":1.5,\"tags\":[1],\"ok\":true,\"none\":null}\n";
    let said = failure(&world.flow(text, world.sink(json!({"key": ["id"]})))).await;
    assert!(said.contains("table t does not exist") && said.contains("\"create\": true"), "{said}");
    let report = once(&world.flow(text, world.sink(json!({"key": ["id"], "create": true})))).await.unwrap();
    assert_eq!(report.counts.written, 2, "{:?}", report.rejected);
    let columns = world.rows("select name, type from pragma_table_info('t')");
    assert_eq!(columns.len(), 6);
    assert!(columns.contains(&"Text(\"n\") Text(\"REAL\")".to_string()), "{columns:?}");
}

#[tokio::test]
async fn models_of_rails_are_tables_with_their_times() {
    let world = World::new(
        "create table inventory_items (id integer primary key, name text, created_at datetime not null, updated_at datetime not null)",
    );
    let sink = json!({"type": "ActiveRecord", "url": world.url(), "model_name": "InventoryItem"});
    let report = once(&world.flow("{\"id\":1,\"name\":\"a\"}\n{\"name\":\"b\"}\n", sink.clone())).await.unwrap();
    assert_eq!(report.counts.written, 2, "{:?}", report.rejected);
    let report =
        once_as(&world.flow("{\"id\":1,\"name\":\"a\"}\n{\"id\":2,\"name\":\"c\"}\n", sink), "run-2").await.unwrap();
    assert_eq!((report.counts.unchanged, report.counts.updated), (1, 1));
    assert_eq!(world.rows("select count(*) from inventory_items where created_at like '20%'"), ["Integer(2)"]);
}

#[tokio::test]
async fn a_query_without_a_cursor_is_read_as_a_whole_by_every_run() {
    let world = World::new("create table s (id integer); insert into s values (3), (1), (2)");
    for source in [json!({"query": "select id * 2 as double from s -- all of them"}), json!({"table": "s"})] {
        let mut value = json!({"source": {"type": "sql", "url": world.url()},
            "sink": {"type": "file", "path": world.path("out.ndjson")}, "batch_size": 1});
        value["source"].as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        for name in ["run-1", "run-2"] {
            let report = once_as(&value, &format!("{name} {source}")).await.unwrap();
            assert_eq!(report.counts.read, 3, "{source}");
        }
    }
    assert_eq!(
        lines(&world.path("out.ndjson"))[..3],
        [json!({"double": 6}), json!({"double": 2}), json!({"double": 4})]
    );
}

#[tokio::test]
async fn a_database_that_is_locked_is_waited_for_and_then_the_attempt_fails() {
    let world = World::new("create table t (id integer primary key)");
    let blocker = world.database();
    blocker.execute_batch("begin immediate").unwrap();
    let value = world.flow("{\"id\":1}\n", world.sink(json!({})));
    let (configuration, ledger) = (configure(&value), Memory::default());
    let mut impatient = attempt(&configuration, "run-1", 1, &ledger);
    impatient.patience = std::time::Duration::from_secs(1);
    let halted = run(&impatient).await;
    let Err(Halt::Failed(trouble)) = halted else { panic!("{halted:?}") };
    assert_eq!(trouble.class, Class::Transient, "{trouble}");
    assert!(ledger.notes.lock().unwrap()[0].contains("tries again in 1 s"));
    blocker.execute_batch("rollback").unwrap();
    assert_eq!(run(&attempt(&configuration, "run-1", 2, &ledger)).await.unwrap().counts.written, 1);
}

#[tokio::test]
async fn what_cannot_work_is_said() {
    let world = World::new("create table t (id integer, name text)");
    let said = failure(&world.flow("{\"id\":1}\n", world.sink(json!({"key": ["id"]})))).await;
    assert!(said.contains("ON CONFLICT") || said.contains("UNIQUE"), "{said}");
    let said = failure(&world.flow("{\"id\":1}\n", world.sink(json!({"key": ["nr"]})))).await;
    assert!(said.contains("\"nr\" is not a column"), "{said}");
    let elsewhere = json!({"type": "sql", "url": format!("sqlite://{}", world.path("no.db").display()), "table": "t"});
    assert!(failure(&world.flow("1\n", elsewhere)).await.contains("does not exist"));
    let source = |more: Value| {
        let mut source = json!({"type": "sql", "url": world.url()});
        source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"source": source, "sink": {"type": "stdout"}})
    };
    assert!(failure(&source(json!({"table": "no"}))).await.contains("no does not exist"));
    assert!(failure(&source(json!({"table": "t", "cursor": "nr"}))).await.contains("use one of id, name"));
    assert!(failure(&source(json!({"query": "selec 1"}))).await.contains("syntax error"));
    for (value, part) in [
        (source(json!({})), "name a table, or give a query"),
        (source(json!({"table": "t", "query": "select 1"})), "stands beside a table"),
        (source(json!({"table": "a.b.c"})), "more than one dot"),
        (
            json!({"source": {"type": "sql", "url": "mysql://h/d", "table": "t"}, "sink": {"type": "stdout"}}),
            "use postgres, postgresql, sqlite",
        ),
        (json!({"source": {"type": "sql", "table": "t"}, "sink": {"type": "stdout"}}), "url: is missing"),
        (
            json!({"source": {"type": "sql", "connection": "db", "table": "t"}, "sink": {"type": "stdout"}}),
            "not a connection of this server",
        ),
        (world.flow("", world.sink(json!({"on_conflict": "replace"}))), "\"update\" or \"ignore\""),
        (world.flow("", world.sink(json!({"key": [1]}))), "is not a list of texts"),
    ] {
        let said = refusal(&value);
        assert!(said.contains(part), "{value}: {said}");
    }
    assert!(!Path::new("no.db").exists());
}
