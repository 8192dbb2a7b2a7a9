//! What users ask of schedules and flows.

use super::{FlowRules, Tried};
use crate::{Engine, Error, Result};
use everbeat_model::schedule::{FLOW, Schedule, ScheduleKind, ScheduledWork, Wish};
use everbeat_model::{Idempotency, Invalid, Json, PolicyPatch, RunId, ScheduleId, StoreTime};
use everbeat_store::{Author, Deleted, LookedAt, Part, Put, PutSchedule, ScheduleFilter, StoredSchedule};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// A schedule or a flow to be written.
#[derive(Clone, Debug)]
pub struct WriteSchedule {
    pub schedule: Schedule,
    pub enabled: Option<bool>,
    /// Only in place of this version.
    pub version: Option<u64>,
    /// Accept a task that nobody has offered yet.
    pub accept_unknown: bool,
    pub author: Author,
}

/// A schedule as people see it.
#[derive(Clone, Debug)]
pub struct ScheduleView {
    pub stored: StoredSchedule,
    /// How much later than `late_after` allows it is.
    pub late: Option<Duration>,
}

/// What became of asking for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triggered {
    /// Its id, also while it waits for its turn.
    pub run: RunId,
    pub waits: bool,
    /// An earlier request with the same key has asked for it.
    pub repeats: bool,
}

/// Names that are followed when loops of `after` are looked for.
const MOST_FOLLOWED: usize = 10_000;
/// Due times that are told in advance.
const MOST_NEXT: usize = 1000;

impl Engine {
    /// Writes a schedule; true if it is new.
    pub async fn write_schedule(&self, write: WriteSchedule) -> Result<(ScheduleView, bool)> {
        let schedule = &write.schedule;
        let policy = Value::Object(schedule.policy.clone());
        let within = |invalid: Invalid| invalid.within("policy");
        PolicyPatch::parse(&policy).and_then(|patch| patch.over(&self.core.settings.runs)).map_err(within)?;
        if let ScheduledWork::Flow { configuration, dead_letter, max_rejected } = &schedule.work {
            self.check_flow(schedule, configuration, dead_letter.as_ref(), max_rejected.as_ref())?;
        }
        if !write.accept_unknown && schedule.task() != FLOW {
            self.check_task(schedule.task()).await?;
        }
        self.check_loop(schedule).await?;
        let (kind, name) = (schedule.kind, schedule.name.clone());
        let put = PutSchedule {
            id: ScheduleId(self.core.new_id()),
            schedule: write.schedule,
            enabled: write.enabled,
            version: write.version,
            author: write.author,
        };
        let put = self.core.bounded(self.core.store.put_schedule(put)).await?;
        self.core.schedules_noted.notify_one();
        match put {
            Put::Created(stored) => Ok((self.schedule_view(stored), true)),
            Put::Replaced(stored) | Put::Unchanged(stored) => Ok((self.schedule_view(stored), false)),
            Put::Conflict(None) => Err(not_found(kind, &name)),
            Put::Conflict(Some(version)) => Err(conflict(kind, &name, version)),
        }
    }

    fn check_flow(
        &self,
        schedule: &Schedule,
        configuration: &Value,
        dead_letter: Option<&Value>,
        max_rejected: Option<&Value>,
    ) -> Result<()> {
        if schedule.task() != FLOW {
            let given = [("dead_letter", dead_letter), ("max_rejected", max_rejected)];
            if let Some((field, Some(value))) = given.into_iter().find(|(_, value)| value.is_some()) {
                let hint = "leave it out: the task decides what becomes of its records";
                return Err(Invalid::new(field, value, "does not go with configuration.task", hint).into());
            }
            return Ok(());
        }
        Ok(self.flow_rules()?.check(configuration, dead_letter, max_rejected)?)
    }

    fn flow_rules(&self) -> Result<&dyn FlowRules> {
        self.core.flows.as_deref().ok_or_else(|| {
            let hint = "name a task in the configuration, or use a server that performs flows";
            Invalid::new("configuration", "a source and a sink", "cannot be performed here", hint).into()
        })
    }

    /// Says what a flow would do with the first records of its source; it need not be written. Writes nothing.
    pub async fn try_flow(&self, schedule: &Schedule, most: usize) -> Result<Tried> {
        let ScheduledWork::Flow { configuration, dead_letter, max_rejected } = &schedule.work else {
            return Err(Invalid::new("configuration", "nothing", "is missing", "give a flow").into());
        };
        self.check_flow(schedule, configuration, dead_letter.as_ref(), max_rejected.as_ref())?;
        if schedule.task() != FLOW {
            let hint = "submit the task with an input of your choice";
            return Err(Invalid::new("configuration.task", schedule.task(), "does what it likes", hint).into());
        }
        let now = self.core.now();
        Ok(self.flow_rules()?.try_out(&schedule.name, configuration, most, now).await?)
    }

