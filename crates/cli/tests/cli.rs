//! What needs no server: usage, configuration, completions.

mod common;

use common::{client, code, json, stderr, stdout};
use std::process::{Command, Output};

/// Runs the client in an empty folder, so that nobody's configuration is found.
fn run(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    client().current_dir(folder.path()).args(args).output().expect("the binary runs")
}

fn check(output: &Output, expected: i32, parts: &[&str]) {
    let said = stderr(output);
    assert_eq!(code(output), expected, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

#[test]
fn wrong_usage_ends_with_2_and_says_what_is_known() {
    check(&run(&["sumbit", "echo"]), 2, &["sumbit", "submit"]);
    check(&run(&["submit"]), 2, &["<TASK>"]);
    check(&run(&["submit", "echo", "--priority", "high"]), 2, &["--priority", "high"]);
    check(&run(&["submit", "echo", "--wait", "--timeout", "soon"]), 2, &["--timeout", "soon", "30s"]);
    check(&run(&["ls", "runs", "--state", "asleep"]), 2, &["asleep", "succeeded"]);
    check(&run(&["wait"]), 2, &["<ID>"]);
    check(&run(&["-o", "xml", "ls", "runs"]), 2, &["xml", "json"]);
    check(&run(&["completions", "tcsh"]), 2, &["tcsh", "bash"]);
}

#[test]
fn bad_json_is_found_before_anything_is_sent() {
    let nowhere = ["--url", "http://127.0.0.1:1"];
    let with = |args: &[&str]| run(&[&nowhere[..], args].concat());
    check(&with(&["submit", "echo", "--input", "{oops"]), 2, &["--input", "{oops", "hint:"]);
    check(&with(&["submit", "echo", "--policy", "fast"]), 2, &["--policy", "fast", "hint:"]);
    check(&with(&["submit", "echo", "--input", "@missing.json"]), 2, &["--input", "@missing.json", "hint:"]);
    check(&with(&["submit", "echo", "--run-at", "tomorrow"]), 2, &["--run-at", "tomorrow", "2026-"]);
    check(&run(&["--url", "ftp://x", "ls", "runs"]), 2, &["--url: ", "ftp://x", "http://"]);
    let by_variable = client().env("EVERBEAT_URL", "ftp://x").args(["ls", "runs"]).output().expect("it runs");
    check(&by_variable, 2, &["EVERBEAT_URL: ", "ftp://x", "http://"]);
}

#[test]
fn a_server_that_is_not_there_is_named_with_the_remedy() {
    for args in [&["submit", "echo"][..], &["ls", "runs"], &["wait", "x", "--timeout", "100ms"]] {
        let output = run(&[&["--url", "http://127.0.0.1:1"], args].concat());
        check(&output, 3, &["http://127.0.0.1:1", "everbeat serve"]);
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn a_bad_configuration_is_refused_before_anything_is_touched() {
    let serve = |name: &str, value: &str| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let output = client().current_dir(folder.path()).arg("serve").env(name, value).output().expect("it runs");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "nothing was made");
        output
    };
    check(&serve("EVERBEAT_SERVER__LISTN", "x"), 2, &["EVERBEAT_SERVER__LISTN", "EVERBEAT_SERVER__LISTEN"]);
    check(&serve("EVERBEAT_SERVER__LISTEN", "x"), 2, &["server.listen", "\"x\"", "EVERBEAT_SERVER__LISTEN", "hint:"]);
    check(&serve("EVERBEAT_RUNS__HEARTBEAT_INTERVAL", "70s"), 2, &["runs.heartbeat_interval", "70s", "2m"]);
    check(&serve("EVERBEAT_REPLICA__HEARTBEAT_INTERVAL", "30s"), 2, &["replica.heartbeat_interval", "30s", "1m"]);
    check(&serve("EVERBEAT_SERVER__LISTEN", "0.0.0.0:0"), 2, &["server.listen", "0.0.0.0", "auth.tokens"]);
}

#[test]
fn the_configuration_in_force_is_shown_with_its_origin() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = "[server]\nlisten = \"127.0.0.1:9\"\n[replica]\nslots = 5\n[store]\nurl = \"postgres://a:secret@h/d\"\n";
    std::fs::write(folder.path().join("everbeat.toml"), file).expect("the file is written");
    let mut command = client();
    command.current_dir(folder.path()).env("EVERBEAT_REPLICA__SLOTS", "6");
    let output = command.args(["config", "-o", "json", "--listen", "127.0.0.1:8"]).output().expect("it runs");
    let shown = json(&output);
    assert_eq!(shown["server.listen"], serde_json::json!({"value": "127.0.0.1:8", "from": "flag --listen"}));
    assert_eq!(shown["replica.slots"]["value"], 6);
    assert_eq!(shown["replica.slots"]["from"], "environment variable EVERBEAT_REPLICA__SLOTS");
    assert_eq!(shown["store.url"]["value"], "postgres://a:…@h/d");
    assert_eq!(shown["runs.max_attempts"]["from"], "default");
}

#[test]
fn completions_and_the_version_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert_eq!(code(&output), 0);
        assert!(stdout(&output).contains("everbeat"), "{shell}");
    }
    assert_eq!(stdout(&run(&["-V"])).trim(), concat!("everbeat ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_command_and_flag_has_a_line_of_help() {
    let mut waiting = vec![Vec::<String>::new()];
    let mut seen = 0;
    while let Some(path) = waiting.pop() {
        let output = Command::new(common::BINARY).args(&path).arg("--help").output().expect("it runs");
        assert_eq!(code(&output), 0, "{path:?}");
        let page = stdout(&output);
        let mut section = "";
        for line in page.lines() {
            if !line.starts_with(' ') {
                section = line;
                continue;
            }
            let Some(entry) = line.strip_prefix("  ").filter(|entry| !entry.starts_with(' ')) else { continue };
            if section == "Commands:" {
                let (name, help) = entry.split_once(' ').unwrap_or((entry, ""));
                assert!(!help.trim().is_empty(), "{path:?} {name} has no help");
                if name != "help" {
                    waiting.push(path.iter().cloned().chain([name.to_string()]).collect());
                }
            }
        }
        seen += 1;
    }
    assert!(seen > 15, "only {seen} pages of help were found");
}

#[test]
fn what_nobody_types_is_listed_nowhere() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&run(&["completions", shell]));
        for hidden in ["jq-evaluate", "shim", "guardian"] {
            assert!(!script.contains(hidden), "{shell} completes {hidden}");
        }
    }
    let typo = run(&["jq-evaluat"]);
    assert_eq!(code(&typo), 2);
    assert!(!stderr(&typo).contains("jq-evaluate'"), "{}", stderr(&typo));
    assert!(!stdout(&run(&[])).contains("jq-evaluate"));
}

