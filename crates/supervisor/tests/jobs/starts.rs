//! The log of starts.

use crate::host::*;
use everbeat_engine::Shims;
use everbeat_model::Json;
use everbeat_supervisor::HostShims;
use serde_json::json;
use std::path::Path;

#[test]
fn what_is_no_line_of_the_log_is_passed_over_and_blocks_nothing() {
    let host = Host::new();
    let file = host.data_dir.path().join("startup-log.jsonl");
    std::fs::write(&file, b"{\"n\":1}\n\xff\xfe\n{\"n\":\n\n\0\0\0\n{\"n\":2}\n{\"torn\":").unwrap();
    let numbers = || host.ask(async |shims| shims.starts().await).unwrap().iter().map(Json::value).collect::<Vec<_>>();
    assert_eq!(numbers(), [json!({"n": 2}), json!({"n": 1})]);
    host.ask(async |shims| shims.log_start(&Json::of(&json!({"n": 3}))).await).unwrap();
    assert_eq!(numbers(), [json!({"n": 3}), json!({"n": 2}), json!({"n": 1})]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n");
    for n in 0..60 {
        host.ask(async |shims| shims.log_start(&Json::of(&json!({"n": n}))).await).unwrap();
    }
    assert_eq!((numbers().len(), &numbers()[0]), (50, &json!({"n": 59})));
}

#[test]
fn two_replicas_that_write_at_once_lose_no_line() {
    let host = Host::new();
    let other = |path: &Path| HostShims::open(&crate::host::place(path), "/nowhere".into(), Vec::new()).unwrap();
    host.ask(async |shims| {
        let replicas = [shims.clone(), other(host.data_dir.path())];
        let mut writers = tokio::task::JoinSet::new();
        for n in 0..40 {
            let shims = replicas[n % 2].clone();
            writers.spawn(async move { shims.log_start(&Json::of(&json!({"n": n}))).await });
        }
        writers.join_all().await.into_iter().for_each(|written| written.unwrap());
        assert_eq!(shims.starts().await.unwrap().len(), 40);
    });
}
