//! Looks at a schedule, in one transaction.
//!
//! First the schedule's row is locked, then its group if it has one, then its notes are deleted, then all the rest is read,
//! each by a statement of its own. So whatever finished before a deleted note is seen, and a note that was not seen stays
//! for the next look. A look holds one schedule and one group, in this order, and waits for nothing else: what it tells
//! others is inserted where nothing is unique. A trigger takes its idempotency key between the two.

use super::fault::{Fault, Outcome};
use super::idempotency::{TAKE_KEY, seen};
use super::link::{Params, again};
use super::schedule_carry_out::{carry_out, close_with};
use super::schedule_read::locked;
use super::transaction::{Exclusive, Transaction};
use crate::schedules::{OccurrenceCells, SCHEDULE_COLUMNS};
use everbeat_model::schedule::{Occurrence, Others, Wish};
use everbeat_model::{RunId, ScheduleId, StoreTime};
use everbeat_store::{Error, LookedAt, LookedSchedule, Result, ScheduleRow, Scheduler};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

/// Two keys, which no batch of events ever locks.
const LOCK_GROUP: &str =
    "select pg_advisory_xact_lock(hashtext(current_schema() || '.' || $1::text || '.group'), hashtext($2::text))";

const KNOWN: &str = "select 1 from schedule s where s.id = $1";

const TAKE_NOTES: &str = "delete from schedule_note n where n.schedule_id = $1";

pub(super) const TAKE_FED: &str = "delete from schedule_fed f where f.schedule_id = $1 returning f.upstream";

/// Where the run of a trigger is.
const TRIGGERED: &str = "\
    select not o.begun from occurrence o where o.run_id = $1 \
    union all select false from run r where r.id = $1 limit 1";

const KEEP_KEY: &str = "update idempotency i set run_ids = $2 where i.key = $1";

const DROP_KEY: &str = "delete from idempotency i where i.key = $1 and i.run_ids = $2::uuid[]";

const OCCURRENCES: &str = "\
    select o.run_id, o.due_at, o.due_by, o.wish, o.begun, d.state is not null or r.id is null, d.state, s.checkpoint \
    from occurrence o \
    left join lateral (select d.state from done d where o.begun and d.run_id = o.run_id offset 0) d on true \
    left join lateral (select r.id from run r where o.begun and r.id = o.run_id offset 0) r on true \
    left join lateral (select s.checkpoint from run_sign s where d.state is not null and s.run_id = o.run_id offset 0) \
      s on true \
    where o.schedule_id = $1 order by o.run_id";

const OTHERS: &str = "\
    select o.begun, o.due_at from schedule s \
    cross join lateral (select * from occurrence o where o.schedule_id = s.id offset 0) o \
    where s.kind = $1 and s.group_name = $2 and s.id <> $3 \
      and case when o.begun then not exists (select 1 from done d where d.run_id = o.run_id offset 0) \
          and exists (select 1 from run r where r.id = o.run_id offset 0) \
        else s.enabled or o.due_by = 'asked' end \
    order by s.id, o.run_id";

pub(super) const NOW: &str = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";

pub(super) async fn look(
    exclusive: &Exclusive,
    id: ScheduleId,
    wish: &Wish,
    scheduler: &dyn Scheduler,
) -> Result<LookedAt> {
    let answer = again!(async {
        let transaction = exclusive.begin().await?;
        let looked = try_look(&transaction, id, wish, scheduler).await;
        close_with(transaction, looked).await
    });
    answer?
}

/// Answers what the look came to, and what is to be logged. The inner result is the request's.
async fn try_look(
    transaction: &Transaction<'_>,
    id: ScheduleId,
    wish: &Wish,
    scheduler: &dyn Scheduler,
) -> Outcome<(Result<LookedAt>, Vec<String>)> {
    let quiet = |answer: LookedAt| Ok((Ok(answer), Vec::new()));
    let row = match lock(transaction, id, wish).await? {
        Lock::Row(row) => *row,
        Lock::Busy => return quiet(LookedAt::Busy),
        Lock::NotFound => {
            transaction.query(TAKE_NOTES, &[&id.0]).await?;
            return quiet(LookedAt::NotFound);
        }
    };
    match triggered_before(transaction, wish).await? {
        Ok(None) => {}
        Ok(Some(again)) => return quiet(LookedAt::Done(again)),
        Err(reused) => return Ok((Err(reused), Vec::new())),
    }
    let Read { occurrences, others, fed, now } = read(transaction, id, &row).await?;
    let mut fed_row = row.clone();
    fed_row.fed_by.extend(fed);
    fed_row.fed_by.retain(|name| row.schedule.after.contains(name));
    let situation = fed_row.situation(id, occurrences, others, now);
    let decision = scheduler.look(&situation, wish.clone());
    let after = fed_row.looked(&decision);
    let changed = (after != row).then_some(&after);
    let lines = carry_out(transaction, &situation, &decision, changed).await?;
    let looked = LookedSchedule::of(&decision);
    if let Some((run, given)) = wish.key() {
        // A trigger that becomes nothing uses no key.
        let made: Vec<Uuid> = if looked.has(run) { vec![run.0] } else { Vec::new() };
        let sql = if made.is_empty() { DROP_KEY } else { KEEP_KEY };
        transaction.query(sql, &[&given.key, &made]).await?;
    }
    Ok((Ok(LookedAt::Done(looked)), lines))
}

