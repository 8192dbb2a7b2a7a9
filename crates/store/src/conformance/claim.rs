use super::build::{claim, ids, retry};
use super::fixture::Fixture;
use crate::Claim;
use everbeat_model::{Next, ReplicaId, RunId, RunState, Standing};
use std::collections::{BTreeMap, BTreeSet};

pub(super) async fn higher_priority_first_then_oldest(t: &Fixture) {
    let replica = t.replica().await;
    let low = t.accept(t.draft().priority(-1)).await;
    let old = t.accept(t.draft().queue("z").task("work")).await;
    let high = t.accept(t.draft().priority(5).task("report")).await;
    let young = t.accept(t.draft().queue("a").task("mail")).await;
    assert_eq!(ids(&t.take(replica, 3).await), [high, old, young], "whatever the queue and the task");
    assert_eq!(ids(&t.take(replica, 3).await), [low]);
}

pub(super) async fn the_extremes_of_priority_keep_their_order(t: &Fixture) {
    let replica = t.replica().await;
    let mut expected = Vec::new();
    for priority in [i16::MIN, -1, 0, 1, i16::MAX] {
        expected.insert(0, t.accept(t.draft().priority(priority)).await);
    }
    let claimed = t.take(replica, 10).await;
    assert_eq!(ids(&claimed), expected);
    assert_eq!(claimed[0].spec.priority, i16::MAX);
    assert_eq!(claimed[4].spec.priority, i16::MIN);
}

pub(super) async fn a_run_tried_again_keeps_its_age(t: &Fixture) {
    let replica = t.replica().await;
    let old = t.accept(t.draft()).await;
    let young = t.accept(t.draft()).await;
    let claimed = t.take_one(replica).await;
    t.end(retry(&claimed, Next::Ready)).await;
    assert_eq!(ids(&t.take(replica, 2).await), [old, young]);
}

pub(super) async fn limits_per_task_and_queue_hold_in_one_claim(t: &Fixture) {
    let replica = t.replica().await;
    for _ in 0..5 {
        for (task, queue) in [("mail", "small"), ("mail", "large"), ("work", "small"), ("work", "large")] {
            t.accept(t.draft().task(task).queue(queue)).await;
        }
    }
    let claimed = t.claim(limited(replica, 100, &[("mail", 3), ("work", 100)], &[("small", 2)])).await.expect("claim");
    let count = |task: &str, queue: &str| {
        claimed.iter().filter(|claimed| claimed.spec.task == task && claimed.spec.queue == queue).count()
    };
    assert_eq!(count("mail", "small") + count("mail", "large"), 3);
    assert_eq!(count("mail", "small") + count("work", "small"), 2);
    assert_eq!(count("work", "large"), 5, "what has no limit is not held back by what has");
    assert_eq!((count("mail", "small"), count("work", "small")), (1, 1), "the oldest come first within a limit");
}

pub(super) async fn a_task_at_its_limit_does_not_use_up_its_queue(t: &Fixture) {
    let replica = t.replica().await;
    t.submit_all((0..20).map(|_| t.draft().task("mail").queue("q")).collect()).await;
    let behind = t.accept(t.draft().task("work").queue("q")).await;
    let first = t.claim(limited(replica, 10, &[("mail", 1), ("work", 5)], &[("q", 2)])).await.expect("claim");
    assert_eq!(first.len(), 2);
    assert_eq!(first[1].lease.run_id, behind, "runs that may not start do not hide one that may");
    assert!(t.claim(limited(replica, 10, &[("mail", 5)], &[("q", 0)])).await.expect("claim").is_empty());
    assert!(t.claim(limited(replica, 10, &[("mail", 0)], &[])).await.expect("claim").is_empty());
}

pub(super) async fn only_the_tasks_asked_for_are_claimed(t: &Fixture) {
    let replica = t.replica().await;
    let mail = t.accept(t.draft().task("mail")).await;
    t.accept(t.draft().task("unheard-of").priority(9)).await;
    assert!(t.claim(limited(replica, 10, &[], &[])).await.expect("claim").is_empty());
    let claimed = t.claim(limited(replica, 10, &[("mail", 9), ("report", 9)], &[])).await.expect("claim");
    assert_eq!(ids(&claimed), [mail]);
}

pub(super) async fn a_claim_takes_no_more_than_its_limit(t: &Fixture) {
    let replica = t.replica().await;
    let runs = t.accept_many(5).await;
    assert!(t.take(replica, 0).await.is_empty());
    assert_eq!(ids(&t.take(replica, 2).await), runs[..2]);
    assert_eq!(ids(&t.take(replica, 100).await), runs[2..]);
    assert!(t.take(replica, 100).await.is_empty());
}

