use super::build::{failure, forged, json, retry, with_token};
use super::fixture::{Fixture, HOUR, MOMENT};
use crate::VerdictFilter;
use everbeat_model::verdict::Judgement;
use everbeat_model::{Next, Settlement, StoreTime, Verdict, VerdictId};
use std::time::Duration;

pub(super) async fn a_verdict_reads_back_with_the_time_of_the_store(t: &Fixture) {
    let claimed = t.running().await;
    for judgement in Judgement::ALL {
        let given = Verdict {
            judgement,
            reason: "it's \"silent\"".to_string(),
            evidence: json("{\"age\":1.0,\"nul\":\"\\u0000\"}"),
            then: "ready again — at once\nsecond line".to_string(),
            ..t.verdict_on_run(claimed.lease.shown(), claimed.lease.replica_id)
        };
        t.record(vec![given.clone()]).await.expect("record");
        let kept = t.store.verdict(given.id).await.expect("verdict").expect("kept");
        assert!(kept.at > claimed.lease.granted_at, "whatever time it came with");
        assert_eq!(kept, Verdict { at: kept.at, ..given });
    }
    assert_eq!(t.store.verdict(VerdictId(uuid::Uuid::nil())).await.expect("verdict"), None);
    t.record(Vec::new()).await.expect("record");
}

pub(super) async fn a_verdict_of_a_fenced_settlement_is_not_kept(t: &Fixture) {
    let claimed = t.running().await;
    let verdict = t.verdict_on_run(claimed.lease.shown(), claimed.lease.replica_id);
    let judged = |next| Settlement { verdict: Some(verdict.clone()), ..retry(&claimed, next) };
    t.end(with_token(judged(Next::Ready), forged())).await;
    t.cancel(claimed.lease.run_id).await.expect("cancel");
    t.end(judged(Next::Ready)).await;
    assert_eq!(t.store.verdict(verdict.id).await.expect("verdict"), None, "fenced, then refused for a cancel");
}

pub(super) async fn a_verdict_of_a_settlement_is_named_by_its_attempt(t: &Fixture) {
    let first = t.running().await;
    let judge = first.lease.replica_id;
    let verdicts = [t.verdict_on_run(first.lease.shown(), judge), t.verdict_on_run(first.lease.shown(), judge)];
    t.end(Settlement { verdict: Some(verdicts[0].clone()), ..retry(&first, Next::Ready) }).await;
    let second = t.take_one(judge).await;
    t.end(Settlement { verdict: Some(verdicts[1].clone()), ..failure(&second) }).await;
    let attempts = t.attempts(first.lease.run_id).await.expect("attempts");
    for (attempt, verdict) in attempts.iter().zip(&verdicts) {
        assert_eq!(attempt.verdict_id, Some(verdict.id));
        let kept = t.store.verdict(verdict.id).await.expect("verdict").expect("kept");
        assert!(kept.at > StoreTime(0) && Some(kept.at) >= attempt.ended_at);
        assert_eq!(kept.evidence, verdict.evidence);
    }
}

pub(super) async fn verdicts_are_newest_first_and_filtered(t: &Fixture) {
    let (one, two) = (t.running().await, t.running().await);
    let judge = one.lease.replica_id;
    let mut given = Vec::new();
    for shown in [one.lease.shown(), two.lease.shown(), one.lease.shown()] {
        given.push(t.verdict_on_run(shown, judge));
    }
    given.push(t.verdict(judge));
    let ids: Vec<VerdictId> = given.iter().map(|verdict| verdict.id).collect();
    t.record(given).await.expect("record");
    let list = async |filter: VerdictFilter| -> Vec<VerdictId> {
        t.verdicts(filter).await.expect("verdicts").into_iter().map(|verdict| verdict.id).collect()
    };
    let all = || VerdictFilter { limit: 100, ..VerdictFilter::default() };
    assert_eq!(list(all()).await, [ids[3], ids[2], ids[1], ids[0]]);
    assert_eq!(list(VerdictFilter { run_id: Some(one.lease.run_id), ..all() }).await, [ids[2], ids[0]]);
    assert_eq!(list(VerdictFilter { subject: Some(judge.to_string()), ..all() }).await, [ids[3]]);
    assert_eq!(list(VerdictFilter { subject: Some(two.lease.run_id.to_string()), ..all() }).await, [ids[1]]);
    assert_eq!(list(VerdictFilter { limit: 2, ..all() }).await, [ids[3], ids[2]]);
    assert_eq!(list(VerdictFilter { before: Some(ids[2]), limit: 1, ..all() }).await, [ids[1]]);
    let both = VerdictFilter { run_id: Some(one.lease.run_id), before: Some(ids[2]), ..all() };
    assert_eq!(list(both).await, [ids[0]]);
}

pub(super) async fn retention_forgets_only_old_verdicts(t: &Fixture) {
    let replica = t.replica().await;
    let old = [t.verdict(replica), t.verdict(replica), t.verdict(replica)];
    t.record(old.to_vec()).await.expect("record");
    assert_eq!(t.forget_verdicts(HOUR, 100).await.expect("forget"), 0);
    t.advance(MOMENT).await;
    assert_eq!(t.forget_verdicts(MOMENT / 2, 2).await.expect("forget"), 2, "no more than asked for");
    assert_eq!(t.forget_verdicts(MOMENT / 2, 2).await.expect("forget"), 1);
    let young = t.verdict(replica);
    t.record(vec![young.clone()]).await.expect("record");
    assert_eq!(t.forget_verdicts(HOUR, 100).await.expect("forget"), 0);
    assert!(t.store.verdict(young.id).await.expect("verdict").is_some());
    assert_eq!(t.store.verdict(old[0].id).await.expect("verdict"), None);
    t.advance(Duration::from_millis(1)).await;
    assert_eq!(t.forget_verdicts(Duration::ZERO, 100).await.expect("forget"), 1);
}