enum Lock {
    Row(Box<ScheduleRow>),
    Busy,
    NotFound,
}

/// A trigger waits for its turn; a mere look does not.
async fn lock(transaction: &Transaction<'_>, id: ScheduleId, wish: &Wish) -> Outcome<Lock> {
    let skip = if matches!(wish, Wish::Look { .. }) { "skip locked" } else { "" };
    let sql = format!("select {SCHEDULE_COLUMNS} from schedule s where s.id = $1 for update {skip}");
    match locked(&transaction.query(&sql, &[&id.0]).await?) {
        Some(Ok((_, row))) => Ok(Lock::Row(Box::new(row))),
        Some(Err(error)) => {
            tracing::debug!(%error, "a schedule is left to whoever can read it");
            Ok(Lock::Busy)
        }
        None if transaction.query(KNOWN, &[&id.0]).await?.is_empty() => Ok(Lock::NotFound),
        None => Ok(Lock::Busy),
    }
}

/// What an earlier trigger came to, if this is the same one again. Takes the key of the first.
async fn triggered_before(transaction: &Transaction<'_>, wish: &Wish) -> Outcome<Result<Option<LookedSchedule>>> {
    let Wish::Trigger { run, idempotency, .. } = wish else { return Ok(Ok(None)) };
    if let Some(given) = idempotency
        && transaction.query(TAKE_KEY, &[&given.key, &given.fingerprint]).await?.is_empty()
    {
        let ids = match seen(transaction, given).await? {
            Ok(ids) => ids,
            Err(reused) => return Ok(Err(reused)),
        };
        let Some(run) = ids.first().copied().map(RunId) else {
            return Ok(Err(Error::KeyReused { key: given.key.clone() }));
        };
        // A run that was forgotten since waits no longer.
        let waits = where_is(transaction, run).await?.unwrap_or(false);
        return Ok(Ok(Some(LookedSchedule::again(run, waits))));
    }
    Ok(Ok(where_is(transaction, *run).await?.map(|waits| LookedSchedule::again(*run, waits))))
}

/// Whether a run waits for its turn; none if nothing is known of it.
async fn where_is(transaction: &Transaction<'_>, run: RunId) -> Outcome<Option<bool>> {
    let rows = transaction.query(TRIGGERED, &[&run.0]).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// What is read under the locks.
struct Read {
    occurrences: Vec<Occurrence>,
    others: Others,
    fed: Vec<String>,
    now: StoreTime,
}

async fn read(transaction: &Transaction<'_>, id: ScheduleId, row: &ScheduleRow) -> Outcome<Read> {
    let (kind, group) = (row.schedule.kind.as_str(), row.schedule.group.as_deref());
    let of_group: [&(dyn ToSql + Sync); 3] = [&kind, &group, &id.0];
    let mut statements: Vec<(&str, Params<'_>)> = Vec::new();
    if group.is_some() {
        statements.push((LOCK_GROUP, &of_group[..2]));
    }
    let own: Params<'_> = &[&id.0];
    statements.extend([(TAKE_NOTES, own), (TAKE_FED, own), (OCCURRENCES, own), (NOW, &[][..])]);
    if group.is_some() {
        statements.push((OTHERS, &of_group[..]));
    }
    let mut rows = transaction.all(&statements).await?.into_iter().skip(usize::from(group.is_some()) + 1);
    let mut next = || rows.next().unwrap_or_default();
    let fed = next().iter().map(|row| row.get(0)).collect();
    let occurrences = next().iter().map(occurrence).collect::<Outcome<_>>()?;
    let now = next().first().map(|row| StoreTime(row.get(0)));
    let mut others = Others::default();
    for row in next() {
        match row.get(0) {
            true => others.unfinished += 1,
            false => others.waiting.push(StoreTime(row.get(1))),
        }
    }
    let now = now.ok_or_else(|| Fault::Bug("the server told no time".to_string()))?;
    Ok(Read { occurrences, others, fed, now })
}

fn occurrence(row: &Row) -> Outcome<Occurrence> {
    let cells = OccurrenceCells {
        run_id: row.get(0),
        due_at: row.get(1),
        due_by: row.get(2),
        wish: row.get(3),
        begun: row.get(4),
        over: row.get(5),
        state: row.get(6),
        checkpoint: row.get(7),
    };
    cells.read().map_err(|error| Fault::Bug(error.to_string()))
}
