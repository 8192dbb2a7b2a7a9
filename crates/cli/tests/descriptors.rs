//! Few descriptors, and more clients than there are: work goes on all the same.

mod common;

use common::{BINARY, Options, Server, pause, quick, stopwatch, until};
use serde_json::json;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const SOFT: usize = 160;
const HARD: usize = 256;
const CLIENTS: usize = 500;

/// A server that starts with these limits of descriptors.
fn limited(mut options: Options, folder: &Path) -> Options {
    let script = folder.join("limited");
    fs::write(&script, format!("#!/bin/sh\nulimit -Sn {SOFT}\nulimit -Hn {HARD}\nexec {BINARY} \"$@\"\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    options.binary = script;
    options
}

fn figure(server: &Server, name: &str) -> f64 {
    let metrics = server.get("/metrics");
    let line = metrics.as_str().unwrap().lines().find(|line| line.split(' ').next() == Some(name)).unwrap().to_string();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn more_idle_connections_than_descriptors_stop_neither_work_nor_renewals() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(limited(quick(), folder.path()));
    let replica = server.replica_id();
    let job = server.post("/api/v1/jobs", &json!({ "command": ["sh", "-c", "sleep 1; ulimit -Sn"] })).1;
    let address = server.address();
    let mut idle = Vec::new();
    let begun = stopwatch();
    let mut runs = Vec::new();
    // Longer than a replica may be silent, several times over.
    while begun.elapsed() < Duration::from_secs(5) || runs.len() < 20 {
        // Those that were closed come back, as a crowd of clients does.
        idle.retain(|stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            !matches!(stream.peek(&mut [0]), Ok(0)) && !stream.take_error().is_ok_and(|error| error.is_some())
        });
        let wanted = (CLIENTS - idle.len()).min(100);
        idle.extend(
            (0..wanted)
                .filter_map(|_| TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(1)).ok()),
        );
        assert_eq!(server.status("/livez"), 200);
        runs.push(server.submit("echo", json!(runs.len()), json!({})));
        pause(Duration::from_millis(20));
    }
    for (number, run) in runs.iter().enumerate() {
        let run = server.wait(run);
        assert_eq!((&run["state"], &run["result"]), (&json!("succeeded"), &json!(number)), "{run}");
    }
    let job_id = job["job_id"].as_str().unwrap();
    until(Duration::from_secs(60), "the end of the job", || {
        (server.get(&format!("/api/v1/jobs/{job_id}"))["state"] == "succeeded").then_some(())
    });
    assert!(figure(&server, "everbeat_http_connections") <= HARD as f64);
    assert!(figure(&server, "everbeat_http_connections_evicted_total") > 0.0);
    assert_eq!(server.replica_id(), replica, "it was judged dead meanwhile:\n{}", server.log());
    assert_eq!(figure(&server, "everbeat_renewal_failures_total"), 0.0, "{}", server.log());
    assert!(!server.log().contains("could not be accepted"), "{}", server.log());
    server.assert_sound();
}

#[test]
fn a_server_raises_its_limit_of_descriptors_and_its_jobs_get_the_former_one() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(limited(Options::default(), folder.path()));
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(open_files.split_whitespace().nth(3) == Some(&*HARD.to_string()), "{open_files}");
    let ran = server.cli(&["run", "--", "sh", "-c", "ulimit -Sn; ulimit -Hn"]);
    assert_eq!(common::stdout(&ran), format!("{SOFT}\n{HARD}\n"), "{}", common::stderr(&ran));
}
