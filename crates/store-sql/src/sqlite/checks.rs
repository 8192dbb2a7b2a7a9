//! Checks and their pings.

use super::Sqlite;
use super::fault::Outcome;
use super::writer::Tx;
use crate::cells::stored;
use crate::checks::{CHECK_COLUMNS, CheckCells, PingCells, VitalCells, micros};
use crate::decode::{counts, readable};
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::StoreTime;
use everbeat_model::check::{CheckState, MOST_PINGS, Ping};
use everbeat_store::{
    CheckFilter, CheckPut, CheckRow, CheckWritten, Checks, Deleted, DueChecks, NewPing, Pinged, PutCheck, Result,
    check_deleted,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::BTreeMap;
use std::time::Duration;

#[async_trait]
impl Checks for Sqlite {
    async fn put_check(&self, request: PutCheck) -> Result<CheckPut> {
        self.writer.write(move |tx| put(tx, &request)).await
    }

    async fn pause_check(&self, name: &str, paused: bool) -> Result<Option<CheckRow>> {
        let name = name.to_string();
        self.writer
            .write(move |tx| {
                let Some(row) = named(tx.connection, &name)? else { return Ok(None) };
                let Some((row, lines)) = row.switched(paused, tx.now) else { return Ok(Some(row)) };
                update(tx, &row)?;
                tx.append_events(&lines)?;
                Ok(Some(row))
            })
            .await
    }

    async fn delete_check(&self, name: &str, version: Option<u64>) -> Result<Deleted> {
        let name = name.to_string();
        self.writer.write(move |tx| delete(tx, &name, version)).await
    }

    async fn check(&self, name: &str) -> Result<Option<CheckRow>> {
        let name = name.to_string();
        self.readers.read(move |connection| named(connection, &name)).await
    }

    async fn checks(&self, filter: CheckFilter) -> Result<Vec<CheckRow>> {
        self.readers
            .read(move |connection| {
                let mut select = connection.prepare_cached(&format!(
                    "select {CHECK_COLUMNS} from checks c where (?1 is null or c.name > ?1)
                       and (?2 is null or c.state = ?2) order by c.name limit ?3"
                ))?;
                let state = filter.state.map(CheckState::as_str);
                let found = select.query_map(params![filter.after, state, limit(filter.limit)], cells)?;
                Ok(readable(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().map(CheckCells::read)))
            })
            .await
    }

    async fn count_checks(&self) -> Result<BTreeMap<CheckState, u64>> {
        self.readers
            .read(|connection| {
                let mut select = connection.prepare_cached("select state, count(*) from checks group by state")?;
                let found = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                let rows = found.collect::<rusqlite::Result<Vec<_>>>()?;
                Ok(counts(rows.into_iter(), CheckState::parse))
            })
            .await
    }

    async fn ping_check(&self, request: NewPing) -> Result<Pinged> {
        self.writer.write(move |tx| ping(tx, &request)).await
    }

    async fn pings(&self, name: &str, before: Option<u64>, most: usize) -> Result<Option<Vec<Ping>>> {
        let name = name.to_string();
        self.readers.read(move |connection| pings(connection, &name, before, most)).await
    }

    async fn due_checks(&self, most: usize) -> Result<DueChecks> {
        let now = self.clock.now();
        self.readers.read(move |connection| due(connection, now, most)).await
    }

    async fn look_at_check(&self, name: &str) -> Result<Option<CheckRow>> {
        let name = name.to_string();
        self.writer
            .write(move |tx| {
                let row = match raw(tx.connection, &name)?.map(CheckCells::read).transpose() {
                    Ok(Some(row)) => row,
                    Ok(None) => return Ok(None),
                    Err(error) => {
                        tracing::debug!(%error, "a check is left to whoever can read it");
                        return Ok(None);
                    }
                };
                let Some((row, lines)) = row.looked(tx.now) else { return Ok(Some(row)) };
                update_vitals(tx, &row)?;
                tx.append_events(&lines)?;
                Ok(Some(row))
            })
            .await
    }
}

fn put(tx: &Tx<'_>, request: &PutCheck) -> Outcome<CheckPut> {
    let before = named(tx.connection, &request.check.name)?;
    let (row, lines) = match CheckRow::written(before.as_ref(), request, tx.now) {
        CheckWritten::Conflict(there) => return Ok(CheckPut::Conflict(there)),
        CheckWritten::Same(row) => return Ok(CheckPut::Unchanged(*row)),
        CheckWritten::Row(row, lines) => (*row, lines),
    };
    if before.is_none() {
        if full(tx, request.most)? {
            return Ok(CheckPut::TooMany);
        }
        insert(tx, &row)?;
    }
    update(tx, &row)?;
    tx.append_events(&lines)?;
    Ok(if before.is_some() { CheckPut::Replaced(row) } else { CheckPut::Created(row) })
}

fn delete(tx: &Tx<'_>, name: &str, version: Option<u64>) -> Outcome<Deleted> {
    // One that cannot be read can be deleted all the same.
    let Some(cells) = raw(tx.connection, name)? else { return Ok(Deleted::NotFound) };
    let there = crate::cells::number(cells.version);
    if version.is_some_and(|version| version != there) {
        return Ok(Deleted::Conflict(there));
    }
    for sql in ["delete from checks where name = ?1", "delete from ping where check_name = ?1"] {
        tx.connection.prepare_cached(sql)?.execute([name])?;
    }
    tx.append_events(&[check_deleted(name)])?;
    Ok(Deleted::Done)
}

fn ping(tx: &Tx<'_>, request: &NewPing) -> Outcome<Pinged> {
    let name = &request.check.name;
    let found = named(tx.connection, name)?;
    let created = found.is_none();
    let row = match found {
        Some(row) => row,
        None if full(tx, request.most)? => return Ok(Pinged::TooMany),
        None => {
            let row = CheckRow::new(request.check.clone(), tx.now);
            insert(tx, &row)?;
            row
        }
    };
    let (row, kept, lines) = row.pinged(request, tx.now);
    update_vitals(tx, &row)?;
    let mut insert = tx.connection.prepare_cached(
        "insert into ping (check_name, place, at, kind, exit_code, duration, body) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    let place = stored(kept.place);
    let (kind, duration) = (kept.signal.kind.as_str(), kept.duration.map(micros));
    insert.execute(params![name, place, kept.at.0, kind, kept.signal.exit_code, duration, kept.body])?;
    tx.connection
        .prepare_cached("delete from ping where check_name = ?1 and place <= ?2")?
        .execute(params![name, place.saturating_sub(limit(MOST_PINGS))])?;
    tx.append_events(&lines)?;
    Ok(Pinged::Done { check: row, created })
}

/// Whether there are as many checks as there may be.
fn full(tx: &Tx<'_>, most: usize) -> Outcome<bool> {
    let count: i64 = tx.connection.prepare_cached("select count(*) from checks")?.query_row([], |row| row.get(0))?;
    Ok(count >= limit(most))
}

fn insert(tx: &Tx<'_>, row: &CheckRow) -> Outcome<()> {
    let mut insert = tx.connection.prepare_cached(
        "insert into checks (name, definition, version, created_at, updated_at, state, pings)
         values (?1, ?2, ?3, ?4, ?5, 'new', 0)",
    )?;
    let (name, definition) = (&row.check.name, row.check.to_stored());
    insert.execute(params![name, definition, stored(row.version), row.created_at.0, row.updated_at.0])?;
    Ok(())
}

fn update(tx: &Tx<'_>, row: &CheckRow) -> Outcome<()> {
    let mut update = tx
        .connection
        .prepare_cached("update checks set definition = ?2, version = ?3, updated_at = ?4 where name = ?1")?;
    update.execute(params![row.check.name, row.check.to_stored(), stored(row.version), row.updated_at.0])?;
    update_vitals(tx, row)
}

fn update_vitals(tx: &Tx<'_>, row: &CheckRow) -> Outcome<()> {
    let cells = VitalCells::of(row);
    let mut update = tx.connection.prepare_cached(
        "update checks set state = ?2, down_since = ?3, down_why = ?4, armed_at = ?5, last_success_at = ?6,
           started_at = ?7, last_ping_at = ?8, last_duration = ?9, pings = ?10, look_at = ?11 where name = ?1",
    )?;
    update.execute(params![
        row.check.name,
        cells.state,
        cells.down_since,
        cells.down_why,
        cells.armed_at,
        cells.last_success_at,
        cells.started_at,
        cells.last_ping_at,
        cells.last_duration,
        cells.pings,
        cells.look_at,
    ])?;
    Ok(())
}

fn pings(connection: &Connection, name: &str, before: Option<u64>, most: usize) -> Outcome<Option<Vec<Ping>>> {
    let mut known = connection.prepare_cached("select 1 from checks where name = ?1")?;
    if !known.exists([name])? {
        return Ok(None);
    }
    let mut select = connection.prepare_cached(
        "select place, at, kind, exit_code, duration, body from ping where check_name = ?1 and place < ?2
         order by place desc limit ?3",
    )?;
    let before = before.map_or(i64::MAX, stored);
    let found = select.query_map(params![name, before, limit(most)], |row| {
        Ok(PingCells {
            place: row.get(0)?,
            at: row.get(1)?,
            kind: row.get(2)?,
            exit_code: row.get(3)?,
            duration: row.get(4)?,
            body: row.get(5)?,
        })
    })?;
    Ok(Some(readable(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().map(PingCells::read))))
}

fn due(connection: &Connection, now: StoreTime, most: usize) -> Outcome<DueChecks> {
    let mut select = connection.prepare_cached(
        "select name from checks indexed by checks_look where look_at <= ?1 order by look_at, name limit ?2",
    )?;
    let found = select.query_map(params![now.0, limit(most.saturating_add(1))], |row| row.get(0))?;
    let mut names: Vec<String> = found.collect::<rusqlite::Result<_>>()?;
    let mut ahead =
        connection.prepare_cached("select min(look_at) from checks indexed by checks_look where look_at > ?1")?;
    let next: Option<i64> = ahead.query_row([now.0], |row| row.get(0))?;
    let more = names.len() > most;
    names.truncate(most);
    let next_in = if more { Some(Duration::ZERO) } else { next.map(|next| StoreTime(next).since(now)) };
    Ok(DueChecks { names, next_in })
}

fn raw(connection: &Connection, name: &str) -> Outcome<Option<CheckCells>> {
    let sql = format!("select {CHECK_COLUMNS} from checks c where c.name = ?1");
    Ok(connection.prepare_cached(&sql)?.query_row([name], cells).optional()?)
}

fn named(connection: &Connection, name: &str) -> Outcome<Option<CheckRow>> {
    Ok(raw(connection, name)?.map(CheckCells::read).transpose()?)
}

fn cells(row: &Row<'_>) -> rusqlite::Result<CheckCells> {
    Ok(CheckCells {
        name: row.get(0)?,
        definition: row.get(1)?,
        version: row.get(2)?,
        created_at: row.get(3)?,
        updated_at: row.get(4)?,
        state: row.get(5)?,
        down_since: row.get(6)?,
        down_why: row.get(7)?,
        armed_at: row.get(8)?,
        last_success_at: row.get(9)?,
        started_at: row.get(10)?,
        last_ping_at: row.get(11)?,
        last_duration: row.get(12)?,
        pings: row.get(13)?,
    })
}
