use super::Memory;
use super::state::State;
use crate::{
    Deleted, DueSchedule, DueSchedules, Error, LIST_BYTES, LeftOut, LookedAt, LookedSchedule, MOST_LEFT, Part, Put,
    PutSchedule, Result, ScheduleFilter, ScheduleRow, Scheduler, Schedules, StoredSchedule, Written, schedule_deleted,
    schedule_events, schedule_written,
};
use async_trait::async_trait;
use everbeat_model::run::Spec;
use everbeat_model::schedule::{Decision, DueBy, Occurrence, OccurrenceState, Others, ScheduleKind, Situation, Wish};
use everbeat_model::{RunId, ScheduleId, Sent, StoreTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[async_trait]
impl Schedules for Memory {
    async fn put_schedule(&self, put: PutSchedule) -> Result<Put> {
        let now = self.now();
        let mut state = self.lock();
        let (kind, name) = (put.schedule.kind, put.schedule.name.clone());
        let found = state.named(kind, &name);
        let before = found.map(|id| state.schedules[&id].clone());
        let id = found.unwrap_or(put.id);
        let row = match ScheduleRow::written(before.as_ref(), &put, now) {
            Written::Conflict(there) => return Ok(Put::Conflict(there)),
            Written::Same => return Ok(Put::Unchanged(state.stored_schedule(id))),
            Written::Row(row) => *row,
        };
        state.append(now, &[schedule_written(kind, &name)]);
        if let Some(before) = &before {
            state.note_group(id, before);
        }
        state.schedules.insert(id, row);
        // What waits follows another limit, and another lateness.
        state.note_schedule(id);
        state.version += 1;
        let stored = state.stored_schedule(id);
        Ok(if found.is_some() { Put::Replaced(stored) } else { Put::Created(stored) })
    }

    async fn enable_schedule(&self, kind: ScheduleKind, name: &str, enabled: bool) -> Result<Option<StoredSchedule>> {
        let now = self.now();
        let mut state = self.lock();
        let Some(id) = state.named(kind, name) else { return Ok(None) };
        if let Some(row) = state.schedules[&id].switched(enabled, now) {
            state.append(now, &[schedule_written(kind, name)]);
            state.note_group(id, &row);
            state.schedules.insert(id, row);
            state.note_schedule(id);
            state.version += 1;
        }
        Ok(Some(state.stored_schedule(id)))
    }

    async fn delete_schedule(&self, kind: ScheduleKind, name: &str, version: Option<u64>) -> Result<Deleted> {
        let now = self.now();
        let mut state = self.lock();
        let Some(id) = state.named(kind, name) else { return Ok(Deleted::NotFound) };
        let row = state.schedules[&id].clone();
        if version.is_some_and(|version| version != row.version) {
            return Ok(Deleted::Conflict(row.version));
        }
        state.note_group(id, &row);
        state.schedules.remove(&id);
        state.left.remove(&id);
        state.schedule_notes.remove(&id);
        state.occurrences.retain(|_, (schedule, _)| *schedule != id);
        state.append(now, &[schedule_deleted(kind, name)]);
        state.version += 1;
        Ok(Deleted::Done)
    }

    async fn schedule(&self, kind: ScheduleKind, name: &str) -> Result<Option<StoredSchedule>> {
        let state = self.lock();
        Ok(state.named(kind, name).map(|id| state.stored_schedule(id)))
    }

    async fn schedules(&self, filter: ScheduleFilter) -> Result<Part<StoredSchedule>> {
        let state = self.lock();
        let wanted = |row: &ScheduleRow| {
            filter.kind.is_none_or(|kind| row.schedule.kind == kind)
                && filter.after.as_ref().is_none_or(|after| row.schedule.name > *after)
        };
        let mut found: Vec<(&str, ScheduleKind, ScheduleId)> = state
            .schedules
            .iter()
            .filter(|(_, row)| wanted(row))
            .map(|(id, row)| (row.schedule.name.as_str(), row.schedule.kind, *id))
            .collect();
        found.sort();
        let mut wanted = found.into_iter().take(filter.limit).map(|(_, _, id)| state.stored_schedule(id));
        let (mut items, mut bytes) = (Vec::new(), 0);
        while bytes < LIST_BYTES
            && let Some(schedule) = wanted.next()
        {
            bytes += schedule.bytes();
            items.push(schedule);
        }
        Ok(Part { items, cut_short: wanted.next().is_some() })
    }

    async fn late_schedules(&self) -> Result<BTreeMap<ScheduleKind, u64>> {
        let mut late = BTreeMap::new();
        for row in self.lock().schedules.values().filter(|row| row.late_since.is_some()) {
            *late.entry(row.schedule.kind).or_default() += 1;
        }
        Ok(late)
    }

    async fn due_schedules(&self, clock: &[ScheduleKind], limit: usize) -> Result<DueSchedules> {
        let now = self.now();
        let state = self.lock();
        let mut found = Vec::new();
        let mut next: Option<StoreTime> = None;
        for (id, row) in &state.schedules {
            let by_clock = row.next_due.filter(|_| row.enabled && clock.contains(&row.schedule.kind));
            let noted = state.schedule_notes.contains(id).then_some(crate::AT_ONCE);
            let look_at = row.look_at.filter(|_| row.enabled);
            let times = || [noted, by_clock, look_at].into_iter().flatten();
            if let Some(at) = times().filter(|at| *at <= now).min() {
                let by_clock = by_clock.is_some_and(|due| due <= now);
                found.push((at, DueSchedule { id: *id, kind: row.schedule.kind, by_clock }));
            }
            next = times().filter(|at| *at > now).chain(next).min();
        }
        found.sort_by_key(|(at, due)| (*at, due.id));
        let more = found.len() > limit;
        let next_in = if more { Some(std::time::Duration::ZERO) } else { next.map(|next| next.since(now)) };
        Ok(DueSchedules { schedules: found.into_iter().take(limit).map(|(_, due)| due).collect(), next_in })
    }

    async fn look_at_schedule(&self, id: ScheduleId, wish: Wish, scheduler: Arc<dyn Scheduler>) -> Result<LookedAt> {
        let now = self.now();
        let mut state = self.lock();
        let Some(situation) = state.situation(id, now) else { return Ok(LookedAt::NotFound) };
        if let Some(again) = state.triggered_before(&wish)? {
            return Ok(LookedAt::Done(again));
        }
        let key = wish.key().map(|(run, given)| (run, given.clone()));
        state.schedule_notes.remove(&id);
        let decision = scheduler.look(&situation, wish);
        let looked = LookedSchedule::of(&decision);
        state.append(now, &schedule_events(&situation, &decision));
        state.carry_out_look(&situation, decision);
        if let Some((run, given)) = key.filter(|(run, _)| looked.has(*run)) {
            state.idempotency.insert(given.key, (given.fingerprint, vec![run], now));
        }
        state.version += 1;
        Ok(LookedAt::Done(looked))
    }

    async fn waiting_occurrences(&self, id: ScheduleId) -> Result<Vec<Occurrence>> {
        let state = self.lock();
        Ok(state.occurrences_of(id).filter(|occurrence| occurrence.waits()).cloned().collect())
    }

    async fn left_occurrences(&self, id: ScheduleId, limit: usize) -> Result<Vec<LeftOut>> {
        let state = self.lock();
        let left = state.left.get(&id).map(Vec::as_slice).unwrap_or_default();
        Ok(left.iter().rev().take(limit).copied().collect())
    }

    async fn note_stranded_schedules(&self, limit: usize) -> Result<usize> {
        let mut state = self.lock();
        let over = |run: &RunId, occurrence: &Occurrence| !occurrence.waits() && state.is_over(*run);
        let begun = state.occurrences.iter().filter(|(run, (_, occurrence))| over(run, occurrence));
        let all: BTreeSet<ScheduleId> = begun.map(|(_, (schedule, _))| *schedule).collect();
        let stranded: Vec<ScheduleId> = all.into_iter().take(limit).collect();
        let count = stranded.len();
        state.schedule_notes.extend(stranded);
        state.version += 1;
        Ok(count)
    }
}

impl State {
    fn named(&self, kind: ScheduleKind, name: &str) -> Option<ScheduleId> {
        let same = |row: &ScheduleRow| row.schedule.kind == kind && row.schedule.name == name;
        self.schedules.iter().find(|(_, row)| same(row)).map(|(id, _)| *id)
    }

    fn occurrences_of(&self, id: ScheduleId) -> impl Iterator<Item = &Occurrence> {
        self.occurrences.values().filter(move |(schedule, _)| *schedule == id).map(|(_, occurrence)| occurrence)
    }

    /// Notes that a schedule should be looked at at once. One that was deleted is looked at by nobody.
    pub(super) fn note_schedule(&mut self, id: ScheduleId) {
        if self.schedules.contains_key(&id) {
            self.schedule_notes.insert(id);
        }
    }

    /// Notes the others of its group: there may be room for them.
    fn note_group(&mut self, id: ScheduleId, row: &ScheduleRow) {
        let of_it = |other: &ScheduleRow| shares_limit(row, other);
        let others = self.schedules.iter().filter(|(other, other_row)| **other != id && of_it(other_row));
        self.schedule_notes.extend(others.map(|(other, _)| *other));
    }

    /// Where the run of this trigger is, if the trigger was carried out before.
    fn triggered_before(&self, wish: &Wish) -> Result<Option<LookedSchedule>> {
        let Wish::Trigger { run, idempotency, .. } = wish else { return Ok(None) };
        let waits = |run: &RunId| self.occurrences.get(run).is_some_and(|(_, occurrence)| occurrence.waits());
        if let Some(given) = idempotency {
            let kept = self.idempotency.get(&given.key);
            match given.sent(kept.map(|(fingerprint, ids, _)| (fingerprint.as_str(), ids.first().copied()))) {
                Sent::First => {}
                Sent::Again(Some(run)) => return Ok(Some(LookedSchedule::again(run, waits(&run)))),
                Sent::Again(None) | Sent::Reused => return Err(Error::KeyReused { key: given.key.clone() }),
            }
        }
        Ok((waits(run) || self.runs.contains_key(run)).then(|| LookedSchedule::again(*run, waits(run))))
    }

    /// A run that is opened again counts for its schedule again.
    pub(super) fn reopen_occurrence(&mut self, run: RunId, spec: &Spec) {
        let Some(of) = spec.occurrence.filter(|of| self.schedules.contains_key(&of.schedule)) else { return };
        let (cause, state) = (DueBy::Asked, OccurrenceState::Begun);
        self.occurrences.insert(run, (of.schedule, Occurrence { run, due: of.due, cause, wish: None, state }));
    }

    fn is_over(&self, run: RunId) -> bool {
        self.done.contains_key(&run) || !self.runs.contains_key(&run)
    }

    fn situation(&self, id: ScheduleId, now: StoreTime) -> Option<Situation> {
        let row = self.schedules.get(&id)?;
        let judged = |occurrence: &Occurrence| {
            let mut occurrence = occurrence.clone();
            if !occurrence.waits() && self.is_over(occurrence.run) {
                let state = self.done.get(&occurrence.run).map(|done| done.state);
                let checkpoint = self.signs.get(&occurrence.run).and_then(|(_, checkpoint)| checkpoint.clone());
                occurrence.state = OccurrenceState::Over { state, checkpoint };
            }
            occurrence
        };
        let occurrences = self.occurrences_of(id).map(judged).collect();
        Some(row.situation(id, occurrences, self.others(id, row), now))
    }

    /// What the others of its group have.
    fn others(&self, id: ScheduleId, row: &ScheduleRow) -> Others {
        let mut others = Others::default();
        for (other, other_row) in self.schedules.iter().filter(|(other, _)| **other != id) {
            if !shares_limit(row, other_row) {
                continue;
            }
            for occurrence in self.occurrences_of(*other) {
                match occurrence.waits() {
                    true if other_row.enabled || occurrence.cause == DueBy::Asked => {
                        others.waiting.push(occurrence.due)
                    }
                    true => {}
                    false => others.unfinished += usize::from(!self.is_over(occurrence.run)),
                }
            }
        }
        others
    }

    /// Writes what was decided.
    fn carry_out_look(&mut self, situation: &Situation, mut looked: Decision) {
        let (id, now) = (situation.id, situation.now);
        for run in &looked.over {
            self.occurrences.remove(run);
        }
        for run in std::mem::take(&mut looked.begin) {
            if let Some((_, occurrence)) = self.occurrences.get_mut(&run.id) {
                occurrence.state = OccurrenceState::Begun;
            }
            self.put_run(run, now);
        }
        self.occurrences
            .extend(std::mem::take(&mut looked.add).into_iter().map(|occurrence| (occurrence.run, (id, occurrence))));
        let Some(row) = self.schedules.get(&id).map(|row| row.looked(&looked)) else { return };
        if looked.frees {
            self.note_group(id, &row);
        }
        let schedule = row.schedule.clone();
        for (other, other_row) in self.schedules.iter_mut().filter(|(other, _)| looked.feeds && **other != id) {
            if other_row.schedule.kind == schedule.kind && other_row.schedule.after.contains(&schedule.name) {
                other_row.fed_by.insert(schedule.name.clone());
                self.schedule_notes.insert(*other);
            }
        }
        self.schedules.insert(id, row);
        let left = self.left.entry(id).or_default();
        left.extend(looked.left.into_iter().map(|left| LeftOut { at: now, left }));
        let surplus = left.len().saturating_sub(MOST_LEFT);
        left.drain(..surplus);
    }

    fn stored_schedule(&self, id: ScheduleId) -> StoredSchedule {
        let row = &self.schedules[&id];
        let of_it = |run: &&RunId| self.runs[*run].spec.occurrence.is_some_and(|occurrence| occurrence.schedule == id);
        StoredSchedule {
            id,
            schedule: row.schedule.clone(),
            version: row.version,
            enabled: row.enabled,
            created_at: row.created_at,
            updated_at: row.updated_at,
            next_due: row.next_due,
            last_due: row.last_due,
            late_since: row.late_since,
            cursor: row.cursor.clone(),
            waiting: self.occurrences_of(id).filter(|occurrence| occurrence.waits()).count(),
            unfinished: self.occurrences_of(id).filter(|one| !one.waits() && !self.is_over(one.run)).count(),
            last_run: self.runs.keys().rev().find(of_it).and_then(|run| self.run(*run)),
            declared: row.declared.clone(),
        }
    }
}

/// Whether two schedules are in one group.
fn shares_limit(one: &ScheduleRow, other: &ScheduleRow) -> bool {
    let (one, other) = (&one.schedule, &other.schedule);
    one.group.is_some() && one.group == other.group && one.kind == other.kind
}
