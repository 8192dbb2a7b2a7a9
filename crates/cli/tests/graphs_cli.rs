//! Graphs and executions from the command line.

mod common;

use common::{Server, code, json, quick, stderr, stdout};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::process::{Output, Stdio};

const TOML: &str = r#"
name = "order"
version = 1

[[nodes]]
name = "price"
kind = "input"

[[nodes]]
name = "count"
kind = "input"

[[nodes]]
name = "total"
kind = "compute"
gate = ["price", "count"]
task = "jq"
args = { program = ".price * .count" }

[[nodes]]
name = "check"
kind = "compute"
gate = { gt = ["count", 100] }
task = "fail"
args = { message = "out of stock" }
options = { max_attempts = 1 }
"#;

fn check(output: &Output, expected: i32, parts: &[&str]) {
    let said = format!("{}{}", stdout(output), stderr(output));
    assert_eq!(code(output), expected, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

/// A server with the graph, and an execution of it.
fn begun() -> (Server, String) {
    let server = Server::start(quick());
    fs::write(server.folder().join("order.toml"), TOML).unwrap();
    check(&server.cli(&["graph", "apply", "order.toml"]), 0, &["graph order version 1 is new"]);
    let started = server.cli(&["execution", "start", "order", "--set", "price=2.5", "--metadata", "{\"by\": \"me\"}"]);
    assert_eq!(code(&started), 0, "{}", stderr(&started));
    let id = stdout(&started).trim().to_string();
    (server, id)
}

#[test]
fn a_definition_is_applied_from_json_from_toml_and_from_stdin() {
    let (server, _) = begun();
    check(&server.cli(&["graph", "apply", "order.toml"]), 0, &["graph order version 1 is unchanged"]);
    let shown = json(&server.cli(&["graph", "show", "order", "-o", "json"]));
    assert_eq!(shown["nodes"][2]["args"], json!({"program": ".price * .count"}));
    let mut definition = json!({"name": "order", "version": "2", "nodes": shown["nodes"]});
    fs::write(server.folder().join("order.json"), definition.to_string()).unwrap();
    check(&server.cli(&["graph", "apply", "order.json"]), 0, &["graph order version 2 is new"]);
    definition["name"] = json!("piped");
    definition["nodes"][3]["task"] = json!("comes.later");
    let piped = |args: &[&str]| {
        let mut child =
            server.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.as_mut().unwrap();
        child.stdin.take().unwrap().write_all(definition.to_string().as_bytes()).unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
        (child.wait().unwrap().code(), said)
    };
    let (refused, said) = piped(&["graph", "apply", "-"]);
    assert!(refused == Some(3) && said.contains("check.task") && said.contains("accept_unknown"), "{said}");
    assert_eq!(piped(&["graph", "apply", "-", "--accept-unknown"]).0, Some(0));
    check(&server.cli(&["ls", "graphs"]), 0, &["order", "piped", "SINGLETON"]);
    check(
        &server.cli(&["graph", "show", "order", "--version", "1"]),
        0,
        &["total", "compute", "[\"price\",\"count\"]"],
    );
    check(&server.cli(&["graph", "show", "order", "--mermaid"]), 0, &["graph TD", "total"]);
    let chart = json(&server.cli(&["graph", "show", "order", "--mermaid", "-o", "json"]));
    assert!(chart["mermaid"].as_str().unwrap().starts_with("graph TD"));
    check(&server.cli(&["graph", "show", "ordr"]), 3, &["ordr"]);
}

#[test]
fn a_bad_definition_is_refused_naming_the_node_and_a_bad_file_before_anything_is_sent() {
    let (server, _) = begun();
    let apply = |name: &str, text: &str| {
        fs::write(server.folder().join(name), text).unwrap();
        server.cli(&["graph", "apply", name])
    };
    let bad = r#"{"name": "x", "nodes": [{"name": "sum", "kind": "compute", "gate": ["nowhere"], "task": "noop"}]}"#;
    check(&apply("bad", bad), 3, &["sum.gate", "nowhere"]);
    check(&apply("bad.toml", "name = \"x\"\n[[nodes]]\nname = \"a\"\nkind = \"inpt\"\n"), 3, &["a.kind", "input"]);
    check(&apply("bad.json", "{oops"), 2, &["bad.json", "JSON"]);
    check(&apply("bad.toml", "oops"), 2, &["bad.toml", "TOML"]);
    check(&server.cli(&["graph", "apply", "missing.json"]), 2, &["missing.json"]);
}

#[test]
fn values_are_set_waited_for_unset_and_remembered() {
    let (server, id) = begun();
    let get = |args: &[&str]| server.cli(&[&["execution", "get", &id], args].concat());
    check(&get(&["total"]), 1, &["total", "no value"]);
    check(&get(&["total", "--wait", "any", "--timeout", "200ms"]), 124, &["total", "200ms", "count is not set"]);
    let waiting = server.command(&["execution", "get", &id, "total", "--wait", "any"]).stdout(Stdio::piped()).spawn();
    check(&server.cli(&["execution", "set", &id, "count=4"]), 0, &["revision 2"]);
    let waited = waiting.unwrap().wait_with_output().unwrap();
    assert_eq!((code(&waited), stdout(&waited).trim()), (0, "10.0"));
    let whole = json(&get(&["total", "-o", "json"]));
    assert_eq!((&whole["node"], &whole["value"]), (&json!("total"), &json!(10.0)));
    let revision = whole["revision"].to_string();
    let newer = ["total", "--wait", "newer-than", "--revision", &revision, "--timeout", "100ms"];
    check(&get(&newer), 124, &["total"]);
    check(&get(&["total", "--wait", "newer", "--timeout", "100ms"]), 124, &["total"]);
    check(&server.cli(&["execution", "set", &id, "count=2", "price=3"]), 0, &["revision 4"]);
    let newer = get(&["total", "--wait", "newer-than", "--revision", &revision]);
    assert_eq!((code(&newer), stdout(&newer).trim()), (0, "6"));
    check(&server.cli(&["execution", "unset", &id, "count", "price"]), 0, &["revision"]);
    check(&get(&["total"]), 1, &["total"]);
    let history = json(&server.cli(&["execution", "history", &id, "--all", "-o", "json"]));
    let told: Vec<Value> = history["items"].as_array().unwrap().iter().map(|item| item["node"].clone()).collect();
    assert_eq!(told[..3], ["price", "count", "total"]);
    assert_eq!(history["items"][0]["metadata"], json!({"by": "me"}));
    check(&server.cli(&["execution", "history", &id]), 0, &["PLACE", "cleared"]);
    check(&get(&["totl"]), 3, &["totl"]);
    check(&get(&["total", "--wait", "newer-than"]), 2, &["--revision"]);
    check(&get(&["total", "--wait", "any", "--revision", "1"]), 2, &["--revision"]);
    check(&get(&["total", "--revision", "1"]), 2, &["--wait"]);
}

#[test]
fn what_is_no_json_is_a_text_and_mistakes_name_the_node() {
    let (server, id) = begun();
    for (given, value) in [("word", "\"word\""), ("\"5\"", "\"5\""), ("5", "5"), ("[1, 2.0]", "[1,2.0]"), ("", "\"\"")]
    {
        check(&server.cli(&["execution", "set", &id, &format!("price={given}")]), 0, &[]);
        let got = server.cli(&["execution", "get", &id, "price"]);
        assert_eq!(stdout(&got).trim(), value, "{given}");
    }
    check(&server.cli(&["execution", "set", &id, "pric=1"]), 3, &["pric", "price"]);
    check(&server.cli(&["execution", "set", &id, "total=1"]), 3, &["total", "compute"]);
    check(&server.cli(&["execution", "set", &id, "price"]), 2, &["price", "NODE=JSON"]);
    check(&server.cli(&["execution", "set", &id]), 2, &["NODE=JSON"]);
    check(&server.cli(&["execution", "start", "order", "--values", "[]"]), 2, &["--values"]);
    check(&server.cli(&["execution", "start", "ordr"]), 3, &["order"]);
    let values =
        ["execution", "start", "order", "--values", "{\"price\": 1, \"count\": 1}", "--set", "count=7", "-o", "json"];
    assert_eq!(json(&server.cli(&values))["values"]["count"]["value"], 7);
}

#[test]
fn a_failed_computation_is_told_retried_and_abandoned() {
    let (server, id) = begun();
    check(&server.cli(&["execution", "set", &id, "count=101"]), 0, &[]);
    let failed = server.cli(&["execution", "get", &id, "check", "--wait", "any"]);
    check(&failed, 1, &["check", "out of stock", "execution retry"]);
    assert_eq!(stdout(&failed), "");
    check(&server.cli(&["execution", "retry", &id, "check"]), 0, &["node check of execution"]);
    check(&server.cli(&["execution", "abandon", &id, "price"]), 3, &["price"]);
    check(&server.cli(&["execution", "retry", &id, "chek"]), 3, &["chek", "check"]);
    check(&server.cli(&["graph", "analytics", "order"]), 0, &["executions", "price", "1 (100.0%)"]);
}

#[test]
fn executions_are_shown_listed_and_archived() {
    let (server, id) = begun();
    check(&server.cli(&["execution", "show", &id]), 0, &[&id, "order, version 1", "count is not set", "2.5"]);
    check(&server.cli(&["show", &id]), 0, &[&id, "count is not set"]);
    assert_eq!(json(&server.cli(&["show", &id, "-o", "json"]))["graph"], "order");
    check(&server.cli(&["execution", "show", &id, "--mermaid"]), 0, &["classDef"]);
    check(&server.cli(&["execution", "summary", &id]), 0, &["Waiting:", "count is not set"]);
    server.cli(&["execution", "start", "order", "--set", "price=9"]);
    let ls = |args: &[&str]| server.cli(&[&["ls", "executions", "-o", "json"], args].concat());
    let prices = |args: &[&str]| -> Vec<f64> {
        let items = json(&ls(args))["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["values"]["price"]["value"].as_f64().unwrap()).collect()
    };
    assert_eq!(prices(&["--graph", "order"]), [9.0, 2.5]);
    assert_eq!(prices(&["--sort", "price"]), [2.5, 9.0]);
    assert_eq!(prices(&["--sort", "-price", "--limit", "1"]), [9.0]);
    assert_eq!(prices(&["--where", "price.gt:1", "--where", "price.lt:5"]), [2.5]);
    check(&server.cli(&["ls", "executions"]), 0, &[&id, "COMPUTING"]);
    check(&ls(&["--where", "price"]), 3, &["where"]);
    check(&server.cli(&["execution", "archive", &id]), 0, &["archived"]);
    assert_eq!(prices(&[]), [9.0]);
    assert_eq!(prices(&["--archived"]), [9.0, 2.5]);
    check(&server.cli(&["execution", "set", &id, "count=1"]), 3, &["archived"]);
    check(&server.cli(&["execution", "unarchive", &id]), 0, &["back"]);
    check(&server.cli(&["show", "00000000-0000-0000-0000-000000000007"]), 3, &["no job, run, execution"]);
}

#[test]
fn a_wait_for_a_value_goes_on_through_a_restart_of_the_server() {
    let (server, id) = begun();
    let waiting = server.command(&["execution", "get", &id, "total", "--wait", "any"]).stdout(Stdio::piped()).spawn();
    let waiting = waiting.unwrap();
    let server = server.restart();
    check(&server.cli(&["execution", "set", &id, "count=2"]), 0, &[]);
    let waited = waiting.wait_with_output().unwrap();
    assert_eq!((code(&waited), stdout(&waited).trim()), (0, "5.0"));
}
