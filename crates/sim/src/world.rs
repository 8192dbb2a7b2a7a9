//! One world from its beginning to its end: replicas on one store, under faults, then healed.

use crate::Options;
use crate::agenda::Agenda;
use crate::checker::Checker;
use crate::env::SimEnv;
use crate::executor::{Owner, Step};
use crate::faulty_shims::FaultyShims;
use crate::faulty_store::{FaultyStore, WakeBoard};
use crate::graph_rest::restless;
use crate::graphs::{NODE_TASK, SAVED_TASK};
use crate::guardians::SimGuardians;
use crate::handler::Work;
use crate::job_checker;
use crate::machine::Machine;
use crate::network::Network;
use crate::nodes::NodeWork;
use crate::plan::Plan;
use crate::process::{FIRST_REMOTE, FIRST_WORKER, Processes};
use crate::report::{Report, Violation};
use crate::rng::Rng;
use crate::schedule_rest;
use crate::shared::Shared;
use crate::truth::{Boot, BootState, Truth};
use crate::worker;
use crate::workload::{NARROW, NARROW_QUEUE, TASKS, base_policy, job_settings, pool_settings};
use everbeat_engine::{Check, CheckName, CheckStatus, Engine, QueueLimit, Settings, Tasks};
use everbeat_model::{Planted, RunId};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct World {
    pub(crate) shared: Arc<Shared>,
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) hosts: Vec<Host>,
    pub(crate) machines: Vec<Arc<Machine>>,
    pub(crate) agenda: Agenda,
    pub(crate) checker: Checker,
    pub(crate) healed_at: Option<u64>,
    /// When all was found finished: then it must stay so for a while.
    converged_at: Option<u64>,
    hole: Planted,
    wakes: Arc<WakeBoard>,
    last_owner: Owner,
}

/// A place for a replica on some machine, with the one that runs there, if any.
pub(crate) struct Host {
    pub(crate) boot: Option<(Owner, Engine)>,
    pub(crate) machine: usize,
    /// Nothing starts here before.
    pub(crate) away_until: u64,
    boots: u32,
}

/// After the healing everything must be finished within this time.
const HEALING: u64 = 60_000_000;
/// And then stay as it is: messages that are still under way must change nothing.
const QUIET: u64 = 2_000_000;
/// No world needs so many steps; one that takes them turns in circles.
const MOST_STEPS: u64 = 3_000_000;
const AUDIT_EVERY: u64 = 4096;

impl World {
    pub(crate) fn new(seed: u64, Options { hole, focus, .. }: Options, tracing: bool) -> World {
        let plan = Plan::of(seed, focus);
        let truth = Truth { tracing, ..Truth::default() };
        let shared = Shared::new(seed, plan.hosts, hole, Network::new(seed, plan.rates), truth);
        let hosts = (0..plan.hosts)
            .map(|place| Host { boot: None, machine: place % plan.machines, away_until: 0, boots: 0 })
            .collect();
        let machines = (0..plan.machines).map(|place| Machine::new(place, plan.locks)).collect();
        World {
            shared,
            rng: Rng::new(seed, 4),
            hosts,
            machines,
            agenda: Agenda::default(),
            checker: Checker::default(),
            healed_at: None,
            converged_at: None,
            hole,
            wakes: Arc::default(),
            last_owner: 0,
            plan,
        }
    }

    /// Lives through the whole history. Answers its report, and what broke, if anything did.
    pub(crate) fn run(mut self) -> (Report, Option<Violation>) {
        self.shared.trace(|_| "the world begins".to_string());
        let plan = format!("{:?}", self.plan);
        self.shared.trace(|_| plan);
        self.plan_agenda();
        while self.shared.truth().broken.is_none() && self.turn() {}
        self.end()
    }

