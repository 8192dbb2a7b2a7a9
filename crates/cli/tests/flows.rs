//! Flows of real servers: the whole way of data, what is refused, what is kept secret, what a sink that is away does to memory.

mod common;
mod net;
mod postgres;

use common::{FINISH, Options, Server, code, pause, quick, stdout, until};
use net::{Redis, fresh};
use postgres::Postgres;
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

fn put(server: &Server, name: &str, body: &Value) {
    let (status, answer) = server.put(&format!("/api/v1/flows/{name}"), body);
    assert!([200, 201].contains(&status), "{answer}");
}

/// Asks for a run, and shows it when it is over.
fn run(server: &Server, name: &str, body: &Value) -> Value {
    let (status, asked) = server.post(&format!("/api/v1/flows/{name}/trigger"), body);
    assert!([201, 202].contains(&status), "{asked}");
    ended(server, name, asked["id"].as_str().expect("an id"))
}

fn ended(server: &Server, name: &str, id: &str) -> Value {
    until(FINISH, "the end of a flow's run", || {
        let found = ledger(server, name).into_iter().find(|run| run["id"] == id)?;
        (!found["ended_at"].is_null()).then_some(found)
    })
}

fn ledger(server: &Server, name: &str) -> Vec<Value> {
    server.get(&format!("/api/v1/flows/{name}/runs"))["items"].as_array().cloned().unwrap_or_default()
}

fn sqlite(server: &Server, sql: &str) -> rusqlite::Connection {
    let database = rusqlite::Connection::open(server.folder().join("shop.db")).expect("a database");
    database.execute_batch(sql).expect("a statement");
    database
}

fn number(database: &rusqlite::Connection, sql: &str) -> i64 {
    database.query_row(sql, [], |row| row.get(0)).expect("a number")
}

fn with(connections: &Value) -> Options {
    quick().env("EVERBEAT_FLOWS__CONNECTIONS", connections)
}

/// The example of the flows' first design, to the letter.
fn example() -> Value {
    json!({
        "source": {
            "type": "Rafka",
            "stream_name": "inventory_updates",
            "consumer_group": "data_flow_processors",
            "consumer_name": "product_update_flow_1"
        },
        "sink": { "type": "ActiveRecord", "model_name": "Product" }
    })
}

#[test]
fn the_example_takes_messages_of_redis_into_a_table_of_postgres() {
    let postgres = Postgres::start();
    postgres.query(
        "create table products (id bigint primary key, sku text, stock int, \
         processed_at timestamptz, created_at timestamptz, updated_at timestamptz)",
    );
    let mut redis = Redis::connect();
    redis.ask(&["DEL", "inventory_updates"]);
    let message = |id: u32| json!({"id": id, "sku": format!("sku-{id}"), "stock": id % 7});
    redis.add("inventory_updates", (0..500).map(message));
    let server = Server::start(with(&json!({"redis": Redis::url(), "database": postgres.url()})));
    put(&server, "ProductUpdateFlow", &json!({"enabled": true, "run_interval": 3600, "configuration": example()}));
    // It never ran, so it is due.
    let first = until(FINISH, "the first run", || {
        ledger(&server, "ProductUpdateFlow").into_iter().find(|run| run["status"] == "success")
    });
    assert_eq!((&first["counts"]["read"], &first["counts"]["written"]), (&json!(500), &json!(500)), "{first}");
    let held = "select count(*) from products where processed_at is not null and created_at is not null";
    assert_eq!(postgres.query(held), "500");
    // One is new, one differs, one is there exactly so.
    redis.add("inventory_updates", [message(1000), json!({"id": 1, "stock": 99}), message(2)].into_iter());
    let second = run(&server, "ProductUpdateFlow", &json!({}));
    let counts = &second["counts"];
    assert_eq!(
        (&counts["read"], &counts["written"], &counts["updated"], &counts["unchanged"]),
        (&json!(3), &json!(2), &json!(1), &json!(1)),
        "{second}"
    );
    assert_eq!(postgres.query("select stock from products where id = 1"), "99");
    assert_eq!(redis.ask(&["XPENDING", "inventory_updates", "data_flow_processors"])[0], 0, "all are acknowledged");
    server.assert_sound();
}

