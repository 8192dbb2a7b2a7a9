//! A run as it is shown, with its liveness.

use crate::Engine;
use crate::attempts::{Beats, Performer};
use crate::engine::lock;
use everbeat_model::replica::ReplicaState;
use everbeat_model::run::Spec;
use everbeat_model::watch::Appearance;
use everbeat_model::{BootInstant, Replica, ReplicaId, Run, RunId, RunState, StoreTime, WorkerId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A run as this replica sees it: what is stored, and what the replica knows of its life.
#[derive(Clone, Debug, PartialEq)]
pub struct RunView {
    pub run: Run,
    /// Of a running run.
    pub liveness: Option<Liveness>,
    pub last_heartbeat_at: Option<StoreTime>,
    pub heartbeat_deadline: Option<StoreTime>,
    pub deadline: Option<StoreTime>,
    /// The run is a command that this replica is about to begin: nothing of it can be seen yet.
    pub starting: bool,
    /// The worker that performs it, if a worker of this replica does.
    pub worker: Option<WorkerId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    Alive,
    Suspect,
    Stalled,
    Unknown,
}

impl Engine {
    pub(crate) fn view(&self, run: Run) -> RunView {
        if run.state != RunState::Running {
            return RunView {
                last_heartbeat_at: run.last_heartbeat_at,
                liveness: None,
                heartbeat_deadline: None,
                deadline: None,
                starting: false,
                worker: None,
                run,
            };
        }
        let run = Run { worker_id: self.worker_of(run.id, run.attempt).or(run.worker_id), ..run };
        let (liveness, own) = self.life_of(&run);
        let policy = run.spec.policy.clone();
        let last_heartbeat_at = own.or(run.last_heartbeat_at);
        RunView {
            liveness: Some(liveness),
            heartbeat_deadline: last_heartbeat_at.zip(policy.heartbeat_timeout).map(|(at, timeout)| at.plus(timeout)),
            deadline: run.started_at.zip(policy.deadline).map(|(at, deadline)| at.plus(deadline)),
            last_heartbeat_at,
            starting: self.begins(&run),
            worker: self.performing(&run),
            run,
        }
    }

    /// The worker that performs an attempt now, if one of this replica does. The store learns it with the ending.
    pub(crate) fn worker_of(&self, run: RunId, attempt: u32) -> Option<String> {
        let work = self.core.life()?.table().of_run(run).filter(|work| work.claimed.lease.attempt == attempt)?;
        let worker = work.vital().worker;
        worker.map(|worker| worker.to_string())
    }

    /// Whether the run is a command that this replica is about to begin.
    pub(crate) fn begins(&self, run: &Run) -> bool {
        let Some(life) = self.core.life().filter(|life| run.replica_id == Some(life.id)) else { return false };
        let work = life.table().of_run(run.id).filter(|work| work.claimed.lease.attempt == run.attempt);
        match work {
            Some(work) => work.vital().starting,
            None => self.performer_of(&run.spec).is_some_and(Performer::starts_unseen) && self.just_claimed(run),
        }
    }

    /// Whoever performs such runs at this replica.
    pub(super) fn performer_of(&self, spec: &Spec) -> Option<&dyn Performer> {
        self.core.performers.iter().map(|performer| &**performer).find(|performer| performer.performs(spec))
    }

    /// The worker of this replica that performs a run.
    fn performing(&self, run: &Run) -> Option<WorkerId> {
        let life = self.core.life().filter(|life| run.replica_id == Some(life.id))?;
        let work = life.table().of_run(run.id).filter(|work| work.claimed.lease.attempt == run.attempt)?;
        work.vital().worker
    }

    /// The claim of the run is stored, and the answer to that may still be on its way to this replica.
    fn just_claimed(&self, run: &Run) -> bool {
        run.started_at.is_some_and(|at| self.core.now().since(at) < self.core.settings.heartbeat_interval)
    }

    /// How a running run does, and its last sign of life if it is performed here.
    fn life_of(&self, run: &Run) -> (Liveness, Option<StoreTime>) {
        let (Some(life), Some(owner)) = (self.core.life(), run.replica_id) else { return (Liveness::Unknown, None) };
        if owner != life.id {
            return (self.appearance(owner), None);
        }
        let now = self.core.env.boot();
        let work = life.table().of_run(run.id).filter(|work| work.claimed.lease.attempt == run.attempt);
        let Some(work) = work else {
            return (if self.just_claimed(run) { Liveness::Alive } else { Liveness::Unknown }, None);
        };
        let policy = &run.spec.policy;
        let (last_beat, last_progress, doubt) = {
            let vital = work.vital();
            (vital.last_beat, vital.last_progress, vital.doubt)
        };
        let older = |than: BootInstant, span: Option<Duration>| span.is_some_and(|span| now.since(than) >= span);
        let liveness = if let Some(doubt) = doubt {
            doubt
        } else if older(last_progress, policy.stall_timeout) {
            Liveness::Stalled
        } else if work.terms.beats == Beats::ByHand && older(last_beat, Some(policy.heartbeat_interval * 2)) {
            Liveness::Suspect
        } else {
            Liveness::Alive
        };
        (liveness, Some(life.last_heartbeat_at(&work)))
    }

    fn appearance(&self, owner: ReplicaId) -> Liveness {
        let Some(life) = self.core.life() else { return Liveness::Unknown };
        match lock(&life.watch).appearance(owner, self.core.env.boot()) {
            Appearance::Alive => Liveness::Alive,
            Appearance::Suspect => Liveness::Suspect,
            Appearance::Unknown => Liveness::Unknown,
        }
    }

    /// How a replica looks from here: itself alive, others by observation, the gone not at all.
    pub fn liveness_of(&self, replica: &Replica) -> Option<Liveness> {
        match replica.state {
            ReplicaState::Dead | ReplicaState::Left => None,
            _ if self.replica_id() == Some(replica.id) => Some(Liveness::Alive),
            _ => Some(self.appearance(replica.id)),
        }
    }
}
