//! Streams of a real Redis server.

#[path = "net/mod.rs"]
mod support;

use everbeat_flows::{Class, Configuration, Room, Settings};
use futures_util::FutureExt;
use redis::{Connection, cmd};
use serde_json::{Value, json};
use support::{
    ROOM, assert_trouble, careless, fresh, open_sink, open_source, operator, records, run_to_end, server, server_url,
    trouble_of,
};

fn url() -> String {
    server_url("EVERBEAT_TEST_REDIS", "redis://127.0.0.1:6379")
}

fn settings() -> Settings {
    operator("redis", &url())
}

fn connect() -> Connection {
    redis::Client::open(url()).unwrap().get_connection().unwrap()
}

/// A stream with messages `{"n": 0}` and so on.
fn stream(messages: usize) -> (String, Connection) {
    let (name, mut connection) = (fresh("stream"), connect());
    add(&mut connection, &name, 0..messages);
    (name, connection)
}

fn add(connection: &mut Connection, stream: &str, numbers: std::ops::Range<usize>) {
    for n in numbers {
        let data = json!({"n": n}).to_string();
        cmd("XADD").arg(stream).arg("*").arg("data").arg(data).query::<String>(connection).unwrap();
    }
}

fn source(stream: &str, consumer: &str) -> Value {
    json!({
        "type": "redis_stream", "stream_name": stream, "consumer_group": "group", "consumer_name": consumer,
        "claim_idle": "1h",
    })
}

fn pending(connection: &mut Connection, stream: &str) -> usize {
    let (count, ..): (usize, redis::Value, redis::Value, redis::Value) =
        cmd("XPENDING").arg(stream).arg("group").query(connection).unwrap();
    count
}