    /// Lives through it and tells all of it.
    pub(crate) fn recount(self) -> (Vec<String>, Report, Option<Violation>) {
        let shared = self.shared.clone();
        let (report, mut violation) = self.run();
        let told = violation.as_mut().map(|violation| std::mem::take(&mut violation.trace));
        (told.unwrap_or_else(|| std::mem::take(&mut shared.truth().trace)), report, violation)
    }

    /// One step, or one move of time. Answers whether there is more to come.
    fn turn(&mut self) -> bool {
        if self.agenda.fires() {
            let action = self.agenda.take();
            return action.is_none_or(|action| self.act(action));
        }
        match self.shared.executor.step(&mut self.rng) {
            Step::Polled => {
                self.agenda.stepped();
                self.checker.look(&self.shared);
                let steps = self.shared.executor.steps();
                if steps.is_multiple_of(AUDIT_EVERY) {
                    self.checker.audit(&self.shared);
                }
                if steps > MOST_STEPS {
                    self.shared.truth().violate("G14", "it turns in circles".to_string());
                }
            }
            Step::Panicked { owner, name, message } => {
                let detail = format!("task {name:?} of {owner} panicked: {message}");
                self.shared.truth().violate("G12", detail);
            }
            Step::Idle => {
                self.check_instant();
                self.pass_time();
            }
        }
        true
    }

    fn pass_time(&mut self) {
        if self.agenda.hurry() {
            return;
        }
        let timer = self.shared.executor.next_timer();
        let planned = self.agenda.next();
        let Some(at) = [timer, planned].into_iter().flatten().min() else {
            return self.shared.truth().violate("liveness", "nothing will ever happen again".to_string());
        };
        self.shared.executor.advance(at);
        // What is planned happens between any two steps, not only when all is quiet.
        self.agenda.arm(at, self.rng.below(6));
    }

    pub(crate) fn boot(&mut self, host: usize) {
        self.last_owner += 1;
        let owner = self.last_owner;
        let boots = &mut self.hosts[host].boots;
        *boots += 1;
        let label = format!("replica {host}.{boots}");
        let machine = self.machines[self.hosts[host].machine].clone();
        let boot = Boot {
            label: label.clone(),
            machine: machine.place,
            state: BootState::Up,
            slots: self.plan.slots,
            windows: Vec::new(),
            troubled_at: 0,
        };
        self.shared.truth().boots.insert(owner, boot);
        self.shared.trace(|_| format!("{label} starts"));
        let (machine_boot, machine_place) = (machine.disk().boot, machine.place);
        let env = Arc::new(SimEnv::new(self.shared.clone(), owner, machine.place, machine_boot));
        let store = Arc::new(FaultyStore::new(self.shared.clone(), owner, self.wakes.clone()));
        let mut tasks = Tasks::default();
        for task in TASKS {
            tasks.add(task, Work { shared: self.shared.clone(), owner });
        }
        for task in [NODE_TASK, SAVED_TASK] {
            tasks.add(task, NodeWork { shared: self.shared.clone(), owner });
        }
        let locks = machine.locks.clone().map(|locks| locks as Arc<dyn everbeat_engine::Locks>);
        let settings = self.settings(&machine);
        let shims = self.plan.performs_jobs.then(|| {
            Arc::new(FaultyShims { shared: self.shared.clone(), machine, owner }) as Arc<dyn everbeat_engine::Shims>
        });
        let place = machine_place;
        let guardians = self.plan.workers.then(|| {
            let guardians = SimGuardians { shared: self.shared.clone(), server: owner, place: host, machine: place };
            Arc::new(guardians) as Arc<dyn everbeat_engine::pools::Guardians>
        });
        let engine = match Engine::new(
            env,
            store,
            settings,
            tasks,
            everbeat_engine::Host { locks, shims, guardians, flows: None, performers: Vec::new() },
        ) {
            Ok(engine) => engine,
            Err(error) => return self.shared.truth().violate("liveness", format!("no engine: {error}")),
        };
        engine.start();
        self.shared.pools().servers.insert(owner, engine.clone());
        let (stopping, shared) = (engine.clone(), self.shared.clone());
        let watch = async move {
            stopping.stopped().await;
            if let Some(boot) = shared.truth().boots.get_mut(&owner) {
                boot.state = BootState::Ended;
            }
        };
        self.shared.executor.spawn(owner, "watch", watch.boxed());
        self.hosts[host].boot = Some((owner, engine));
    }

