use super::build::{failure, retry, success};
use super::fixture::{Fixture, HOUR};
use super::steps::sum;
use crate::Audit;
use everbeat_model::Next;
use serde_json::json;
use std::collections::BTreeMap;

const COUNTS: [&str; 12] = [
    "runs",
    "scheduled",
    "ready",
    "running",
    "succeeded",
    "failed",
    "cancelled",
    "leases",
    "replicas",
    "attempts",
    "executions",
    "computing",
];

pub(super) async fn an_audit_counts_every_run_once(t: &Fixture) {
    let replica = t.replica().await;
    t.accept_many(9).await;
    let c = t.take(replica, 6).await;
    t.end(success(&c[0])).await;
    t.end(failure(&c[1])).await;
    t.end(failure(&c[2])).await;
    t.end(retry(&c[3], Next::After(HOUR))).await;
    t.end(retry(&c[4], Next::Ready)).await;
    let cancelled = t.accept(t.draft()).await;
    t.cancel(cancelled).await.expect("cancel");
    t.reopen(c[2].lease.run_id, 1).await.expect("reopen");
    t.kill(replica).await;
    let audit = t.audit().await.expect("audit");
    assert_eq!(audit.violations, []);
    assert_eq!(audit, counted([10, 1, 5, 1, 1, 1, 1, 1, 1, 5, 0, 0]));
}

pub(super) async fn an_audit_of_an_empty_store_names_every_count(t: &Fixture) {
    assert_eq!(t.audit().await.expect("audit"), counted([0; 12]));
}

pub(super) async fn an_audit_counts_executions_and_what_they_compute(t: &Fixture) {
    t.define(&sum()).await;
    let mut all = Vec::new();
    for given in [json!({}), json!({"a": 1, "b": 1}), json!({"a": 1, "b": 2}), json!({"a": 1, "b": 3})] {
        all.push(t.begin("sum", given).await);
    }
    t.perform(all[1], "total", json!(2)).await;
    t.archive(all[2]).await;
    let audit = t.audit().await.expect("audit");
    assert_eq!((audit.checked["executions"], audit.checked["computing"]), (4, 2), "archived ones count too");
    assert_eq!(audit.violations, []);
}

fn counted(counts: [u64; 12]) -> Audit {
    let checked: BTreeMap<String, u64> = COUNTS.iter().map(|name| name.to_string()).zip(counts).collect();
    Audit { checked, violations: Vec::new() }
}