#[test]
fn alone_it_prints_its_help_as_what_was_asked_for() {
    let alone = run(&[]);
    assert_eq!((code(&alone), stderr(&alone).as_str()), (0, ""));
    assert_eq!(stdout(&alone), stdout(&run(&["-h"])));
    let unsaid = run(&["--quiet"]);
    assert_eq!((code(&unsaid), stdout(&unsaid).as_str()), (2, ""), "without a verb it is wrong usage");
}

#[test]
fn a_variable_that_nothing_reads_is_warned_about() {
    let with = |name: &str, args: &[&str]| client().env(name, "x").args(args).output().expect("it runs");
    let said = with("EVERBEAT_ULR", &["completions", "bash"]);
    assert_eq!(code(&said), 0);
    assert!(stderr(&said).contains("EVERBEAT_ULR") && stderr(&said).contains("EVERBEAT_URL?"), "{}", stderr(&said));
    assert_eq!(stderr(&with("EVERBEAT_ULR", &["-q", "completions", "bash"])), "");
    assert_eq!(
        stdout(&said),
        stdout(&with("EVERBEAT_TOKEN", &["completions", "bash"])),
        "what is asked for is as it was"
    );
    for known in ["EVERBEAT_TOKEN", "EVERBEAT_REPLICA__SLOTS", "EVERBEAT_SHIM_KILL_AT"] {
        assert_eq!(stderr(&with(known, &["completions", "bash"])), "", "{known}");
    }
    let key = with("EVERBEAT_REPLICA__SLOST", &["completions", "bash"]);
    assert_eq!((code(&key), stderr(&key).lines().count()), (0, 1), "{}", stderr(&key));
    assert!(stderr(&key).contains("did you mean EVERBEAT_REPLICA__SLOTS?"), "{}", stderr(&key));
    let refused = with("EVERBEAT_REPLICA__SLOST", &["config"]);
    assert_eq!(stderr(&refused).matches("EVERBEAT_REPLICA__SLOST").count(), 1, "told once: {}", stderr(&refused));
}
