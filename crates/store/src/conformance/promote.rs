use super::build::{ids, retry};
use super::fixture::{Fixture, HOUR, MOMENT};
use crate::Promoted;
use everbeat_model::{Next, RunState};
use std::time::Duration;

pub(super) async fn what_is_due_becomes_ready_and_the_rest_is_announced(t: &Fixture) {
    assert_eq!(t.promote(10).await.expect("promote"), Promoted { moved: 0, next_in: None });
    t.accept(t.draft().far_off()).await;
    let claimed = t.running().await;
    t.end(retry(&claimed, Next::After(HOUR))).await;
    let Promoted { moved, next_in } = t.promote(10).await.expect("promote");
    assert_eq!(moved, 0);
    assert!(next_in > Some(HOUR / 2) && next_in <= Some(HOUR), "the nearest, not {next_in:?}");
    let now = t.look(t.accept(t.draft().task("unheard-of")).await).await.created_at;
    let soon = t.accept(t.draft().at(now.plus(MOMENT))).await;
    t.advance(MOMENT * 2).await;
    t.promote(10).await.expect("promote");
    assert_eq!(t.state(soon).await, RunState::Ready, "its time has come");
    assert_eq!(t.state(claimed.lease.run_id).await, RunState::Scheduled, "the other's has not");
    assert_eq!(ids(&t.take(claimed.lease.replica_id, 10).await), [soon]);
}

pub(super) async fn a_promotion_takes_no_more_than_its_limit_and_the_longest_due_first(t: &Fixture) {
    let replica = t.replica().await;
    t.accept_many(3).await;
    let claimed = t.take(replica, 3).await;
    for place in [2, 0, 1] {
        t.end(retry(&claimed[place], Next::After(Duration::ZERO))).await;
    }
    let promoted = t.promote(1).await.expect("promote");
    assert_eq!((promoted.moved, promoted.next_in), (1, Some(Duration::ZERO)), "another one is due already");
    assert_eq!(ids(&t.take(replica, 3).await), [claimed[2].lease.run_id]);
    assert_eq!(t.promote(10).await.expect("promote"), Promoted { moved: 2, next_in: None });
    assert_eq!(ids(&t.take(replica, 3).await), [claimed[0].lease.run_id, claimed[1].lease.run_id]);
}

pub(super) async fn many_promoters_at_once_move_each_run_once(t: &Fixture) {
    let replica = t.replica().await;
    t.accept_many(60).await;
    let settlements = t.take(replica, 60).await.iter().map(|c| retry(c, Next::After(Duration::ZERO))).collect();
    t.settle(settlements).await.expect("settle");
    let moved = t.at_once(6, |store| async move { store.promote(25).await.expect("promote").moved }).await;
    let rest = t.promote(100).await.expect("promote").moved;
    assert_eq!(moved.iter().sum::<usize>() + rest, 60);
    assert_eq!(t.take(replica, 100).await.len(), 60);
}
