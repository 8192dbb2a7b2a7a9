//! A data folder belongs to one place: a copy of it touches nothing of its original.

mod common;
mod job;

use common::{Options, Server, code, quick, stderr};
use job::{Host, Jobs};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Refused with exit code 3, and with these words.
fn refuses(options: &Options, parts: &[&str]) {
    let output = options.command().output().expect("it runs");
    let said = stderr(&output);
    assert_eq!(code(&output), 3, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

fn copy(host: &Host) -> PathBuf {
    let to = host.options.data_dir.with_extension("copy");
    let status = Command::new("cp").arg("-r").arg(&host.options.data_dir).arg(&to).status().expect("cp");
    assert!(status.success());
    to
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("one").path()).collect();
    found.sort();
    found
}

fn host_of(server: &Server) -> String {
    let (id, replicas) = (server.replica_id(), server.get("/api/v1/replicas"));
    let all = replicas["items"].as_array().expect("replicas");
    all.iter().find(|replica| replica["id"] == *id).expect("itself")["host"].as_str().expect("a host").to_string()
}

/// Runs until the test says so, and ends with 3.
const UNTIL_TOLD: &str = "until [ -e go ]; do sleep 0.05; done; exit 3";

#[test]
fn a_copy_of_a_live_data_folder_is_refused_and_an_adopted_one_leaves_the_original_alone() {
    let host = Host::new();
    let server = host.start();
    let job = server.job_with(json!({
        "command": ["sh", "-c", UNTIL_TOLD],
        "policy": { "max_attempts": 1 },
    }));
    server.runs(&job);
    let shim = host.shim(&job);
    let copied = copy(&host);
    let (here, home) = (copied.display().to_string(), host.options.data_dir.display().to_string());
    let on_copy = host.options.clone().data_dir(&copied);
    let before = files(&copied);
    refuses(&on_copy, &["is a copy", &here, &home, "--adopt-data"]);
    assert_eq!(files(&copied), before, "nothing was made or taken away");
    assert_eq!((host.shim(&job), &server.look(&job)["state"]), (shim, &json!("running")), "the original's job lives");

    let adopted = Server::start(on_copy.clone().arg("--adopt-data"));
    assert_ne!(host_of(&adopted), host_of(&server));
    let ended = adopted.wait(&job);
    assert_eq!(ended["state"], "failed", "{ended}");
    let attempts = adopted.get(&format!("/api/v1/runs/{job}/attempts"));
    assert_eq!(
        (&attempts["items"][0]["outcome"], &attempts["items"][0]["error"]["reason"]),
        (&json!("lost"), &json!("not_ours")),
        "{attempts}"
    );
    adopted.assert_sound();
    assert_eq!((host.shim(&job), &server.look(&job)["state"]), (shim, &json!("running")), "the original's job lives");
    drop(adopted);
    // From now on the copy is at home where it is.
    drop(Server::start(on_copy));

    fs::write(host.workspace(&job).join("go"), "").expect("written");
    let ended = server.ended(&job);
    assert_eq!((&ended["exit_code"], &ended["attempt"]), (&json!(3), &json!(1)), "{ended}");
    server.assert_sound();
}

#[test]
fn a_moved_folder_is_refused_and_the_same_one_by_another_name_is_not() {
    let options = quick();
    drop(Server::start(options.clone()));
    let (home, moved) = (options.data_dir.clone(), options.data_dir.with_extension("moved"));
    fs::rename(&home, &moved).expect("moved");
    let names = [moved.display().to_string(), home.display().to_string()];
    refuses(&options.clone().data_dir(&moved), &["was moved", &names[0], &names[1], "--adopt-data"]);
    fs::rename(&moved, &home).expect("moved back");
    let link = options.data_dir.with_extension("link");
    std::os::unix::fs::symlink(&home, &link).expect("a link");
    drop(Server::start(options.clone().data_dir(&link)));
    // As an earlier version left it.
    fs::remove_file(home.join("place.json")).expect("removed");
    drop(Server::start(options.clone()));
    assert!(home.join("place.json").exists());
}
