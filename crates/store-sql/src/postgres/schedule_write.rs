//! Schedules are written, switched and deleted, each under the lock of its row.

use super::fault::{Fault, Outcome};
use super::link::{Params, again};
use super::schedule_carry_out::close_with;
use super::schedule_look::{NOW, TAKE_FED};
use super::schedule_read::{locked, read_back};
use super::transaction::{Exclusive, Transaction};
use crate::cells::{number, stored};
use crate::schedules::{SCHEDULE_COLUMNS, stored_fed_by};
use everbeat_model::schedule::{Schedule, ScheduleKind};
use everbeat_model::{Json, ScheduleId, StoreTime};
use everbeat_store::{
    Deleted, Put, PutSchedule, Result, ScheduleRow, StoredSchedule, Written, schedule_deleted, schedule_written,
};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

/// Another may write the same name at once: one of them inserts, and the other looks again.
const INSERT: &str = "\
    insert into schedule (id, kind, name, definition, version, enabled, created_at, updated_at, fed_by) \
    values ($1, $2, $3, '', 0, false, $4, $4, '[]') on conflict do nothing returning id";

const UPDATE: &str = "\
    update schedule s set next_due_at = $2, last_due_at = $3, look_at = $4, late_since = $5, cursor = $6, fed_by = $7, \
      version = $8, enabled = $9, updated_at = $10, group_name = $11, definition = $12 \
    where s.id = $1";

/// What a look changes: the definition, which may be long, is not written again.
pub(super) const LOOKED: &str = "\
    update schedule s set next_due_at = $2, last_due_at = $3, look_at = $4, late_since = $5, cursor = $6, fed_by = $7 \
    where s.id = $1";

/// Notes the others of a group: there may be room for them.
pub(super) const NOTE_GROUP: &str = "\
    insert into schedule_note (schedule_id) \
    select s.id from schedule s where s.kind = $1 and s.group_name = $2 and s.id <> $3";

const NOTE: &str = "insert into schedule_note (schedule_id) values ($1)";

const UNFOLLOW: &str = "delete from schedule_after a where a.schedule_id = $1";

const FOLLOW: &str = "\
    insert into schedule_after (kind, upstream, schedule_id) select $2::text, g.upstream, $1::uuid from unnest($3::text[]) as g(upstream)";

const DELETE: [&str; 6] = [
    "delete from schedule s where s.id = $1",
    "delete from schedule_note n where n.schedule_id = $1",
    "delete from schedule_fed f where f.schedule_id = $1",
    UNFOLLOW,
    "delete from occurrence o where o.schedule_id = $1",
    "delete from occurrence_left l where l.schedule_id = $1",
];

pub(super) async fn put(exclusive: &Exclusive, request: &PutSchedule) -> Result<Put> {
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let answer = try_put(&transaction, request).await;
        close_with(transaction, answer).await
    });
    Ok(answer?)
}

async fn try_put(transaction: &Transaction<'_>, request: &PutSchedule) -> Outcome<(Put, Vec<String>)> {
    let (kind, name) = (request.schedule.kind, &request.schedule.name);
    let found = match lock(transaction, kind, name).await? {
        Some(found) => Some(found.map_err(unreadable)?),
        None => None,
    };
    let now = time(transaction).await?;
    let id = found.as_ref().map_or(request.id, |(id, _)| *id);
    let before = found.map(|(_, row)| row);
    let mut row = match ScheduleRow::written(before.as_ref(), request, now) {
        Written::Conflict(there) => return Ok((Put::Conflict(there), Vec::new())),
        Written::Same => return Ok((Put::Unchanged(told(transaction, id).await?), Vec::new())),
        Written::Row(row) => *row,
    };
    match &before {
        Some(before) => {
            let fed = transaction.query(TAKE_FED, &[&id.0]).await?;
            let fed = fed.iter().map(|row| row.get::<_, String>(0)).filter(|name| row.schedule.after.contains(name));
            let fed: Vec<String> = fed.collect();
            row.fed_by.extend(fed);
            note_group(transaction, id, &before.schedule).await?;
        }
        None => {
            if transaction.query(INSERT, &[&id.0, &kind.as_str(), name, &now.0]).await?.is_empty() {
                return Err(Fault::Again(format!("{kind} {name:?} was just written")));
            }
        }
    }
    write(transaction, id, &row).await?;
    let (id_of, word) = (id.0, kind.as_str());
    let follow: [&(dyn ToSql + Sync); 3] = [&id_of, &word, &row.schedule.after];
    // What waits follows another limit, and another lateness.
    transaction.all(&[(UNFOLLOW, &follow[..1]), (FOLLOW, &follow), (NOTE, &follow[..1])]).await?;
    let stored = told(transaction, id).await?;
    let put = if before.is_some() { Put::Replaced(stored) } else { Put::Created(stored) };
    Ok((put, vec![schedule_written(kind, name)]))
}

pub(super) async fn enable(
    exclusive: &Exclusive,
    kind: ScheduleKind,
    name: &str,
    enabled: bool,
) -> Result<Option<StoredSchedule>> {
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let answer = try_enable(&transaction, kind, name, enabled).await;
        close_with(transaction, answer).await
    });
    Ok(answer?)
}

