//! Jobs by a real server with real commands: what is asked for, what is seen, what is kept.

mod common;
mod job;

use common::{Options, Server, pause, quick, until};
use job::{Host, Jobs, LONG, SOON, signal};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn a_command_is_executed_literally_or_refused_and_never_by_a_shell() {
    let host = Host::new();
    let server = host.start();
    let hostile = ["; touch /tmp/x", "$(id)", "`id`", "a\nb", "-rf", "--", "*", "", "ü\u{1f980}", "\"'\\"];
    let mut command = vec!["printf", "%s\\0"];
    command.extend(hostile);
    let job = server.job(&command);
    assert_eq!(server.ended(&job)["exit_code"], 0);
    let said = std::fs::read(host.folder(&job).join("stdout.log")).unwrap();
    let given: Vec<&[u8]> = said.split(|byte| *byte == 0).filter(|_| true).collect();
    let expected: Vec<&[u8]> = hostile.iter().map(|text| text.as_bytes()).chain([&b""[..]]).collect();
    assert_eq!(given, expected);

    for (body, field) in [
        (json!({ "command": [] }), "command"),
        (json!({ "command": "echo hi" }), "command"),
        (json!({ "command": ["echo", "a\u{0}b"] }), "command[1]"),
        (json!({ "command": [""] }), "command[0]"),
        (json!({ "command": ["true"], "cwd": "here" }), "cwd"),
        (json!({ "command": ["true"], "cwd": host.jobs().display().to_string() }), "cwd"),
        (json!({ "command": ["true"], "env": { "A=B": "x" } }), "env"),
        (json!({ "command": ["true"], "policy": { "dedline": "1s" } }), "policy.dedline"),
        (json!({ "comand": ["true"] }), "comand"),
    ] {
        let (status, problem) = server.post("/api/v1/jobs", &body);
        assert!([400, 422].contains(&status), "{body}: {status} {problem}");
        assert!(problem["field"].as_str().unwrap_or_default().starts_with(field), "{body}: {problem}");
        assert!(problem["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{problem}");
    }
    assert_eq!(server.get("/api/v1/jobs")["items"].as_array().unwrap().len(), 1, "nothing was made");

    let missing = server.ended(&server.job(&["no-such-program"]));
    assert_eq!((&missing["state"], &missing["exit_code"]), (&json!("failed"), &json!(127)), "{missing}");
    assert!(missing["error"]["message"].as_str().unwrap().contains("no-such-program"), "{missing}");
    let gone = server.ended(&server.job_with(json!({ "command": ["true"], "cwd": "/no/such/folder" })));
    assert!(gone["error"]["message"].as_str().unwrap().contains("/no/such/folder"), "{gone}");
}

#[test]
fn a_job_has_its_own_folder_environment_and_secrets_that_nobody_sees() {
    let host = Host::with(quick().env("SECRET_OF_THE_SERVER", "x"));
    let server = host.start();
    let job = server.job_with(json!({
        "command": ["sh", "-c", "pwd; env | sort; umask; echo kept > result"],
        "name": "environment", "env": { "TOKEN": "hunter2" }, "sessionId": "s-1", "agentEngine": "shell",
    }));
    let ended = server.ended(&job);
    let said = server.output(&job);
    assert!(said.starts_with(&format!("{}\n", host.workspace(&job).display())), "{said}");
    assert!(said.contains("TOKEN=hunter2") && said.contains(&format!("EVERBEAT_JOB_ID={job}")), "{said}");
    assert!(!said.contains("SECRET_OF_THE_SERVER"), "{said}");
    let mode = std::fs::metadata(host.folder(&job)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert_eq!(
        (&ended["name"], &ended["session_id"], &ended["agent_engine"]),
        (&json!("environment"), &json!("s-1"), &json!("shell"))
    );
    assert_eq!(ended["workspace_path"], host.workspace(&job).display().to_string());
    for path in [
        format!("/api/v1/jobs/{job}"),
        format!("/api/v1/runs/{job}"),
        "/api/v1/jobs".to_string(),
        "/api/v1/runs".to_string(),
    ] {
        assert!(!server.get(&path).to_string().contains("hunter2"), "{path} shows a secret");
    }
}

#[test]
fn a_sentinel_has_the_promised_fields_and_no_pid() {
    let host = Host::new();
    let server = host.start();
    let job = server.job_with(json!({ "command": ["sleep", "30"], "sessionId": "abc", "agentEngine": "claude-code" }));
    server.runs(&job);
    let path = host.folder(&job).join(".sentinel.json");
    let sentinel: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for field in
        ["jobId", "status", "lastHeartbeat", "workspacePath", "sessionId", "agentEngine", "startedAt", "seq", "bootId"]
    {
        assert!(!sentinel[field].is_null(), "{field}: {sentinel}");
    }
    assert!(!keys(&sentinel).iter().any(|key| key.to_lowercase().contains("pid")), "{sentinel}");
    let seq = sentinel["seq"].as_u64().unwrap();
    until(SOON, "it is written again", || {
        let again: Value = serde_json::from_slice(&std::fs::read(&path).ok()?).expect("never half of it");
        (again["seq"].as_u64()? > seq).then_some(())
    });
}

#[test]
fn a_job_tells_its_progress_in_three_ways() {
    let host = Host::new();
    let server = host.start();
    let binary = common::BINARY;
    let script = format!("{binary} beat --status processing --done 1 --total 3 --note first && sleep 20");
    let by_command = server.shell(&script);
    let by_descriptor = server.shell("echo '{\"done\":2,\"total\":3}' >&$EVERBEAT_PROGRESS; sleep 20");
    until(SOON, "progress of the command", || (server.look(&by_command)["progress"]["note"] == "first").then_some(()));
    until(SOON, "progress of the descriptor", || (server.look(&by_descriptor)["progress"]["done"] == 2).then_some(()));
    let sentinels = server.get("/api/admin/recovery/jobs/sentinels");
    let sentinel =
        sentinels["sentinels"].as_array().unwrap().iter().find(|found| found["jobId"] == by_command.as_str());
    assert_eq!(sentinel.unwrap()["status"], "processing", "{sentinels}");
    let outside = server.cli(&["beat", "--done", "1"]);
    assert_eq!(common::code(&outside), 2, "{}", common::stderr(&outside));
}

#[test]
fn a_deadline_is_kept_by_the_shim_also_while_the_server_is_down() {
    let host = Host::new();
    let mut server = host.start();
    let job =
        server.job_with(json!({ "command": ["sleep", "60"], "policy": { "deadline": "1s", "cancel_grace": "200ms" } }));
    server.runs(&job);
    server.kill9();
    until(SOON, "its end", || host.folder(&job).join("exit.json").exists().then_some(()));
    let server = host.start();
    let ended = server.ended(&job);
    assert_eq!((&ended["state"], &ended["error"]["reason"]), (&json!("failed"), &json!("deadline")), "{ended}");
    let attempts = server.get(&format!("/api/v1/runs/{job}/attempts"));
    assert_eq!(attempts["items"][0]["outcome"], "timed_out");
    let verdicts = server.get(&format!("/api/v1/verdicts?run_id={job}"));
    assert_eq!(verdicts["items"][0]["judgement"], "timed_out", "{verdicts}");
}

#[test]
fn a_young_job_is_never_told_as_unknown_or_in_trouble() {
    let host = Host::with(Options::default());
    let server = host.start();
    for _ in 0..10 {
        let job = server.shell("sleep 60");
        until(SOON, "its heartbeat", || {
            let found = server.look(&job);
            if found["state"] == "running" {
                assert_eq!((&found["liveness"], &found["heartbeat_error"]), (&json!("alive"), &json!(null)), "{found}");
            }
            (found["heartbeat_status"] == "fresh").then_some(())
        });
    }
}

#[test]
fn a_silent_job_raises_an_alarm_and_is_not_judged_by_it() {
    let host = Host::with(
        quick()
            .env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "100ms")
            .env("EVERBEAT_JOBS__STALE_AFTER", "600ms")
            .env("EVERBEAT_JOBS__DEAD_AFTER", "1500ms")
            .env("EVERBEAT_JOBS__CHECK_INTERVAL", "100ms"),
    );
    let server = host.start();
    let job = server.shell("sleep 30");
    server.runs(&job);
    // The shim answers, and cannot replace its sentinel: a folder stands in its way.
    let sentinel = host.folder(&job).join(".sentinel.json");
    until(SOON, "the sentinel gives way", || {
        let _raced = std::fs::remove_file(&sentinel);
        std::fs::create_dir(&sentinel).is_ok().then_some(())
    });
    let seen = until(SOON, "its heartbeat is unknown", || {
        let found = server.look(&job);
        (found["heartbeat_status"] == "unknown").then_some(found)
    });
    assert_eq!((&seen["state"], &seen["liveness"]), (&json!("running"), &json!("alive")), "{seen}");
    pause(Duration::from_secs(2));
    assert_eq!(server.look(&job)["state"], "running", "no verdict from a sentinel");
    let metrics = until(SOON, "failed writes are counted", || {
        let metrics = server.get("/api/admin/recovery/jobs/metrics");
        (metrics["heartbeatWriteFailures"].as_u64()? > 0).then_some(metrics)
    });
    assert_eq!(metrics["lost"], 0);
    // An old one is stale, then dead; the job goes on all the same.
    let text = format!(
        "{{\"jobId\":\"{job}\",\"status\":\"running\",\"lastHeartbeat\":\"2020-01-01T00:00:00.000Z\",\"workspacePath\":\"/\",\
          \"sessionId\":null,\"agentEngine\":null,\"startedAt\":\"2020-01-01T00:00:00.000Z\",\"schema\":1,\"epoch\":1,\
          \"nonce\":\"{}\",\"seq\":1,\"bootId\":\"another\",\"bootMs\":1,\"intervalMs\":100,\"progress\":null,\"lastWriteError\":null}}",
        "0".repeat(32)
    );
    signal(host.shim(&job).unwrap(), "STOP");
    std::fs::remove_dir(&sentinel).unwrap();
    std::fs::write(&sentinel, text).unwrap();
    let stale = until(SOON, "it is listed", || {
        let stale = server.get("/api/admin/recovery/jobs/stale");
        stale["staleJobs"].as_array()?.first().cloned()
    });
    assert_eq!(
        keys(&stale),
        BTreeSet::from(["jobId", "lastHeartbeat", "ageMinutes", "workspacePath", "recommendedAction"])
    );
    assert_eq!(stale["recommendedAction"], "investigate", "{stale}");
    assert_eq!(server.look(&job)["heartbeat_status"], "dead");
    until(SOON, "the alarm", || {
        (server.get("/api/admin/recovery/jobs/metrics")["deadDetected"].as_u64()? > 0).then_some(())
    });
    let shim = host.shim(&job).unwrap();
    signal(shim, "CONT");
    until(SOON, "fresh again", || (server.look(&job)["heartbeat_status"] == "fresh").then_some(()));
    assert_eq!(server.look(&job)["attempt"], 1);
    let events = server.cli(&["events", "-o", "json"]);
    assert!(common::stdout(&events).contains("job.dead"), "{}", common::stdout(&events));
}

#[test]
fn whatever_stands_in_place_of_a_sentinel_is_unknown_and_stops_no_scan() {
    let host = Host::with(
        quick().env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "30s").env("EVERBEAT_JOBS__CHECK_INTERVAL", "100ms"),
    );
    let mut server = host.start();
    let elsewhere = host.options.data_dir.with_file_name("elsewhere");
    std::fs::write(&elsewhere, "untouched").unwrap();
    type Put<'a> = &'a dyn Fn(&std::path::Path);
    let replace: [(&str, Put<'_>); 8] = [
        ("an empty file", &|path| std::fs::write(path, "").unwrap()),
        ("half a file", &|path| std::fs::write(path, "{\"jobId\":").unwrap()),
        ("another job's", &|path| std::fs::write(path, "{\"jobId\":\"x\",\"pid\":1}").unwrap()),
        ("a link", &|path| std::os::unix::fs::symlink(&elsewhere, path).unwrap()),
        ("a folder", &|path| std::fs::create_dir(path).unwrap()),
        ("a FIFO", &|path| assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success())),
        ("a giant", &|path| std::fs::File::create(path).unwrap().set_len(1 << 30).unwrap()),
        ("nothing", &|_| {}),
    ];
    let healthy = server.shell("sleep 60");
    server.runs(&healthy);
    let hostile: Vec<(String, &str)> = replace
        .iter()
        .map(|(what, put)| {
            let job = server.shell("sleep 60");
            server.runs(&job);
            let path = host.folder(&job).join(".sentinel.json");
            std::fs::remove_file(&path).unwrap();
            put(&path);
            (job, *what)
        })
        .collect();
    for again in [false, true] {
        let heartbeats = server.get("/api/admin/recovery/jobs/heartbeats");
        let (unknown, fresh) = (&heartbeats["summary"]["unknown"], &heartbeats["summary"]["fresh"]);
        assert_eq!((unknown, fresh), (&json!(8), &json!(1)), "{heartbeats}");
        let sentinels = server.get("/api/admin/recovery/jobs/sentinels");
        for (job, what) in &hostile {
            let found = sentinels["sentinels"].as_array().unwrap().iter().find(|found| found["jobId"] == job.as_str());
            let found = found.unwrap();
            assert_eq!((&found["valid"], &found["lock"]), (&json!(false), &json!("held")), "{what}: {found}");
            assert!(found["error"].is_string(), "{what}: {found}");
            let job = server.look(job);
            assert_eq!(
                (&job["state"], &job["liveness"], &job["attempt"]),
                (&json!("running"), &json!("alive"), &json!(1)),
                "{what}"
            );
        }
        if !again {
            server.kill9();
            server = host.start();
            let status = server.get("/api/admin/recovery/jobs/status");
            assert_eq!((&status["reattached"], &status["lost"]), (&json!(9), &json!(0)), "{status}");
        }
    }
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "untouched");
    server.assert_sound();
}

