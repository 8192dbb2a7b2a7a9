//! Writes what a look at a schedule came to.

use super::arrays::{after, arrays, insert, numbered};
use super::chunk::chunks;
use super::enqueue::{self, APPEND};
use super::fault::{Fault, Outcome};
use super::link::Params;
use super::schedule_write::{LOOKED, NOTE_GROUP, UpdateCells};
use super::transaction::Transaction;
use crate::cells::stored;
use crate::encode::limit;
use everbeat_model::Json;
use everbeat_model::schedule::{Decision, Situation};
use everbeat_store::{MOST_LEFT, ScheduleRow, schedule_events};
use std::sync::LazyLock;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

arrays! {
    /// Occurrences as one array per column.
    Occurrences of OccurrenceRow<'a> {
        run_id: Uuid as "uuid",
        schedule_id: Uuid as "uuid",
        due_at: i64 as "bigint",
        due_by: &'static str as "text",
        wish: Option<&'a str> as "text",
        begun: bool as "boolean",
    }
}

arrays! {
    /// What was left out, in order.
    Lefts of LeftRow {
        from_at: i64 as "bigint",
        to_at: i64 as "bigint",
        count: i64 as "bigint",
        why: &'static str as "text",
    }
}

const OVER: &str = "delete from occurrence o where o.run_id = any($1::uuid[]) and o.schedule_id = $2";

/// Those that waited; the others are added.
const BEGIN: &str = "update occurrence o set begun = true where o.run_id = any($1::uuid[]) and o.schedule_id = $2";

static ADD: LazyLock<String> = LazyLock::new(|| insert("occurrence", Occurrences::COLUMNS));

/// The schedule and the time follow the arrays.
static LEAVE: LazyLock<String> = LazyLock::new(|| {
    let columns = Lefts::COLUMNS;
    format!(
        "insert into occurrence_left (schedule_id, place, at, from_at, to_at, count, why) \
         select {id}::uuid, m.place + g.nth, ${at}::bigint, g.from_at, g.to_at, g.count, g.why from ({given}) g, \
           (select coalesce(max(l.place), 0) as place from occurrence_left l where l.schedule_id = {id}) m",
        id = after(columns),
        at = columns.len() + 2,
        given = numbered(columns),
    )
});

const FORGET_LEFT: &str = "\
    delete from occurrence_left l where l.schedule_id = $1 \
      and l.place <= (select max(m.place) from occurrence_left m where m.schedule_id = $1) - $2";

/// Tells those that come after the schedule that a run of it has succeeded. Whoever deletes a note sees what was written
/// with the note.
const FEED: &str = "\
    with follower as materialized (\
      select a.schedule_id from schedule_after a where a.kind = $1 and a.upstream = $2 and a.schedule_id <> $3), \
    fed as (insert into schedule_fed (schedule_id, upstream) select f.schedule_id, $2 from follower f) \
    insert into schedule_note (schedule_id) select f.schedule_id from follower f";

/// Writes all but the event; answers what is to be logged. `changed` is the row, if it is another one now.
pub(super) async fn carry_out(
    transaction: &Transaction<'_>,
    situation: &Situation,
    decision: &Decision,
    changed: Option<&ScheduleRow>,
) -> Outcome<Vec<String>> {
    let (id, schedule) = (situation.id.0, &situation.schedule);
    let (kind, at) = (schedule.kind.as_str(), situation.now.0);
    let over: Vec<Uuid> = decision.over.iter().map(|run| run.0).collect();
    let begin: Vec<Uuid> = decision.begin.iter().map(|run| run.id.0).collect();
    let (occurrences, lefts) = (occurrences(id, decision), lefts(decision));
    let runs: Vec<_> =
        chunks(&decision.begin, |run| run.bytes()).into_iter().map(|runs| enqueue::rows(runs.iter())).collect();
    let row = changed.map(|row| UpdateCells::of(id, row));
    let kept = limit(MOST_LEFT);
    let mut statements: Vec<(&str, Vec<&(dyn ToSql + Sync)>)> = Vec::new();
    if !over.is_empty() {
        statements.push((OVER, vec![&over, &id]));
    }
    if !begin.is_empty() {
        statements.push((BEGIN, vec![&begin, &id]));
    }
    statements.extend(occurrences.statement(&ADD));
    let first = statements.len();
    statements.extend(runs.iter().map(|runs| (enqueue::INSERT.as_str(), runs.params())));
    if let Some(row) = &row {
        statements.push((LOOKED, row.looked_params()));
    }
    if let Some((sql, mut params)) = lefts.statement(&LEAVE) {
        params.extend([&id as &(dyn ToSql + Sync), &at]);
        statements.push((sql, params));
        statements.push((FORGET_LEFT, vec![&id, &kept]));
    }
    if decision.feeds {
        statements.push((FEED, vec![&kind, &schedule.name, &id]));
    }
    if let Some(group) = schedule.group.as_ref().filter(|_| decision.frees) {
        statements.push((NOTE_GROUP, vec![&kind, group, &id]));
    }
    let statements: Vec<(&str, Params<'_>)> = statements.iter().map(|(sql, params)| (*sql, &params[..])).collect();
    let written = transaction.all(&statements).await?;
    let made: usize = written[first..first + runs.len()].iter().map(Vec::len).sum();
    if made < decision.begin.len() {
        return Err(Fault::Again("a run has just been stored by an earlier call".to_string()));
    }
    Ok(schedule_events(situation, decision))
}

/// Commits what went well together with its events; undoes what did not.
pub(super) async fn close_with<T>(transaction: Transaction<'_>, answer: Outcome<(T, Vec<String>)>) -> Outcome<T> {
    match answer {
        Ok((answer, lines)) if lines.is_empty() => transaction.commit().await.map(|()| answer),
        Ok((answer, lines)) => transaction.commit_with(APPEND, &[&lines.join("\n")]).await.map(|()| answer),
        Err(fault) => transaction.close(Err(fault)).await,
    }
}

fn occurrences(schedule_id: Uuid, decision: &Decision) -> Occurrences<'_> {
    let mut rows = Occurrences::default();
    for occurrence in &decision.add {
        rows.push(OccurrenceRow {
            run_id: occurrence.run.0,
            schedule_id,
            due_at: occurrence.due.0,
            due_by: occurrence.cause.as_str(),
            wish: occurrence.wish.as_ref().map(Json::as_str),
            begun: !occurrence.waits(),
        });
    }
    rows
}

fn lefts(decision: &Decision) -> Lefts {
    let mut rows = Lefts::default();
    for left in &decision.left {
        let (from_at, to_at, count) = (left.from.0, left.to.0, stored(left.count));
        rows.push(LeftRow { from_at, to_at, count, why: left.why.as_str() });
    }
    rows
}
