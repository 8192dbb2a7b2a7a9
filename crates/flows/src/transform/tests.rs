use super::*;
use async_trait::async_trait;
use serde_json::json;
use std::sync::Arc;

fn steps(value: Value) -> Vec<Transform> {
    read(&value).unwrap()
}

fn refusal(value: Value) -> String {
    let invalid = read(&value).expect_err("refused");
    format!("{invalid}; {}", invalid.hint)
}

struct Answers(Vec<Value>);

#[async_trait]
impl PerformTask for Answers {
    async fn perform(&self, _task: &str, _records: Vec<Value>) -> Result<Vec<Value>, Trouble> {
        Ok(self.0.clone())
    }
}

async fn applied(value: Value, records: &[Value], ports: &Ports) -> Result<Transformed, Trouble> {
    let record =
        |(place, value): (usize, &Value)| Record { value: value.clone(), position: format!("r{place}").into() };
    let records = records.iter().enumerate().map(record).collect();
    apply(&steps(value), records, StoreTime(1_000_000), ports).await
}

fn values(transformed: &Transformed) -> Vec<Value> {
    transformed.records.iter().map(|record| record.value.clone()).collect()
}

#[tokio::test]
async fn fields_are_added_dropped_and_renamed_in_order() {
    let list = json!([
        {"type": "add", "fields": {"at": "now", "word": {"value": "now"}, "n": 1}},
        {"type": "rename", "fields": {"a": "b", "b": "a"}},
        {"type": "drop", "fields": ["c"]},
    ]);
    let all = applied(list, &[json!({"a": 1, "b": 2, "c": 3}), json!(5)], &Ports::default()).await.unwrap();
    let expected = json!({"a": 2, "b": 1, "n": 1, "word": "now", "at": "1970-01-01T00:00:01.000000Z"});
    assert_eq!(values(&all), [expected]);
    assert_eq!((&*all.rejected[0].position, all.rejected[0].raw.as_str()), ("r1", "5"));
    let clash = json!({"type": "rename", "fields": {"a": "b"}});
    let all = applied(clash, &[json!({"a": 1, "b": 2})], &Ports::default()).await.unwrap();
    assert!(all.rejected[0].reason.contains("has a field \"b\" already"));
}

#[tokio::test]
async fn a_task_answers_for_each_record() {
    let ports =
        |answers: Value| Ports { tasks: Some(Arc::new(Answers(answers.as_array().unwrap().clone()))), evaluate: None };
    let step = json!({"type": "task", "task": "clean"});
    let records = [json!({"a": 1}), json!({"a": 2}), json!({"a": 3})];
    let all = applied(step.clone(), &records, &ports(json!([{"b": 1}, null, {"rejected": "no"}]))).await.unwrap();
    assert_eq!((values(&all), all.dropped), (vec![json!({"b": 1})], 1));
    assert_eq!((&*all.rejected[0].position, all.rejected[0].reason.as_str()), ("r2", "no"));
    let trouble = applied(step.clone(), &records, &ports(json!([1]))).await.expect_err("too few");
    assert!(trouble.message.contains("gave 1 items for 3 records"), "{trouble}");
    assert!(applied(step, &records, &Ports::default()).await.is_err(), "nobody performs it");
}

#[test]
fn what_cannot_be_a_transform_is_refused_and_named() {
    for (value, said) in [
        (json!({"type": "ad"}), "did you mean \"add\""),
        (json!({"type": "add"}), "fields: is missing"),
        (json!({"type": "add", "fields": {}}), "is not an object with fields"),
        (json!({"type": "add", "fields": {"a": 1}, "feilds": 1}), "is not a field of a transform of type \"add\""),
        (
            json!([{"type": "drop", "fields": ["a"]}, {"type": "rename", "fields": {"a": 1}}]),
            "1.fields.a: is not a name",
        ),
        (json!({"type": "jq"}), "program: is missing"),
        (json!({"type": "task"}), "task: is missing"),
        (json!("add"), "is not an object"),
    ] {
        let refused = refusal(value.clone());
        assert!(refused.contains(said), "{value}: {refused}");
    }
}
