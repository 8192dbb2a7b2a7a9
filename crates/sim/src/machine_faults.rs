//! Breaks machines, and what stands on them: their replicas, their shims, and the folders of jobs.

use crate::agenda::Action;
use crate::machine::Shim;
use crate::truth::BootState;
use crate::world::World;
use everbeat_model::{RunId, Token};
use futures_util::FutureExt;

const MS: u64 = 1000;

impl World {
    /// All replicas of a machine go at once, and come back one by one.
    pub(crate) fn leave_alone(&mut self, machine: usize, shortest: u64, longest: u64) {
        let now = self.shared.now();
        for host in (0..self.hosts.len()).filter(|host| self.hosts[*host].machine == machine).collect::<Vec<_>>() {
            self.take_down(host, BootState::Crashed);
            let back = now + self.rng.between(shortest, longest) * MS;
            self.hosts[host].away_until = back;
            self.agenda.plan(back, Action::Boot(host));
        }
    }

    /// All replicas of a machine leave in order. Their processes stay for as long as nobody starts them anew.
    pub(crate) fn drain_all(&mut self, machine: usize, shortest: u64, longest: u64) {
        let now = self.shared.now();
        for host in (0..self.hosts.len()).filter(|host| self.hosts[*host].machine == machine).collect::<Vec<_>>() {
            let Some((owner, engine)) = self.hosts[host].boot.clone() else { continue };
            self.shared.truth().leaving.insert(owner);
            self.shared.executor.spawn(owner, "drain", async move { engine.drain().await }.boxed());
            let back = now + self.rng.between(shortest, longest) * MS;
            self.hosts[host].away_until = back;
            self.agenda.plan(back, Action::Boot(host));
        }
    }

    /// Of some job whose command does not run now.
    pub(crate) fn take_folder_away(&mut self) {
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
    pub(crate) fn reboot(&mut self, machine: usize) {
        self.reboot_workers(machine);
        let mut disk = self.machines[machine].disk();
        disk.boot += 1;
        for folder in disk.folders.values_mut() {
            if let Some(shim) = folder.let_go() {
                self.shared.truth().command_ends(shim.attempt.token);
            }
        }
    }

    /// Some shim of some machine whose command runs.
    pub(crate) fn some_shim(&mut self) -> Option<(usize, RunId, Token)> {
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

    pub(crate) fn hang_shim(&mut self, machine: usize, job: RunId, token: Token) {
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
}
