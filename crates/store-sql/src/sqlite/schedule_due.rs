//! Which schedules should be looked at, and when the next one should.

use super::fault::Outcome;
use crate::encode::limit;
use everbeat_model::schedule::ScheduleKind;
use everbeat_model::{ScheduleId, StoreTime};
use everbeat_store::{DueSchedule, DueSchedules};
use rusqlite::{Connection, Params, Row, params};
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

const NOTED: &str = "\
    select s.id, s.kind, 0, s.enabled, s.next_due_at from schedule_note n cross join schedule s on s.id = n.schedule_id
    order by n.schedule_id limit ?1";
const LATE: &str = "\
    select s.id, s.kind, s.look_at, s.enabled, s.next_due_at from schedule s indexed by schedule_look
    where s.look_at <= ?2 and s.enabled order by s.look_at, s.id limit ?1";
const BY_CLOCK: &str = "\
    select s.id, s.kind, s.next_due_at, s.enabled, s.next_due_at from schedule s indexed by schedule_due
    where s.kind = ?3 and s.next_due_at <= ?2 and s.enabled order by s.next_due_at, s.id limit ?1";
const NEXT_LATE: &str = "select min(look_at) from schedule indexed by schedule_look where look_at > ?1 and enabled";
const NEXT_BY_CLOCK: &str = "\
    select min(next_due_at) from schedule indexed by schedule_due where kind = ?2 and next_due_at > ?1 and enabled";

/// Each source gives its first by an index; what is found in several counts once, at its earliest.
pub(super) fn due(
    connection: &Connection,
    clock: &[ScheduleKind],
    now: StoreTime,
    most: usize,
) -> Outcome<DueSchedules> {
    let mut found = Found { clock, now, schedules: BTreeMap::new() };
    let more = limit(most.saturating_add(1));
    found.take(connection, NOTED, params![more])?;
    found.take(connection, LATE, params![more, now.0])?;
    let mut next: Vec<Option<i64>> = Vec::new();
    next.push(connection.prepare_cached(NEXT_LATE)?.query_row([now.0], |row| row.get(0))?);
    for kind in clock {
        found.take(connection, BY_CLOCK, params![more, now.0, kind.as_str()])?;
        let mut select = connection.prepare_cached(NEXT_BY_CLOCK)?;
        next.push(select.query_row(params![now.0, kind.as_str()], |row| row.get(0))?);
    }
    let mut schedules: Vec<(StoreTime, DueSchedule)> = found.schedules.into_values().collect();
    schedules.sort_by_key(|(at, due)| (*at, due.id));
    let next = next.into_iter().flatten().min().map(StoreTime);
    let next_in = if schedules.len() > most { Some(Duration::ZERO) } else { next.map(|next| next.since(now)) };
    Ok(DueSchedules { schedules: schedules.into_iter().take(most).map(|(_, due)| due).collect(), next_in })
}

struct Found<'a> {
    clock: &'a [ScheduleKind],
    now: StoreTime,
    schedules: BTreeMap<ScheduleId, (StoreTime, DueSchedule)>,
}

impl Found<'_> {
    fn take(&mut self, connection: &Connection, sql: &str, params: impl Params) -> Outcome<()> {
        let mut select = connection.prepare_cached(sql)?;
        let mut rows = select.query(params)?;
        while let Some(row) = rows.next()? {
            self.add(row)?;
        }
        Ok(())
    }

    fn add(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        // A schedule of a kind unknown here is left to whoever knows it.
        let Some(kind) = ScheduleKind::parse(&row.get::<_, String>(1)?) else { return Ok(()) };
        let (id, at) = (ScheduleId(Uuid::from_bytes(row.get(0)?)), StoreTime(row.get(2)?));
        let (enabled, next_due): (bool, Option<i64>) = (row.get(3)?, row.get(4)?);
        let by_clock = enabled && self.clock.contains(&kind) && next_due.is_some_and(|due| due <= self.now.0);
        let entry = self.schedules.entry(id).or_insert((at, DueSchedule { id, kind, by_clock }));
        entry.0 = entry.0.min(at);
        Ok(())
    }
}
