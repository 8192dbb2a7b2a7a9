//! Who wrote the definition of a schedule: a person, or code that declares it whenever it starts.

use crate::PutSchedule;
use everbeat_model::schedule::{Schedule, ScheduleKind};
use serde_json::Value;
use std::sync::Arc;

/// Who writes a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Author {
    /// Somebody who asks for this definition now: it replaces the one before.
    #[default]
    Person,
    /// Code that says the same whenever it starts. What it said before changes nothing, so that what somebody has written
    /// since stands; something else replaces the definition. Code decides on `enabled` only where nothing is there.
    Code,
}

/// What code has said of a schedule.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Declared {
    /// Nothing.
    #[default]
    Never,
    /// The definition is what code declared last.
    Same,
    /// Somebody has written another definition since. This is what code declared last.
    Changed(Arc<Schedule>),
}

impl Declared {
    /// What code declared last, given the definition that counts.
    pub(crate) fn last<'a>(&'a self, current: &'a Schedule) -> Option<&'a Schedule> {
        match self {
            Declared::Never => None,
            Declared::Same => Some(current),
            Declared::Changed(declared) => Some(declared),
        }
    }

    /// After another definition took the place of `current`.
    pub(crate) fn after(&self, current: &Arc<Schedule>, put: &PutSchedule) -> Declared {
        if put.author == Author::Code {
            return Declared::Same;
        }
        match self.last(current) {
            None => Declared::Never,
            Some(declared) if *declared == put.schedule => Declared::Same,
            Some(declared) => Declared::Changed(Arc::new(declared.clone())),
        }
    }

    pub(crate) fn to_stored(&self) -> Option<Value> {
        match self {
            Declared::Never => None,
            Declared::Same => Some(Value::Bool(true)),
            Declared::Changed(declared) => Some(declared.to_value()),
        }
    }

    /// What another version wrote and this one cannot read counts as nothing: then code has the next word.
    pub(crate) fn from_stored(kind: ScheduleKind, name: &str, stored: Option<Value>) -> Declared {
        match stored {
            Some(Value::Bool(true)) => Declared::Same,
            Some(Value::Object(fields)) => {
                let read = Schedule::from_fields(kind, name, fields);
                read.map_or(Declared::Never, |declared| Declared::Changed(Arc::new(declared)))
            }
            _ => Declared::Never,
        }
    }
}
