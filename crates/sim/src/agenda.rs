//! What is planned, and when.

use crate::executor::Owner;
use crate::machine::Lack;
use crate::plan::Fault;
use crate::schedule_clients::OfSchedules;
use crate::shortage::Shortage;
use crate::worker_faults::WorkerFault;
use everbeat_model::ReplicaId;
use everbeat_store::memory::State;
use std::collections::BTreeMap;

/// Something that the world does to those in it.
pub(crate) enum Action {
    Boot(usize),
    /// All replicas of this machine are gone.
    Vanish(usize),
    Fault(Fault),
    Thaw(Owner),
    Reconnect(Owner),
    EndOutage,
    EndRenewals,
    EndSlowness(Owner),
    Shortage(Shortage),
    /// The store fails over to what it was at the time of the copy, and is away for a while.
    Restore(Box<Copy>),
    Resume(&'static str),
    /// A machine lacks something to begin commands, for so long.
    Shorten(usize, u64, Lack),
    Submit(u64),
    SubmitJob(u64),
    /// For a worker.
    SubmitWork(u64),
    /// Something happens to some worker.
    WorkerFault(WorkerFault, u64),
    /// A worker of no pool is started, for some queues.
    StartRemote(Vec<String>),
    Cancel,
    Retry,
    /// Clients apply this version of the graphs.
    Apply(u32),
    /// Clients start an execution.
    Start,
    /// A client asks something of an execution.
    Request,
    /// Clients ask something of schedules.
    OfSchedules(OfSchedules),
    Heal,
    SubmitHealed(usize),
    Look,
}

/// The store as a lagging standby has it.
pub(crate) struct Copy {
    pub(crate) state: State,
    pub(crate) at: u64,
    /// When the beats that it shows were made.
    pub(crate) beats: BTreeMap<ReplicaId, u64>,
    pub(crate) away: u64,
}

#[derive(Default)]
pub(crate) struct Agenda {
    planned: BTreeMap<(u64, u64), Action>,
    serial: u64,
    /// The next action is due, after so many more steps.
    armed: Option<u64>,
}

impl Agenda {
    pub(crate) fn plan(&mut self, at: u64, action: Action) {
        self.serial += 1;
        self.planned.insert((at, self.serial), action);
    }

    /// When the next action is due.
    pub(crate) fn next(&self) -> Option<u64> {
        self.planned.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn arm(&mut self, now: u64, steps: u64) {
        if self.armed.is_none() && self.next().is_some_and(|at| at <= now) {
            self.armed = Some(steps);
        }
    }

    pub(crate) fn fires(&self) -> bool {
        self.armed == Some(0)
    }

    pub(crate) fn stepped(&mut self) {
        self.armed = self.armed.map(|steps| steps.saturating_sub(1));
    }

    /// Nothing else can happen before the armed action; answers whether there is one.
    pub(crate) fn hurry(&mut self) -> bool {
        self.armed = self.armed.map(|_| 0);
        self.armed.is_some()
    }

    pub(crate) fn take(&mut self) -> Option<Action> {
        self.armed = None;
        self.planned.pop_first().map(|(_, action)| action)
    }

    /// Drops all faults and repairs that are still to come.
    pub(crate) fn clear(&mut self) {
        self.planned.clear();
    }
}