pub(super) async fn a_paused_queue_gives_nothing(t: &Fixture) {
    let replica = t.replica().await;
    let held_back = t.accept(t.draft().queue("slow").priority(9)).await;
    let other = t.accept(t.draft().queue("fast")).await;
    t.pause("slow", true).await.expect("pause");
    assert_eq!(ids(&t.take(replica, 10).await), [other]);
    assert_eq!(t.state(held_back).await, RunState::Ready);
    t.pause("slow", false).await.expect("resume");
    assert_eq!(ids(&t.take(replica, 10).await), [held_back]);
}

pub(super) async fn a_claim_among_some_queues_takes_from_no_other(t: &Fixture) {
    let replica = t.replica().await;
    let slow = t.accept(t.draft().queue("slow").priority(9)).await;
    let fast = t.accept(t.draft().queue("fast")).await;
    let among = |queues: &[&str]| Some(queues.iter().map(ToString::to_string).collect());
    let taken = t.claim(Claim { among: among(&["fast", "other"]), ..claim(replica, 10) }).await.expect("claim");
    assert_eq!(ids(&taken), [fast]);
    assert!(t.claim(Claim { among: among(&[]), ..claim(replica, 10) }).await.expect("claim").is_empty());
    let queues = BTreeMap::from([("slow".to_string(), 1)]);
    let taken = t.claim(Claim { among: among(&["slow"]), queues, ..claim(replica, 10) }).await.expect("claim");
    assert_eq!(ids(&taken), [slow]);
}

pub(super) async fn a_draining_dead_left_or_unknown_replica_claims_nothing(t: &Fixture) {
    let run = t.accept(t.draft()).await;
    let (draining, dead, left) = (t.replica().await, t.replica().await, t.replica().await);
    assert!(t.drain(draining).await.expect("drain"));
    t.kill(dead).await;
    t.leave(left).await.expect("leave");
    for replica in [draining, dead, left, t.new_replica().id] {
        assert!(t.take(replica, 1).await.is_empty());
    }
    let active = t.replica().await;
    assert_eq!(ids(&t.take(active, 1).await), [run]);
}

pub(super) async fn a_claimed_run_shows_its_lease(t: &Fixture) {
    let claimed = t.running().await;
    let run = t.look(claimed.lease.run_id).await;
    assert_eq!((run.state, run.attempt), (RunState::Running, 1));
    assert_eq!(run.replica_id, Some(claimed.lease.replica_id));
    assert_eq!(run.started_at, Some(claimed.lease.granted_at));
    assert_eq!(run.spec, claimed.spec);
    assert!(run.last_heartbeat_at >= run.started_at, "a claim is a sign of life");
    assert_eq!(claimed.standing, Standing { attempt: 1, tries: 0, losses: 0 });
    assert_eq!(claimed.checkpoint, None);
}

pub(super) async fn every_grant_has_a_token_and_a_fence_of_its_own(t: &Fixture) {
    let replica = t.replica().await;
    t.accept_many(3).await;
    let mut tokens = BTreeSet::new();
    for attempt in 1..=4 {
        for claimed in t.take(replica, 3).await {
            assert_eq!((claimed.lease.attempt, claimed.lease.replica_id), (attempt, replica));
            assert!(tokens.insert(claimed.lease.token), "a token is never granted twice");
            t.end(retry(&claimed, Next::Ready)).await;
        }
    }
    assert_eq!(tokens.len(), 12);
}

pub(super) async fn eight_claimers_start_each_of_1000_runs_once(t: &Fixture) {
    let runs: BTreeSet<RunId> = t.accept_many(1000).await.into_iter().collect();
    let replica = t.replica().await;
    let claimers = t.at_once(8, |store| async move {
        let mut mine = Vec::new();
        loop {
            let claimed = store.claim(claim(replica, 17)).await.expect("claim");
            if claimed.is_empty() {
                return mine;
            }
            mine.extend(ids(&claimed));
        }
    });
    let mut started: Vec<RunId> = claimers.await.into_iter().flatten().collect();
    // A claimer may pass over what another is just taking, and find nothing else; that is no loss.
    started.extend(ids(&t.take(replica, 1000).await));
    assert_eq!(started.len(), 1000);
    assert_eq!(started.into_iter().collect::<BTreeSet<_>>(), runs);
    assert!(t.take(replica, 10).await.is_empty());
}

fn limited(replica: ReplicaId, limit: usize, tasks: &[(&str, usize)], queues: &[(&str, usize)]) -> Claim {
    let owned = |limits: &[(&str, usize)]| -> BTreeMap<String, usize> {
        limits.iter().map(|(name, free)| (name.to_string(), *free)).collect()
    };
    Claim { replica, limit, tasks: owned(tasks), queues: owned(queues), among: None }
}
