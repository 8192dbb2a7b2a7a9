//! What clients do: they submit, cancel, retry, pause, and believe what they are told.

use crate::executor::Owner;
use crate::shared::Shared;
use crate::workload;
use crate::world::World;
use everbeat_engine::{Engine, Submit, within};
use everbeat_model::RunId;
use everbeat_store::Idempotency;
use futures_util::FutureExt;
use std::future::Future;
use std::time::Duration;

/// Clients wait this long for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

impl World {
    /// A request of a client to some replica, which dies with that replica.
    pub(crate) fn ask<F>(&mut self, name: &'static str, request: impl FnOnce(Engine) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let up: Vec<(Owner, Engine)> = self.hosts.iter().filter_map(|host| host.boot.clone()).collect();
        if up.is_empty() {
            return;
        }
        let (owner, engine) = self.rng.pick(&up).clone();
        self.shared.trace(|truth| format!("a client asks {} to {name}", truth.label(owner)));
        let env = engine.env().clone();
        let request = request(engine);
        let bounded = async move {
            within(&*env, PATIENCE, request).await;
        };
        self.shared.executor.spawn(owner, "client", bounded.boxed());
    }

    pub(crate) fn submit(&mut self, serial: u64) {
        let store_now = self.shared.clocks.store(self.shared.now());
        let (submit, idempotency) = workload::submission(&mut self.rng, serial, store_now);
        self.send(submit, idempotency);
    }

    /// Asks for a run, twice if that may be asked again.
    pub(crate) fn send(&mut self, submit: Submit, idempotency: Option<Idempotency>) {
        let shared = self.shared.clone();
        shared.truth().report.unacknowledged += 1;
        let times = if idempotency.is_some() { 2 } else { 1 };
        for _ in 0..times {
            let (shared, submit, idempotency) = (shared.clone(), submit.clone(), idempotency.clone());
            let epoch = shared.network().epoch;
            self.ask("submit", move |engine| async move {
                let key = idempotency.as_ref().map(|idempotency| idempotency.key.clone());
                if let Ok(accepted) = engine.submit(submit, idempotency).await {
                    acknowledged(&shared, accepted.id, key, epoch);
                }
            });
        }
    }

    pub(crate) fn submit_job(&mut self, serial: u64) {
        if !self.plan.performs_jobs {
            return;
        }
        let (submit, idempotency) = workload::job(&mut self.rng, serial, self.plan.focus);
        let shared = self.shared.clone();
        shared.truth().report.unacknowledged += 1;
        let epoch = shared.network().epoch;
        self.ask("submit a job", move |engine| async move {
            let key = idempotency.as_ref().map(|idempotency| idempotency.key.clone());
            if let Ok(accepted) = engine.submit_job(submit, idempotency).await {
                acknowledged(&shared, accepted.id, key, epoch);
            }
        });
    }

    /// Once all is mended, every replica must take a run, and say so.
    pub(crate) fn submit_healed(&mut self, host: usize) {
        self.bring_back_ended();
        let Some((owner, engine)) = self.hosts[host].boot.clone() else { return };
        let store_now = self.shared.clocks.store(self.shared.now());
        let (submit, _) = workload::submission(&mut self.rng, 1000 + host as u64, store_now);
        let shared = self.shared.clone();
        let epoch = shared.network().epoch;
        let env = engine.env().clone();
        let request = async move {
            match within(&*env, PATIENCE, engine.submit(submit, None)).await {
                Some(Ok(accepted)) => acknowledged(&shared, accepted.id, None, epoch),
                Some(Err(error)) => {
                    shared.truth().violate("liveness", format!("a healed replica refuses runs: {error}"))
                }
                None => shared.truth().violate("liveness", "a healed replica does not answer a submission".to_string()),
            }
        };
        self.shared.truth().report.unacknowledged += 1;
        self.shared.executor.spawn(owner, "client", request.boxed());
    }
}

/// From now on the run may not be lost, unless a failover took it before the answer arrived.
fn acknowledged(shared: &Shared, run: RunId, key: Option<String>, epoch: u64) {
    let kept = shared.memory.inspect(|state| state.runs.contains_key(&run));
    let same_store = shared.network().epoch == epoch;
    let mut truth = shared.truth();
    truth.report.unacknowledged = truth.report.unacknowledged.saturating_sub(1);
    if !kept && !same_store {
        truth.report.lost_to_failover += 1;
        return;
    }
    truth.accepted.insert(run);
    if let Some(key) = key.filter(|_| same_store)
        && let Some(other) = truth.keys.insert(key.clone(), run)
        && other != run
    {
        truth.violate("G1", format!("two runs were made for the idempotency key {key:?}"));
    }
}
