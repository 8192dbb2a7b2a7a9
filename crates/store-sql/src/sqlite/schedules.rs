//! Schedules and flows: writing, switching, deleting and reading them.

use super::fault::Outcome;
use super::writer::Tx;
use super::{Sqlite, runs, schedule_due, schedule_look, schedule_notes};
use crate::cells::stored as whole;
use crate::decode::{counts, readable};
use crate::encode::limit;
use crate::schedules::{SCHEDULE_COLUMNS, ScheduleCells, left_out, stored, stored_fed_by};
use async_trait::async_trait;
use everbeat_model::schedule::{Occurrence, ScheduleKind, Wish};
use everbeat_model::{Run, RunId, ScheduleId, StoreTime};
use everbeat_store::{
    Deleted, DueSchedules, LIST_BYTES, LeftOut, LookedAt, Part, Put, PutSchedule, Result, ScheduleFilter, ScheduleRow,
    Scheduler, Schedules, StoredSchedule, Written, schedule_deleted, schedule_written,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

#[async_trait]
impl Schedules for Sqlite {
    async fn put_schedule(&self, request: PutSchedule) -> Result<Put> {
        self.writer.write(move |tx| put(tx, &request)).await
    }

    async fn enable_schedule(&self, kind: ScheduleKind, name: &str, enabled: bool) -> Result<Option<StoredSchedule>> {
        let name = name.to_string();
        self.writer.write(move |tx| enable(tx, kind, &name, enabled)).await
    }

    async fn delete_schedule(&self, kind: ScheduleKind, name: &str, version: Option<u64>) -> Result<Deleted> {
        let name = name.to_string();
        self.writer.write(move |tx| delete(tx, kind, &name, version)).await
    }

    async fn schedule(&self, kind: ScheduleKind, name: &str) -> Result<Option<StoredSchedule>> {
        let name = name.to_string();
        self.readers
            .read(move |connection| match named(connection, kind, &name)? {
                Some(cells) => Ok(Some(told(connection, cells.read()?)?)),
                None => Ok(None),
            })
            .await
    }

    async fn schedules(&self, filter: ScheduleFilter) -> Result<Part<StoredSchedule>> {
        self.readers.read(move |connection| list(connection, &filter)).await
    }

    async fn late_schedules(&self) -> Result<BTreeMap<ScheduleKind, u64>> {
        self.readers
            .read(|connection| {
                let mut select = connection.prepare_cached(
                    "select kind, count(*) from schedule indexed by schedule_late where late_since is not null group by kind",
                )?;
                let found = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                let rows = found.collect::<rusqlite::Result<Vec<_>>>()?;
                Ok(counts(rows.into_iter(), ScheduleKind::parse))
            })
            .await
    }

    async fn due_schedules(&self, clock: &[ScheduleKind], limit: usize) -> Result<DueSchedules> {
        let (clock, now) = (clock.to_vec(), self.clock.now());
        self.readers.read(move |connection| schedule_due::due(connection, &clock, now, limit)).await
    }

    async fn look_at_schedule(&self, id: ScheduleId, wish: Wish, scheduler: Arc<dyn Scheduler>) -> Result<LookedAt> {
        self.writer.write(move |tx| schedule_look::look(tx, id, wish, &*scheduler)).await
    }

    async fn waiting_occurrences(&self, id: ScheduleId) -> Result<Vec<Occurrence>> {
        self.readers.read(move |connection| schedule_look::waiting(connection, id)).await
    }

    async fn left_occurrences(&self, id: ScheduleId, most: usize) -> Result<Vec<LeftOut>> {
        self.readers
            .read(move |connection| {
                let mut select = connection.prepare_cached(
                    "select at, from_at, to_at, count, why from occurrence_left where schedule_id = ?1
                     order by place desc limit ?2",
                )?;
                let found = select.query_map(params![id.0.into_bytes(), limit(most)], |row| {
                    Ok(left_out(row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, &row.get::<_, String>(4)?))
                })?;
                Ok(readable(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter()))
            })
            .await
    }

    async fn note_stranded_schedules(&self, most: usize) -> Result<usize> {
        // Finding is left to a reader: it looks through all that has begun.
        let found = self.readers.read(move |connection| stranded(connection, most)).await?;
        if found.is_empty() {
            return Ok(0);
        }
        self.writer
            .write(move |tx| {
                found.iter().try_for_each(|id| schedule_notes::note(tx, *id))?;
                Ok(found.len())
            })
            .await
    }
}

fn put(tx: &Tx<'_>, request: &PutSchedule) -> Outcome<Put> {
    let (kind, name) = (request.schedule.kind, &request.schedule.name);
    let found = named(tx.connection, kind, name)?.map(ScheduleCells::read).transpose()?;
    let id = found.as_ref().map_or(request.id, |(id, _)| *id);
    let before = found.map(|(_, row)| row);
    let row = match ScheduleRow::written(before.as_ref(), request, tx.now) {
        Written::Conflict(there) => return Ok(Put::Conflict(there)),
        Written::Same => return Ok(Put::Unchanged(read_back(tx, id)?)),
        Written::Row(row) => *row,
    };
    match &before {
        Some(before) => {
            schedule_notes::note_group(tx, id, &before.schedule)?;
            update(tx, id, &row)?;
        }
        None => insert(tx, id, &row)?,
    }
    follow(tx, id, &row)?;
    // What waits follows another limit, and another lateness.
    schedule_notes::note(tx, id)?;
    tx.append_events(&[schedule_written(kind, name)])?;
    let stored = read_back(tx, id)?;
    Ok(if before.is_some() { Put::Replaced(stored) } else { Put::Created(stored) })
}

fn enable(tx: &Tx<'_>, kind: ScheduleKind, name: &str, enabled: bool) -> Outcome<Option<StoredSchedule>> {
    let Some(cells) = named(tx.connection, kind, name)? else { return Ok(None) };
    let (id, row) = cells.read()?;
    if let Some(row) = row.switched(enabled, tx.now) {
        update(tx, id, &row)?;
        schedule_notes::note_group(tx, id, &row.schedule)?;
        schedule_notes::note(tx, id)?;
        tx.append_events(&[schedule_written(kind, name)])?;
    }
    Ok(Some(read_back(tx, id)?))
}

fn delete(tx: &Tx<'_>, kind: ScheduleKind, name: &str, version: Option<u64>) -> Outcome<Deleted> {
    let Some(cells) = named(tx.connection, kind, name)? else { return Ok(Deleted::NotFound) };
    let there = crate::cells::number(cells.version);
    if version.is_some_and(|version| version != there) {
        return Ok(Deleted::Conflict(there));
    }
    let id = ScheduleId(cells.id);
    // One that cannot be read can be deleted all the same; whoever shares its limit is found by the next look.
    if let Ok((_, row)) = cells.read() {
        schedule_notes::note_group(tx, id, &row.schedule)?;
    }
    for sql in [
        "delete from schedule where id = ?1",
        "delete from schedule_note where schedule_id = ?1",
        "delete from schedule_after where schedule_id = ?1",
        "delete from occurrence where schedule_id = ?1",
        "delete from occurrence_left where schedule_id = ?1",
    ] {
        tx.connection.prepare_cached(sql)?.execute([id.0.into_bytes()])?;
    }
    tx.append_events(&[schedule_deleted(kind, name)])?;
    Ok(Deleted::Done)
}

fn insert(tx: &Tx<'_>, id: ScheduleId, row: &ScheduleRow) -> Outcome<()> {
    let mut insert = tx.connection.prepare_cached(
        "insert into schedule (id, kind, name, definition, version, enabled, created_at, updated_at, fed_by)
         values (?1, ?2, ?3, '', 0, 0, ?4, 0, '[]')",
    )?;
    let (kind, name) = (row.schedule.kind.as_str(), &row.schedule.name);
    insert.execute(params![id.0.into_bytes(), kind, name, row.created_at.0])?;
    update(tx, id, row)
}

fn update(tx: &Tx<'_>, id: ScheduleId, row: &ScheduleRow) -> Outcome<()> {
    let mut update = tx.connection.prepare_cached(
        "update schedule set definition = ?2, version = ?3, enabled = ?4, updated_at = ?5, group_name = ?6 where id = ?1",
    )?;
    update.execute(params![
        id.0.into_bytes(),
        row.to_stored(),
        whole(row.version),
        row.enabled,
        row.updated_at.0,
        row.schedule.group,
    ])?;
    update_looked(tx, id, row)
}

/// Writes what a look changes.
pub(super) fn update_looked(tx: &Tx<'_>, id: ScheduleId, row: &ScheduleRow) -> Outcome<()> {
    let mut update = tx.connection.prepare_cached(
        "update schedule set next_due_at = ?2, last_due_at = ?3, look_at = ?4, late_since = ?5, cursor = ?6, fed_by = ?7
         where id = ?1",
    )?;
    let at = |time: Option<StoreTime>| time.map(|time| time.0);
    update.execute(params![
        id.0.into_bytes(),
        at(row.next_due),
        at(row.last_due),
        at(row.look_at),
        at(row.late_since),
        row.cursor.as_ref().map(|cursor| cursor.as_str()),
        stored_fed_by(&row.fed_by),
    ])?;
    Ok(())
}

/// Writes what the schedule comes after, so that it is found from there.
fn follow(tx: &Tx<'_>, id: ScheduleId, row: &ScheduleRow) -> Outcome<()> {
    let id = id.0.into_bytes();
    tx.connection.prepare_cached("delete from schedule_after where schedule_id = ?1")?.execute([id])?;
    let mut insert =
        tx.connection.prepare_cached("insert into schedule_after (kind, upstream, schedule_id) values (?1, ?2, ?3)")?;
    for upstream in &row.schedule.after {
        insert.execute(params![row.schedule.kind.as_str(), upstream, id])?;
    }
    Ok(())
}

fn named(connection: &Connection, kind: ScheduleKind, name: &str) -> Outcome<Option<ScheduleCells>> {
    let sql = format!("select {SCHEDULE_COLUMNS} from schedule s where s.kind = ?1 and s.name = ?2");
    Ok(connection.prepare_cached(&sql)?.query_row([kind.as_str(), name], cells).optional()?)
}

pub(super) fn by_id(connection: &Connection, id: ScheduleId) -> Outcome<Option<ScheduleCells>> {
    let sql = format!("select {SCHEDULE_COLUMNS} from schedule s where s.id = ?1");
    Ok(connection.prepare_cached(&sql)?.query_row([id.0.into_bytes()], cells).optional()?)
}

/// A schedule that this transaction has seen.
fn read_back(tx: &Tx<'_>, id: ScheduleId) -> Outcome<StoredSchedule> {
    match by_id(tx.connection, id)? {
        Some(cells) => told(tx.connection, cells.read()?),
        None => Err(everbeat_store::Error::Bug(format!("schedule {id} is gone within its transaction")).into()),
    }
}

/// The schedule with what its runs are at.
fn told(connection: &Connection, row: (ScheduleId, ScheduleRow)) -> Outcome<StoredSchedule> {
    let id = row.0.0.into_bytes();
    let mut count = connection.prepare_cached(
        "select count(*) filter (where not o.begun),
           count(*) filter (where o.begun and r.id is not null and d.run_id is null)
         from occurrence o left join run r on o.begun and r.id = o.run_id
         left join done d on o.begun and d.run_id = o.run_id where o.schedule_id = ?1",
    )?;
    let (waiting, unfinished) = count.query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut newest = connection.prepare_cached("select id from run where schedule_id = ?1 order by id desc limit 1")?;
    let last = newest.query_row([id], |row| Ok(RunId(Uuid::from_bytes(row.get(0)?)))).optional()?;
    // A run that cannot be read hides nothing else of its schedule.
    let last_run = last.and_then(|last| runs::run(connection, last).unwrap_or_default());
    Ok(stored(row, waiting, unfinished, last_run))
}

fn list(connection: &Connection, filter: &ScheduleFilter) -> Outcome<Part<StoredSchedule>> {
    // One statement for each way in, so that one kind goes through its index.
    let by = if filter.kind.is_some() { "s.kind = ?1" } else { "?1 is null" };
    let mut select = connection.prepare_cached(&format!(
        "select {SCHEDULE_COLUMNS} from schedule s where {by} and (?2 is null or s.name > ?2)
         order by s.name, s.kind desc limit ?3"
    ))?;
    let kind = filter.kind.map(ScheduleKind::as_str);
    let mut found = select.query(params![kind, filter.after, limit(filter.limit)])?;
    let (mut items, mut bytes) = (Vec::new(), 0);
    while bytes < LIST_BYTES
        && let Some(row) = found.next()?
    {
        let cells = cells(row)?;
        bytes += cells.bytes();
        for row in readable(std::iter::once(cells.read())) {
            let schedule = told(connection, row)?;
            bytes += schedule.last_run.as_ref().map_or(0, Run::bytes);
            items.push(schedule);
        }
    }
    Ok(Part { items, cut_short: bytes >= LIST_BYTES && found.next()?.is_some() })
}

fn stranded(connection: &Connection, most: usize) -> Outcome<Vec<ScheduleId>> {
    let mut select = connection.prepare_cached(
        "select distinct o.schedule_id from occurrence o where o.begun
           and (exists (select 1 from done d where d.run_id = o.run_id)
             or not exists (select 1 from run r where r.id = o.run_id))
         order by o.schedule_id limit ?1",
    )?;
    let found = select.query_map([limit(most)], |row| Ok(ScheduleId(Uuid::from_bytes(row.get(0)?))))?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

fn cells(row: &Row<'_>) -> rusqlite::Result<ScheduleCells> {
    Ok(ScheduleCells {
        id: Uuid::from_bytes(row.get(0)?),
        kind: row.get(1)?,
        name: row.get(2)?,
        definition: row.get(3)?,
        version: row.get(4)?,
        enabled: row.get(5)?,
        created_at: row.get(6)?,
        updated_at: row.get(7)?,
        next_due_at: row.get(8)?,
        last_due_at: row.get(9)?,
        look_at: row.get(10)?,
        late_since: row.get(11)?,
        cursor: row.get(12)?,
        fed_by: row.get(13)?,
    })
}