    fn settings(&self, machine: &Machine) -> Settings {
        let limit = QueueLimit { concurrency: Some(NARROW), rate: None };
        Settings {
            host: machine.name(),
            heartbeat_interval: Duration::from_millis(200),
            heartbeat_timeout: Duration::from_micros(crate::deaths::TIMEOUT),
            sweep_interval: Duration::from_millis(300),
            poll_interval: Duration::from_millis(250),
            retention: Duration::from_secs(20),
            clean_interval: Duration::from_secs(2),
            drain_grace: Duration::from_millis(500),
            slots: self.plan.slots,
            runs: base_policy(),
            keep_events: 20,
            flow_ticker: self.plan.flow_ticker,
            queues: BTreeMap::from([(NARROW_QUEUE.to_string(), limit)]),
            jobs: job_settings(),
            pools: if self.plan.workers { vec![pool_settings(self.plan.max_runs)] } else { Vec::new() },
            remote_workers: pool_settings(None),
            hole: self.hole,
            ..Settings::default()
        }
    }

    /// Drops a boot with all its tasks.
    pub(crate) fn take_down(&mut self, host: usize, state: BootState) {
        if let Some((owner, engine)) = self.hosts[host].boot.take() {
            if let Some(boot) = self.shared.truth().boots.get_mut(&owner) {
                boot.state = state;
            }
            self.wakes.forget(owner);
            self.shared.network().cut.remove(&owner);
            self.shared.executor.crash(owner);
            self.shared.server_died(owner, state);
            drop(engine);
        }
    }

    /// What must hold at every instant at which nothing more can happen.
    fn check_instant(&mut self) {
        let mut truth = self.shared.truth();
        if !std::mem::take(&mut truth.performing_changed) {
            return;
        }
        let mut stopping: BTreeMap<RunId, Owner> = BTreeMap::new();
        let mut slots: BTreeMap<Owner, usize> = BTreeMap::new();
        let mut narrow: BTreeMap<Owner, usize> = BTreeMap::new();
        let mut broken = None;
        for performance in truth.performing.values() {
            let owner = performance.owner;
            *slots.entry(performance.process).or_default() += 1;
            // What a worker elsewhere does when it is cut off, nobody here can count.
            let counts = performance.process < FIRST_REMOTE && performance.queue == NARROW_QUEUE;
            *narrow.entry(owner).or_default() += usize::from(counts);
            // Whatever else a worker process does, it may go on with its work, unless it is stopped.
            let rests = match performance.process < FIRST_WORKER {
                true => self.shared.executor.is_frozen(performance.process),
                false => truth.stopped.contains(&performance.process),
            };
            if performance.stops
                && !rests
                && !truth.is_void(performance)
                && self.shared.now() >= truth.unsure_until
                && let Some(other) = stopping.insert(performance.run, owner)
            {
                broken = Some((performance.run, other, owner));
            }
        }
        if let Some((run, one, two)) = broken {
            let (name, one, two) = (truth.name(run), truth.label(one), truth.label(two));
            truth.violate("G6", format!("{name} is performed by {one} and {two} at once"));
        }
        let most = |process: &Owner| truth.boots.get(process).map_or(worker::SLOTS, |boot| boot.slots);
        let slots = slots.into_iter().find(|(process, taken)| *taken > most(process));
        let narrow = narrow.into_iter().find(|(_, taken)| *taken > NARROW);
        if let Some((owner, taken)) = slots.or(narrow) {
            let label = truth.label(owner);
            truth.violate("G14", format!("{label} performs {taken} at once"));
        }
    }