#[test]
fn messages_of_a_dead_consumer_are_taken_over_and_double_no_row() {
    let stream = fresh("orphaned");
    let mut redis = Redis::connect();
    redis.add(&stream, (0..300).map(|n| json!({ "n": n })));
    redis.ask(&["XGROUP", "CREATE", &stream, "readers", "0"]);
    // A consumer that took messages and died.
    redis.ask(&["XREADGROUP", "GROUP", "readers", "dead", "COUNT", "100", "STREAMS", &stream, ">"]);
    let server = Server::start(with(&json!({"redis": Redis::url()})));
    let shop = sqlite(&server, "create table seen (n integer)");
    let source = json!({
        "type": "redis_stream", "stream_name": stream, "consumer_group": "readers", "consumer_name": "living",
        "claim_idle": "100ms",
    });
    let flow = json!({"configuration": {"source": source, "sink": {"type": "sql", "url": "sqlite://shop.db", "table": "seen"}}});
    put(&server, "orphans", &flow);
    pause(Duration::from_millis(150));
    let done = run(&server, "orphans", &json!({}));
    assert_eq!((&done["status"], &done["counts"]["written"]), (&json!("success"), &json!(300)), "{done}");
    assert_eq!(number(&shop, "select count(distinct n) from seen"), 300);
    // The group hands one of them out again, as after a lost acknowledgement: it is in the sink already, under its id.
    redis.ask(&["XGROUP", "SETID", &stream, "readers", "0"]);
    assert_eq!(redis.ask(&["XPENDING", &stream, "readers"])[0], 0);
}

#[test]
fn without_any_server_a_file_goes_into_sqlite_through_transforms() {
    let server = Server::start(quick());
    let lines: String = (0..2000).map(|id| format!("{{\"id\":{id},\"price\":{}}}\n", id % 10)).collect();
    fs::write(server.folder().join("products.ndjson"), format!("{lines}not json\n\"no object\"\n")).expect("a file");
    let shop = sqlite(&server, "create table products (id integer primary key, twice integer, processed_at text)");
    let flow = json!({
        "configuration": {
            "source": {"type": "file", "path": "products.ndjson"},
            "transform": [
                {"type": "jq", "program": "if .price == 0 then empty else {id, twice: (.price * 2)} end"},
                {"type": "add", "fields": {"processed_at": "now"}},
            ],
            "sink": {"type": "sql", "url": "sqlite://shop.db", "table": "products"},
        },
        "dead_letter": {"type": "file", "path": "rejected.ndjson"},
        "max_rejected": 2,
    });
    // What would be done is shown before it is, and nothing is written by that.
    let (status, tried) = server.post("/api/v1/flows/products/test?limit=3", &flow);
    assert_eq!(status, 200, "{tried}");
    assert_eq!((&tried["read"], &tried["dropped"]), (&json!(3), &json!(1)));
    assert_eq!((&tried["records"][0]["id"], &tried["records"][1]["twice"]), (&json!(1), &json!(4)), "{tried}");
    assert_eq!(number(&shop, "select count(*) from products"), 0);
    put(&server, "products", &flow);
    let done = run(&server, "products", &json!({}));
    assert_eq!(done["status"], "success", "{done}");
    let counts = &done["counts"];
    assert_eq!((&counts["read"], &counts["written"], &counts["dropped"]), (&json!(2002), &json!(1800), &json!(200)));
    assert_eq!(number(&shop, "select count(*) from products where processed_at is not null and twice > 0"), 1800);
    let letters = fs::read_to_string(server.folder().join("rejected.ndjson")).expect("dead letters");
    let letters: Vec<Value> = letters.lines().map(|line| serde_json::from_str(line).expect("a letter")).collect();
    assert_eq!(letters.len(), 2, "{letters:?}");
    assert_eq!((&letters[0]["position"], &letters[0]["raw"]), (&json!("products.ndjson:2001"), &json!("not json")));
    // One more than may be rejected: the run fails, and says which.
    fs::write(server.folder().join("products.ndjson"), "a\nb\nc\n").expect("a file");
    let failed = run(&server, "products", &json!({}));
    assert_eq!((&failed["status"], &failed["attempt"]), (&json!("failed"), &json!(1)), "{failed}");
    assert!(failed["error_message"].as_str().is_some_and(|said| said.contains("max_rejected")), "{failed}");
    server.assert_sound();
}

#[test]
fn a_task_of_a_worker_is_a_transform() {
    let folder = common::scratch();
    let script = folder.path().join("clean.py");
    let program = r#"
import json, sys
for line in sys.stdin:
    work = json.loads(line)
    def clean(n):
        return None if n % 3 == 0 else {"rejected": "is five"} if n == 5 else {"n": n * 10}
    result = [clean(record["n"]) for record in work["input"]["records"]]
    print(json.dumps({"run_id": work["run_id"], "result": result}), flush=True)
"#;
    fs::write(&script, program).expect("a script");
    let pool = quick()
        .env("EVERBEAT_POOL__CLEAN__COMMAND", json!(["python3", script]))
        .env("EVERBEAT_POOL__CLEAN__PROTOCOL", "lines")
        .env("EVERBEAT_POOL__CLEAN__SIZE", 1);
    let server = Server::start(pool);
    let shop = sqlite(&server, "create table seen (n integer)");
    fs::write(server.folder().join("in.ndjson"), (0..10).map(|n| format!("{{\"n\":{n}}}\n")).collect::<String>())
        .unwrap();
    let flow = json!({"configuration": {
        "source": {"type": "file", "path": "in.ndjson"},
        "transform": {"type": "task", "task": "clean"},
        "sink": {"type": "sql", "url": "sqlite://shop.db", "table": "seen"},
    }});
    put(&server, "cleaned", &flow);
    let done = run(&server, "cleaned", &json!({}));
    assert_eq!(done["status"], "success", "{done}");
    let counts = &done["counts"];
    assert_eq!(
        (&counts["written"], &counts["dropped"], &counts["rejected"]),
        (&json!(5), &json!(4), &json!(1)),
        "{done}"
    );
    assert_eq!(number(&shop, "select sum(n) from seen"), 10 + 20 + 40 + 70 + 80);
    server.assert_sound();
}

