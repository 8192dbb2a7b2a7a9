//! Schedules and flows that code declares, whenever it starts.

use super::WriteSchedule;
use crate::{Engine, Result};
use everbeat_model::schedule::{Schedule, ScheduleKind};
use everbeat_model::{Invalid, Json};
use everbeat_store::Author;
use serde_json::Value;

impl Engine {
    /// Writes what code declares. What it declared before changes nothing, so that a definition that somebody has written
    /// since stands.
    pub async fn declare_schedule(&self, schedule: Schedule, accept_unknown: bool) -> Result<()> {
        let write = WriteSchedule { schedule, enabled: None, version: None, accept_unknown, author: Author::Code };
        self.write_schedule(write).await.map(|_| ())
    }

    /// The same of what a worker says, which offers the task itself: an object with the name and the fields of a schedule or a flow.
    pub(crate) async fn declare_text(&self, kind: ScheduleKind, text: &str) -> Result<()> {
        let value = Json::parse(text)?.value();
        let Some(name) = value.get("name").and_then(Value::as_str) else {
            return Err(Invalid::new("name", "nothing", "is missing", format!("give the {kind} a name")).into());
        };
        self.declare_schedule(Schedule::parse(kind, name, &value)?, true).await
    }
}