    /// Whether all accepted work is finished and every replica is well.
    pub(crate) fn look_for_end(&mut self) -> bool {
        let now = self.shared.now();
        let unfinished = self.unfinished();
        let healed_at = self.healed_at.unwrap_or(now);
        match (self.converged_at, unfinished) {
            (None, None) => self.converged_at = Some(now),
            (None, Some(what)) if now > healed_at + HEALING => {
                self.shared.truth().violate("liveness", format!("a minute after the healing {what}"));
            }
            (None, Some(_)) => {}
            (Some(at), None) => return now < at + QUIET,
            (Some(_), Some(what)) => {
                self.shared.truth().violate("liveness", format!("after all was finished {what}"));
            }
        }
        true
    }

    fn unfinished(&self) -> Option<String> {
        let open = self.shared.memory.inspect(|state| {
            let open = state.runs.keys().find(|id| !state.done.contains_key(id)).copied();
            open.and_then(|id| state.run(id))
        });
        if let Some(run) = open {
            let name = self.shared.truth().name(run.id);
            let owner = run.replica_id.map(|replica| self.shared.truth().label_of(replica));
            return Some(format!("{name} is {} (attempt {}, {owner:?})", run.state.as_str(), run.attempt));
        }
        if self.shared.truth().clients > 0 {
            return Some("a client of a healed replica is not done".to_string());
        }
        let store_now = self.shared.clocks.store(self.shared.now());
        if let Some(what) = self.shared.memory.inspect(|state| restless(state, store_now)) {
            return Some(what);
        }
        if let Some(what) = self.shared.memory.inspect(schedule_rest::restless) {
            return Some(what);
        }
        if let Some(what) = job_checker::running(&self.shared, &self.machines) {
            return Some(what);
        }
        for (place, host) in self.hosts.iter().enumerate() {
            let Some((_, engine)) = &host.boot else { return Some(format!("host {place} is down")) };
            let readiness = engine.readiness();
            if let Some(check) = readiness.failing() {
                return Some(format!("host {place} is not ready: {check:?}"));
            }
            // Also for a run that a failover took.
            let holds = |check: &&Check| check.name == CheckName::Settling && check.status != CheckStatus::Ok;
            if let Some(check) = readiness.checks.iter().find(holds) {
                return Some(format!("host {place} holds an ending: {check:?}"));
            }
            if engine.slots_taken() > 0 {
                return Some(format!("host {place} holds {} slots", engine.slots_taken()));
            }
            if let Some(worker) = engine.workers().into_iter().find(|worker| worker.running > 0) {
                return Some(format!("a worker of host {place} still holds {} slots", worker.running));
            }
            // Workers may be replaced afterwards, when they have done enough.
            if let Some(pool) = engine.pools().into_iter().find(|pool| pool.ready < pool.size)
                && self.converged_at.is_none()
            {
                return Some(format!("a pool of host {place} has {} workers: {pool:?}", pool.ready));
            }
        }
        None
    }

    fn end(self) -> (Report, Option<Violation>) {
        if self.shared.truth().broken.is_none() {
            self.checker.audit(&self.shared);
        }
        let mut truth = self.shared.truth();
        let mut report = std::mem::take(&mut truth.report);
        report.seeds = 1;
        report.steps = self.shared.executor.steps();
        report.simulated_ms = self.shared.now() / 1000;
        report.history = self.shared.executor.history();
        let violation = truth.broken.take().map(|(guarantee, detail)| Violation {
            seed: self.shared.seed,
            guarantee: guarantee.to_string(),
            detail,
            at_ms: self.shared.now() / 1000,
            trace: std::mem::take(&mut truth.trace),
        });
        drop(truth);
        // Engines and their tasks hold each other; what is large must not be kept by that.
        drop(self.hosts);
        *self.shared.pools() = Processes::new(0);
        self.shared.executor.clear();
        self.shared.memory.restore(Default::default());
        (report, violation)
    }
}
