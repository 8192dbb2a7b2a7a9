//! What clients ask of schedules and flows: they write, change, disable, enable, delete and trigger them, and call from
//! outside, several at once.

use crate::agenda::Action;
use crate::executor::Owner;
use crate::graph_clients::Asks;
use crate::plan::Fault;
use crate::rng::Rng;
use crate::schedule_definitions::{NAMES, definition};
use crate::schedule_rest::overdue;
use crate::shared::Shared;
use crate::world::World;
use everbeat_engine::{Engine, Error, Heard, WriteSchedule, within};
use everbeat_model::RunId;
use everbeat_model::schedule::{Schedule, ScheduleKind};
use everbeat_store::memory::State;
use everbeat_store::{Author, ScheduleFilter};
use futures_util::FutureExt;
use std::sync::Arc;
use std::time::Duration;

const MS: u64 = 1000;

/// What clients ask, each by a chance of its own, so that a request changes nothing else in the history of a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OfSchedules {
    Write(u64),
    /// Whatever comes to a client's mind.
    Request(u64),
    /// Some call from outside at once.
    Heartbeat(u64),
    /// After the healing: nothing is due by the clock any more, and what waits must come to its end.
    StopClocks,
}

/// Callers from outside come so often, after the healing and where nobody else looks.
const CALLS: u64 = 400 * MS;
/// The clocks are stopped so long after the healing: before anybody asks whether all is finished.
const STOP: u64 = 5900 * MS;
/// More than this that waits would take longer than a test may: its schedule is deleted.
const MOST_LEFT_WAITING: usize = 25;
/// Clients wait this long for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// After the healing everything is answered within this time.
const PATIENT: Duration = Duration::from_secs(30);

impl World {
    pub(crate) fn plan_schedules(&mut self) {
        let mut rng = Rng::new(self.shared.seed, 25);
        let trouble = self.plan.trouble;
        let mut plan = |at: u64, what: OfSchedules| self.agenda.plan(at, Action::OfSchedules(what));
        for _ in 0..rng.between(3, 7) {
            plan(rng.between(350 * MS, 1500 * MS), OfSchedules::Write(rng.next()));
        }
        for _ in 0..rng.between(8, 30) {
            plan(rng.between(1000 * MS, trouble), OfSchedules::Request(rng.next()));
        }
        let pause = if self.plan.flow_ticker { 4 * CALLS } else { CALLS };
        let mut at = 600 * MS;
        while at < trouble {
            plan(at, OfSchedules::Heartbeat(rng.next()));
            at += rng.between(pause / 2, pause * 3 / 2);
        }
    }

    /// Callers from outside go on until the clocks are stopped.
    pub(crate) fn heal_schedules(&mut self, now: u64) {
        let mut rng = Rng::new(self.shared.seed, 26);
        for at in (now + CALLS..now + STOP).step_by(CALLS as usize) {
            self.agenda.plan(at, Action::OfSchedules(OfSchedules::Heartbeat(rng.next())));
        }
        self.agenda.plan(now + STOP, Action::OfSchedules(OfSchedules::StopClocks));
    }

    pub(crate) fn of_schedules(&mut self, what: OfSchedules) {
        match what {
            OfSchedules::Write(chance) => self.write_schedule(&mut Rng::new(chance, 27)),
            OfSchedules::Request(chance) => self.request_of_schedule(&mut Rng::new(chance, 28)),
            OfSchedules::Heartbeat(chance) => self.heartbeats(&mut Rng::new(chance, 29)),
            OfSchedules::StopClocks => self.stop_clocks(),
        }
    }

    fn write_schedule(&mut self, rng: &mut Rng) {
        let (kind, place) = (some_kind(rng), rng.below(NAMES));
        let clock_jumps = self.plan.faults.contains(&Fault::StoreClock);
        let schedule = match definition(rng, kind, place, clock_jumps) {
            Ok(schedule) => schedule,
            Err(invalid) => return self.shared.truth().violate("schedule", format!("is refused: {invalid}")),
        };
        let enabled = *rng.pick(&[None, None, None, Some(true), Some(false)]);
        let known = self.shared.memory.inspect(|state| version_of(state, kind, &schedule.name));
        let version = known.filter(|_| rng.chance(0.3));
        let author = if rng.chance(0.3) { Author::Code } else { Author::Person };
        // Sometimes two clients say the same, and sometimes one says it twice.
        for _ in 0..if rng.chance(0.3) { 2 } else { 1 } {
            let write = WriteSchedule { schedule: schedule.clone(), enabled, version, accept_unknown: true, author };
            self.ask("write a schedule", move |engine| async move {
                engine.write_schedule(write).await.ok();
            });
        }
    }

    fn request_of_schedule(&mut self, rng: &mut Rng) {
        let known: Vec<(ScheduleKind, String)> = self.shared.memory.inspect(|state| {
            let rows = state.schedules.values();
            rows.map(|row| (row.schedule.kind, row.schedule.name.clone())).collect()
        });
        if known.is_empty() {
            return self.write_schedule(rng);
        }
        let (kind, name) = rng.pick(&known).clone();
        match rng.below(20) {
            0..=4 => self.write_schedule(rng),
            5..=7 => self.ask("disable a schedule", move |engine| async move {
                engine.enable_schedule(kind, &name, false).await.ok();
            }),
            8 | 9 => self.ask("enable a schedule", move |engine| async move {
                engine.enable_schedule(kind, &name, true).await.ok();
            }),
            10 => self.ask("delete a schedule", move |engine| async move {
                engine.delete_schedule(kind, &name, None).await.ok();
            }),
            11..=15 => {
                for _ in 0..rng.between(1, 3) {
                    let (shared, name) = (self.shared.clone(), name.clone());
                    self.ask("trigger a schedule", move |engine| async move {
                        let epoch = shared.network().epoch;
                        if let Ok(triggered) = engine.trigger(kind, &name, None, None).await {
                            was_triggered(&shared, triggered.run, epoch);
                        }
                    });
                }
            }
            16 | 17 => self.of_run(rng, true),
            _ => self.of_run(rng, false),
        }
    }

