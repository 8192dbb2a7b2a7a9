//! Looks at a schedule: its note is taken, its situation is read, the scheduler decides, all of that is written.

use super::enqueue::{remember, seen};
use super::fault::Outcome;
use super::schedule_carry_out::carry_out;
use super::schedule_notes;
use super::schedules::by_id;
use super::writer::Tx;
use crate::schedules::OccurrenceCells;
use everbeat_model::schedule::{Occurrence, Others, Schedule, Wish};
use everbeat_model::{RunId, ScheduleId, Sent, StoreTime};
use everbeat_store::{Error, LookedAt, LookedSchedule, Result, Scheduler};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

pub(super) fn look(tx: &Tx<'_>, id: ScheduleId, wish: Wish, scheduler: &dyn Scheduler) -> Outcome<LookedAt> {
    let Some(cells) = by_id(tx.connection, id)? else {
        schedule_notes::take(tx, id)?;
        return Ok(LookedAt::NotFound);
    };
    let row = match cells.read() {
        Ok((_, row)) => row,
        Err(error) => {
            tracing::debug!(%error, "a schedule is left to whoever can read it");
            return Ok(LookedAt::Busy);
        }
    };
    if let Some(again) = triggered_before(tx, &wish)? {
        return Ok(LookedAt::Done(again));
    }
    let key = wish.key().map(|(run, given)| (run, given.clone()));
    schedule_notes::take(tx, id)?;
    let (occurrences, others) = (occurrences(tx.connection, id)?, others(tx.connection, id, &row.schedule)?);
    let situation = row.situation(id, occurrences, others, tx.now);
    let decision = scheduler.look(&situation, wish);
    carry_out(tx, &row, &situation, &decision)?;
    let looked = LookedSchedule::of(&decision);
    if let Some((run, given)) = key.filter(|(run, _)| looked.has(*run)) {
        remember(tx, &given, run.0.as_bytes())?;
    }
    Ok(LookedAt::Done(looked))
}

/// Where the run of a trigger is, if the trigger was carried out before.
fn triggered_before(tx: &Tx<'_>, wish: &Wish) -> Outcome<Option<LookedSchedule>> {
    let Wish::Trigger { run, idempotency, .. } = wish else { return Ok(None) };
    let mut select = tx.connection.prepare_cached(
        "select not begun from occurrence where run_id = ?1 union all select false from run where id = ?1 limit 1",
    )?;
    let mut waits = |run: RunId| select.query_row([run.0.into_bytes()], |row| row.get(0)).optional();
    if let Some(given) = idempotency {
        let kept = seen(tx, &given.key)?;
        match given.sent(kept.as_ref().map(|(fingerprint, ids)| (fingerprint.as_str(), ids.first()))) {
            Sent::First => {}
            Sent::Again(Some(id)) => {
                let run = RunId(*id);
                // A run that was forgotten since waits no longer.
                return Ok(Some(LookedSchedule::again(run, waits(run)?.unwrap_or(false))));
            }
            Sent::Again(None) | Sent::Reused => return Err(Error::KeyReused { key: given.key.clone() }.into()),
        }
    }
    Ok(waits(*run)?.map(|waits| LookedSchedule::again(*run, waits)))
}

fn occurrences(connection: &Connection, id: ScheduleId) -> Outcome<Vec<Occurrence>> {
    let mut select = connection.prepare_cached(
        "select o.run_id, o.due_at, o.due_by, o.wish, o.begun, d.run_id is not null or r.id is null, d.state,
           s.checkpoint
         from occurrence o
         left join done d on o.begun and d.run_id = o.run_id
         left join run r on o.begun and r.id = o.run_id
         left join run_sign s on d.run_id is not null and s.run_id = o.run_id
         where o.schedule_id = ?1 order by o.run_id",
    )?;
    let cells = select.query_map([id.0.into_bytes()], |row| {
        Ok(OccurrenceCells {
            run_id: Uuid::from_bytes(row.get(0)?),
            due_at: row.get(1)?,
            due_by: row.get(2)?,
            wish: row.get(3)?,
            begun: row.get(4)?,
            over: row.get(5)?,
            state: row.get(6)?,
            checkpoint: row.get(7)?,
        })
    })?;
    let cells = cells.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(cells.into_iter().map(OccurrenceCells::read).collect::<Result<_>>()?)
}

/// What the others of the schedule's group have.
fn others(connection: &Connection, id: ScheduleId, schedule: &Schedule) -> Outcome<Others> {
    let mut others = Others::default();
    let Some(group) = &schedule.group else { return Ok(others) };
    let mut select = connection.prepare_cached(
        "select o.begun, o.due_at from schedule s cross join occurrence o on o.schedule_id = s.id
         where s.kind = ?1 and s.group_name = ?2 and s.id <> ?3
           and case when o.begun
             then not exists (select 1 from done d where d.run_id = o.run_id)
               and exists (select 1 from run r where r.id = o.run_id)
             else s.enabled or o.due_by = 'asked' end
         order by s.id, o.run_id",
    )?;
    let mut rows = select.query(params![schedule.kind.as_str(), group, id.0.into_bytes()])?;
    while let Some(row) = rows.next()? {
        match row.get(0)? {
            true => others.unfinished += 1,
            false => others.waiting.push(StoreTime(row.get(1)?)),
        }
    }
    Ok(others)
}

/// What waits for its turn, oldest first.
pub(super) fn waiting(connection: &Connection, id: ScheduleId) -> Outcome<Vec<Occurrence>> {
    let mut select = connection.prepare_cached(
        "select run_id, due_at, due_by, wish from occurrence where schedule_id = ?1 and not begun order by run_id",
    )?;
    let cells = select.query_map([id.0.into_bytes()], |row| {
        Ok(OccurrenceCells {
            run_id: Uuid::from_bytes(row.get(0)?),
            due_at: row.get(1)?,
            due_by: row.get(2)?,
            wish: row.get(3)?,
            begun: false,
            over: false,
            state: None,
            checkpoint: None,
        })
    })?;
    let cells = cells.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(crate::decode::readable(cells.into_iter().map(OccurrenceCells::read)))
}
