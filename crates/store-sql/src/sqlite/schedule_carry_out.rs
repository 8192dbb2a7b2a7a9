//! Writes what a look at a schedule came to.

use super::enqueue::Inserts;
use super::fault::Outcome;
use super::schedule_notes;
use super::schedules::update_looked;
use super::writer::Tx;
use crate::cells::stored;
use crate::encode::limit;
use crate::schedules::{fed_by, stored_fed_by};
use everbeat_model::ScheduleId;
use everbeat_model::schedule::{Decision, Left, Schedule, Situation};
use everbeat_store::{MOST_LEFT, ScheduleRow, schedule_events};
use rusqlite::params;

pub(super) fn carry_out(tx: &Tx<'_>, before: &ScheduleRow, situation: &Situation, decision: &Decision) -> Outcome<()> {
    let (id, schedule) = (situation.id, &situation.schedule);
    occurrences(tx, id, decision)?;
    if !decision.begin.is_empty() {
        let mut inserts = Inserts::prepare(tx)?;
        for run in &decision.begin {
            inserts.add(tx, run)?;
        }
    }
    if decision.frees {
        schedule_notes::note_group(tx, id, schedule)?;
    }
    if decision.feeds {
        feed(tx, id, schedule)?;
    }
    let row = before.looked(decision);
    if row != *before {
        update_looked(tx, id, &row)?;
    }
    leave(tx, id, &decision.left)?;
    tx.append_events(&schedule_events(situation, decision))
}

fn occurrences(tx: &Tx<'_>, id: ScheduleId, decision: &Decision) -> Outcome<()> {
    let mut over = tx.connection.prepare_cached("delete from occurrence where run_id = ?1")?;
    for run in &decision.over {
        over.execute([run.0.into_bytes()])?;
    }
    // Those that waited; the others are added below.
    let mut begin = tx.connection.prepare_cached("update occurrence set begun = 1 where run_id = ?1")?;
    for run in &decision.begin {
        begin.execute([run.id.0.into_bytes()])?;
    }
    let mut add = tx.connection.prepare_cached(
        "insert into occurrence (run_id, schedule_id, due_at, due_by, wish, begun) values (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for occurrence in &decision.add {
        add.execute(params![
            occurrence.run.0.into_bytes(),
            id.0.into_bytes(),
            occurrence.due.0,
            occurrence.cause.as_str(),
            occurrence.wish.as_ref().map(|wish| wish.as_str()),
            !occurrence.waits(),
        ])?;
    }
    Ok(())
}

/// Tells those that come after the schedule that a run of it has succeeded.
fn feed(tx: &Tx<'_>, id: ScheduleId, schedule: &Schedule) -> Outcome<()> {
    let mut select = tx.connection.prepare_cached(
        "select s.id, s.fed_by from schedule_after a cross join schedule s on s.id = a.schedule_id
         where a.kind = ?1 and a.upstream = ?2 and a.schedule_id <> ?3",
    )?;
    let rows = select.query_map(params![schedule.kind.as_str(), schedule.name, id.0.into_bytes()], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    let mut write = tx.connection.prepare_cached("update schedule set fed_by = ?2 where id = ?1")?;
    let mut note = tx.connection.prepare_cached("insert or ignore into schedule_note (schedule_id) values (?1)")?;
    for (follower, known) in rows.collect::<rusqlite::Result<Vec<([u8; 16], String)>>>()? {
        let mut names = fed_by(&known);
        names.insert(schedule.name.clone());
        write.execute(params![follower, stored_fed_by(&names)])?;
        note.execute([follower])?;
    }
    Ok(())
}

/// Keeps the newest records of what was left out.
fn leave(tx: &Tx<'_>, id: ScheduleId, left: &[Left]) -> Outcome<()> {
    if left.is_empty() {
        return Ok(());
    }
    let id = id.0.into_bytes();
    let mut last =
        tx.connection.prepare_cached("select coalesce(max(place), 0) from occurrence_left where schedule_id = ?1")?;
    let mut place: i64 = last.query_row([id], |row| row.get(0))?;
    let mut insert = tx.connection.prepare_cached(
        "insert into occurrence_left (schedule_id, place, at, from_at, to_at, count, why)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for left in left {
        place += 1;
        insert.execute(params![id, place, tx.now.0, left.from.0, left.to.0, stored(left.count), left.why.as_str()])?;
    }
    tx.connection
        .prepare_cached("delete from occurrence_left where schedule_id = ?1 and place <= ?2")?
        .execute(params![id, place.saturating_sub(limit(MOST_LEFT))])?;
    Ok(())
}