#[test]
fn the_recovery_apis_have_the_promised_shapes() {
    let host = Host::new();
    let server = host.start();
    let running = server.job_with(json!({ "command": ["sleep", "30"], "agentEngine": "gemini", "sessionId": "sess" }));
    let failed = server.shell("echo partial > part; exit 7");
    server.runs(&running);
    server.ended(&failed);
    until(SOON, "the slot of the failed one is free", || {
        (server.get("/api/admin/recovery/jobs/status")["running"] == 1).then_some(())
    });
    std::fs::write(host.workspace(&running).join("sess.json"), "{}").unwrap();

    let status = server.get("/api/admin/recovery/jobs/status");
    assert_eq!(
        keys(&status),
        BTreeSet::from(["running", "reattached", "recovered", "lost", "failed", "startedAt", "completedAt"])
    );
    assert_eq!(status["running"], 1);
    let sentinels = server.get("/api/admin/recovery/jobs/sentinels");
    let fields = ["jobId", "path", "status", "lastHeartbeat", "seq", "valid", "error", "lock", "exitRecord"];
    assert_eq!(keys(&sentinels["sentinels"][0]), BTreeSet::from(fields), "{sentinels}");
    let heartbeats = server.get("/api/admin/recovery/jobs/heartbeats");
    assert_eq!(keys(&heartbeats), BTreeSet::from(["jobs", "summary"]));
    assert_eq!(
        keys(&heartbeats["jobs"][0]),
        BTreeSet::from(["jobId", "lastHeartbeat", "ageSeconds", "status", "agentEngine"])
    );
    assert_eq!(heartbeats["summary"], json!({ "total": 1, "fresh": 1, "stale": 0, "dead": 0, "unknown": 0 }));
    let metrics = server.get("/api/admin/recovery/jobs/metrics");
    let counts =
        ["heartbeatWrites", "heartbeatWriteFailures", "staleDetected", "deadDetected", "reattached", "lost", "checkMs"];
    assert_eq!(keys(&metrics), BTreeSet::from(counts));
    assert_eq!(server.get("/api/admin/recovery/jobs/stale"), json!({ "staleJobs": [] }));
    let all = server.get("/api/admin/recovery/jobs/failed");
    let found = &all["failedJobs"][0];
    let fields = ["jobId", "reason", "failedAt", "exitCode", "exitSignal", "workspacePath", "resumable"];
    assert_eq!(keys(found), BTreeSet::from(fields), "{all}");
    assert_eq!((&found["jobId"], &found["exitCode"], &found["resumable"]), (&json!(failed), &json!(7), &json!(true)));
    let health = server.get(&format!("/api/admin/jobs/{running}/health"));
    let fields = [
        "jobId",
        "heartbeatStatus",
        "lastHeartbeat",
        "ageSeconds",
        "sentinelFileExists",
        "workspaceExists",
        "sessionDataExists",
        "error",
    ];
    assert_eq!(keys(&health), BTreeSet::from(fields));
    let exist = ["sentinelFileExists", "workspaceExists", "sessionDataExists"].map(|field| health[field].clone());
    assert_eq!(exist, [json!(true), json!(true), json!(true)], "{health}");
    assert_eq!(health["heartbeatStatus"], "fresh");
    assert!(server.get("/api/admin/startup-log")["startups"].as_array().is_some_and(|starts| starts.len() == 1));

    let ids = json!({ "jobIds": [failed, running, "00000000-0000-7000-8000-000000000000", "nonsense"] });
    let (code, resumed) = server.post("/api/admin/recovery/jobs/resume", &ids);
    assert_eq!(code, 200, "{resumed}");
    let outcomes: Vec<&str> =
        resumed["results"].as_array().unwrap().iter().map(|result| result["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["resumed", "skipped", "not-found", "not-found"], "{resumed}");
    assert_eq!(keys(&resumed["results"][0]), BTreeSet::from(["jobId", "outcome", "detail"]));
    let again = until(SOON, "the second attempt", || {
        let found = server.ended(&failed);
        (found["attempt"] == 2).then_some(found)
    });
    assert_eq!(again["exit_code"], 7);
    assert!(host.workspace(&failed).join("part").exists());
}

#[test]
fn whatever_stands_in_the_place_of_a_sentinel_is_listed_and_said_to_be_invalid() {
    let host = Host::new();
    let server = host.start();
    let fifo = |path: &std::path::Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let id = |number: u32| format!("00000000-0000-7000-8000-00000000000{number}");
    let place = |number: u32| host.folder(&id(number));
    std::os::unix::fs::symlink("/etc", place(1)).unwrap();
    fifo(&place(2));
    std::fs::write(place(3), "{}").unwrap();
    for number in 4..=6 {
        std::fs::create_dir(place(number)).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", place(4).join(".sentinel.json")).unwrap();
    fifo(&place(5).join(".sentinel.json"));
    fifo(&place(6).join("lock"));
    let listed = server.get("/api/admin/recovery/jobs/sentinels");
    for number in 1..=6 {
        let found = listed["sentinels"].as_array().unwrap().iter().find(|found| found["jobId"] == id(number).as_str());
        let found = found.unwrap_or_else(|| panic!("{number} is left out: {listed}"));
        assert_eq!(found["valid"], false, "{found}");
        assert!(found["error"].as_str().is_some_and(|error| !error.is_empty()), "{found}");
    }
    let table = server.cli(&["recovery", "sentinels"]);
    assert!(table.status.success() && String::from_utf8_lossy(&table.stdout).contains(&id(5)), "{table:?}");
}

#[test]
fn the_output_of_a_job_whose_folder_was_taken_away_is_said_to_be_gone() {
    let host = Host::new();
    let server = host.start();
    let job = server.shell("echo out; sleep 3");
    server.runs(&job);
    let aside = host.options.data_dir.join("aside");
    std::fs::rename(host.folder(&job), &aside).unwrap();
    let path = format!("/api/v1/jobs/{job}/logs?stream=stdout");
    let (status, problem) = server.try_get(&path).unwrap();
    assert_eq!(status, 409, "while it runs, too: {problem}");
    let ended = server.ended(&job);
    assert_eq!(ended["error"]["reason"], "folder_gone", "{ended}");
    let (status, problem) = server.try_get(&path).unwrap();
    assert_eq!(status, 409, "{problem}");
    let folder = host.folder(&job).display().to_string();
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(&folder)), "{problem}");
    let said = server.cli(&["logs", &job]);
    assert!(!said.status.success() && String::from_utf8_lossy(&said.stderr).contains(&folder), "{said:?}");
    let cancelled = server.job_with(json!({ "command": ["true"], "run_at": "2990-01-01T00:00:00Z" }));
    server.post(&format!("/api/v1/jobs/{cancelled}/cancel"), &json!({}));
    assert_eq!(server.output(&cancelled), "", "what never ran has written nothing");
}

#[test]
fn without_an_admin_token_nobody_recovers_anything() {
    let tokens = format!("[{{\"name\":\"reader\",\"sha256\":\"{}\",\"scopes\":[\"read\"]}}]", sha256("reader-token"));
    let server = Server::start(quick().env("EVERBEAT_AUTH__TOKENS", tokens));
    let paths = ["status", "sentinels", "heartbeats", "metrics", "failed", "stale"];
    for path in paths.map(|path| format!("/api/admin/recovery/jobs/{path}")) {
        assert_eq!(server.status(&path), 401, "{path}");
    }
    assert_eq!(server.status("/api/admin/startup-log"), 401);
    assert_eq!(server.post("/api/admin/recovery/jobs/resume", &json!({})).0, 401);
    assert_eq!(server.status("/api/admin/jobs/00000000-0000-7000-8000-000000000000/health"), 401);
}

fn sha256(text: &str) -> String {
    let mut child = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()[..64].to_string()
}

#[test]
fn cleaning_takes_the_dead_keeps_their_results_and_touches_nothing_else() {
    let host = Host::new();
    let server = host.start();
    let dead: Vec<String> =
        (0..7).map(|n| server.shell(&format!("echo {n} > result; mkdir -p d; ln -s /etc d/etc"))).collect();
    let live: Vec<String> = (0..3).map(|_| server.shell("echo live > result; sleep 60")).collect();
    dead.iter().for_each(|job| drop(server.ended(job)));
    // A shim leaves when it is told that its end is stored.
    dead.iter().for_each(|job| until(LONG, "its shim has left", || host.shim(job).is_none().then_some(())));
    live.iter().for_each(|job| drop(server.runs(job)));
    // What is not a job's, and what cannot be read, is left alone.
    let foreign = host.jobs().join("somebody-elses");
    std::fs::create_dir(&foreign).unwrap();
    let unknown = host.jobs().join("01890000-0000-7000-8000-000000000000");
    std::fs::create_dir(&unknown).unwrap();
    std::fs::write(unknown.join("spec.json"), "{ half").unwrap();
    let precious = host.options.data_dir.join("precious");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("file"), "kept").unwrap();

    let ask = |dry: bool| {
        let (status, said) =
            server.post("/api/admin/recovery/jobs/clean", &json!({ "dryRun": dry, "olderThan": "0s" }));
        assert_eq!(status, 200, "{said}");
        let count = |outcome: &str| {
            said["results"].as_array().unwrap().iter().filter(|result| result["outcome"] == outcome).count()
        };
        (count("would-remove"), count("removed"))
    };
    assert_eq!(ask(true), (7, 0));
    assert!(dead.iter().all(|job| host.workspace(job).join("result").exists()), "a dry run removes nothing");
    // Links swapped in while it runs lead nowhere.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for job in &dead {
                    let place = host.workspace(job).join("d");
                    if std::fs::rename(&place, host.workspace(job).join("was")).is_ok() {
                        let _raced = std::os::unix::fs::symlink(&precious, &place);
                    }
                }
            }
        });
        let cleaned = ask(false);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        swapper.join().unwrap();
        // A folder that changes under its hands may be left for the next time.
        assert!(cleaned.1 >= 1, "{cleaned:?}");
    });
    until(SOON, "all seven are gone", || {
        ask(false);
        dead.iter().all(|job| !host.folder(job).exists()).then_some(())
    });
    for (n, job) in dead.iter().enumerate() {
        let kept = host.options.data_dir.join("archive").join(job).join("result");
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), format!("{n}\n"), "{}", kept.display());
    }
    assert_eq!(std::fs::read_to_string(precious.join("file")).unwrap(), "kept");
    assert!(foreign.exists() && unknown.join("spec.json").exists());
    for job in &live {
        assert_eq!(server.look(job)["state"], "running");
        assert!(host.workspace(job).join("result").exists());
    }
}

