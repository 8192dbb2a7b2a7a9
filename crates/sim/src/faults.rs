//! Breaks the world: replicas, their network, the store and the clocks.

use crate::agenda::{Action, Copy};
use crate::executor::Owner;
use crate::network::Manner;
use crate::plan::Fault;
use crate::truth::{BootState, Window, WindowKind};
use crate::workload::QUEUES;
use crate::world::World;
use futures_util::FutureExt;

const MS: u64 = 1000;
/// Common outages keep this distance: several short ones in a row would be one long one.
const OUTAGE_DISTANCE: u64 = 2_500 * MS;

impl World {
    pub(crate) fn fault(&mut self, fault: Fault) {
        let now = self.shared.now();
        let up: Vec<(usize, Owner)> = self
            .hosts
            .iter()
            .enumerate()
            .filter_map(|(host, at)| at.boot.as_ref().map(|(owner, _)| (host, *owner)))
            .collect();
        if up.is_empty() {
            return;
        }
        let (host, owner) = *self.rng.pick(&up);
        let manner = if self.rng.chance(0.5) { Manner::Hangs } else { Manner::Fails };
        match fault {
            Fault::Crash => {
                self.tell("crash", Some(owner));
                self.take_down(host, BootState::Crashed);
                let down = self.rng.between(10, 2500);
                self.agenda.plan(now + down * MS, Action::Boot(host));
            }
            Fault::Freeze => {
                self.tell("freeze", Some(owner));
                let span = self.span();
                self.freeze(owner, span);
            }
            Fault::FreezeSeveral => {
                self.tell("freeze of several", None);
                let span = self.span();
                for (_, owner) in up {
                    if self.rng.chance(0.8) {
                        let more = self.rng.below(600 * MS);
                        self.freeze(owner, span + more);
                    }
                }
            }
            Fault::Partition => {
                self.tell("partition", Some(owner));
                self.shared.network().cut.insert(owner, manner);
                self.shared.truth().open(owner, WindowKind::Cut, now);
                let span = self.span();
                self.agenda.plan(now + span, Action::Reconnect(owner));
            }
            Fault::Outage if self.common_allowed() => {
                self.tell("outage", None);
                let span = self.common_span();
                self.begin_outage(manner, span);
            }
            Fault::RenewalsFail if self.common_allowed() => {
                self.tell("renewals fail for all", None);
                self.shared.network().renewals = Some(manner);
                self.shared.truth().common.push(Window { kind: WindowKind::Cut, from: now, to: None });
                let span = self.common_span();
                self.agenda.plan(now + span, Action::EndRenewals);
            }
            Fault::Failover if self.common_allowed() => {
                let (lag, away) = (self.rng.between(5, 600) * MS, self.rng.below(400) * MS);
                let beats = self.shared.truth().lives.iter().map(|(id, life)| (*id, life.beat_at)).collect();
                let copy = Copy { state: self.shared.memory.snapshot(), at: now, beats, away };
                self.agenda.plan(now + lag, Action::Restore(Box::new(copy)));
            }
            Fault::Outage | Fault::RenewalsFail | Fault::Failover => {}
            Fault::HostClock => {
                self.tell("wall clock of a host jumps", Some(owner));
                let jump = self.jump();
                self.shared.clocks.jump_host(self.hosts[host].machine, jump);
            }
            Fault::StoreClock => {
                self.tell("wall clock of the store jumps", None);
                let jump = self.jump();
                self.shared.clocks.jump_store(jump);
            }
            Fault::SlowReplica => {
                self.tell("slow replica", Some(owner));
                self.shared.network().slow_owner = Some(owner);
                let span = self.rng.between(300, 3000) * MS;
                self.agenda.plan(now + span, Action::EndSlowness(owner));
            }
            Fault::Drain => self.drain(owner),
            Fault::PauseQueue => {
                self.tell("pause of a queue", None);
                let queue = *self.rng.pick(&QUEUES);
                self.ask("pause", move |engine| async move {
                    engine.pause_queue(queue, true).await.ok();
                });
                let span = self.rng.between(200, 3000) * MS;
                self.agenda.plan(now + span, Action::Resume(queue));
            }
            Fault::Reboot => {
                self.tell("reboot of a machine", Some(owner));
                let machine = self.hosts[host].machine;
                self.leave_alone(machine, 50, 4000);
                self.reboot(machine);
            }
            Fault::HostAway => {
                self.tell("host without replicas", Some(owner));
                self.leave_alone(self.hosts[host].machine, 500, 7000);
            }
            Fault::HostDrains => {
                self.tell("host whose replicas leave", Some(owner));
                self.drain_all(self.hosts[host].machine, 1500, 9000);
            }
            Fault::HostFlaps => {
                self.tell("host that comes back for a moment", Some(owner));
                let (machine, away) = (self.hosts[host].machine, self.rng.between(900, 1700));
                self.drain_all(machine, away, away);
                let stay = self.rng.between(10, 150);
                self.agenda.plan(now + (away + stay) * MS, Action::Vanish(machine));
            }
            Fault::FolderGone => self.take_folder_away(),
            Fault::ShimDies => {
                if let Some((machine, job, token)) = self.some_shim() {
                    self.tell("death of a shim", None);
                    crate::shim::kill(&self.shared, &self.machines[machine], job, token);
                }
            }
            Fault::ShimHangs => {
                if let Some((machine, job, token)) = self.some_shim() {
                    self.tell("shim that hangs", None);
                    self.hang_shim(machine, job, token);
                }
            }
        }
    }

