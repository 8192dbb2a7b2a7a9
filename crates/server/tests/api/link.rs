use crate::common::{Server, eventually, idle_with_settings, started, started_with_settings, token};
use crate::proto::{self, from_server, from_worker};
use crate::worker::{Line, PATH, Worker, framed, hello, listen, listen_at};
use bytes::{BufMut, Bytes, BytesMut};
use everbeat_engine::Settings;
use everbeat_engine::pools::PoolSettings;
use everbeat_server::{Config, Scope, Tls, WorkerDoors, serve_workers};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use uuid::Uuid;

const OK: u16 = 0;
const INVALID_ARGUMENT: u16 = 3;
const PERMISSION_DENIED: u16 = 7;
const RESOURCE_EXHAUSTED: u16 = 8;
const FAILED_PRECONDITION: u16 = 9;
const UNIMPLEMENTED: u16 = 12;
const UNAVAILABLE: u16 = 14;
const UNAUTHENTICATED: u16 = 16;

async fn start() -> (Server, crate::worker::Listening) {
    let server = started(Config::default()).await;
    let listening = listen(&server, Config::default()).await;
    (server, listening)
}

#[tokio::test]
async fn a_worker_that_says_hello_is_welcomed_and_known() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    assert_eq!(worker.welcome.key.len(), 16);
    assert_eq!(worker.welcome.message_limit, (4 << 20) + (64 << 10));
    assert!(worker.welcome.epoch > 0 && worker.welcome.ping_interval_ms > 0 && worker.welcome.worker_ttl_ms > 0);
    let seen = server.engine.workers().pop().expect("a worker");
    assert_eq!(seen.id.to_string(), worker.welcome.worker_id);
    assert_eq!((seen.sdk.as_str(), seen.host.as_str(), seen.slots, &*seen.state), ("test 1", "elsewhere", 2, "ready"));
    // It leaves in order.
    worker.stream.finish();
    assert_eq!(worker.stream.ended().await.0, OK);
}

#[tokio::test]
async fn a_call_that_is_none_of_a_worker_is_refused_with_its_code() {
    let (_server, listening) = start().await;
    let line = Line::open(listening.address).await;
    let first = |message| framed(&proto::FromWorker { message: Some(message) });
    let said = |change: fn(&mut proto::Hello)| {
        let mut hello = hello(&["train"]);
        change(&mut hello);
        first(from_worker::Message::Hello(hello))
    };
    let other = || said(|_| {});
    let stranger = Uuid::from_u128(7).to_string();
    for (path, headers, sent, code) in [
        ("/everbeat.worker.v1.WorkerLink/Other", &[][..], other(), UNIMPLEMENTED),
        ("/", &[][..], other(), UNIMPLEMENTED),
        (PATH, &[("content-type", "application/json")][..], other(), UNIMPLEMENTED),
        (PATH, &[][..], first(from_worker::Message::Pong(proto::Pong::default())), INVALID_ARGUMENT),
        (PATH, &[][..], framed(&proto::FromWorker::default()), INVALID_ARGUMENT),
        (PATH, &[][..], said(|hello| hello.slots = 0), INVALID_ARGUMENT),
        (PATH, &[][..], said(|hello| hello.slots = 100_000), INVALID_ARGUMENT),
        (PATH, &[][..], said(|hello| hello.tasks = vec![String::new()]), INVALID_ARGUMENT),
        (PATH, &[][..], said(|hello| hello.pool = "ml".to_string()), INVALID_ARGUMENT),
        (PATH, &[][..], said(|hello| hello.worker_id = "me".to_string()), INVALID_ARGUMENT),
        (PATH, &[][..], said(|hello| hello.worker_id = Uuid::from_u128(7).to_string()), INVALID_ARGUMENT),
        (PATH, &[][..], Bytes::from_static(b"GET / HTTP/1.1\r\n"), INVALID_ARGUMENT),
        (PATH, &[][..], Bytes::from_static(&[0, 0, 0, 0, 2, 0xff, 0xff]), INVALID_ARGUMENT),
        (PATH, &[][..], Bytes::from_static(&[1, 0, 0, 0, 0]), UNIMPLEMENTED),
        (PATH, &[][..], Bytes::from_static(&[0, 0xff, 0, 0, 0]), RESOURCE_EXHAUSTED),
    ] {
        let mut stream = line.call(path, headers).await;
        stream.send(sent).await;
        let (found, message) = stream.ended().await;
        assert_eq!(found, code, "{path} {headers:?}: {message}");
        assert!(!message.is_empty());
    }
    let line = Line::open(listening.address).await;
    let mut stream = line.call(PATH, &[]).await;
    let returning = proto::Hello { worker_id: stranger, key: vec![1; 16], ..hello(&["train"]) };
    stream.say(from_worker::Message::Hello(returning)).await;
    assert_eq!(stream.ended().await.0, FAILED_PRECONDITION);
    // Refusals leave the connection as it is.
    Worker::over(line, hello(&["train"])).await;
}

