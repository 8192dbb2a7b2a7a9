use super::build::{ended, failure, rescue, retry, success};
use super::fixture::Fixture;
use super::schedule_steps::{hourly, scheduled};
use crate::{Cancelled, LookedAt, Reopened};
use everbeat_model::schedule::{Decision, Situation, Wish};
use everbeat_model::{Ending, Next, Outcome, Reason, RunId, RunState, ScheduleId, Settled, Settlement};
use serde_json::json;
use std::time::Duration;

/// A schedule of which one run has begun and another waits; nothing is noted.
async fn busy(t: &Fixture, name: &str) -> (ScheduleId, RunId, RunId) {
    let id = t.plan(scheduled(name, json!({}))).await;
    let (first, second) = (t.trigger(id).await.0, t.trigger(id).await.0);
    assert!(t.settle_down().await.is_empty());
    (id, first, second)
}

async fn noted(t: &Fixture, id: ScheduleId, first: RunId, second: RunId) {
    assert_eq!(t.due_ids().await, [id], "the end is noted");
    let looked = t.look_for(id, Wish::Look { clock: false }).await;
    assert_eq!(looked.begun, [second]);
    assert_eq!(t.due_ids().await, [], "the note is taken");
    assert!(t.state(first).await.finished());
}

pub(super) async fn each_way_to_finish_a_run_notes_its_schedule(t: &Fixture) {
    let cancelled = |settlement: Settlement| Settlement { next: Next::Finish(RunState::Cancelled), ..settlement };
    let (id, first, second) = busy(t, "success").await;
    t.succeed(first).await;
    noted(t, id, first, second).await;
    let (id, first, second) = busy(t, "failure").await;
    let claimed = t.lease(first).await;
    assert_eq!(t.end(failure(&claimed)).await, Settled::Done);
    noted(t, id, first, second).await;
    let (id, first, second) = busy(t, "cancelled-while-ready").await;
    assert_eq!(t.cancel(first).await.expect("cancel"), Cancelled::Ended);
    noted(t, id, first, second).await;
    let (id, first, second) = busy(t, "cancelled-while-running").await;
    let claimed = t.lease(first).await;
    assert_eq!(t.cancel(first).await.expect("cancel"), Cancelled::Asked);
    assert_eq!(t.due_ids().await, [], "it is not over yet");
    let ending = Ending::because(Outcome::Cancelled, Reason::Cancelled, "somebody asked");
    assert_eq!(t.end(cancelled(ended(&claimed, ending, Next::Ready))).await, Settled::Done);
    noted(t, id, first, second).await;
    let (id, first, second) = busy(t, "lost-for-good").await;
    let claimed = t.lease(first).await;
    t.kill(claimed.lease.replica_id).await;
    let lost = Settlement { next: Next::Finish(RunState::Failed), ..rescue(&t.held_of(first).await) };
    assert_eq!(t.end(lost).await, Settled::Done);
    noted(t, id, first, second).await;
    t.sound().await;
}

pub(super) async fn what_is_tried_again_notes_nothing(t: &Fixture) {
    let (id, first, _) = busy(t, "s").await;
    let claimed = t.lease(first).await;
    t.end(retry(&claimed, Next::Ready)).await;
    assert_eq!(t.due_ids().await, []);
    let again = t.running_again_as(&claimed).await;
    t.end(retry(&again, Next::After(Duration::from_secs(3600)))).await;
    assert_eq!(t.due_ids().await, []);
    assert_eq!(t.of_name("s").await.unfinished, 1);
    t.cancel(first).await.expect("cancel");
    assert_eq!(t.due_ids().await, [id], "one that waits for its time is over at once");
}

pub(super) async fn a_batch_of_ends_notes_each_schedule(t: &Fixture) {
    let (one, first, _) = busy(t, "one").await;
    let (two, second, _) = busy(t, "two").await;
    let wide = t.plan(scheduled("wide", json!({"overlap": "allow"}))).await;
    let (third, fourth) = (t.trigger(wide).await.0, t.trigger(wide).await.0);
    t.settle_down().await;
    let plain = t.accept(t.draft()).await;
    let mut all = Vec::new();
    for run in [first, second, third, fourth, plain] {
        all.push(success(&t.lease(run).await));
    }
    assert_eq!(t.settle(all).await.expect("settle"), [Settled::Done; 5]);
    assert_eq!(t.due_ids().await, [one, two, wide], "each once");
    assert_eq!(t.settle_down().await.len(), 2);
    assert_eq!(t.of_name("wide").await.unfinished, 0);
}

