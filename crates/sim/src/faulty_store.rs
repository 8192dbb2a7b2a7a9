//! One replica's way to the store. It delegates everything, and notes what the truth needs to know.

use crate::executor::{Owner, WORLD};
use crate::message::Message;
use crate::shared::Shared;
use crate::shortage::Shortage;
use crate::truth::{LifeTruth, Look};
use async_trait::async_trait;
use everbeat_model::queue::Queue;
use everbeat_model::replica::NewReplica;
use everbeat_model::run::Spec;
use everbeat_model::{Replica, ReplicaId, RunId, Verdict, VerdictId};
use everbeat_store::{
    Audit, Audits, EventPage, Events, Ids, Joined, Memory, News, Noun, Queues, Renewal, Replicas, Result, Sweeps,
    Tasks, VerdictFilter, Verdicts, WakeSignal, Wakes,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

pub(crate) struct FaultyStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Owner,
    wakes: Arc<WakeBoard>,
}

/// One wake channel per boot, so that a hint can be lost for one and arrive twice for another.
#[derive(Default)]
pub(crate) struct WakeBoard(Mutex<BTreeMap<Owner, Arc<watch::Sender<u64>>>>);

impl WakeBoard {
    fn of(&self, owner: Owner) -> Arc<watch::Sender<u64>> {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        board.entry(owner).or_insert_with(|| Arc::new(watch::Sender::new(0))).clone()
    }

    /// A boot that is over hears nothing any more.
    pub(crate) fn forget(&self, owner: Owner) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&owner);
    }

    fn all(&self) -> Vec<Arc<watch::Sender<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

impl FaultyStore {
    pub(crate) fn new(shared: Arc<Shared>, owner: Owner, wakes: Arc<WakeBoard>) -> FaultyStore {
        wakes.of(owner);
        FaultyStore { shared, owner, wakes }
    }

    pub(crate) async fn call<T, F>(
        &self,
        name: &'static str,
        operation: impl FnOnce(Arc<Memory>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.call_and(name, operation, |_, _| {}).await
    }

    /// Sends a call on its way; `applied` sees what the store did, whoever still waits for it.
    pub(crate) async fn call_and<T, F>(
        &self,
        name: &'static str,
        operation: impl FnOnce(Arc<Memory>) -> F + Send + 'static,
        applied: impl FnOnce(&Shared, &T) + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let (fate, epoch, sign) = {
            let mut network = self.shared.network();
            let sign = (name == "sign").then(|| network.sign_sent(self.owner));
            (network.fate(self.owner), network.epoch, sign)
        };
        self.shared.truth().report.store_calls += 1;
        let message = Message { shared: self.shared.clone(), owner: self.owner, name, epoch, sign };
        let operation = move |memory: Arc<Memory>| -> BoxFuture<'static, Result<T>> { operation(memory).boxed() };
        self.shared.executor.spawn(WORLD, "message", message.travel(fate, operation, applied, answer).boxed());
        match answered.await {
            Ok(answer) => answer,
            // Nobody will ever answer.
            Err(_) => std::future::pending().await,
        }
    }

    pub(crate) fn short(&self) -> Option<Shortage> {
        self.shared.network().shortage
    }

    pub(crate) fn mine<T>(&self, replica: ReplicaId, note: impl FnOnce(&mut LifeTruth, u64) -> T) -> Option<T> {
        let now = self.shared.now();
        self.shared.truth().lives.get_mut(&replica).map(|life| note(life, now))
    }
}

#[async_trait]
impl Replicas for FaultyStore {
    async fn join(&self, replica: NewReplica) -> Result<Joined> {
        let (owner, id, now) = (self.owner, replica.id, self.shared.now());
        let life = LifeTruth {
            owner,
            joined_at: now,
            beat_at: now,
            beat: 0,
            over: false,
            renewed: now,
            looked: Look::default(),
            burials: BTreeMap::new(),
        };
        {
            let mut truth = self.shared.truth();
            truth.lives.values_mut().filter(|life| life.owner == owner).for_each(|life| life.over = true);
            truth.lives.entry(id).or_insert(life).over = false;
        }
        let joined = self.call("join", move |store| async move { store.join(replica).await }).await?;
        // It counts as its first renewal, sent when it was sent.
        self.mine(id, |life, _| life.renewed = now);
        Ok(joined)
    }

    async fn renew(&self, replica: ReplicaId) -> Result<Renewal> {
        let sent = self.shared.now();
        let answer = self.call("renew", move |store| async move { store.renew(replica).await }).await?;
        self.mine(replica, |life, _| match answer {
            Renewal::Renewed { .. } => life.renewed = sent,
            Renewal::Fenced => life.over = true,
        });
        if answer == Renewal::Fenced {
            self.shared.trace(|truth| format!("{} learns that it is fenced", truth.label(self.owner)));
        }
        Ok(answer)
    }

    async fn replicas(&self) -> Result<Vec<Replica>> {
        self.call("replicas", move |store| async move { store.replicas().await }).await
    }

    async fn observe(&self) -> Result<Vec<Replica>> {
        let sent = self.shared.now();
        let rows = self.call("observe", move |store| async move { store.observe().await }).await?;
        let received = self.shared.now();
        let mut truth = self.shared.truth();
        for life in truth.lives.values_mut().filter(|life| life.owner == self.owner && !life.over) {
            life.looked = Look { sent, received, renewed: life.renewed };
        }
        Ok(rows)
    }

