//! Mends what was broken, one thing at its time, and everything in the end.

use crate::agenda::Action;
use crate::executor::Owner;
use crate::network::Rates;
use crate::truth::{BootState, WindowKind};
use crate::workload::QUEUES;
use crate::world::World;

const MS: u64 = 1000;

impl World {
    pub(crate) fn thaw(&mut self, owner: Owner) {
        let now = self.shared.now();
        if self.shared.executor.is_frozen(owner) {
            self.shared.executor.thaw(owner);
            let mut truth = self.shared.truth();
            truth.close(owner, WindowKind::Frozen, now);
            truth.performing_changed = true;
            drop(truth);
            self.shared.trace(|truth| format!("{} thaws", truth.label(owner)));
        }
    }

    pub(crate) fn reconnect(&mut self, owner: Owner) {
        let now = self.shared.now();
        self.shared.network().cut.remove(&owner);
        self.shared.truth().close(owner, WindowKind::Cut, now);
        self.shared.trace(|truth| format!("{} is connected again", truth.label(owner)));
    }

    pub(crate) fn end_common(&mut self) {
        let now = self.shared.now();
        self.shared
            .truth()
            .common
            .iter_mut()
            .filter(|window| window.to.is_none())
            .for_each(|window| window.to = Some(now));
        self.shared.trace(|_| "the store answers again".to_string());
    }

    /// A replica that left in order is started again, as its service manager would.
    pub(crate) fn bring_back_ended(&mut self) {
        for host in 0..self.hosts.len() {
            let ended = self.hosts[host].boot.as_ref().is_some_and(|(owner, _)| {
                self.shared.truth().boots.get(owner).is_some_and(|boot| boot.state == BootState::Ended)
            });
            if ended && self.hosts[host].away_until <= self.shared.now() {
                self.take_down(host, BootState::Ended);
                self.boot(host);
                self.shared.truth().report.fault("restart");
            }
        }
    }

    /// Mends everything, and from then on demands that all work finishes.
    pub(crate) fn heal(&mut self, now: u64) {
        self.shared.trace(|_| "HEAL".to_string());
        self.agenda.clear();
        let owners: Vec<Owner> = self.shared.truth().boots.keys().copied().collect();
        for owner in owners {
            self.thaw(owner);
            self.shared.truth().close(owner, WindowKind::Cut, now);
        }
        self.end_common();
        self.heal_workers();
        let mut network = self.shared.network();
        network.cut.clear();
        network.outage = None;
        network.renewals = None;
        network.slow_owner = None;
        if let Some(shortage) = &mut network.shortage {
            shortage.healed = true;
        }
        let wake_lost = if self.plan.wakes_stay_lossy { self.plan.rates.wake_lost } else { 0.0 };
        network.rates = Rates { wake_lost, ..Rates::default() };
        drop(network);
        self.machines.iter().for_each(|machine| machine.disk().short = None);
        self.shared.clocks.mend_store();
        self.healed_at = Some(now);
        for host in 0..self.hosts.len() {
            self.hosts[host].away_until = now;
            if self.hosts[host].boot.is_none() {
                self.boot(host);
                self.shared.truth().report.fault("restart");
            }
            self.agenda.plan(now + 5000 * MS, Action::SubmitHealed(host));
        }
        for queue in QUEUES {
            // After whatever pause may still be under way.
            self.agenda.plan(now + 4500 * MS, Action::Resume(queue));
        }
        if self.plan.schedules {
            self.heal_schedules(now);
        }
        self.agenda.plan(now + 6000 * MS, Action::Look);
    }
}
