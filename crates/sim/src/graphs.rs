//! The graphs that clients apply. Every value that is set is used once only, and every node carries on what
//! it was computed from: a mix of old and new shows in the value itself.

use everbeat_model::Invalid;
use everbeat_model::graph::Graph;
use serde_json::{Value, json};

/// The task of all nodes, and the one that is called after a value was saved.
pub(crate) const NODE_TASK: &str = "node";
pub(crate) const SAVED_TASK: &str = "saved";

pub(crate) const WIDE: &str = "wide";
pub(crate) const PULSING: &str = "pulsing";
pub(crate) const SINGLE: &str = "single";

/// A diamond, and one of everything else. Its second version has a node more and a leaf less.
pub(crate) fn wide(version: u32) -> Result<Graph, Invalid> {
    let mut nodes = vec![
        input("x"),
        input("y"),
        input("flag"),
        input("memo"),
        node("a", "compute", json!(["x"]), json!({})),
        node("b", "compute", json!(["x"]), json!({ "max_attempts": 5 })),
        node("join", "compute", json!(["a", "b"]), json!({ "on_save": SAVED_TASK })),
        json!({ "name": "seen", "kind": "historian", "gate": ["x"], "options": { "keep_latest": 100_000 } }),
        json!({
            "name": "note", "kind": "mutate", "gate": ["a"], "task": NODE_TASK, "mutates": ["memo"],
            "options": { "update_revision_on_change": true },
        }),
        node("echo", "compute", json!(["memo"]), json!({})),
        node("spin", "loop", json!(["x"]), json!({ "max_iterations": SPINS })),
        node("picky", "compute", json!(["y"]), json!({ "max_attempts": 3 })),
        node("doomed", "compute", json!(["y"]), json!({})),
        node("either", "compute", json!({ "or": ["x", "flag"] }), json!({})),
        node("once", "tick_once", json!(["y"]), json!({})),
        node("rung", "compute", json!(["once"]), json!({})),
        json!({ "name": "dawn", "kind": "tick_once", "gate": ["y"], "schedule": { "cron": "*/2 * * * * *" } }),
        node("roused", "compute", json!(["dawn"]), json!({})),
    ];
    nodes.push(node(if version == 1 { "after" } else { "extra" }, "compute", json!(["join"]), json!({})));
    Graph::parse(&json!({ "name": WIDE, "version": version, "nodes": nodes }))
}

/// Iterations of the loop.
pub(crate) const SPINS: u64 = 3;

/// A tick that fires a few times for each `go`, and pauses.
pub(crate) fn pulsing() -> Result<Graph, Invalid> {
    let nodes = [
        input("go"),
        node("pulse", "tick_recurring", json!(["go"]), json!({})),
        node("counted", "compute", json!(["pulse"]), json!({})),
    ];
    Graph::parse(&json!({ "name": PULSING, "nodes": nodes }))
}

/// A chain of which there is one at a time; a true `flag` archives it.
pub(crate) fn single() -> Result<Graph, Invalid> {
    let nodes = [
        input("x"),
        input("flag"),
        node("a", "compute", json!(["x"]), json!({})),
        node("c", "compute", json!(["a"]), json!({})),
        node("d", "compute", json!(["c"]), json!({})),
        json!({ "name": "gone", "kind": "archive", "gate": { "is_true": "flag" } }),
    ];
    Graph::parse(&json!({ "name": SINGLE, "singleton": true, "nodes": nodes }))
}

fn input(name: &str) -> Value {
    json!({ "name": name, "kind": "input" })
}

fn node(name: &str, kind: &str, gate: Value, options: Value) -> Value {
    json!({ "name": name, "kind": kind, "gate": gate, "task": NODE_TASK, "options": options })
}
