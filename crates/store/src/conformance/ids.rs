use super::build::json;
use super::fixture::Fixture;
use crate::{Claim, Noun};
use everbeat_model::RunId;
use everbeat_model::run::{COMMAND, Kind};
use uuid::Uuid;

const ALL: std::ops::RangeInclusive<Uuid> = Uuid::nil()..=Uuid::max();

pub(super) async fn ids_are_found_by_range_newest_first(t: &Fixture) {
    for of in Noun::ALL {
        assert_eq!(t.store.ids(of, ALL, 10).await.expect("ids"), Vec::<Uuid>::new(), "{of:?}");
    }
    let runs: Vec<Uuid> = t.accept_many(4).await.into_iter().map(|id| id.0).collect();
    let newest = |range: &[Uuid]| range.iter().rev().copied().collect::<Vec<Uuid>>();
    assert_eq!(t.store.ids(Noun::Run, ALL, 10).await.expect("ids"), newest(&runs));
    assert_eq!(t.store.ids(Noun::Run, ALL, 2).await.expect("ids"), newest(&runs[2..]));
    assert_eq!(t.store.ids(Noun::Run, runs[1]..=runs[2], 10).await.expect("ids"), newest(&runs[1..3]));
    assert_eq!(t.store.ids(Noun::RunningRun, ALL, 10).await.expect("ids"), Vec::<Uuid>::new());
    let replica = t.replica().await;
    let claimed = t.take_one(replica).await;
    assert_eq!(t.store.ids(Noun::RunningRun, ALL, 10).await.expect("ids"), vec![claimed.lease.run_id.0]);
    let verdict = t.verdict(replica);
    t.record(vec![verdict.clone()]).await.expect("record");
    assert_eq!(t.store.ids(Noun::Verdict, ALL, 10).await.expect("ids"), vec![verdict.id.0]);
    assert_eq!(t.store.ids(Noun::Execution, ALL, 10).await.expect("ids"), Vec::<Uuid>::new());
}

pub(super) async fn jobs_are_found_by_their_input_within_a_window_and_while_they_run(t: &Fixture) {
    let job = |name: &str| {
        let mut draft = t.draft();
        draft.spec.kind = Kind::Job;
        draft.spec.task = COMMAND.to_string();
        draft.spec.input = json(&format!("{{\"command\":[\"true\"],\"name\":\"{name}\"}}"));
        draft
    };
    let with = |name: &str, window| t.store.jobs_with(format!("\"name\":\"{name}\""), window);
    let old = t.accept(job("nightly")).await;
    let held = t.accept(job("it's 100%_done")).await;
    let mut other = t.draft();
    other.spec.input = json("{\"name\":\"nightly\"}");
    t.accept(other).await;
    let new = t.accept(job("nightly")).await;
    assert_eq!(with("nightly", 10).await.expect("jobs"), vec![new, old], "not the run that is no job");
    assert_eq!(with("nightly", 1).await.expect("jobs"), vec![new], "nothing beyond the window");
    assert_eq!(with("night", 10).await.expect("jobs"), Vec::<RunId>::new());
    assert_eq!(with("it's 100%_done", 10).await.expect("jobs"), vec![held], "no sign means another");
    let replica = t.replica().await;
    let tasks = [(COMMAND.to_string(), 1)].into();
    let claim = Claim { replica, limit: 1, tasks, queues: std::collections::BTreeMap::new(), among: None };
    let claimed = t.claim(claim).await.expect("claim");
    assert_eq!(claimed.iter().map(|claimed| claimed.lease.run_id).collect::<Vec<_>>(), vec![old]);
    assert_eq!(with("nightly", 1).await.expect("jobs"), vec![new, old], "one that runs is found however old it is");
}
