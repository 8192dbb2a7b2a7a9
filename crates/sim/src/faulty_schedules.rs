//! One replica's way to the schedules in the store. Schedulers travel with their call: what a dead replica looked at may
//! still be decided and written.

use crate::faulty_store::FaultyStore;
use crate::shared::Shared;
use async_trait::async_trait;
use everbeat_model::ScheduleId;
use everbeat_model::schedule::{Occurrence, ScheduleKind, Wish};
use everbeat_store::{
    Deleted, DueSchedules, LeftOut, LookedAt, Memory, Part, Put, PutSchedule, Result, ScheduleFilter, Scheduler,
    Schedules, StoredSchedule,
};
use std::collections::BTreeMap;
use std::sync::Arc;

#[async_trait]
impl Schedules for FaultyStore {
    async fn put_schedule(&self, put: PutSchedule) -> Result<Put> {
        let written = |shared: &Shared, put: &Put| match put {
            Put::Created(_) => shared.truth().report.schedule("created"),
            Put::Replaced(_) => shared.truth().report.schedule("changed"),
            Put::Unchanged(_) => shared.truth().report.schedule("written again"),
            Put::Conflict(_) => shared.truth().report.schedule("conflict of versions"),
        };
        self.call_and("put_schedule", move |store| async move { store.put_schedule(put).await }, written).await
    }

    async fn enable_schedule(&self, kind: ScheduleKind, name: &str, enabled: bool) -> Result<Option<StoredSchedule>> {
        let name = name.to_string();
        let enable = move |store: Arc<Memory>| async move { store.enable_schedule(kind, &name, enabled).await };
        self.call("enable_schedule", enable).await
    }

    async fn delete_schedule(&self, kind: ScheduleKind, name: &str, version: Option<u64>) -> Result<Deleted> {
        let name = name.to_string();
        let delete = move |store: Arc<Memory>| async move { store.delete_schedule(kind, &name, version).await };
        let deleted = |shared: &Shared, deleted: &Deleted| {
            if *deleted == Deleted::Done {
                shared.truth().report.schedule("deleted");
            }
        };
        self.call_and("delete_schedule", delete, deleted).await
    }

    async fn schedule(&self, kind: ScheduleKind, name: &str) -> Result<Option<StoredSchedule>> {
        let name = name.to_string();
        self.call("schedule", move |store| async move { store.schedule(kind, &name).await }).await
    }

    async fn schedules(&self, filter: ScheduleFilter) -> Result<Part<StoredSchedule>> {
        self.call("schedules", move |store| async move { store.schedules(filter).await }).await
    }

    async fn late_schedules(&self) -> Result<BTreeMap<ScheduleKind, u64>> {
        self.call("late_schedules", move |store| async move { store.late_schedules().await }).await
    }

    async fn due_schedules(&self, clock: &[ScheduleKind], limit: usize) -> Result<DueSchedules> {
        let clock = clock.to_vec();
        self.call("due_schedules", move |store| async move { store.due_schedules(&clock, limit).await }).await
    }

    async fn look_at_schedule(&self, id: ScheduleId, wish: Wish, scheduler: Arc<dyn Scheduler>) -> Result<LookedAt> {
        let triggers = matches!(wish, Wish::Trigger { .. });
        let looked = move |shared: &Shared, _: &LookedAt| {
            shared.truth().report.schedule(if triggers { "trigger" } else { "look" });
        };
        let look = move |store: Arc<Memory>| async move { store.look_at_schedule(id, wish, scheduler).await };
        self.call_and("look_at_schedule", look, looked).await
    }

    async fn waiting_occurrences(&self, id: ScheduleId) -> Result<Vec<Occurrence>> {
        self.call("waiting_occurrences", move |store| async move { store.waiting_occurrences(id).await }).await
    }

    async fn left_occurrences(&self, id: ScheduleId, limit: usize) -> Result<Vec<LeftOut>> {
        self.call("left_occurrences", move |store| async move { store.left_occurrences(id, limit).await }).await
    }

    async fn note_stranded_schedules(&self, limit: usize) -> Result<usize> {
        let noted = |shared: &Shared, noted: &usize| shared.truth().report.stranded += *noted as u64;
        let note = move |store: Arc<Memory>| async move { store.note_stranded_schedules(limit).await };
        self.call_and("note_stranded_schedules", note, noted).await
    }
}
