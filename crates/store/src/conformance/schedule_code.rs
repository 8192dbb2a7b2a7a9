//! Schedules that code declares whenever it starts, beside people who write them.

use super::fixture::Fixture;
use super::schedule_steps::{hourly, scheduled, stored};
use crate::{Author, Declared, Put, PutSchedule, StoredSchedule};
use everbeat_model::ScheduleId;
use everbeat_model::event::EventKind;
use everbeat_model::schedule::{Schedule, ScheduleKind};
use serde_json::json;
use std::sync::Arc;

impl Fixture {
    async fn declare(&self, schedule: Schedule) -> Put {
        let put = PutSchedule { author: Author::Code, ..self.request_for(schedule) };
        self.put_schedule(put).await.expect("put")
    }

    async fn now_named(&self, name: &str) -> StoredSchedule {
        let found = self.schedule(ScheduleKind::Schedule, name).await.expect("schedule");
        found.expect("it is there")
    }
}

fn every(span: &str) -> Schedule {
    scheduled("s", json!({ "schedule": { "every": span } }))
}

pub(super) async fn what_code_declares_again_leaves_what_somebody_has_written_since(t: &Fixture) {
    let Put::Created(made) = t.declare(every("1h")).await else { panic!("it is new") };
    assert_eq!((made.version, made.enabled, made.declared), (1, true, Declared::Same));
    assert!(matches!(t.declare(every("1h")).await, Put::Unchanged(same) if same.version == 1));
    let Put::Replaced(by_hand) = t.put(every("2h")).await else { panic!("another one") };
    let declared = Declared::Changed(Arc::new(every("1h")));
    assert_eq!((by_hand.version, &by_hand.declared), (2, &declared));
    let Put::Unchanged(still) = t.declare(every("1h")).await else { panic!("it said so before") };
    assert_eq!((still.version, &*still.schedule, &still.declared), (2, &every("2h"), &declared));
    // Switched off, looked at or written by hand again, it is still known what the code said.
    t.enable_schedule(ScheduleKind::Schedule, "s", false).await.expect("enable");
    t.glance(still.id).await;
    assert_eq!(t.now_named("s").await.declared, declared);
    let Put::Replaced(again) = t.put(every("3h")).await else { panic!("another one") };
    assert_eq!(again.declared, declared);
    let Put::Replaced(back) = t.put(every("1h")).await else { panic!("back to what the code says") };
    assert_eq!(back.declared, Declared::Same);
}

pub(super) async fn what_code_changes_replaces_what_is_there_and_leaves_it_switched_as_it_was(t: &Fixture) {
    t.declare(every("1h")).await;
    t.put(every("2h")).await;
    t.enable_schedule(ScheduleKind::Schedule, "s", false).await.expect("enable");
    let changed = PutSchedule { enabled: Some(true), author: Author::Code, ..t.request_for(every("3h")) };
    let Put::Replaced(now) = t.put_schedule(changed).await.expect("put") else { panic!("it says something else") };
    assert_eq!((&*now.schedule, now.enabled, now.version), (&every("3h"), false, 3));
    assert_eq!(now.declared, Declared::Same);
    assert_eq!(t.now_named("s").await.declared, Declared::Same);
    // What it said before its change is another declaration by now.
    assert!(matches!(t.declare(every("1h")).await, Put::Replaced(now) if *now.schedule == every("1h")));
}

pub(super) async fn what_somebody_wrote_first_becomes_that_of_the_code(t: &Fixture) {
    let id = t.plan(every("1h")).await;
    assert_eq!(t.now_named("s").await.declared, Declared::Never);
    let same = stored(t.declare(every("1h")).await);
    assert_eq!((same.id, same.version, same.declared), (id, 1, Declared::Same));
    let read = t.now_named("s").await;
    assert_eq!((read.version, read.declared, &*read.schedule), (1, Declared::Same, &every("1h")));
    t.plan(scheduled("other", hourly())).await;
    let declared = scheduled("other", json!({ "schedule": { "every": "5m" } }));
    assert!(matches!(t.declare(declared).await, Put::Replaced(now) if now.version == 2));
}

pub(super) async fn one_name_declared_from_many_sides_at_once_is_written_once(t: &Fixture) {
    let sides = t.at_once(8, |store| {
        let request = PutSchedule { author: Author::Code, ..t.request_for(every("1h")) };
        async move { store.put_schedule(request).await.expect("put") }
    });
    let answers = sides.await;
    assert_eq!(answers.iter().filter(|put| matches!(put, Put::Created(_))).count(), 1, "{answers:?}");
    let ids: Vec<ScheduleId> = answers.into_iter().map(|put| stored(put).id).collect();
    assert_eq!(ids, [ids[0]; 8]);
    assert_eq!(t.now_named("s").await.version, 1);
    let page = t.events(0, 100).await.expect("events");
    let told: Vec<String> = page.events.into_iter().map(|event| event.kind).collect();
    assert_eq!(told, [EventKind::ScheduleWritten.as_str()], "the log tells of it once");
}
