use super::build::{failure, forged, json, rescue, retry, sign, success};
use super::fixture::Fixture;
use crate::{Renewal, RunFilter, Sign, Signed};
use everbeat_model::lease::Shown;
use everbeat_model::policy::HeartbeatMode;
use everbeat_model::{Json, Next, Policy};

const HEARD: Signed = Signed::Accepted { cancel_asked: false };

pub(super) async fn progress_and_a_checkpoint_show_on_the_run(t: &Fixture) {
    let claimed = t.running().await;
    let id = claimed.lease.run_id;
    assert_eq!(told(t, sign(&claimed, Some("{\"done\":1}"), Some("[7]"))).await, HEARD);
    let run = t.look(id).await;
    assert_eq!((run.progress, run.checkpoint), (Some(json("{\"done\":1}")), Some(json("[7]"))));
    told(t, sign(&claimed, Some("{\"done\":2}"), Some("[8]"))).await;
    t.end(success(&claimed)).await;
    let run = t.look(id).await;
    assert_eq!((run.progress, run.checkpoint), (Some(json("{\"done\":2}")), Some(json("[8]"))), "also when finished");
}

pub(super) async fn a_sign_leaves_alone_what_it_does_not_carry(t: &Fixture) {
    let claimed = t.running().await;
    for (given, kept) in [
        ((Some("1"), None), (Some("1"), None)),
        ((None, Some("2")), (Some("1"), Some("2"))),
        ((None, None), (Some("1"), Some("2"))),
        ((Some("null"), None), (Some("null"), Some("2"))),
    ] {
        assert_eq!(told(t, sign(&claimed, given.0, given.1)).await, HEARD);
        let run = t.look(claimed.lease.run_id).await;
        assert_eq!((run.progress, run.checkpoint), (kept.0.map(json), kept.1.map(json)), "after {given:?}");
    }
}

pub(super) async fn a_checkpoint_reaches_the_next_attempt(t: &Fixture) {
    let first = t.running().await;
    let replica = first.lease.replica_id;
    told(t, sign(&first, None, Some("{\"page\":3}"))).await;
    t.end(retry(&first, Next::Ready)).await;
    let second = t.take_one(replica).await;
    assert_eq!(second.checkpoint, Some(json("{\"page\":3}")));
    t.end(failure(&second)).await;
    t.reopen(first.lease.run_id, 2).await.expect("reopen");
    assert_eq!(t.take_one(replica).await.checkpoint, Some(json("{\"page\":3}")), "also after it was opened again");
    t.accept(t.draft()).await;
    assert_eq!(t.take_one(replica).await.checkpoint, None, "and no other run");
}

pub(super) async fn a_zombie_cannot_sign_after_its_lease_passed_on(t: &Fixture) {
    let zombie = t.running().await;
    let id = zombie.lease.run_id;
    told(t, sign(&zombie, Some("1"), Some("1"))).await;
    t.end(rescue(&t.held_of(id).await)).await;
    let late = || sign(&zombie, Some("666"), Some("666"));
    assert_eq!(told(t, late()).await, Signed::Fenced, "while the run is ready");
    let second = t.take_one(zombie.lease.replica_id).await;
    assert_eq!(told(t, late()).await, Signed::Fenced, "while another attempt runs");
    let forged = Sign { shown: Shown { token: forged(), ..second.lease.shown() }, ..late() };
    assert_eq!(told(t, forged).await, Signed::Fenced);
    t.end(success(&second)).await;
    assert_eq!(told(t, late()).await, Signed::Fenced, "after the end");
    let run = t.look(id).await;
    assert_eq!((run.progress, run.checkpoint), (Some(json("1")), Some(json("1"))));
}

pub(super) async fn a_batch_of_signs_answers_in_order(t: &Fixture) {
    let replica = t.replica().await;
    t.accept_many(3).await;
    let c = t.take(replica, 3).await;
    t.end(success(&c[1])).await;
    let batch = vec![
        sign(&c[2], Some("2"), None),
        sign(&c[1], Some("1"), None),
        sign(&c[0], Some("0"), None),
        sign(&c[2], Some("22"), None),
    ];
    assert_eq!(t.sign(batch).await.expect("sign"), [HEARD, Signed::Fenced, HEARD, HEARD]);
    let progress = async |place: usize| t.look(c[place].lease.run_id).await.progress;
    assert_eq!(progress(0).await, Some(json("0")));
    assert_eq!(progress(1).await, None);
    assert_eq!(progress(2).await, Some(json("22")), "of two signs of one run the later counts");
}

