//! The row of a schedule, and what becomes of the row when the schedule is written, switched or looked at: alike in every
//! store.

use crate::{Author, Declared, PutSchedule};
use everbeat_model::event::{EventKind, line};
use everbeat_model::schedule::{Decision, Occurrence, Others, Schedule, ScheduleKind, Situation, rearm};
use everbeat_model::{Json, ScheduleId, StoreTime};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleRow {
    pub schedule: Arc<Schedule>,
    pub version: u64,
    pub enabled: bool,
    pub created_at: StoreTime,
    pub updated_at: StoreTime,
    pub next_due: Option<StoreTime>,
    pub last_due: Option<StoreTime>,
    pub look_at: Option<StoreTime>,
    pub late_since: Option<StoreTime>,
    pub cursor: Option<Json>,
    /// Those the schedule comes after that have succeeded since.
    pub fed_by: BTreeSet<String>,
    pub declared: Declared,
}

/// What a request to write a schedule comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// The version there is another one; none if there is no such schedule.
    Conflict(Option<u64>),
    /// The same was written before.
    Same,
    Row(Box<ScheduleRow>),
}

impl ScheduleRow {
    /// Writes a definition over the row that is there.
    pub fn written(before: Option<&ScheduleRow>, put: &PutSchedule, now: StoreTime) -> Written {
        let there = before.map(|row| row.version);
        if put.version.is_some_and(|version| Some(version) != there) {
            return Written::Conflict(there);
        }
        let rhythm = put.schedule.terms.rhythm.as_ref();
        let Some(row) = before else {
            return Written::Row(Box::new(ScheduleRow {
                schedule: Arc::new(put.schedule.clone()),
                version: 1,
                enabled: put.enabled.unwrap_or(true),
                created_at: now,
                updated_at: now,
                next_due: rearm(rhythm, None, now),
                last_due: None,
                look_at: None,
                late_since: None,
                cursor: None,
                fed_by: BTreeSet::new(),
                declared: if put.author == Author::Code { Declared::Same } else { Declared::Never },
            }));
        };
        // What code said before is no news: what somebody has written since then stands.
        if put.author == Author::Code && row.declared.last(&row.schedule) == Some(&put.schedule) {
            return Written::Same;
        }
        let declared = row.declared.after(&row.schedule, put);
        let enabled = put.enabled.filter(|_| put.author == Author::Person).unwrap_or(row.enabled);
        if *row.schedule == put.schedule && enabled == row.enabled {
            return match declared == row.declared {
                true => Written::Same,
                false => Written::Row(Box::new(ScheduleRow { declared, ..row.clone() })),
            };
        }
        let moved = row.schedule.terms.rhythm != put.schedule.terms.rhythm || (enabled && !row.enabled);
        Written::Row(Box::new(ScheduleRow {
            schedule: Arc::new(put.schedule.clone()),
            version: row.version + 1,
            enabled,
            updated_at: now,
            next_due: if moved { rearm(rhythm, row.last_due, now) } else { row.next_due },
            fed_by: row.fed_by.iter().filter(|name| put.schedule.after.contains(name)).cloned().collect(),
            declared,
            ..row.clone()
        }))
    }

    /// The row switched on or off; none if that is how it stands.
    pub fn switched(&self, enabled: bool, now: StoreTime) -> Option<ScheduleRow> {
        if self.enabled == enabled {
            return None;
        }
        let again = || rearm(self.schedule.terms.rhythm.as_ref(), self.last_due, now);
        let next_due = if enabled { again() } else { self.next_due };
        Some(ScheduleRow { enabled, updated_at: now, next_due, ..self.clone() })
    }

    /// The row after a look.
    pub fn looked(&self, decision: &Decision) -> ScheduleRow {
        ScheduleRow {
            next_due: decision.next_due,
            last_due: decision.last_due.or(self.last_due),
            look_at: decision.look_at,
            late_since: decision.late_since,
            cursor: decision.cursor.clone(),
            fed_by: if decision.fed { BTreeSet::new() } else { self.fed_by.clone() },
            ..self.clone()
        }
    }

    pub fn situation(&self, id: ScheduleId, occurrences: Vec<Occurrence>, others: Others, now: StoreTime) -> Situation {
        Situation {
            id,
            schedule: self.schedule.clone(),
            enabled: self.enabled,
            next_due: self.next_due,
            occurrences,
            fed_by: self.fed_by.clone(),
            others,
            late_since: self.late_since,
            cursor: self.cursor.clone(),
            now,
        }
    }
}

impl ScheduleRow {
    /// The definition as it is stored, with what code declared beside it.
    pub fn to_stored(&self) -> String {
        let mut value = self.schedule.to_value();
        if let (Some(declared), Value::Object(fields)) = (self.declared.to_stored(), &mut value) {
            fields.insert(DECLARED.to_string(), declared);
        }
        value.to_string()
    }
}

/// Reads the stored form of a definition. None if another version wrote what this one cannot read.
pub fn stored_definition(kind: ScheduleKind, name: &str, text: &str) -> Option<(Schedule, Declared)> {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(text) else { return None };
    let declared = Declared::from_stored(kind, name, fields.remove(DECLARED));
    Some((Schedule::from_fields(kind, name, fields)?, declared))
}

/// The field beside those of the definition.
const DECLARED: &str = "declared";

/// What is told when a schedule is written or switched.
pub fn schedule_written(kind: ScheduleKind, name: &str) -> String {
    let word = if kind == ScheduleKind::Flow { EventKind::FlowWritten } else { EventKind::ScheduleWritten };
    line(word, name, None, None)
}

/// What is told when a schedule is deleted.
pub fn schedule_deleted(kind: ScheduleKind, name: &str) -> String {
    let word = if kind == ScheduleKind::Flow { EventKind::FlowDeleted } else { EventKind::ScheduleDeleted };
    line(word, name, None, None)
}
