//! Executions of graphs through the public interface. Nodes are computed by `noop`, so that what is measured is
//! the engine and the store.

use super::load::{Client, now, pause};
use super::{Percentiles, percentiles};
use crate::exit::Failure;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug, Serialize)]
pub(crate) struct GraphFigures {
    executions: u64,
    /// Of a graph with an input and nine nodes that it leads to, from the first start until the last of them
    /// is computed.
    executions_per_s: f64,
    computations_per_s: f64,
    /// One change of one input, answered: in an execution with a thousand nodes, and in one with two.
    set_of_1000_nodes_ms: Percentiles,
    set_of_2_nodes_ms: Percentiles,
}

impl GraphFigures {
    pub(crate) fn computations_per_s(&self) -> f64 {
        self.computations_per_s
    }
}

/// Clients that start executions at once.
const STARTERS: u64 = 8;
const SETS: u64 = 200;
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn drive(url: &str, executions: u64) -> Result<GraphFigures, Failure> {
    let client = Client::new(url);
    client.ready()?;
    client.post("/api/v1/graphs", Some(&ten().to_string()))?;
    let (left, begun) = (AtomicU64::new(executions), now());
    std::thread::scope(|scope| {
        let start = || {
            let client = Client::new(url);
            let take = || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            while let Ok(number) = take() {
                let body = json!({ "graph": "ten", "values": { "x": number } });
                client.post("/api/v1/executions", Some(&body.to_string()))?;
            }
            Ok::<(), Failure>(())
        };
        let starters: Vec<_> = (0..STARTERS).map(|_| scope.spawn(start)).collect();
        let broke = |_| Err(Failure::server("a starter broke", ""));
        starters.into_iter().try_for_each(|starter| starter.join().unwrap_or_else(broke))
    })?;
    let finished = || client.get("/api/v1/executions/count?graph=ten&where=last.is_set");
    while finished()?["count"].as_u64() != Some(executions) {
        pause(LOOK);
    }
    let executions_per_s = executions as f64 / begun.elapsed().as_secs_f64();
    Ok(GraphFigures {
        executions,
        executions_per_s,
        computations_per_s: executions_per_s * COMPUTED as f64,
        set_of_1000_nodes_ms: sets(&client, 500)?,
        set_of_2_nodes_ms: sets(&client, 1)?,
    })
}

const COMPUTED: u64 = 9;

/// A diamond, a fan and a chain: ten nodes.
fn ten() -> Value {
    let node = |name: &str, gate: &[&str]| json!({ "name": name, "kind": "compute", "gate": gate, "task": "noop" });
    json!({ "name": "ten", "nodes": [
        { "name": "x", "kind": "input" },
        node("left", &["x"]), node("right", &["x"]), node("join", &["left", "right"]),
        node("a", &["join"]), node("b", &["join"]), node("c", &["join"]),
        node("gather", &["a", "b", "c"]), node("next", &["gather"]), node("last", &["next"]),
    ]})
}

/// How long it takes to change one of so many pairs of an input and a node that depends on it.
fn sets(client: &Client, pairs: u64) -> Result<Percentiles, Failure> {
    let name = format!("pairs-{pairs}");
    let nodes: Vec<Value> = (0..pairs)
        .flat_map(|n| {
            let (input, node) = (format!("in{n}"), format!("out{n}"));
            let node = json!({ "name": node, "kind": "compute", "gate": [input], "task": "noop" });
            [json!({ "name": input, "kind": "input" }), node]
        })
        .collect();
    client.post("/api/v1/graphs", Some(&json!({ "name": name, "nodes": nodes }).to_string()))?;
    let values: serde_json::Map<String, Value> = (0..pairs).map(|n| (format!("in{n}"), json!(0))).collect();
    let body = json!({ "graph": name, "values": values }).to_string();
    let execution: Value = serde_json::from_str(&client.post("/api/v1/executions", Some(&body))?).unwrap_or_default();
    let path = format!("/api/v1/executions/{}", execution["id"].as_str().unwrap_or_default());
    let last = format!("{path}/values/out{}?wait=any&timeout=60s", pairs - 1);
    client.get(&last)?;
    while client.unfinished()? > 0 {
        pause(LOOK);
    }
    let mut times = Vec::new();
    for n in 0..SETS {
        let body = json!({ "values": { format!("in{}", n % pairs): n + 1 } }).to_string();
        let begun = now();
        client.put(&format!("{path}/values"), &body)?;
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
        // The computation that it causes is not what is measured.
        while client.unfinished()? > 0 {
            pause(Duration::from_millis(1));
        }
    }
    Ok(percentiles(times))
}
