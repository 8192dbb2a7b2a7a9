use super::build::{ended, failure, forged, json, rescue, retry, success, with_token};
use super::fixture::{Fixture, HOUR};
use crate::Reopened;
use everbeat_model::lease::Shown;
use everbeat_model::{Ending, Next, Outcome, Reason, RunState, Settled, Settlement, Standing, StoreTime, WorkerId};
use std::time::Duration;

pub(super) async fn a_success_is_kept(t: &Fixture) {
    let claimed = t.running().await;
    let ending = Ending::succeeded(json("{\"sum\":42}"));
    let settled = t.end(ended(&claimed, ending, Next::Finish(RunState::Succeeded))).await;
    assert_eq!(settled, Settled::Done);
    let run = t.look(claimed.lease.run_id).await;
    assert_eq!((run.state, run.attempt), (RunState::Succeeded, 1));
    assert_eq!((run.result, run.error), (Some(json("{\"sum\":42}")), None));
    assert_eq!(run.started_at, Some(claimed.lease.granted_at));
    assert_eq!(run.replica_id, Some(claimed.lease.replica_id));
    assert!(run.finished_at > run.started_at);
    assert!(t.take(claimed.lease.replica_id, 10).await.is_empty());
}

pub(super) async fn a_failure_for_good_keeps_its_error(t: &Fixture) {
    let claimed = t.running().await;
    assert_eq!(t.end(failure(&claimed)).await, Settled::Done);
    let run = t.look(claimed.lease.run_id).await;
    assert_eq!((run.state, run.result), (RunState::Failed, None));
    assert_eq!(run.error, Ending::failed("broken", true).error);
}

pub(super) async fn each_outcome_is_kept_in_the_history(t: &Fixture) {
    let replica = t.replica().await;
    let id = t.accept(t.draft()).await;
    for (place, outcome) in Outcome::ALL.into_iter().enumerate() {
        let claimed = t.take_one(replica).await;
        let ending = Ending::because(outcome, Reason::Failed, outcome.as_str());
        let settled = t.end(ended(&claimed, ending.clone(), Next::Ready)).await;
        assert_eq!(settled, Settled::Done);
        let attempts = t.attempts(id).await.expect("attempts");
        assert_eq!(attempts.len(), place + 1);
        assert_eq!((attempts[place].outcome, &attempts[place].error), (Some(outcome), &ending.error));
    }
}

pub(super) async fn a_zombie_cannot_settle_after_its_lease_passed_on(t: &Fixture) {
    let zombie = t.running().await;
    let id = zombie.lease.run_id;
    t.kill(zombie.lease.replica_id).await;
    assert_eq!(t.end(rescue(&t.held_of(id).await)).await, Settled::Done);
    assert_eq!(t.end(success(&zombie)).await, Settled::Fenced, "while the run is ready");
    let heir = t.replica().await;
    let second = t.take_one(heir).await;
    assert_eq!(second.lease.attempt, 2);
    for settlement in [success(&zombie), failure(&zombie), retry(&zombie, Next::Ready)] {
        assert_eq!(t.end(settlement).await, Settled::Fenced, "while another performs it");
    }
    assert_eq!(t.state(id).await, RunState::Running);
    assert_eq!(t.end(success(&second)).await, Settled::Done);
    assert_eq!(t.end(failure(&zombie)).await, Settled::Fenced, "after another has ended it");
    assert_eq!(t.state(id).await, RunState::Succeeded);
}

pub(super) async fn a_wrong_token_changes_nothing(t: &Fixture) {
    let claimed = t.running().await;
    let before = t.look(claimed.lease.run_id).await;
    for settlement in
        [success(&claimed), failure(&claimed), retry(&claimed, Next::Ready), retry(&claimed, Next::After(HOUR))]
    {
        assert_eq!(t.end(with_token(settlement, forged())).await, Settled::Fenced);
    }
    assert_eq!(t.look(claimed.lease.run_id).await, before);
    assert_eq!(t.end(success(&claimed)).await, Settled::Done, "the lease still stands");
}

pub(super) async fn the_attempt_number_is_no_proof(t: &Fixture) {
    let claimed = t.running().await;
    let settlement = success(&claimed);
    let wrong_number = Settlement { shown: Shown { attempt: 9, ..settlement.shown }, ..settlement };
    assert_eq!(t.end(with_token(wrong_number.clone(), forged())).await, Settled::Fenced);
    assert_eq!(t.end(wrong_number).await, Settled::Done, "the token alone decides");
    let attempts = t.attempts(claimed.lease.run_id).await.expect("attempts");
    assert_eq!(attempts[0].attempt, 1, "the history has the number of the lease");
}

pub(super) async fn the_fence_rises_whatever_number_a_settlement_carries(t: &Fixture) {
    let id = t.accept(t.draft()).await;
    for (attempt, next) in (1..).zip([Next::Ready, Next::After(Duration::ZERO), Next::Finish(RunState::Failed)]) {
        let claimed = t.running_again(id).await;
        assert_eq!(claimed.lease.attempt, attempt);
        let standing = Standing { attempt: 0, ..claimed.standing };
        assert_eq!(t.end(Settlement { standing, ..retry(&claimed, next) }).await, Settled::Done);
        assert_eq!(t.look(id).await.attempt, attempt);
        t.promote(10).await.expect("promote");
    }
    assert_eq!(t.reopen(id, 3).await.expect("reopen"), Reopened::Ready);
    assert_eq!(t.running_again(id).await.lease.attempt, 4);
}