#[test]
fn a_deleted_job_is_gone_and_a_running_one_is_not_deleted() {
    let host = Host::new();
    let server = host.start();
    let ended = server.shell("echo x > result");
    server.ended(&ended);
    let running = server.shell("sleep 30");
    server.runs(&running);
    assert_eq!(server.delete(&format!("/api/v1/jobs/{running}")).0, 409);
    assert_eq!(server.delete(&format!("/api/v1/jobs/{ended}?dry_run=true")).0, 200);
    assert!(host.folder(&ended).exists());
    let (status, said) = server.delete(&format!("/api/v1/jobs/{ended}"));
    assert_eq!(status, 200, "{said}");
    assert!(!host.folder(&ended).exists());
    assert_eq!(server.status(&format!("/api/v1/jobs/{ended}")), 404);
    server.assert_sound();
}

#[test]
fn a_node_of_a_graph_may_be_a_command() {
    let host = Host::new();
    let mut server = host.start();
    let graph = json!({ "name": "sums", "nodes": [
        { "name": "a", "kind": "input" },
        { "name": "b", "kind": "input" },
        { "name": "seen", "kind": "compute", "gate": ["a", "b"], "command": ["cat"] },
        { "name": "text", "kind": "compute", "gate": ["seen"], "command": ["sh", "-c", "sleep 1; echo hello"] },
        { "name": "bad", "kind": "compute", "gate": ["a"], "command": ["false"], "options": { "max_attempts": 1 } },
    ] });
    let (status, applied) = server.post("/api/v1/graphs", &graph);
    assert!([200, 201].contains(&status), "{applied}");
    let (_, execution) = server.post("/api/v1/executions", &json!({ "graph": "sums", "values": { "a": 2, "b": 3 } }));
    let id = execution["id"].as_str().unwrap();
    until(SOON, "the second command runs", || {
        (server.get(&format!("/api/v1/executions/{id}"))["nodes"]["text"]["state"] == "computing").then_some(())
    });
    server.kill9();
    let server = host.start();
    let value = |node: &str| {
        server.get(&format!("/api/v1/executions/{id}/values/{node}?wait=any&timeout=20s"))["value"].clone()
    };
    assert_eq!(value("seen"), json!({ "a": 2, "b": 3 }));
    assert_eq!(value("text"), json!("hello"));
    assert_eq!(server.status(&format!("/api/v1/executions/{id}/values/bad?wait=any&timeout=20s")), 409);
    let (status, problem) = server.post(
        "/api/v1/graphs",
        &json!({ "name": "x", "nodes": [
        { "name": "a", "kind": "input" }, { "name": "b", "kind": "compute", "gate": ["a"], "command": "echo" },
    ] }),
    );
    assert_eq!(status, 422, "{problem}");
    server.assert_sound();
}