    pub(crate) fn tell(&mut self, fault: &'static str, owner: Option<Owner>) {
        self.shared.truth().report.fault(fault);
        self.shared.trace(|truth| match owner {
            Some(owner) => format!("FAULT {fault}: {}", truth.label(owner)),
            None => format!("FAULT {fault}"),
        });
    }

    /// Around the timeout more often than not: that is where mistakes are.
    fn span(&mut self) -> u64 {
        let millis = if self.rng.chance(0.6) { self.rng.between(300, 1800) } else { self.rng.between(10, 4000) };
        millis * MS
    }

    /// Well below half a timeout, or well above: in between, either behaviour is right.
    fn common_span(&mut self) -> u64 {
        let millis = if self.rng.chance(0.3) { self.rng.between(20, 350) } else { self.rng.between(800, 3500) };
        millis * MS
    }

    fn common_allowed(&self) -> bool {
        let now = self.shared.now();
        let truth = self.shared.truth();
        truth.common.last().is_none_or(|last| last.to.is_some_and(|to| now > to + OUTAGE_DISTANCE))
    }

    fn jump(&mut self) -> i64 {
        let seconds = self.rng.between(1, 3600) as i64 * 1_000_000;
        if self.rng.chance(0.5) { seconds } else { -seconds }
    }

    pub(crate) fn freeze(&mut self, owner: Owner, span: u64) {
        let now = self.shared.now();
        if self.shared.executor.is_frozen(owner) {
            return;
        }
        self.shared.executor.freeze(owner);
        self.shared.truth().open(owner, WindowKind::Frozen, now);
        self.shared.trace(|truth| format!("{} is frozen for {} ms", truth.label(owner), span / MS));
        self.agenda.plan(now + span, Action::Thaw(owner));
    }

    fn begin_outage(&mut self, manner: Manner, span: u64) {
        let now = self.shared.now();
        self.shared.network().outage = Some(manner);
        self.shared.truth().common.push(Window { kind: WindowKind::Cut, from: now, to: None });
        self.agenda.plan(now + span, Action::EndOutage);
    }

    /// The store fails over to a copy that lags behind: whatever it took since is forgotten.
    pub(crate) fn restore(&mut self, copy: Copy) {
        let Copy { state, at: copied_at, beats, away } = copy;
        self.tell("failover that loses commits", None);
        self.shared.network().epoch += 1;
        let mut truth = self.shared.truth();
        let voided: Vec<_> =
            truth.granted_at.iter().filter(|(_, at)| **at >= copied_at).map(|(token, _)| *token).collect();
        truth.voided.extend(voided);
        truth.unsure_until = self.shared.now() + away + crate::deaths::TIMEOUT;
        let before = truth.accepted.len();
        truth.accepted.retain(|id| state.runs.contains_key(id));
        truth.report.lost_to_failover += (before - truth.accepted.len()) as u64;
        truth.keys.clear();
        truth.cancelled.clear();
        truth.reopenings.clear();
        for (run, reached) in &mut truth.checkpoints {
            let stored = state.signs.get(run).and_then(|(_, checkpoint)| checkpoint.as_ref());
            *reached = (*reached).min(stored.and_then(|checkpoint| checkpoint.read().ok()).unwrap_or(0));
        }
        for (id, row) in &state.replicas {
            if let Some(life) = truth.lives.get_mut(id) {
                life.beat = row.beat;
                life.beat_at = beats.get(id).copied().unwrap_or(copied_at);
            }
        }
        let now = self.shared.now();
        truth.owners = state.leases.values().map(|held| (held.lease.token, (held.lease.replica_id, now))).collect();
        drop(truth);
        self.shared.memory.restore(state);
        self.checker.rebase(&self.shared);
        if away > 0 && self.shared.network().outage.is_none() {
            self.begin_outage(Manner::Fails, away);
        }
    }

    fn drain(&mut self, owner: Owner) {
        self.tell("drain", Some(owner));
        self.shared.truth().leaving.insert(owner);
        let engine = self.hosts.iter().filter_map(|host| host.boot.as_ref()).find(|(boot, _)| *boot == owner);
        let Some(engine) = engine.map(|(_, engine)| engine.clone()) else { return };
        if self.rng.chance(0.5) {
            self.shared.executor.spawn(owner, "drain", async move { engine.drain().await }.boxed());
        } else if let Some(id) = engine.replica_id() {
            self.ask("drain", move |engine| async move {
                engine.drain_replica(id).await.ok();
            });
        }
    }
}
