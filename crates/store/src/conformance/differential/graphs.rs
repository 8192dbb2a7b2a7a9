//! What the history does to graphs and executions.

use super::draw::World;
use super::op::Op;
use crate::{Advance, ExecutionFilter, Idempotency, Start};
use everbeat_model::graph::{Command, Condition, Direction, Field, Graph, Operator, Sort};
use everbeat_model::run::Claimed;
use everbeat_model::{ExecutionId, Json};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) const NAMES: [&str; 6] = ["diamond", "ticks", "shop", "log", "poll", "only"];

/// Every node of every definition, and one that there is not.
const NODES: [&str; 16] = [
    "x", "y", "left", "right", "join", "once", "again", "remind", "scrub", "both", "seen", "poll", "after", "end",
    "total", "nowhere",
];

/// What a node run may give: each kind of node makes something of some of them. Real time passes at one of
/// the stores; so a tick is either due at once or never.
const RESULTS: [&str; 11] = [
    "7",
    "7.0",
    "null",
    "\"\\u0000\"",
    "{\"x\":1,\"y\":[2]}",
    "{\"continue\":{\"page\":2}}",
    "{\"continue\":1,\"fallback\":3}",
    "{\"done\":\"found\"}",
    "\"2020-01-01T00:00:00Z\"",
    "\"2200-01-01T00:00:00Z\"",
    "false",
];

fn definition(name: &str, second: bool) -> Value {
    let input = |name: &str| json!({"name": name, "kind": "input"});
    let node = |name: &str, kind: &str, gate: Value, task: &str| json!({"name": name, "kind": kind, "gate": gate, "task": task});
    let with = |mut node: Value, field: &str, value: Value| {
        node[field] = value;
        node
    };
    let mut nodes = vec![with(input("x"), "options", json!({"keep_latest": 3})), input("y")];
    let work = |name: &str, gate: Value| node(name, "compute", gate, "work");
    nodes.extend(match (name, second) {
        ("diamond", false) => vec![
            work("left", json!(["x"])),
            with(node("right", "compute", json!(["x"]), "mail"), "args", json!({"to": "\u{0}"})),
            work("join", json!(["left", "right"])),
        ],
        ("diamond", true) => vec![
            work("left", json!(["x"])),
            work("join", json!({"and": ["left", {"not": {"eq": ["y", 1]}}]})),
            with(work("after", json!(["join"])), "options", json!({"on_save": "report", "max_attempts": 2})),
        ],
        ("ticks", second) => vec![
            node("once", "tick_once", json!(["x"]), "work"),
            node("again", "tick_recurring", json!(if second { ["y"] } else { ["x"] }), "mail"),
            work("remind", json!({"or": ["once", "again"]})),
        ],
        ("shop", second) => vec![
            with(node("scrub", "mutate", json!(["x"]), "work"), "mutates", json!("y")),
            with(
                with(node("both", "mutate", json!(["left"]), "mail"), "mutates", json!(["x", "y"])),
                "options",
                json!({"update_revision_on_change": false}),
            ),
            work("left", json!(if second { ["y"] } else { ["x"] })),
        ],
        ("log", second) => vec![
            json!({"name": "seen", "kind": "historian", "gate": {"or": ["x", "y"]},
                   "options": {"max_entries": if second { 2 } else { 4 }}}),
            work("total", json!(["seen", "x"])),
            json!({"name": "end", "kind": "archive", "gate": {"is_true": "y"}}),
        ],
        ("poll", second) => vec![
            with(
                node("poll", "loop", json!(["x"]), "work"),
                "options",
                if second { json!({"max_iterations": 2}) } else { json!({"max_iterations": 3, "fallback": null}) },
            ),
            work("after", json!(["poll"])),
        ],
        _ => vec![work("total", json!(["x", "y"]))],
    });
    json!({"name": name, "version": if second { "2" } else { "1" }, "singleton": name == "only", "nodes": nodes})
}

impl World {
    pub(super) fn apply(&mut self) -> Op {
        let name = self.rng.pick(&NAMES);
        World::define(name, self.rng.percent(50))
    }

    pub(super) fn define(name: &str, second: bool) -> Op {
        Op::Apply(Arc::new(Graph::parse(&definition(name, second)).expect("a valid definition")))
    }

    fn value(&mut self) -> Value {
        self.rng.pick(&[
            json!(1),
            json!(1.0),
            json!(2),
            json!(true),
            json!(null),
            json!("ü\u{0}"),
            json!([1, {"a": u64::MAX}]),
            json!("2020"),
        ])
    }

    fn values(&mut self) -> BTreeMap<String, Value> {
        let mut values = BTreeMap::new();
        for node in ["x", "y"] {
            if self.rng.percent(60) {
                values.insert(node.to_string(), self.value());
            }
        }
        if self.rng.percent(6) {
            values.insert(self.rng.pick(&NODES).to_string(), json!(1));
        }
        values
    }

    pub(super) fn start(&mut self) -> Op {
        let starts: Vec<Start> = self.some(3, World::new_execution);
        self.executions.extend(starts.iter().map(|start| start.id));
        Op::Start(starts)
    }

