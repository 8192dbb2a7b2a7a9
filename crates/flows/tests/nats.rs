//! Streams of a real NATS server.

#[path = "net/mod.rs"]
mod support;

use async_nats::jetstream::{self, Context, stream::Config};
use everbeat_flows::{Class, Room, Settings};
use futures_util::FutureExt;
use serde_json::{Value, json};
use support::{
    ROOM, assert_trouble, fresh, open_sink, open_source, operator, records, run_to_end, server, server_url, trouble_of,
};

fn url() -> String {
    server_url("EVERBEAT_TEST_NATS", "nats://user:password@127.0.0.1:4222")
}

fn settings() -> Settings {
    operator("nats", &url())
}

/// A stream of its own, whose messages are `{"n": 0}` and so on.
struct Stream {
    name: String,
    context: Context,
}

impl Stream {
    async fn create(messages: u64) -> Stream {
        let url = url::Url::parse(&url()).unwrap();
        let options = async_nats::ConnectOptions::new()
            .user_and_password(url.username().to_string(), url.password().unwrap_or_default().to_string());
        let address = format!("nats://{}:{}", url.host_str().unwrap(), url.port().unwrap());
        let context = jetstream::new(options.connect(address).await.unwrap());
        let name = fresh("stream");
        let subjects = vec![format!("{name}.*")];
        context.create_stream(Config { name: name.clone(), subjects, ..Config::default() }).await.unwrap();
        let stream = Stream { name, context };
        stream.add(0..messages).await;
        stream
    }

    async fn add(&self, numbers: std::ops::Range<u64>) {
        for n in numbers {
            self.publish("a", json!({"n": n}).to_string()).await;
        }
    }

    async fn publish(&self, token: &str, payload: String) {
        let sent = self.context.publish(format!("{}.{token}", self.name), payload.into()).await.unwrap();
        sent.await.unwrap();
    }

    /// Refuses what the cursor names, so that the server delivers it again at once.
    async fn deliver_again(&self, cursor: &Value) {
        let text = |name: &str| cursor[name].as_str().unwrap();
        let client = self.context.client();
        for ack in text("acks").split(' ') {
            let subject = format!("{}.{ack}{}", text("prefix"), text("suffix"));
            client.publish(subject, "-NAK".into()).await.unwrap();
        }
        client.flush().await.unwrap();
    }

    async fn unacknowledged(&self) -> usize {
        let stream = self.context.get_stream(&self.name).await.unwrap();
        stream.consumer_info("tested").await.unwrap().num_ack_pending
    }

    fn source(&self) -> Value {
        json!({"type": "nats_jetstream", "stream": self.name, "durable": "tested", "ack_wait": "1s"})
    }
}

