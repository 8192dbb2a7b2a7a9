use super::build::{retry, success};
use super::fixture::{Fixture, HOUR};
use crate::{Cancelled, Enqueued};
use everbeat_model::{Ending, Next, Outcome, Reason, RunState, Settled, Settlement};

pub(super) async fn a_ready_or_scheduled_run_is_cancelled_at_once(t: &Fixture) {
    let tried = t.running().await;
    t.end(retry(&tried, Next::After(HOUR))).await;
    let ready = t.accept(t.draft()).await;
    let scheduled = t.accept(t.draft().far_off()).await;
    for (id, attempt) in [(ready, 0), (scheduled, 0), (tried.lease.run_id, 1)] {
        assert_eq!(t.cancel(id).await.expect("cancel"), Cancelled::Ended);
        let run = t.look(id).await;
        assert_eq!((run.state, run.attempt), (RunState::Cancelled, attempt));
        assert!(run.finished_at > Some(run.created_at));
        assert_eq!((run.result, run.replica_id), (None, None));
    }
    assert_eq!(t.attempts(ready).await.expect("attempts"), []);
    assert_eq!(t.attempts(tried.lease.run_id).await.expect("attempts").len(), 1, "what was tried stays on record");
}

pub(super) async fn a_running_run_is_asked_and_its_owner_told(t: &Fixture) {
    let claimed = t.running().await;
    let (id, replica) = (claimed.lease.run_id, claimed.lease.replica_id);
    t.accept(t.draft()).await;
    t.take_one(replica).await;
    assert_eq!(t.cancel_asked(replica).await.expect("cancel asked"), []);
    assert_eq!(t.cancel(id).await.expect("cancel"), Cancelled::Asked);
    let asked_at = t.look(id).await.cancel_requested_at;
    assert!(asked_at > Some(claimed.lease.granted_at));
    assert_eq!(t.cancel(id).await.expect("cancel"), Cancelled::Asked);
    assert_eq!(t.look(id).await.cancel_requested_at, asked_at, "the first request counts");
    assert_eq!(t.cancel_asked(replica).await.expect("cancel asked"), [claimed.lease.shown()]);
    let other = t.replica().await;
    assert_eq!(t.cancel_asked(other).await.expect("cancel asked"), []);
    assert!(t.held_of(id).await.cancel_asked);
    assert_eq!(t.state(id).await, RunState::Running, "it runs until its attempt ends");
    assert_eq!(t.end(cancelled(retry(&claimed, Next::Ready))).await, Settled::Done);
    assert_eq!(t.state(id).await, RunState::Cancelled);
    assert_eq!(t.cancel_asked(replica).await.expect("cancel asked"), []);
}

pub(super) async fn a_cancel_that_comes_before_a_requeue_is_answered_cancel_asked(t: &Fixture) {
    for next in [Next::Ready, Next::After(HOUR)] {
        let claimed = t.running().await;
        let id = claimed.lease.run_id;
        t.cancel(id).await.expect("cancel");
        let before = t.look(id).await;
        assert_eq!(t.end(retry(&claimed, next)).await, Settled::CancelAsked);
        assert_eq!(t.look(id).await, before, "nothing was changed");
        assert_eq!(t.end(cancelled(retry(&claimed, next))).await, Settled::Done);
        assert_eq!(t.state(id).await, RunState::Cancelled);
        assert_eq!(t.attempts(id).await.expect("attempts").len(), 1);
    }
}

pub(super) async fn a_cancel_does_not_stop_a_success(t: &Fixture) {
    let claimed = t.running().await;
    t.cancel(claimed.lease.run_id).await.expect("cancel");
    assert_eq!(t.end(success(&claimed)).await, Settled::Done);
    assert_eq!(t.state(claimed.lease.run_id).await, RunState::Succeeded);
}

pub(super) async fn a_cancel_of_a_finished_or_unknown_run_says_so(t: &Fixture) {
    let claimed = t.running().await;
    t.end(success(&claimed)).await;
    let before = t.look(claimed.lease.run_id).await;
    assert_eq!(t.cancel(claimed.lease.run_id).await.expect("cancel"), Cancelled::AlreadyFinished);
    assert_eq!(t.look(claimed.lease.run_id).await, before);
    let ready = t.accept(t.draft()).await;
    t.cancel(ready).await.expect("cancel");
    assert_eq!(t.cancel(ready).await.expect("cancel"), Cancelled::AlreadyFinished);
    assert_eq!(t.cancel(t.draft().id).await.expect("cancel"), Cancelled::NotFound);
}

pub(super) async fn a_cancelled_run_frees_its_unique_key(t: &Fixture) {
    for draft in [t.draft(), t.draft().far_off()] {
        let first = t.accept(draft.key("k")).await;
        assert_eq!(t.submit(t.draft().key("k")).await, Enqueued::Exists(first));
        t.cancel(first).await.expect("cancel");
        let second = t.accept(t.draft().key("k")).await;
        t.cancel(second).await.expect("cancel");
    }
}

pub(super) async fn a_cancelled_run_is_not_claimed(t: &Fixture) {
    let replica = t.replica().await;
    let ready = t.accept(t.draft()).await;
    let claimed = t.take_one(replica).await;
    t.end(retry(&claimed, Next::After(std::time::Duration::ZERO))).await;
    let waiting = t.accept(t.draft()).await;
    t.cancel(ready).await.expect("cancel");
    t.cancel(waiting).await.expect("cancel");
    assert_eq!(t.promote(10).await.expect("promote").moved, 0);
    assert!(t.take(replica, 10).await.is_empty());
}

pub(super) async fn a_cancel_and_a_requeue_at_once_never_strand_the_run(t: &Fixture) {
    for _ in 0..25 {
        let claimed = t.running().await;
        let id = claimed.lease.run_id;
        let settle = t.settle(vec![retry(&claimed, Next::Ready)]);
        let (asked, settled) = tokio::join!(t.cancel(id), settle);
        match (asked.expect("cancel"), settled.expect("settle")[0]) {
            (Cancelled::Ended, Settled::Done) => assert_eq!(t.state(id).await, RunState::Cancelled),
            (Cancelled::Asked, Settled::CancelAsked) => {
                assert_eq!(t.end(cancelled(retry(&claimed, Next::Ready))).await, Settled::Done);
            }
            other => panic!("a cancel and a requeue at once were answered {other:?}"),
        }
        assert_eq!(t.state(id).await, RunState::Cancelled);
    }
}

/// The same ending, decided anew with the cancel.
fn cancelled(settlement: Settlement) -> Settlement {
    let ending = Ending::because(Outcome::Cancelled, Reason::Cancelled, "cancelled on request");
    Settlement { ending, next: Next::Finish(RunState::Cancelled), ..settlement }
}
