//! Checks are written, pinged, looked at and deleted, each under the lock of its row.

use super::checks::cells;
use super::fault::{Fault, Outcome};
use super::link::{Params, again};
use super::schedule_carry_out::close_with;
use super::schedule_look::NOW;
use super::transaction::{Exclusive, Transaction};
use crate::cells::{number, stored};
use crate::checks::{CHECK_COLUMNS, VitalCells, micros};
use crate::encode::limit;
use everbeat_model::StoreTime;
use everbeat_model::check::{MOST_PINGS, Ping};
use everbeat_store::{CheckPut, CheckRow, CheckWritten, Deleted, NewPing, Pinged, PutCheck, Result, check_deleted};
use tokio_postgres::types::ToSql;

/// Checks are made one at a time, so that they are counted.
const LOCK_ALL: &str = "select pg_advisory_xact_lock(hashtext(current_schema() || '.checks'), 0)";

const COUNT: &str = "select count(*) from checks c";

/// Another may make a check of that name before the lock is taken: it is looked for again.
const INSERT: &str = "\
    insert into checks (name, definition, version, created_at, updated_at, state, pings) \
    values ($1, $2, $3, $4, $5, 'new', 0) on conflict do nothing returning 1";

const UPDATE: &str = "update checks c set definition = $2, version = $3, updated_at = $4 where c.name = $1";

const UPDATE_VITALS: &str = "\
    update checks c set state = $2, down_since = $3, down_why = $4, armed_at = $5, last_success_at = $6, \
      started_at = $7, last_ping_at = $8, last_duration = $9, pings = $10, look_at = $11 where c.name = $1";

const KEEP: &str = "\
    insert into ping (check_name, place, at, kind, exit_code, duration, body) values ($1, $2, $3, $4, $5, $6, $7)";

const FORGET: &str = "delete from ping p where p.check_name = $1 and p.place <= $2";

const DELETE: [&str; 2] = ["delete from checks c where c.name = $1", "delete from ping p where p.check_name = $1"];

/// What is answered, and what is to be logged.
type Told<T> = Outcome<(T, Vec<String>)>;

pub(super) async fn put(exclusive: &Exclusive, request: &PutCheck) -> Result<CheckPut> {
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let answer = try_put(&transaction, request).await;
        close_with(transaction, answer).await
    });
    Ok(answer?)
}

async fn try_put(transaction: &Transaction<'_>, request: &PutCheck) -> Told<CheckPut> {
    let quiet = |answer: CheckPut| Ok((answer, Vec::new()));
    let (found, now) = lock(transaction, &request.check.name).await?;
    let before = found.transpose().map_err(unreadable)?;
    let (row, lines) = match CheckRow::written(before.as_ref(), request, now) {
        CheckWritten::Conflict(there) => return quiet(CheckPut::Conflict(there)),
        CheckWritten::Same(row) => return quiet(CheckPut::Unchanged(*row)),
        CheckWritten::Row(row, lines) => (*row, lines),
    };
    if before.is_none() {
        if !make(transaction, &row, request.most).await? {
            return quiet(CheckPut::TooMany);
        }
        return Ok((CheckPut::Created(row), lines));
    }
    update(transaction, &row).await?;
    Ok((CheckPut::Replaced(row), lines))
}

/// Changes a check, if `decide` says so. Answers the row afterwards; none if there is no such check.
pub(super) async fn change(
    exclusive: &Exclusive,
    name: &str,
    decide: impl Fn(&CheckRow, StoreTime) -> Option<(CheckRow, Vec<String>)> + Send + Sync,
) -> Result<Option<CheckRow>> {
    let decide = &decide;
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let answer = async {
            let (found, now) = lock(&transaction, name).await?;
            let Some(row) = found.transpose().map_err(unreadable)? else { return Ok((None, Vec::new())) };
            let Some((row, lines)) = decide(&row, now) else { return Ok((Some(row), Vec::new())) };
            update(&transaction, &row).await?;
            Ok((Some(row), lines))
        }
        .await;
        close_with(transaction, answer).await
    });
    Ok(answer?)
}

pub(super) async fn look(exclusive: &Exclusive, name: &str) -> Result<Option<CheckRow>> {
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let answer = try_look(&transaction, name).await;
        close_with(transaction, answer).await
    });
    Ok(answer?)
}

async fn try_look(transaction: &Transaction<'_>, name: &str) -> Told<Option<CheckRow>> {
    let (found, now) = lock(transaction, name).await?;
    let row = match found {
        Some(Ok(row)) => row,
        None => return Ok((None, Vec::new())),
        Some(Err(error)) => {
            tracing::debug!(%error, "a check is left to whoever can read it");
            return Ok((None, Vec::new()));
        }
    };
    let Some((row, lines)) = row.looked(now) else { return Ok((Some(row), Vec::new())) };
    let cells = VitalParams::of(&row);
    transaction.query(UPDATE_VITALS, &cells.params()).await?;
    Ok((Some(row), lines))
}

pub(super) async fn ping(exclusive: &Exclusive, request: &NewPing) -> Result<Pinged> {
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let answer = try_ping(&transaction, request).await;
        close_with(transaction, answer).await
    });
    Ok(answer?)
}

