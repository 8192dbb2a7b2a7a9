//! Conditions on the values of nodes.

use super::{folded, order, searchable};
use crate::error::{Invalid, nearest};
use crate::graph::gate::equal;
use crate::json::{Json, NotJson};
use crate::run::check_name;
use serde_json::Value;
use std::cmp::Ordering;

/// One demand on the value of a node. A list of executions takes those for which all conditions hold.
///
/// | operator             | holds if the node has a value, and it …                                       |
/// |----------------------|-------------------------------------------------------------------------------|
/// | eq, neq              | is, is not equal to the given one (see `equal`)                               |
/// | lt, lte, gt, gte     | and the given one are both numbers or both texts, and stand in this order     |
/// | in, not_in           | is equal to one, to none of the given list                                    |
/// | contains             | is a text with the given one in it                                            |
/// | icontains            | the same, after `folded` of both                                              |
/// | list_contains        | is a list with an element equal to the given one                              |
/// | is_set               | (nothing more; a value of `null` is a value)                                  |
///
/// `is_not_set` holds if the node has no value; no other operator does then, `neq` and `not_in` included.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub node: String,
    pub operator: Operator,
    /// Null for `is_set` and `is_not_set`.
    pub value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    Eq,
    Neq,
    Lt,
    Lte,
    Gt,
    Gte,
    In,
    NotIn,
    Contains,
    Icontains,
    ListContains,
    IsSet,
    IsNotSet,
}

const FIELD: &str = "where";

impl Condition {
    /// Checks that the operator can use the value.
    pub fn new(node: impl Into<String>, operator: Operator, value: Value) -> Result<Condition, Invalid> {
        let node = node.into();
        check_name(FIELD, &node)?;
        let refuse = |problem: &str, example: &str| {
            let hint = format!("write it like {node}.{}:{example}", operator.as_str());
            Err(Invalid::new(FIELD, &value, format!("{problem}, which {} needs", operator.as_str()), hint))
        };
        match (operator, &value) {
            (Operator::In | Operator::NotIn, Value::Array(_)) => {}
            (Operator::In | Operator::NotIn, _) => return refuse("is not a list", "[\"a\",\"b\"]"),
            (Operator::Contains | Operator::Icontains, Value::String(_)) => {}
            (Operator::Contains | Operator::Icontains, _) => return refuse("is not a text", "\"part\""),
            (Operator::Lt | Operator::Lte | Operator::Gt | Operator::Gte, Value::Number(_) | Value::String(_)) => {}
            (Operator::Lt | Operator::Lte | Operator::Gt | Operator::Gte, _) => {
                return refuse("is neither a number nor a text", "18");
            }
            (Operator::IsSet | Operator::IsNotSet, Value::Null) => {}
            (Operator::IsSet | Operator::IsNotSet, _) => {
                let hint = format!("write {node}.{}", operator.as_str());
                let problem = format!("is a value, and {} takes none", operator.as_str());
                return Err(Invalid::new(FIELD, &value, problem, hint));
            }
            (Operator::Eq | Operator::Neq | Operator::ListContains, _) => {}
        }
        Ok(Condition { node, operator, value })
    }

    /// Reads `NODE.OP:JSON`; for `is_set` and `is_not_set` the colon may be left out, and only nothing,
    /// `true` or `null` may follow it.
    ///
    /// A node's name may itself contain dots, colons and even `.eq:`. The operator is therefore the one
    /// after which everything that follows the colon is one JSON value. There is never more than one such
    /// place: in valid JSON a second `.OP:` can only stand inside a text, and what begins inside a text
    /// has an odd number of quotes, so it is not JSON.
    pub fn parse(text: &str) -> Result<Condition, Invalid> {
        let mut refusal = None;
        for (node, operator, rest) in readings(text) {
            match check_name(FIELD, node).and_then(|()| read(text, node, operator, rest)) {
                Ok(value) => return Condition::new(node, operator, value),
                // The first one is what was most probably meant.
                Err(error) => _ = refusal.get_or_insert(error),
            }
        }
        Err(refusal.unwrap_or_else(|| no_operator(text)))
    }

    /// The form that `parse` reads.
    pub fn to_text(&self) -> String {
        let (node, operator) = (&self.node, self.operator.as_str());
        if self.operator.takes_value() {
            format!("{node}.{operator}:{}", self.value)
        } else {
            format!("{node}.{operator}")
        }
    }

