//! Jobs under servers and shims that die at the worst moments.

mod common;
mod job;

use common::{Options, Server, pause, quick, until};
use job::{Host, Jobs, LONG, SOON, signal};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_job_never_stops_while_its_server_is_killed_again_and_again() {
    let host = Host::new();
    let mut server = host.start();
    let job = server.shell("i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.1; done");
    server.runs(&job);
    let begun = host.processes(&job);
    for _ in 0..3 {
        server.kill9();
        pause(SECOND / 3);
        server = host.start();
        let found = until(SOON, "the job is reattached", || {
            let found = server.look(&job);
            (found["reattached"] == true).then_some(found)
        });
        assert_eq!((&found["state"], &found["attempt"]), (&json!("running"), &json!(1)), "{found}");
    }
    assert!(host.processes(&job).iter().any(|pid| begun.contains(pid)), "the same processes all along");
    let ended = server.ended(&job);
    assert_eq!((&ended["state"], &ended["exit_code"], &ended["attempt"]), (&json!("succeeded"), &json!(0), &json!(1)));
    assert_eq!(ended["reattached"], true);
    let lines: String = (0..40).map(|i| format!("line {i}\n")).collect();
    assert_eq!(server.output(&job), lines, "without a gap, and nothing twice");
    let status = server.get("/api/admin/recovery/jobs/status");
    assert_eq!(status["reattached"], 1, "{status}");
    server.assert_sound();
}

