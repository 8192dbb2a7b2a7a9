use super::build::{Draft, failure, json, success};
use super::fixture::{Fixture, request_of};
use crate::{Enqueue, Enqueued, Error, Idempotency, RunFilter};
use everbeat_model::run::Kind;
use everbeat_model::{RunId, RunState, StoreTime};
use std::collections::{BTreeMap, BTreeSet};

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
            async move { request_of(&*store, Enqueue { runs: vec![run], idempotency: None }).await.expect("enqueue")[0] }
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
    let first = t.request(request.clone()).await.expect("enqueue");
    assert_eq!(first, [Enqueued::Created(fresh.id), Enqueued::Exists(held)]);
    let again = with_key(vec![t.draft(), t.draft().key("held")], "request-1", "f");
    let repeated = [Enqueued::Exists(fresh.id), Enqueued::Exists(held)];
    assert_eq!(t.request(again).await.expect("enqueue"), repeated, "new ids do not matter, the answer is the old one");
    assert_eq!(t.request(request).await.expect("enqueue"), repeated);
    assert_eq!(count(t).await, 2);
}

pub(super) async fn an_idempotency_key_with_another_request_is_refused_and_makes_nothing(t: &Fixture) {
    t.request(with_key(vec![t.draft()], "k", "one")).await.expect("enqueue");
    let refused = t.request(with_key(vec![t.draft().key("u"), t.draft()], "k", "two")).await;
    assert_eq!(refused, Err(Error::KeyReused { key: "k".to_string() }));
    assert_eq!(count(t).await, 1);
    t.accept(t.draft().key("u")).await;
}

pub(super) async fn fifty_equal_requests_with_one_idempotency_key_make_one_run(t: &Fixture) {
    let drafts = std::sync::Mutex::new((0..50).map(|_| t.draft()).collect::<Vec<Draft>>());
    let answers = t
        .at_once(50, |store| {
            let draft = drafts.lock().expect("unpoisoned").pop().expect("one each");
            async move { request_of(&*store, with_key(vec![draft], "k", "f")).await.expect("enqueue")[0] }
        })
        .await;
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Enqueued::Created(_))).count(), 1);
    assert!(answers.iter().all(|answer| answer.id() == answers[0].id()));
    assert_eq!(count(t).await, 1);
}

pub(super) async fn requests_of_one_batch_are_answered_in_their_order(t: &Fixture) {
    let held = t.accept(t.draft().key("held")).await;
    let drafts: Vec<Draft> = (0..6).map(|_| t.draft()).collect();
    let id = |place: usize| drafts[place].id;
    let answers = t
        .enqueue(vec![
            plain(vec![drafts[0].clone()]),
            with_key(vec![drafts[1].clone(), drafts[2].clone().key("held")], "a", "f"),
            plain(Vec::new()),
            plain(vec![drafts[3].clone().key("held")]),
            with_key(vec![drafts[4].clone()], "b", "f"),
            plain(vec![drafts[5].clone()]),
        ])
        .await
        .expect("enqueue");
    let expected = [
        Ok(vec![Enqueued::Created(id(0))]),
        Ok(vec![Enqueued::Created(id(1)), Enqueued::Exists(held)]),
        Ok(Vec::new()),
        Ok(vec![Enqueued::Exists(held)]),
        Ok(vec![Enqueued::Created(id(4))]),
        Ok(vec![Enqueued::Created(id(5))]),
    ];
    assert_eq!(answers, expected);
    let news = t.events(0, 100).await.expect("events").events;
    let created: Vec<String> = news.into_iter().map(|event| event.subject).collect();
    assert_eq!(created, [held, id(0), id(1), id(4), id(5)].map(|id| id.to_string()), "logged in their order");
}

