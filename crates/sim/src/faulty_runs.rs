//! One replica's way to the runs of the store.

use crate::faulty_store::FaultyStore;
use crate::job_checker;
use crate::shared::Shared;
use async_trait::async_trait;
use everbeat_model::lease::Shown;
use everbeat_model::run::Claimed;
use everbeat_model::{Attempt, ReplicaId, Run, RunId, Settled, Settlement, Token};
use everbeat_store::{
    Cancelled, Claim, Enqueue, Enqueued, Held, Memory, Part, Promoted, Reopened, Result, RunFilter, Runs, Sign, Signed,
    Which,
};
use std::sync::Arc;
use std::time::Duration;

#[async_trait]
impl Runs for FaultyStore {
    async fn enqueue(&self, requests: Vec<Enqueue>) -> Result<Vec<Result<Vec<Enqueued>>>> {
        let short = self.short();
        let enqueue = move |store: Arc<Memory>| async move {
            short.map_or(Ok(()), |short| short.enqueues(&requests))?;
            store.enqueue(requests).await
        };
        self.call("enqueue", enqueue).await
    }

    async fn claim(&self, request: Claim) -> Result<Vec<Claimed>> {
        let owner = self.owner;
        let granted = move |shared: &Shared, claimed: &Vec<Claimed>| {
            let now = shared.now();
            for claimed in claimed {
                let lease = &claimed.lease;
                let mut truth = shared.truth();
                truth.report.attempts += 1;
                truth.grants.entry((owner, lease.run_id, lease.attempt)).or_default().push(lease.token);
                truth.granted_at.insert(lease.token, now);
                truth.owners.insert(lease.token, (lease.replica_id, now));
                drop(truth);
                shared.trace(|truth| {
                    let name = truth.name(lease.run_id);
                    format!("{} is granted {name} attempt {}", truth.label(owner), lease.attempt)
                });
            }
        };
        self.call_and("claim", move |store| async move { store.claim(request).await }, granted).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        let shown: Vec<(Shown, everbeat_model::Outcome)> =
            settlements.iter().map(|settlement| (settlement.shown, settlement.ending.outcome)).collect();
        let owner = self.owner;
        let settled = move |shared: &Shared, answers: &Vec<Settled>| {
            for ((shown, outcome), answer) in shown.iter().zip(answers) {
                if *answer == Settled::Done {
                    job_checker::accepted(&mut shared.truth(), shown);
                }
                shared.trace(|truth| {
                    let (name, rescue) = (truth.name(shown.run_id), if shown.rescue { " (rescue)" } else { "" });
                    let outcome = outcome.as_str();
                    format!(
                        "{} settles {name} attempt {} {outcome}{rescue}: {answer:?}",
                        truth.label(owner),
                        shown.attempt
                    )
                });
            }
        };
        let short = self.short();
        let settle = move |store: Arc<Memory>| async move {
            short.map_or(Ok(()), |short| short.settles(&settlements))?;
            store.settle(settlements).await
        };
        self.call_and("settle", settle, settled).await
    }

    async fn was_settled(&self, leases: Vec<(RunId, Token)>) -> Result<Vec<bool>> {
        self.call("was_settled", move |store| async move { store.was_settled(leases).await }).await
    }

    async fn sign(&self, signs: Vec<Sign>) -> Result<Vec<Signed>> {
        let shown: Vec<Shown> = signs.iter().map(|sign| sign.shown).collect();
        let signed = move |shared: &Shared, answers: &Vec<Signed>| {
            for (shown, answer) in shown.iter().zip(answers) {
                if matches!(answer, Signed::Accepted { .. }) {
                    job_checker::accepted(&mut shared.truth(), shown);
                }
            }
        };
        let short = self.short();
        let sign = move |store: Arc<Memory>| async move {
            short.map_or(Ok(()), |short| short.signs(&signs))?;
            store.sign(signs).await
        };
        self.call_and("sign", sign, signed).await
    }

    async fn cancel(&self, run: RunId) -> Result<Cancelled> {
        let cancelled = move |shared: &Shared, answer: &Cancelled| {
            if matches!(answer, Cancelled::Ended | Cancelled::Asked) {
                shared.truth().cancelled.insert(run);
            }
        };
        self.call_and("cancel", move |store| async move { store.cancel(run).await }, cancelled).await
    }

    async fn cancel_asked(&self, replica: ReplicaId) -> Result<Vec<Shown>> {
        self.call("cancel_asked", move |store| async move { store.cancel_asked(replica).await }).await
    }

    async fn reopen(&self, run: RunId, attempt: u32) -> Result<Reopened> {
        let reopened = move |shared: &Shared, answer: &Reopened| {
            if *answer == Reopened::Ready {
                let mut truth = shared.truth();
                *truth.reopenings.entry(run).or_default() += 1;
                truth.cancelled.remove(&run);
            }
        };
        self.call_and("reopen", move |store| async move { store.reopen(run, attempt).await }, reopened).await
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        self.call("promote", move |store| async move { store.promote(limit).await }).await
    }

    async fn lease_index(&self, replica: ReplicaId, after: Option<RunId>, limit: usize) -> Result<Vec<Shown>> {
        self.call("lease_index", move |store| async move { store.lease_index(replica, after, limit).await }).await
    }

    async fn held(&self, which: Which) -> Result<Vec<Held>> {
        self.call("held", move |store| async move { store.held(which).await }).await
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>> {
        self.call("run", move |store| async move { store.run(id).await }).await
    }

    async fn finished(&self, runs: Vec<RunId>) -> Result<Vec<RunId>> {
        self.call("finished", move |store| async move { store.finished(runs).await }).await
    }

    async fn runs(&self, filter: RunFilter) -> Result<Part<Run>> {
        self.call("runs", move |store| async move { store.runs(filter).await }).await
    }

    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>> {
        self.call("attempts", move |store| async move { store.attempts(run).await }).await
    }

    async fn place(&self, shown: Shown, host: Option<String>) -> Result<bool> {
        self.call("place", move |store| async move { store.place(shown, host).await }).await
    }

    async fn bound_hosts(&self) -> Result<Vec<String>> {
        self.call("bound_hosts", move |store| async move { store.bound_hosts().await }).await
    }

    async fn unbind(&self, host: String, limit: usize) -> Result<usize> {
        self.call("unbind", move |store| async move { store.unbind(host, limit).await }).await
    }

    async fn adopt(&self, to: ReplicaId, limit: usize) -> Result<Vec<Held>> {
        let adopted = |shared: &Shared, held: &Vec<Held>| job_checker::adopted(shared, held);
        self.call_and("adopt", move |store| async move { store.adopt(to, limit).await }, adopted).await
    }

    async fn forget(&self, run: RunId) -> Result<bool> {
        self.call("forget", move |store| async move { store.forget(run).await }).await
    }

    async fn forget_runs(&self, keep: Duration, limit: usize) -> Result<usize> {
        self.call("forget_runs", move |store| async move { store.forget_runs(keep, limit).await }).await
    }
}
