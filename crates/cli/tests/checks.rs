//! Checks of real servers: two replicas that tell each change once, and the command line.

mod common;
mod postgres;

use common::{FINISH, Server, code, json as parsed, quick, stderr, stdout, until};
use postgres::Postgres;
use serde_json::{Value, json};

/// How often that was told of a check.
fn told(server: &Server, kind: &str) -> usize {
    stdout(&server.cli(&["events", "--kind", kind, "-o", "json"])).lines().count()
}

#[test]
fn of_two_replicas_one_tells_that_a_check_is_down() {
    let postgres = Postgres::start();
    let servers = [Server::start(quick().store(postgres.url())), Server::start(quick().store(postgres.url()))];
    for number in 0..20 {
        let (status, answer) =
            servers[0].put(&format!("/api/v1/checks/check-{number}"), &json!({ "period": "1s", "grace": "1s" }));
        assert_eq!(status, 201, "{answer}");
        assert_eq!(servers[1].post(&format!("/ping/check-{number}"), &json!({})).0, 200);
    }
    until(FINISH, "all down", || {
        let down = servers[1].get("/api/v1/checks?state=down");
        (down["items"].as_array()?.len() == 20).then_some(())
    });
    // One that nobody looked at while it was late is only told to be down.
    assert!(told(&servers[0], "check.late") <= 20);
    assert_eq!(told(&servers[0], "check.down"), 20);
    let back: Vec<Value> = (0..20).map(|number| servers[number % 2].get(&format!("/ping/check-{number}"))).collect();
    assert!(back.iter().all(|answer| answer["state"] == "up"), "{back:?}");
    assert_eq!(told(&servers[1], "check.up"), 20);
}

#[test]
fn checks_are_written_pinged_and_looked_at_from_the_command_line() {
    let server = Server::start(quick());
    let first = server.cli(&["ping", "backup", "--start"]);
    assert_eq!((code(&first), stdout(&first).trim()), (0, "check backup is made; it is new"), "{}", stderr(&first));
    let failed = server.cli(&["ping", "backup", "--exit", "3", "--message", "disk full\nsecond line"]);
    assert_eq!(stdout(&failed).trim(), "check backup is down", "{}", stderr(&failed));
    let pings = stdout(&server.cli(&["check", "pings", "backup"]));
    assert!(pings.contains("disk full") && !pings.contains("second line"), "{pings}");
    let shown = stdout(&server.cli(&["check", "show", "backup"]));
    assert!(shown.contains("down") && shown.contains("failed") && shown.contains("every 1d"), "{shown}");
    assert_eq!(code(&server.cli(&["ping", "backup"])), 0);
    let put = server.cli(&["check", "put", "report", "--cron", "30 2 * * *", "--tz", "Europe/Berlin"]);
    assert_eq!(stdout(&put).trim(), "check report is new; it waits for its first ping", "{}", stderr(&put));
    let listed = stdout(&server.cli(&["ls", "checks"]));
    assert!(listed.contains("Europe/Berlin") && listed.contains("up"), "{listed}");
    let up = parsed(&server.cli(&["check", "ls", "--state", "up", "-o", "json"]));
    assert_eq!(up["items"][0]["name"], "backup");
    assert!(stdout(&server.cli(&["check", "pause", "backup"])).contains("is paused"));
    assert!(stdout(&server.cli(&["check", "resume", "backup"])).contains("it is new, a success is due"));
    assert_eq!(code(&server.cli(&["check", "rm", "backup"])), 0);
    let gone = server.cli(&["check", "show", "backup"]);
    assert_eq!(code(&gone), 3);
    assert!(stderr(&gone).contains("everbeat ls checks"), "{}", stderr(&gone));
    assert_eq!(code(&server.cli(&["ping", "backup", "--start", "--fail"])), 2);
    let wrong = server.cli(&["check", "put", "x", "--grace", "0s"]);
    assert!(code(&wrong) == 3 && stderr(&wrong).contains("grace"), "{}", stderr(&wrong));
}

#[test]
fn checks_are_written_from_files_and_compared() {
    let server = Server::start(quick());
    let folder = common::scratch();
    let file = folder.path().join("checks.toml");
    let text =
        "[[check]]\nname = 'backup'\nperiod = 3600\ngrace = '10m'\n\n[[check]]\nname = 'report'\ncron = '@daily'\n";
    std::fs::write(&file, text).expect("written");
    let file = file.to_str().expect("text");
    let applied = server.cli(&["check", "apply", file]);
    assert_eq!(code(&applied), 0, "{}", stderr(&applied));
    assert!(stdout(&applied).starts_with("check backup is new; it waits for its first ping"), "{}", stdout(&applied));
    assert!(stdout(&server.cli(&["check", "apply", file])).contains("check report is unchanged"));
    assert_eq!(code(&server.cli(&["check", "diff", file])), 0);
    std::fs::write(file, text.replace("10m", "20m")).expect("written");
    let differs = server.cli(&["check", "diff", file, "-o", "json"]);
    assert_eq!((code(&differs), parsed(&differs)["items"][0]["field"].clone()), (1, json!("grace")));
}