pub(super) async fn a_run_ends_once(t: &Fixture) {
    let claimed = t.running().await;
    assert_eq!(t.end(success(&claimed)).await, Settled::Done);
    let before = t.look(claimed.lease.run_id).await;
    for settlement in [success(&claimed), failure(&claimed), retry(&claimed, Next::Ready)] {
        assert_eq!(t.end(settlement).await, Settled::Fenced);
    }
    assert_eq!(t.look(claimed.lease.run_id).await, before);
    assert_eq!(t.attempts(claimed.lease.run_id).await.expect("attempts").len(), 1);
}

pub(super) async fn of_many_settles_of_one_lease_at_once_one_is_done(t: &Fixture) {
    for next in [Next::Finish(RunState::Failed), Next::Ready, Next::After(HOUR)] {
        let claimed = t.running().await;
        let answers = t
            .at_once(12, |store| {
                let settlement = retry(&claimed, next);
                async move { store.settle(vec![settlement]).await.expect("settle")[0] }
            })
            .await;
        assert_eq!(answers.iter().filter(|settled| **settled == Settled::Done).count(), 1);
        assert_eq!(answers.iter().filter(|settled| **settled == Settled::Fenced).count(), 11);
        assert_eq!(t.attempts(claimed.lease.run_id).await.expect("attempts").len(), 1);
        t.cancel(claimed.lease.run_id).await.expect("cancel");
    }
}

pub(super) async fn one_lease_twice_in_a_batch_is_settled_once(t: &Fixture) {
    let claimed = t.running().await;
    let batch = vec![retry(&claimed, Next::Ready), success(&claimed), failure(&claimed)];
    let answers = t.settle(batch).await.expect("settle");
    assert_eq!(answers, [Settled::Done, Settled::Fenced, Settled::Fenced], "the first one counts");
    assert_eq!(t.state(claimed.lease.run_id).await, RunState::Ready);
    assert_eq!(t.attempts(claimed.lease.run_id).await.expect("attempts").len(), 1);
}

pub(super) async fn a_batch_settle_answers_in_order_with_mixed_fates(t: &Fixture) {
    let replica = t.replica().await;
    t.accept_many(6).await;
    let c = t.take(replica, 6).await;
    t.cancel(c[3].lease.run_id).await.expect("cancel");
    t.end(success(&c[5])).await;
    let batch = vec![
        failure(&c[5]),
        success(&c[4]),
        retry(&c[3], Next::Ready),
        with_token(success(&c[2]), forged()),
        retry(&c[1], Next::After(HOUR)),
        retry(&c[0], Next::Ready),
    ];
    use Settled::{CancelAsked, Done, Fenced};
    assert_eq!(t.settle(batch).await.expect("settle"), [Fenced, Done, CancelAsked, Fenced, Done, Done]);
    let expected = [
        RunState::Ready,
        RunState::Scheduled,
        RunState::Running,
        RunState::Running,
        RunState::Succeeded,
        RunState::Succeeded,
    ];
    for (claimed, expected) in c.iter().zip(expected) {
        assert_eq!(t.state(claimed.lease.run_id).await, expected);
    }
    assert!(t.settle(Vec::new()).await.expect("settle").is_empty());
}

pub(super) async fn a_requeued_run_brings_its_standing_to_the_next_attempt(t: &Fixture) {
    let claimed = t.running().await;
    let standing = Standing { attempt: 1, tries: 1, losses: 1 };
    t.end(Settlement { standing, ..retry(&claimed, Next::Ready) }).await;
    let second = t.take_one(claimed.lease.replica_id).await;
    assert_eq!(second.standing, Standing { attempt: 2, tries: 1, losses: 1 });
    assert_eq!(t.look(second.lease.run_id).await.tries, 1, "what is used up is shown while it runs");
    assert_eq!(t.held_of(claimed.lease.run_id).await.standing, second.standing);
    let standing = Standing { tries: 2, ..second.standing };
    t.end(Settlement { standing, ..retry(&second, Next::After(Duration::ZERO)) }).await;
    assert_eq!(t.promote(10).await.expect("promote").moved, 1);
    let third = t.take_one(claimed.lease.replica_id).await;
    assert_eq!(third.standing, Standing { attempt: 3, tries: 2, losses: 1 }, "also by way of a delay");
}

pub(super) async fn a_delayed_retry_shows_when_it_is_due_and_why_it_failed(t: &Fixture) {
    let claimed = t.running().await;
    t.end(retry(&claimed, Next::After(HOUR))).await;
    let run = t.look(claimed.lease.run_id).await;
    assert_eq!((run.state, run.attempt), (RunState::Scheduled, 1));
    assert_eq!(run.error, Ending::failed("broken", false).error);
    let ended_at = t.attempts(run.id).await.expect("attempts")[0].ended_at.expect("ended");
    assert_eq!(run.run_at, Some(ended_at.plus(HOUR)));
    assert_eq!((run.replica_id, run.started_at, run.finished_at), (None, None, None));
    assert!(t.take(claimed.lease.replica_id, 10).await.is_empty());
}