async fn try_enable(
    transaction: &Transaction<'_>,
    kind: ScheduleKind,
    name: &str,
    enabled: bool,
) -> Outcome<(Option<StoredSchedule>, Vec<String>)> {
    let Some(found) = lock(transaction, kind, name).await? else { return Ok((None, Vec::new())) };
    let (id, row) = found.map_err(unreadable)?;
    let now = time(transaction).await?;
    let mut lines = Vec::new();
    if let Some(row) = row.switched(enabled, now) {
        write(transaction, id, &row).await?;
        note_group(transaction, id, &row.schedule).await?;
        transaction.query(NOTE, &[&id.0]).await?;
        lines.push(schedule_written(kind, name));
    }
    Ok((Some(told(transaction, id).await?), lines))
}

pub(super) async fn delete(
    exclusive: &Exclusive,
    kind: ScheduleKind,
    name: &str,
    version: Option<u64>,
) -> Result<Deleted> {
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let answer = try_delete(&transaction, kind, name, version).await;
        close_with(transaction, answer).await
    });
    Ok(answer?)
}

/// One that cannot be read can be deleted all the same.
async fn try_delete(
    transaction: &Transaction<'_>,
    kind: ScheduleKind,
    name: &str,
    version: Option<u64>,
) -> Outcome<(Deleted, Vec<String>)> {
    let sql = "select s.id, s.version, s.group_name from schedule s where s.kind = $1 and s.name = $2 for update";
    let rows = transaction.query(sql, &[&kind.as_str(), &name]).await?;
    let Some(row) = rows.first() else { return Ok((Deleted::NotFound, Vec::new())) };
    let (id, there): (Uuid, u64) = (row.get(0), number(row.get(1)));
    if version.is_some_and(|version| version != there) {
        return Ok((Deleted::Conflict(there), Vec::new()));
    }
    if let Some(group) = row.get::<_, Option<&str>>(2) {
        transaction.query(NOTE_GROUP, &[&kind.as_str(), &group, &id]).await?;
    }
    let own: Params<'_> = &[&id];
    transaction.all(&DELETE.map(|sql| (sql, own))).await?;
    Ok((Deleted::Done, vec![schedule_deleted(kind, name)]))
}

type Found = Result<(ScheduleId, ScheduleRow)>;

async fn lock(transaction: &Transaction<'_>, kind: ScheduleKind, name: &str) -> Outcome<Option<Found>> {
    let sql = format!("select {SCHEDULE_COLUMNS} from schedule s where s.kind = $1 and s.name = $2 for update");
    Ok(locked(&transaction.query(&sql, &[&kind.as_str(), &name]).await?))
}

async fn time(transaction: &Transaction<'_>) -> Outcome<StoreTime> {
    let rows = transaction.query(NOW, &[]).await?;
    rows.first().map(|row| StoreTime(row.get(0))).ok_or_else(|| Fault::Bug("the server told no time".to_string()))
}

async fn told(transaction: &Transaction<'_>, id: ScheduleId) -> Outcome<StoredSchedule> {
    match read_back(transaction, id).await? {
        Some(stored) => stored.map_err(unreadable),
        None => Err(Fault::Bug(format!("schedule {id} is gone within its transaction"))),
    }
}

fn unreadable(error: everbeat_store::Error) -> Fault {
    Fault::Bug(error.to_string())
}

async fn note_group(transaction: &Transaction<'_>, id: ScheduleId, schedule: &Schedule) -> Outcome<()> {
    let Some(group) = &schedule.group else { return Ok(()) };
    transaction.query(NOTE_GROUP, &[&schedule.kind.as_str(), group, &id.0]).await.map(|_| ())
}

async fn write(transaction: &Transaction<'_>, id: ScheduleId, row: &ScheduleRow) -> Outcome<()> {
    let (cells, definition) = (UpdateCells::of(id.0, row), row.to_stored());
    let mut params = cells.looked_params();
    params.extend([
        &cells.version as &(dyn ToSql + Sync),
        &cells.enabled,
        &cells.updated_at,
        &cells.group,
        &definition,
    ]);
    transaction.query(UPDATE, &params).await.map(|_| ())
}

/// A row as columns hold it.
pub(super) struct UpdateCells<'a> {
    id: Uuid,
    version: i64,
    enabled: bool,
    updated_at: i64,
    times: [Option<i64>; 4],
    group: Option<&'a str>,
    cursor: Option<&'a str>,
    fed_by: String,
}

impl<'a> UpdateCells<'a> {
    pub(super) fn of(id: Uuid, row: &'a ScheduleRow) -> UpdateCells<'a> {
        UpdateCells {
            id,
            version: stored(row.version),
            enabled: row.enabled,
            updated_at: row.updated_at.0,
            times: [row.next_due, row.last_due, row.look_at, row.late_since].map(|time| time.map(|time| time.0)),
            group: row.schedule.group.as_deref(),
            cursor: row.cursor.as_ref().map(Json::as_str),
            fed_by: stored_fed_by(&row.fed_by),
        }
    }

    /// The parameters of [`LOOKED`], with which those of [`UPDATE`] begin.
    pub(super) fn looked_params(&self) -> Vec<&(dyn ToSql + Sync)> {
        let [next_due, last_due, look_at, late_since] = &self.times;
        vec![&self.id, next_due, last_due, look_at, late_since, &self.cursor, &self.fed_by]
    }
}
