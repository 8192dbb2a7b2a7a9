//! One call to the store under way. It travels by itself: when its caller gives up or crashes, it may
//! still arrive, and it may arrive late.

use crate::executor::Owner;
use crate::network::{Fate, Manner};
use crate::shared::Shared;
use everbeat_store::{Error, Memory, Obstacle, Result};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::oneshot;

pub(crate) struct Message {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Owner,
    pub(crate) name: &'static str,
    pub(crate) epoch: u64,
    /// Its number, if it is a sign.
    pub(crate) sign: Option<u64>,
}

impl Message {
    pub(crate) async fn travel<T: Send + 'static>(
        self,
        fate: Fate,
        operation: impl FnOnce(Arc<Memory>) -> BoxFuture<'static, Result<T>> + Send + 'static,
        applied: impl FnOnce(&Shared, &T) + Send + 'static,
        answer: oneshot::Sender<Result<T>>,
    ) {
        let before = match fate {
            Fate::Through { before, .. } | Fate::ErrorAfter { before, .. } | Fate::HangAfter(before) => before,
            Fate::ErrorBefore(before) => {
                self.trouble("error before");
                self.shared.sleep(before).await;
                let _caller_is_gone = answer.send(self.unavailable());
                return;
            }
            Fate::HangBefore => return self.trouble("hang before"),
            Fate::Late { error, apply } => {
                self.trouble("late call");
                self.shared.sleep(error).await;
                let _caller_is_gone = answer.send(self.unavailable());
                self.shared.sleep(apply).await;
                if self.obstacle().is_none() {
                    self.apply(operation, applied).await.ok();
                }
                return;
            }
        };
        if before > SLOW {
            self.troubled();
        }
        self.shared.sleep(before).await;
        match self.obstacle() {
            Some(Manner::Hangs) => return,
            Some(Manner::Fails) => {
                let _caller_is_gone = answer.send(self.unavailable());
                return;
            }
            None => {}
        }
        let outcome = self.apply(operation, applied).await;
        let (after, outcome) = match fate {
            Fate::ErrorAfter { after, .. } => {
                self.trouble("error after");
                (after, self.unavailable())
            }
            Fate::HangAfter(_) => return self.trouble("hang after"),
            Fate::Through { after, .. } => (after, outcome),
            _ => (0, outcome),
        };
        if before + after > SLOW {
            self.troubled();
        }
        self.shared.sleep(after).await;
        if after > SLOW {
            self.troubled();
        }
        let outcome = match self.obstacle() {
            Some(Manner::Hangs) => return,
            Some(Manner::Fails) => self.unavailable(),
            None => outcome,
        };
        let _caller_is_gone = answer.send(outcome);
    }

    async fn apply<T>(
        &self,
        operation: impl FnOnce(Arc<Memory>) -> BoxFuture<'static, Result<T>>,
        applied: impl FnOnce(&Shared, &T),
    ) -> Result<T> {
        if self.sign.is_some_and(|number| !self.shared.network().sign_arrives(self.owner, number)) {
            return self.unavailable();
        }
        let outcome = operation(self.shared.memory.clone()).await;
        if let Ok(done) = &outcome {
            applied(&self.shared, done);
        }
        if !QUIET.contains(&self.name) {
            self.shared.trace(|truth| format!("{}: {}", truth.label(self.owner), self.name));
        }
        outcome
    }

    /// What stands in the way now; a call under way to a store that failed over is gone.
    fn obstacle(&self) -> Option<Manner> {
        let network = self.shared.network();
        if network.epoch != self.epoch {
            return Some(Manner::Fails);
        }
        network.obstacle(self.owner, self.name == "renew")
    }

    fn trouble(&self, fault: &'static str) {
        self.shared.truth().report.fault(fault);
        self.shared.trace(|truth| format!("{}: {fault} of {}", truth.label(self.owner), self.name));
        self.troubled();
    }

    fn troubled(&self) {
        let now = self.shared.now();
        if let Some(boot) = self.shared.truth().boots.get_mut(&self.owner) {
            boot.troubled_at = now;
        }
    }

    fn unavailable<T>(&self) -> Result<T> {
        Err(Error::unavailable(Obstacle::Unreachable, format!("{} failed in the simulation", self.name)))
    }
}

/// A call that took longer is a fault of its own.
const SLOW: u64 = 20_000;

/// Calls that every replica makes all the time, or that are told in words of their own.
const QUIET: [&str; 20] = [
    "adopt",
    "advance_due",
    "cancel_asked",
    "claim",
    "due_schedules",
    "forget_replicas",
    "forget_runs",
    "forget_verdicts",
    "held",
    "lease_index",
    "observe",
    "promote",
    "renew",
    "settle",
    "stamps",
    "sweep_due",
    "trim_events",
    "value",
    "verdicts",
    "was_settled",
];
