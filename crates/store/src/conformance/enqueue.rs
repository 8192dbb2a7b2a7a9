use super::build::{Draft, failure, json, success};
use super::fixture::Fixture;
use crate::{Enqueue, Enqueued, Error, Idempotency, RunFilter};
use everbeat_model::run::Kind;
use everbeat_model::{RunState, StoreTime};

pub(super) async fn a_new_run_reads_back_as_it_was_given(t: &Fixture) {
    let draft = t.draft().task("mail").queue("bulk").kind(Kind::Node).priority(-7).key("k").input(json("{\"a\":[1]}"));
    let given = draft.clone();
    let id = t.accept(draft).await;
    let run = t.look(id).await;
    assert_eq!(*run.spec, given.spec);
    assert_eq!((run.id, run.state, run.attempt), (id, RunState::Ready, 0));
    assert_eq!((run.started_at, run.finished_at, run.run_at, run.last_heartbeat_at), (None, None, None, None));
    assert_eq!((run.replica_id, run.result, run.error, run.progress, run.checkpoint), (None, None, None, None, None));
    assert!(t.attempts(id).await.expect("attempts").is_empty());
}

pub(super) async fn a_run_for_later_is_scheduled_and_one_for_the_past_is_ready(t: &Fixture) {
    let past = StoreTime(1_000_000);
    let late = t.accept(t.draft().at(past)).await;
    let early = t.accept(t.draft().far_off()).await;
    let (late, early) = (t.look(late).await, t.look(early).await);
    assert_eq!((late.state, late.run_at), (RunState::Ready, Some(past)));
    assert_eq!((early.state, early.attempt), (RunState::Scheduled, 0));
    assert!(early.run_at > Some(early.created_at));
    let replica = t.replica().await;
    assert_eq!(t.take_one(replica).await.lease.run_id, late.id);
    assert!(t.take(replica, 10).await.is_empty(), "a scheduled run is not claimed");
}

pub(super) async fn an_empty_request_makes_nothing(t: &Fixture) {
    assert!(t.submit_all(Vec::new()).await.is_empty());
    assert_eq!(t.last_event().await.expect("last event"), 0);
}

pub(super) async fn a_unique_key_holds_among_unfinished_runs_only(t: &Fixture) {
    let replica = t.replica().await;
    let keyed = || t.draft().key("only one");
    let first = t.accept(keyed()).await;
    assert_eq!(t.submit(keyed()).await, Enqueued::Exists(first), "while it is ready");
    let claimed = t.take_one(replica).await;
    assert_eq!(t.submit(keyed()).await, Enqueued::Exists(first), "while it runs");
    t.accept(t.draft().key("another")).await;
    t.end(success(&claimed)).await;
    let second = t.accept(keyed()).await;
    assert_eq!(t.submit(keyed()).await, Enqueued::Exists(second));
    let claimed = t.take(replica, 10).await;
    for claimed in &claimed {
        t.end(failure(claimed)).await;
    }
    let third = t.accept(keyed().far_off()).await;
    assert_eq!(t.submit(keyed()).await, Enqueued::Exists(third), "while it is scheduled");
}

pub(super) async fn a_unique_key_given_twice_in_one_request_makes_one_run(t: &Fixture) {
    let (first, other, second) = (t.draft().key("k"), t.draft(), t.draft().key("k"));
    let expected = vec![Enqueued::Created(first.id), Enqueued::Created(other.id), Enqueued::Exists(first.id)];
    let missing = second.id;
    assert_eq!(t.submit_all(vec![first, other, second]).await, expected);
    assert_eq!(t.run(missing).await.expect("run"), None);
}

pub(super) async fn one_unique_key_from_many_sides_at_once_makes_one_run(t: &Fixture) {
    let drafts = std::sync::Mutex::new((0..20).map(|_| t.draft().key("k")).collect::<Vec<Draft>>());
    let answers = t
        .at_once(20, |store| {
            let run = drafts.lock().expect("unpoisoned").pop().expect("one each").done();
            async move { store.enqueue(Enqueue { runs: vec![run], idempotency: None }).await.expect("enqueue")[0] }
        })
        .await;
    let created: Vec<_> = answers.iter().filter(|answer| matches!(answer, Enqueued::Created(_))).collect();
    assert_eq!(created.len(), 1);
    assert!(answers.iter().all(|answer| answer.id() == created[0].id()), "all are answered with the same run");
}

