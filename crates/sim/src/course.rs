//! The course of a world: what is planned for it at its beginning, and what is done when its time has come.

use crate::agenda::Action;
use crate::machine::Lack;
use crate::rng::Rng;
use crate::worker;
use crate::world::World;

const MS: u64 = 1000;

impl World {
    pub(crate) fn plan_agenda(&mut self) {
        for host in 0..self.plan.hosts {
            let at = self.rng.below(300 * MS);
            self.agenda.plan(at, Action::Boot(host));
        }
        let trouble = self.plan.trouble;
        let mut at = 500 * MS;
        while at < trouble {
            let fault = *self.rng.pick(&self.plan.faults);
            self.agenda.plan(at, Action::Fault(fault));
            at += self.rng.between(self.plan.pause / 4, self.plan.pause * 7 / 4);
        }
        for serial in 0..self.plan.submissions {
            let at = self.rng.between(300 * MS, trouble);
            self.agenda.plan(at, Action::Submit(serial));
        }
        for _ in 0..self.plan.commands {
            let at = self.rng.between(1000 * MS, trouble);
            self.agenda.plan(at, if self.rng.chance(0.6) { Action::Cancel } else { Action::Retry });
        }
        for serial in 0..self.plan.jobs {
            let at = self.rng.between(300 * MS, trouble);
            self.agenda.plan(at, Action::SubmitJob(serial));
        }
        if self.plan.performs_jobs {
            self.plan_shortages();
        }
        if self.plan.graphs {
            self.plan_graphs();
        }
        if self.plan.schedules {
            self.plan_schedules();
        }
        self.plan_shortage();
        self.plan_workers();
        self.agenda.plan(trouble, Action::Heal);
    }

    /// With chances of their own, so that they change nothing else in the history of a seed.
    fn plan_shortages(&mut self) {
        let mut rng = Rng::new(self.shared.seed, 16);
        if !rng.chance(0.3) {
            return;
        }
        for _ in 0..rng.between(1, 4) {
            let at = rng.between(300 * MS, self.plan.trouble);
            let machine = rng.below(self.plan.machines as u64) as usize;
            let lack = *rng.pick(&[Lack::Shim, Lack::Record, Lack::Command]);
            self.agenda.plan(at, Action::Shorten(machine, rng.between(50, 4000) * MS, lack));
        }
    }

    /// Does what is planned. Answers whether the world goes on.
    pub(crate) fn act(&mut self, action: Action) -> bool {
        let now = self.shared.now();
        match action {
            Action::Boot(host) => {
                self.bring_back_ended();
                if self.hosts[host].boot.is_none() && self.hosts[host].away_until <= now {
                    self.boot(host);
                }
            }
            Action::Vanish(machine) => self.drain_all(machine, 500, 5000),
            Action::Fault(fault) => {
                self.bring_back_ended();
                self.fault(fault);
            }
            Action::Thaw(owner) => self.thaw(owner),
            Action::Reconnect(owner) => self.reconnect(owner),
            Action::EndOutage => {
                self.shared.network().outage = None;
                self.end_common();
            }
            Action::EndRenewals => {
                self.shared.network().renewals = None;
                self.end_common();
            }
            Action::EndSlowness(owner) => {
                let mut network = self.shared.network();
                network.slow_owner = network.slow_owner.filter(|slow| *slow != owner);
            }
            Action::Shortage(shortage) => {
                self.tell(shortage.name(), None);
                self.shared.network().shortage = Some(shortage);
            }
            Action::Restore(copy) => self.restore(*copy),
            Action::Resume(queue) => self.ask("resume", move |engine| async move {
                engine.pause_queue(queue, false).await.ok();
            }),
            Action::Shorten(machine, span, lack) => {
                self.tell("shortage on a machine", None);
                self.machines[machine].disk().short = Some((now + span, lack));
            }
            Action::Submit(serial) => self.submit(serial),
            Action::SubmitJob(serial) => self.submit_job(serial),
            Action::SubmitWork(serial) => self.submit_work(serial),
            Action::WorkerFault(fault, chance) => self.worker_fault(fault, chance),
            Action::StartRemote(queues) => worker::start_remote(&self.shared, queues, 0),
            Action::Cancel | Action::Retry => {
                let runs: Vec<_> = self.shared.truth().accepted.iter().copied().collect();
                if !runs.is_empty() {
                    let run = *self.rng.pick(&runs);
                    let cancels = matches!(action, Action::Cancel);
                    self.ask(if cancels { "cancel" } else { "retry" }, move |engine| async move {
                        if cancels {
                            engine.cancel(run).await.ok()
                        } else {
                            engine.retry(run).await.ok()
                        };
                    });
                }
            }
            Action::Apply(version) => self.apply(version),
            Action::Start => self.start(),
            Action::Request => self.request(),
            Action::OfSchedules(what) => self.of_schedules(what),
            Action::Heal => self.heal(now),
            Action::SubmitHealed(host) => {
                self.submit_healed(host);
                if self.plan.graphs {
                    self.execute_healed(host);
                }
            }
            Action::Look => {
                self.bring_back_ended();
                self.end_shortage();
                self.agenda.plan(now + 100 * MS, Action::Look);
                return self.look_for_end();
            }
        }
        true
    }
}
