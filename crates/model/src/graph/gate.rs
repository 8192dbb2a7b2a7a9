//! Gates: when a node may be computed.

use super::execution::{Execution, Now};
use super::node::Graph;
use crate::error::Invalid;
use crate::time::StoreTime;
use serde_json::{Number, Value};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// The condition that unblocks a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Gate {
    All(Vec<Gate>),
    Any(Vec<Gate>),
    Not(Box<Gate>),
    /// The node has a value; of a tick: it is due.
    Provided(String),
    IsTrue(String),
    IsFalse(String),
    Compare(Comparison, String, Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Eq,
    Neq,
    Lt,
    Lte,
    Gt,
    Gte,
}

/// What a gate looks at.
pub trait Values {
    /// The node's value, if it is provided.
    fn provided(&self, node: &str) -> Option<&Value>;
}

/// Gates nested deeper are refused, so that later readers may recurse.
const DEPTH_LIMIT: usize = 50;

const HINT: &str = "write a gate as a list of node names, or as {\"and\":[…]}, {\"or\":[…]}, {\"not\":…}, \
    {\"provided\":\"a\"}, {\"is_true\":\"a\"}, {\"is_false\":\"a\"}, {\"eq\":[\"a\",5]}, and likewise neq, lt, lte, gt, gte";

impl Gate {
    pub fn open() -> Gate {
        Gate::All(Vec::new())
    }

    pub fn parse(value: &Value) -> Result<Gate, Invalid> {
        parse(value, 0)
    }

    /// Whether it is nested no deeper than one that is read may be.
    pub(super) fn is_shallow(&self) -> bool {
        let mut level: Vec<&Gate> = vec![self];
        for _ in 0..=DEPTH_LIMIT {
            level = level
                .into_iter()
                .flat_map(|gate| match gate {
                    Gate::All(gates) | Gate::Any(gates) => gates.iter().collect(),
                    Gate::Not(gate) => vec![&**gate],
                    _ => Vec::new(),
                })
                .collect();
        }
        level.is_empty()
    }

    pub fn holds(&self, values: &dyn Values) -> bool {
        match self {
            Gate::All(gates) => gates.iter().all(|gate| gate.holds(values)),
            Gate::Any(gates) => gates.iter().any(|gate| gate.holds(values)),
            Gate::Not(gate) => !gate.holds(values),
            Gate::Provided(node) => values.provided(node).is_some(),
            Gate::IsTrue(node) => values.provided(node) == Some(&Value::Bool(true)),
            Gate::IsFalse(node) => values.provided(node) == Some(&Value::Bool(false)),
            Gate::Compare(comparison, node, with) => {
                values.provided(node).is_some_and(|value| comparison.holds(value, with))
            }
        }
    }

    /// Every node that it names.
    pub fn upstreams(&self) -> BTreeSet<&str> {
        match self {
            Gate::All(gates) | Gate::Any(gates) => gates.iter().flat_map(Gate::upstreams).collect(),
            Gate::Not(gate) => gate.upstreams(),
            Gate::Provided(node) | Gate::IsTrue(node) | Gate::IsFalse(node) | Gate::Compare(_, node, _) => {
                BTreeSet::from([node.as_str()])
            }
        }
    }

    /// What a node with this gate waits for, in words; empty if the gate holds.
    pub fn waiting_for(&self, graph: &Graph, execution: &Execution, now: StoreTime) -> Vec<String> {
        self.missing(&Now { graph, execution, now })
    }

    /// What is missing for the gate to hold, in words; empty if it holds.
    pub fn missing(&self, values: &dyn Values) -> Vec<String> {
        if self.holds(values) {
            return Vec::new();
        }
        match self {
            Gate::All(gates) => gates.iter().flat_map(|gate| gate.missing(values)).collect(),
            Gate::Any(gates) => {
                let either: Vec<String> = gates.iter().map(|gate| gate.missing(values).join(" and ")).collect();
                vec![if either.is_empty() {
                    "nothing can open it".to_string()
                } else {
                    format!("either {}", either.join(", or "))
                }]
            }
            other => vec![other.describe()],
        }
    }

    /// The gate in words.
    pub fn describe(&self) -> String {
        let all = |gates: &[Gate], word: &str| {
            let parts: Vec<String> = gates.iter().map(Gate::describe).collect();
            if parts.len() == 1 { parts[0].clone() } else { format!("({})", parts.join(word)) }
        };
        match self {
            Gate::All(gates) if gates.is_empty() => "always".to_string(),
            Gate::All(gates) => all(gates, " and "),
            Gate::Any(gates) => all(gates, " or "),
            Gate::Not(gate) => format!("not {}", gate.describe()),
            Gate::Provided(node) => format!("{node} is provided"),
            Gate::IsTrue(node) => format!("{node} is true"),
            Gate::IsFalse(node) => format!("{node} is false"),
            Gate::Compare(comparison, node, with) => format!("{node} {} {with}", comparison.sign()),
        }
    }