#[tokio::test]
async fn a_worker_from_elsewhere_shows_a_token_that_opens_the_link() {
    let mut config = Config {
        tokens: vec![
            token("workers", "right", &[Scope::Worker]),
            token("operator", "admin", &[Scope::Admin]),
            token("far", "far", &[Scope::Worker]),
        ],
        ..Config::default()
    };
    config.tokens[2].allow = vec!["10.0.0.0/8".parse().expect("a network")];
    let server = started(config.clone()).await;
    let listening = listen(&server, config.clone()).await;
    let check = async |headers: &[(&str, &str)], secret: &str, code: Option<u16>, address| {
        let line = Line::open(address).await;
        let mut stream = line.call(PATH, headers).await;
        let hello = proto::Hello { secret: secret.to_string(), ..hello(&["train"]) };
        stream.say(from_worker::Message::Hello(hello)).await;
        let heard = stream.hear().await;
        assert_eq!(heard.as_ref().err().map(|ended| ended.0), code, "{headers:?} {secret}: {heard:?}");
    };
    let at = listening.address;
    check(&[], "", Some(UNAUTHENTICATED), at).await;
    check(&[], "wrong", Some(UNAUTHENTICATED), at).await;
    check(&[("authorization", "Bearer wrong")], "right", Some(UNAUTHENTICATED), at).await;
    check(&[("authorization", "Bearer admin")], "", Some(PERMISSION_DENIED), at).await;
    check(&[], "admin", Some(PERMISSION_DENIED), at).await;
    check(&[("authorization", "Bearer far")], "", Some(PERMISSION_DENIED), at).await;
    check(&[("authorization", "Bearer right")], "", None, at).await;
    check(&[], "right", None, at).await;
    // An allow list counts whatever the token.
    let narrow = Config { allow: vec!["10.0.0.0/8".parse().expect("a network")], ..config };
    let listening = listen(&server, narrow).await;
    check(&[("authorization", "Bearer right")], "", Some(PERMISSION_DENIED), listening.address).await;
}

#[tokio::test]
async fn connections_without_a_hello_make_room_for_workers_the_oldest_first() {
    /// More than there are places.
    const SILENT: usize = 300;
    let (server, listening) = start().await;
    let begun = server.engine.env().boot();
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(listening.address).await.expect("connected"));
    }
    let first = Worker::connect(listening.address, &["train"]).await;
    // One that is welcomed is no stranger, however many come.
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(listening.address).await.expect("connected"));
    }
    let second = Worker::connect(listening.address, &["train"]).await;
    // Whoever says nothing is closed after 10 seconds anyway: nobody waited for that.
    let took = server.engine.env().boot().since(begun);
    assert!(took < Duration::from_secs(9), "{took:?}");
    let ids: BTreeSet<String> = server.engine.workers().iter().map(|worker| worker.id.to_string()).collect();
    assert_eq!(ids, [first.welcome.worker_id.clone(), second.welcome.worker_id.clone()].into());
    // The oldest was closed, perhaps after the first words of its server; the newest is open.
    let _end = silent[0].read_to_end(&mut Vec::new()).await;
    let newest = silent.last().expect("some");
    let left = std::iter::repeat_with(|| newest.try_read(&mut [0; 64])).find(|read| !matches!(read, Ok(1..)));
    assert!(left.is_some_and(|read| read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)));
}

