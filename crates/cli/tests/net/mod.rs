//! Just enough of the protocols of Redis and NATS to fill streams, without a client of theirs.
#![allow(dead_code, reason = "each test file uses a part")]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A name that no other test uses.
pub(crate) fn fresh(what: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("{what}_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run scripts/test, which starts a server"))
}

fn dial(url: &str) -> BufReader<TcpStream> {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let stream = TcpStream::connect(host).expect("a server");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    BufReader::with_capacity(1 << 16, stream)
}

pub(crate) struct Redis {
    link: BufReader<TcpStream>,
}

impl Redis {
    pub(crate) fn url() -> String {
        url("EVERBEAT_TEST_REDIS")
    }

    pub(crate) fn connect() -> Redis {
        Redis { link: dial(&Redis::url()) }
    }

    /// Sends all commands at once, and answers the lines of all answers.
    pub(crate) fn all(&mut self, commands: impl Iterator<Item = Vec<String>>) -> Vec<Value> {
        let mut sent = 0;
        let mut text = Vec::new();
        for command in commands {
            text.extend(format!("*{}\r\n", command.len()).into_bytes());
            for part in command {
                text.extend(format!("${}\r\n{part}\r\n", part.len()).into_bytes());
            }
            sent += 1;
        }
        let mut writer = self.link.get_ref().try_clone().expect("a socket");
        let writing = std::thread::spawn(move || writer.write_all(&text).expect("a socket"));
        let answers = (0..sent).map(|_| self.answer()).collect();
        writing.join().expect("a writer");
        answers
    }

    pub(crate) fn ask(&mut self, command: &[&str]) -> Value {
        let command = command.iter().map(ToString::to_string).collect();
        self.all(std::iter::once(command)).remove(0)
    }

    /// Adds records to a stream.
    pub(crate) fn add(&mut self, stream: &str, records: impl Iterator<Item = Value>) {
        let add = |record: Value| {
            ["XADD", stream, "*", "data", &record.to_string()].iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        self.all(records.map(add));
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.link.read_line(&mut line).expect("an answer");
        line.trim_end().to_string()
    }

    fn answer(&mut self) -> Value {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        match kind {
            "+" => rest.into(),
            ":" => rest.parse::<i64>().expect("a number").into(),
            "$" => match rest.parse::<i64>().expect("a length") {
                -1 => Value::Null,
                length => {
                    let mut bytes = vec![0; usize::try_from(length).expect("a length") + 2];
                    self.link.read_exact(&mut bytes).expect("an answer");
                    String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned().into()
                }
            },
            "*" => (0..rest.parse::<i64>().expect("a length")).map(|_| self.answer()).collect(),
            _ => panic!("Redis says {line}"),
        }
    }
}

pub(crate) struct Nats {
    link: BufReader<TcpStream>,
}

impl Nats {
    pub(crate) fn url() -> String {
        url("EVERBEAT_TEST_NATS")
    }

    pub(crate) fn connect() -> Nats {
        let url = Nats::url();
        let mut nats = Nats { link: dial(&url) };
        let who = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map_or("", |(who, _)| who);
        let (user, password) = who.split_once(':').expect("user and password");
        let hello = json!({"verbose": false, "pedantic": false, "user": user, "pass": password});
        nats.say(&format!("CONNECT {hello}\r\nSUB inbox 1\r\nPING\r\n"));
        nats.until("PONG");
        nats
    }

    fn say(&mut self, text: &str) {
        self.link.get_mut().write_all(text.as_bytes()).expect("a socket");
    }

    fn until(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            self.link.read_line(&mut line).expect("an answer");
            assert!(!line.starts_with("-ERR") && !line.is_empty(), "NATS says {line}");
            if line.starts_with(what) {
                return line;
            }
        }
    }

    /// Asks the interface of JetStream.
    pub(crate) fn api(&mut self, subject: &str, body: &Value) -> Value {
        let body = body.to_string();
        self.say(&format!("PUB $JS.API.{subject} inbox {}\r\n{body}\r\n", body.len()));
        let line = self.until("MSG");
        let length: usize = line.split_whitespace().last().and_then(|length| length.parse().ok()).expect("a length");
        let mut bytes = vec![0; length + 2];
        self.link.read_exact(&mut bytes).expect("an answer");
        let answer: Value = serde_json::from_slice(&bytes[..length]).expect("an answer");
        assert!(answer.get("error").is_none(), "{subject}: {answer}");
        answer
    }

    /// A new stream with these records.
    pub(crate) fn stream(&mut self, name: &str, records: impl Iterator<Item = Value>) {
        self.api(&format!("STREAM.CREATE.{name}"), &json!({"name": name, "subjects": [name], "storage": "memory"}));
        let mut count = 0;
        let mut text = String::new();
        for record in records {
            let body = record.to_string();
            text.push_str(&format!("PUB {name} {}\r\n{body}\r\n", body.len()));
            count += 1;
        }
        self.say(&text);
        self.say("PING\r\n");
        self.until("PONG");
        let held = self.api(&format!("STREAM.INFO.{name}"), &json!({}));
        assert_eq!(held["state"]["messages"], count, "{held}");
    }
}