pub(super) async fn a_run_that_is_opened_again_counts_again(t: &Fixture) {
    let id = t.plan(scheduled("s", json!({}))).await;
    let (first, _) = t.trigger(id).await;
    t.settle_down().await;
    let claimed = t.lease(first).await;
    t.end(failure(&claimed)).await;
    t.settle_down().await;
    assert_eq!(t.of_name("s").await.unfinished, 0);
    assert_eq!(t.reopen(first, 1).await.expect("reopen"), Reopened::Ready);
    assert_eq!(t.of_name("s").await.unfinished, 1);
    let (second, looked) = t.trigger(id).await;
    assert_eq!(looked.waiting, [second], "the first one is at it again");
    t.settle_down().await;
    let again = t.running_again_as(&claimed).await;
    t.end(success(&again)).await;
    assert_eq!(t.settle_down().await, [second]);
    // Opened again before anybody has looked.
    let claimed = t.lease(second).await;
    t.end(failure(&claimed)).await;
    assert_eq!(t.reopen(second, 1).await.expect("reopen"), Reopened::Ready);
    assert!(t.settle_down().await.is_empty());
    assert_eq!(t.of_name("s").await.unfinished, 1);
}

pub(super) async fn a_run_that_was_forgotten_is_over(t: &Fixture) {
    let (id, first, second) = busy(t, "s").await;
    t.succeed(first).await;
    assert!(t.forget(first).await.expect("forget"));
    let stands = t.of_name("s").await;
    assert_eq!((stands.unfinished, stands.last_run), (0, None));
    assert_eq!(t.settle_down().await, [second]);
    t.succeed(second).await;
    t.settle_down().await;
    t.advance(Duration::from_millis(20)).await;
    assert_eq!(t.forget_runs(Duration::ZERO, 100).await.expect("forget"), 1);
    assert_eq!(t.settle_down().await, []);
    let (third, looked) = t.trigger(id).await;
    assert_eq!(looked.begun, [third]);
}

pub(super) async fn an_end_whose_note_was_lost_is_found(t: &Fixture) {
    fn ignores(situation: &Situation) -> Decision {
        Decision { next_due: situation.next_due, ..Decision::default() }
    }
    let (id, first, second) = busy(t, "s").await;
    let (other, forgotten, third) = busy(t, "other").await;
    let net = |limit| async move { t.note_stranded_schedules(limit).await.expect("note stranded") };
    assert_eq!(net(10).await, 0);
    t.succeed(first).await;
    t.succeed(forgotten).await;
    for id in [id, other] {
        assert!(matches!(t.decide(id, ignores).await, LookedAt::Done(_)));
    }
    t.forget(forgotten).await.expect("forget");
    assert_eq!(t.due_ids().await, []);
    assert_eq!((net(1).await, t.due_ids().await.len()), (1, 1), "no more than asked for");
    assert_eq!(net(10).await, 2);
    assert_eq!(t.settle_down().await, [second, third]);
    assert_eq!(net(10).await, 0);
}

pub(super) async fn an_end_at_the_moment_of_a_look_is_never_missed(t: &Fixture) {
    let id = t.plan(scheduled("s", hourly())).await;
    let mut run = t.glance_begins(id).await;
    for _ in 0..20 {
        let (next, _) = t.trigger(id).await;
        let claimed = t.lease(run).await;
        let sides = t.at_once(4, |store| {
            let (scheduler, settlement) = (t.scheduler(), success(&claimed));
            async move {
                let look = store.look_at_schedule(id, Wish::Look { clock: true }, scheduler);
                let (looked, settled) = tokio::join!(look, store.settle(vec![settlement]));
                (looked.expect("look"), settled.expect("settle"))
            }
        });
        sides.await;
        t.settle_down().await;
        assert_eq!(t.state(next).await, RunState::Ready);
        run = next;
    }
    t.sound().await;
}
