use super::build::{failure, retry, success};
use super::fixture::{Fixture, HOUR, MOMENT};
use super::steps::result;
use crate::{LIST_BYTES, RunFilter};
use everbeat_model::run::Kind;
use everbeat_model::{Json, Next, Run, RunId, RunState};
use std::time::Duration;

pub(super) async fn lists_are_newest_first_and_page_without_repeat(t: &Fixture) {
    let mut expected = t.accept_many(23).await;
    expected.reverse();
    let mut seen: Vec<RunId> = Vec::new();
    loop {
        let page = list(t, RunFilter { before: seen.last().copied(), limit: 5, ..RunFilter::default() }).await;
        assert!(page.len() <= 5);
        if page.is_empty() {
            break;
        }
        seen.extend(page);
        t.accept(t.draft()).await;
    }
    assert_eq!(seen, expected, "runs that come meanwhile do not shift the pages");
    assert!(list(t, RunFilter::default()).await.is_empty(), "a limit of nothing gives nothing");
}

pub(super) async fn each_filter_narrows_the_list(t: &Fixture) {
    let task = t.accept(t.draft().task("mail")).await;
    let queue = t.accept(t.draft().queue("bulk")).await;
    let kind = t.accept(t.draft().kind(Kind::Job)).await;
    let state = t.accept(t.draft().far_off()).await;
    let all = || RunFilter { limit: 100, ..RunFilter::default() };
    assert_eq!(list(t, all()).await, [state, kind, queue, task]);
    assert_eq!(list(t, RunFilter { task: Some("mail".to_string()), ..all() }).await, [task]);
    assert_eq!(list(t, RunFilter { queue: Some("bulk".to_string()), ..all() }).await, [queue]);
    assert_eq!(list(t, RunFilter { kind: Some(Kind::Job), ..all() }).await, [kind]);
    assert_eq!(list(t, RunFilter { state: Some(RunState::Scheduled), ..all() }).await, [state]);
    assert_eq!(list(t, RunFilter { before: Some(kind), ..all() }).await, [queue, task]);
    assert!(list(t, RunFilter { task: Some("MAIL".to_string()), ..all() }).await.is_empty());
    assert!(list(t, RunFilter { task: Some("m%".to_string()), ..all() }).await.is_empty());
}

pub(super) async fn filters_narrow_together(t: &Fixture) {
    let mut expected = Vec::new();
    for place in 0..24 {
        let (task, queue) = (["mail", "work"][place % 2], ["a", "b", "c"][place % 3]);
        let draft = t.draft().task(task).queue(queue);
        let id = t.accept(if place % 4 < 2 { draft } else { draft.far_off() }).await;
        if task == "mail" && queue == "b" && place % 4 < 2 {
            expected.insert(0, id);
        }
    }
    assert_eq!(expected.len(), 2, "places 4 and 16");
    let filter = RunFilter {
        state: Some(RunState::Ready),
        task: Some("mail".to_string()),
        queue: Some("b".to_string()),
        kind: Some(Kind::Task),
        schedule: None,
        before: None,
        limit: 100,
    };
    assert_eq!(list(t, filter.clone()).await, expected);
    assert_eq!(list(t, RunFilter { limit: 1, ..filter.clone() }).await, expected[..1]);
    assert_eq!(list(t, RunFilter { before: Some(expected[0]), ..filter }).await, expected[1..]);
}

pub(super) async fn a_list_finds_runs_in_every_state(t: &Fixture) {
    let replica = t.replica().await;
    t.accept_many(4).await;
    let c = t.take(replica, 4).await;
    t.end(success(&c[0])).await;
    t.end(failure(&c[1])).await;
    t.end(retry(&c[2], Next::After(HOUR))).await;
    let ready = t.accept(t.draft()).await;
    let cancelled = t.accept(t.draft()).await;
    t.cancel(cancelled).await.expect("cancel");
    let run = |place: usize| c[place].lease.run_id;
    for (state, expected) in [
        (RunState::Succeeded, run(0)),
        (RunState::Failed, run(1)),
        (RunState::Scheduled, run(2)),
        (RunState::Running, run(3)),
        (RunState::Ready, ready),
        (RunState::Cancelled, cancelled),
    ] {
        let found =
            t.runs(RunFilter { state: Some(state), limit: 10, ..RunFilter::default() }).await.expect("runs").items;
        assert_eq!(found.iter().map(|run| run.id).collect::<Vec<_>>(), [expected], "{state:?}");
        assert_eq!(found[0], t.look(expected).await, "a list shows a run as it shows alone");
    }
    let all: Vec<Run> = t.runs(RunFilter { limit: 10, ..RunFilter::default() }).await.expect("runs").items;
    assert_eq!(all.len(), 6);
    for run in all {
        assert_eq!(run, t.look(run.id).await);
    }
}

