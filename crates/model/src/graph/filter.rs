//! What lists of executions are filtered and sorted by.
//!
//! Stores answer these questions in SQL. The functions here say what the right answer is, so that every
//! store can be tested against them.

use super::gate::equal;
use crate::error::{Invalid, nearest};
use crate::json::{Json, NotJson};
use crate::run::check_name;
use serde_json::Value;
use std::borrow::Cow;
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

/// What a list of executions is sorted by. Whoever sorts breaks ties with the execution's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sort {
    Field(Field, Direction),
    Node(String, Direction),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    CreatedAt,
    UpdatedAt,
    Revision,
    Id,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Ascending,
    Descending,
}

impl Sort {
    /// Reads `created_at` or `-created_at`, with a field or the name of a node. A field wins over a node
    /// of that name, and the first `-` is always the direction.
    pub fn parse(text: &str) -> Result<Sort, Invalid> {
        let (name, direction) = match text.strip_prefix('-') {
            Some(name) => (name, Direction::Descending),
            None => (text, Direction::Ascending),
        };
        if let Some(field) = Field::parse(name) {
            return Ok(Sort::Field(field, direction));
        }
        check_name("sort", name).map_err(|error| {
            let fields = Field::ALL.map(Field::as_str).join(", ");
            Invalid { hint: format!("use one of {fields} or the name of a node, with - before it to reverse"), ..error }
        })?;
        Ok(Sort::Node(name.to_string(), direction))
    }

    /// The form that `parse` reads.
    pub fn to_text(&self) -> String {
        let (name, direction) = match self {
            Sort::Field(field, direction) => (field.as_str(), direction),
            Sort::Node(node, direction) => (node.as_str(), direction),
        };
        match direction {
            Direction::Ascending => name.to_string(),
            Direction::Descending => format!("-{name}"),
        }
    }
}

impl Field {
    pub const ALL: [Field; 4] = [Field::CreatedAt, Field::UpdatedAt, Field::Revision, Field::Id];

    pub fn as_str(self) -> &'static str {
        match self {
            Field::CreatedAt => "created_at",
            Field::UpdatedAt => "updated_at",
            Field::Revision => "revision",
            Field::Id => "id",
        }
    }

    pub fn parse(text: &str) -> Option<Field> {
        Field::ALL.into_iter().find(|field| field.as_str() == text)
    }
}

/// Values of different kinds are sorted by kind: numbers, texts, booleans, the rest, unset.
pub fn sort_class(value: Option<&Value>) -> u8 {
    match value {
        Some(Value::Number(_)) => 0,
        Some(Value::String(_)) => 1,
        Some(Value::Bool(_)) => 2,
        Some(Value::Null | Value::Array(_) | Value::Object(_)) => 3,
        None => 4,
    }
}

/// The order of two values of a node: first by class; numbers then as `f64`, texts by the bytes of what is
/// `searchable`, `false` before `true`; the rest are all equal. `Descending` is the exact reverse, but
/// unset is last in both directions.
pub fn compare(a: Option<&Value>, b: Option<&Value>, direction: Direction) -> Ordering {
    let (Some(left), Some(right)) = (a, b) else { return a.is_none().cmp(&b.is_none()) };
    let within = match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        _ => order(left, right).unwrap_or(Ordering::Equal),
    };
    let ascending = sort_class(a).cmp(&sort_class(b)).then(within);
    match direction {
        Direction::Ascending => ascending,
        Direction::Descending => ascending.reverse(),
    }
}

/// A text as it is searched and ordered: SQL texts cannot hold U+0000, so U+FFFD stands for it.
pub fn searchable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// A text as it is searched whatever its case: `searchable`, then Rust's `to_lowercase`, which knows all of
/// Unicode and no locale. The `lower` of a database differs.
pub fn folded(text: &str) -> String {
    searchable(text).to_lowercase()
}

/// Numbers as `f64`, so that whole ones above 2^53 may tie; texts by the bytes of what is `searchable`. Other
/// pairs have no order.
fn order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64()?.partial_cmp(&b.as_f64()?),
        (Value::String(a), Value::String(b)) => Some(searchable(a).cmp(&searchable(b))),
        _ => None,
    }
}

