//! What happens to workers, their links, their guardians and their servers, and the work that clients ask of them.

use crate::agenda::Action;
use crate::executor::WORLD;
use crate::handler::Script;
use crate::process::{Cause, Condition, Process};
use crate::rng::Rng;
use crate::wire::{Way, Wire};
use crate::workload::{self, QUEUES, REMOTE_TASK, WORKER_TASK};
use crate::world::World;
use everbeat_engine::Submit;
use everbeat_model::Json;
use futures_util::FutureExt;
use std::sync::Arc;

const MS: u64 = 1000;
/// The task of the engine that watches over the workers of a pool.
const WATCHER: &str = "watch workers";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerFault {
    Dies,
    OutOfMemory,
    /// It stops, hangs, computes, or waits for a processor, for a while.
    Falls(Condition),
    /// Nothing passes between the worker and its server, for a while.
    CutOff,
    CutOneWay(Way),
    /// Its link is lost, with all that is under way.
    LinkLost,
    /// Its link is lost, and its server sees that later than what was said before.
    LinkLostLate,
    GuardianDies,
    ServerStalls,
    WatcherStalls,
}

use WorkerFault::*;

const ALL: [WorkerFault; 15] = [
    Dies,
    OutOfMemory,
    Falls(Condition::Stopped),
    Falls(Condition::Hung),
    Falls(Condition::Hung),
    Falls(Condition::Busy),
    Falls(Condition::Starved),
    CutOff,
    CutOneWay(Way::Up),
    CutOneWay(Way::Down),
    LinkLost,
    LinkLostLate,
    GuardianDies,
    ServerStalls,
    WatcherStalls,
];

impl World {
    /// With chances of their own, so that they change nothing else in the history of a seed.
    pub(crate) fn plan_workers(&mut self) {
        if !self.plan.workers {
            return;
        }
        let mut rng = Rng::new(self.shared.seed, 19);
        let (trouble, focused) = (self.plan.trouble, self.plan.focus.is_some());
        // One of them serves all queues, so that nothing waits for ever.
        let remote = rng.below(4);
        for serial in 0..remote {
            let queue = (serial > 0).then(|| rng.pick(&QUEUES).to_string());
            self.agenda.plan(rng.between(0, 600 * MS), Action::StartRemote(queue.into_iter().collect()));
        }
        let work = if focused { rng.between(20, 40) } else { rng.between(6, 18) };
        for serial in 0..work {
            let elsewhere = remote > 0 && rng.chance(0.3);
            let serial = serial * 2 + u64::from(elsewhere);
            self.agenda.plan(rng.between(300 * MS, trouble), Action::SubmitWork(serial));
        }
        let faults = if focused { rng.between(15, 40) } else { rng.between(3, 14) };
        for _ in 0..faults {
            let fault = *rng.pick(&ALL);
            self.agenda.plan(rng.between(500 * MS, trouble), Action::WorkerFault(fault, rng.next()));
        }
    }

    /// A run like others, which a worker performs.
    pub(crate) fn submit_work(&mut self, serial: u64) {
        let store_now = self.shared.clocks.store(self.shared.now());
        let task = if serial % 2 == 1 { REMOTE_TASK } else { WORKER_TASK };
        let (mut submit, idempotency) = workload::submission(&mut self.rng, 10_000 + serial, store_now);
        if self.plan.focus.is_some() && self.rng.chance(0.4) {
            let steps_ms = (0..self.rng.between(3, 8)).map(|_| self.rng.between(10, 150)).collect();
            let script: Script = submit.input.read().unwrap_or_default();
            submit.input = Json::of(&Script { steps_ms, checkpoints: true, ..script });
        }
        let session = self.rng.chance(0.5).then(|| workload::session(&mut self.rng));
        self.send(Submit { task: task.to_string(), accept_unknown: true, session, ..submit }, idempotency);
    }