#[test]
fn a_node_whose_command_printed_too_much_has_no_value() {
    let host = Host::with(quick().env("EVERBEAT_JOBS__LOG_LIMIT", "16KiB"));
    let server = host.start();
    let node = |name: &str, script: &str| json!({ "name": name, "kind": "compute", "gate": ["a"], "command": ["sh", "-c", script], "options": { "max_attempts": 1 } });
    let graph = json!({ "name": "large", "nodes": [
        { "name": "a", "kind": "input" }, node("rotated", "seq 1 20000"), node("fits", "seq 1 3 | tr '\\n' ' '"),
    ] });
    assert_eq!(server.post("/api/v1/graphs", &graph).0, 201);
    let (_, execution) = server.post("/api/v1/executions", &json!({ "graph": "large", "values": { "a": 1 } }));
    let id = execution["id"].as_str().unwrap();
    let value =
        |node: &str| server.try_get(&format!("/api/v1/executions/{id}/values/{node}?wait=any&timeout=20s")).unwrap();
    assert_eq!(value("fits").1["value"], json!("1 2 3"));
    let (status, problem) = value("rotated");
    assert_eq!(status, 409, "{problem}");
}

#[test]
fn a_job_that_removed_its_own_workspace_can_be_removed() {
    let host = Host::new();
    let server = host.start();
    let job = server.shell("rm -rf $EVERBEAT_WORKSPACE");
    server.ended(&job);
    let (status, said) = server.delete(&format!("/api/v1/jobs/{job}"));
    assert_eq!(status, 200, "{said}");
    assert!(!host.folder(&job).exists());
}

