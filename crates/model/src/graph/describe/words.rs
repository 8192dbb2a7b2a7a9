//! Gates and values in words.

use crate::graph::execution::{Now, Status, due_at};
use crate::graph::gate::Gate;
use crate::graph::node::Node;
use serde_json::Value;

impl Now<'_> {
    /// What a shut gate lacks, and the gate itself unless that has been said.
    pub(super) fn shut(&self, gate: &Gate) -> String {
        let lacks = self.lacks(gate);
        let whole = phrase(gate);
        let whole = match gate {
            Gate::All(gates) | Gate::Any(gates) if gates.len() > 1 => &whole[1..whole.len() - 1],
            _ => &whole,
        };
        if lacks.starts_with(whole) {
            return shorten(&lacks, LONGEST_WORDS);
        }
        format!("{} (gate: {})", shorten(&lacks, LONGEST_WORDS), shorten(whole, LONGEST_WORDS))
    }

    fn lacks(&self, gate: &Gate) -> String {
        let shut = |gates: &'_ [Gate]| -> Vec<String> {
            gates.iter().filter(|gate| !gate.holds(self)).map(|gate| self.lacks(gate)).collect()
        };
        match gate {
            Gate::All(gates) => shut(gates).join(" and "),
            Gate::Any(gates) if gates.is_empty() => "nothing can open it".to_string(),
            Gate::Any(gates) if gates.len() == 1 => shut(gates).join(""),
            Gate::Any(gates) => format!("either {}", shut(gates).join(", or ")),
            Gate::Not(inner) => self.must_not(inner),
            Gate::Provided(name) => self.content(name),
            Gate::IsTrue(name) | Gate::IsFalse(name) | Gate::Compare(_, name, _) => {
                format!("{} does not hold: {}", phrase(gate), self.content(name))
            }
        }
    }

    /// What stands in the way of a gate that asks for the opposite.
    fn must_not(&self, inner: &Gate) -> String {
        match inner {
            Gate::Provided(name) if self.is_tick(name) => format!("{name} is due and must not be"),
            Gate::Provided(name) => format!("{name} is set and must not be"),
            Gate::IsTrue(name) | Gate::IsFalse(name) | Gate::Compare(_, name, _) => {
                format!("{} holds and must not: {}", phrase(inner), self.content(name))
            }
            Gate::Not(gate) => self.lacks(gate),
            Gate::All(_) | Gate::Any(_) => format!("{} holds and must not", phrase(inner)),
        }
    }

    /// What is known of a node's value.
    fn content(&self, name: &str) -> String {
        let Some(cell) = self.execution.cell(name) else {
            return match self.execution.computation(name).map(|computation| &computation.status) {
                Some(Status::Running(_)) => format!("{name} is not set until its computation ends"),
                Some(Status::Failed(_)) => format!("{name} is not set because it failed"),
                _ => format!("{name} is not set"),
            };
        };
        match (self.is_tick(name), due_at(&cell.value)) {
            (false, _) => format!("{name} is {}", echo(&cell.value, LONGEST_ECHO)),
            (true, Some(due)) => format!("{name} is due at {due}"),
            (true, None) => format!("{name} is paused"),
        }
    }
}

/// What would compute a node anew that is current.
pub(super) fn change_of(node: &Node) -> String {
    let upstreams = node.gate.upstreams();
    if upstreams.is_empty() {
        return "to be retried".to_string();
    }
    let names: Vec<&str> = upstreams.into_iter().collect();
    format!("a change of {}", shorten(&names.join(" or "), LONGEST_WORDS))
}

/// The gate in words, with the values that it compares with cut short.
pub(in crate::graph) fn phrase(gate: &Gate) -> String {
    let all = |gates: &[Gate], word: &str| match gates {
        [gate] => phrase(gate),
        gates => format!("({})", gates.iter().map(phrase).collect::<Vec<_>>().join(word)),
    };
    match gate {
        Gate::All(gates) if !gates.is_empty() => all(gates, " and "),
        Gate::Any(gates) if gates.is_empty() => "never".to_string(),
        Gate::Any(gates) => all(gates, " or "),
        Gate::Not(gate) => format!("not {}", phrase(gate)),
        Gate::Compare(_, _, with) => {
            let words = gate.describe();
            let head = words.strip_suffix(&with.to_string()).unwrap_or_default();
            format!("{head}{}", echo(with, LONGEST_ECHO))
        }
        other => other.describe(),
    }
}

const LONGEST_ECHO: usize = 60;
const LONGEST_WORDS: usize = 400;

pub(super) fn echo(value: &Value, most: usize) -> String {
    shorten(&value.to_string(), most)
}

/// At most so many characters, the last one an ellipsis if some are missing.
pub(in crate::graph) fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_string(),
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
    }
}