    async fn bury(&self, replica: ReplicaId, beat: Option<u64>, verdict: Verdict) -> Result<bool> {
        let id = verdict.id;
        let look = self.mine(verdict.judged_by, |life, _| {
            life.burials.insert(id, life.looked);
            life.looked
        });
        self.shared.trace(|truth| {
            let (judge, judged) = (truth.label(self.owner), truth.label_of(replica));
            format!("{judge} judges {judged}: {}, {look:?}", verdict.reason)
        });
        self.call("bury", move |store| async move { store.bury(replica, beat, verdict).await }).await
    }

    async fn drain(&self, replica: ReplicaId) -> Result<bool> {
        self.call("drain", move |store| async move { store.drain(replica).await }).await
    }

    async fn leave(&self, replica: ReplicaId) -> Result<()> {
        self.call("leave", move |store| async move { store.leave(replica).await }).await
    }

    async fn forget_replicas(&self, keep: Duration) -> Result<usize> {
        self.call("forget_replicas", move |store| async move { store.forget_replicas(keep).await }).await
    }
}

#[async_trait]
impl Sweeps for FaultyStore {
    async fn sweep_due(&self, name: &str, every: Duration) -> Result<bool> {
        let name = name.to_string();
        self.call("sweep_due", move |store| async move { store.sweep_due(&name, every).await }).await
    }
}

#[async_trait]
impl Queues for FaultyStore {
    async fn queues(&self) -> Result<Vec<Queue>> {
        self.call("queues", move |store| async move { store.queues().await }).await
    }

    async fn ahead(&self, spec: &Spec, run: RunId, limit: usize) -> Result<u64> {
        let spec = spec.clone();
        self.call("ahead", move |store| async move { store.ahead(&spec, run, limit).await }).await
    }

    async fn ready_ages(&self) -> Result<BTreeMap<String, Duration>> {
        self.call("ready_ages", move |store| async move { store.ready_ages().await }).await
    }

    async fn pause(&self, queue: &str, paused: bool) -> Result<bool> {
        let queue = queue.to_string();
        self.call("pause", move |store| async move { store.pause(&queue, paused).await }).await
    }
}

#[async_trait]
impl Ids for FaultyStore {
    async fn ids(&self, of: Noun, within: RangeInclusive<Uuid>, limit: usize) -> Result<Vec<Uuid>> {
        self.call("ids", move |store| async move { store.ids(of, within, limit).await }).await
    }

    async fn jobs_with(&self, text: String, window: usize) -> Result<Vec<RunId>> {
        self.call("jobs_with", move |store| async move { store.jobs_with(text, window).await }).await
    }
}

#[async_trait]
impl Tasks for FaultyStore {
    async fn offer(&self, tasks: &BTreeSet<String>) -> Result<()> {
        let tasks = tasks.clone();
        self.call("offer", move |store| async move { store.offer(&tasks).await }).await
    }

    async fn tasks(&self) -> Result<BTreeSet<String>> {
        self.call("tasks", move |store| async move { store.tasks().await }).await
    }
}

#[async_trait]
impl Verdicts for FaultyStore {
    async fn record(&self, verdicts: Vec<Verdict>) -> Result<()> {
        self.call("record", move |store| async move { store.record(verdicts).await }).await
    }

    async fn verdict(&self, id: VerdictId) -> Result<Option<Verdict>> {
        self.call("verdict", move |store| async move { store.verdict(id).await }).await
    }

    async fn verdicts(&self, filter: VerdictFilter) -> Result<Vec<Verdict>> {
        self.call("verdicts", move |store| async move { store.verdicts(filter).await }).await
    }

    async fn forget_verdicts(&self, keep: Duration, limit: usize) -> Result<usize> {
        self.call("forget_verdicts", move |store| async move { store.forget_verdicts(keep, limit).await }).await
    }
}

#[async_trait]
impl Events for FaultyStore {
    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        self.call("events", move |store| async move { store.events(after, limit).await }).await
    }

    async fn announce(&self, news: Vec<News>) -> Result<()> {
        self.call("announce", move |store| async move { store.announce(news).await }).await
    }

    async fn last_event(&self) -> Result<u64> {
        self.call("last_event", move |store| async move { store.last_event().await }).await
    }

    async fn trim_events(&self, keep: u64) -> Result<usize> {
        self.call("trim_events", move |store| async move { store.trim_events(keep).await }).await
    }
}

#[async_trait]
impl Audits for FaultyStore {
    async fn audit(&self) -> Result<Audit> {
        self.call("audit", move |store| async move { store.audit().await }).await
    }
}

impl Wakes for FaultyStore {
    fn wake(&self) {
        for receiver in self.wakes.all() {
            let arrivals = self.shared.network().wake();
            match arrivals.len() {
                0 => self.shared.truth().report.fault("wake lost"),
                2 => self.shared.truth().report.fault("wake doubled"),
                _ => {}
            }
            for after in arrivals {
                let (receiver, shared) = (receiver.clone(), self.shared.clone());
                let hint = async move {
                    shared.sleep(after).await;
                    receiver.send_modify(|wakes| *wakes += 1);
                };
                self.shared.executor.spawn(WORLD, "wake", hint.boxed());
            }
        }
    }

    fn wakes(&self) -> WakeSignal {
        WakeSignal::new(self.wakes.of(self.owner).subscribe())
    }
}
