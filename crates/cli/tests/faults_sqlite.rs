//! A SQLite server killed 200 times under load.

mod common;

use common::{FINISH, Options, Server, pause, stopwatch, until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const KILLS: u32 = 200;
const CLIENTS: usize = 3;
/// After which a silent replica is judged, if nothing proves its death before.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Accepted runs, and those whose answer was lost.
#[derive(Default)]
struct Sent {
    accepted: BTreeSet<String>,
    unanswered: u32,
}

#[test]
fn two_hundred_kills_lose_nothing_and_end_nothing_twice() {
    let folder = common::scratch();
    // The usual timeouts: a successor that had to wait for them would take a minute, not a second.
    let options = || Options::default().data_dir(folder.path());
    let sent = Mutex::new(Sent::default());
    let mut slowest = Duration::ZERO;
    for kill in 0..KILLS {
        let mut server = Server::start(options());
        if kill > 0 {
            slowest = slowest.max(taken_back(&server));
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (server, sent, stop) = (&server, &sent, &stop);
                scope.spawn(move || load(server, client, sent, stop));
            }
            // A different moment each time, from a fixed sequence.
            pause(Duration::from_millis(u64::from(20 + (kill * 37) % 60)));
            server.kill9_shared();
            stop.store(true, Ordering::SeqCst);
        });
        server.forget();
        assert_intact(&folder.path().join("everbeat.db"));
    }
    assert_intact(&folder.path().join("everbeat.db"));

    let server = Server::start(options());
    until(FINISH, "everything is finished", || {
        let queues = server.get("/api/v1/queues");
        let unfinished = |queue: &Value| {
            ["ready", "running", "scheduled"].iter().map(|state| queue[state].as_u64().unwrap()).sum::<u64>()
        };
        (queues["items"].as_array().unwrap().iter().map(unfinished).sum::<u64>() == 0).then_some(())
    });
    let sent = sent.into_inner().unwrap();
    assert!(sent.accepted.len() > 1000, "only {} runs were accepted: too little load", sent.accepted.len());
    let checked = server.assert_sound();
    let count = |name: &str| checked["checked"][name].as_u64().unwrap();
    assert_eq!(count("succeeded"), count("runs"), "{checked}");
    let accepted = sent.accepted.len() as u64;
    assert!(
        (accepted..=accepted + u64::from(sent.unanswered)).contains(&count("runs")),
        "{accepted} accepted, {checked}"
    );
    for run in &sent.accepted {
        let attempts = server.get(&format!("/api/v1/runs/{run}/attempts"));
        let outcomes: Vec<&str> =
            attempts["items"].as_array().unwrap().iter().filter_map(|attempt| attempt["outcome"].as_str()).collect();
        let (last, earlier) = outcomes.split_last().expect("an attempt");
        assert_eq!(*last, "succeeded", "{run}: {outcomes:?}");
        assert!(earlier.iter().all(|outcome| *outcome == "lost"), "{run}: {outcomes:?}");
    }
    assert!(slowest < TIMEOUT / 2, "a successor took {slowest:?} to take its runs back: it waited for silence");
    eprintln!("{accepted} runs accepted, {} unanswered, slowest recovery {slowest:?}", sent.unanswered);
}

/// How long the new server took until no lease of a predecessor was left, by proof and not by silence.
fn taken_back(server: &Server) -> Duration {
    let begun = stopwatch();
    let me = server.replica_id();
    until(TIMEOUT, "the predecessor is judged and its runs are taken back", || {
        let replicas = server.get("/api/v1/replicas");
        let others = replicas["items"].as_array().unwrap().iter().filter(|replica| replica["id"] != me.as_str());
        others.into_iter().all(|replica| replica["state"] == "dead" && replica["running"] == 0).then_some(())
    });
    let verdicts = server.get("/api/v1/verdicts?limit=50");
    let replicas =
        verdicts["items"].as_array().unwrap().iter().filter(|verdict| verdict["subject"]["kind"] == "replica");
    replicas.for_each(|verdict| assert_eq!(verdict["reason"], "lock_released", "{verdict}"));
    begun.elapsed()
}

fn load(server: &Server, client: usize, sent: &Mutex<Sent>, stop: &AtomicBool) {
    let mut number = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        let ms = (number * 7 + client as u64) % 40;
        match server.try_post("/api/v1/runs", &json!({ "task": "sleep", "input": { "ms": ms }, "policy": { "max_attempts": 1000, "backoff": { "max": "10ms", "initial": "1ms" } } })) {
            Some((201, run)) => _ = sent.lock().unwrap().accepted.insert(run["id"].as_str().unwrap().to_string()),
            Some((status, problem)) => panic!("{status}: {problem}"),
            None => sent.lock().unwrap().unanswered += 1,
        }
    }
}

fn assert_intact(file: &Path) {
    let database = rusqlite::Connection::open(file).unwrap();
    let answer: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(answer, "ok");
}

#[test]
fn a_second_server_on_the_same_file_is_refused_clearly() {
    let folder = common::scratch();
    let first = Server::start(Options::default().data_dir(folder.path()));
    let second = Server::run_to_end(Options::default().data_dir(folder.path()));
    assert_eq!(second.status.code(), Some(3), "{second:?}");
    let text = String::from_utf8_lossy(&second.stderr).to_string();
    assert!(text.contains("in use by another") && text.contains("everbeat.db"), "{text}");
    let run = first.submit("echo", json!(1), json!({}));
    assert_eq!(first.wait(&run)["state"], "succeeded", "the first is not disturbed");
}