fn numbers(values: &[Value]) -> Vec<u64> {
    values.iter().map(|value| value["n"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_run_reads_what_is_there_and_the_next_one_what_came_since() {
    let stream = Stream::create(250).await;
    let mut first = open_source(&stream.source(), &settings(), None).await.unwrap();
    let run = run_to_end(&mut *first, Room { records: 70, ..ROOM }).await.unwrap();
    assert_eq!(numbers(&run.values()), (0..250).collect::<Vec<_>>());
    assert_eq!(stream.unacknowledged().await, 0);
    stream.add(250..255).await;
    let mut second = open_source(&stream.source(), &settings(), run.cursors.last()).await.unwrap();
    assert_eq!(numbers(&run_to_end(&mut *second, ROOM).await.unwrap().values()), (250..255).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_lost_attempt_hands_over_again_what_was_not_committed_and_nothing_else() {
    let stream = Stream::create(30).await;
    let ten = Room { records: 10, ..ROOM };
    let mut lost = open_source(&stream.source(), &settings(), None).await.unwrap();
    let first = lost.read(ten).await.unwrap();
    let second = lost.read(ten).await.unwrap();
    let third = lost.read(ten).await.unwrap();
    assert_eq!((first.records.len(), second.records.len(), third.records.len()), (10, 10, 10));
    drop(lost);
    assert_eq!(stream.unacknowledged().await, 30);
    // Two batches are in the sink; neither was acknowledged. The third comes again when its time is over.
    let mut next = open_source(&stream.source(), &settings(), Some(&second.cursor)).await.unwrap();
    assert_eq!(stream.unacknowledged().await, 10);
    let run = run_to_end(&mut *next, ten).await.unwrap();
    let mut again = run.records;
    again.sort_by_key(|record| record.value["n"].as_u64());
    assert_eq!(again, third.records);
    assert_eq!(stream.unacknowledged().await, 0);
}

#[tokio::test]
async fn a_message_that_comes_again_within_a_run_is_handed_over_once() {
    let stream = Stream::create(5).await;
    let mut value = stream.source();
    value["follow"] = json!(true);
    let mut source = open_source(&value, &settings(), None).await.unwrap();
    let first = source.read(ROOM).await.unwrap();
    assert_eq!(first.records.len(), 5);
    stream.deliver_again(&first.cursor).await;
    stream.add(5..6).await;
    let second = source.read(ROOM).await.unwrap();
    assert_eq!(numbers(&second.records.iter().map(|record| record.value.clone()).collect::<Vec<_>>()), [5]);
    source.acknowledge(&first.cursor).await.unwrap();
    stream.deliver_again(&first.cursor).await;
    let run = run_to_end(&mut *source, ROOM).await.unwrap();
    assert!(run.records.is_empty(), "{:?}", run.records);
    assert_eq!(stream.unacknowledged().await, 0);
}

#[tokio::test]
async fn a_dropped_read_loses_nothing_and_doubles_nothing() {
    let stream = Stream::create(60).await;
    let mut source = open_source(&stream.source(), &settings(), None).await.unwrap();
    let mut read = Vec::new();
    loop {
        // What was asked for at the first poll comes after the future was dropped.
        let at_once = source.read(ROOM).now_or_never();
        let batch = match at_once {
            Some(batch) => batch.unwrap(),
            None => source.read(ROOM).await.unwrap(),
        };
        read.extend(batch.records.iter().map(|record| record.value.clone()));
        source.acknowledge(&batch.cursor).await.unwrap();
        if batch.last {
            break;
        }
    }
    let mut read = numbers(&read);
    read.sort_unstable();
    assert_eq!(read, (0..60).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_run_does_not_chase_a_stream_that_grows() {
    let stream = Stream::create(5).await;
    let mut source = open_source(&stream.source(), &settings(), None).await.unwrap();
    stream.add(5..300).await;
    let run = run_to_end(&mut *source, Room { records: 2, ..ROOM }).await.unwrap();
    assert!((5..=7).contains(&run.records.len()), "{}", run.records.len());
}

#[tokio::test]
async fn a_cursor_of_a_stream_that_was_made_anew_hides_no_message() {
    let stream = Stream::create(10).await;
    let mut source = open_source(&stream.source(), &settings(), None).await.unwrap();
    let cursor = source.read(ROOM).await.unwrap().cursor;
    drop(source);
    stream.context.delete_stream(&stream.name).await.unwrap();
    let subjects = vec![format!("{}.*", stream.name)];
    stream.context.create_stream(Config { name: stream.name.clone(), subjects, ..Config::default() }).await.unwrap();
    stream.add(0..10).await;
    let mut source = open_source(&stream.source(), &settings(), Some(&cursor)).await.unwrap();
    assert_eq!(run_to_end(&mut *source, ROOM).await.unwrap().records.len(), 10);
}

#[tokio::test]
async fn a_filter_lets_some_subjects_through_and_what_is_not_json_is_told() {
    let stream = Stream::create(3).await;
    stream.publish("b", "{oops".to_string()).await;
    stream.publish("b", "[1]".to_string()).await;
    stream.add(3..4).await;
    let mut value = stream.source();
    value["filter_subject"] = json!(format!("{}.b", stream.name));
    let mut source = open_source(&value, &settings(), None).await.unwrap();
    let run = run_to_end(&mut *source, ROOM).await.unwrap();
    assert_eq!(run.values(), [json!([1])]);
    assert_eq!(run.rejected[0].raw, "{oops");
    assert_eq!(stream.unacknowledged().await, 0);
    value["filter_subject"] = json!(format!("{}.c", stream.name));
    assert_trouble(&trouble_of(&value, &settings()).await, Class::Permanent, "name another consumer");
}

#[tokio::test]
async fn a_sink_that_writes_again_stores_once() {
    let stream = Stream::create(0).await;
    let sink = json!({"type": "nats", "subject": format!("{}.a", stream.name)});
    let values = || (0..600).map(|n| json!({"n": n}));
    let mut first = open_sink(&sink, &settings(), 1).await.unwrap();
    assert_eq!(first.write(records(values()), &Value::Null).await.unwrap().written, 600);
    let mut second = open_sink(&sink, &settings(), 2).await.unwrap();
    let written = second.write(records(values()), &Value::Null).await.unwrap();
    assert_eq!((written.written, written.unchanged), (0, 600));
    let mut source = open_source(&stream.source(), &settings(), None).await.unwrap();
    assert_eq!(run_to_end(&mut *source, ROOM).await.unwrap().values(), values().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_record_that_is_too_large_is_rejected_and_the_others_are_written() {
    let stream = Stream::create(0).await;
    let sink = json!({"type": "nats_jetstream", "subject": format!("{}.a", stream.name)});
    let mut sink = open_sink(&sink, &settings(), 1).await.unwrap();
    let written = sink.write(records([json!(1), json!("x".repeat(2 << 20)), json!(2)]), &Value::Null).await.unwrap();
    assert_eq!((written.written, written.rejected.len()), (2, 1));
}

#[tokio::test]
async fn what_will_never_work_is_told_apart_from_what_may() {
    let source = json!({"type": "nats", "stream": "there_is_none"});
    assert_trouble(&trouble_of(&source, &settings()).await, Class::Permanent, "no stream \"there_is_none\"");
    let away = format!("nats://u:hunter2@{}", server::nobody());
    assert_trouble(&trouble_of(&source, &operator("nats", &away)).await, Class::Transient, "NATS at nats://127.0.0.1");
    let mut wrong = url::Url::parse(&url()).unwrap();
    wrong.set_password(Some("hunter2")).unwrap();
    let trouble = trouble_of(&source, &operator("nats", wrong.as_str())).await;
    assert_trouble(&trouble, Class::Permanent, "check user and password");
    let babbler = format!("nats://{}", server::babbler(b"HTTP/1.1 400 Bad Request\r\n\r\n", b""));
    assert_trouble(&trouble_of(&source, &operator("nats", &babbler)).await, Class::Transient, "NATS at");
    let sink = json!({"type": "nats", "subject": fresh("nobody.takes")});
    let mut sink = open_sink(&sink, &settings(), 1).await.unwrap();
    let trouble = sink.write(records([json!(1)]), &Value::Null).await.unwrap_err();
    assert_trouble(&trouble, Class::Permanent, "add a stream");
}

#[tokio::test]
async fn a_flow_reaches_no_inner_address_by_itself() {
    let port = url::Url::parse(&url()).unwrap().port().unwrap();
    let source = json!({"type": "nats", "stream": "s", "url": format!("nats://localhost:{port}")});
    assert_trouble(&trouble_of(&source, &Settings::default()).await, Class::Permanent, "loopback");
}
