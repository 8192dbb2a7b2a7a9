//! Which schedules should be looked at at once.

use super::fault::Outcome;
use super::writer::Tx;
use everbeat_model::ScheduleId;
use everbeat_model::schedule::Schedule;
use rusqlite::params;

/// Notes a schedule. One that was deleted is looked at by nobody.
pub(super) fn note(tx: &Tx<'_>, id: ScheduleId) -> Outcome<()> {
    let mut insert = tx
        .connection
        .prepare_cached("insert or ignore into schedule_note (schedule_id) select id from schedule where id = ?1")?;
    insert.execute([id.0.into_bytes()])?;
    Ok(())
}

/// Notes the others of the schedule's group: there may be room for them.
pub(super) fn note_group(tx: &Tx<'_>, id: ScheduleId, schedule: &Schedule) -> Outcome<()> {
    let Some(group) = &schedule.group else { return Ok(()) };
    let mut insert = tx.connection.prepare_cached(
        "insert or ignore into schedule_note (schedule_id)
         select id from schedule where kind = ?1 and group_name = ?2 and id <> ?3",
    )?;
    insert.execute(params![schedule.kind.as_str(), group, id.0.into_bytes()])?;
    Ok(())
}

pub(super) fn take(tx: &Tx<'_>, id: ScheduleId) -> Outcome<()> {
    tx.connection.prepare_cached("delete from schedule_note where schedule_id = ?1")?.execute([id.0.into_bytes()])?;
    Ok(())
}
