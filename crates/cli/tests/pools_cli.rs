//! What can be said of pools and workers on the command line, and where workers dial.

mod common;

use common::{Options, Server, code, json, quick, scratch, stderr, stdout};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Output;

/// A pool of the size 0: nobody need be started for it.
fn with_pool() -> Options {
    quick()
        .env("EVERBEAT_POOL__ML__COMMAND", r#"["sleep", "1000"]"#)
        .env("EVERBEAT_POOL__ML__SIZE", 0)
        .env("EVERBEAT_POOL__ML__SLOTS", 2)
        .env("EVERBEAT_POOL__ML__QUEUES", r#"["gpu"]"#)
}

fn said(output: &Output, parts: &[&str]) {
    let text = stdout(output);
    assert_eq!(code(output), 0, "{text}{}", stderr(output));
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

fn refused(output: &Output, expected: i32, parts: &[&str]) {
    let text = stderr(output);
    assert_eq!(code(output), expected, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn pools_are_listed_shown_and_acted_on() {
    let server = Server::start(with_pool());
    said(&server.cli(&["ls", "pools"]), &["NAME", "ml", "CONTAINMENT"]);
    said(&server.cli(&["show", "ml"]), &["pool", "ml", "gpu", "slots each"]);
    let listed = json(&server.cli(&["ls", "pools", "-o", "json"]));
    assert_eq!((&listed["items"][0]["name"], &listed["items"][0]["size"]), (&"ml".into(), &0.into()));
    said(&server.cli(&["pool", "drain", "ml"]), &["ml", "no more work"]);
    assert_eq!(json(&server.cli(&["show", "ml", "-o", "json"]))["state"], "paused");
    said(&server.cli(&["pool", "resume", "ml"]), &["ml", "takes work"]);
    said(&server.cli(&["pool", "restart", "ml"]), &["ml", "replaces"]);
    assert_eq!(json(&server.cli(&["pool", "scale", "ml", "0", "-o", "json"]))["size"], 0);
    said(&server.cli(&["events", "--kind", "pool"]), &["pool.scaled", "pool.paused", "pool.resumed"]);
    refused(&server.cli(&["pool", "drain", "other"]), 3, &["other", "hint:"]);
    refused(&server.cli(&["pool", "scale", "ml", "10001"]), 2, &["10001"]);
    refused(&server.cli(&["show", "other-pool"]), 3, &["other-pool"]);
}

#[test]
fn workers_that_are_not_there_are_told_so() {
    let server = Server::start(with_pool());
    let none = server.cli(&["ls", "workers"]);
    assert_eq!((code(&none), stdout(&none).as_str()), (0, ""));
    assert!(stderr(&none).contains("server.worker_listen"), "{}", stderr(&none));
    let absent = "00000000-0000-7000-8000-000000000007";
    for verb in ["ping", "restart", "drain", "dump"] {
        refused(&server.cli(&["worker", verb, absent]), 3, &[absent, "hint:"]);
        refused(&server.cli(&["worker", verb, "ffff"]), 3, &["no worker has the id or name"]);
    }
}

#[test]
fn the_configuration_is_shown_without_what_workers_are_told() {
    let folder = scratch();
    let file = folder.path().join("everbeat.toml");
    let pool = "[[pool]]\nname = \"ml\"\ncommand = [\"sleep\"]\nenv = { KEY = \"hush\" }\n";
    fs::write(&file, pool).expect("written");
    for format in ["json", "table"] {
        let shown = common::client().args(["config", "-o", format, "--config"]).arg(&file).output().expect("it runs");
        said(&shown, &["KEY"]);
        assert!(!stdout(&shown).contains("hush"), "{}", stdout(&shown));
    }
}

#[test]
fn workers_from_elsewhere_find_an_address_that_speaks_http2() {
    let server = Server::start(quick().env("EVERBEAT_SERVER__WORKER_LISTEN", "127.0.0.1:0"));
    let log = server.log();
    let address = log.split("may dial ").nth(1).and_then(|rest| rest.split(',').next()).expect("an address");
    let mut stream = TcpStream::connect(address).expect("connected");
    // The preface of a client, and its empty settings.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("sent");
    let mut head = [0; 9];
    stream.read_exact(&mut head).expect("an answer");
    assert_eq!(head[3], 4, "the server's settings come first");
}

#[test]
fn an_address_or_certificate_that_cannot_be_used_is_refused_with_the_remedy() {
    let server = Server::start(quick());
    let refuses = |options: &Options, parts: &[&str]| refused(&options.command().output().expect("it runs"), 3, parts);
    refuses(&quick().env("EVERBEAT_SERVER__WORKER_LISTEN", server.address()), &["taken", "server.worker_listen"]);
    let folder = scratch();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let tls = |cert: &str, key: &str| {
        let listen = quick().env("EVERBEAT_SERVER__WORKER_LISTEN", "127.0.0.1:0");
        listen.env("EVERBEAT_SERVER__TLS_CERT", cert).env("EVERBEAT_SERVER__TLS_KEY", key)
    };
    refuses(&tls("/does/not/exist", "/neither"), &["/does/not/exist", "server.tls_cert"]);
    let empty = file("empty.pem", "");
    refuses(&tls(&empty, &empty), &["empty.pem", "no certificate", "PEM"]);
}