    /// The form that `parse` reads.
    pub fn to_value(&self) -> Value {
        let list = |gates: &[Gate]| Value::Array(gates.iter().map(Gate::to_value).collect());
        match self {
            Gate::All(gates) => {
                let names: Option<Vec<Value>> = gates
                    .iter()
                    .map(|gate| match gate {
                        Gate::Provided(node) => Some(Value::from(node.as_str())),
                        _ => None,
                    })
                    .collect();
                names.map_or_else(|| serde_json::json!({ "and": list(gates) }), Value::Array)
            }
            Gate::Any(gates) => serde_json::json!({ "or": list(gates) }),
            Gate::Not(gate) => serde_json::json!({ "not": gate.to_value() }),
            Gate::Provided(node) => serde_json::json!({ "provided": node }),
            Gate::IsTrue(node) => serde_json::json!({ "is_true": node }),
            Gate::IsFalse(node) => serde_json::json!({ "is_false": node }),
            Gate::Compare(comparison, node, with) => serde_json::json!({ comparison.name(): [node, with] }),
        }
    }
}

fn parse(value: &Value, depth: usize) -> Result<Gate, Invalid> {
    let refuse = |problem: &str| Invalid::new("gate", value, problem, HINT);
    if depth > DEPTH_LIMIT {
        return Err(refuse("is nested too deeply"));
    }
    let gates = |values: &Value| match values {
        Value::Array(items) => items.iter().map(|item| parse(item, depth + 1)).collect::<Result<Vec<_>, _>>(),
        _ => Err(refuse("needs a list")),
    };
    let name =
        |value: &Value| value.as_str().map(ToString::to_string).ok_or_else(|| refuse("needs the name of a node"));
    match value {
        Value::String(node) => Ok(Gate::Provided(node.clone())),
        Value::Array(_) => Ok(Gate::All(gates(value)?)),
        Value::Object(fields) if fields.len() == 1 => {
            let (word, inner) = fields.iter().next().ok_or_else(|| refuse("is empty"))?;
            match word.as_str() {
                "and" => Ok(Gate::All(gates(inner)?)),
                "or" => Ok(Gate::Any(gates(inner)?)),
                "not" => Ok(Gate::Not(Box::new(parse(inner, depth + 1)?))),
                "provided" => Ok(Gate::Provided(name(inner)?)),
                "is_true" => Ok(Gate::IsTrue(name(inner)?)),
                "is_false" => Ok(Gate::IsFalse(name(inner)?)),
                word => {
                    let comparison = Comparison::ALL.into_iter().find(|comparison| comparison.name() == word);
                    let comparison = comparison.ok_or_else(|| refuse("uses an unknown word"))?;
                    match inner.as_array().map(Vec::as_slice) {
                        Some([node, with]) => Ok(Gate::Compare(comparison, name(node)?, with.clone())),
                        _ => Err(refuse("needs a node and a value to compare it with")),
                    }
                }
            }
        }
        _ => Err(refuse("is not a gate")),
    }
}

impl Comparison {
    const ALL: [Comparison; 6] =
        [Comparison::Eq, Comparison::Neq, Comparison::Lt, Comparison::Lte, Comparison::Gt, Comparison::Gte];

    fn name(self) -> &'static str {
        match self {
            Comparison::Eq => "eq",
            Comparison::Neq => "neq",
            Comparison::Lt => "lt",
            Comparison::Lte => "lte",
            Comparison::Gt => "gt",
            Comparison::Gte => "gte",
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Comparison::Eq => "=",
            Comparison::Neq => "≠",
            Comparison::Lt => "<",
            Comparison::Lte => "≤",
            Comparison::Gt => ">",
            Comparison::Gte => "≥",
        }
    }

    fn holds(self, value: &Value, with: &Value) -> bool {
        let order = compare(value, with);
        match self {
            Comparison::Eq => equal(value, with),
            Comparison::Neq => !equal(value, with),
            Comparison::Lt => order == Some(Ordering::Less),
            Comparison::Lte => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Comparison::Gt => order == Some(Ordering::Greater),
            Comparison::Gte => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

/// Two whole numbers exactly, any other two numbers as `f64` (so 1 equals 1.0); texts by their characters; lists and
/// objects part by part, the latter whatever the order of their names. Values of different kinds are never equal.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(_), Value::Number(_)) => compare(a, b) == Some(Ordering::Equal),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

/// Numbers and texts have an order; other pairs have none, and no comparison of them holds.
fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (whole(x), whole(y)) {
            (Some(x), Some(y)) => Some(x.cmp(&y)),
            _ => x.as_f64()?.partial_cmp(&y.as_f64()?),
        },
        (Value::String(x), Value::String(y)) => Some(x.cmp(y)),
        _ => None,
    }
}

/// Of 64 bits, with or without a sign: `f64` cannot tell neighbours apart above 2^53.
fn whole(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}