#[tokio::test]
async fn without_tokens_the_link_is_not_served_to_other_machines() {
    let server = started(Config::default()).await;
    let remote = TcpListener::bind("0.0.0.0:0").await.expect("bound");
    let doors = WorkerDoors { remote: Some(remote), ..WorkerDoors::default() };
    let refused = serve_workers(server.engine.clone(), Config::default(), doors, std::future::pending()).await;
    let error = refused.expect_err("refused").to_string();
    assert!(error.contains("server.worker_listen") && error.contains("loopback"), "{error}");
    // Nor to a page that made its name resolve to this machine.
    let listening = listen(&server, Config::default()).await;
    let stream = TcpStream::connect(listening.address).await.expect("connected");
    let line = Line::over(stream, "evil.example:80").await;
    let mut stream = line.call(PATH, &[]).await;
    stream.say(from_worker::Message::Hello(hello(&["train"]))).await;
    assert_eq!(stream.ended().await.0, PERMISSION_DENIED);
}

#[tokio::test]
async fn a_worker_at_the_socket_of_pools_proves_that_it_was_started_here() {
    let pool = PoolSettings { name: "ml".to_string(), command: vec!["true".to_string()], ..PoolSettings::default() };
    let server = idle_with_settings(Config::default(), |settings| settings.pools = vec![pool]);
    let folder = std::env::temp_dir().join(format!("everbeat-link-{}", Uuid::new_v4()));
    let pools = Some(UnixListener::bind(&folder).expect("bound"));
    let listening = listen_at(&server, Config::default(), WorkerDoors { pools, ..WorkerDoors::default() }).await;
    for (pool, secret, code) in [
        ("", "", INVALID_ARGUMENT),
        ("other", "", FAILED_PRECONDITION),
        ("ml", "", UNAUTHENTICATED),
        ("ml", "guessed", UNAUTHENTICATED),
    ] {
        let stream = UnixStream::connect(&folder).await.expect("connected");
        let line = Line::over(stream, "localhost").await;
        let mut stream = line.call(PATH, &[]).await;
        let hello = proto::Hello { pool: pool.to_string(), secret: secret.to_string(), ..hello(&["train"]) };
        stream.say(from_worker::Message::Hello(hello)).await;
        let (found, message) = stream.ended().await;
        assert_eq!(found, code, "{pool:?} {secret:?}: {message}");
        assert!(!message.contains("guessed"), "{message}");
    }
    drop(listening);
    std::fs::remove_file(&folder).expect("removed");
}

#[tokio::test]
async fn garbage_ends_its_own_stream_and_nothing_else() {
    let (server, listening) = start().await;
    let mut steady = Worker::connect(listening.address, &["train"]).await;
    let mut oversized = BytesMut::new();
    oversized.put_u8(0);
    oversized.put_u32((4 << 20) + (64 << 10) + 1);
    let unreadable = Bytes::from_static(&[0, 0, 0, 0, 2, 0xff, 0xff]);
    let nameless = proto::FromWorker { message: Some(from_worker::Message::Ended(proto::Ended::default())) };
    for (sent, code) in [
        (oversized.freeze(), RESOURCE_EXHAUSTED),
        (unreadable, INVALID_ARGUMENT),
        (Bytes::from_static(&[1, 0, 0, 0, 0]), UNIMPLEMENTED),
        (framed(&nameless), INVALID_ARGUMENT),
        (framed(&proto::FromWorker { message: Some(from_worker::Message::Hello(hello(&[]))) }), INVALID_ARGUMENT),
    ] {
        let mut worker = Worker::connect(listening.address, &["other"]).await;
        worker.stream.send(sent).await;
        let (found, message) = worker.stream.ended().await;
        assert_eq!(found, code, "{message}");
    }
    // What is not even HTTP/2 is cut off.
    let mut raw = TcpStream::connect(listening.address).await.expect("connected");
    raw.write_all(&[b'x'; 4096]).await.expect("sent");
    let mut rest = Vec::new();
    let _reset_or_closed = raw.read_to_end(&mut rest).await;
    let run = server.submit(json!({"task": "train"})).await;
    let work = steady.work().await;
    steady.succeed(&work.lease, "1").await;
    assert_eq!(server.finished(&run).await["state"], "succeeded");
}

