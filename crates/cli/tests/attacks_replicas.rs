//! Two of three servers are frozen and killed again and again under load: what they had is taken over, ends once, and
//! the third, which nobody touches, is never judged. `EVERBEAT_ATTACK_SECONDS=60` makes it last longer.

mod attack;
mod common;
mod job;
mod postgres;

use attack::{Ask, Chance, Clients, TIMEOUT, attack_time, pages, reckon, steady};
use common::{Server, pause, stopwatch};
use postgres::Postgres;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

#[test]
fn servers_frozen_and_killed_again_and_again_lose_nothing_and_the_untouched_one_lives() {
    let postgres = Postgres::start();
    let folder = common::scratch();
    let marks = folder.path().join("marks");
    let untouched = Server::start(steady().store(postgres.url()));
    let id = untouched.replica_id();
    let storm: Vec<Server> = (0..2).map(|_| Server::start(steady().store(postgres.url()))).collect();
    let hosts: Vec<job::Host> = storm.iter().map(|server| job::Host::with(server.options.clone())).collect();
    let clients = Clients::of(storm.iter().chain([&untouched]));
    // A server that is killed costs what it performs a try.
    let patient = json!({ "max_attempts": 1000 });
    let what = |key: &str, number: u64| match number % 10 {
        0 => Ask::job(key, &marks, "0.2"),
        _ => Ask::task(number % 7 * 100, &patient),
    };
    let struck = Mutex::new(Struck::default());
    let survivors = Mutex::new(Vec::new());
    let mut sent = clients.load_during(what, || {
        std::thread::scope(|scope| {
            for (n, server) in storm.into_iter().enumerate() {
                let (struck, survivors) = (&struck, &survivors);
                scope.spawn(move || {
                    let server = strike(server, &mut Chance(n as u64), struck);
                    survivors.lock().unwrap().push(server);
                });
            }
        });
    });
    clients.settle_unanswered(&mut sent);

    let runs = reckon(&untouched, &sent);
    let jobs = attack::assert_each_ran_once(&marks, &sent, |key| key.ends_with('0'));
    let struck = struck.into_inner().unwrap();
    assert_eq!(untouched.replica_id(), id, "nobody touched it");
    for verdict in pages(&untouched, "/api/v1/verdicts") {
        let judged = [&verdict["subject"]["id"], &verdict["evidence"]["replica_id"]];
        let mut judged = judged.into_iter().filter_map(Value::as_str);
        assert!(judged.any(|judged| struck.replicas.contains(judged)), "a verdict on what nobody touched: {verdict}");
    }
    eprintln!(
        "storm: {} kills, {} freezes of {} replicas; {} runs ({jobs} of them jobs), {} requests unanswered",
        struck.kills,
        struck.freezes,
        struck.replicas.len(),
        runs.len(),
        sent.failures
    );
    drop(survivors);
    drop(hosts);
}

#[derive(Default)]
struct Struck {
    /// Whoever was killed or frozen.
    replicas: BTreeSet<String>,
    kills: u32,
    freezes: u32,
}

fn strike(mut server: Server, chance: &mut Chance, struck: &Mutex<Struck>) -> Server {
    let begun = stopwatch();
    while begun.elapsed() < attack_time() {
        pause(Duration::from_millis(chance.below(1500)));
        // It may be about to join again: then it has no id, and nothing that could be judged.
        let id = server.try_replica_id();
        if chance.below(3) == 0 {
            note(struck, id, |struck| struck.kills += 1);
            server = server.restart();
            continue;
        }
        // Mostly for a moment, at times for longer than the timeout.
        let frozen = Duration::from_millis(100 + chance.below(1 + TIMEOUT.as_millis() as u64 * 3 / 2));
        note(struck, id, |struck| struck.freezes += 1);
        server.signal("STOP");
        pause(frozen);
        server.signal("CONT");
    }
    server
}

fn note(struck: &Mutex<Struck>, id: Option<String>, count: impl FnOnce(&mut Struck)) {
    let mut struck = struck.lock().unwrap();
    struck.replicas.extend(id);
    count(&mut struck);
}
