//! The messages of `proto/everbeat/worker/v1/worker.proto`, written by hand. A test compares both.

use prost::{Enumeration, Message, Oneof};
use std::fmt;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FromWorker {
    #[prost(oneof = "from_worker::Message", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub(crate) message: Option<from_worker::Message>,
}

pub(crate) mod from_worker {
    #[derive(Clone, PartialEq, super::Oneof)]
    pub(crate) enum Message {
        #[prost(message, tag = "1")]
        Hello(super::Hello),
        #[prost(message, tag = "2")]
        Pong(super::Pong),
        #[prost(message, tag = "3")]
        Heartbeat(super::Heartbeat),
        #[prost(message, tag = "4")]
        Output(super::Output),
        #[prost(message, tag = "5")]
        Ended(super::Ended),
        #[prost(message, tag = "6")]
        Draining(super::Draining),
        #[prost(message, tag = "7")]
        Log(super::Log),
        #[prost(message, tag = "8")]
        Stacks(super::Stacks),
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FromServer {
    #[prost(oneof = "from_server::Message", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub(crate) message: Option<from_server::Message>,
}

pub(crate) mod from_server {
    #[derive(Clone, PartialEq, super::Oneof)]
    pub(crate) enum Message {
        #[prost(message, tag = "1")]
        Welcome(super::Welcome),
        #[prost(message, tag = "2")]
        Ping(super::Ping),
        #[prost(message, tag = "3")]
        Work(super::Work),
        #[prost(message, tag = "4")]
        HeartbeatAnswer(super::HeartbeatAnswer),
        #[prost(message, tag = "5")]
        Cancel(super::Cancel),
        #[prost(message, tag = "6")]
        Drain(super::Drain),
        #[prost(message, tag = "7")]
        EndedAnswer(super::EndedAnswer),
        #[prost(message, tag = "8")]
        Dump(super::Dump),
        #[prost(message, tag = "9")]
        OutputAnswer(super::OutputAnswer),
        #[prost(message, tag = "10")]
        Declined(super::Declined),
    }
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct Hello {
    #[prost(string, tag = "1")]
    pub(crate) pool: String,
    #[prost(string, tag = "2")]
    pub(crate) secret: String,
    #[prost(string, tag = "3")]
    pub(crate) sdk: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) tasks: Vec<String>,
    #[prost(uint32, tag = "5")]
    pub(crate) slots: u32,
    #[prost(string, repeated, tag = "6")]
    pub(crate) queues: Vec<String>,
    #[prost(string, tag = "7")]
    pub(crate) worker_id: String,
    #[prost(message, repeated, tag = "8")]
    pub(crate) leases: Vec<Lease>,
    #[prost(string, repeated, tag = "9")]
    pub(crate) graphs: Vec<String>,
    #[prost(string, tag = "10")]
    pub(crate) host: String,
    #[prost(bytes = "vec", tag = "11")]
    pub(crate) key: Vec<u8>,
    #[prost(string, repeated, tag = "12")]
    pub(crate) flows: Vec<String>,
    #[prost(string, repeated, tag = "13")]
    pub(crate) schedules: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct Welcome {
    #[prost(string, tag = "1")]
    pub(crate) worker_id: String,
    #[prost(uint64, tag = "2")]
    pub(crate) epoch: u64,
    #[prost(uint32, tag = "3")]
    pub(crate) ping_interval_ms: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) worker_ttl_ms: u32,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) key: Vec<u8>,
    #[prost(uint32, tag = "6")]
    pub(crate) message_limit: u32,
    #[prost(bool, tag = "7")]
    pub(crate) answers_output: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Declined {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) problem: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Ping {
    #[prost(uint64, tag = "1")]
    pub(crate) sequence: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) epoch: u64,
    #[prost(uint32, tag = "3")]
    pub(crate) vouched_ms: u32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Pong {
    #[prost(uint64, tag = "1")]
    pub(crate) sequence: u64,
    #[prost(uint32, tag = "2")]
    pub(crate) running: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) lag_ms: u32,
    #[prost(uint64, tag = "4")]
    pub(crate) progress: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) resident_bytes: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) cpu_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Work {
    #[prost(message, optional, tag = "1")]
    pub(crate) lease: Option<Lease>,
    #[prost(string, tag = "2")]
    pub(crate) task: String,
    #[prost(string, tag = "3")]
    pub(crate) input: String,
    #[prost(string, optional, tag = "4")]
    pub(crate) checkpoint: Option<String>,
    #[prost(uint64, optional, tag = "5")]
    pub(crate) deadline_ms: Option<u64>,
    #[prost(string, optional, tag = "6")]
    pub(crate) args: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub(crate) execution_id: Option<String>,
    #[prost(string, optional, tag = "8")]
    pub(crate) node: Option<String>,
    #[prost(bool, tag = "9")]
    pub(crate) stop_when_isolated: bool,
    #[prost(string, optional, tag = "10")]
    pub(crate) session: Option<String>,
    #[prost(uint64, tag = "11")]
    pub(crate) cancel_grace_ms: u64,
    #[prost(string, optional, tag = "12")]
    pub(crate) session_id: Option<String>,
    #[prost(bool, tag = "13")]
    pub(crate) session_new: bool,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct Lease {
    #[prost(string, tag = "1")]
    pub(crate) run_id: String,
    #[prost(uint32, tag = "2")]
    pub(crate) attempt: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) token: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Heartbeat {
    #[prost(message, optional, tag = "1")]
    pub(crate) lease: Option<Lease>,
    #[prost(uint64, optional, tag = "2")]
    pub(crate) done: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) total: Option<u64>,
    #[prost(string, optional, tag = "4")]
    pub(crate) note: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub(crate) checkpoint: Option<String>,
    #[prost(uint64, optional, tag = "6")]
    pub(crate) next_within_ms: Option<u64>,
    #[prost(uint64, tag = "7")]
    pub(crate) sequence: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeartbeatAnswer {
    #[prost(message, optional, tag = "1")]
    pub(crate) lease: Option<Lease>,
    #[prost(enumeration = "Verdict", tag = "2")]
    pub(crate) verdict: i32,
    #[prost(uint64, tag = "3")]
    pub(crate) sequence: u64,
    #[prost(string, tag = "4")]
    pub(crate) problem: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum Verdict {
    Unspecified = 0,
    GoOn = 1,
    Cancelled = 2,
    Draining = 3,
    Fenced = 4,
    Refused = 5,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Output {
    #[prost(message, optional, tag = "1")]
    pub(crate) lease: Option<Lease>,
    #[prost(uint64, tag = "2")]
    pub(crate) sequence: u64,
    #[prost(string, tag = "3")]
    pub(crate) item: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OutputAnswer {
    #[prost(message, optional, tag = "1")]
    pub(crate) lease: Option<Lease>,
    #[prost(uint64, tag = "2")]
    pub(crate) sequence: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Log {
    #[prost(message, optional, tag = "1")]
    pub(crate) lease: Option<Lease>,
    #[prost(string, tag = "2")]
    pub(crate) level: String,
    #[prost(string, tag = "3")]
    pub(crate) text: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Ended {
    #[prost(message, optional, tag = "1")]
    pub(crate) lease: Option<Lease>,
    #[prost(oneof = "ended::Outcome", tags = "2, 3, 4")]
    pub(crate) outcome: Option<ended::Outcome>,
}

pub(crate) mod ended {
    #[derive(Clone, PartialEq, super::Oneof)]
    pub(crate) enum Outcome {
        #[prost(string, tag = "2")]
        Result(String),
        #[prost(message, tag = "3")]
        Failure(super::Failure),
        #[prost(message, tag = "4")]
        Stopped(super::Stopped),
    }
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Stopped {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Failure {
    #[prost(string, tag = "1")]
    pub(crate) message: String,
    #[prost(bool, tag = "2")]
    pub(crate) permanent: bool,
    #[prost(string, tag = "3")]
    pub(crate) detail: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EndedAnswer {
    #[prost(message, optional, tag = "1")]
    pub(crate) lease: Option<Lease>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Cancel {
    #[prost(message, optional, tag = "1")]
    pub(crate) lease: Option<Lease>,
    #[prost(enumeration = "Why", tag = "2")]
    pub(crate) why: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum Why {
    Unspecified = 0,
    Cancelled = 1,
    Draining = 2,
    Fenced = 3,
    Judged = 4,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Drain {
    #[prost(uint32, tag = "1")]
    pub(crate) grace_ms: u32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Draining {}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Dump {
    #[prost(uint64, tag = "1")]
    pub(crate) sequence: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Stacks {
    #[prost(uint64, tag = "1")]
    pub(crate) sequence: u64,
    #[prost(string, tag = "2")]
    pub(crate) text: String,
}

// Whatever holds a secret is shown without it.

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello").field("pool", &self.pool).field("sdk", &self.sdk).finish_non_exhaustive()
    }
}

impl fmt::Debug for Welcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Welcome")
            .field("worker_id", &self.worker_id)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("run_id", &self.run_id).field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    const PROTO: &str = include_str!("../../../../proto/everbeat/worker/v1/worker.proto");
    const STRUCTS: &str = include_str!("proto.rs");

    /// Of each message or enum, named without its place: its fields as `number name: label type`.
    type Shapes = BTreeMap<String, BTreeSet<String>>;

    /// What the definition says. It holds one declaration on a line.
    fn declared() -> Shapes {
        let mut shapes = Shapes::new();
        let mut open: Vec<String> = Vec::new();
        for line in PROTO.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
            let words: Vec<&str> = line.split(|c: char| c.is_whitespace() || c == ';').collect();
            match words.as_slice() {
                ["syntax" | "package" | "rpc", ..] => {}
                ["message", name, "{}"] => _ = shapes.entry(name.to_string()).or_default(),
                ["message" | "enum", name, "{"] => {
                    shapes.entry(name.to_string()).or_default();
                    open.push(name.to_string());
                }
                ["oneof", _, "{"] => open.push(open.last().expect("inside of a message").clone()),
                ["service", _, "{"] => open.push(String::new()),
                ["}"] => _ = open.pop(),
                [label @ ("optional" | "repeated"), kind, name, "=", number, ""] => {
                    insert(&mut shapes, &open, number, name, &format!("{label} {kind}"));
                }
                [kind, name, "=", number, ""] => insert(&mut shapes, &open, number, name, kind),
                [name, "=", number, ""] => insert(&mut shapes, &open, number, name, "value"),
                _ => assert!(line.is_empty(), "this test does not understand {line:?}"),
            }
        }
        shapes
    }

    /// What the attributes of the structs say, from which the coding is derived.
    fn derived() -> Shapes {
        let mut shapes = Shapes::new();
        let (mut open, mut inside, mut attribute) = (String::new(), String::new(), None);
        let source = STRUCTS.split("#[cfg(test)]").next().expect("a first part");
        for line in source.lines().map(str::trim) {
            let words: Vec<&str> = line.split([' ', '(', ')', ':', ',']).filter(|word| !word.is_empty()).collect();
            if let Some(inner) = line.strip_prefix("#[prost(").and_then(|rest| rest.strip_suffix(")]")) {
                attribute = Some(inner.to_string()).filter(|inner| inner != "skip_debug");
                continue;
            }
            match words.as_slice() {
                // The oneofs of a message stand in a module of its name.
                ["pub", "crate", "mod", name, "{"] => inside = camel(name),
                ["pub", "crate", "enum", "Message" | "Outcome", "{"] => open = inside.clone(),
                ["pub", "crate", "struct" | "enum", name, ..] => {
                    open = name.to_string();
                    shapes.entry(open.clone()).or_default();
                }
                [name, "=", number] => {
                    let name = format!("{}_{}", upper(&open), upper(name));
                    insert(&mut shapes, &[open.clone()], number, &name, "value");
                }
                [.., kind] => {
                    let Some(attribute) = attribute.take() else { continue };
                    let parts: Vec<&str> = attribute.split(", ").collect();
                    if parts[0].starts_with("oneof") {
                        continue;
                    }
                    let number = attribute.split("tag = \"").nth(1).expect("a tag").trim_end_matches('"');
                    let label = ["optional", "repeated"].into_iter().find(|label| parts.contains(label));
                    let name = if words[0] == "pub" { words[2].to_string() } else { upper(words[0]).to_lowercase() };
                    let bare = kind.trim_end_matches(',').trim_start_matches("super::");
                    let bare = bare.rsplit('<').next().unwrap_or(bare).trim_end_matches('>');
                    let (kind, label) = match parts[0] {
                        // A message is optional without a word.
                        "message" => {
                            (bare.rsplit(':').next().unwrap_or(bare), label.filter(|label| *label == "repeated"))
                        }
                        "bytes = \"vec\"" => ("bytes", label),
                        scalar if scalar.starts_with("enumeration") => {
                            (scalar.split('"').nth(1).expect("a name"), label)
                        }
                        scalar => (scalar, label),
                    };
                    let shown = label.map_or_else(|| kind.to_string(), |label| format!("{label} {kind}"));
                    insert(&mut shapes, &[open.clone()], number, &name, &shown);
                }
                [] => {}
            }
        }
        shapes
    }

    fn insert(shapes: &mut Shapes, open: &[String], number: &str, name: &str, shown: &str) {
        let of = open.last().expect("inside of something");
        shapes.entry(of.clone()).or_default().insert(format!("{number} {name}: {shown}"));
    }

    fn upper(name: &str) -> String {
        let mut text = String::new();
        for c in name.chars() {
            if c.is_uppercase() && !text.is_empty() {
                text.push('_');
            }
            text.push(c.to_ascii_uppercase());
        }
        text
    }

    fn camel(name: &str) -> String {
        name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
    }

    #[test]
    fn the_structs_are_the_messages_of_the_definition() {
        let (declared, derived) = (declared(), derived());
        assert!(declared.len() > 20 && declared["Hello"].contains("8 leases: repeated Lease"), "{declared:#?}");
        assert_eq!(derived, declared);
    }
}
