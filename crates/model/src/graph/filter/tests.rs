//! Conditions and sorts, read, written and answered.

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
    let names = ["a", "a.b", "a:b", "a.eq", "a.eq:", "a.eq:1", "a.is_set", "a.eq:\"", "\".eq:\"", ".eq:[\"x", "-", ":"];
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