pub(super) async fn a_lease_index_pages_in_order_of_run_id(t: &Fixture) {
    let (mine, other) = (t.replica().await, t.replica().await);
    t.accept_many(20).await;
    let mut expected = Vec::new();
    for _ in 0..10 {
        expected.push(t.take_one(mine).await.lease.shown());
        t.take_one(other).await;
    }
    let mut seen = Vec::new();
    loop {
        let after = seen.last().map(|shown: &everbeat_model::lease::Shown| shown.run_id);
        let page = t.lease_index(mine, after, 4).await.expect("lease index");
        assert!(page.len() <= 4);
        if page.is_empty() {
            break;
        }
        seen.extend(page);
    }
    assert_eq!(seen, expected);
    assert_eq!(t.lease_index(t.new_replica().id, None, 4).await.expect("lease index"), []);
}

pub(super) async fn finished_names_what_is_over_in_the_order_given(t: &Fixture) {
    let replica = t.replica().await;
    t.accept_many(5).await;
    let c = t.take(replica, 5).await;
    let run = |place: usize| c[place].lease.run_id;
    t.end(success(&c[0])).await;
    t.end(failure(&c[1])).await;
    t.end(retry(&c[2], Next::Ready)).await;
    t.end(retry(&c[3], Next::After(HOUR))).await;
    let cancelled = t.accept(t.draft()).await;
    t.cancel(cancelled).await.expect("cancel");
    let unknown = t.draft().id;
    let all = vec![unknown, run(4), run(1), run(3), cancelled, run(2), run(0), run(1)];
    let over = t.finished(all.clone()).await.expect("finished");
    assert_eq!(over, [unknown, run(1), cancelled, run(0), run(1)], "ready, scheduled and running ones are not");
    t.reopen(run(1), 1).await.expect("reopen");
    assert_eq!(t.finished(all.clone()).await.expect("finished"), [unknown, cancelled, run(0)]);
    t.advance(MOMENT).await;
    t.forget_runs(Duration::ZERO, 100).await.expect("forget");
    assert_eq!(t.store.run(run(0)).await.expect("run"), None);
    assert_eq!(t.finished(all).await.expect("finished"), [unknown, cancelled, run(0)], "forgotten ones still are");
    assert_eq!(t.finished(Vec::new()).await.expect("finished"), []);
}

pub(super) async fn thousands_of_runs_are_asked_about_at_once(t: &Fixture) {
    let replica = t.replica().await;
    let runs = t.accept_many(5000).await;
    let ended: Vec<_> = t.take(replica, 100).await.iter().map(success).collect();
    t.settle(ended).await.expect("settle");
    let (over, open) = runs.split_at(100);
    assert_eq!(t.finished(runs.clone()).await.expect("finished"), over);
    assert_eq!(t.finished(open.to_vec()).await.expect("finished"), []);
    let unknown: Vec<RunId> = (0..5000).map(|_| t.draft().id).collect();
    assert_eq!(t.finished(unknown.clone()).await.expect("finished"), unknown);
}

pub(super) async fn a_list_of_large_runs_ends_early_and_goes_on(t: &Fixture) {
    let large = Json::of(&"x".repeat(3 << 20));
    let mut expected = Vec::new();
    for _ in 0..11 {
        let mut draft = t.draft();
        draft.spec.input = large.clone();
        expected.push(t.accept(draft).await);
    }
    expected.reverse();
    let replica = t.replica().await;
    let ended: Vec<_> = t.take(replica, 4).await.iter().map(|claimed| result(claimed, &large.value())).collect();
    t.settle(ended).await.expect("settle");
    let mut seen: Vec<RunId> = Vec::new();
    loop {
        let filter = RunFilter { before: seen.last().copied(), limit: 100, ..RunFilter::default() };
        let part = t.runs(filter).await.expect("runs");
        let bytes: usize = part.items.iter().map(Run::bytes).sum();
        let last = part.items.last().map_or(0, Run::bytes);
        assert!(bytes - last < LIST_BYTES && (!part.cut_short || bytes >= LIST_BYTES), "{bytes}, {}", part.cut_short);
        seen.extend(part.items.iter().map(|run| run.id));
        if !part.cut_short {
            break;
        }
    }
    assert_eq!(seen, expected);
}

async fn list(t: &Fixture, filter: RunFilter) -> Vec<RunId> {
    t.runs(filter).await.expect("runs").items.into_iter().map(|run| run.id).collect()
}