pub(super) async fn one_idempotency_key_twice_in_a_batch_makes_one_answer(t: &Fixture) {
    for with_unique_key in [false, true] {
        let key = format!("k {with_unique_key}");
        let draft = || if with_unique_key { t.draft().key("u") } else { t.draft() };
        let (first, other) = (draft(), t.draft());
        let (made, more) = (first.id, other.id);
        let batch = vec![
            with_key(vec![first], &key, "f"),
            with_key(vec![draft()], &key, "f"),
            with_key(vec![draft(), t.draft()], &key, "another"),
            with_key(vec![other], &format!("{key} of another"), "f"),
            with_key(vec![draft()], &key, "f"),
        ];
        let (again, refused) = (Ok(vec![Enqueued::Exists(made)]), Err(Error::KeyReused { key: key.clone() }));
        let created = |id| Ok(vec![Enqueued::Created(id)]);
        let expected = [created(made), again.clone(), refused.clone(), created(more), again.clone()];
        assert_eq!(t.enqueue(batch).await.expect("enqueue"), expected);
        assert_eq!(t.request(with_key(vec![t.draft()], &key, "f")).await, again, "the answer is kept");
        assert_eq!(t.request(with_key(vec![t.draft()], &key, "another")).await, refused);
    }
    assert_eq!(count(t).await, 4);
}

pub(super) async fn a_reused_idempotency_key_in_a_batch_refuses_its_own_request_only(t: &Fixture) {
    let stored = t.draft();
    t.request(with_key(vec![stored.clone()], "k", "f")).await.expect("accepted");
    let (before, after, unique) = (t.draft(), t.draft(), t.draft().key("u"));
    let expected = [
        Ok(vec![Enqueued::Created(before.id)]),
        Err(Error::KeyReused { key: "k".to_string() }),
        Ok(vec![Enqueued::Created(unique.id)]),
        Ok(vec![Enqueued::Exists(stored.id)]),
        Ok(vec![Enqueued::Created(after.id)]),
    ];
    let batch = vec![
        with_key(vec![before], "before", "f"),
        with_key(vec![t.draft().key("u"), t.draft()], "k", "another"),
        plain(vec![unique.clone()]),
        with_key(vec![t.draft().key("v")], "k", "f"),
        with_key(vec![after], "after", "f"),
    ];
    assert_eq!(t.enqueue(batch).await.expect("enqueue"), expected);
    assert_eq!(count(t).await, 4, "what is refused or repeated makes nothing");
    assert_eq!(t.submit(t.draft().key("u")).await, Enqueued::Exists(unique.id));
    t.accept(t.draft().key("v")).await;
}

pub(super) async fn stored_answers_are_repeated_beside_new_runs(t: &Fixture) {
    let (one, two, three) = (t.draft(), t.draft(), t.draft());
    t.request(with_key(vec![one.clone(), two.clone()], "old", "f")).await.expect("accepted");
    t.request(with_key(Vec::new(), "empty", "f")).await.expect("accepted");
    let batch = vec![
        with_key(vec![t.draft(), t.draft()], "old", "f"),
        with_key(vec![three.clone()], "new", "f"),
        with_key(Vec::new(), "empty", "f"),
        with_key(Vec::new(), "another empty", "f"),
        with_key(vec![t.draft()], "empty", "another"),
    ];
    let expected = [
        Ok(vec![Enqueued::Exists(one.id), Enqueued::Exists(two.id)]),
        Ok(vec![Enqueued::Created(three.id)]),
        Ok(Vec::new()),
        Ok(Vec::new()),
        Err(Error::KeyReused { key: "empty".to_string() }),
    ];
    assert_eq!(t.enqueue(batch).await.expect("enqueue"), expected);
    let again = t.request(with_key(vec![t.draft()], "new", "f")).await;
    assert_eq!(again, Ok(vec![Enqueued::Exists(three.id)]));
    assert_eq!(count(t).await, 3);
}

pub(super) async fn a_unique_key_in_several_requests_of_a_batch_makes_one_run(t: &Fixture) {
    let replica = t.replica().await;
    let first = t.draft().key("k");
    let batch =
        vec![plain(vec![first.clone()]), with_key(vec![t.draft().key("k")], "a", "f"), plain(vec![t.draft().key("k")])];
    let exists = Ok(vec![Enqueued::Exists(first.id)]);
    let expected = [Ok(vec![Enqueued::Created(first.id)]), exists.clone(), exists.clone()];
    assert_eq!(t.enqueue(batch).await.expect("enqueue"), expected);
    t.end(success(&t.take_one(replica).await)).await;
    // The first is over: the one that names it again takes no key, the next one does.
    let fresh = t.draft().key("k");
    let batch = vec![
        plain(vec![first.clone()]),
        with_key(vec![t.draft().key("k")], "a", "f"),
        with_key(vec![fresh.clone()], "b", "f"),
        plain(vec![t.draft().key("k"), first.clone()]),
    ];
    let expected = [
        exists.clone(),
        exists,
        Ok(vec![Enqueued::Created(fresh.id)]),
        Ok(vec![Enqueued::Exists(fresh.id), Enqueued::Exists(first.id)]),
    ];
    assert_eq!(t.enqueue(batch).await.expect("enqueue"), expected);
    assert_eq!(t.submit(t.draft().key("k")).await, Enqueued::Exists(fresh.id), "the new one holds the key");
    assert_eq!(count(t).await, 2);
    t.end(success(&t.take_one(replica).await)).await;
    t.accept(t.draft().key("k")).await;
}

