//! Compares schedules, after every change of the store, with what they were: each due time is decided once, in the change
//! that moves its schedule on, and nothing begins that may not.

use crate::schedule_looks::{Look, check_look};
use crate::schedule_rest::{ScheduleRow, forgotten, left_of, unfinished_beside};
use crate::truth::Truth;
use everbeat_model::schedule::{DueBy, Occurrence, Overlap, ScheduleKind};
use everbeat_model::{Json, RunId, RunState, ScheduleId, StoreTime};
use everbeat_store::memory::State;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct ScheduleChecker {
    seen: BTreeMap<ScheduleId, ScheduleRow>,
    /// How many records there were of what was left out.
    left: BTreeMap<ScheduleId, usize>,
    occurrences: BTreeMap<RunId, (ScheduleId, Occurrence)>,
    /// All runs of schedules.
    runs: BTreeSet<RunId>,
    /// How many runs of any kind there were.
    run_count: usize,
    /// Which run each due time became, of those that were due by the clock.
    decided: BTreeMap<(ScheduleId, StoreTime), RunId>,
}

pub(crate) type Checked = Result<(), (&'static str, String)>;

/// What one change did to the occurrences of one schedule.
#[derive(Default)]
struct Change {
    /// Due times by the clock that became runs or wait since.
    by_clock: Vec<StoreTime>,
    /// Something became a run, or waits, since those that the schedule comes after have succeeded.
    fed: bool,
    begun: Vec<RunId>,
    /// Runs that were over and no longer count.
    over: Vec<RunId>,
    /// No more was left out than before.
    none_left: bool,
}

impl ScheduleChecker {
    pub(crate) fn look(&mut self, state: &State, truth: &mut Truth, now: StoreTime) {
        if state.schedules.is_empty() && self.seen.is_empty() {
            return;
        }
        if let Err((guarantee, detail)) = self.compare(state, truth, now) {
            truth.violate(guarantee, detail);
        }
    }

    /// Starts from what a failover left.
    pub(crate) fn rebased(state: &State) -> ScheduleChecker {
        let mut decided = BTreeMap::new();
        for (run, row) in &state.runs {
            if let Some(of) = row.spec.occurrence.filter(|_| argument(row.spec.args.as_ref(), "cause") == "clock") {
                decided.insert((of.schedule, of.due), *run);
            }
        }
        let waiting = state.occurrences.values().filter(|(_, one)| one.waits() && one.cause == DueBy::Clock);
        decided.extend(waiting.map(|(schedule, one)| ((*schedule, one.due), one.run)));
        ScheduleChecker {
            seen: state.schedules.clone(),
            left: state.schedules.keys().map(|id| (*id, left_of(state, *id).len())).collect(),
            occurrences: state.occurrences.clone(),
            runs: of_schedules(state).collect(),
            run_count: state.runs.len(),
            decided,
        }
    }

    fn compare(&mut self, state: &State, truth: &mut Truth, now: StoreTime) -> Checked {
        let mut changes = self.changes(state, truth, now)?;
        if !changes.is_empty() || self.occurrences.len() != state.occurrences.len() {
            self.occurrences.clone_from(&state.occurrences);
        }
        if std::mem::replace(&mut self.run_count, state.runs.len()) != state.runs.len()
            && let Some(run) = of_schedules(state).find(|run| !self.runs.contains(run))
        {
            let name = truth.name(run);
            return Err(("G7", format!("{name} was made apart from its schedule")));
        }
        let succeeded = succeeded(state, &changes);
        self.seen.retain(|id, _| state.schedules.contains_key(id));
        for (id, row) in &state.schedules {
            let (was, change) = (self.seen.get(id), changes.remove(id));
            let left = left_of(state, *id);
            let as_before = self.left.get(id).copied().unwrap_or_default() == left.len();
            if change.is_none() && as_before && was.is_some_and(|was| same(was, row)) {
                continue;
            }
            let told = |(guarantee, detail): (&'static str, String)| {
                (guarantee, format!("{} {:?}: {detail}", row.schedule.kind, row.schedule.name))
            };
            let change = Change { none_left: as_before, ..change.unwrap_or_default() };
            carry_on(state, truth, (*id, was, row), &change, now).map_err(told)?;
            check_feeds(state, truth, (*id, was, row), &change).map_err(told)?;
            check_fed(was, row, &succeeded).map_err(told)?;
            check_limits(state, (*id, row), &change).map_err(told)?;
            check_cursor(state, row, &change).map_err(told)?;
            self.left.insert(*id, left.len());
            self.seen.insert(*id, row.clone());
        }
        match forgotten(state) {
            Some(what) => Err(("liveness", what)),
            None => Ok(()),
        }
    }

    /// What this change did to occurrences, by schedule.
    fn changes(
        &mut self,
        state: &State,
        truth: &mut Truth,
        now: StoreTime,
    ) -> Result<BTreeMap<ScheduleId, Change>, (&'static str, String)> {
        let mut changes: BTreeMap<ScheduleId, Change> = BTreeMap::new();
        for (run, (id, is)) in &state.occurrences {
            let was = self.occurrences.get(run).map(|(_, was)| was.waits());
            if was == Some(is.waits()) {
                continue;
            }
            let waited = was.is_some();
            let change = changes.entry(*id).or_default();
            if !is.waits() && self.runs.contains(run) {
                truth.report.schedule("reopened");
                continue;
            }
            self.check_occurrence(state, truth, (*id, is), waited, now)?;
            if !waited {
                truth.occurred.insert(*run);
                match is.cause {
                    DueBy::Clock => change.by_clock.push(is.due),
                    DueBy::After => change.fed = true,
                    DueBy::Asked => {}
                }
            }
            if !is.waits() {
                self.runs.insert(*run);
                change.begun.push(*run);
            }
        }
        for (run, (id, was)) in &self.occurrences {
            if state.occurrences.contains_key(run) || !state.schedules.contains_key(id) {
                continue;
            }
            let name = truth.name(*run);
            if was.waits() {
                return Err(("G7", format!("{name}, due at {}, waited, and is gone", was.due)));
            }
            if !state.done.contains_key(run) {
                return Err(("G7", format!("{name} no longer counts as begun, and nobody knows how it ended")));
            }
            changes.entry(*id).or_default().over.push(*run);
        }
        Ok(changes)
    }

    /// An occurrence that is new, or no longer waits.
    fn check_occurrence(
        &mut self,
        state: &State,
        truth: &mut Truth,
        (id, is): (ScheduleId, &Occurrence),
        waited: bool,
        now: StoreTime,
    ) -> Checked {
        let (name, due) = (truth.name(is.run), is.due);
        if !waited && due > now {
            return Err(("G5", format!("{name} was decided at {now}, and is due at {due} only")));
        }
        if !waited
            && is.cause == DueBy::Clock
            && let Some(other) = self.decided.insert((id, due), is.run)
        {
            let other = truth.name(other);
            return Err(("G7", format!("{name} and {other} stand for the one due time {due}")));
        }
        let row = state.runs.get(&is.run);
        if is.waits() {
            truth.report.schedule("waited");
            return match row {
                None => Ok(()),
                Some(_) => Err(("G7", format!("{name} waits for its turn, and has begun"))),
            };
        }
        let Some(row) = row else { return Err(("G7", format!("{name} counts as begun, and there is no such run"))) };
        let of = row.spec.occurrence.map(|of| (of.schedule, of.due));
        if of != Some((id, due)) || argument(row.spec.args.as_ref(), "cause") != is.cause.as_str() {
            return Err(("G7", format!("{name} stands for {is:?}, and says {:?}, {:?}", of, row.spec.args)));
        }
        truth.flow_runs +=
            u64::from(state.schedules.get(&id).is_some_and(|row| row.schedule.kind == ScheduleKind::Flow));
        truth.report.schedule("begun");
        if waited {
            truth.report.schedule("begun after it waited");
        }
        if is.cause == DueBy::After {
            truth.report.schedule("begun after others");
        }
        Ok(())
    }
}

fn carry_on(
    state: &State,
    truth: &mut Truth,
    (id, was, row): (ScheduleId, Option<&ScheduleRow>, &ScheduleRow),
    change: &Change,
    now: StoreTime,
) -> Checked {
    let Some(was) = was else { return check_new(row, change, now) };
    match (was.late_since, row.late_since) {
        (None, Some(_)) => truth.report.schedule("late"),
        (Some(_), None) => truth.report.schedule("recovered"),
        _ => {}
    }
    if was.version != row.version || was.enabled != row.enabled {
        if was.enabled != row.enabled {
            truth.report.schedule(if row.enabled { "enabled" } else { "disabled" });
        }
        return check_written(was, row, change, now);
    }
    let look = Look { was, row, by_clock: &change.by_clock, left: left_of(state, id), now };
    let waits_or_runs = state.occurrences.values().any(|(of, _)| *of == id);
    check_look(truth, &look, waits_or_runs)
}

/// Whether nothing of a schedule has changed but what its occurrences show.
fn same(was: &ScheduleRow, row: &ScheduleRow) -> bool {
    was.version == row.version
        && was.enabled == row.enabled
        && (was.next_due, was.last_due, was.late_since) == (row.next_due, row.last_due, row.late_since)
        && was.fed_by == row.fed_by
        && was.cursor == row.cursor
}

fn check_new(row: &ScheduleRow, change: &Change, now: StoreTime) -> Checked {
    let early = row.next_due.is_some_and(|due| due < now);
    match row.version != 1 || early || !change.by_clock.is_empty() || !change.none_left {
        true => Err(("G7", format!("it is new at {now}, and is {row:?}"))),
        false => Ok(()),
    }
}

/// Another definition moves due times only where its rhythm differs or the schedule is enabled again, and decides on none.
fn check_written(was: &ScheduleRow, row: &ScheduleRow, change: &Change, now: StoreTime) -> Checked {
    if !change.by_clock.is_empty() || !change.begun.is_empty() || !change.none_left {
        return Err(("G7", "it was written, and something was decided".to_string()));
    }
    let moved = was.schedule.terms.rhythm != row.schedule.terms.rhythm || (row.enabled && !was.enabled);
    let (before, next, last) = (was.next_due, row.next_due, row.last_due);
    if !moved {
        return match before == next {
            true => Ok(()),
            false => Err(("G7", format!("its rhythm is the same, and it is due at {next:?} instead of {before:?}"))),
        };
    }
    let wrong = next.is_some() != row.schedule.terms.rhythm.is_some()
        || next.is_some_and(|next| next < now)
        || next.is_some_and(|next| last.is_some_and(|last| next <= last));
    match wrong {
        true => Err(("G7", format!("after {last:?} it is due at {next:?}, written at {now}"))),
        false => Ok(()),
    }
}

/// Whoever comes after a schedule is told of each success, and of nothing else.
fn check_feeds(
    state: &State,
    truth: &mut Truth,
    (id, was, row): (ScheduleId, Option<&ScheduleRow>, &ScheduleRow),
    change: &Change,
) -> Checked {
    let name = &row.schedule.name;
    let succeeded =
        change.over.iter().find(|run| state.done.get(run).is_some_and(|done| done.state == RunState::Succeeded));
    if let Some(run) = succeeded {
        let follows =
            |other: &ScheduleRow| other.schedule.kind == row.schedule.kind && other.schedule.after.contains(name);
        let untold =
            |(other, row): &(&ScheduleId, &ScheduleRow)| **other != id && follows(row) && !row.fed_by.contains(name);
        if let Some((_, other)) = state.schedules.iter().find(untold) {
            let run = truth.name(*run);
            return Err(("G7", format!("{run} has succeeded, and {:?} was not told", other.schedule.name)));
        }
    }
    let Some(was) = was.filter(|_| change.fed) else { return Ok(()) };
    match row.schedule.after.iter().find(|name| !was.fed_by.contains(*name)) {
        Some(name) => Err(("G7", format!("it began after others, and {name:?} has not succeeded since"))),
        None if !row.fed_by.is_empty() => Err(("G7", format!("what it came after counts again: {:?}", row.fed_by))),
        None => Ok(()),
    }
}

/// Schedules of which a run was found to have succeeded.
fn succeeded(state: &State, changes: &BTreeMap<ScheduleId, Change>) -> BTreeSet<(ScheduleKind, String)> {
    let success = |run: &RunId| state.done.get(run).is_some_and(|done| done.state == RunState::Succeeded);
    let those = changes.iter().filter(|(_, change)| change.over.iter().any(success));
    let rows = those.filter_map(|(id, _)| state.schedules.get(id));
    rows.map(|row| (row.schedule.kind, row.schedule.name.clone())).collect()
}

fn check_fed(was: Option<&ScheduleRow>, row: &ScheduleRow, succeeded: &BTreeSet<(ScheduleKind, String)>) -> Checked {
    let new = |name: &&String| was.is_none_or(|was| !was.fed_by.contains(*name));
    let untrue = |name: &&String| !succeeded.contains(&(row.schedule.kind, name.to_string()));
    match row.fed_by.iter().filter(new).find(untrue) {
        Some(name) => Err(("G7", format!("it was told of a success of {name:?}, and there was none"))),
        None => Ok(()),
    }
}

/// Whatever begins finds room. What was opened again by hand, or was there before a limit, does not.
fn check_limits(state: &State, (id, row): (ScheduleId, &ScheduleRow), change: &Change) -> Checked {
    if change.begun.is_empty() {
        return Ok(());
    }
    let terms = &row.schedule.terms;
    let alone = if terms.overlap == Overlap::Allow { usize::MAX } else { 1 };
    let most = match &row.schedule.group {
        None => terms.concurrency.unwrap_or(alone),
        Some(_) => terms.concurrency.unwrap_or(1),
    };
    let unfinished = unfinished_beside(state, id, row);
    if unfinished > most {
        return Err(("G7", format!("{unfinished} of it or of its group run at once, of {most}")));
    }
    let open = state.runs.iter().filter(|(run, _)| !state.done.contains_key(run));
    let own = open.filter(|(_, run)| run.spec.occurrence.is_some_and(|of| of.schedule == id)).count();
    match row.schedule.group.is_some() && own > alone {
        true => Err(("G7", format!("{own} of it run at once, of {alone}"))),
        false => Ok(()),
    }
}

/// A flow goes on where its last run left off.
fn check_cursor(state: &State, row: &ScheduleRow, change: &Change) -> Checked {
    let mut checkpoints = change.over.iter().filter_map(|run| state.signs.get(run)?.1.as_ref());
    if let Some(last) = checkpoints.next_back().filter(|last| row.cursor.as_ref() != Some(last)) {
        return Err(("G13", format!("its last run left off at {last:?}, and its cursor is {:?}", row.cursor)));
    }
    if row.schedule.kind != ScheduleKind::Flow {
        return Ok(());
    }
    let cursor = row.cursor.as_ref().map_or(Value::Null, Json::value);
    let handed = |run: &&RunId| state.runs.get(run).map(|row| argument_value(row.spec.args.as_ref(), "cursor"));
    match change.begun.iter().find(|run| handed(run).is_some_and(|handed| handed != cursor)) {
        Some(run) => Err(("G13", format!("a run begins at {:?}, and its cursor is {cursor}", handed(&run)))),
        None => Ok(()),
    }
}

fn of_schedules(state: &State) -> impl Iterator<Item = RunId> {
    state.runs.iter().filter(|(_, row)| row.spec.occurrence.is_some()).map(|(run, _)| *run)
}

fn argument(args: Option<&Json>, name: &str) -> String {
    argument_value(args, name).as_str().unwrap_or_default().to_string()
}

fn argument_value(args: Option<&Json>, name: &str) -> Value {
    args.map(Json::value).map_or(Value::Null, |args| args[name].clone())
}