pub(super) async fn the_history_is_complete_and_ordered(t: &Fixture) {
    let first = t.running().await;
    let (id, replica) = (first.lease.run_id, first.lease.replica_id);
    t.end(retry(&first, Next::Ready)).await;
    let second = t.take_one(replica).await;
    t.end(ended(&second, Ending::because(Outcome::Released, Reason::Draining, "leaving"), Next::Ready)).await;
    let other = t.replica().await;
    let third = t.take_one(other).await;
    let attempts = t.attempts(id).await.expect("attempts");
    assert_eq!(attempts.iter().map(|attempt| attempt.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::Failed), Some(Outcome::Released), None]);
    let replicas: Vec<_> = attempts.iter().map(|attempt| attempt.replica_id).collect();
    assert_eq!(replicas, [replica, replica, other]);
    assert_eq!((attempts[2].started_at, attempts[2].ended_at), (third.lease.granted_at, None));
    assert!(attempts[0].started_at < attempts[0].ended_at.expect("ended"));
    assert!(attempts[0].ended_at.expect("ended") < attempts[1].started_at);
    t.end(success(&third)).await;
    let attempts = t.attempts(id).await.expect("attempts");
    assert_eq!(attempts.len(), 3);
    assert_eq!((attempts[2].outcome, &attempts[2].error), (Some(Outcome::Succeeded), &None));
    assert_eq!(attempts[2].ended_at, t.look(id).await.finished_at);
}

pub(super) async fn a_settled_attempt_keeps_the_heartbeat_its_owner_saw(t: &Fixture) {
    let seen = Some(StoreTime(1_767_225_600_123_456));
    for next in [Next::Finish(RunState::Failed), Next::Ready] {
        for last_heartbeat_at in [seen, None] {
            let claimed = t.running().await;
            let id = claimed.lease.run_id;
            let recorded = t.held_of(id).await.last_heartbeat_at;
            t.end(Settlement { last_heartbeat_at, ..retry(&claimed, next) }).await;
            let kept = t.attempts(id).await.expect("attempts")[0].last_heartbeat_at;
            assert_eq!(kept, last_heartbeat_at.or(Some(recorded)), "else what the lease recorded");
            t.cancel(id).await.expect("cancel");
        }
    }
}

pub(super) async fn was_settled_knows_its_own_token(t: &Fixture) {
    let first = t.running().await;
    let id = first.lease.run_id;
    let ask = async |tokens: &[everbeat_model::Token]| {
        let leases = tokens.iter().map(|token| (id, *token)).collect();
        t.was_settled(leases).await.expect("was settled")
    };
    assert_eq!(ask(&[first.lease.token, forged()]).await, [false, false], "while it runs");
    t.end(retry(&first, Next::Ready)).await;
    let second = t.take_one(first.lease.replica_id).await;
    assert_eq!(ask(&[second.lease.token, first.lease.token]).await, [false, true], "in the order asked");
    t.end(success(&first)).await;
    t.end(retry(&second, Next::Ready)).await;
    let third = t.take_one(first.lease.replica_id).await;
    t.end(success(&third)).await;
    let all = [first.lease.token, forged(), second.lease.token, third.lease.token];
    assert_eq!(ask(&all).await, [true, false, true, true]);
    t.reopen(id, 3).await.expect("reopen");
    assert_eq!(ask(&all).await, [true, false, true, true], "also after it was opened again");
    let stranger = t.draft().id;
    let leases = vec![(stranger, second.lease.token)];
    assert_eq!(t.was_settled(leases).await.expect("was settled"), [false], "a token belongs to its run");
}

pub(super) async fn an_attempt_keeps_the_worker_that_performed_it(t: &Fixture) {
    let first = t.running().await;
    let (id, replica) = (first.lease.run_id, first.lease.replica_id);
    let workers = [t.next_id(), t.next_id(), t.next_id()].map(WorkerId);
    let by = |worker, settlement| Settlement { worker_id: Some(worker), ..settlement };
    t.end(by(workers[0], retry(&first, Next::Ready))).await;
    let verdict = Some(t.verdict_on_run(first.lease.shown(), replica));
    let second = t.take_one(replica).await;
    t.end(Settlement { verdict, ..by(workers[1], retry(&second, Next::Ready)) }).await;
    t.end(retry(&t.take_one(replica).await, Next::Ready)).await;
    t.end(by(workers[2], success(&t.take_one(replica).await))).await;
    let attempts = t.attempts(id).await.expect("attempts");
    let kept: Vec<Option<String>> = attempts.into_iter().map(|attempt| attempt.worker_id).collect();
    let [one, two, last] = workers.map(|worker| Some(worker.to_string()));
    assert_eq!(kept, [one, two, None, last.clone()]);
    assert_eq!(t.look(id).await.worker_id, last, "a finished run shows that of its last attempt");
}
