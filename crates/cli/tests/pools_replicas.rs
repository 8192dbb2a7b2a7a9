//! The workers of several servers on one PostgreSQL, as each server shows them.

mod common;
mod postgres;

use common::{FINISH, Options, Server, code, quick, stderr, stdout, until};
use postgres::Postgres;
use serde_json::Value;

/// Workers that speak lines serve from their start on: no SDK is needed.
fn with_pool() -> Options {
    quick()
        .env("EVERBEAT_POOL__ML__COMMAND", r#"["sleep", "1000"]"#)
        .env("EVERBEAT_POOL__ML__PROTOCOL", "lines")
        .env("EVERBEAT_POOL__ML__SIZE", 2)
}

/// Waits until a server lists so many workers.
fn listed(server: &Server, count: usize) -> Vec<Value> {
    until(FINISH, "so many workers are listed", || {
        let workers = server.get("/api/v1/workers")["items"].as_array().cloned()?;
        let serve = workers.iter().all(|worker| worker["state"] == "ready");
        (serve && workers.len() == count).then_some(workers)
    })
}

#[test]
fn each_server_lists_the_workers_of_all_and_says_whose_they_are() {
    let postgres = Postgres::start();
    let mut first = Server::start(with_pool().store(postgres.url()));
    let second = Server::start(quick().store(postgres.url()));
    let (replica, address) = (first.replica_id(), first.address().to_string());
    let mine = listed(&first, 2);
    let told = listed(&second, 2);
    for (mine, told) in mine.iter().zip(&told) {
        for same in ["id", "pool", "state", "class", "pid", "slots", "tasks", "started_at", "replica_id", "server"] {
            assert_eq!(mine[same], told[same], "{same}");
        }
        assert_eq!((mine["replica_id"].as_str(), mine["server"].as_str()), (Some(&*replica), Some(&*address)));
        assert!(mine["told_at"].is_null() && told["told_at"].is_string(), "{mine} {told}");
    }
    let part = second.get("/api/v1/workers?pool=ml&state=ready&limit=1");
    assert_eq!(part["items"][0]["id"], told[0]["id"]);
    let rest = second.get(&format!("/api/v1/workers?cursor={}", part["next_cursor"].as_str().expect("more")));
    assert_eq!(rest["items"][0]["id"], told[1]["id"]);
    assert_eq!(second.get("/api/v1/workers?pool=other")["items"], serde_json::json!([]));

    let id = told[0]["id"].as_str().expect("an id");
    let shown = second.cli(&["show", id]);
    assert!(stdout(&shown).contains(&replica) && stdout(&shown).contains(&address), "{}", stdout(&shown));
    let end = &id[id.len() - 12..];
    assert!(stdout(&second.cli(&["ls", "workers"])).contains(end));
    for verb in ["ping", "restart", "drain", "dump"] {
        let refused = second.cli(&["worker", verb, end]);
        let said = stderr(&refused);
        assert_ne!(code(&refused), 0, "{verb}");
        assert!(said.contains(id) && said.contains(&replica) && said.contains(&address), "{verb}: {said}");
    }

    // Replaced here, seen there.
    first.cli(&["worker", "drain", end]);
    until(FINISH, "the other server lists another", || {
        let ids: Vec<Value> = listed(&second, 2).into_iter().map(|worker| worker["id"].clone()).collect();
        (!ids.contains(&told[0]["id"])).then_some(())
    });
    first.kill9();
    listed(&second, 0);
    second.assert_sound();
}