    /// One that comes after itself, by way of others, would go on for ever.
    async fn check_loop(&self, schedule: &Schedule) -> Result<()> {
        let mut ahead = schedule.after.clone();
        let mut seen = BTreeSet::new();
        while let Some(name) = ahead.pop() {
            if name == schedule.name {
                let hint = "leave out one of the names, so that there is a first one";
                let after = schedule.after.join(", ");
                return Err(Invalid::new("after", after, format!("leads back to {name:?}"), hint).into());
            }
            if seen.len() < MOST_FOLLOWED
                && seen.insert(name.clone())
                && let Some(found) = self.core.store.schedule(schedule.kind, &name).await?
            {
                ahead.extend(found.schedule.after.iter().cloned());
            }
        }
        Ok(())
    }

    pub async fn schedule(&self, kind: ScheduleKind, name: &str) -> Result<ScheduleView> {
        Ok(self.schedule_view(self.stored_schedule(kind, name).await?))
    }

    pub(super) async fn stored_schedule(&self, kind: ScheduleKind, name: &str) -> Result<StoredSchedule> {
        self.core.store.schedule(kind, name).await?.ok_or_else(|| not_found(kind, name))
    }

    /// By name.
    pub async fn schedules(&self, filter: ScheduleFilter) -> Result<Part<ScheduleView>> {
        let found = self.core.store.schedules(filter).await?;
        Ok(found.map(|stored| self.schedule_view(stored)))
    }

    pub async fn enable_schedule(&self, kind: ScheduleKind, name: &str, enabled: bool) -> Result<ScheduleView> {
        let stored = self.core.bounded(self.core.store.enable_schedule(kind, name, enabled)).await?;
        self.core.schedules_noted.notify_one();
        Ok(self.schedule_view(stored.ok_or_else(|| not_found(kind, name))?))
    }

    pub async fn delete_schedule(&self, kind: ScheduleKind, name: &str, version: Option<u64>) -> Result<()> {
        match self.core.bounded(self.core.store.delete_schedule(kind, name, version)).await? {
            Deleted::Done => Ok(()),
            Deleted::NotFound => Err(not_found(kind, name)),
            Deleted::Conflict(version) => Err(conflict(kind, name, version)),
        }
    }

    /// Asks for a run now, enabled or not. `wish` is handed to it beside its input.
    pub async fn trigger(
        &self,
        kind: ScheduleKind,
        name: &str,
        wish: Option<Json>,
        idempotency: Option<Idempotency>,
    ) -> Result<Triggered> {
        let stored = self.stored_schedule(kind, name).await?;
        let run = RunId(self.core.new_id());
        let wish = Wish::Trigger { run, wish, idempotency };
        let look = self.core.store.look_at_schedule(stored.id, wish, self.core.scheduler.clone());
        match self.core.bounded(look).await? {
            LookedAt::Done(looked) if looked.repeats => {
                let earlier = looked.begun.first().or(looked.waiting.first()).copied().unwrap_or(run);
                Ok(Triggered { run: earlier, waits: looked.begun.is_empty(), repeats: true })
            }
            LookedAt::Done(looked) => {
                self.core.looked_at(&looked);
                if looked.has(run) {
                    return Ok(Triggered { run, waits: !looked.begun.contains(&run), repeats: false });
                }
                Err(Error::Conflict {
                    problem: format!("as many runs of {kind} {name:?} wait as may"),
                    hint: "wait until some have ended, or cancel some".to_string(),
                })
            }
            LookedAt::Busy => Err(everbeat_store::Error::no_answer().into()),
            LookedAt::NotFound => Err(not_found(kind, name)),
        }
    }

    /// When it is due next, so many times.
    pub async fn next_due(&self, kind: ScheduleKind, name: &str, count: usize) -> Result<Vec<StoreTime>> {
        let stored = self.stored_schedule(kind, name).await?;
        let Some(rhythm) = stored.schedule.terms.rhythm.as_ref().filter(|_| stored.enabled) else {
            return Ok(Vec::new());
        };
        let times = std::iter::successors(stored.next_due, |due| rhythm.after(*due));
        Ok(times.take(count.min(MOST_NEXT)).collect())
    }

    fn schedule_view(&self, stored: StoredSchedule) -> ScheduleView {
        let now = self.core.now();
        let late = stored.late_since.map(|since| now.since(since));
        ScheduleView { stored, late }
    }
}

pub(super) fn not_found(kind: ScheduleKind, name: &str) -> Error {
    Error::NotFound { what: kind.as_str(), id: format!("{name:?}") }
}

fn conflict(kind: ScheduleKind, name: &str, version: u64) -> Error {
    Error::Precondition {
        problem: format!("{kind} {name:?} has version {version} by now"),
        hint: "read it again, and send its version in If-Match".to_string(),
    }
}
