use super::fixture::{Fixture, HOUR, MOMENT};
use crate::{Noun, Told, WorkerFilter, WorkerRow};
use everbeat_model::{Json, ReplicaId, WorkerId};
use uuid::Uuid;

pub(super) async fn what_is_told_of_workers_reads_back_by_id_and_filter(t: &Fixture) {
    let [first, second] = [t.replica().await, t.replica().await];
    assert_eq!(all(t).await, []);
    let odd = Told { report: Json::of("it's 🦀;-- \u{0} \"$1\" ?1"), ..told(t, Some("a 'pool'"), "ready") };
    let [pooled, remote, other] =
        [told(t, Some("ml"), "starting"), told(t, None, "ready"), told(t, Some("ml"), "ready")];
    t.tell_workers(first, vec![remote.clone(), odd.clone(), pooled.clone()], Vec::new()).await.expect("told");
    t.tell_workers(second, vec![other.clone()], Vec::new()).await.expect("told");
    let rows = all(t).await;
    assert_eq!(
        rows.iter().map(|row| row.told.clone()).collect::<Vec<_>>(),
        [odd.clone(), pooled.clone(), remote.clone(), other.clone()]
    );
    assert_eq!(rows.iter().map(|row| row.replica_id).collect::<Vec<_>>(), [first, first, first, second]);
    let joined = t.replicas().await.expect("replicas")[1].started_at;
    assert!(rows[3].at >= joined, "by the time of the store");
    let found = |filter: WorkerFilter| async move {
        let rows = t.store.workers(WorkerFilter { limit: 10, ..filter }).await.expect("workers");
        rows.into_iter().map(|row| row.told.id).collect::<Vec<_>>()
    };
    let filter = WorkerFilter::default;
    assert_eq!(found(WorkerFilter { id: Some(remote.id), ..filter() }).await, [remote.id]);
    assert_eq!(found(WorkerFilter { id: Some(WorkerId(t.next_id())), ..filter() }).await, []);
    assert_eq!(found(WorkerFilter { besides: Some(first), ..filter() }).await, [other.id]);
    assert_eq!(found(WorkerFilter { pool: Some("ml".into()), ..filter() }).await, [pooled.id, other.id]);
    assert_eq!(found(WorkerFilter { state: Some("ready".into()), ..filter() }).await, [odd.id, remote.id, other.id]);
    let narrow = WorkerFilter { pool: Some("ml".into()), state: Some("ready".into()), ..filter() };
    assert_eq!(found(narrow).await, [other.id]);
    assert_eq!(found(WorkerFilter { after: Some(pooled.id), ..filter() }).await, [remote.id, other.id]);
    let two = t.store.workers(WorkerFilter { limit: 2, ..filter() }).await.expect("workers");
    assert_eq!(two, rows[..2]);
}

pub(super) async fn what_is_told_again_replaces_and_what_is_gone_is_forgotten(t: &Fixture) {
    let [mine, others] = [t.replica().await, t.replica().await];
    let [stays, goes, strange] =
        [told(t, Some("ml"), "starting"), told(t, Some("ml"), "ready"), told(t, None, "ready")];
    t.tell_workers(mine, vec![stays.clone(), goes.clone()], Vec::new()).await.expect("told");
    t.tell_workers(others, vec![strange.clone()], Vec::new()).await.expect("told");
    let before = all(t).await;
    t.advance(MOMENT).await;
    let again = Told { state: "ready".into(), report: Json::of(&2), ..stays.clone() };
    let gone = vec![goes.id, strange.id, WorkerId(t.next_id())];
    t.tell_workers(mine, vec![again.clone()], gone).await.expect("told");
    let after = all(t).await;
    assert_eq!(after.iter().map(|row| &row.told).collect::<Vec<_>>(), [&again, &strange], "nobody forgets another's");
    assert!(after[0].at > before[0].at);
    t.tell_workers(mine, Vec::new(), Vec::new()).await.expect("nothing told");
    assert_eq!(all(t).await, after);
}

pub(super) async fn replicas_that_are_gone_tell_nothing_and_are_told_nothing_of(t: &Fixture) {
    let [active, draining, dead, left] = [t.replica().await, t.replica().await, t.replica().await, t.replica().await];
    let mut workers = Vec::new();
    for replica in [active, draining, dead, left] {
        workers.push(told(t, None, "ready"));
        t.tell_workers(replica, vec![workers[workers.len() - 1].clone()], Vec::new()).await.expect("told");
    }
    t.drain(draining).await.expect("drain");
    t.kill(dead).await;
    t.leave(left).await.expect("leave");
    assert_eq!(ids(t).await, [workers[0].id, workers[1].id]);
    for replica in [dead, left, ReplicaId(t.next_id())] {
        t.tell_workers(replica, vec![told(t, None, "ready")], Vec::new()).await.expect("not listened to");
    }
    assert_eq!(ids(t).await, [workers[0].id, workers[1].id]);
    // A replica that was judged joins anew, and its workers with it.
    let anew = t.replica().await;
    t.tell_workers(anew, vec![workers[2].clone()], Vec::new()).await.expect("told");
    assert_eq!(ids(t).await, [workers[0].id, workers[1].id, workers[2].id]);
    t.forget_replicas(HOUR).await.expect("forgotten");
    let kept = t.store.ids(Noun::Worker, Uuid::nil()..=Uuid::max(), 10).await.expect("ids");
    assert_eq!(
        kept,
        [workers[2].id.0, workers[1].id.0, workers[0].id.0],
        "newest first, and none of the one that left"
    );
}

fn told(t: &Fixture, pool: Option<&str>, state: &str) -> Told {
    let (id, pool) = (WorkerId(t.next_id()), pool.map(ToString::to_string));
    Told { id, pool, state: state.to_string(), report: Json::of(&1) }
}

async fn all(t: &Fixture) -> Vec<WorkerRow> {
    t.store.workers(WorkerFilter { limit: 100, ..WorkerFilter::default() }).await.expect("workers")
}

async fn ids(t: &Fixture) -> Vec<WorkerId> {
    all(t).await.into_iter().map(|row| row.told.id).collect()
}
