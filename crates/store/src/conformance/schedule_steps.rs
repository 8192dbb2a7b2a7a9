//! What cases about schedules are written with: a scheduler that decides as the engine's does, and the steps of a
//! schedule's life.

use super::build::success;
use super::fixture::Fixture;
use crate::{
    Author, DueSchedule, DueSchedules, LookedAt, LookedSchedule, Put, PutSchedule, Scheduler, Schedules, StoredSchedule,
};
use everbeat_model::run::Claimed;
use everbeat_model::schedule::{Decision, RunDefaults, Schedule, ScheduleKind, Situation, Wish, look};
use everbeat_model::{Json, Planted, Policy, RunId, ScheduleId, Settled, id};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The shortest interval that there is, so that a store with a real clock can sit through some.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// Decides as the engine does, with fixed defaults.
struct Looks {
    ids: Arc<id::Sequence>,
    defaults: RunDefaults,
}

impl Scheduler for Looks {
    fn look(&self, situation: &Situation, wish: Wish) -> Decision {
        look(situation, wish, &self.defaults, &mut || RunId(self.ids.next(1_767_225_600_000, 0)))
    }
}

/// Decides what a case has thought of, whatever the situation is.
pub(super) struct Decides(pub(super) fn(&Situation) -> Decision);

impl Scheduler for Decides {
    fn look(&self, situation: &Situation, _: Wish) -> Decision {
        (self.0)(situation)
    }
}

/// A schedule of the task `work`, with these fields besides.
pub(super) fn scheduled(name: &str, fields: Value) -> Schedule {
    let mut value = json!({ "task": "work" });
    value.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    Schedule::parse(ScheduleKind::Schedule, name, &value).expect("a valid schedule")
}

/// A flow that hands its configuration to the task `work`.
pub(super) fn flow(name: &str, fields: Value) -> Schedule {
    let mut value = json!({ "configuration": { "task": "work" } });
    value.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    Schedule::parse(ScheduleKind::Flow, name, &value).expect("a valid flow")
}

/// Due at once, and then not for a long time.
pub(super) fn hourly() -> Value {
    json!({ "schedule": { "every": "1h" } })
}

pub(super) fn stored(put: Put) -> StoredSchedule {
    match put {
        Put::Created(stored) | Put::Replaced(stored) | Put::Unchanged(stored) => stored,
        Put::Conflict(version) => panic!("a conflict with version {version:?}"),
    }
}

impl Fixture {
    pub(super) fn scheduler(&self) -> Arc<dyn Scheduler> {
        let policy = Arc::new(Policy::BASELINE);
        let defaults = RunDefaults { policy, queue: "default".to_string(), hole: Planted::default() };
        Arc::new(Looks { ids: self.ids.clone(), defaults })
    }

    pub(super) fn request_for(&self, schedule: Schedule) -> PutSchedule {
        PutSchedule { id: ScheduleId(self.next_id()), schedule, enabled: None, version: None, author: Author::Person }
    }

    pub(super) async fn put(&self, schedule: Schedule) -> Put {
        self.put_schedule(self.request_for(schedule)).await.expect("put")
    }

    /// Writes a schedule that must be new.
    pub(super) async fn plan(&self, schedule: Schedule) -> ScheduleId {
        match self.put(schedule).await {
            Put::Created(stored) => stored.id,
            other => panic!("it was not there before: {other:?}"),
        }
    }

    pub(super) async fn look_for(&self, id: ScheduleId, wish: Wish) -> LookedSchedule {
        match self.look_at_schedule(id, wish, self.scheduler()).await.expect("look") {
            LookedAt::Done(looked) => looked,
            other => panic!("{id} is there and nobody else looks: {other:?}"),
        }
    }

    /// Looks at a schedule, by the clock too.
    pub(super) async fn glance(&self, id: ScheduleId) -> LookedSchedule {
        self.look_for(id, Wish::Look { clock: true }).await
    }

    /// Looks at a schedule of which one run begins.
    pub(super) async fn glance_begins(&self, id: ScheduleId) -> RunId {
        let looked = self.glance(id).await;
        assert_eq!(looked.begun.len(), 1, "{looked:?}");
        looked.begun[0]
    }

    /// Looks with a decision of the case's own.
    pub(super) async fn decide(&self, id: ScheduleId, decides: fn(&Situation) -> Decision) -> LookedAt {
        let wish = Wish::Look { clock: true };
        self.look_at_schedule(id, wish, Arc::new(Decides(decides))).await.expect("look")
    }

    pub(super) async fn trigger(&self, id: ScheduleId) -> (RunId, LookedSchedule) {
        self.trigger_with(id, None).await
    }

    pub(super) async fn trigger_with(&self, id: ScheduleId, wish: Option<Value>) -> (RunId, LookedSchedule) {
        let run = RunId(self.next_id());
        (run, self.look_for(id, Wish::Trigger { run, wish: wish.as_ref().map(Json::of), idempotency: None }).await)
    }

    pub(super) async fn due(&self, limit: usize) -> DueSchedules {
        self.due_schedules(ScheduleKind::ALL, limit).await.expect("due schedules")
    }

    pub(super) async fn due_ids(&self) -> Vec<ScheduleId> {
        self.due(100).await.schedules.iter().map(|due: &DueSchedule| due.id).collect()
    }

    /// Looks until nothing is due any more; answers what began, in order.
    pub(super) async fn settle_down(&self) -> Vec<RunId> {
        let mut begun = Vec::new();
        for _ in 0..100 {
            let due = self.due_ids().await;
            if due.is_empty() {
                return begun;
            }
            for id in due {
                begun.extend(self.glance(id).await.begun);
            }
        }
        panic!("there is always something due");
    }

    pub(super) async fn planned(&self, kind: ScheduleKind, name: &str) -> StoredSchedule {
        Schedules::schedule(&*self.store, kind, name).await.expect("schedule").expect("the schedule exists")
    }

    /// The schedule of this name that is no flow.
    pub(super) async fn of_name(&self, name: &str) -> StoredSchedule {
        self.planned(ScheduleKind::Schedule, name).await
    }

    pub(super) async fn waiting(&self, id: ScheduleId) -> Vec<RunId> {
        let waiting = self.waiting_occurrences(id).await.expect("waiting occurrences");
        waiting.iter().map(|occurrence| occurrence.run).collect()
    }

    /// A lease of this ready run. Others are leased with it, and kept for when they are asked for.
    pub(super) async fn lease(&self, run: RunId) -> Claimed {
        if let Some(claimed) = self.leased(run) {
            return claimed;
        }
        let replica = self.replica().await;
        self.keep_leased(self.take(replica, 100).await);
        self.leased(run).unwrap_or_else(|| panic!("{run} is ready"))
    }

    pub(super) async fn succeed(&self, run: RunId) {
        let claimed = self.lease(run).await;
        assert_eq!(self.end(success(&claimed)).await, Settled::Done);
    }
}
