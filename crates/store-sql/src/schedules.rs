//! Schedules and their occurrences between the model and what columns hold, alike for both databases.

use crate::cells::number;
use crate::decode::known;
use everbeat_model::schedule::{DueBy, Left, Occurrence, OccurrenceState, ScheduleKind, WhyLeft};
use everbeat_model::{Json, Run, RunId, RunState, ScheduleId, StoreTime};
use everbeat_store::{Error, LeftOut, Result, ScheduleRow, StoredSchedule, stored_definition};
use std::collections::BTreeSet;
use std::sync::Arc;
use uuid::Uuid;

/// The order is that of [`ScheduleCells`]; `s` is the schedule's row.
pub(crate) const SCHEDULE_COLUMNS: &str = "s.id, s.kind, s.name, s.definition, s.version, s.enabled, s.created_at, \
  s.updated_at, s.next_due_at, s.last_due_at, s.look_at, s.late_since, s.cursor, s.fed_by";

/// How many those are.
pub(crate) const SCHEDULE_WIDTH: usize = 14;

pub(crate) struct ScheduleCells {
    pub(crate) id: Uuid,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) definition: String,
    pub(crate) version: i64,
    pub(crate) enabled: bool,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
    pub(crate) next_due_at: Option<i64>,
    pub(crate) last_due_at: Option<i64>,
    pub(crate) look_at: Option<i64>,
    pub(crate) late_since: Option<i64>,
    pub(crate) cursor: Option<String>,
    pub(crate) fed_by: String,
}

impl ScheduleCells {
    /// The bytes of the schedule, as [`StoredSchedule::bytes`] counts them, but for its last run.
    pub(crate) fn bytes(&self) -> usize {
        self.definition.len() + self.cursor.as_ref().map_or(0, String::len)
    }

    pub(crate) fn read(self) -> Result<(ScheduleId, ScheduleRow)> {
        let kind = known("schedule", self.id, "kind", &self.kind, ScheduleKind::parse(&self.kind))?;
        let Some((schedule, declared)) = stored_definition(kind, &self.name, &self.definition) else {
            return Err(Error::Bug(format!(
                "the definition of {kind} {:?} cannot be read: another version of everbeat has written it; use that one",
                self.name
            )));
        };
        let row = ScheduleRow {
            schedule: Arc::new(schedule),
            version: number(self.version),
            enabled: self.enabled,
            created_at: StoreTime(self.created_at),
            updated_at: StoreTime(self.updated_at),
            next_due: self.next_due_at.map(StoreTime),
            last_due: self.last_due_at.map(StoreTime),
            look_at: self.look_at.map(StoreTime),
            late_since: self.late_since.map(StoreTime),
            cursor: self.cursor.map(Json::stored),
            fed_by: fed_by(&self.fed_by),
            declared,
        };
        Ok((ScheduleId(self.id), row))
    }
}

/// Names read back; text of another version that is no list reads as an empty one.
pub(crate) fn fed_by(stored: &str) -> BTreeSet<String> {
    serde_json::from_str(stored).unwrap_or_default()
}

pub(crate) fn stored_fed_by(names: &BTreeSet<String>) -> String {
    Json::of(names).as_str().to_string()
}

/// A schedule for lists and for whoever looks.
pub(crate) fn stored(
    (id, row): (ScheduleId, ScheduleRow),
    waiting: i64,
    unfinished: i64,
    last_run: Option<Run>,
) -> StoredSchedule {
    let count = |stored: i64| usize::try_from(stored).unwrap_or(0);
    StoredSchedule {
        id,
        schedule: row.schedule,
        version: row.version,
        enabled: row.enabled,
        created_at: row.created_at,
        updated_at: row.updated_at,
        next_due: row.next_due,
        last_due: row.last_due,
        late_since: row.late_since,
        cursor: row.cursor,
        waiting: count(waiting),
        unfinished: count(unfinished),
        last_run,
        declared: row.declared,
    }
}

/// An occurrence, and what is known of its run.
pub(crate) struct OccurrenceCells {
    pub(crate) run_id: Uuid,
    pub(crate) due_at: i64,
    pub(crate) due_by: String,
    pub(crate) wish: Option<String>,
    pub(crate) begun: bool,
    /// The run is over, or was forgotten.
    pub(crate) over: bool,
    pub(crate) state: Option<String>,
    pub(crate) checkpoint: Option<String>,
}

impl OccurrenceCells {
    pub(crate) fn read(self) -> Result<Occurrence> {
        let state = match (self.begun, self.over) {
            (false, _) => OccurrenceState::Waiting,
            (true, false) => OccurrenceState::Begun,
            (true, true) => OccurrenceState::Over {
                state: self.state.as_deref().and_then(RunState::parse),
                checkpoint: self.checkpoint.map(Json::stored),
            },
        };
        Ok(Occurrence {
            run: RunId(self.run_id),
            due: StoreTime(self.due_at),
            cause: known("occurrence", self.run_id, "due_by", &self.due_by, DueBy::parse(&self.due_by))?,
            wish: self.wish.map(Json::stored),
            state,
        })
    }
}

/// A record of what was left out, from its columns `at, from_at, to_at, count, why`.
pub(crate) fn left_out(at: i64, from: i64, to: i64, count: i64, why: &str) -> Result<LeftOut> {
    let why = known("occurrence_left", at, "why", why, WhyLeft::parse(why))?;
    let left = Left { from: StoreTime(from), to: StoreTime(to), count: number(count), why };
    Ok(LeftOut { at: StoreTime(at), left })
}