pub(super) async fn a_batch_whose_answer_was_lost_is_answered_with_its_runs(t: &Fixture) {
    let drafts: Vec<Draft> = (0..4).map(|_| t.draft()).collect();
    let one = |place: usize| vec![drafts[place].clone()];
    let batch = || vec![plain(one(0)), with_key(one(1), "a", "f"), plain(one(2))];
    t.enqueue(batch()).await.expect("enqueue");
    let mut again = batch();
    again.extend([plain(one(3)), plain(one(3))]);
    let exists = |place: usize| Ok(vec![Enqueued::Exists(drafts[place].id)]);
    let expected = [exists(0), exists(1), exists(2), Ok(vec![Enqueued::Created(drafts[3].id)]), exists(3)];
    assert_eq!(t.enqueue(again).await.expect("enqueue"), expected);
    assert_eq!(count(t).await, 4);
}

pub(super) async fn batches_with_the_same_keys_from_many_sides_at_once_agree(t: &Fixture) {
    const KEYS: usize = 5;
    let sides: Vec<Vec<Enqueue>> = (0..12)
        .map(|side| {
            // Each side has the keys in another order.
            let places = (0..KEYS).map(|place| if side % 2 == 0 { place } else { KEYS - 1 - place });
            let request = |place| match (place + side / 2) % 3 {
                0 => plain(vec![t.draft().key(&format!("u {place}"))]),
                1 => with_key(vec![t.draft().key(&format!("u {place}"))], &format!("i {side} {place}"), "f"),
                _ => with_key(vec![t.draft()], &format!("i {place}"), "f"),
            };
            places.map(request).collect()
        })
        .collect();
    let named = |request: &Enqueue| match &request.runs[0].spec.unique_key {
        Some(unique) => unique.clone(),
        None => request.idempotency.as_ref().expect("one of both").key.clone(),
    };
    let names: BTreeMap<RunId, String> =
        sides.iter().flatten().map(|request| (request.runs[0].id, named(request))).collect();
    let left = std::sync::Mutex::new(sides.clone());
    let answers = t
        .at_once(sides.len(), |store| {
            let batch = left.lock().expect("unpoisoned").pop().expect("one each");
            async move {
                let places: Vec<RunId> = batch.iter().map(|request| request.runs[0].id).collect();
                (places, store.enqueue(batch).await.expect("enqueue"))
            }
        })
        .await;
    let mut by_name: BTreeMap<&str, BTreeSet<RunId>> = BTreeMap::new();
    for (asked, answers) in &answers {
        for (asked, answer) in asked.iter().zip(answers) {
            let answered = answer.as_ref().expect("accepted")[0].id();
            assert_eq!(names[&answered], names[asked], "the answer of a key is a run with that key");
            by_name.entry(&names[asked]).or_default().insert(answered);
        }
    }
    assert_eq!(by_name.len(), 2 * KEYS);
    assert!(by_name.values().all(|runs| runs.len() == 1), "{by_name:?}");
    assert_eq!(count(t).await, 2 * KEYS);
}

fn plain(drafts: Vec<Draft>) -> Enqueue {
    Enqueue { runs: drafts.into_iter().map(Draft::done).collect(), idempotency: None }
}

fn with_key(drafts: Vec<Draft>, key: &str, fingerprint: &str) -> Enqueue {
    let idempotency = Idempotency { key: key.to_string(), fingerprint: fingerprint.to_string() };
    Enqueue { runs: drafts.into_iter().map(Draft::done).collect(), idempotency: Some(idempotency) }
}

async fn count(t: &Fixture) -> usize {
    t.runs(RunFilter { limit: 1000, ..RunFilter::default() }).await.expect("runs").items.len()
}
