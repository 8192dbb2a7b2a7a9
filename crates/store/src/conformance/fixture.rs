//! What cases are written with: a store, time that passes on request, and the steps that most begin with.

use super::build::{Draft, claim};
use super::{HandClock, Open};
use crate::{Enqueue, Enqueued, Held, Result, Store, Which};
use everbeat_model::lease::Shown;
use everbeat_model::replica::NewReplica;
use everbeat_model::run::Claimed;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{
    Json, Reason, ReplicaId, Run, RunId, RunState, Settled, Settlement, StoreTime, Verdict, VerdictId, id,
};
use std::any::Any;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Longer than any case takes, on a store with a real clock too.
pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// So short that a store with a real clock can sit through it.
pub(super) const MOMENT: Duration = Duration::from_millis(20);

/// What a store answers to a request by itself.
pub(super) async fn request_of(store: &dyn Store, request: Enqueue) -> Result<Vec<Enqueued>> {
    let mut answers = store.enqueue(vec![request]).await?;
    assert_eq!(answers.len(), 1, "one answer to one request");
    answers.remove(0)
}

pub(super) struct Fixture {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Option<Arc<HandClock>>,
    pub(super) ids: Arc<id::Sequence>,
    /// Leases of node runs that nobody has asked for yet.
    leases: Mutex<Vec<Claimed>>,
    _guard: Option<Box<dyn Any + Send + Sync>>,
}

impl Deref for Fixture {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        &*self.store
    }
}

impl Fixture {
    pub(super) fn new(open: Open) -> Fixture {
        Fixture {
            store: open.store,
            clock: open.clock,
            ids: Arc::default(),
            leases: Mutex::default(),
            _guard: open.guard,
        }
    }

    /// Lets time pass: by a jump where the clock can be set, by waiting where it cannot.
    #[expect(clippy::disallowed_methods, reason = "a database's own clock moves only by waiting")]
    pub(super) async fn advance(&self, span: Duration) {
        match &self.clock {
            Some(clock) => clock.jump(span),
            None => tokio::time::sleep(span).await,
        }
    }

    /// Ids rise, so that "newest" and "oldest" are certain.
    pub(super) fn next_id(&self) -> Uuid {
        self.ids.next(1_767_225_600_000, 0)
    }

    pub(super) fn draft(&self) -> Draft {
        Draft::plain(RunId(self.next_id()))
    }

    /// Enqueues a run that must be new.
    pub(super) async fn accept(&self, draft: Draft) -> RunId {
        let id = draft.id;
        assert_eq!(self.submit(draft).await, Enqueued::Created(id));
        id
    }

    pub(super) async fn submit(&self, draft: Draft) -> Enqueued {
        self.submit_all(vec![draft]).await[0]
    }

    pub(super) async fn submit_all(&self, drafts: Vec<Draft>) -> Vec<Enqueued> {
        let runs = drafts.into_iter().map(Draft::done).collect();
        self.request(Enqueue { runs, idempotency: None }).await.expect("accepted")
    }

    /// A request by itself.
    pub(super) async fn request(&self, request: Enqueue) -> Result<Vec<Enqueued>> {
        request_of(&*self.store, request).await
    }

    /// That many equal ready runs, oldest first.
    pub(super) async fn accept_many(&self, count: usize) -> Vec<RunId> {
        self.submit_all((0..count).map(|_| self.draft()).collect()).await.into_iter().map(Enqueued::id).collect()
    }

    pub(super) fn new_replica(&self) -> NewReplica {
        NewReplica {
            id: ReplicaId(self.next_id()),
            host: "host-1".to_string(),
            machine: None,
            version: "0.1.0".to_string(),
            heartbeat_interval: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(60),
            wall: StoreTime(0),
        }
    }

    /// A replica that has just joined.
    pub(super) async fn replica(&self) -> ReplicaId {
        let replica = self.new_replica();
        let id = replica.id;
        self.join(replica).await.expect("join");
        id
    }

    pub(super) async fn take(&self, replica: ReplicaId, limit: usize) -> Vec<Claimed> {
        self.claim(claim(replica, limit)).await.expect("claim")
    }

    /// Claims exactly one.
    pub(super) async fn take_one(&self, replica: ReplicaId) -> Claimed {
        let mut claimed = self.take(replica, 1).await;
        assert_eq!(claimed.len(), 1, "there is something to claim");
        claimed.remove(0)
    }

    /// A new replica that performs a new run.
    pub(super) async fn running(&self) -> Claimed {
        let id = self.accept(self.draft()).await;
        self.running_again(id).await
    }

    /// A new replica that performs this ready run.
    pub(super) async fn running_again(&self, id: RunId) -> Claimed {
        let replica = self.replica().await;
        let claimed = self.take_one(replica).await;
        assert_eq!(claimed.lease.run_id, id);
        claimed
    }

    pub(super) async fn end(&self, settlement: Settlement) -> Settled {
        self.settle(vec![settlement]).await.expect("settle")[0]
    }

    pub(super) async fn look(&self, id: RunId) -> Run {
        self.store.run(id).await.expect("run").expect("the run exists")
    }

    pub(super) async fn state(&self, id: RunId) -> RunState {
        self.look(id).await.state
    }

    pub(super) async fn held_of(&self, id: RunId) -> Held {
        let mut held = self.held(Which::Of(vec![id])).await.expect("held");
        assert_eq!(held.len(), 1, "the run is leased");
        held.remove(0)
    }

    pub(super) fn keep_leased(&self, claimed: Vec<Claimed>) {
        self.leases.lock().expect("unpoisoned").extend(claimed);
    }

    /// The lease of this run, if it was kept.
    pub(super) fn leased(&self, run: RunId) -> Option<Claimed> {
        let leases = self.leases.lock().expect("unpoisoned");
        leases.iter().rev().find(|claimed| claimed.lease.run_id == run).cloned()
    }

    pub(super) fn verdict(&self, about: ReplicaId) -> Verdict {
        Verdict {
            id: VerdictId(self.next_id()),
            at: StoreTime(0),
            subject: Subject { kind: SubjectKind::Replica, id: about.to_string() },
            judgement: Judgement::Lost,
            reason: Reason::ReplicaSilent.to_string(),
            evidence: Json::of(&serde_json::json!({ "beat": 1 })),
            judged_by: about,
            run_id: None,
            attempt: None,
            then: "its runs are ready again".to_string(),
        }
    }

    pub(super) fn verdict_on_run(&self, shown: Shown, judge: ReplicaId) -> Verdict {
        Verdict {
            subject: Subject { kind: SubjectKind::Run, id: shown.run_id.to_string() },
            run_id: Some(shown.run_id),
            attempt: Some(shown.attempt),
            ..self.verdict(judge)
        }
    }

    pub(super) async fn kill(&self, replica: ReplicaId) {
        assert!(self.bury(replica, None, self.verdict(replica)).await.expect("bury"), "it was alive");
    }

    /// The same thing done by many sides at once.
    pub(super) async fn at_once<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        sides: usize,
        act: impl Fn(Arc<dyn Store>) -> F,
    ) -> Vec<T> {
        let mut tasks = JoinSet::new();
        for _ in 0..sides {
            tasks.spawn(act(self.store.clone()));
        }
        tasks.join_all().await
    }
}
