//! Breaks the world, and mends it.

use crate::agenda::{Action, Copy};
use crate::executor::Owner;
use crate::machine::{Lack, Shim};
use crate::network::{Manner, Rates};
use crate::plan::Fault;
use crate::rng::Rng;
use crate::truth::{BootState, Window, WindowKind};
use crate::workload::QUEUES;
use crate::world::World;
use everbeat_model::{RunId, Token};
use futures_util::FutureExt;

const MS: u64 = 1000;
/// Common outages keep this distance: several short ones in a row would be one long one.
const OUTAGE_DISTANCE: u64 = 2_500 * MS;

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

    fn fault(&mut self, fault: Fault) {
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

    /// All replicas of a machine go at once, and come back one by one.
    fn leave_alone(&mut self, machine: usize, shortest: u64, longest: u64) {
        let now = self.shared.now();
        for host in (0..self.hosts.len()).filter(|host| self.hosts[*host].machine == machine).collect::<Vec<_>>() {
            self.take_down(host, BootState::Crashed);
            let back = now + self.rng.between(shortest, longest) * MS;
            self.hosts[host].away_until = back;
            self.agenda.plan(back, Action::Boot(host));
        }
    }

    /// All replicas of a machine leave in order. Their processes stay for as long as nobody starts them anew.
    fn drain_all(&mut self, machine: usize, shortest: u64, longest: u64) {
        let now = self.shared.now();
        for host in (0..self.hosts.len()).filter(|host| self.hosts[*host].machine == machine).collect::<Vec<_>>() {
            let Some((owner, engine)) = self.hosts[host].boot.clone() else { continue };
            self.shared.executor.spawn(owner, "drain", async move { engine.drain().await }.boxed());
            let back = now + self.rng.between(shortest, longest) * MS;
            self.hosts[host].away_until = back;
            self.agenda.plan(back, Action::Boot(host));
        }
    }

    /// Of some job whose command does not run now.
    fn take_folder_away(&mut self) {
        let mut idle = Vec::new();
        for machine in &self.machines {
            let disk = machine.disk();
            let folders = disk.folders.iter().filter(|(_, folder)| folder.shim.as_ref().is_none_or(Shim::is_over));
            idle.extend(folders.map(|(job, _)| (machine.place, *job)));
        }
        if idle.is_empty() {
            return;
        }
        let (machine, job) = *self.rng.pick(&idle);
        self.tell("folder of a job taken away", None);
        self.shared.trace(|truth| format!("the folder of {} is gone from host {machine}", truth.name(job)));
        self.shared.truth().folders_gone.insert(job);
        let folder = self.machines[machine].disk().folders.remove(&job);
        folder.map(|mut folder| folder.let_go());
    }

    /// Its folders stay; its shims and their commands do not.
    fn reboot(&mut self, machine: usize) {
        let mut disk = self.machines[machine].disk();
        disk.boot += 1;
        for folder in disk.folders.values_mut() {
            if let Some(shim) = folder.let_go() {
                self.shared.truth().command_ends(shim.attempt.token);
            }
        }
    }

    /// Some shim of some machine whose command runs.
    fn some_shim(&mut self) -> Option<(usize, RunId, Token)> {
        let mut running = Vec::new();
        for machine in &self.machines {
            let disk = machine.disk();
            let shims = disk.folders.values().filter_map(|folder| folder.shim.as_ref()).filter(|shim| shim.runs());
            running.extend(shims.map(|shim| (machine.place, shim.attempt.job, shim.attempt.token)));
        }
        // Those that must not go on by themselves are watched most closely.
        let stops = |token: &Token| self.shared.truth().commands.get(token).is_some_and(|command| command.stops);
        let strict: Vec<_> = running.iter().filter(|(.., token)| stops(token)).copied().collect();
        let among = if strict.is_empty() || self.rng.chance(0.5) { running } else { strict };
        (!among.is_empty()).then(|| *self.rng.pick(&among))
    }

    fn hang_shim(&mut self, machine: usize, job: RunId, token: Token) {
        let now = self.shared.now();
        let span = if self.rng.chance(0.3) { u64::MAX / 4 } else { self.rng.between(30, 2500) * MS };
        if let Some(shim) = self.machines[machine].disk().folders.get_mut(&job).and_then(|at| at.shim_of(token)) {
            shim.hung_until = now + span;
            shim.nudged.notify_one();
        }
        if let Some(command) = self.shared.truth().commands.get_mut(&token) {
            command.hung = true;
        }
        self.shared.trace(|truth| format!("the shim of {} hangs for {} ms", truth.name(job), span / MS));
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

    fn freeze(&mut self, owner: Owner, span: u64) {
        let now = self.shared.now();
        if self.shared.executor.is_frozen(owner) {
            return;
        }
        self.shared.executor.freeze(owner);
        self.shared.truth().open(owner, WindowKind::Frozen, now);
        self.shared.trace(|truth| format!("{} is frozen for {} ms", truth.label(owner), span / MS));
        self.agenda.plan(now + span, Action::Thaw(owner));
    }

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

    fn reconnect(&mut self, owner: Owner) {
        let now = self.shared.now();
        self.shared.network().cut.remove(&owner);
        self.shared.truth().close(owner, WindowKind::Cut, now);
        self.shared.trace(|truth| format!("{} is connected again", truth.label(owner)));
    }

    fn begin_outage(&mut self, manner: Manner, span: u64) {
        let now = self.shared.now();
        self.shared.network().outage = Some(manner);
        self.shared.truth().common.push(Window { kind: WindowKind::Cut, from: now, to: None });
        self.agenda.plan(now + span, Action::EndOutage);
    }

    fn end_common(&mut self) {
        let now = self.shared.now();
        self.shared
            .truth()
            .common
            .iter_mut()
            .filter(|window| window.to.is_none())
            .for_each(|window| window.to = Some(now));
        self.shared.trace(|_| "the store answers again".to_string());
    }

    /// The store fails over to a copy that lags behind: whatever it took since is forgotten.
    fn restore(&mut self, copy: Copy) {
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
    fn heal(&mut self, now: u64) {
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
        self.agenda.plan(now + 6000 * MS, Action::Look);
    }
}
