//! Executions carried on by several replicas on one PostgreSQL.

mod common;
mod graph;
mod postgres;

use common::{FINISH, Server, pause, quick, until};
use graph::{calm, input, jq};
use postgres::Postgres;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn a_computation_whose_performer_dies_is_retried_after_the_heartbeat_timeout() {
    let postgres = Postgres::start();
    let mut first = Server::start(quick().store(postgres.url()));
    first.apply(&json!({ "name": "long", "nodes": [
        input("go"),
        { "name": "work", "kind": "compute", "gate": ["go"], "task": "sleep", "args": { "ms": 2000 },
          "options": { "deadline": "5h" } },
        jq("after", json!(["work"]), ".work.slept_ms"),
    ]}));
    let id = first.execute("long", json!({ "go": 1 })).id;
    until(FINISH, "it is computed", || (first.execution(&id).node("work")["attempt"] == 1).then_some(()));
    let second = Server::start(quick().store(postgres.url()));
    second.until_observed(&first.replica_id());
    first.kill9();
    let execution = second.execution(&id);
    until(FINISH, "it is tried again at the other replica", || (execution.node("work")["attempt"] == 2).then_some(()));
    assert_eq!(execution.any("after")["value"], 2000);
    let history = execution.history();
    assert_eq!(history.iter().filter(|entry| entry["node"] == "work").count(), 1, "{history:?}");
    second.assert_sound();
}

#[test]
fn ticks_fire_once_per_due_time_with_three_replicas() {
    let postgres = Postgres::start();
    let servers: Vec<Server> = (0..3).map(|_| Server::start(calm().store(postgres.url()))).collect();
    let fires = |name: &str, tick: &str| jq(name, json!([tick]), "now");
    let tick = |name: &str, kind: &str, program: &str| json!({ "name": name, "kind": kind, "gate": ["delay"], "task": "jq", "args": { "program": program } });
    servers[0].apply(&json!({ "name": "ticking", "nodes": [
        input("delay"),
        tick("once", "tick_once", "now + .delay"), fires("fired", "once"),
        tick("never", "tick_once", "null"), fires("not_fired", "never"),
        tick("again", "tick_recurring", "if (.round // 0) >= 4 then null else now + .delay end"),
        jq("round", json!(["again"]), "(.round // 0) + 1"),
    ]}));
    let ids: Vec<String> = (0..20).map(|_| servers[0].execute("ticking", json!({ "delay": 0.5 })).id).collect();
    for id in &ids {
        let execution = servers[1].execution(id);
        execution.any("fired");
        until(FINISH, "the recurring one pauses", || (execution.node("again")["state"] == "paused").then_some(()));
        assert_eq!(execution.node("never")["state"], "paused");
        assert_eq!(execution.ask("not_fired", "").0, 404, "a paused tick does not fire");
    }
    // Long enough for anything that would fire a second time.
    pause(Duration::from_secs(2));
    for id in &ids {
        let history = servers[2].execution(id).history();
        let count = |node: &str| history.iter().filter(|entry| entry["node"] == node && entry["kind"] == "set").count();
        assert_eq!((count("fired"), count("not_fired")), (1, 0), "{history:?}");
        let armed = history.iter().filter(|entry| entry["node"] == "again" && !entry["value"].is_null()).count();
        assert!(armed >= 4, "{history:?}");
        assert_eq!(count("round"), armed, "once for each time that it was armed: {history:?}");
    }
    let runs = servers[0].get("/api/v1/runs?kind=node&task=jq&limit=1000");
    let fired = runs["items"].as_array().unwrap().iter().filter(|run| run["parent"]["node"] == "fired").count();
    assert_eq!(fired, ids.len(), "one computation for each");

    let execution = servers[0].execution(&ids[0]);
    let before = execution.ask("once", "").1;
    execution.set(json!({ "delay": 0.3 }));
    let after = execution.newer_than("once", before["revision"].as_u64().unwrap());
    assert_ne!(after["value"], before["value"], "a changed upstream computes the schedule anew");
    execution.newer_than("fired", before["revision"].as_u64().unwrap() + 2);
    servers[0].assert_sound();
}

