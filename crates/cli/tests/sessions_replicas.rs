//! Strict sessions with several replicas: one of them keeps the session of a key, and others leave its runs to that one.

mod common;
mod postgres;

use common::{Options, Server, quick, until};
use postgres::Postgres;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
/// Answers each line with the number of its process.
const WORKER: &str = r#"["sh", "-c", "while read -r line; do sleep 0.02; echo \"{\\\"result\\\": $$}\"; done"]"#;

fn options(postgres: &Postgres) -> Options {
    quick()
        .store(postgres.url())
        .env("EVERBEAT_POOL__ML__COMMAND", WORKER)
        .env("EVERBEAT_POOL__ML__PROTOCOL", "lines")
        .env("EVERBEAT_POOL__ML__SIZE", 2)
}

fn ready(server: &Server) {
    until(SOON, "workers that serve", || (server.get("/api/v1/pools/ml")["ready"] == 2).then_some(()));
}

fn submit(server: &Server, key: &str) -> String {
    let session = json!({ "key": key, "affinity": "strict" });
    let (status, run) = server.post("/api/v1/runs", &json!({ "task": "ml", "session": session }));
    assert_eq!(status, 201, "{run}");
    run["id"].as_str().expect("an id").to_string()
}

fn sessions(server: &Server) -> BTreeSet<String> {
    let page = server.get("/api/v1/pools/ml/sessions");
    let key = |session: &Value| session["key"].as_str().expect("a key").to_string();
    page["items"].as_array().expect("items").iter().map(key).collect()
}

#[test]
fn one_replica_keeps_the_strict_session_of_a_key_until_it_is_gone() {
    let postgres = Postgres::start();
    let mut pair = [Server::start(options(&postgres)), Server::start(options(&postgres))];
    pair.iter().for_each(ready);
    let keys: Vec<String> = (0..4).map(|number| format!("user-{number}")).collect();
    let runs: Vec<(&String, String)> = (0..25)
        .flat_map(|turn| keys.iter().map(move |key| (turn, key)))
        .map(|(turn, key)| (key, submit(&pair[turn % 2], key)))
        .collect();
    let mut workers: BTreeMap<&String, BTreeSet<String>> = BTreeMap::new();
    for (key, run) in &runs {
        let ended = pair[0].wait(run);
        assert_eq!((&ended["state"], &ended["tries"]), (&json!("succeeded"), &json!(1)), "{ended}");
        let worker = ended["worker_id"].as_str().expect("a worker").to_string();
        workers.entry(key).or_default().insert(worker);
    }
    assert!(workers.values().all(|each| each.len() == 1), "{workers:?}");
    let held = [sessions(&pair[0]), sessions(&pair[1])];
    assert!(held[0].is_disjoint(&held[1]), "{held:?}");
    assert_eq!(held[0].len() + held[1].len(), keys.len(), "{held:?}");

    let keeper = usize::from(held[0].is_empty());
    let key = held[keeper].first().expect("a session").clone();
    pair[keeper].kill9();
    let other = &pair[1 - keeper];
    let waiting: Vec<String> = (0..5).map(|_| submit(other, &key)).collect();
    for run in waiting {
        let ended = other.wait(&run);
        assert_eq!(ended["state"], "succeeded", "{ended}");
        assert!(!workers[&key].contains(ended["worker_id"].as_str().expect("a worker")), "{ended}");
    }
    assert!(sessions(other).contains(&key), "the session begins anew at the other one");
    other.assert_sound();
}

#[test]
fn a_replica_that_leaves_lets_go_of_its_sessions() {
    let postgres = Postgres::start();
    let first = Server::start(options(&postgres));
    ready(&first);
    let before = first.wait(&submit(&first, "user"));
    let second = Server::start(options(&postgres));
    ready(&second);
    let (status, _) = second.post(&format!("/api/v1/replicas/{}/drain", first.replica_id()), &json!({}));
    assert!([200, 202].contains(&status), "{status}");
    let after = second.wait(&submit(&second, "user"));
    assert_eq!(after["state"], "succeeded", "{after}");
    assert_ne!(after["worker_id"], before["worker_id"]);
    assert_eq!(sessions(&second), BTreeSet::from(["user".to_string()]));
    second.assert_sound();
}
