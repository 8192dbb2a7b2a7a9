//! Whether schedules are at rest: nothing is due, nothing waits, nobody has to look.

use everbeat_model::schedule::{DueBy, Occurrence};
use everbeat_model::{ScheduleId, StoreTime};
use everbeat_store::LeftOut;
pub(crate) use everbeat_store::ScheduleRow;
use everbeat_store::memory::State;
use std::time::Duration;

/// A healed replica looks at what is due within this time.
const PROMPT: Duration = Duration::from_secs(3);

/// What schedules that are not at rest still lack. Their clocks were stopped before.
pub(crate) fn restless(state: &State) -> Option<String> {
    let due = |row: &&ScheduleRow| row.enabled && row.next_due.is_some();
    if let Some(row) = state.schedules.values().find(due) {
        return Some(format!("{} {:?} is due again", row.schedule.kind, row.schedule.name));
    }
    if let Some((id, occurrence)) = state.occurrences.values().next() {
        let does = if occurrence.waits() { "waits" } else { "counts as begun" };
        return Some(format!("an occurrence of {} {does}: {occurrence:?}", named(state, *id)));
    }
    if let Some(id) = state.schedule_notes.first() {
        return Some(format!("{} is noted", named(state, *id)));
    }
    let late = state.schedules.values().find(|row| row.late_since.is_some());
    late.map(|row| format!("{:?} is late: {row:?}", row.schedule.name))
}

/// What has been due for longer than a healed world takes to decide on it.
pub(crate) fn overdue(state: &State, now: StoreTime) -> Option<String> {
    let overdue = |row: &&ScheduleRow| row.enabled && row.next_due.is_some_and(|due| due.plus(PROMPT) < now);
    let row = state.schedules.values().find(overdue)?;
    let (kind, name) = (row.schedule.kind, &row.schedule.name);
    Some(format!("{kind} {name:?} is due since {:?}, at {now:?}, and nobody has decided on it", row.next_due))
}

/// Something waits that may begin, nothing runs that could hold it back, and nobody is told to look.
pub(crate) fn forgotten(state: &State) -> Option<String> {
    if !state.schedule_notes.is_empty() {
        return None;
    }
    state.schedules.iter().find_map(|(id, row)| {
        let eligible = |one: &&Occurrence| one.waits() && (row.enabled || one.cause == DueBy::Asked);
        let mut own = state.occurrences.values().filter(|(of, _)| of == id).map(|(_, occurrence)| occurrence);
        let waits = own.find(eligible)?;
        (unfinished_beside(state, *id, row) == 0)
            .then(|| format!("{:?} of {} waits for nobody, and nobody will look", waits.due, named(state, *id)))
    })
}

/// Unfinished runs of a schedule and of the others in its group.
pub(crate) fn unfinished_beside(state: &State, id: ScheduleId, row: &ScheduleRow) -> usize {
    let beside = |other: ScheduleId| {
        other == id
            || row.schedule.group.is_some()
                && state.schedules.get(&other).is_some_and(|other| {
                    other.schedule.group == row.schedule.group && other.schedule.kind == row.schedule.kind
                })
    };
    let open = state.runs.iter().filter(|(run, _)| !state.done.contains_key(run));
    open.filter(|(_, run)| run.spec.occurrence.is_some_and(|of| beside(of.schedule))).count()
}

/// The records of what was left out, the newest last.
pub(crate) fn left_of(state: &State, id: ScheduleId) -> &[LeftOut] {
    state.left.get(&id).map(Vec::as_slice).unwrap_or_default()
}

fn named(state: &State, id: ScheduleId) -> String {
    let row = state.schedules.get(&id);
    row.map_or_else(|| format!("schedule {id}"), |row| format!("{} {:?}", row.schedule.kind, row.schedule.name))
}