#[test]
fn a_tick_missed_while_everything_was_down_fires_after_the_start() {
    for postgres in [None, Some(Postgres::start())] {
        let options = postgres.as_ref().map_or_else(calm, |postgres| calm().store(postgres.url()));
        let server = Server::start(options);
        server.apply(&json!({ "name": "missed", "nodes": [
            { "name": "soon", "kind": "tick_once", "task": "jq", "args": { "program": "now + 1" } },
            jq("fired", json!(["soon"]), "\"at last\""),
        ]}));
        let id = server.execute("missed", json!({})).id;
        server.execution(&id).any("soon");
        let mut server = server;
        server.kill9();
        pause(Duration::from_millis(1500));
        let server = Server::start(server.options.clone());
        assert_eq!(server.execution(&id).any("fired")["value"], "at last");
    }
}

#[test]
fn a_thousand_who_wait_cause_no_statements_and_a_set_elsewhere_wakes_them() {
    let postgres = Postgres::start();
    let options = || calm().store(postgres.url()).env("EVERBEAT_SERVER__RATE_LIMIT", "off");
    let (here, there) = (Server::start(options()), Server::start(options()));
    here.apply(&json!({ "name": "waited", "nodes": [input("x"), input("y")] }));
    let id = here.execute("waited", json!({ "x": 1 })).id;
    let statements = || -> u64 {
        postgres.query("select pg_stat_force_next_flush()");
        postgres.query("select sum(xact_commit) from pg_stat_database").parse().unwrap()
    };
    const WINDOW: Duration = Duration::from_secs(10);
    let in_window = || {
        pause(Duration::from_secs(2));
        let before = statements();
        pause(WINDOW);
        statements() - before
    };
    let idle = in_window();
    let answered = AtomicUsize::new(0);
    let (mut waited, mut woken) = (0, Duration::ZERO);
    std::thread::scope(|scope| {
        for _ in 0..1000 {
            scope.spawn(|| {
                let (status, value) = here.execution(&id).ask("y", "?wait=any&timeout=50s");
                assert_eq!((status, &value["value"]), (200, &json!("woken")));
                answered.fetch_add(1, Ordering::SeqCst);
            });
        }
        waited = in_window();
        let begun = common::stopwatch();
        there.execution(&id).set(json!({ "y": "woken" }));
        until(FINISH, "all are answered", || (answered.load(Ordering::SeqCst) == 1000).then_some(()));
        woken = begun.elapsed();
    });
    eprintln!(
        "transactions in {WINDOW:?}: {idle} idle, {waited} with a thousand who wait; all answered after {woken:?}"
    );
    // Replicas beat and look around all the time; those who wait add nothing.
    assert!(waited <= idle + idle / 10 + 5, "{idle} idle, {waited} with a thousand who wait");
}

#[test]
fn ten_concurrent_sets_are_one_history_and_the_last_wins() {
    let postgres = Postgres::start();
    let servers: Vec<Server> = (0..2).map(|_| Server::start(calm().store(postgres.url()))).collect();
    servers[0].apply(&json!({ "name": "raced", "nodes": [input("x"), jq("double", json!(["x"]), ".x * 2")] }));
    let id = servers[0].execute("raced", json!({ "x": -1 })).id;
    let revisions: Vec<u64> = std::thread::scope(|scope| {
        let set = |n: usize| servers[n % 2].execution(&id).set(json!({ "x": n }));
        let setters: Vec<_> = (0..10).map(|n| scope.spawn(move || set(n))).collect();
        setters.into_iter().map(|setter| setter.join().unwrap()).collect()
    });
    let mut sorted = revisions.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 10, "each change has a revision of its own: {revisions:?}");
    let execution = servers[0].execution(&id);
    let x = execution.ask("x", "").1;
    let last = revisions.iter().position(|revision| Some(*revision) == x["revision"].as_u64()).expect("one of them");
    assert_eq!(x["value"], last, "the last one counts");
    execution.until_value("double", &json!(last * 2));
    let history = execution.history();
    let places: Vec<u64> = history.iter().map(|entry| entry["revision"].as_u64().unwrap()).collect();
    assert!(places.is_sorted(), "{places:?}");
    let mut x = Value::Null;
    for entry in &history {
        match entry["node"].as_str() {
            Some("x") => x = entry["value"].clone(),
            _ => {
                assert_eq!(entry["value"].as_i64(), x.as_i64().map(|x| x * 2), "computed with what x was: {history:?}")
            }
        }
    }
    let computed = history.iter().filter(|entry| entry["node"] == "double").count();
    assert!(computed <= 11, "at most one computation for each state: {computed}");
    servers[0].assert_sound();
}