#[test]
fn what_cannot_work_is_refused_when_it_is_written_and_says_why() {
    let server = Server::start(quick());
    let sink = || json!({"type": "stdout"});
    for (configuration, field, part) in [
        (json!({"source": {"type": "kafka"}, "sink": sink()}), "configuration.source.type", "is not a type of source"),
        (
            json!({"source": {"type": "file", "path": "a.csv", "colour": 1}, "sink": sink()}),
            "configuration.source.colour",
            "is not a field of a source",
        ),
        (json!({"sink": sink()}), "configuration.source", "is missing"),
        (
            json!({"source": {"type": "redis_stream", "stream_name": "s"}, "sink": sink()}),
            "configuration.source",
            "connection",
        ),
        (
            json!({"source": {"type": "redis_stream", "url": "redis://:hunter2@cache.example", "stream_name": "s"}, "sink": sink()}),
            "configuration.source.url",
            "password",
        ),
    ] {
        let (status, answer) = server.put("/api/v1/flows/bad", &json!({ "configuration": configuration }));
        assert_eq!(status, 422, "{answer}");
        let said = answer.to_string();
        assert!(said.contains(field) && said.contains(part) && !said.contains("hunter2"), "{field}: {said}");
    }
    let (status, answer) =
        server.put("/api/v1/flows/bad", &json!({"configuration": {"source": {"type": "file", "path": "a.ndjson"}, "sink": sink()}, "max_rejected": "lots"}));
    assert!(status == 422 && answer.to_string().contains("max_rejected"), "{answer}");
    assert_eq!(server.status("/api/v1/flows/bad"), 404, "nothing was written");
}

#[test]
fn troubles_are_classified_in_the_ledger_and_no_secret_is_shown_anywhere() {
    const SECRET: &str = "hunter2-is-not-to-be-seen";
    let options = with(&json!({
        "gone": format!("postgres://me:{SECRET}@127.0.0.1:1/none"),
        "unset": {"env": "EVERBEAT_TEST_NO_SUCH_VARIABLE"},
    }));
    let server = Server::start(options);
    fs::write(server.folder().join("in.ndjson"), "{\"n\":1}\n").expect("a file");
    let flow = |sink: Value| json!({"configuration": {"source": {"type": "file", "path": "in.ndjson"}, "sink": sink}, "policy": {"max_attempts": 1}});
    let said = |name: &str| {
        let failed = run(&server, name, &json!({}));
        assert_eq!(failed["status"], "failed", "{failed}");
        failed["error_message"].as_str().unwrap_or_default().to_string()
    };
    put(&server, "unset", &flow(json!({"type": "sql", "connection": "unset", "table": "t"})));
    let message = said("unset");
    assert!(message.contains("EVERBEAT_TEST_NO_SUCH_VARIABLE is not set"), "{message}");
    // A flow's own address may not be of this machine, in whatever way it is written.
    for url in ["http://127.0.0.1:9/", "http://[::ffff:127.0.0.1]:9/", "http://169.254.169.254/", "http://0x7f000001/"]
    {
        let (status, answer) = server.put("/api/v1/flows/near", &flow(json!({"type": "http", "url": url})));
        assert!(status == 422 && answer.to_string().contains("allow_private_targets"), "{url}: {answer}");
    }
    // What a name stands for is known when it is used.
    put(&server, "named", &flow(json!({"type": "http", "url": "http://localhost:9/"})));
    let message = said("named");
    assert!(message.contains("allow_private_targets"), "{message}");
    // Nobody listens there: that may change, and it is tried again until somebody cancels it.
    put(&server, "gone", &flow(json!({"type": "sql", "connection": "gone", "table": "t"})));
    let (_, asked) = server.post("/api/v1/flows/gone/trigger", &json!({}));
    let id = asked["id"].as_str().expect("an id").to_string();
    let note = until(FINISH, "a note", || {
        let shown = server.get(&format!("/api/v1/runs/{id}"));
        shown["progress"]["note"].as_str().map(str::to_string)
    });
    assert!(note.contains("tries again") && note.contains("cannot be reached"), "{note}");
    let shown = ["/api/v1/flows", "/api/v1/flows/gone/runs", &format!("/api/v1/runs/{id}")]
        .map(|path| server.get(path).to_string());
    server.post(&format!("/api/v1/runs/{id}/cancel"), &json!({}));
    assert_eq!(ended(&server, "gone", &id)["status"], "cancelled");
    let events = stdout(&server.cli(&["events"]));
    assert!(events.contains("flow"), "{events}");
    for text in shown.iter().chain([&server.log(), &events]) {
        assert!(!text.contains(SECRET), "{text}");
    }
    server.assert_sound();
}