    /// Whether it holds for a node with this value, or with none.
    pub fn holds(&self, value: Option<&Value>) -> bool {
        let Some(value) = value else { return self.operator == Operator::IsNotSet };
        let given = &self.value;
        match self.operator {
            Operator::Eq => equal(value, given),
            Operator::Neq => !equal(value, given),
            Operator::Lt => order(value, given) == Some(Ordering::Less),
            Operator::Lte => matches!(order(value, given), Some(Ordering::Less | Ordering::Equal)),
            Operator::Gt => order(value, given) == Some(Ordering::Greater),
            Operator::Gte => matches!(order(value, given), Some(Ordering::Greater | Ordering::Equal)),
            Operator::In => given.as_array().is_some_and(|list| list.iter().any(|item| equal(value, item))),
            Operator::NotIn => given.as_array().is_some_and(|list| !list.iter().any(|item| equal(value, item))),
            Operator::Contains => {
                texts(value, given).is_some_and(|(text, part)| searchable(text).contains(&*searchable(part)))
            }
            Operator::Icontains => texts(value, given).is_some_and(|(text, part)| folded(text).contains(&folded(part))),
            Operator::ListContains => value.as_array().is_some_and(|list| list.iter().any(|item| equal(item, given))),
            Operator::IsSet => true,
            Operator::IsNotSet => false,
        }
    }
}

/// Every way to take the text apart at an operator, from the left. The node may still be no name and the
/// rest no JSON.
fn readings(text: &str) -> impl Iterator<Item = (&str, Operator, Option<&str>)> {
    text.match_indices('.').filter_map(|(dot, _)| {
        let after = &text[dot + 1..];
        let (word, rest) = match after.split_once(':') {
            Some((word, rest)) => (word, Some(rest)),
            None => (after, None),
        };
        Operator::parse(word).map(|operator| (&text[..dot], operator, rest))
    })
}

fn read(text: &str, node: &str, operator: Operator, rest: Option<&str>) -> Result<Value, Invalid> {
    let word = operator.as_str();
    match (operator.takes_value(), rest) {
        (false, None | Some("" | "true" | "null")) => Ok(Value::Null),
        (false, Some(_)) => Err(Invalid::new(
            FIELD,
            text,
            format!("has a value, and {word} takes none"),
            format!("write {node}.{word}"),
        )),
        (true, None | Some("")) => {
            let hint = format!("add the value as JSON: {node}.{word}:18 or {node}.{word}:\"ann\"");
            Err(Invalid::new(FIELD, text, format!("lacks the value that {word} needs"), hint))
        }
        (true, Some(json)) => match Json::read_text(json) {
            Ok(value) => Ok(value.value()),
            Err(error @ NotJson::Syntax(_)) => {
                let hint = format!("write the value as JSON, and texts in quotes: {node}.{word}:\"ann\"");
                Err(Invalid::new(FIELD, text, format!("has a value that {}", error.problem()), hint))
            }
            Err(error) => Err(Invalid::new(FIELD, text, format!("has a value that {}", error.problem()), error.hint())),
        },
    }
}

fn no_operator(text: &str) -> Invalid {
    let head = text.split_once(':').map_or(text, |(head, _)| head);
    let known = Operator::ALL.map(Operator::as_str);
    let (problem, hint) = match head.rsplit_once('.') {
        None => ("names no operator", "write it like age.gte:18, name.eq:\"ann\" or paid.is_set".to_string()),
        Some((_, word)) => {
            let hint = match nearest(word, known) {
                Some(operator) => format!("did you mean {operator:?}?"),
                None => format!("use one of {}", known.join(", ")),
            };
            ("has an unknown operator", hint)
        }
    };
    Invalid::new(FIELD, text, problem, hint)
}

impl Operator {
    pub const ALL: [Operator; 13] = [
        Operator::Eq,
        Operator::Neq,
        Operator::Lt,
        Operator::Lte,
        Operator::Gt,
        Operator::Gte,
        Operator::In,
        Operator::NotIn,
        Operator::Contains,
        Operator::Icontains,
        Operator::ListContains,
        Operator::IsSet,
        Operator::IsNotSet,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Operator::Eq => "eq",
            Operator::Neq => "neq",
            Operator::Lt => "lt",
            Operator::Lte => "lte",
            Operator::Gt => "gt",
            Operator::Gte => "gte",
            Operator::In => "in",
            Operator::NotIn => "not_in",
            Operator::Contains => "contains",
            Operator::Icontains => "icontains",
            Operator::ListContains => "list_contains",
            Operator::IsSet => "is_set",
            Operator::IsNotSet => "is_not_set",
        }
    }

    pub fn parse(text: &str) -> Option<Operator> {
        Operator::ALL.into_iter().find(|operator| operator.as_str() == text)
    }

    pub fn takes_value(self) -> bool {
        !matches!(self, Operator::IsSet | Operator::IsNotSet)
    }
}

fn texts<'a>(value: &'a Value, given: &'a Value) -> Option<(&'a str, &'a str)> {
    value.as_str().zip(given.as_str())
}
