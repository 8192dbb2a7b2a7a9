//! Schedules with what their runs are at.

use super::fault::Outcome;
use super::link::{Link, Params};
use super::runs::run_cells;
use super::transaction::Transaction;
use crate::columns::{RUN_COLUMNS, RUN_JOINS};
use crate::decode::{Policies, readable};
use crate::encode::limit;
use crate::schedules::{SCHEDULE_COLUMNS, SCHEDULE_WIDTH, ScheduleCells, stored};
use everbeat_model::schedule::ScheduleKind;
use everbeat_model::{Run, RunId, ScheduleId};
use everbeat_store::{LIST_BYTES, Part, Result, ScheduleFilter, ScheduleRow, StoredSchedule};
use std::collections::BTreeMap;
use tokio_postgres::Row;
use uuid::Uuid;

/// Where schedules are read: from a snapshot of each statement's own, or inside the transaction that writes them.
enum Source<'a> {
    Link(&'a Link),
    Transaction(&'a Transaction<'a>),
}

impl Source<'_> {
    async fn query(&self, sql: &str, params: Params<'_>) -> Outcome<Vec<Row>> {
        match self {
            Source::Link(link) => link.query(sql, params).await,
            Source::Transaction(transaction) => transaction.query(sql, params).await,
        }
    }
}

/// Of the schedules that `which` selects: their rows, how many occurrences of each wait and have not ended, and the run
/// that was made last; and `more`.
fn told_sql(which: &str, more: &str) -> String {
    format!(
        "select {SCHEDULE_COLUMNS}, c.waiting, c.unfinished, r.id{more} from ({which}) s \
         cross join lateral (\
           select count(*) filter (where not o.begun) as waiting, \
             count(*) filter (where o.begun and exists (select 1 from run r where r.id = o.run_id offset 0) \
               and not exists (select 1 from done d where d.run_id = o.run_id offset 0)) as unfinished \
           from occurrence o where o.schedule_id = s.id) c \
         left join lateral (select r.id from run r where r.schedule_id = s.id order by r.id desc limit 1) r on true \
         order by s.name, s.kind desc"
    )
}

pub(super) async fn named(link: &Link, kind: ScheduleKind, name: &str) -> Result<Option<StoredSchedule>> {
    let sql = told_sql("select * from schedule s where s.kind = $1 and s.name = $2", "");
    let rows = link.query(&sql, &[&kind.as_str(), &name]).await?;
    let runs = last_runs(&Source::Link(link), &rows).await?;
    rows.first().map(|row| told(row, &runs)).transpose()
}

/// A schedule as the transaction that has written it sees it.
pub(super) async fn read_back(
    transaction: &Transaction<'_>,
    id: ScheduleId,
) -> Outcome<Option<Result<StoredSchedule>>> {
    let rows = transaction.query(&told_sql("select * from schedule s where s.id = $1", ""), &[&id.0]).await?;
    let runs = last_runs(&Source::Transaction(transaction), &rows).await?;
    Ok(rows.first().map(|row| told(row, &runs)))
}

/// How many schedules the page would have, and what all before one on it hold, as `StoredSchedule::bytes` counts. A length
/// is known without reading what is long.
const PAGE: &str = "\
    select s.*, count(*) over () as found, \
      coalesce(sum(octet_length(s.definition) + coalesce(octet_length(s.cursor), 0) + coalesce(l.bytes, 0)) \
        over (order by s.name, s.kind desc rows between unbounded preceding and 1 preceding), 0) as bytes_before";

const LAST_BYTES: &str = "\
    left join lateral (\
      select octet_length(r.input) + coalesce(octet_length(r.args), 0) + coalesce(octet_length(d.result), 0) \
        + coalesce(octet_length(g.checkpoint), 0) as bytes \
      from (select r.id, r.input, r.args from run r where r.schedule_id = s.id order by r.id desc limit 1) r \
      left join done d on d.run_id = r.id left join run_sign g on g.run_id = r.id) l on true";

pub(super) async fn list(link: &Link, filter: &ScheduleFilter) -> Result<Part<StoredSchedule>> {
    // One statement for each way in, so that one kind goes through its index.
    let by = if filter.kind.is_some() { "s.kind = $1" } else { "$1::text is null" };
    let page = format!(
        "select * from ({PAGE} from (select * from schedule s where {by} and ($2::text is null or s.name > $2) \
         order by s.name, s.kind desc limit $3) s {LAST_BYTES}) s where s.bytes_before < {LIST_BYTES}"
    );
    let sql = told_sql(&page, ", s.found");
    let kind = filter.kind.map(ScheduleKind::as_str);
    let rows = link.query(&sql, &[&kind, &filter.after, &limit(filter.limit)]).await?;
    let runs = last_runs(&Source::Link(link), &rows).await?;
    let found: i64 = rows.first().map_or(0, |row| row.get(SCHEDULE_WIDTH + 3));
    let cut_short = (rows.len() as i64) < found;
    Ok(Part { items: readable(rows.iter().map(|row| told(row, &runs))), cut_short })
}

fn told(row: &Row, runs: &BTreeMap<RunId, Run>) -> Result<StoredSchedule> {
    let last = row.get::<_, Option<Uuid>>(SCHEDULE_WIDTH + 2).and_then(|id| runs.get(&RunId(id)).cloned());
    Ok(stored(cells(row).read()?, row.get(SCHEDULE_WIDTH), row.get(SCHEDULE_WIDTH + 1), last))
}

async fn last_runs(source: &Source<'_>, rows: &[Row]) -> Outcome<BTreeMap<RunId, Run>> {
    let ids: Vec<Uuid> = rows.iter().filter_map(|row| row.get(SCHEDULE_WIDTH + 2)).collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = format!(
        "select {RUN_COLUMNS} from unnest($1::uuid[]) as g(id) \
         cross join lateral (select * from run r where r.id = g.id offset 0) r {RUN_JOINS}"
    );
    let rows = source.query(&sql, &[&ids]).await?;
    let mut policies = Policies::default();
    let runs = readable(rows.iter().map(|row| run_cells(row).read(&mut policies)));
    Ok(runs.into_iter().map(|run| (run.id, run)).collect())
}

/// The row of a schedule that is locked.
pub(super) fn locked(rows: &[Row]) -> Option<Result<(ScheduleId, ScheduleRow)>> {
    rows.first().map(|row| cells(row).read())
}

fn cells(row: &Row) -> ScheduleCells {
    ScheduleCells {
        id: row.get(0),
        kind: row.get(1),
        name: row.get(2),
        definition: row.get(3),
        version: row.get(4),
        enabled: row.get(5),
        created_at: row.get(6),
        updated_at: row.get(7),
        next_due_at: row.get(8),
        last_due_at: row.get(9),
        look_at: row.get(10),
        late_since: row.get(11),
        cursor: row.get(12),
        fed_by: row.get(13),
    }
}