async fn try_ping(transaction: &Transaction<'_>, request: &NewPing) -> Told<Pinged> {
    let (found, now) = lock(transaction, &request.check.name).await?;
    let (row, created) = match found.transpose().map_err(unreadable)? {
        Some(row) => (row, false),
        None => {
            let row = CheckRow::new(request.check.clone(), now);
            if !make(transaction, &row, request.most).await? {
                return Ok((Pinged::TooMany, Vec::new()));
            }
            (row, true)
        }
    };
    let (row, kept, lines) = row.pinged(request, now);
    write_ping(transaction, &row, &kept).await?;
    Ok((Pinged::Done { check: row, created }, lines))
}

async fn write_ping(transaction: &Transaction<'_>, row: &CheckRow, kept: &Ping) -> Outcome<()> {
    let (name, place, at) = (&row.check.name, stored(kept.place), kept.at.0);
    let (kind, exit_code) = (kept.signal.kind.as_str(), kept.signal.exit_code.map(i16::from));
    let (duration, forgotten) = (kept.duration.map(micros), place.saturating_sub(limit(MOST_PINGS)));
    let keep: [&(dyn ToSql + Sync); 7] = [name, &place, &at, &kind, &exit_code, &duration, &kept.body];
    let forget: [&(dyn ToSql + Sync); 2] = [name, &forgotten];
    let cells = VitalParams::of(row);
    transaction.all(&[(UPDATE_VITALS, &cells.params()), (KEEP, &keep), (FORGET, &forget)]).await.map(|_| ())
}

pub(super) async fn delete(exclusive: &Exclusive, name: &str, version: Option<u64>) -> Result<Deleted> {
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let answer = try_delete(&transaction, name, version).await;
        close_with(transaction, answer).await
    });
    Ok(answer?)
}

/// One that cannot be read can be deleted all the same.
async fn try_delete(transaction: &Transaction<'_>, name: &str, version: Option<u64>) -> Told<Deleted> {
    let rows = transaction.query("select c.version from checks c where c.name = $1 for update", &[&name]).await?;
    let Some(there) = rows.first().map(|row| number(row.get(0))) else { return Ok((Deleted::NotFound, Vec::new())) };
    if version.is_some_and(|version| version != there) {
        return Ok((Deleted::Conflict(there), Vec::new()));
    }
    let own: Params<'_> = &[&name];
    transaction.all(&DELETE.map(|sql| (sql, own))).await?;
    Ok((Deleted::Done, vec![check_deleted(name)]))
}

/// The row under its lock, and the time when the lock was taken.
async fn lock(transaction: &Transaction<'_>, name: &str) -> Outcome<(Option<Result<CheckRow>>, StoreTime)> {
    let sql = format!("select {CHECK_COLUMNS} from checks c where c.name = $1 for update");
    let own: Params<'_> = &[&name];
    let answers = transaction.all(&[(&sql, own), (NOW, &[])]).await?;
    let [rows, times] = &answers[..] else { return Err(Fault::Bug("a statement was not answered".to_string())) };
    let now = times.first().map(|row| StoreTime(row.get(0)));
    let now = now.ok_or_else(|| Fault::Bug("the server told no time".to_string()))?;
    Ok((rows.first().map(|row| cells(row).read()), now))
}

/// Stores a new check; false if there are as many as there may be.
async fn make(transaction: &Transaction<'_>, row: &CheckRow, most: usize) -> Outcome<bool> {
    let answers = transaction.all(&[(LOCK_ALL, &[]), (COUNT, &[])]).await?;
    let count: i64 = answers.last().and_then(|rows| rows.first()).map_or(0, |row| row.get(0));
    if count >= limit(most) {
        return Ok(false);
    }
    let (name, definition, version) = (&row.check.name, row.check.to_stored(), stored(row.version));
    let params: Params<'_> = &[name, &definition, &version, &row.created_at.0, &row.updated_at.0];
    if transaction.query(INSERT, params).await?.is_empty() {
        return Err(Fault::Again(format!("check {name:?} was just made")));
    }
    Ok(true)
}

async fn update(transaction: &Transaction<'_>, row: &CheckRow) -> Outcome<()> {
    let (definition, version) = (row.check.to_stored(), stored(row.version));
    let own: [&(dyn ToSql + Sync); 4] = [&row.check.name, &definition, &version, &row.updated_at.0];
    let cells = VitalParams::of(row);
    transaction.all(&[(UPDATE, &own), (UPDATE_VITALS, &cells.params())]).await.map(|_| ())
}

/// The parameters of [`UPDATE_VITALS`].
struct VitalParams<'a> {
    name: &'a str,
    cells: VitalCells,
}

impl<'a> VitalParams<'a> {
    fn of(row: &'a CheckRow) -> VitalParams<'a> {
        VitalParams { name: &row.check.name, cells: VitalCells::of(row) }
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 11] {
        let cells = &self.cells;
        [
            &self.name,
            &cells.state,
            &cells.down_since,
            &cells.down_why,
            &cells.armed_at,
            &cells.last_success_at,
            &cells.started_at,
            &cells.last_ping_at,
            &cells.last_duration,
            &cells.pings,
            &cells.look_at,
        ]
    }
}

fn unreadable(error: everbeat_store::Error) -> Fault {
    Fault::Bug(error.to_string())
}