#[tokio::test]
async fn what_a_worker_declares_is_written_and_what_cannot_be_is_told() {
    let (server, listening) = start().await;
    let texts = |values: &[serde_json::Value]| values.iter().map(ToString::to_string).collect::<Vec<_>>();
    let flows = texts(&[
        json!({"name": "wrong", "overlap": "sometimes", "configuration": {"task": "train"}}),
        json!({"name": "models", "run_interval": 3600, "configuration": {"task": "train", "epochs": 3}}),
    ]);
    let schedules = texts(&[
        json!({"task": "train", "schedule": {"every": "1h"}}),
        json!({"name": "nightly", "task": "train", "schedule": {"cron": "@daily"}}),
    ]);
    let graphs = texts(&[json!({"name": "g", "nodes": []})]);
    let mut worker =
        Worker::connect_as(listening.address, proto::Hello { flows, schedules, graphs, ..hello(&["train"]) }).await;
    let (mut declined, mut works) = (Vec::new(), Vec::new());
    while declined.len() < 3 || works.is_empty() {
        match worker.stream.hear().await {
            Ok(from_server::Message::Declined(told)) => declined.push(told),
            Ok(from_server::Message::Work(work)) => works.push(work),
            other => panic!("{other:?} is neither"),
        }
    }
    let named: Vec<(&str, &str)> = declined.iter().map(|told| (told.kind.as_str(), told.name.as_str())).collect();
    assert_eq!(named, [("graph", "g"), ("flow", "wrong"), ("schedule", "")]);
    for (told, words) in declined.iter().zip(["nodes", "skip, queue, allow", "name"]) {
        assert!(told.problem.contains(words), "{told:?}");
    }
    // What is due at once is performed by who declared it.
    assert_eq!(works[0].input, r#"{"epochs":3,"task":"train"}"#);
    let flow = server.get("/api/v1/flows/models").await.ok();
    assert_eq!((&flow["declared"], &flow["version"], &flow["run_interval"]), (&json!("same"), &json!(1), &json!(3600)));
    eventually(|| async { (server.get("/api/v1/schedules/nightly").await.status == 200).then_some(()) }).await;
    let many = proto::Hello { flows: vec![String::new(); 1001], ..hello(&["train"]) };
    let line = Line::open(listening.address).await;
    let mut stream = line.call(PATH, &[]).await;
    stream.say(from_worker::Message::Hello(many)).await;
    let (code, problem) = stream.ended().await;
    assert!(code == INVALID_ARGUMENT && problem.contains("1000"), "{code} {problem}");
}

#[tokio::test]
async fn a_run_is_performed_by_a_worker() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let run = server.submit(json!({"task": "train", "input": {"epochs": 3}, "policy": {"deadline": "1m"}})).await;
    let work = worker.work().await;
    let lease = work.lease.clone().expect("a lease");
    assert_eq!((lease.run_id.as_str(), lease.attempt, lease.token.len()), (run.as_str(), 1, 16));
    assert_eq!((work.task.as_str(), work.input.as_str()), ("train", r#"{"epochs":3}"#));
    assert_eq!((work.checkpoint.as_deref(), work.deadline_ms), (None, Some(60_000)));
    worker.succeed(&work.lease, r#"{"loss": 0.5}"#).await;
    let run = server.finished(&run).await;
    assert_eq!((&run["state"], &run["result"]), (&json!("succeeded"), &json!({"loss": 0.5})));
    // A result that comes twice is answered twice and counts once.
    worker.succeed(&work.lease, "2").await;
    let again = server.get(&format!("/api/v1/runs/{}", run["id"].as_str().expect("an id"))).await.ok();
    assert_eq!(again["result"], json!({"loss": 0.5}));
}

#[tokio::test]
async fn a_failure_says_what_it_was_and_whether_trying_again_helps() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let policy = json!({"max_attempts": 2, "backoff": {"initial": "1ms"}});
    let run = server.submit(json!({"task": "train", "policy": policy})).await;
    let failure = |message: &str, permanent| {
        let detail = "Traceback: line 3".to_string();
        proto::ended::Outcome::Failure(proto::Failure { message: message.to_string(), permanent, detail })
    };
    let work = worker.work().await;
    worker.end(&work.lease, failure("ValueError: no", false)).await;
    worker.ended_is_answered(&work.lease).await;
    let work = worker.work().await;
    assert_eq!(work.lease.as_ref().expect("a lease").attempt, 2);
    worker.end(&work.lease, failure("TypeError: never", true)).await;
    let found = server.finished(&run).await;
    assert_eq!(found["state"], "failed", "{found}");
    assert!(found["error"].to_string().contains("TypeError: never"), "{found}");
    assert!(found["error"].to_string().contains("line 3"), "{found}");
    let attempts = server.get(&format!("/api/v1/runs/{run}/attempts")).await.ok();
    assert!(attempts["items"][0]["error"].to_string().contains("ValueError: no"), "{attempts}");
}

#[tokio::test]
async fn progress_is_seen_and_a_checkpoint_is_answered_when_it_is_stored() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let policy = json!({"max_attempts": 2, "backoff": {"initial": "1ms"}});
    let run = server.submit(json!({"task": "train", "policy": policy})).await;
    let work = worker.work().await;
    let beat = || proto::Heartbeat { lease: work.lease.clone(), ..proto::Heartbeat::default() };
    let note = Some("warming up".to_string());
    worker.beat(proto::Heartbeat { done: Some(3), total: Some(10), note, ..beat() }).await;
    eventually(|| async {
        let found = server.get(&format!("/api/v1/runs/{run}")).await.ok();
        (found["progress"]["done"] == 3 && found["progress"]["note"] == "warming up").then_some(())
    })
    .await;
    worker.beat(proto::Heartbeat { checkpoint: Some(r#"{"step": 7}"#.to_string()), sequence: 1, ..beat() }).await;
    let (verdict, answer) = worker.answer().await;
    assert_eq!((verdict, answer.sequence, &answer.lease), (proto::Verdict::GoOn, 1, &work.lease));
    let found = server.get(&format!("/api/v1/runs/{run}")).await.ok();
    assert_eq!(found["checkpoint"], json!({"step": 7}));
    worker.beat(proto::Heartbeat { checkpoint: Some("{".to_string()), sequence: 2, ..beat() }).await;
    let (verdict, answer) = worker.answer().await;
    assert_eq!((verdict, answer.sequence), (proto::Verdict::Refused, 2));
    assert!(answer.problem.contains("JSON"), "{}", answer.problem);
    // A next attempt begins where this one was.
    let failure = proto::Failure { message: "again".to_string(), ..proto::Failure::default() };
    worker.end(&work.lease, proto::ended::Outcome::Failure(failure)).await;
    worker.ended_is_answered(&work.lease).await;
    let work = worker.work().await;
    assert_eq!(work.checkpoint.as_deref(), Some(r#"{"step":7}"#));
    worker.succeed(&work.lease, "null").await;
}

#[tokio::test]
async fn the_largest_value_passes_through_a_small_window() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let run = server.submit(json!({"task": "train"})).await;
    let work = worker.work().await;
    let large = format!("\"{}\"", "x".repeat((4 << 20) - 2));
    for sequence in 1..4 {
        worker.output(&work.lease, sequence, &format!("\"{}\"", "y".repeat(1 << 20))).await;
    }
    worker.succeed(&work.lease, &large).await;
    let found = server.finished(&run).await;
    assert_eq!(found["result"].as_str().map(str::len), Some((4 << 20) - 2));
    // And the other way.
    let input = "z".repeat(3 << 20);
    let run = server.submit(json!({"task": "train", "input": input})).await;
    let work = worker.work().await;
    assert_eq!(work.input.len(), input.len() + 2);
    worker.succeed(&work.lease, "null").await;
    assert_eq!(server.finished(&run).await["state"], "succeeded");
}

/// HTTP/2 servers cut off who sends many small frames that nobody reads yet. A worker that waits for this server is no
/// attacker.
#[tokio::test]
async fn many_small_messages_are_taken_as_fast_as_the_engine_can_and_none_is_lost() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let run = server.submit(json!({"task": "train"})).await;
    let work = worker.work().await;
    let said = |done| {
        let beat = proto::Heartbeat { lease: work.lease.clone(), done: Some(done), ..proto::Heartbeat::default() };
        framed(&proto::FromWorker { message: Some(from_worker::Message::Heartbeat(beat)) })
    };
    for done in 1..=20_000 {
        worker.stream.send(said(done)).await;
    }
    worker.succeed(&work.lease, "1").await;
    let found = server.finished(&run).await;
    assert_eq!((&found["state"], &found["progress"]["done"]), (&json!("succeeded"), &json!(20_000)), "{found}");
}

#[tokio::test]
async fn a_cancelled_attempt_is_told_and_its_end_is_heard() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let cancelled = async |worker: &mut Worker, run: &str| {
        server.post(&format!("/api/v1/runs/{run}/cancel")).await.ok();
        match worker.stream.hear().await {
            Ok(from_server::Message::Cancel(cancel)) => assert_eq!(cancel.why(), proto::Why::Cancelled),
            other => panic!("{other:?} is no cancel"),
        }
    };
    let run = server.submit(json!({"task": "train"})).await;
    let work = worker.work().await;
    cancelled(&mut worker, &run).await;
    worker.beat(proto::Heartbeat { lease: work.lease.clone(), sequence: 1, ..proto::Heartbeat::default() }).await;
    assert_eq!(worker.answer().await.0, proto::Verdict::Cancelled);
    worker.end(&work.lease, proto::ended::Outcome::Stopped(proto::Stopped {})).await;
    worker.ended_is_answered(&work.lease).await;
    assert_eq!(server.finished(&run).await["state"], "cancelled");
    // Whoever has a result in spite of it is heard, and the server decides.
    let run = server.submit(json!({"task": "train"})).await;
    let work = worker.work().await;
    cancelled(&mut worker, &run).await;
    worker.succeed(&work.lease, "5").await;
    let found = server.finished(&run).await;
    assert_eq!((&found["state"], &found["result"]), (&json!("succeeded"), &json!(5)), "{found}");
}

#[tokio::test]
async fn what_shows_a_wrong_lease_changes_nothing() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let run = server.submit(json!({"task": "train"})).await;
    let work = worker.work().await;
    let right = work.lease.clone().expect("a lease");
    for wrong in [
        proto::Lease { token: vec![9; 16], ..right.clone() },
        proto::Lease { attempt: 2, ..right.clone() },
        proto::Lease { run_id: Uuid::from_u128(3).to_string(), ..right },
    ] {
        let lease = Some(wrong);
        let beat =
            proto::Heartbeat { lease: lease.clone(), done: Some(99), sequence: 4, ..proto::Heartbeat::default() };
        worker.beat(beat).await;
        let (verdict, answer) = worker.answer().await;
        assert_eq!((verdict, answer.sequence, &answer.lease), (proto::Verdict::Fenced, 4, &lease));
        worker.succeed(&lease, "\"stolen\"").await;
        let found = server.get(&format!("/api/v1/runs/{run}")).await.ok();
        assert_eq!((&found["state"], &found["result"]), (&json!("running"), &json!(null)));
        assert_ne!(found["progress"]["done"], 99);
    }
    // Nor does another worker with the right one.
    let mut other = Worker::connect(listening.address, &["other"]).await;
    other.succeed(&work.lease, "\"stolen\"").await;
    assert_eq!(server.get(&format!("/api/v1/runs/{run}")).await.ok()["state"], "running");
    worker.succeed(&work.lease, "1").await;
    assert_eq!(server.finished(&run).await["result"], 1);
}

#[tokio::test]
async fn a_worker_that_returns_goes_on_with_what_it_performs() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let run = server.submit(json!({"task": "train"})).await;
    let work = worker.work().await;
    let before = worker.welcome.clone();
    drop(worker);
    let strange = proto::Lease { run_id: Uuid::from_u128(1).to_string(), attempt: 1, token: vec![1; 16] };
    let mut returning =
        proto::Hello { worker_id: before.worker_id.clone(), key: before.key.clone(), ..hello(&["train"]) };
    returning.leases = vec![work.lease.clone().expect("a lease"), strange.clone()];
    let forged = proto::Hello { key: vec![0; 16], ..returning.clone() };
    let line = Line::open(listening.address).await;
    let mut stream = line.call(PATH, &[]).await;
    stream.say(from_worker::Message::Hello(forged)).await;
    assert_eq!(stream.ended().await.0, FAILED_PRECONDITION);
    let mut worker = Worker::connect_as(listening.address, returning).await;
    assert_eq!(worker.welcome.worker_id, before.worker_id);
    assert!(worker.welcome.epoch > before.epoch);
    let (verdict, answer) = worker.answer().await;
    assert_eq!((verdict, answer.lease), (proto::Verdict::Fenced, Some(strange)));
    worker.succeed(&work.lease, "\"after all\"").await;
    assert_eq!(server.finished(&run).await["result"], "after all");
    assert_eq!(server.engine.workers().len(), 1);
}

#[tokio::test]
async fn items_are_answered_once_they_are_stored_and_kept_once_however_often_they_are_said() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    assert!(worker.welcome.answers_output);
    let run = server.submit(json!({"task": "train"})).await;
    let work = worker.work().await;
    let mut returning = proto::Hello { worker_id: worker.welcome.worker_id.clone(), ..hello(&["train"]) };
    returning.leases = vec![work.lease.clone().expect("a lease")];
    let stored = async || {
        let page = server.get(&format!("/api/v1/runs/{run}/output")).await.ok();
        page["items"].as_array().expect("items").iter().map(|item| item["item"].clone()).collect::<Vec<_>>()
    };
    for sequence in 1..=3 {
        worker.output(&work.lease, sequence, &sequence.to_string()).await;
    }
    worker.output_is_answered(&work.lease, 3).await;
    assert_eq!(stored().await, [1, 2, 3]);
    // The answer was lost with the link; what followed it, too. One that cannot be taken need not be said again either.
    returning.key = worker.welcome.key.clone();
    drop(worker);
    let mut worker = Worker::connect_as(listening.address, returning.clone()).await;
    for (sequence, item) in [(2, "2"), (3, "3"), (4, "4"), (5, "{no json"), (6, "6")] {
        worker.output(&work.lease, sequence, item).await;
    }
    worker.output_is_answered(&work.lease, 6).await;
    assert_eq!(stored().await, [1, 2, 3, 4, 6]);
    returning.key = worker.welcome.key.clone();
    drop(worker);
    let mut worker = Worker::connect_as(listening.address, returning).await;
    worker.output(&work.lease, 4, "4").await;
    worker.output_is_answered(&work.lease, 6).await;
    // Of one that counts nothing all is taken, and nothing answered.
    worker.output(&work.lease, 0, "7").await;
    worker.output(&work.lease, 0, "7").await;
    worker.succeed(&work.lease, "\"done\"").await;
    assert_eq!(server.finished(&run).await["result"], "done");
    assert_eq!(stored().await, [1, 2, 3, 4, 6, 7, 7]);
}

