use super::build::{failure, retry, success};
use super::fixture::Fixture;
use crate::Reopened;
use everbeat_model::{Next, RunState, Settlement, Standing};

pub(super) async fn a_reopened_run_keeps_its_history_and_opens_once(t: &Fixture) {
    let claimed = t.running().await;
    let (id, replica) = (claimed.lease.run_id, claimed.lease.replica_id);
    t.end(failure(&claimed)).await;
    let before = t.attempts(id).await.expect("attempts");
    assert_eq!(t.reopen(id, 7).await.expect("reopen"), Reopened::NotFinished, "that was not its last attempt");
    assert_eq!(t.reopen(id, 1).await.expect("reopen"), Reopened::Ready);
    assert_eq!(t.reopen(id, 1).await.expect("reopen"), Reopened::NotFinished, "it is open");
    let run = t.look(id).await;
    assert_eq!((run.state, run.finished_at, run.result), (RunState::Ready, None, None));
    assert_eq!(t.attempts(id).await.expect("attempts"), before);
    let second = t.take_one(replica).await;
    t.end(success(&second)).await;
    assert_eq!(t.reopen(id, 1).await.expect("reopen"), Reopened::NotFinished, "another opening came between");
    let attempts = t.attempts(id).await.expect("attempts");
    assert_eq!((attempts.len(), &attempts[0]), (2, &before[0]));
    assert_eq!(t.reopen(id, 2).await.expect("reopen"), Reopened::Ready, "a success can be done again");
}

pub(super) async fn a_reopened_run_starts_its_tries_anew_and_its_fence_goes_on(t: &Fixture) {
    let claimed = t.running().await;
    let standing = Standing { attempt: 1, tries: 3, losses: 2 };
    t.end(Settlement { standing, ..failure(&claimed) }).await;
    t.reopen(claimed.lease.run_id, 1).await.expect("reopen");
    assert_eq!(t.look(claimed.lease.run_id).await.attempt, 1);
    let second = t.take_one(claimed.lease.replica_id).await;
    assert_eq!(second.standing, Standing { attempt: 2, tries: 0, losses: 0 });
    assert_eq!(second.lease.attempt, 2);
}

pub(super) async fn a_run_cancelled_before_it_ran_can_be_reopened(t: &Fixture) {
    let id = t.accept(t.draft()).await;
    t.cancel(id).await.expect("cancel");
    assert_eq!(t.reopen(id, 0).await.expect("reopen"), Reopened::Ready);
    let tried = t.running_again(id).await;
    t.end(retry(&tried, Next::Ready)).await;
    t.cancel(id).await.expect("cancel");
    assert_eq!(t.reopen(id, 0).await.expect("reopen"), Reopened::NotFinished);
    assert_eq!(t.reopen(id, 1).await.expect("reopen"), Reopened::Ready, "cancelled between two attempts");
    assert_eq!(t.running_again(id).await.lease.attempt, 2);
}

pub(super) async fn of_many_reopens_at_once_one_opens(t: &Fixture) {
    let claimed = t.running().await;
    let id = claimed.lease.run_id;
    t.end(failure(&claimed)).await;
    let answers = t.at_once(12, |store| async move { store.reopen(id, 1).await.expect("reopen") }).await;
    assert_eq!(answers.iter().filter(|answer| **answer == Reopened::Ready).count(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == Reopened::NotFinished).count(), 11);
    assert_eq!(t.take(claimed.lease.replica_id, 10).await.len(), 1);
}

pub(super) async fn an_unfinished_or_unknown_run_is_not_reopened(t: &Fixture) {
    let ready = t.accept(t.draft()).await;
    let scheduled = t.accept(t.draft().far_off()).await;
    assert_eq!(t.reopen(ready, 0).await.expect("reopen"), Reopened::NotFinished);
    assert_eq!(t.reopen(scheduled, 0).await.expect("reopen"), Reopened::NotFinished);
    let claimed = t.running_again(ready).await;
    assert_eq!(t.reopen(ready, claimed.lease.attempt).await.expect("reopen"), Reopened::NotFinished);
    assert_eq!(t.reopen(t.draft().id, 0).await.expect("reopen"), Reopened::NotFound);
}

pub(super) async fn a_reopened_run_takes_its_unique_key_back_or_is_told_who_has_it(t: &Fixture) {
    let first = t.accept(t.draft().key("k")).await;
    let claimed = t.running_again(first).await;
    t.end(failure(&claimed)).await;
    let second = t.accept(t.draft().key("k")).await;
    assert_eq!(t.reopen(first, 1).await.expect("reopen"), Reopened::KeyTaken(second));
    assert_eq!(t.state(first).await, RunState::Failed);
    t.cancel(second).await.expect("cancel");
    assert_eq!(t.reopen(first, 1).await.expect("reopen"), Reopened::Ready);
    assert_eq!(t.submit(t.draft().key("k")).await.id(), first, "the key holds again");
    assert_eq!(t.reopen(second, 0).await.expect("reopen"), Reopened::KeyTaken(first));
}
