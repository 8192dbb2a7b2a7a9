//! What happens to workers: they die, are stopped, or are cut off from their replica.

use crate::agenda::Action;
use crate::executor::Owner;
use crate::rng::Rng;
use crate::shared::Shared;
use crate::worker::Worker;
use crate::workers::WORKER_TASK;
use crate::workload;
use crate::world::World;
use everbeat_engine::Submit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MS: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerFault {
    Dies,
    /// As by SIGSTOP, for a while.
    Stops,
    /// Nothing passes between the worker and its replica, for a while.
    CutOff,
}

impl World {
    /// With chances of their own, so that they change nothing else in the history of a seed.
    pub(crate) fn plan_workers(&mut self) {
        if !self.plan.workers {
            return;
        }
        let mut rng = Rng::new(self.shared.seed, 19);
        let trouble = self.plan.trouble;
        for serial in 0..rng.between(5, 15) {
            self.agenda.plan(rng.between(300 * MS, trouble), Action::SubmitWork(serial));
        }
        for _ in 0..rng.between(1, 8) {
            let fault = *rng.pick(&[WorkerFault::Dies, WorkerFault::Stops, WorkerFault::CutOff]);
            self.agenda.plan(rng.between(500 * MS, trouble), Action::WorkerFault(fault, rng.next()));
        }
    }

    /// A run like others, which a worker performs.
    pub(crate) fn submit_work(&mut self, serial: u64) {
        let store_now = self.shared.clocks.store(self.shared.now());
        let serial = 10_000 + serial;
        let (submit, idempotency) = workload::submission(&mut self.rng, serial, store_now);
        self.send(Submit { task: WORKER_TASK.to_string(), ..submit }, idempotency);
    }

    pub(crate) fn worker_fault(&mut self, fault: WorkerFault, chance: u64) {
        let mut rng = Rng::new(chance, 20);
        let living: Vec<Arc<Worker>> = self.shared.workers().values().filter(|at| !at.is_dead()).cloned().collect();
        if living.is_empty() {
            return;
        }
        let worker = rng.pick(&living).clone();
        let now = self.shared.now();
        let until = now + rng.between(10, 2500) * MS;
        match fault {
            WorkerFault::Dies => {
                self.tell("death of a worker", Some(worker.replica));
                worker.kill();
            }
            WorkerFault::Stops => {
                self.tell("worker that is stopped", Some(worker.replica));
                worker.troubled_at.fetch_max(until, Ordering::SeqCst);
                self.shared.executor.freeze(worker.owner);
                self.agenda.plan(until, Action::Thaw(worker.owner));
            }
            WorkerFault::CutOff => {
                self.tell("worker that is cut off", Some(worker.replica));
                worker.cut(until);
            }
        }
    }

    pub(crate) fn heal_workers(&mut self) {
        let living: Vec<Arc<Worker>> = self.shared.workers().values().cloned().collect();
        for worker in living {
            self.thaw(worker.owner);
            worker.cut(0);
        }
    }
}

impl Shared {
    /// The worker of a replica dies with it: the kernel sees to that.
    pub(crate) fn end_worker(&self, replica: Owner) {
        let worker = self.workers().remove(&replica);
        if let Some(worker) = worker {
            worker.kill();
        }
    }
}
