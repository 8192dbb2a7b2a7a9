//! What somebody writes of a schedule or a flow.

use super::{CatchUp, Overlap, Rhythm, Terms};
use crate::error::{Invalid, nearest};
use crate::policy::PolicyPatch;
use crate::run::{check_name, check_task_name};
use crate::spelled::spelled;
use crate::time::{duration_from, format_duration};
use serde_json::{Map, Value, json};
use std::time::Duration;

spelled! {
    /// Both are due by a rhythm and become runs. They have names of their own.
    pub enum ScheduleKind {
        /// Any task, with an input.
        Schedule = "schedule",
        /// Data from a source to a sink, or a task that is handed the configuration.
        Flow = "flow",
    }
}

/// The task that performs flows.
pub const FLOW: &str = "flow";

/// Work that is due again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub kind: ScheduleKind,
    pub name: String,
    pub description: Option<String>,
    pub terms: Terms,
    /// Flows of one group share a limit: `terms.concurrency`, or one at a time.
    pub group: Option<String>,
    /// Due when each of these, of the same kind, has succeeded since it was last due by them.
    pub after: Vec<String>,
    pub queue: Option<String>,
    pub priority: i16,
    /// What differs from the configured policy.
    pub policy: Map<String, Value>,
    pub work: ScheduledWork,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum ScheduledWork {
    Task {
        task: String,
        input: Value,
    },
    Flow {
        /// Source, transforms and sink; or a task, which is handed all of it.
        configuration: Value,
        dead_letter: Option<Value>,
        max_rejected: Option<Value>,
    },
}

const COMMON: [&str; 12] = [
    "name",
    "description",
    "schedule",
    "overlap",
    "catch_up",
    "late_after",
    "queue",
    "priority",
    "policy",
    "concurrency",
    "group",
    "after",
];
const OF_SCHEDULES: [&str; 2] = ["task", "input"];
const OF_FLOWS: [&str; 4] = ["run_interval", "configuration", "dead_letter", "max_rejected"];

const MOST_TEXT: usize = 10_000;
const MOST_AFTER: usize = 100;
/// So many runs at once may be asked for.
const MOST_CONCURRENCY: u64 = 10_000;

impl Schedule {
    /// Reads what somebody wrote, but for `enabled`, which is not part of it.
    pub fn parse(kind: ScheduleKind, name: &str, value: &Value) -> Result<Schedule, Invalid> {
        check_name("name", name)?;
        let Value::Object(fields) = value else {
            return Err(Invalid::new(
                "",
                value,
                "is not an object",
                "write it like {\"schedule\": {\"every\": \"1h\"}, …}",
            ));
        };
        let own: &[&str] = if kind == ScheduleKind::Flow { &OF_FLOWS } else { &OF_SCHEDULES };
        let known = || COMMON.iter().chain(own).copied();
        if let Some(strange) = fields.keys().find(|field| !known().any(|name| name == *field)) {
            let hint = match nearest(strange, known()) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("use {}", known().collect::<Vec<_>>().join(", ")),
            };
            return Err(Invalid::new(strange, &fields[strange], format!("is not a field of a {kind}"), hint));
        }
        let read = Reader(fields);
        if let Some(other) = read.text("name")?.filter(|given| given != name) {
            return Err(Invalid::new("name", other, format!("is not {name:?}"), "leave it out, or give the same name"));
        }
        Ok(Schedule {
            kind,
            name: name.to_string(),
            description: read.text("description")?,
            terms: read.terms()?,
            group: read.name("group")?,
            after: read.after(name)?,
            queue: read.name("queue")?,
            priority: read.priority()?,
            policy: read.policy()?,
            work: if kind == ScheduleKind::Flow { read.flow()? } else { read.task()? },
        })
    }

    /// The way it is read, with every field.
    pub fn to_value(&self) -> Value {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| fields.insert(name.to_string(), value);
        put("description", json!(self.description));
        put("schedule", self.terms.rhythm.as_ref().map_or(Value::Null, Rhythm::to_json));
        put("overlap", self.terms.overlap.as_str().into());
        put("catch_up", self.terms.catch_up.as_str().into());
        put("late_after", json!(self.terms.late_after.map(format_duration)));
        put("queue", json!(self.queue));
        put("priority", self.priority.into());
        put("policy", Value::Object(self.policy.clone()));
        put("concurrency", json!(self.terms.concurrency));
        put("group", json!(self.group));
        put("after", json!(self.after));
        match &self.work {
            ScheduledWork::Task { task, input } => {
                put("task", json!(task));
                put("input", input.clone());
            }
            ScheduledWork::Flow { configuration, dead_letter, max_rejected } => {
                put("configuration", configuration.clone());
                put("dead_letter", json!(dead_letter));
                put("max_rejected", json!(max_rejected));
            }
        }
        Value::Object(fields)
    }

    pub fn to_stored(&self) -> String {
        self.to_value().to_string()
    }

    /// Reads the stored form. None if another version wrote what this one cannot read: such a schedule is left alone.
    pub fn from_stored(kind: ScheduleKind, name: &str, text: &str) -> Option<Schedule> {
        let Ok(Value::Object(fields)) = serde_json::from_str(text) else { return None };
        Schedule::from_fields(kind, name, fields)
    }

    /// The same, of fields that are read already. Fields that are not known are passed over.
    pub fn from_fields(kind: ScheduleKind, name: &str, mut fields: Map<String, Value>) -> Option<Schedule> {
        let own: &[&str] = if kind == ScheduleKind::Flow { &OF_FLOWS } else { &OF_SCHEDULES };
        fields.retain(|field, _| COMMON.contains(&field.as_str()) || own.contains(&field.as_str()));
        Schedule::parse(kind, name, &Value::Object(fields)).ok()
    }

    /// The task of its runs.
    pub fn task(&self) -> &str {
        match &self.work {
            ScheduledWork::Task { task, .. } => task,
            ScheduledWork::Flow { configuration, .. } => own_task(configuration).unwrap_or(FLOW),
        }
    }
}

