//! A killed command that the kernel holds up, as one does that waits for a slow disk; and one whose start is held up.

mod common;
mod job;

use common::{Server, TIMEOUT, pause, until};
use job::{Host, Jobs, LONG, signal};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

#[test]
fn a_job_whose_killed_command_is_still_there_is_not_lost_before_it_is_gone() {
    let Some(freezer) = Freezer::new() else {
        eprintln!("not tested: it takes root and the freezer of cgroups version 1 to hold up a killed process");
        return;
    };
    let host = Host::new();
    let server = host.start();
    let policy = json!({ "on_lost": "retry", "max_attempts": 2 });
    let script = "echo x >> marks; exec sleep 1000";
    let job = server.job_with(json!({ "command": ["sh", "-c", script], "policy": policy }));
    server.runs(&job);
    let command = until(LONG, "the command", || host.processes(&job).first().copied());
    freezer.take(command);
    signal(host.shim(&job).unwrap(), "KILL");

    // Longer than what waits for the end of the killed waits in one go.
    until(LONG, "it gave up waiting, twice", || {
        let found = server.look(&job);
        assert_eq!((&found["state"], &found["attempt"]), (&json!("running"), &json!(1)), "{found}");
        assert_eq!(host.processes(&job), [command], "the killed one is still there, and alone");
        (server.log().matches("could not be fenced yet").count() >= 2).then_some(())
    });
    assert_eq!(server.look(&job)["liveness"], "unknown");
    assert_eq!(server.get(&format!("/api/v1/verdicts?run_id={job}"))["items"], json!([]), "no verdict on what lives");

    freezer.release();
    until(LONG, "the second attempt", || (server.look(&job)["attempt"] == 2).then_some(()));
    let attempts = server.get(&format!("/api/v1/runs/{job}/attempts"));
    let first = &attempts["items"][0];
    assert_eq!((&first["outcome"], &first["error"]["reason"]), (&json!("lost"), &json!("shim_died")), "{attempts}");
    until(LONG, "it runs again", || {
        let marks = fs::read_to_string(host.workspace(&job).join("marks")).unwrap_or_default();
        (marks == "x\nx\n").then_some(())
    });
    assert!(!host.processes(&job).contains(&command));
    assert_eq!(server.post(&format!("/api/v1/runs/{job}/cancel"), &Value::Null).0, 200);
    assert_eq!(server.ended(&job)["state"], "cancelled");
    server.assert_sound();
}

#[test]
fn a_job_that_was_held_up_past_its_time_to_begin_is_released_however_often() {
    /// More than what fails a job whose shim dies again and again.
    const TIMES: u64 = 5;
    let host = Host::new();
    let server = Server::start(host.options.clone().env("EVERBEAT_SHIM_FREEZE_AT", "before-exec"));
    let job = server.shell("echo x >> marks");
    for time in 1..=TIMES {
        until(LONG, "the next attempt", || (server.look(&job)["attempt"].as_u64()? >= time).then_some(()));
        until(LONG, "it is about to begin", || host.folder(&job).join("started.json").exists().then_some(()));
        // Past the time after which another replica may have it.
        pause(TIMEOUT);
        until(LONG, "it is released", || {
            host.shim(&job).into_iter().for_each(wake);
            let found = server.look(&job);
            assert!(!["failed", "succeeded"].iter().any(|state| found["state"] == *state), "{found}");
            (found["attempt"].as_u64()? > time).then_some(())
        });
    }
    let attempts = server.get(&format!("/api/v1/runs/{job}/attempts"));
    let ended = attempts["items"].as_array().unwrap().iter().filter(|attempt| !attempt["outcome"].is_null());
    ended.for_each(|attempt| assert_eq!(attempt["outcome"], "released", "{attempts}"));
    assert!(!host.workspace(&job).join("marks").exists(), "it never ran");
}

/// It may have ended meanwhile.
fn wake(pid: u32) {
    let command = format!("kill -s CONT {pid} 2>/dev/null");
    let _gone_or_awake = std::process::Command::new("sh").args(["-c", &command]).status();
}

/// Processes in it do nothing, not even die, until they are released.
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> Option<Freezer> {
        let folder = PathBuf::from(format!("/sys/fs/cgroup/freezer/everbeat-test-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        Some(Freezer(folder))
    }

    fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
        fs::write(self.0.join("freezer.state"), "FROZEN").unwrap();
        until(LONG, "it is frozen", || (self.state() == "FROZEN").then_some(()));
    }

    fn release(&self) {
        fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }

    fn state(&self) -> String {
        fs::read_to_string(self.0.join("freezer.state")).unwrap().trim().to_string()
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.release();
        // What is killed leaves in a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            pause(std::time::Duration::from_millis(20));
        }
    }
}