#[test]
fn a_job_and_whoever_follows_it_go_on_through_kills_and_an_upgrade() {
    let host = Host::new();
    let (old, new) = (host.options.data_dir.with_file_name("everbeat"), host.options.data_dir.with_file_name("fresh"));
    std::fs::copy(common::BINARY, &old).unwrap();
    let serve = |address: &str| {
        let mut options = host.options.clone().listen(address);
        options.binary.clone_from(&old);
        Server::start(options)
    };
    let mut server = serve(&host.options.listen);
    let address = server.address();
    let script = "i=0; while [ $i -lt 60 ]; do echo line $i; echo err $i >&2; i=$((i+1)); sleep 0.1; done; exit 9";
    let mut run = server.command(&["run", "--", "sh", "-c", script]);
    let run = run.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let job =
        until(SOON, "the job", || server.get("/api/v1/jobs")["items"][0]["job_id"].as_str().map(ToString::to_string));
    server.runs(&job);
    let shim = host.shim(&job);
    for turn in 0..4 {
        server.kill9();
        if turn == 1 {
            // Another build in the same place: the program's file is replaced, as an upgrade does.
            let mut bytes = std::fs::read(common::BINARY).unwrap();
            bytes.extend_from_slice(b"another build");
            std::fs::write(&new, bytes).unwrap();
            std::fs::set_permissions(&new, std::fs::metadata(&old).unwrap().permissions()).unwrap();
            std::fs::rename(&new, &old).unwrap();
        }
        pause(SECOND / 3);
        server = serve(&address);
        until(SOON, "it is watched again", || (server.look(&job)["reattached"] == true).then_some(()));
        assert_eq!(host.shim(&job), shim, "the same shim");
    }
    // One that the new build starts while its own file is gone.
    std::fs::remove_file(&old).unwrap();
    let late = server.shell("exit 4");
    assert_eq!(server.ended(&late)["exit_code"], 4);
    let followed = run.wait_with_output().unwrap();
    assert_eq!(followed.status.code(), Some(9), "{}", String::from_utf8_lossy(&followed.stderr));
    let lines: String = (0..60).map(|i| format!("line {i}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&followed.stdout), lines, "no gap, and nothing twice");
    let said = String::from_utf8_lossy(&followed.stderr).to_string();
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("err ")).collect();
    assert_eq!(errors, (0..60).map(|i| format!("err {i}")).collect::<Vec<_>>());
    let ended = server.look(&job);
    assert_eq!((&ended["attempt"], &ended["exit_code"]), (&json!(1), &json!(9)), "{ended}");
    server.assert_sound();
}

#[test]
fn jobs_that_end_while_the_server_is_down_are_settled_with_their_true_exit() {
    let host = Host::new();
    let mut server = host.start();
    let good = server.shell("sleep 0.5; exit 0");
    let bad = server.shell("sleep 0.5; exit 7");
    let crashed = server.shell("sleep 0.5; kill -SEGV $$");
    for job in [&good, &bad, &crashed] {
        server.runs(job);
    }
    server.kill9();
    until(SOON, "all exits are recorded", || {
        [&good, &bad, &crashed].iter().all(|job| host.folder(job).join("exit.json").exists()).then_some(())
    });
    let server = host.start();
    let ended = [&good, &bad, &crashed].map(|job| server.ended(job));
    let exits =
        ended.each_ref().map(|job| (job["state"].clone(), job["exit_code"].clone(), job["exit_signal"].clone()));
    assert_eq!(exits[0], (json!("succeeded"), json!(0), Value::Null));
    assert_eq!(exits[1], (json!("failed"), json!(7), Value::Null));
    assert_eq!(exits[2], (json!("failed"), Value::Null, json!(11)));
    assert!(ended.iter().all(|job| job["attempt"] == 1), "none ran twice");
    let status = server.get("/api/admin/recovery/jobs/status");
    assert_eq!((&status["recovered"], &status["failed"], &status["lost"]), (&json!(3), &json!(2), &json!(0)));
    // It is written once all were looked at, and nobody waits for that.
    let log = until(SOON, "this start is in the log", || {
        let log = server.get("/api/admin/startup-log");
        (log["startups"].as_array()?.len() == 2).then_some(log)
    });
    assert_eq!(log["startups"][0]["recovered"], 3, "{log}");
    server.assert_sound();
}

#[test]
fn a_command_that_exited_before_its_cancel_arrived_keeps_its_own_end() {
    let host = Host::new();
    let server = host.start();
    let script = "until [ -e go ]; do sleep 0.02; done; exit";
    let begin = |code: u32| {
        let policy = json!({ "max_attempts": 3 });
        let job = server.job_with(json!({ "command": ["sh", "-c", format!("{script} {code}")], "policy": policy }));
        server.runs(&job);
        job
    };
    for (code, state) in [(3, "failed"), (0, "succeeded")] {
        let job = begin(code);
        let shim = host.shim(&job).expect("a shim");
        // While nobody looks, the command exits, and only then somebody cancels it.
        signal(shim, "STOP");
        let command = host.processes(&job);
        std::fs::write(host.workspace(&job).join("go"), "").unwrap();
        until(SOON, "the command has exited", || command.iter().all(|pid| is_over(*pid)).then_some(()));
        let (status, answer) = server.post(&format!("/api/v1/jobs/{job}/cancel"), &json!({}));
        assert!((200..300).contains(&status), "{status} {answer}");
        until(SOON, "the shim was told", || host.folder(&job).join("cancel.json").exists().then_some(()));
        signal(shim, "CONT");
        let ended = server.ended(&job);
        assert_eq!((&ended["state"], &ended["exit_code"]), (&json!(state), &json!(code)), "{ended}");
        assert_eq!(ended["attempt"], 1, "nor is it tried again: {ended}");
    }
    server.assert_sound();
}

/// Whether a process has exited; its parent may not have taken note yet.
fn is_over(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

#[test]
fn a_job_dies_with_its_shim_and_its_exit_is_called_unknown() {
    let host = Host::new();
    let server = host.start();
    let fails = server.shell("sleep 60");
    let retried = server.job_with(json!({
        "command": ["sh", "-c", "echo $EVERBEAT_ATTEMPT >> attempts; [ $EVERBEAT_ATTEMPT = 2 ] || sleep 60"],
        "policy": { "on_lost": "retry", "max_attempts": 2 },
    }));
    for job in [&fails, &retried] {
        server.runs(job);
        until(SOON, "the command", || (!host.processes(job).is_empty()).then_some(()));
        signal(host.shim(job).expect("a shim"), "KILL");
        until(SOON, "the job is gone", || host.processes(job).is_empty().then_some(()));
        until(SOON, "the verdict", || {
            let attempts = server.get(&format!("/api/v1/runs/{job}/attempts"));
            (attempts["items"][0]["outcome"] == "lost").then_some(())
        });
    }
    let lost = server.ended(&fails);
    assert_eq!(
        (&lost["state"], &lost["exit_code"], &lost["exit_signal"]),
        (&json!("failed"), &Value::Null, &Value::Null)
    );
    assert!(lost["error"]["message"].as_str().unwrap().contains("exit is unknown"), "{lost}");
    let verdicts = server.get(&format!("/api/v1/verdicts?run_id={fails}"));
    let verdict = &verdicts["items"][0];
    assert_eq!((&verdict["judgement"], &verdict["reason"]), (&json!("lost"), &json!("shim_died")), "{verdict}");
    assert_eq!(verdict["evidence"]["exit"], "unknown");

    let second = server.ended(&retried);
    assert_eq!((&second["state"], &second["attempt"]), (&json!("succeeded"), &json!(2)), "{second}");
    let attempts = std::fs::read_to_string(host.workspace(&retried).join("attempts")).unwrap();
    assert_eq!(attempts, "1\n2\n", "in the same workspace");
    server.assert_sound();
}

#[test]
fn a_cancel_ends_grandchildren_and_daemons_also_across_a_restart() {
    let host = Host::new();
    let mut server = host.start();
    // Ignores the polite signal, and leaves a daemon in a session of its own.
    let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 70' & (sleep 71 &) ; echo ready; while :; do sleep 0.1; done";
    let policy = json!({ "cancel_grace": "500ms" });
    let start = |server: &Server| {
        let job = server.job_with(json!({ "command": ["sh", "-c", script], "policy": policy }));
        until(SOON, "the daemon", || (host.processes(&job).len() >= 4).then_some(()));
        job
    };
    let job = start(&server);
    let (status, _) = server.post(&format!("/api/v1/jobs/{job}/cancel"), &json!({}));
    assert_eq!(status, 200);
    let ended = server.ended(&job);
    assert_eq!(ended["state"], "cancelled", "{ended}");
    assert_eq!(host.processes(&job), Vec::<u32>::new());

    let job = start(&server);
    let (status, _) = server.post(&format!("/api/v1/jobs/{job}/cancel"), &json!({}));
    assert_eq!(status, 200);
    server.kill9();
    let server = host.start();
    let ended = server.ended(&job);
    assert_eq!(ended["state"], "cancelled", "{ended}");
    assert_eq!(host.processes(&job), Vec::<u32>::new());
    server.assert_sound();
}

#[test]
fn why_a_job_was_stopped_is_known_after_a_restart() {
    let host = Host::new();
    let mut server = host.start();
    // Both take their time, and end as if nothing had been.
    let script = "trap 'sleep 1; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let command = json!(["sh", "-c", script]);
    let cancelled = server.job_with(json!({ "command": command, "policy": { "cancel_grace": "20s" } }));
    let stalled =
        server.job_with(json!({ "command": command, "policy": { "cancel_grace": "20s", "stall_timeout": "1s" } }));
    for job in [&cancelled, &stalled] {
        until(SOON, "it traps the signal", || (server.output(job) == "ready\n").then_some(()));
    }
    assert_eq!(server.post(&format!("/api/v1/jobs/{cancelled}/cancel"), &json!({})).0, 200);
    // Both have got the signal by then.
    pause(SECOND + SECOND / 3);
    server.kill9();
    until(SOON, "both have ended", || {
        [&cancelled, &stalled].iter().all(|job| host.folder(job).join("exit.json").exists()).then_some(())
    });
    let server = host.start();
    let ended = server.ended(&cancelled);
    assert_eq!(ended["state"], "cancelled", "{ended}");
    let ended = server.ended(&stalled);
    assert_eq!((&ended["state"], &ended["error"]["reason"]), (&json!("failed"), &json!("no_progress")), "{ended}");
    let attempts = server.get(&format!("/api/v1/runs/{stalled}/attempts"));
    assert_eq!(attempts["items"][0]["outcome"], "stalled", "{attempts}");
    assert!(attempts["items"][0]["verdict_id"].is_string(), "{attempts}");
    server.assert_sound();
}

#[test]
fn a_job_whose_folder_was_taken_away_is_lost_and_never_runs_twice() {
    let host = Host::new();
    let mut server = host.start();
    let outside = host.options.data_dir.with_file_name("outside");
    let script = format!("echo begun >> {}; sleep 60", outside.display());
    let job = server.job_with(json!({
        "command": ["sh", "-c", script],
        "policy": { "max_attempts": 3, "on_lost": "fail" },
    }));
    server.runs(&job);
    std::fs::remove_dir_all(host.folder(&job)).unwrap();
    server.kill9();
    let server = host.start();
    let ended = server.ended(&job);
    assert_eq!((&ended["state"], &ended["error"]["reason"]), (&json!("failed"), &json!("folder_gone")), "{ended}");
    assert_eq!((&ended["exit_code"], &ended["attempt"]), (&Value::Null, &json!(1)), "{ended}");
    assert_eq!(host.processes(&job), Vec::<u32>::new(), "nothing of it is left");
    assert_eq!(host.shim(&job), None);
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "begun\n", "it ran once");
    server.assert_sound();
}

#[test]
fn a_job_that_cannot_be_understood_is_left_alone_until_somebody_wants_its_end() {
    let host = Host::new();
    let mut server = host.start();
    let job = server.job_with(json!({ "command": ["sleep", "60"], "policy": { "cancel_grace": "100ms" } }));
    server.runs(&job);
    std::fs::write(host.folder(&job).join("exit.json"), "{ garbage").unwrap();
    signal(host.shim(&job).expect("a shim"), "KILL");
    let found = until(SOON, "it is unknown", || {
        let found = server.look(&job);
        (found["liveness"] == "unknown").then_some(found)
    });
    assert_eq!(found["state"], "running", "no evidence is not death: {found}");
    server.kill9();
    let server = host.start();
    assert_eq!(server.look(&job)["state"], "running");
    assert_eq!(server.post(&format!("/api/v1/jobs/{job}/cancel"), &json!({})).0, 200);
    let ended = server.ended(&job);
    assert_eq!((&ended["state"], &ended["exit_code"]), (&json!("cancelled"), &Value::Null), "{ended}");
    assert_eq!(server.delete(&format!("/api/v1/jobs/{job}")).0, 200);
    assert!(!host.folder(&job).exists());
    server.assert_sound();
}

/// A small file system, unmounted when it goes.
struct Disk(TempDir);

impl Disk {
    /// None where this user may not mount.
    fn mount() -> Option<Disk> {
        let folder = TempDir::new().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"]).arg(folder.path()).output();
        let mounted = mounted.is_ok_and(|output| output.status.success());
        if !mounted {
            println!("not run: mounting needs more rights");
        }
        mounted.then(|| Disk(folder))
    }

    /// Leaves no room; answers what takes it.
    fn fill(&self) -> PathBuf {
        let filler = self.0.path().join("filler");
        let _full = std::fs::write(&filler, vec![1; 32 << 20]);
        filler
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _leaves_a_line_in_the_mount_table = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// What the readiness says of jobs; none while the server does not answer.
fn readiness(server: &Server) -> Option<Value> {
    let (_, ready) = server.try_get("/readyz")?;
    ready["checks"].as_array()?.iter().find(|check| check["name"] == "jobs").cloned()
}

fn short(server: &Server) -> Option<Value> {
    readiness(server).filter(|check| check["status"] == "degraded")
}

/// Looks at jobs until all are finished; answers whether the server ever told that it was short of something.
fn all_succeed(host: &Host, server: &Server, jobs: &[String]) -> bool {
    let mut told = false;
    let mut left: Vec<&String> = jobs.iter().collect();
    until(LONG * 3, "all jobs are finished", || {
        told |= short(server).is_some();
        left.retain(|job| match server.try_get(&format!("/api/v1/jobs/{job}")) {
            Some((200, found)) => {
                assert!(!["failed", "cancelled"].contains(&found["state"].as_str().unwrap()), "{found}");
                found["state"] != "succeeded"
            }
            _ => true,
        });
        left.is_empty().then_some(())
    });
    for job in jobs {
        assert_eq!(std::fs::read_to_string(host.workspace(job).join("ran")).unwrap(), "ran\n", "once: {job}");
    }
    until(LONG, "there is enough again", || readiness(server).filter(|check| check["status"] == "ok"));
    told
}

#[test]
fn a_full_disk_fails_no_job_and_is_told_for_as_long_as_it_lasts() {
    let Some(disk) = Disk::mount() else { return };
    let elsewhere = TempDir::new().unwrap();
    let store = format!("sqlite://{}", elsewhere.path().join("store.db").display());
    let options = quick().env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "200ms");
    let host = Host::with(options.data_dir(&disk.0.path().join("data")).store(store));
    let server = host.start();
    let running = server.shell("until [ -e go ]; do sleep 0.1; done");
    server.runs(&running);
    let filler = disk.fill();
    let jobs: Vec<String> = (0..60).map(|_| server.shell("echo ran >> ran")).collect();
    let check = until(SOON, "the readiness tells it", || short(&server));
    assert!(check["detail"].as_str().unwrap().contains("no space is left on the disk"), "{check}");
    assert!(check["hint"].as_str().unwrap().contains("free some space"), "{check}");
    assert_eq!(server.status("/readyz"), 200, "it is no reason to stay away");
    let attempts = |job: &str| server.get(&format!("/api/v1/runs/{job}/attempts"))["items"].as_array().unwrap().clone();
    let released = until(SOON, "a released attempt", || {
        let first = |job: &String| attempts(job).first().cloned().filter(|attempt| attempt["outcome"] == "released");
        jobs.iter().find_map(|job| Some((job, first(job)?)))
    });
    let error = &released.1["error"];
    assert_eq!((&error["reason"], &error["short"]), (&json!("shortage"), &json!("disk_space")), "{error}");
    for job in &jobs {
        let explained = server.get(&format!("/api/v1/runs/{job}/explain"));
        let summary = explained["summary"].as_str().unwrap();
        assert!(!summary.contains("alive"), "{summary}");
    }
    let told = server.get(&format!("/api/v1/runs/{}/explain", released.0));
    assert!(told.to_string().contains("no space is left on the disk"), "{told}");
    // What began before goes on, and says what it cannot write.
    let is_full = |error: &Value| error.as_str().is_some_and(|error| error.contains("No space left"));
    until(SOON, "the error of a sentinel", || is_full(&server.look(&running)["heartbeat_error"]).then_some(()));
    let health = server.get(&format!("/api/admin/jobs/{running}/health"));
    assert!(is_full(&health["error"]), "{health}");
    let sentinels = server.get("/api/admin/recovery/jobs/sentinels");
    let mut sentinel = sentinels["sentinels"].as_array().unwrap().iter().filter(|found| found["jobId"] == *running);
    assert!(sentinel.next().is_some_and(|found| is_full(&found["error"])), "{sentinels}");
    let attempted: usize = jobs.iter().map(|job| attempts(job).len()).sum();
    std::fs::remove_file(filler).unwrap();
    all_succeed(&host, &server, &jobs);
    std::fs::write(host.workspace(&running).join("go"), "").unwrap();
    assert_eq!(server.ended(&running)["state"], "succeeded");
    println!("{attempted} attempts while it lasted");
    server.assert_sound();
}

/// A program that becomes the server under other conditions.
fn through(mut options: Options, line: &str) -> Options {
    use std::os::unix::fs::PermissionsExt;
    let script = options.data_dir.with_file_name("through");
    std::fs::write(&script, format!("#!/bin/sh\nexec {line} {} \"$@\"\n", common::BINARY)).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    options.binary = script;
    options
}

#[test]
fn too_few_descriptors_fail_no_job() {
    let options = quick().env("EVERBEAT_JOBS__SLOTS", 60).env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "200ms");
    let host = Host::with(through(options, "prlimit --nofile=64:64"));
    let server = host.start();
    let submit = || {
        let job = json!({ "command": ["sh", "-c", "sleep 1; echo ran >> ran"] });
        let (status, job) = server.try_post("/api/v1/jobs", &job)?;
        (status == 201).then(|| job["job_id"].as_str().unwrap().to_string())
    };
    let jobs: Vec<String> = (0..60).map(|_| until(LONG, "a job is accepted", submit)).collect();
    assert!(all_succeed(&host, &server, &jobs), "nobody was told");
    server.assert_sound();
}

#[test]
fn too_few_processes_fail_no_job() {
    // The limit does not bind root, and counts all that a user has.
    let user = 50_000 + std::process::id() % 10_000;
    let become_user = format!("setpriv --reuid={user} --regid={user} --clear-groups");
    let can = Command::new("sh").args(["-c", &format!("{become_user} {} --version", common::BINARY)]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        println!("not run: becoming another user needs more rights");
        return;
    }
    let options = quick().env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "200ms").env("HOME", "/");
    let host = Host::with(through(options, &become_user));
    std::os::unix::fs::chown(host.options.data_dir.parent().unwrap(), Some(user), Some(user)).unwrap();
    let server = host.start();
    let limit = |most: &str| {
        let line = format!("{become_user} prlimit --pid={} --nproc={most}", server.pid());
        assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success(), "{line}");
    };
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let enough = limits.lines().find_map(|line| line.strip_prefix("Max processes")?.split_whitespace().nth(1));
    let enough = enough.expect("a limit of processes");
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().count();
    limit(&format!("{threads}:"));
    let jobs: Vec<String> = (0..30).map(|_| server.shell("sleep 0.2; echo ran >> ran")).collect();
    until(LONG, "the readiness tells it", || short(&server).filter(|check| check.to_string().contains("process")));
    limit(&format!("{enough}:"));
    all_succeed(&host, &server, &jobs);
    server.assert_sound();
}