    pub(crate) fn worker_fault(&mut self, fault: WorkerFault, chance: u64) {
        let mut rng = Rng::new(chance, 20);
        let living: Vec<Arc<Process>> = self.shared.pools().all.values().filter(|at| at.is_alive()).cloned().collect();
        if living.is_empty() {
            return;
        }
        let worker = rng.pick(&living).clone();
        let now = self.shared.now();
        // Around the timeouts more often than not.
        let span = if rng.chance(0.6) { rng.between(200, 1200) } else { rng.between(5, 4000) } * MS;
        // Whoever is stopped for less than its time to live is left in peace.
        let long = fault == Falls(Condition::Stopped) && rng.chance(0.6);
        let span = if long { rng.between(1300, 4000) * MS } else { span };
        let until = now + span;
        let remote = worker.server.is_none();
        let name = match fault {
            Dies => "death of a worker",
            OutOfMemory => "worker out of memory",
            Falls(Condition::Stopped) => "worker that is stopped",
            Falls(Condition::Hung) => "worker that hangs",
            Falls(Condition::Busy) => "worker that computes",
            Falls(_) => "worker that is starved",
            CutOff => "worker that is cut off",
            CutOneWay(_) => "worker that is cut off one way",
            LinkLost => "link that is lost",
            LinkLostLate => "link whose loss is seen late",
            GuardianDies => "death of a guardian",
            ServerStalls => "server that stalls",
            WatcherStalls => "watcher that stalls",
        };
        self.tell(name, worker.server);
        self.shared.trace(|_| format!("{fault:?} for {} ms: {}", span / MS, worker.name()));
        let wires: Vec<Arc<Wire>> = {
            let pools = self.shared.pools();
            let of = pools.wires.iter().filter(|(owner, _)| *owner == worker.owner);
            of.filter_map(|(_, wire)| wire.upgrade()).collect()
        };
        match fault {
            Dies | OutOfMemory => {
                worker.exit(if fault == Dies { Cause::Killed } else { Cause::OutOfMemory });
            }
            Falls(condition) => {
                // Some hang for good.
                let ever = condition == Condition::Hung && !remote && rng.chance(0.4);
                worker.falls(condition, if ever { u64::MAX / 4 } else { span });
            }
            CutOff => {
                worker.cut(until);
                for wire in wires {
                    wire.block(Way::Up, until);
                    wire.block(Way::Down, until);
                }
            }
            CutOneWay(way) => {
                worker.cut(until);
                wires.iter().for_each(|wire| wire.block(way, until));
            }
            LinkLost => {
                let seen_after = rng.between(1, 600) * MS;
                worker.cut(now + seen_after);
                wires.iter().for_each(|wire| wire.lose(false, seen_after));
            }
            LinkLostLate => {
                // What it says meanwhile arrives when it may have come back already.
                let (lost, seen) = (rng.between(20, 250) * MS, rng.between(50, 800) * MS);
                worker.cut(now + lost + seen);
                wires.iter().for_each(|wire| wire.block(Way::Up, now + lost + seen));
                let shared = self.shared.clone();
                let lose = async move {
                    shared.sleep(lost).await;
                    wires.iter().for_each(|wire| wire.lose(true, seen));
                };
                self.shared.executor.spawn(WORLD, "loss", lose.boxed());
            }
            GuardianDies => {
                let warden = worker.guardian.and_then(|owner| self.shared.pools().guardians.get(&owner).cloned());
                if let Some(warden) = warden {
                    warden.dies();
                }
            }
            ServerStalls => {
                let up = worker.server.filter(|server| self.shared.pools().servers.contains_key(server));
                if let Some(server) = up {
                    self.freeze(server, span);
                }
            }
            WatcherStalls => {
                if let Some(server) = worker.server {
                    self.shared.executor.stall(server, WATCHER);
                    let shared = self.shared.clone();
                    let over = async move {
                        shared.sleep(span).await;
                        shared.executor.unstall(server, WATCHER);
                    };
                    self.shared.executor.spawn(WORLD, "watcher", over.boxed());
                }
            }
        }
    }

    pub(crate) fn heal_workers(&mut self) {
        let (all, wires, servers): (Vec<_>, Vec<_>, Vec<_>) = {
            let mut pools = self.shared.pools();
            pools.troubled = false;
            let wires = pools.wires.iter().filter_map(|(_, wire)| wire.upgrade()).collect();
            (pools.all.values().cloned().collect(), wires, pools.servers.keys().copied().collect())
        };
        servers.into_iter().for_each(|server| self.shared.executor.unstall(server, WATCHER));
        all.iter().for_each(Process::recovers);
        wires.iter().for_each(|wire: &Arc<Wire>| wire.unblock());
    }

    /// All processes of a machine are gone.
    pub(crate) fn reboot_workers(&mut self, machine: usize) {
        let all: Vec<Arc<Process>> =
            self.shared.pools().all.values().filter(|at| at.machine == machine).cloned().collect();
        for process in all {
            process.exit(Cause::Reboot);
            process.empty();
        }
    }
}
