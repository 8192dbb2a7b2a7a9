//! Schedules of tasks, declared where the tasks are.

use everbeat_model::schedule::{CatchUp, Overlap, ScheduleKind};
use everbeat_model::time::format_duration;
use everbeat_model::{Invalid, Json, schedule};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// When a task is due again and again, and what it is given then; see [`crate::Builder::schedule`].
///
/// ```
/// use everbeat::Schedule;
/// use std::time::Duration;
///
/// let often = Schedule::every(Duration::from_secs(15 * 60));
/// let nightly = Schedule::cron("30 2 * * *", "Europe/Berlin").named("nightly").input(&"everything");
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    name: Option<String>,
    fields: Map<String, Value>,
}

impl Schedule {
    /// Due at once, and then always one such span after the due time before, however late that one was found.
    pub fn every(span: Duration) -> Schedule {
        Schedule::of(json!({ "every": format_duration(span) }))
    }

    /// Due by the clock on the wall of a time zone, like `UTC` or `Europe/Berlin`. In the hour that is skipped in spring:
    /// at its end. In the hour that is repeated in autumn: once.
    pub fn cron(expression: &str, zone: &str) -> Schedule {
        Schedule::of(json!({ "cron": expression, "tz": zone }))
    }

    fn of(rhythm: Value) -> Schedule {
        Schedule { name: None, fields: Map::from_iter([("schedule".to_string(), rhythm)]) }
    }

    /// A name of its own, in place of the task's: a task may have several schedules.
    pub fn named(mut self, name: impl Into<String>) -> Schedule {
        self.name = Some(name.into());
        self
    }

    /// What the task is given; null unless said.
    pub fn input<I: Serialize>(self, input: &I) -> Schedule {
        self.with("input", Json::of(input).value())
    }

    /// What becomes of a due time while an earlier run is not over; it is left out unless said.
    pub fn overlap(self, overlap: Overlap) -> Schedule {
        self.with("overlap", overlap.as_str())
    }

    /// What becomes of due times that nobody looked at; the last is made up for unless said.
    pub fn catch_up(self, catch_up: CatchUp) -> Schedule {
        self.with("catch_up", catch_up.as_str())
    }

    /// Late is what is not over so long after it was due.
    pub fn late_after(self, span: Duration) -> Schedule {
        self.with("late_after", format_duration(span))
    }

    /// What differs from the configured policy, as a JSON object.
    pub fn policy(self, policy: Value) -> Schedule {
        self.with("policy", policy)
    }

    pub fn queue(self, queue: impl Into<String>) -> Schedule {
        self.with("queue", queue.into())
    }

    pub fn priority(self, priority: i16) -> Schedule {
        self.with("priority", priority)
    }

    /// So many runs at once, on all replicas together; in a group, so many of the whole group.
    pub fn concurrency(self, most: u32) -> Schedule {
        self.with("concurrency", most)
    }

    /// Schedules of one group share a limit.
    pub fn group(self, group: impl Into<String>) -> Schedule {
        self.with("group", group.into())
    }

    /// Due also when each of these schedules has succeeded.
    pub fn after<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Schedule {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        self.with("after", names)
    }

    pub fn description(self, text: impl Into<String>) -> Schedule {
        self.with("description", text.into())
    }

    fn with(mut self, field: &str, value: impl Into<Value>) -> Schedule {
        self.fields.insert(field.to_string(), value.into());
        self
    }

    /// The schedule of a task. A mistake names the schedule.
    pub(crate) fn of_task(mut self, task: &str) -> Result<schedule::Schedule, Invalid> {
        let name = self.name.unwrap_or_else(|| task.to_string());
        self.fields.insert("task".to_string(), task.into());
        let read = schedule::Schedule::parse(ScheduleKind::Schedule, &name, &Value::Object(self.fields));
        read.map_err(|invalid| invalid.within(&name))
    }
}