#[tokio::test]
async fn a_newer_link_of_a_worker_ends_the_older_one() {
    let (_server, listening) = start().await;
    let mut old = Worker::connect(listening.address, &["train"]).await;
    let proto::Welcome { worker_id, key, .. } = old.welcome.clone();
    let _new = Worker::connect_as(listening.address, proto::Hello { worker_id, key, ..hello(&["train"]) }).await;
    assert_eq!(old.stream.ended().await.0, UNAVAILABLE);
}

#[tokio::test]
async fn a_connection_carries_one_worker() {
    let (_server, listening) = start().await;
    let line = Line::open(listening.address).await;
    let mut first = line.call(PATH, &[]).await;
    first.say(from_worker::Message::Hello(hello(&["train"]))).await;
    assert!(matches!(first.hear().await, Ok(from_server::Message::Welcome(_))));
    let mut second = line.call(PATH, &[]).await;
    second.say(from_worker::Message::Hello(hello(&["train"]))).await;
    assert_eq!(second.ended().await.0, RESOURCE_EXHAUSTED);
    first.finish();
    assert_eq!(first.ended().await.0, OK);
}

#[tokio::test]
async fn links_end_when_the_server_closes() {
    let (_server, mut listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    listening.close.take().expect("open").send(()).expect("serving");
    assert_eq!(worker.stream.ended().await.0, UNAVAILABLE);
    (&mut listening.served).await.expect("ended in order");
}

#[tokio::test]
async fn a_worker_that_is_drained_takes_nothing_new() {
    let server = started_with_settings(Config::default(), |settings: &mut Settings| {
        settings.remote_workers.stop_grace = std::time::Duration::from_secs(5);
    })
    .await;
    let listening = listen(&server, Config::default()).await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let run = server.submit(json!({"task": "train"})).await;
    let work = worker.work().await;
    let id = worker.welcome.worker_id.parse().expect("an id");
    server.engine.drain_worker(id).await.expect("drained");
    assert!(matches!(worker.stream.hear().await, Ok(from_server::Message::Drain(_))));
    let waiting = server.submit(json!({"task": "train"})).await;
    worker.succeed(&work.lease, "1").await;
    worker.stream.finish();
    assert_eq!(server.finished(&run).await["state"], "succeeded");
    assert_eq!(server.get(&format!("/api/v1/runs/{waiting}")).await.ok()["state"], "ready");
}

#[tokio::test]
async fn stacks_are_asked_of_a_worker_and_told() {
    let (server, listening) = start().await;
    let mut worker = Worker::connect(listening.address, &["train"]).await;
    let id = worker.welcome.worker_id.parse().expect("an id");
    let told = async {
        match worker.stream.hear().await {
            Ok(from_server::Message::Dump(dump)) => {
                let stacks = proto::Stacks { sequence: dump.sequence, text: "main.py:3".to_string() };
                worker.stream.say(from_worker::Message::Stacks(stacks)).await;
            }
            other => panic!("{other:?} is no dump"),
        }
    };
    let (text, ()) = tokio::join!(server.engine.dump_worker(id), told);
    assert_eq!(text.expect("told"), "main.py:3");
}

/// A certificate for `localhost` and its key, as PEM.
fn certificate() -> (Vec<u8>, Vec<u8>) {
    let folder = std::env::temp_dir().join(format!("everbeat-tls-{}", Uuid::new_v4()));
    std::fs::create_dir(&folder).expect("a folder");
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let read = (std::fs::read(&cert).expect("read"), std::fs::read(&key).expect("read"));
    std::fs::remove_dir_all(&folder).expect("removed");
    read
}

#[tokio::test]
async fn the_link_is_served_over_tls() {
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

    let (cert, key) = certificate();
    assert!(Tls::from_pem(b"nothing", &key).is_err());
    assert!(Tls::from_pem(&cert, b"nothing").is_err());
    let (_, foreign) = certificate();
    assert!(Tls::from_pem(&cert, &foreign).is_err(), "a key of another certificate is refused");
    let tls = Some(Tls::from_pem(&cert, &key).expect("usable"));
    let server = started(Config::default()).await;
    let listening = listen_at(&server, Config::default(), WorkerDoors { tls, ..WorkerDoors::default() }).await;

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&cert).expect("a certificate")).expect("added");
    let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(listening.address).await.expect("connected");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, stream).await.expect("trusted");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut worker = Worker::over(Line::over(stream, "localhost").await, hello(&["train"])).await;
    let run = server.submit(json!({"task": "train"})).await;
    let work = worker.work().await;
    worker.succeed(&work.lease, "1").await;
    assert_eq!(server.finished(&run).await["state"], "succeeded");
    // Whoever speaks in the clear is not understood.
    let mut raw = TcpStream::connect(listening.address).await.expect("connected");
    raw.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sent");
    let mut rest = Vec::new();
    let _reset_or_closed = raw.read_to_end(&mut rest).await;
    assert!(rest.len() < 16, "{rest:?}");
}