fn texts<'a>(value: &'a Value, given: &'a Value) -> Option<(&'a str, &'a str)> {
    value.as_str().zip(given.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn condition(text: &str) -> Condition {
        Condition::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn every_operator_and_field_is_read_by_its_name() {
        for operator in Operator::ALL {
            assert_eq!(Operator::parse(operator.as_str()), Some(operator));
        }
        for field in Field::ALL {
            assert_eq!(Field::parse(field.as_str()), Some(field));
        }
        assert_eq!(Operator::parse("EQ"), None);
    }

    #[test]
    fn conditions_are_read_whatever_the_name_and_the_json_contain() {
        for (text, node, operator, value) in [
            ("age.gte:18", "age", Operator::Gte, json!(18)),
            ("age.gte: 18 ", "age", Operator::Gte, json!(18)),
            ("name.eq:\"ann\"", "name", Operator::Eq, json!("ann")),
            ("name.eq:null", "name", Operator::Eq, Value::Null),
            ("state.in:[\"a\",\"b\"]", "state", Operator::In, json!(["a", "b"])),
            ("state.not_in:[]", "state", Operator::NotIn, json!([])),
            ("paid.is_set", "paid", Operator::IsSet, Value::Null),
            ("paid.is_set:", "paid", Operator::IsSet, Value::Null),
            ("paid.is_set:true", "paid", Operator::IsSet, Value::Null),
            ("paid.is_not_set:null", "paid", Operator::IsNotSet, Value::Null),
            ("user.name.eq:\"a.b\"", "user.name", Operator::Eq, json!("a.b")),
            ("eq.eq:1.5", "eq", Operator::Eq, json!(1.5)),
            ("a.eq.eq:1", "a.eq", Operator::Eq, json!(1)),
            ("a:b.lt:1", "a:b", Operator::Lt, json!(1)),
            ("a.eq:b.eq:5", "a.eq:b", Operator::Eq, json!(5)),
            ("a.eq:5.is_set", "a.eq:5", Operator::IsSet, Value::Null),
            ("a.is_set.is_set", "a.is_set", Operator::IsSet, Value::Null),
            ("a.is_set:x.is_set", "a.is_set:x", Operator::IsSet, Value::Null),
            ("a.eq:\"b.eq:5\"", "a", Operator::Eq, json!("b.eq:5")),
            ("a.eq:\"b.is_set\"", "a", Operator::Eq, json!("b.is_set")),
            ("a.eq:\"x.eq:5", "a.eq:\"x", Operator::Eq, json!(5)),
            ("a.eq:[\"x.eq:\",\"y\"]", "a", Operator::Eq, json!(["x.eq:", "y"])),
            ("a.eq:{\"k.eq:\":\"v:.lt:\"}", "a", Operator::Eq, json!({"k.eq:": "v:.lt:"})),
            ("größe.icontains:\"Ä\"", "größe", Operator::Icontains, json!("Ä")),
        ] {
            assert_eq!(condition(text), Condition { node: node.to_string(), operator, value }, "{text}");
        }
    }

    #[test]
    fn a_condition_survives_being_written_and_read() {
        let names =
            ["a", "a.b", "a:b", "a.eq", "a.eq:", "a.eq:1", "a.is_set", "a.eq:\"", "\".eq:\"", ".eq:[\"x", "-", ":"];
        let values = [
            json!(null),
            json!(1),
            json!(-1.5e300),
            json!(u64::MAX),
            json!(""),
            json!("a.eq:1"),
            json!("\".eq:\""),
            json!("\\.eq:\\"),
            json!("\u{0}\n"),
            json!([]),
            json!([1, ".eq:", "\",\".lt:2"]),
            json!({".eq:": {".is_set": ".eq:1"}}),
        ];
        let mut read = 0;
        for (node, operator) in names.iter().flat_map(|node| Operator::ALL.map(|operator| (*node, operator))) {
            for value in &values {
                let Ok(condition) = Condition::new(node, operator, value.clone()) else { continue };
                assert_eq!(Condition::parse(&condition.to_text()), Ok(condition.clone()), "{}", condition.to_text());
                read += 1;
            }
        }
        assert!(read > 500, "{read}");
    }

    #[test]
    fn every_bad_condition_is_refused_with_a_remedy() {
        for (text, problem, hint) in [
            ("", "names no operator", "age.gte:18"),
            ("age", "names no operator", "age.gte:18"),
            ("age:18", "names no operator", "age.gte:18"),
            ("age.gt18", "unknown operator", "use one of eq, neq"),
            ("age.equals:18", "unknown operator", "use one of"),
            ("age.gtee:18", "unknown operator", "did you mean \"gte\"?"),
            ("name.contain:\"a\"", "unknown operator", "did you mean \"contains\"?"),
            ("name.eq:ann", "not valid JSON", "name.eq:\"ann\""),
            ("name.eq:'ann'", "not valid JSON", "texts in quotes"),
            ("name.eq:1 2", "not valid JSON", "as JSON"),
            ("name.eq:1e999", "has a number that is too large", "below"),
            (r#"name.eq:"\ud800""#, "half of a surrogate pair", "both halves"),
            ("name.eq", "lacks the value", "name.eq:18"),
            ("name.eq:", "lacks the value", "name.eq:18"),
            ("state.in:\"a\"", "is not a list", "state.in:[\"a\",\"b\"]"),
            ("state.not_in:{}", "is not a list", "state.not_in:["),
            ("name.contains:5", "is not a text", "name.contains:\"part\""),
            ("name.icontains:[\"a\"]", "is not a text", "name.icontains:\"part\""),
            ("age.lt:true", "neither a number nor a text", "age.lt:18"),
            ("age.gte:null", "neither a number nor a text", "age.gte:18"),
            ("paid.is_set:false", "takes none", "write paid.is_set"),
            ("paid.is_not_set:1", "takes none", "write paid.is_not_set"),
            (".eq:1", "bad length", "1 to 200"),
            ("a b.eq:1", "space", "without spaces"),
        ] {
            let error = Condition::parse(text).expect_err(text);
            assert_eq!(error.field, "where", "{text}");
            assert!(error.problem.contains(problem), "{text}: {error:?}");
            assert!(error.hint.contains(hint), "{text}: {error:?}");
        }
        let error = Condition::new("a", Operator::IsSet, json!(1)).expect_err("a value");
        assert!(error.problem.contains("takes none"), "{error:?}");
    }

    #[test]
    fn each_operator_holds_for_what_its_description_says() {
        let big = u64::MAX;
        for (text, holds, fails) in [
            ("n.eq:1", vec![json!(1), json!(1.0)], vec![json!(2), json!("1"), json!(true), json!([1]), json!(null)]),
            ("n.eq:0", vec![json!(0), json!(-0.0)], vec![json!(false), json!(""), json!(null)]),
            ("n.eq:\"a\"", vec![json!("a")], vec![json!("A"), json!("a "), json!(["a"])]),
            ("n.eq:\"\\u0000\"", vec![json!("\0")], vec![json!("\u{fffd}"), json!("")]),
            ("n.eq:null", vec![json!(null)], vec![json!(0), json!(false), json!("null")]),
            ("n.eq:[1,{\"a\":2}]", vec![json!([1.0, {"a": 2.0}])], vec![json!([{"a": 2}, 1]), json!([1]), json!([])]),
            ("n.eq:{\"a\":1,\"b\":2}", vec![json!({"b": 2, "a": 1})], vec![json!({"a": 1}), json!({"a": 1, "c": 2})]),
            ("n.eq:18446744073709551615", vec![json!(big), json!(big as f64)], vec![json!(big - 1), json!(-1)]),
            ("n.eq:9007199254740993", vec![json!(9_007_199_254_740_993_u64)], vec![json!(9_007_199_254_740_992_u64)]),
            ("n.eq:9007199254740992.0", vec![json!(9_007_199_254_740_993_u64)], vec![json!(9_007_199_254_740_995_u64)]),
            ("n.neq:1", vec![json!(2), json!("1"), json!(null), json!([])], vec![json!(1), json!(1.0)]),
            ("n.lt:5", vec![json!(4), json!(4.9), json!(-1)], vec![json!(5), json!(6), json!("4"), json!(null)]),
            ("n.lte:5", vec![json!(5), json!(5.0)], vec![json!(5.1), json!(true), json!([1])]),
            ("n.gt:5", vec![json!(6), json!(big)], vec![json!(5), json!("6"), json!({})]),
            ("n.gte:9007199254740993", vec![json!(9_007_199_254_740_992_u64)], vec![json!(1)]),
            ("n.gt:9007199254740992", vec![], vec![json!(9_007_199_254_740_993_u64)]),
            ("n.lt:\"b\"", vec![json!("a"), json!("B"), json!("")], vec![json!("b"), json!("é"), json!(1)]),
            ("n.gte:\"z\"", vec![json!("z"), json!("é"), json!("😀")], vec![json!("y"), json!("Z")]),
            ("n.gt:\"\u{fffc}\"", vec![json!("\0"), json!("😀")], vec![json!("\u{1}"), json!("\u{fffc}")]),
            ("n.lte:\"\\u0000\"", vec![json!("\u{fffd}"), json!("a")], vec![json!("😀")]),
            ("n.in:[1,\"a\",null]", vec![json!(1.0), json!("a"), json!(null)], vec![json!(2), json!("A")]),
            ("n.in:[]", vec![], vec![json!(null), json!([])]),
            ("n.in:[[1]]", vec![json!([1])], vec![json!(1)]),
            ("n.not_in:[1,\"a\"]", vec![json!(2), json!(null)], vec![json!(1), json!("a")]),
            ("n.not_in:[]", vec![json!(1), json!(null)], vec![]),
            ("n.contains:\"nn\"", vec![json!("anna")], vec![json!("aNNa"), json!("n"), json!(["nn"]), json!(null)]),
            ("n.contains:\"\"", vec![json!(""), json!("x")], vec![json!(1), json!([""])]),
            ("n.contains:\"%\"", vec![json!("5%")], vec![json!("5"), json!("_")]),
            ("n.contains:\"_\"", vec![json!("a_b")], vec![json!("a-b")]),
            ("n.contains:\"\\\\\"", vec![json!("a\\b")], vec![json!("ab")]),
            ("n.contains:\"\\u0000\"", vec![json!("a\0b"), json!("a\u{fffd}b")], vec![json!("ab")]),
            ("n.icontains:\"ÄN\"", vec![json!("jäna"), json!("ÄN")], vec![json!("an")]),
            ("n.icontains:\"a\\u0000\"", vec![json!("A\u{fffd}")], vec![json!("A")]),
            ("n.list_contains:1", vec![json!([2, 1.0])], vec![json!(1), json!([[1]]), json!(["1"]), json!([])]),
            ("n.list_contains:[1]", vec![json!([[1.0]])], vec![json!([1])]),
            ("n.list_contains:null", vec![json!([null])], vec![json!(null), json!([])]),
            ("n.list_contains:\"a\"", vec![json!(["b", "a"])], vec![json!("a"), json!({"a": "a"})]),
            ("n.is_set", vec![json!(null), json!(false), json!([])], vec![]),
            ("n.is_not_set", vec![], vec![json!(null), json!(0)]),
        ] {
            let condition = condition(text);
            holds.iter().for_each(|value| assert!(condition.holds(Some(value)), "{text} should hold for {value}"));
            fails.iter().for_each(|value| assert!(!condition.holds(Some(value)), "{text} should not hold for {value}"));
            assert_eq!(condition.holds(None), condition.operator == Operator::IsNotSet, "{text} of an unset node");
        }
    }

    #[test]
    fn a_condition_with_a_value_that_its_operator_cannot_use_never_holds() {
        for operator in [Operator::In, Operator::NotIn, Operator::Contains, Operator::Lt, Operator::Gte] {
            let condition = Condition { node: "n".to_string(), operator, value: Value::Null };
            for value in [json!(null), json!(1), json!("a"), json!([])] {
                assert!(!condition.holds(Some(&value)), "{operator:?} {value}");
            }
        }
    }

    #[test]
    fn sorts_are_read_and_written() {
        use Direction::{Ascending, Descending};
        for (text, sort) in [
            ("created_at", Sort::Field(Field::CreatedAt, Ascending)),
            ("-created_at", Sort::Field(Field::CreatedAt, Descending)),
            ("updated_at", Sort::Field(Field::UpdatedAt, Ascending)),
            ("-revision", Sort::Field(Field::Revision, Descending)),
            ("id", Sort::Field(Field::Id, Ascending)),
            ("age", Sort::Node("age".to_string(), Ascending)),
            ("-user.age", Sort::Node("user.age".to_string(), Descending)),
            ("--x", Sort::Node("-x".to_string(), Descending)),
            ("archived_at", Sort::Node("archived_at".to_string(), Ascending)),
        ] {
            assert_eq!(Sort::parse(text), Ok(sort.clone()), "{text}");
            assert_eq!(sort.to_text(), text);
        }
        for text in ["", "-", "a b", "a\u{0}"] {
            let error = Sort::parse(text).expect_err(text);
            assert_eq!(error.field, "sort");
            assert!(error.hint.contains("created_at"), "{error:?}");
        }
    }

    #[test]
    fn values_sort_by_class_then_value_and_unset_is_last_both_ways() {
        // Each row is one place; what shares a row ties.
        let ascending: Vec<Vec<Option<Value>>> = vec![
            vec![Some(json!(-1e300))],
            vec![Some(json!(-1)), Some(json!(-1.0))],
            vec![Some(json!(0)), Some(json!(-0.0))],
            vec![Some(json!(1.5))],
            vec![Some(json!(9_007_199_254_740_992_u64)), Some(json!(9_007_199_254_740_993_u64))],
            vec![Some(json!(u64::MAX))],
            vec![Some(json!(""))],
            vec![Some(json!("10"))],
            vec![Some(json!("9"))],
            vec![Some(json!("B"))],
            vec![Some(json!("a"))],
            vec![Some(json!("ab"))],
            vec![Some(json!("é"))],
            vec![Some(json!("\0")), Some(json!("\u{fffd}"))],
            vec![Some(json!("😀"))],
            vec![Some(json!(false))],
            vec![Some(json!(true))],
            vec![Some(json!(null)), Some(json!([2])), Some(json!([1])), Some(json!({"a": 1}))],
            vec![None],
        ];
        let places: Vec<(usize, Option<&Value>)> = ascending
            .iter()
            .enumerate()
            .flat_map(|(place, row)| row.iter().map(move |value| (place, value.as_ref())))
            .collect();
        for (left, a) in &places {
            for (right, b) in &places {
                assert_eq!(compare(*a, *b, Direction::Ascending), left.cmp(right), "{a:?} {b:?}");
                let descending = match (a, b) {
                    (Some(_), Some(_)) => right.cmp(left),
                    _ => left.cmp(right),
                };
                assert_eq!(compare(*a, *b, Direction::Descending), descending, "{a:?} {b:?}");
            }
        }
        let classes: Vec<u8> = places.iter().map(|(_, value)| sort_class(*value)).collect();
        assert!(classes.is_sorted());
        assert_eq!((classes.first(), classes.last()), (Some(&0), Some(&4)));
    }

    #[test]
    fn texts_are_searched_without_nul_and_whatever_their_case() {
        assert!(matches!(searchable("plain"), Cow::Borrowed("plain")));
        assert_eq!(searchable("a\0b\0"), "a\u{fffd}b\u{fffd}");
        assert_eq!(folded("ÀB\0İ"), "àb\u{fffd}i\u{307}");
    }
}