    /// Somebody cancels a run of a schedule, or opens one again.
    fn of_run(&mut self, rng: &mut Rng, cancels: bool) {
        let runs: Vec<RunId> = self.shared.memory.inspect(|state| {
            let rows = state.runs.iter().filter(|(_, row)| row.spec.occurrence.is_some());
            rows.map(|(id, _)| *id).filter(|id| state.done.contains_key(id) != cancels).collect()
        });
        if runs.is_empty() {
            return;
        }
        let run = *rng.pick(&runs);
        self.ask("cancel or retry a run of a schedule", move |engine| async move {
            if cancels {
                engine.cancel(run).await.ok();
            } else {
                engine.retry(run).await.ok();
            }
        });
    }

    /// Several call several replicas at the same time.
    fn heartbeats(&mut self, rng: &mut Rng) {
        let up: Vec<(Owner, Engine)> = self.hosts.iter().filter_map(|host| host.boot.clone()).collect();
        for (owner, engine) in up {
            for _ in 0..rng.between(0, 2) {
                let (shared, engine) = (self.shared.clone(), engine.clone());
                let call = async move {
                    let env = engine.env().clone();
                    if let Some(Ok(heard)) = within(&*env, PATIENCE, engine.heartbeat()).await {
                        was_heard(&shared, heard);
                    }
                };
                self.shared.executor.spawn(owner, "client", call.boxed());
            }
        }
    }

    /// From now on nothing is due by the clock. What waits must begin, and everything must end.
    fn stop_clocks(&mut self) {
        self.bring_back_ended();
        let now = self.shared.clocks.store(self.shared.now());
        if let Some(what) = self.shared.memory.inspect(|state| overdue(state, now)) {
            self.shared.truth().violate("liveness", format!("after the healing {what}"));
        }
        let Some((owner, engine)) = self.hosts.first().and_then(|host| host.boot.clone()) else { return };
        let (shared, asks) = (self.shared.clone(), Asks::begin(&self.shared));
        let request = async move {
            let _until_done = asks;
            let env = engine.env().clone();
            let problem = match within(&*env, PATIENT, stop(&shared, &engine)).await {
                Some(Ok(())) => return,
                Some(Err(error)) => error.to_string(),
                None => format!("no answer within {PATIENT:?}"),
            };
            shared.truth().violate("liveness", format!("a healed replica does not stop the clocks: {problem}"));
        };
        self.shared.executor.spawn(owner, "client", request.boxed());
    }
}

async fn stop(shared: &Arc<Shared>, engine: &Engine) -> Result<(), Error> {
    was_heard(shared, engine.heartbeat().await?);
    let filter = ScheduleFilter { kind: None, after: None, limit: 1000 };
    for view in engine.schedules(filter).await?.items {
        let stored = view.stored;
        let mut schedule = Schedule::clone(&stored.schedule);
        if stored.waiting > MOST_LEFT_WAITING {
            engine.delete_schedule(schedule.kind, &schedule.name, None).await?;
            continue;
        }
        schedule.terms.rhythm = None;
        engine
            .write_schedule(WriteSchedule {
                schedule,
                enabled: Some(true),
                version: None,
                accept_unknown: true,
                author: Author::Person,
            })
            .await?;
    }
    Ok(())
}

fn some_kind(rng: &mut Rng) -> ScheduleKind {
    *rng.pick(&[ScheduleKind::Schedule, ScheduleKind::Flow])
}

fn version_of(state: &State, kind: ScheduleKind, name: &str) -> Option<u64> {
    let mut rows = state.schedules.values();
    rows.find(|row| row.schedule.kind == kind && row.schedule.name == name).map(|row| row.version)
}

/// What was acknowledged to a client has begun, or waits.
fn was_triggered(shared: &Shared, run: RunId, epoch: u64) {
    let same_store = shared.network().epoch == epoch;
    let mut truth = shared.truth();
    truth.report.schedule("trigger that was answered");
    if same_store && !truth.occurred.contains(&run) {
        let name = truth.name(run);
        truth.violate("G7", format!("{name} was triggered, and there is no such run"));
    }
}

/// Calls from outside claim no more runs than were made.
fn was_heard(shared: &Shared, heard: Heard) {
    let mut truth = shared.truth();
    truth.report.schedule("heartbeat");
    if heard.due > 0 {
        truth.report.schedule("heartbeat that found something due");
    }
    for _ in 0..heard.triggered {
        truth.report.schedule("begun by a heartbeat");
    }
    truth.heard += heard.triggered as u64;
    if truth.heard > truth.flow_runs {
        let detail = format!("heartbeats say that they made {} runs of {}", truth.heard, truth.flow_runs);
        truth.violate("G7", detail);
    }
}