    fn new_execution(&mut self) -> Start {
        let newest_key = 2 + self.executions.len() / 3;
        Start {
            id: if self.rng.percent(97) { ExecutionId(self.next_id()) } else { self.execution() },
            graph: self.rng.pick(&NAMES).to_string(),
            version: self.rng.percent(20).then(|| self.rng.pick(&["1", "2", "3"]).to_string()),
            values: self.values(),
            metadata: self.rng.percent(20).then(|| self.value()),
            idempotency: self.rng.percent(20).then(|| Idempotency {
                key: format!("start {}", self.rng.below(newest_key)),
                fingerprint: if self.rng.percent(80) { "one" } else { "other" }.to_string(),
            }),
        }
    }

    /// Mostly a known one, the younger the likelier.
    fn execution(&mut self) -> ExecutionId {
        let reach = if self.rng.percent(70) { 6 } else { 400 };
        let back = self.rng.below(reach.min(self.executions.len()));
        match self.executions.iter().rev().nth(back) {
            Some(id) if self.rng.percent(97) => *id,
            _ => ExecutionId(self.next_id()),
        }
    }

    /// Of several executions in the order of their ids: in which order a store writes them is its affair.
    pub(super) fn advance(&mut self) -> Op {
        let most = if self.rng.percent(70) { 1 } else { 4 };
        let mut advances = BTreeMap::new();
        for _ in 0..=self.rng.below(most) {
            let count = self.rng.pick(&[0, 1, 1, 1, 2, 4]);
            let commands: Vec<Command> = (0..count).map(|_| self.command()).collect();
            advances.insert(self.execution(), commands);
        }
        Op::Advance(advances.into_iter().map(|(execution, commands)| Advance { execution, commands }).collect())
    }

    fn command(&mut self) -> Command {
        let node = self.rng.pick(&NODES).to_string();
        match self.rng.below(20) {
            0..10 => {
                let metadata = self.rng.percent(20).then(|| self.value());
                Command::Set { values: self.values(), metadata }
            }
            10..13 => Command::Unset(BTreeSet::from([self.rng.pick(&["x", "y", "y", "left"]).to_string()])),
            13..15 => Command::Archive,
            15..17 => Command::Unarchive,
            17..19 => Command::Retry(node),
            _ => Command::Abandon(node),
        }
    }

    /// A store may take notes that are equally due in any order; so where several may lead to something, it
    /// is told what to look at.
    pub(super) fn look(&mut self) -> Op {
        let many = self.awaited > 1 || std::mem::take(&mut self.applied);
        Op::Look(if many { self.executions.iter().copied().collect() } else { BTreeSet::new() })
    }

    /// What a settlement gives for a node.
    pub(super) fn node_result(&mut self, claimed: Option<&Claimed>) -> Option<Json> {
        claimed.filter(|claimed| claimed.spec.parent.is_some())?;
        Some(Json::stored(self.rng.pick(&RESULTS)))
    }

    pub(super) fn list_executions(&mut self) -> Op {
        let condition = |w: &mut World| {
            let operator = w.rng.pick(&Operator::ALL);
            let value = match operator {
                Operator::In | Operator::NotIn => json!([w.value(), w.value()]),
                Operator::Contains | Operator::Icontains => json!("U"),
                Operator::IsSet | Operator::IsNotSet => json!(null),
                Operator::Lt | Operator::Lte | Operator::Gt | Operator::Gte => json!(1.5),
                _ => w.value(),
            };
            Condition::new(w.rng.pick(&NODES), operator, value).expect("a condition")
        };
        let direction = self.rng.pick(&[Direction::Ascending, Direction::Descending]);
        let sort = match self.rng.below(5) {
            0 | 1 => None,
            2 => Some(Sort::Field(self.rng.pick(&Field::ALL), direction)),
            _ => Some(Sort::Node(self.rng.pick(&["x", "y", "left", "total"]).to_string(), direction)),
        };
        let before = (sort.is_none() && self.rng.percent(40)).then(|| self.execution());
        Op::Executions(ExecutionFilter {
            graph: self.rng.percent(50).then(|| self.rng.pick(&NAMES).to_string()),
            conditions: if self.rng.percent(70) { self.some(2, condition) } else { Vec::new() },
            include_archived: self.rng.percent(50),
            sort,
            before,
            offset: self.rng.pick(&[0, 0, 0, 2]),
            limit: self.rng.below(20),
        })
    }

    pub(super) fn read_execution(&mut self) -> Op {
        let (id, node) = (self.execution(), self.rng.pick(&NODES).to_string());
        match self.rng.below(5) {
            0 => Op::History(id, self.rng.next() % 6, self.rng.below(8)),
            1 => Op::Stamps(self.some(4, World::execution)),
            2 => Op::Analytics(self.rng.pick(&NAMES)),
            3 => Op::Graph(self.rng.pick(&NAMES), self.rng.pick(&[None, Some("1"), Some("2"), Some("3")])),
            _ => Op::Value(id, node),
        }
    }
}