/// The task that a flow hands its configuration to, if it does.
fn own_task(configuration: &Value) -> Option<&str> {
    configuration.get("task").and_then(Value::as_str)
}

struct Reader<'a>(&'a Map<String, Value>);

impl Reader<'_> {
    /// Null is as good as nothing.
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<Option<String>, Invalid> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= MOST_TEXT => Ok(Some(text.clone())),
            Some(other) => {
                Err(Invalid::new(name, other, "is not text", format!("write at most {MOST_TEXT} bytes in quotes")))
            }
        }
    }

    fn name(&self, field: &str) -> Result<Option<String>, Invalid> {
        let name = self.text(field)?;
        name.as_deref().map_or(Ok(()), |name| check_name(field, name))?;
        Ok(name)
    }

    fn terms(&self) -> Result<Terms, Invalid> {
        Ok(Terms {
            rhythm: self.rhythm()?,
            overlap: self.word("overlap", Overlap::ALL, Overlap::as_str)?.unwrap_or(Overlap::Skip),
            catch_up: self.word("catch_up", CatchUp::ALL, CatchUp::as_str)?.unwrap_or(CatchUp::Latest),
            concurrency: self.concurrency()?,
            late_after: self.late_after()?,
        })
    }

    /// `run_interval`, in seconds, is accepted for an interval.
    fn rhythm(&self) -> Result<Option<Rhythm>, Invalid> {
        match (self.get("schedule"), self.get("run_interval")) {
            (None, None) => Ok(None),
            (Some(schedule), None) => Rhythm::parse(schedule).map(Some).map_err(|invalid| invalid.within("schedule")),
            (None, Some(seconds)) => match seconds.as_u64().filter(|seconds| (1..=MOST_SECONDS).contains(seconds)) {
                Some(seconds) => Ok(Some(Rhythm::Every(Duration::from_secs(seconds)))),
                None => {
                    let hint = format!("use a whole number of seconds from 1 to {MOST_SECONDS}");
                    Err(Invalid::new("run_interval", seconds, "is not an interval", hint))
                }
            },
            (Some(schedule), Some(seconds)) => {
                let same = seconds.as_u64().map(|seconds| Rhythm::Every(Duration::from_secs(seconds)));
                let given = Rhythm::parse(schedule).map_err(|invalid| invalid.within("schedule"))?;
                if same == Some(given.clone()) {
                    return Ok(Some(given));
                }
                Err(Invalid::new("run_interval", seconds, "stands beside another schedule", "give one of them"))
            }
        }
    }

    fn word<T: Copy>(&self, field: &str, all: &[T], spell: fn(T) -> &'static str) -> Result<Option<T>, Invalid> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let found = value.as_str().and_then(|word| all.iter().copied().find(|one| spell(*one) == word));
        found.map(Some).ok_or_else(|| {
            let words: Vec<&str> = all.iter().map(|one| spell(*one)).collect();
            Invalid::new(field, value, "is not one of the known words", format!("use {}", words.join(", ")))
        })
    }

    fn concurrency(&self) -> Result<Option<usize>, Invalid> {
        let Some(value) = self.get("concurrency") else { return Ok(None) };
        let count = value.as_u64().filter(|count| (1..=MOST_CONCURRENCY).contains(count));
        count.map(|count| Some(count as usize)).ok_or_else(|| {
            let hint = format!("use a whole number from 1 to {MOST_CONCURRENCY}");
            Invalid::new("concurrency", value, "is out of range", hint)
        })
    }

    fn late_after(&self) -> Result<Option<Duration>, Invalid> {
        let Some(value) = self.get("late_after") else { return Ok(None) };
        duration_from(value).map(Some).map_err(|invalid| invalid.within("late_after"))
    }

    fn after(&self, own: &str) -> Result<Vec<String>, Invalid> {
        let Some(value) = self.get("after") else { return Ok(Vec::new()) };
        let hint = format!("write a list of at most {MOST_AFTER} names");
        let Value::Array(items) = value else { return Err(Invalid::new("after", value, "is not a list", hint)) };
        if items.len() > MOST_AFTER {
            return Err(Invalid::new("after", items.len(), "are too many", hint));
        }
        let mut names = Vec::with_capacity(items.len());
        for (place, item) in items.iter().enumerate() {
            let field = format!("after[{place}]");
            let Some(name) = item.as_str() else { return Err(Invalid::new(field, item, "is not a name", hint)) };
            check_name(&field, name)?;
            if name == own {
                return Err(Invalid::new(field, name, "is this one itself", "name others that come before it"));
            }
            if !names.iter().any(|known| known == name) {
                names.push(name.to_string());
            }
        }
        Ok(names)
    }

    fn priority(&self) -> Result<i16, Invalid> {
        let Some(value) = self.get("priority") else { return Ok(0) };
        let priority = value.as_i64().and_then(|priority| i16::try_from(priority).ok());
        priority.ok_or_else(|| Invalid::new("priority", value, "is out of range", "use -32768 to 32767"))
    }

    fn policy(&self) -> Result<Map<String, Value>, Invalid> {
        let Some(value) = self.get("policy") else { return Ok(Map::new()) };
        PolicyPatch::parse(value).map_err(|invalid| invalid.within("policy"))?;
        Ok(value.as_object().cloned().unwrap_or_default())
    }

    fn task(&self) -> Result<ScheduledWork, Invalid> {
        let Some(task) = self.text("task")? else {
            return Err(Invalid::new("task", "nothing", "is missing", "name the task that is to be performed"));
        };
        check_task_name("task", &task)?;
        Ok(ScheduledWork::Task { task, input: self.0.get("input").cloned().unwrap_or(Value::Null) })
    }

    fn flow(&self) -> Result<ScheduledWork, Invalid> {
        let configuration = match self.get("configuration") {
            Some(value @ Value::Object(_)) => value.clone(),
            Some(other) => return Err(Invalid::new("configuration", other, "is not an object", CONFIGURATION)),
            None => return Err(Invalid::new("configuration", "nothing", "is missing", CONFIGURATION)),
        };
        if let Some(task) = configuration.get("task") {
            let Some(task) = task.as_str() else {
                return Err(Invalid::new("configuration.task", task, "is not text", CONFIGURATION));
            };
            check_task_name("configuration.task", task)?;
        }
        let (dead_letter, max_rejected) = (self.get("dead_letter").cloned(), self.get("max_rejected").cloned());
        Ok(ScheduledWork::Flow { configuration, dead_letter, max_rejected })
    }
}

