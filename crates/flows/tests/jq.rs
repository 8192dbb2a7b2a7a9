//! jq programs in processes of their own.

mod support;

use everbeat_flows::jq::Evaluator;
use everbeat_flows::{Class, Evaluate, Ports, run};
use serde_json::{Value, json};
use std::sync::Arc;
use support::{Memory, attempt, configure, lines};

fn evaluator() -> Evaluator {
    Evaluator::new(vec![env!("CARGO_BIN_EXE_everbeat-jq").into()])
}

async fn evaluated(evaluator: &Evaluator, program: &str, records: &[Value]) -> Vec<Result<Vec<Value>, String>> {
    evaluator.evaluate(program, &records.iter().collect::<Vec<_>>()).await.unwrap()
}

#[tokio::test]
async fn each_record_gives_its_outputs_or_its_own_error() {
    let evaluator = evaluator();
    let records = [json!({"a": 2}), json!({"a": "x"}), json!({"a": 0}), json!({"a": 9_007_199_254_740_993_u64})];
    let program = "if .a == 0 then empty elif .a == 2 then .a, .a * 2 else .a + 1 end";
    for _ in 0..3 {
        let answers = evaluated(&evaluator, program, &records).await;
        assert_eq!(answers[0], Ok(vec![json!(2), json!(4)]));
        assert!(answers[1].as_ref().is_err_and(|reason| reason.starts_with("jq: ")), "{:?}", answers[1]);
        assert_eq!(answers[2], Ok(vec![]));
        assert_eq!(answers[3], Ok(vec![json!(9_007_199_254_740_994_u64)]));
    }
    let many: Vec<Value> = (0..5000).map(|n| json!({"n": n, "text": "x".repeat(200)})).collect();
    let answers = evaluated(&evaluator, ".n + 1", &many).await;
    assert!(answers.iter().enumerate().all(|(n, answer)| *answer == Ok(vec![json!(n + 1)])), "more than a pipe holds");
}

#[tokio::test]
async fn a_record_that_kills_the_evaluator_is_rejected_and_no_other() {
    let evaluator = evaluator();
    let program = "if .bad then def f: 1 + f; f elif .big then [range(1e9)] else .n end";
    let records = [json!({"n": 1}), json!({"bad": true}), json!({"n": 2}), json!({"big": true}), json!({"n": 3})];
    let answers = evaluated(&evaluator, program, &records).await;
    for (place, n) in [(0, 1), (2, 2), (4, 3)] {
        assert_eq!(answers[place], Ok(vec![json!(n)]));
    }
    for place in [1, 3] {
        let reason = answers[place].as_ref().expect_err("it died");
        assert!(reason.contains("512 MiB of memory or overflowed its stack"), "{reason}");
    }
    let trouble = evaluator.evaluate(program, &[&json!({"bad": true}); 20]).await.expect_err("every record");
    assert_eq!(trouble.class, Class::Permanent, "{trouble}");
}

#[tokio::test]
async fn a_program_that_is_none_is_a_permanent_trouble() {
    for (program, part) in [(".a +", "cannot be parsed"), ("nonsense", "not defined"), ("env", "not defined")] {
        let trouble = evaluator().evaluate(program, &[&json!(1)]).await.expect_err(program);
        assert!(trouble.class == Class::Permanent && trouble.message.contains(part), "{program}: {trouble}");
    }
    let nobody = Evaluator::new(vec!["/nowhere/at/all".into()]);
    assert_eq!(nobody.evaluate(".", &[&json!(1)]).await.expect_err("no program").class, Class::Transient);
}

#[tokio::test]
async fn a_flow_goes_through_jq() {
    let folder = tempfile::tempdir().unwrap();
    let (source, sink) = (folder.path().join("in.ndjson"), folder.path().join("out.ndjson"));
    std::fs::write(&source, "{\"items\":[1,2]}\n{\"items\":[]}\n{\"items\":3}\n").unwrap();
    let configuration = configure(&json!({
        "source": {"type": "file", "path": source},
        "transform": [{"type": "jq", "program": ".items[] | {item: .}"}, {"type": "add", "fields": {"processed_at": "now"}}],
        "sink": {"type": "file", "path": sink},
    }));
    let ledger = Memory::default();
    let mut attempt = attempt(&configuration, "run-1", 1, &ledger);
    attempt.ports = Ports { evaluate: Some(Arc::new(evaluator())), tasks: None };
    let counts = run(&attempt).await.unwrap().counts;
    assert_eq!((counts.read, counts.written, counts.dropped, counts.rejected), (3, 2, 1, 1));
    let at = "1970-01-01T00:00:01.000000Z";
    assert_eq!(lines(&sink), [json!({"item": 1, "processed_at": at}), json!({"item": 2, "processed_at": at})]);
}
