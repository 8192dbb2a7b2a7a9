//! The disk of a SQLite store is nearly full: there is room for what is small, and none for one large result.

mod common;

use common::{Options, Server, quick, until};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// For what takes a moment, on a loaded machine.
const SOON: Duration = Duration::from_secs(60);
const DISK_MIB: u64 = 24;
const LEFT_BYTES: u64 = 2_500_000;
/// Gives a result that does not fit into what is left.
const LARGE: &str = "\"x\" * 3600000";

#[test]
fn one_ending_that_cannot_be_stored_holds_up_no_other_and_is_stored_when_there_is_room() {
    let Some(disk) = Disk::start(quick()) else { return };
    let server = &disk.server;
    disk.fill();
    let large = server.submit("jq", json!({ "program": LARGE }), json!({}));
    let explained = until(SOON, "the large ending is held", || held(server, &large));
    assert!(explained.contains("attempt 1 has ended (succeeded)"), "{explained}");
    assert!(explained.contains("the store's disk is full"), "{explained}");

    let small: Vec<String> = (0..20).map(|n| server.submit("echo", json!(n), json!({}))).collect();
    for run in &small {
        assert_eq!(server.wait(run)["state"], "succeeded");
    }
    assert_eq!(server.get(&format!("/api/v1/runs/{large}"))["state"], "running", "it is kept");
    let settling = until(SOON, "the check says so", || {
        let ready = server.get("/readyz");
        let found = ready["checks"].as_array()?.iter().find(|check| check["name"] == "settling")?.clone();
        (found["status"] == "degraded").then_some(found)
    });
    assert!(settling["detail"].as_str().unwrap().contains("the store's disk is full"), "{settling}");
    assert!(settling["hint"].as_str().unwrap().contains("free space"), "{settling}");
    let figures = server.get("/metrics");
    assert!(figures.as_str().unwrap().lines().any(|line| line == "everbeat_endings_held 1"), "{figures}");
    let warned = server.log().lines().filter(|line| line.contains("an ending cannot be stored")).count();
    assert_eq!(warned, 1, "{}", server.log());

    disk.relieve();
    assert_eq!(server.wait(&large)["state"], "succeeded");
    until(SOON, "all is well", || {
        server.get("/readyz")["checks"].as_array()?.iter().all(|check| check["status"] == "ok").then_some(())
    });
    server.assert_sound();
}

#[test]
fn an_ending_that_cannot_be_stored_while_others_can_fails_its_attempt_with_the_reason_in_the_end() {
    let Some(disk) = Disk::start(quick().env("EVERBEAT_RUNS__STORE_PATIENCE", "1s")) else { return };
    let server = &disk.server;
    disk.fill();
    let large = server.submit("jq", json!({ "program": LARGE }), json!({ "max_attempts": 1 }));
    until(SOON, "the large ending is held", || held(server, &large));
    let failed = until(SOON, "its attempt fails", || {
        let small = server.submit("echo", json!("others can be stored"), json!({}));
        assert_eq!(server.wait(&small)["state"], "succeeded");
        let run = server.get(&format!("/api/v1/runs/{large}"));
        (run["state"] != "running").then_some(run)
    });
    assert_eq!((&failed["state"], &failed["error"]["reason"]), (&json!("failed"), &json!("not_stored")), "{failed}");
    let why = failed["error"]["message"].as_str().unwrap();
    assert!(why.contains("it succeeded") && why.contains("the store's disk is full"), "{why}");
    server.assert_sound();
}

#[test]
fn a_submit_that_finds_the_disk_full_is_told_so() {
    let Some(disk) = Disk::start(quick()) else { return };
    disk.fill();
    let body = json!({ "task": "echo", "input": "x".repeat(3_600_000) });
    let (status, problem) = disk.server.post("/api/v1/runs", &body);
    assert_eq!(status, 503, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("the store's disk is full"), "{problem}");
    assert!(problem["hint"].as_str().unwrap().contains("free space"), "{problem}");
    let small = disk.server.submit("echo", json!(1), json!({}));
    assert_eq!(disk.server.wait(&small)["state"], "succeeded");
}

/// What `explain` says of a run whose ending is held.
fn held(server: &Server, run: &str) -> Option<String> {
    let explained = server.get(&format!("/api/v1/runs/{run}/explain"));
    let summary = explained["summary"].as_str()?;
    summary.contains("cannot be stored").then(|| summary.to_string())
}

/// A server whose data folder is a small disk of its own, in a mount namespace of its own.
struct Disk {
    server: Server,
    path: PathBuf,
}

impl Disk {
    /// None where no file system may be mounted: then there is nothing to be seen here.
    fn start(mut options: Options) -> Option<Disk> {
        let Some(unshare) = unshare() else {
            eprintln!("skipped: this machine lets this user mount nothing");
            return None;
        };
        fs::create_dir_all(&options.data_dir).expect("the folder to mount on");
        let wrapper = options.data_dir.with_extension("sh");
        let script = format!(
            "#!/bin/sh\nexec unshare {unshare} sh -c 'mount -t tmpfs -o size={DISK_MIB}m,mode=700 none \"$0\" && exec \"$@\"' \
             '{}' '{}' \"$@\"\n",
            options.data_dir.display(),
            common::BINARY,
        );
        fs::write(&wrapper, script).expect("the wrapper is written");
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("the wrapper may run");
        options.binary = wrapper;
        let server = Server::start(options);
        let inside = server.options.data_dir.strip_prefix("/").expect("an absolute path").to_path_buf();
        let path = Path::new("/proc").join(server.pid().to_string()).join("root").join(inside);
        Some(Disk { server, path })
    }

    fn fill(&self) {
        let spare = self.available() - LEFT_BYTES;
        fs::write(self.path.join("filler"), vec![0; usize::try_from(spare).unwrap()]).expect("it is filled");
        assert!(self.available() <= LEFT_BYTES);
    }

    fn relieve(&self) {
        fs::remove_file(self.path.join("filler")).expect("it is relieved");
    }

    fn available(&self) -> u64 {
        let asked = Command::new("stat").args(["-f", "-c", "%a %S"]).arg(&self.path).output().expect("stat runs");
        let said = String::from_utf8_lossy(&asked.stdout).to_string();
        let numbers: Vec<u64> = said.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [blocks, size] = numbers[..] else { panic!("{said}") };
        blocks * size
    }
}

/// How this user may mount something: as root, or as root of a user namespace of its own.
fn unshare() -> Option<&'static str> {
    let works = |how: &&str| {
        let mounts = Command::new("unshare").arg(how).args(["mount", "-t", "tmpfs", "none", "/mnt"]).output();
        mounts.is_ok_and(|output| output.status.success())
    };
    ["-m", "-Urm"].into_iter().find(works)
}