const MOST_SECONDS: u64 = 366 * 86_400;
const CONFIGURATION: &str = "write {\"source\": {…}, \"sink\": {…}}, or {\"task\": \"name\", …}";

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(value: Value) -> Result<Schedule, Invalid> {
        Schedule::parse(ScheduleKind::Flow, "orders", &value)
    }

    #[test]
    fn what_is_written_is_read_back_the_same() {
        let given = json!({
            "description": "Orders of the day", "schedule": {"cron": "30 2 * * *", "tz": "Europe/Berlin"},
            "overlap": "queue", "catch_up": "all", "late_after": "10m", "queue": "night", "priority": 3,
            "policy": {"max_attempts": 7}, "concurrency": 2, "group": "warehouse", "after": ["products"],
            "configuration": {"source": {"type": "file"}, "sink": {}}, "dead_letter": {"type": "file"}, "max_rejected": "5%",
        });
        let schedule = flow(given).expect("a flow");
        assert_eq!(Schedule::from_stored(ScheduleKind::Flow, "orders", &schedule.to_stored()), Some(schedule));
        let input = json!({"schedule": {"every": "1h"}, "task": "report", "input": null});
        let schedule = Schedule::parse(ScheduleKind::Schedule, "report", &input).expect("a schedule");
        assert_eq!(Schedule::from_stored(ScheduleKind::Schedule, "report", &schedule.to_stored()), Some(schedule));
    }

    #[test]
    fn an_interval_in_seconds_is_accepted_for_a_schedule() {
        let read = flow(json!({"run_interval": 3600, "configuration": {"task": "t"}})).expect("a flow");
        assert_eq!((read.terms.rhythm.as_ref(), read.task()), (Some(&Rhythm::Every(Duration::from_secs(3600))), "t"));
        for bad in [json!(0), json!(-1), json!("1h"), json!(1.5)] {
            let refused = flow(json!({"run_interval": bad, "configuration": {}})).expect_err("no interval");
            assert_eq!(refused.field, "run_interval");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |value: Value| flow(value).expect_err("refused").field;
        assert_eq!(refused(json!({"configuration": {}, "overlapp": "skip"})), "overlapp");
        assert_eq!(refused(json!({"configuration": {}, "overlap": "sometimes"})), "overlap");
        assert_eq!(refused(json!({"configuration": {}, "schedule": {"cron": "x"}})), "schedule.cron");
        assert_eq!(refused(json!({"configuration": {}, "policy": {"max_attempts": 0}})), "policy.max_attempts");
        assert_eq!(refused(json!({"configuration": {}, "after": ["orders"]})), "after[0]");
        assert_eq!(refused(json!({"configuration": {}, "name": "others"})), "name");
        assert_eq!(refused(json!({"configuration": {}, "task": "t"})), "task");
        assert_eq!(refused(json!({})), "configuration");
    }
}