fn numbers(values: &[Value]) -> Vec<u64> {
    values.iter().map(|value| value["n"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_run_reads_what_is_there_and_the_next_one_what_came_since() {
    let (name, mut connection) = stream(250);
    let mut first = open_source(&source(&name, "a"), &settings(), None).await.unwrap();
    let run = run_to_end(&mut *first, Room { records: 70, ..ROOM }).await.unwrap();
    assert_eq!(numbers(&run.values()), (0..250).collect::<Vec<_>>());
    assert_eq!(pending(&mut connection, &name), 0);
    add(&mut connection, &name, 250..255);
    let mut second = open_source(&source(&name, "a"), &settings(), run.cursors.last()).await.unwrap();
    assert_eq!(numbers(&run_to_end(&mut *second, ROOM).await.unwrap().values()), (250..255).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_configuration_of_the_seed_reads_from_the_operators_redis() {
    let (name, _) = stream(3);
    let source = json!({
        "type": "Rafka", "stream_name": name, "consumer_group": "data_flow_processors",
        "consumer_name": "product_update_flow_1",
    });
    for connection in ["redis", "rafka"] {
        let mut source = source.clone();
        source["consumer_group"] = json!(connection);
        let mut source = open_source(&source, &operator(connection, &url()), None).await.unwrap();
        assert_eq!(run_to_end(&mut *source, ROOM).await.unwrap().records.len(), 3);
    }
}

#[tokio::test]
async fn a_stream_that_does_not_exist_is_made_and_empty() {
    let name = fresh("stream");
    let mut source = open_source(&source(&name, "a"), &settings(), None).await.unwrap();
    assert!(run_to_end(&mut *source, ROOM).await.unwrap().records.is_empty());
    assert!(cmd("EXISTS").arg(&name).query::<bool>(&mut connect()).unwrap());
}

#[tokio::test]
async fn a_lost_attempt_hands_over_again_what_was_not_committed_and_nothing_else() {
    let (name, mut connection) = stream(30);
    let ten = Room { records: 10, ..ROOM };
    let mut lost = open_source(&source(&name, "a"), &settings(), None).await.unwrap();
    let first = lost.read(ten).await.unwrap();
    let second = lost.read(ten).await.unwrap();
    let third = lost.read(ten).await.unwrap();
    assert_eq!((first.records.len(), second.records.len(), third.records.len()), (10, 10, 10));
    drop(lost);
    assert_eq!(pending(&mut connection, &name), 30);
    // Two batches are in the sink; neither was acknowledged.
    let mut next = open_source(&source(&name, "a"), &settings(), Some(&second.cursor)).await.unwrap();
    let run = run_to_end(&mut *next, ten).await.unwrap();
    assert_eq!(run.records, third.records);
    assert_eq!(pending(&mut connection, &name), 0);
}

#[tokio::test]
async fn messages_of_a_dead_consumer_are_claimed_and_those_of_a_living_one_are_not() {
    let (name, mut connection) = stream(150);
    let mut dead = open_source(&source(&name, "dead"), &settings(), None).await.unwrap();
    dead.read(ROOM).await.unwrap();
    drop(dead);
    let mut patient = open_source(&source(&name, "patient"), &settings(), None).await.unwrap();
    assert_eq!(run_to_end(&mut *patient, ROOM).await.unwrap().records.len(), 50);
    let mut eager = source(&name, "eager");
    eager["claim_idle"] = json!("0s");
    let mut eager = open_source(&eager, &settings(), None).await.unwrap();
    let run = run_to_end(&mut *eager, Room { records: 30, ..ROOM }).await.unwrap();
    assert_eq!(numbers(&run.values()), (0..100).collect::<Vec<_>>());
    assert_eq!(pending(&mut connection, &name), 0);
}

#[tokio::test]
async fn a_dropped_read_loses_nothing_and_doubles_nothing() {
    let (name, _) = stream(60);
    let mut source = open_source(&source(&name, "a"), &settings(), None).await.unwrap();
    let five = Room { records: 5, ..ROOM };
    let mut read = Vec::new();
    for dropped in 0.. {
        // The request is sent at the first poll, and its answer comes to nobody.
        if dropped % 2 == 0 && source.read(five).now_or_never().is_some() {
            panic!("an answer before the request");
        }
        let batch = source.read(five).await.unwrap();
        read.extend(batch.records.iter().map(|record| record.value.clone()));
        if dropped % 3 == 0 {
            source.acknowledge(&batch.cursor).await.unwrap();
        }
        if batch.last {
            break;
        }
    }
    assert_eq!(numbers(&read), (0..60).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_run_does_not_chase_a_stream_that_grows() {
    let (name, mut connection) = stream(5);
    let mut source = open_source(&source(&name, "a"), &settings(), None).await.unwrap();
    add(&mut connection, &name, 5..500);
    let run = run_to_end(&mut *source, Room { records: 2, ..ROOM }).await.unwrap();
    assert!((5..=7).contains(&run.records.len()), "{}", run.records.len());
}

#[tokio::test]
async fn a_run_that_follows_reads_until_nothing_is_left() {
    let (name, mut connection) = stream(5);
    let mut value = source(&name, "a");
    value["follow"] = json!(true);
    let mut source = open_source(&value, &settings(), None).await.unwrap();
    add(&mut connection, &name, 5..50);
    assert_eq!(run_to_end(&mut *source, Room { records: 2, ..ROOM }).await.unwrap().records.len(), 50);
}

#[tokio::test]
async fn deleted_messages_are_told_and_acknowledged() {
    let (name, mut connection) = stream(4);
    let mut lost = open_source(&source(&name, "a"), &settings(), None).await.unwrap();
    let ids: Vec<String> =
        lost.read(ROOM).await.unwrap().records.iter().map(|record| record.position.to_string()).collect();
    let id = |at: usize| ids[at].rsplit(':').next().unwrap().to_string();
    cmd("XDEL").arg(&name).arg(&[id(1), id(2)]).query::<usize>(&mut connection).unwrap();
    drop(lost);
    let mut again = open_source(&source(&name, "a"), &settings(), None).await.unwrap();
    let run = run_to_end(&mut *again, ROOM).await.unwrap();
    assert_eq!(numbers(&run.values()), [0, 3]);
    assert_eq!(run.rejected.len(), 2);
    assert!(run.rejected[0].reason.contains("deleted"));
    assert_eq!(pending(&mut connection, &name), 0);
}

#[tokio::test]
async fn deleted_messages_of_a_dead_consumer_are_told_too() {
    let (name, mut connection) = stream(4);
    let mut dead = open_source(&source(&name, "dead"), &settings(), None).await.unwrap();
    let position = dead.read(ROOM).await.unwrap().records[2].position.to_string();
    cmd("XDEL").arg(&name).arg(position.rsplit(':').next().unwrap()).query::<usize>(&mut connection).unwrap();
    let mut eager = source(&name, "eager");
    eager["claim_idle"] = json!(0);
    let mut eager = open_source(&eager, &settings(), None).await.unwrap();
    let run = run_to_end(&mut *eager, ROOM).await.unwrap();
    assert_eq!(numbers(&run.values()), [0, 1, 3]);
    assert_eq!(run.rejected.len(), 1, "{:?}", run.rejected);
    assert_eq!(pending(&mut connection, &name), 0);
}

#[tokio::test]
async fn what_a_sink_wrote_a_source_reads_and_repeats_are_told() {
    let (name, mut connection) = (fresh("stream"), connect());
    let sink = json!({"type": "redis_stream", "stream_name": name});
    let values = || (0..700).map(|n| json!({"n": n}));
    for fence in 1..=2 {
        let mut sink = open_sink(&sink, &settings(), fence).await.unwrap();
        let written = sink.write(records(values()), &Value::Null).await.unwrap();
        assert_eq!(written.written, 700);
    }
    let mut reading = source(&name, "a");
    reading["payload"] = json!("data");
    let mut reading = open_source(&reading, &settings(), None).await.unwrap();
    let run = run_to_end(&mut *reading, ROOM).await.unwrap();
    assert_eq!(run.values(), values().chain(values()).collect::<Vec<_>>());
    let all: Vec<(String, Vec<(String, String)>)> =
        cmd("XRANGE").arg(&name).arg("-").arg("+").query(&mut connection).unwrap();
    assert_eq!(all[3].1[1], ("id".to_string(), "run/in:3".to_string()));
    assert_eq!(all[3].1, all[703].1);
}

#[tokio::test]
async fn a_sink_keeps_about_as_many_messages_as_it_may() {
    let (name, mut connection) = (fresh("stream"), connect());
    let sink = json!({"type": "redis_stream", "stream_name": name, "maxlen": 100});
    let mut sink = open_sink(&sink, &settings(), 1).await.unwrap();
    sink.write(records((0..2000).map(Value::from)), &Value::Null).await.unwrap();
    let kept: usize = cmd("XLEN").arg(&name).query(&mut connection).unwrap();
    assert!((100..1000).contains(&kept), "{kept}");
}

#[tokio::test]
async fn a_server_that_is_away_is_tried_again_and_a_wrong_password_is_not() {
    let away = format!("redis://u:hunter2@{}", server::nobody());
    let source = source("s", "a");
    assert_trouble(&trouble_of(&source, &operator("redis", &away)).await, Class::Transient, "cannot connect");
    let wrong = url().replace("redis://", "redis://nobody:hunter2@");
    assert_trouble(&trouble_of(&source, &operator("redis", &wrong)).await, Class::Permanent, "check user and password");
    let database = format!("{}/hunter", url());
    assert_trouble(&trouble_of(&source, &operator("redis", &database)).await, Class::Permanent, "number of a database");
}

#[tokio::test]
async fn what_is_no_stream_or_no_redis_is_named() {
    let (name, mut connection) = (fresh("text"), connect());
    cmd("SET").arg(&name).arg("x").query::<()>(&mut connection).unwrap();
    assert_trouble(&trouble_of(&source(&name, "a"), &settings()).await, Class::Permanent, "key of a stream");
    for garbage in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"*1\r\n*1\r\n*1\r\n:x\r\n", b"+OK\r\n"] {
        let address = server::babbler(b"", garbage);
        let trouble = trouble_of(&source("s", "a"), &operator("redis", &format!("redis://{address}"))).await;
        assert!(trouble.message.contains("redis://127.0.0.1"), "{trouble}");
        assert_trouble(&trouble, Class::Permanent, "Redis server");
    }
}

#[tokio::test]
async fn a_flow_reaches_no_inner_address_by_itself() {
    let port = url().rsplit(':').next().unwrap().to_string();
    let mut value = source("s", "a");
    value["url"] = json!(format!("redis://localhost:{port}"));
    assert_trouble(&trouble_of(&value, &Settings::default()).await, Class::Permanent, "loopback");
    assert!(open_source(&value, &careless(), None).await.is_ok());
    value["url"] = json!(format!("redis://127.0.0.1:{port}"));
    let configuration = json!({"source": value, "sink": {"type": "http", "url": "https://unused.example"}});
    let invalid = Configuration::parse(&configuration, &Settings::default()).map(|_| ()).unwrap_err();
    assert_eq!(invalid.field, "source.url");
}