#[test]
fn a_sink_that_is_away_holds_the_source_back_and_loses_nothing() {
    const ROWS: usize = 40_000;
    let postgres = Postgres::start();
    postgres.query("create table seen (n bigint, pad text)");
    let server = Server::start(with(&json!({"database": postgres.url()})));
    let pad = "x".repeat(200);
    let lines: String = (0..ROWS).map(|n| format!("{{\"n\":{n},\"pad\":\"{pad}\"}}\n")).collect();
    fs::write(server.folder().join("in.ndjson"), lines).expect("a file");
    let flow = json!({"configuration": {
        "source": {"type": "file", "path": "in.ndjson"},
        "sink": {"type": "sql", "connection": "database", "table": "seen"},
        "batch_size": 100,
    }});
    put(&server, "held", &flow);
    let (_, asked) = server.post("/api/v1/flows/held/trigger", &json!({}));
    let id = asked["id"].as_str().expect("an id").to_string();
    until(FINISH, "some batches", || {
        let run = ledger(&server, "held").into_iter().next()?;
        (run["counts"]["read"].as_u64()? > 2000).then_some(())
    });
    postgres.stop();
    until(FINISH, "another try", || {
        let shown = server.get(&format!("/api/v1/runs/{id}"));
        shown["progress"]["note"].as_str().filter(|note| note.contains("tries again")).map(drop)
    });
    let before = memory(&server);
    pause(Duration::from_secs(3));
    let after = memory(&server);
    assert!(after < before + (16 << 20), "memory grew from {before} to {after} while the sink was away");
    postgres.begin();
    let done = ended(&server, "held", &id);
    assert_eq!(
        (&done["status"], &done["attempt"], &done["counts"]["written"]),
        (&json!("success"), &json!(1), &json!(ROWS)),
        "{done}"
    );
    assert_eq!(postgres.query("select count(*) || ' ' || count(distinct n) from seen"), format!("{ROWS} {ROWS}"));
    server.assert_sound();
}

/// Bytes that the server's process holds in memory.
fn memory(server: &Server) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/statm", server.pid())).expect("a process");
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages") * 4096
}

#[test]
fn a_part_of_a_table_is_filled_again_and_the_next_run_goes_on_where_the_flow_was() {
    let server = Server::start(quick());
    let rows: String = (1..=1000).map(|id| format!("insert into orders values ({id}, 'o{id}');")).collect();
    let shop = sqlite(
        &server,
        &format!(
            "create table orders (id integer primary key, name text); create table copied (id integer, name text); begin; {rows} commit"
        ),
    );
    let flow = json!({"configuration": {
        "source": {"type": "sql", "url": "sqlite://shop.db", "table": "orders", "cursor": "id"},
        "sink": {"type": "file", "path": "copied.ndjson"},
        "batch_size": 100,
    }});
    put(&server, "copy", &flow);
    let copied = || fs::read_to_string(server.folder().join("copied.ndjson")).unwrap_or_default().lines().count();
    assert_eq!(run(&server, "copy", &json!({}))["counts"]["written"], 1000);
    let part = run(&server, "copy", &json!({"from": 100, "to": 200}));
    assert_eq!((&part["status"], &part["counts"]["written"]), (&json!("success"), &json!(100)), "{part}");
    assert_eq!(copied(), 1100);
    // Not after the part: everything is read already.
    assert_eq!(run(&server, "copy", &json!({}))["counts"]["read"], 0);
    shop.execute_batch("insert into orders values (1001, 'new')").expect("a row");
    assert_eq!(run(&server, "copy", &json!({}))["counts"]["written"], 1);
    // Again after a cursor of one's choice.
    let cursor = server.get("/api/v1/flows/copy")["cursor"].clone();
    assert!(!cursor.is_null());
    let said = server.cli(&["flow", "runs", "copy"]);
    assert!(code(&said) == 0 && stdout(&said).contains("success"), "{}", stdout(&said));
    server.assert_sound();
}