pub(super) async fn a_sign_is_told_that_a_cancel_was_asked(t: &Fixture) {
    let claimed = t.running().await;
    t.cancel(claimed.lease.run_id).await.expect("cancel");
    let told_so = told(t, sign(&claimed, Some("1"), None)).await;
    assert_eq!(told_so, Signed::Accepted { cancel_asked: true });
    assert_eq!(t.look(claimed.lease.run_id).await.progress, Some(json("1")), "and is still kept");
}

pub(super) async fn a_sign_moves_the_last_heartbeat(t: &Fixture) {
    let claimed = t.running().await;
    let before = t.held_of(claimed.lease.run_id).await;
    told(t, sign(&claimed, None, None)).await;
    let after = t.held_of(claimed.lease.run_id).await;
    assert!(after.last_heartbeat_at > before.last_heartbeat_at);
    assert_eq!(after.lease, before.lease, "and nothing else");
    let run = t.look(claimed.lease.run_id).await;
    assert_eq!(run.last_heartbeat_at, Some(after.last_heartbeat_at));
    assert_eq!(t.attempts(run.id).await.expect("attempts")[0].last_heartbeat_at, Some(after.last_heartbeat_at));
}

pub(super) async fn a_replica_does_not_beat_for_an_attempt_that_beats_by_hand(t: &Fixture) {
    let replica = t.replica().await;
    let by_hand = Policy { heartbeat: HeartbeatMode::Manual, max_attempts: 7, ..Policy::BASELINE };
    let (by_hand, vouched_for) = (t.accept(t.draft().policy(by_hand)).await, t.accept(t.draft()).await);
    let claimed = t.take(replica, 2).await;
    let granted_at = claimed[0].lease.granted_at;
    let Renewal::Renewed { now, .. } = t.renew(replica).await.expect("renew") else { panic!("it is active") };
    assert_eq!(t.look(vouched_for).await.last_heartbeat_at, Some(now));
    assert_eq!(t.look(by_hand).await.last_heartbeat_at, Some(granted_at), "it has not been heard of since");
    let page = t.runs(RunFilter { limit: 10, ..RunFilter::default() }).await.expect("runs").items;
    assert_eq!(page.iter().map(|run| run.last_heartbeat_at).collect::<Vec<_>>(), [Some(now), Some(granted_at)]);
    told(t, sign(&claimed[0], None, None)).await;
    t.renew(replica).await.expect("renew");
    let heard = t.look(by_hand).await.last_heartbeat_at;
    assert_eq!(heard, Some(t.held_of(by_hand).await.last_heartbeat_at));
    assert!(heard > Some(now), "its own sign counts");
}

pub(super) async fn a_batch_of_large_signs_is_kept_whole(t: &Fixture) {
    const LARGE: usize = 1 << 20;
    let replica = t.replica().await;
    t.accept_many(20).await;
    let mut claimed = t.take(replica, 20).await;
    claimed.reverse();
    t.end(success(&claimed[7])).await;
    let text = |place: usize| Json::of(&format!("{place}{}", "x".repeat(LARGE)));
    let large = |(place, claimed)| Sign { checkpoint: Some(text(place)), ..sign(claimed, Some("1"), None) };
    let answers = t.sign(claimed.iter().enumerate().map(large).collect()).await.expect("sign");
    for (place, claimed) in claimed.iter().enumerate() {
        let (answer, kept) = if place == 7 { (Signed::Fenced, None) } else { (HEARD, Some(text(place))) };
        assert_eq!(answers[place], answer, "place {place}");
        assert!(t.look(claimed.lease.run_id).await.checkpoint == kept, "place {place}");
    }
}

async fn told(t: &Fixture, sign: Sign) -> Signed {
    t.sign(vec![sign]).await.expect("sign")[0]
}