#[test]
fn plain_runs_and_jobs_do_not_take_each_others_slots() {
    let host = Host::with(quick().env("EVERBEAT_REPLICA__SLOTS", "1").env("EVERBEAT_JOBS__SLOTS", "1"));
    let server = host.start();
    let first = server.shell("sleep 30");
    server.runs(&first);
    let waiting = server.shell("exit 0");
    let run = server.submit("echo", json!(1), json!({}));
    assert_eq!(server.wait(&run)["state"], "succeeded");
    assert_eq!(server.look(&waiting)["state"], "ready");
    let (status, problem) = server.post("/api/v1/runs", &json!({ "task": "command", "input": {} }));
    assert_eq!(status, 422, "{problem}");
    server.post(&format!("/api/v1/jobs/{first}/cancel"), &json!({}));
    assert_eq!(server.ended(&first)["state"], "cancelled");
    assert_eq!(server.ended(&waiting)["state"], "succeeded");
}

#[test]
fn settings_of_jobs_that_do_not_go_together_are_refused() {
    let output = Server::run_to_end(Options::default().env("EVERBEAT_JOBS__HEARTBEAT_INTERVAL", "90s"));
    assert_eq!(output.status.code(), Some(3).filter(|_| output.status.code() == Some(3)).or(Some(2)));
    let said = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(said.contains("jobs.heartbeat_interval") && said.contains("stale_after"), "{said}");
}
