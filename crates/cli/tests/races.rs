//! Many at once: equal requests make one run, and each run is started once.

mod common;
mod postgres;

use common::{FINISH, Options, Server, quick, until};
use postgres::Postgres;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const EQUAL_REQUESTS: usize = 50;

fn at_once(servers: &[Server], body: &Value, key: Option<&str>) -> Vec<(u16, Value)> {
    std::thread::scope(|scope| {
        let send = |n: usize| {
            let server = &servers[n % servers.len()];
            scope.spawn(move || match key {
                Some(key) => server.post_with("/api/v1/runs", body, &[("Idempotency-Key", key)]),
                None => server.post("/api/v1/runs", body),
            })
        };
        let requests: Vec<_> = (0..EQUAL_REQUESTS).map(send).collect();
        requests.into_iter().map(|request| request.join().unwrap()).collect()
    })
}

fn equal_requests_make_one_run(servers: &[Server]) {
    let unique = json!({ "task": "sleep", "input": { "ms": 700 }, "unique_key": "one" });
    let plain = json!({ "task": "sleep", "input": { "ms": 700 } });
    for (body, key) in [(&unique, None), (&plain, Some("key-1"))] {
        let answers = at_once(servers, body, key);
        let ids: BTreeSet<&str> =
            answers.iter().map(|(_, run)| run["id"].as_str().unwrap_or_else(|| panic!("{run}"))).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        let created = answers.iter().filter(|(status, _)| *status == 201).count();
        assert_eq!(created, 1, "one request created it, the others were answered 200");
        assert!(answers.iter().all(|(status, _)| [200, 201].contains(status)));
    }
    let (status, problem) =
        servers[0].post_with("/api/v1/runs", &json!({ "task": "noop" }), &[("Idempotency-Key", "key-1")]);
    assert_eq!(status, 422, "{problem}");
    assert_eq!(servers[0].get("/api/v1/runs?task=sleep")["items"].as_array().unwrap().len(), 2);
}

#[test]
fn fifty_equal_requests_make_one_run_on_sqlite() {
    equal_requests_make_one_run(&[Server::start(Options::default())]);
}

#[test]
fn fifty_equal_requests_make_one_run_on_two_replicas_of_postgresql() {
    let postgres = Postgres::start();
    let servers = [Server::start(quick().store(postgres.url())), Server::start(quick().store(postgres.url()))];
    equal_requests_make_one_run(&servers);
}

#[test]
fn eight_replicas_start_each_of_a_thousand_runs_once() {
    const RUNS: usize = 1000;
    let postgres = Postgres::start();
    // The usual timeouts: eight servers on two cores may be late, which is not what this is about.
    let servers: Vec<Server> = (0..8).map(|_| Server::start(Options::default().store(postgres.url()))).collect();
    let (status, _) = servers[0].post("/api/v1/queues/race/pause", &json!({}));
    assert_eq!(status, 200);
    let runs: Vec<Value> = (0..RUNS).map(|n| json!({ "task": "echo", "input": n, "queue": "race" })).collect();
    let (status, answer) = servers[1].post("/api/v1/runs:batch", &json!({ "runs": runs }));
    assert_eq!((status, answer["items"].as_array().unwrap().len()), (201, RUNS));
    let (status, _) = servers[2].post("/api/v1/queues/race/resume", &json!({}));
    assert_eq!(status, 200);

    until(FINISH, "all are finished", || {
        let checked = servers[3].get("/api/admin/invariants");
        (checked["checked"]["succeeded"] == RUNS).then_some(())
    });
    let mut by_replica: BTreeMap<String, usize> = BTreeMap::new();
    for run in answer["items"].as_array().unwrap() {
        let attempts = servers[4].get(&format!("/api/v1/runs/{}/attempts", run["id"].as_str().unwrap()));
        let attempts = attempts["items"].as_array().unwrap();
        assert_eq!(attempts.len(), 1, "{attempts:?}");
        assert_eq!(attempts[0]["attempt"], 1);
        *by_replica.entry(attempts[0]["replica_id"].as_str().unwrap().to_string()).or_default() += 1;
    }
    assert!(by_replica.len() > 1, "only one replica worked: {by_replica:?}");
    servers[5].assert_sound();
}
