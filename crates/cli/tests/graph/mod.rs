//! Graphs and executions through a server's interface.
#![allow(dead_code, reason = "each test file uses a part")]

use crate::common::{FINISH, Options, Server, until};
use crate::postgres::Postgres;
use serde_json::{Value, json};

/// Looks often and retries soon, but judges nobody dead within a test.
pub(crate) fn calm() -> Options {
    Options::default()
        .env("EVERBEAT_REPLICA__POLL_INTERVAL", "100ms")
        .env("EVERBEAT_RUNS__BACKOFF", "{\"initial\":\"20ms\",\"max\":\"100ms\"}")
}

/// Runs a test on SQLite and on PostgreSQL.
pub(crate) fn each_store(test: impl Fn(Options)) {
    test(calm());
    let postgres = Postgres::start();
    test(calm().store(postgres.url()));
}

/// A node that jq computes.
pub(crate) fn jq(name: &str, gate: Value, program: &str) -> Value {
    json!({ "name": name, "kind": "compute", "gate": gate, "task": "jq", "args": { "program": program } })
}

pub(crate) fn input(name: &str) -> Value {
    json!({ "name": name, "kind": "input" })
}

/// The same node with options.
pub(crate) fn with(mut node: Value, options: Value) -> Value {
    node["options"] = options;
    node
}

impl Server {
    pub(crate) fn apply(&self, graph: &Value) -> Value {
        let (status, answer) = self.post("/api/v1/graphs", graph);
        assert!([200, 201].contains(&status), "{status} {answer}");
        answer
    }

    pub(crate) fn execute(&self, graph: &str, values: Value) -> Execution<'_> {
        let (status, execution) = self.post("/api/v1/executions", &json!({ "graph": graph, "values": values }));
        assert!([200, 201].contains(&status), "{status} {execution}");
        self.execution(execution["id"].as_str().unwrap())
    }

    pub(crate) fn execution(&self, id: &str) -> Execution<'_> {
        Execution { server: self, id: id.to_string() }
    }
}

/// An execution as one server shows it.
pub(crate) struct Execution<'a> {
    pub(crate) server: &'a Server,
    pub(crate) id: String,
}

impl Execution<'_> {
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/api/v1/executions/{}{rest}", self.id)
    }

    pub(crate) fn show(&self) -> Value {
        self.server.get(&self.path(""))
    }

    pub(crate) fn set(&self, values: Value) -> u64 {
        let (status, answer) = self.server.put(&self.path("/values"), &json!({ "values": values }));
        assert_eq!(status, 200, "{answer}");
        answer["revision"].as_u64().unwrap()
    }

    pub(crate) fn unset(&self, node: &str) -> u64 {
        let (status, answer) = self.server.delete(&self.path(&format!("/values/{node}")));
        assert_eq!(status, 200, "{answer}");
        answer["revision"].as_u64().unwrap()
    }

    /// The status and the body of one request for a value.
    pub(crate) fn ask(&self, node: &str, query: &str) -> (u16, Value) {
        let path = self.path(&format!("/values/{node}{query}"));
        self.server.try_get(&path).unwrap_or_else(|| panic!("GET {path}: no answer"))
    }

    /// Waits for any value.
    pub(crate) fn any(&self, node: &str) -> Value {
        let (status, answer) = self.ask(node, "?wait=any&timeout=30s");
        assert_eq!(status, 200, "{node}: {answer}");
        answer
    }

    /// Waits for a value newer than that of the revision.
    pub(crate) fn newer_than(&self, node: &str, revision: u64) -> Value {
        let (status, answer) = self.ask(node, &format!("?wait=newer_than&revision={revision}&timeout=30s"));
        assert_eq!(status, 200, "{node}: {answer}");
        answer
    }

    pub(crate) fn until_value(&self, node: &str, expected: &Value) -> Value {
        until(FINISH, &format!("{node} is {expected}"), || {
            let (status, answer) = self.server.try_get(&self.path(&format!("/values/{node}")))?;
            (status == 200 && answer["value"] == *expected).then_some(answer)
        })
    }

    pub(crate) fn until_not_set(&self, node: &str) {
        until(FINISH, &format!("{node} is not set"), || {
            let (status, _) = self.server.try_get(&self.path(&format!("/values/{node}")))?;
            (status == 404).then_some(())
        });
    }

    pub(crate) fn node(&self, node: &str) -> Value {
        self.show()["nodes"][node].clone()
    }

    pub(crate) fn history(&self) -> Vec<Value> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.server.get(&self.path(&format!("/history?limit=1000{cursor}")));
            all.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }

    pub(crate) fn post(&self, rest: &str) -> (u16, Value) {
        self.server.post(&self.path(rest), &json!({}))
    }

    /// The runs of a node of this execution, newest first.
    pub(crate) fn runs(&self, node: &str) -> Vec<Value> {
        let runs = self.server.get("/api/v1/runs?kind=node&limit=1000");
        let mine = |run: &&Value| run["parent"]["execution"] == self.id.as_str() && run["parent"]["node"] == node;
        runs["items"].as_array().unwrap().iter().filter(mine).cloned().collect()
    }
}