pub(super) async fn the_same_run_again_after_its_end_takes_no_key(t: &Fixture) {
    let replica = t.replica().await;
    let first = t.draft().key("k");
    t.accept(first.clone()).await;
    t.end(success(&t.take_one(replica).await)).await;
    assert_eq!(t.submit(first.clone()).await, Enqueued::Exists(first.id), "an earlier answer was lost");
    let second = t.accept(t.draft().key("k")).await;
    assert_eq!(t.submit(first.clone()).await, Enqueued::Exists(first.id), "while another one holds the key");
    assert_eq!(t.submit(t.draft().key("k")).await, Enqueued::Exists(second));
}

pub(super) async fn a_finished_run_that_is_named_again_stands_for_no_other_of_its_request(t: &Fixture) {
    let replica = t.replica().await;
    let finished = t.draft().key("k");
    t.accept(finished.clone()).await;
    t.end(success(&t.take_one(replica).await)).await;
    for finished_first in [true, false] {
        let fresh = t.draft().key("k");
        let made = fresh.id;
        let (given, expected) = if finished_first {
            (vec![finished.clone(), fresh], [Enqueued::Exists(finished.id), Enqueued::Created(made)])
        } else {
            (vec![fresh, finished.clone()], [Enqueued::Created(made), Enqueued::Exists(finished.id)])
        };
        assert_eq!(t.submit_all(given).await, expected, "{finished_first}");
        assert_eq!(t.submit(t.draft().key("k")).await, Enqueued::Exists(made), "the new one holds the key");
        t.end(success(&t.take_one(replica).await)).await;
    }
    let twice = vec![finished.clone(), finished.clone()];
    assert_eq!(t.submit_all(twice).await, [Enqueued::Exists(finished.id); 2]);
    t.accept(t.draft().key("k")).await;
}

pub(super) async fn an_idempotency_key_answers_with_what_it_made(t: &Fixture) {
    let held = t.accept(t.draft().key("held")).await;
    let (fresh, keyed) = (t.draft(), t.draft().key("held"));
    let request = with_key(vec![fresh.clone(), keyed], "request-1", "f");
    let first = t.enqueue(request.clone()).await.expect("enqueue");
    assert_eq!(first, [Enqueued::Created(fresh.id), Enqueued::Exists(held)]);
    let again = with_key(vec![t.draft(), t.draft().key("held")], "request-1", "f");
    let repeated = [Enqueued::Exists(fresh.id), Enqueued::Exists(held)];
    assert_eq!(t.enqueue(again).await.expect("enqueue"), repeated, "new ids do not matter, the answer is the old one");
    assert_eq!(t.enqueue(request).await.expect("enqueue"), repeated);
    assert_eq!(count(t).await, 2);
}

pub(super) async fn an_idempotency_key_with_another_request_is_refused_and_makes_nothing(t: &Fixture) {
    t.enqueue(with_key(vec![t.draft()], "k", "one")).await.expect("enqueue");
    let refused = t.enqueue(with_key(vec![t.draft().key("u"), t.draft()], "k", "two")).await;
    assert_eq!(refused, Err(Error::KeyReused { key: "k".to_string() }));
    assert_eq!(count(t).await, 1);
    t.accept(t.draft().key("u")).await;
}

pub(super) async fn fifty_equal_requests_with_one_idempotency_key_make_one_run(t: &Fixture) {
    let drafts = std::sync::Mutex::new((0..50).map(|_| t.draft()).collect::<Vec<Draft>>());
    let answers = t
        .at_once(50, |store| {
            let draft = drafts.lock().expect("unpoisoned").pop().expect("one each");
            async move { store.enqueue(with_key(vec![draft], "k", "f")).await.expect("enqueue")[0] }
        })
        .await;
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Enqueued::Created(_))).count(), 1);
    assert!(answers.iter().all(|answer| answer.id() == answers[0].id()));
    assert_eq!(count(t).await, 1);
}

fn with_key(drafts: Vec<Draft>, key: &str, fingerprint: &str) -> Enqueue {
    let idempotency = Idempotency { key: key.to_string(), fingerprint: fingerprint.to_string() };
    Enqueue { runs: drafts.into_iter().map(Draft::done).collect(), idempotency: Some(idempotency) }
}

async fn count(t: &Fixture) -> usize {
    t.runs(RunFilter { limit: 1000, ..RunFilter::default() }).await.expect("runs").items.len()
}
