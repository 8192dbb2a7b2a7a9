//! The life of a server process: how it starts, refuses to start, and leaves.

mod common;

use common::{Options, Server, code, quick, stderr, until};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn refuses(options: &Options, parts: &[&str]) {
    let output = options.command().output().expect("it runs");
    let said = stderr(&output);
    assert_eq!(code(&output), 3, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

fn sleeping(server: &Server, millis: u64) -> String {
    let id = server.submit("sleep", json!({ "ms": millis }), json!({}));
    server.until_state(&id, "running");
    id
}

#[test]
fn the_address_is_found_in_the_data_folder_which_is_private() {
    let server = Server::start(quick());
    let listen = fs::read_to_string(server.options.data_dir.join("listen")).expect("the file");
    assert_eq!(format!("http://{}", listen.trim()), server.url);
    let mode = fs::metadata(&server.options.data_dir).expect("the folder").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let log = server.log();
    assert!(log.contains("everbeat.db") && log.contains("replica "), "{log}");
}

#[test]
fn a_taken_address_is_refused_with_the_remedy() {
    let server = Server::start(quick());
    let options = quick().listen(&server.address());
    refuses(&options, &[&server.address(), "taken", "--listen"]);
}

#[test]
fn a_second_server_on_the_same_file_is_refused() {
    let server = Server::start(quick());
    refuses(&server.options, &["everbeat.db", "in use by another", "--data-dir", "PostgreSQL"]);
    assert_eq!(server.get("/livez")["status"], "alive");
}

#[test]
fn a_store_that_cannot_be_used_is_refused_with_the_remedy() {
    refuses(&quick().store("sqlite:///does/not/exist/everbeat.db"), &["/does/not/exist", "store.url"]);
}

#[test]
fn a_data_folder_that_cannot_be_made_is_refused() {
    let mut options = quick();
    fs::write(options.data_dir.with_extension("file"), "").expect("written");
    options.data_dir = options.data_dir.with_extension("file").join("inside");
    refuses(&options, &["inside", "--data-dir"]);
}

#[test]
fn the_first_signal_drains_and_reads_are_still_answered() {
    let mut server = Server::start(quick().env("EVERBEAT_REPLICA__DRAIN_GRACE", "20s"));
    let id = sleeping(&server, 1500);
    server.signal("TERM");
    until(SOON, "not ready", || (server.status("/readyz") == 503).then_some(()));
    assert_eq!(server.get(&format!("/api/v1/runs/{id}"))["state"], "running");
    assert_eq!(server.exit_code(SOON), Some(0));
    let server = Server::start(server.options.clone());
    let run = server.wait(&id);
    assert_eq!((&run["state"], &run["attempt"]), (&json!("succeeded"), &json!(1)), "it was let finish");
}

#[test]
fn what_does_not_finish_in_time_is_handed_back_at_no_cost() {
    let mut server = Server::start(quick().env("EVERBEAT_REPLICA__DRAIN_GRACE", "100ms"));
    let id = sleeping(&server, 1000);
    server.signal("INT");
    assert_eq!(server.exit_code(SOON), Some(0));
    let server = Server::start(server.options.clone());
    let run = server.wait(&id);
    let attempts = server.get(&format!("/api/v1/runs/{id}/attempts"));
    assert_eq!(attempts["items"][0]["outcome"], "released");
    assert_eq!(attempts["items"][1]["outcome"], "succeeded");
    assert_eq!((&run["attempt"], &run["tries"], &run["max_attempts"]), (&json!(2), &json!(1), &json!(3)));
    let shown = common::stdout(&server.cli(&["show", &id]));
    let line = |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!((line("attempt "), line("tries used ")), (Some("2"), Some("1 of 3")), "{shown}");
    assert!(common::stdout(&server.cli(&["ls", "runs"])).contains(" 1/3 "), "tries, not the attempt");
}

#[test]
fn the_second_signal_stops_at_once() {
    let mut server = Server::start(quick().env("EVERBEAT_REPLICA__DRAIN_GRACE", "1h"));
    sleeping(&server, 600_000);
    server.signal("TERM");
    until(SOON, "draining", || (server.status("/readyz") == 503).then_some(()));
    server.signal("TERM");
    assert_eq!(server.exit_code(SOON), Some(143));
}

#[test]
fn a_replica_drained_by_request_ends_with_0() {
    let mut server = Server::start(quick());
    let replica = server.get("/readyz")["replica_id"].as_str().expect("an id").to_string();
    assert_eq!(code(&server.cli(&["replica", "drain", &replica])), 0);
    assert_eq!(server.exit_code(SOON), Some(0));
}

#[test]
fn the_service_manager_is_told() {
    let options = quick();
    let path = options.data_dir.with_extension("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut server = Server::start(options.env("NOTIFY_SOCKET", path.display()));
    let mut buffer = [0; 100];
    let length = socket.recv(&mut buffer).expect("a message");
    assert_eq!(&buffer[..length], b"READY=1");
    server.signal("TERM");
    let length = socket.recv(&mut buffer).expect("a message");
    assert_eq!(&buffer[..length], b"STOPPING=1");
    assert_eq!(server.exit_code(SOON), Some(0));
}

#[test]
fn a_log_in_json_is_json_from_the_first_line_to_the_last() {
    let lines = |said: &str| -> Vec<serde_json::Value> {
        let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        said.lines().map(line).collect()
    };
    let in_json = || quick().env("EVERBEAT_TELEMETRY__LOG_FORMAT", "json");
    let mut server = Server::start(in_json().env("EVERBEAT_TELEMETRY__LOG", "debug").env("EVERBEAT_ULR", "x"));
    server.signal("TERM");
    assert_eq!(server.exit_code(SOON), Some(0));
    let said = lines(&server.log());
    assert!(said.iter().any(|line| line["message"] == "ready" && line["url"] == server.url.as_str()), "{said:?}");
    assert!(said.iter().any(|line| line["level"] == "WARN" && line["message"].to_string().contains("EVERBEAT_URL")));

    let mut no_folder = in_json();
    fs::write(no_folder.data_dir.with_extension("file"), "").expect("written");
    no_folder.data_dir = no_folder.data_dir.with_extension("file").join("inside");
    for wrong in [in_json().env("EVERBEAT_REPLICA__SLOTS", "many"), no_folder] {
        let ended = wrong.command().output().expect("it runs");
        assert!(!ended.status.success());
        let said = lines(&stderr(&ended));
        assert!(said.iter().any(|line| line["level"] == "ERROR"), "{said:?}");
    }
}
