//! Claims. The lanes (queue, task) are walked through the key of `ready`, from each the first are
//! locked, passing over what another server has locked, and the best of all are taken.

use super::arrays::{after, arrays, given};
use super::fault::Outcome;
use super::link::{Link, Params, again};
use super::sql::{lanes, now};
use super::transaction::Exclusive;
use crate::columns::{SPEC_COLUMNS, spec_columns};
use crate::decode::{Policies, SpecCells, readable, standing};
use crate::encode::limit;
use crate::pick::{Candidate, Lane, pick};
use everbeat_model::lease::Lease;
use everbeat_model::run::Claimed;
use everbeat_model::{Json, ReplicaId, RunId, StoreTime, Token};
use everbeat_store::{Claim, Result};
use std::cmp::Reverse;
use std::sync::LazyLock;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

arrays! {
    /// The tasks that are offered, and how many runs of each there is room for.
    Offers of Offer<'a> {
        task: &'a str as "text",
        free: i64 as "bigint",
    }
}

arrays! {
    /// Rows of `ready` to take.
    Picks of Pick<'a> {
        queue: &'a str as "text",
        task: &'a str as "text",
        rank: i32 as "int",
        run_id: Uuid as "uuid",
    }
}

/// Up to the locked candidates. The replica, the limit, and the queues among which to look, or null, follow the arrays.
fn locked() -> String {
    format!(
        "with recursive {now}, {lanes}, \
         offered as materialized ({offered}), \
         open as materialized (\
           select l.queue, l.task, o.free from lane l join offered o on o.task = l.task \
           where o.free > 0 and ($5::text[] is null or l.queue = any($5)) \
             and not exists (select 1 from queue q where q.name = l.queue and q.paused) \
             and exists (select 1 from replica p where p.id = $3 and p.state = 'active')), \
         locked as materialized (\
           select c.*, o.free from open o cross join lateral (\
             select r.ctid as at, r.queue, r.task, r.rank, r.run_id from ready r \
             where r.queue = o.queue and r.task = o.task order by r.rank, r.run_id \
             limit least(o.free, $4) for update skip locked) c)",
        now = now!(),
        lanes = lanes!(),
        offered = given(Offers::COLUMNS),
    )
}

/// From the rows taken out of `ready`, which are called `gone`. `replica` is the parameter of the replica.
fn leased(replica: &str) -> String {
    format!(
        "leased as (insert into lease (run_id, replica_id, attempt, tries, losses, token, granted_at, \
             last_heartbeat_at, detached) \
           select g.run_id, {replica}, g.attempt + 1, g.tries, g.losses, gen_random_uuid(), t.now, t.now, \
             split_part(g.task, '@', 1) = 'command' from gone g, t \
           returning run_id, attempt, tries, losses, token, granted_at) \
         select l.run_id, l.attempt, l.tries, l.losses, l.token, l.granted_at, {spec}, s.checkpoint, \
           greatest(r.created_at, r.run_at) \
         from leased l cross join lateral (select * from run r where r.id = l.run_id offset 0) r \
           left join lateral (select s.checkpoint from run_sign s where s.run_id = l.run_id offset 0) s on true",
        spec = spec_columns!(),
    )
}

/// With limits on tasks only: among what is locked, the nth of a task is in if the task has room for n.
/// A locked row cannot move, so it is deleted by its place.
static CLAIM: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{locked}, picked as materialized (select at from (\
             select at, rank, run_id, free, row_number() over (partition by task order by rank, run_id) as nth \
             from locked) l where nth <= free order by rank, run_id limit $4), \
         gone as (delete from ready r where r.ctid = any(array(select at from picked)) \
           returning r.run_id, r.task, r.attempt, r.tries, r.losses), \
         {leased}",
        locked = locked(),
        leased = leased("$3"),
    )
});

static CANDIDATES: LazyLock<String> = LazyLock::new(|| locked() + " select queue, task, rank, run_id from locked");

/// The replica follows the arrays.
static TAKE: LazyLock<String> = LazyLock::new(|| {
    let columns = Picks::COLUMNS;
    format!(
        "with {now}, picked as materialized ({picked}), \
         found as materialized (select r.at from picked p cross join lateral (\
           select r.ctid as at from ready r where r.queue = p.queue and r.task = p.task and r.rank = p.rank \
             and r.run_id = p.run_id offset 0) r), \
         gone as (delete from ready r where r.ctid = any(array(select at from found)) \
           returning r.run_id, r.task, r.attempt, r.tries, r.losses), \
         {leased}",
        now = now!(),
        picked = given(columns),
        leased = leased(&after(columns)),
    )
});

pub(super) async fn claim(link: &Link, exclusive: &Exclusive, request: &Claim) -> Result<Vec<Claimed>> {
    if request.limit == 0 || request.tasks.is_empty() {
        return Ok(Vec::new());
    }
    let mut offers = Offers::default();
    request.tasks.iter().for_each(|(task, free)| offers.push(Offer { task, free: limit(*free) }));
    let most = limit(request.limit);
    let among: Option<Vec<&str>> = request.among.as_ref().map(|among| among.iter().map(String::as_str).collect());
    let mut params = offers.params();
    params.extend([&request.replica.0 as &(dyn ToSql + Sync), &most, &among]);
    let rows = if request.queues.is_empty() {
        link.query(&CLAIM, &params).await?
    } else {
        claim_with_queues(exclusive, request, &params).await?
    };
    let mut policies = Policies::default();
    let mut claimed = readable(rows.iter().map(|row| claimed_row(row, request.replica, &mut policies)));
    claimed.sort_by_key(|claimed| (Reverse(claimed.spec.priority), claimed.lease.run_id));
    Ok(claimed)
}

/// Limits on tasks and on queues together depend on each other, candidate by candidate, so they are
/// applied here, to what is locked.
async fn claim_with_queues(exclusive: &Exclusive, request: &Claim, offers: Params<'_>) -> Outcome<Vec<Row>> {
    again!(async { try_claim_with_queues(exclusive, request, offers).await })
}

async fn try_claim_with_queues(exclusive: &Exclusive, request: &Claim, offers: Params<'_>) -> Outcome<Vec<Row>> {
    let transaction = exclusive.begin().await?;
    let found = transaction.query(&CANDIDATES, offers).await?;
    let mut lanes: Vec<Lane> = Vec::new();
    let mut candidates = Vec::with_capacity(found.len());
    for row in &found {
        let (queue, task): (&str, &str) = (row.get(0), row.get(1));
        if !lanes.last().is_some_and(|lane| lane.queue == queue && lane.task == task) {
            lanes.push(Lane { queue: queue.to_string(), task: task.to_string() });
        }
        candidates.push(Candidate { rank: row.get(2), run_id: row.get(3), lane: lanes.len() - 1 });
    }
    let picked = pick(candidates, &lanes, &request.tasks, &request.queues, request.limit);
    if picked.is_empty() {
        transaction.rollback().await?;
        return Ok(Vec::new());
    }
    let mut picks = Picks::default();
    for Candidate { rank, run_id, lane } in picked {
        let Lane { queue, task } = &lanes[lane];
        picks.push(Pick { queue, task, rank, run_id });
    }
    let mut params = picks.params();
    params.push(&request.replica.0);
    let rows = transaction.query(&TAKE, &params).await?;
    transaction.commit().await?;
    Ok(rows)
}

/// A run that cannot be read stays leased; its owner's reconciliation finds it. The others go on.
fn claimed_row(row: &Row, replica: ReplicaId, policies: &mut Policies) -> Result<Claimed> {
    const SPEC: usize = 6;
    let standing = standing(int_at(row, 1), int_at(row, 2), int_at(row, 3));
    let run_id: Uuid = row.get(0);
    Ok(Claimed {
        lease: Lease {
            run_id: RunId(run_id),
            attempt: standing.attempt,
            token: Token(row.get(4)),
            replica_id: replica,
            tenure: 0,
            granted_at: StoreTime(row.get(5)),
        },
        spec: spec_cells(row, SPEC).read(run_id, policies)?,
        standing,
        checkpoint: row.get::<_, Option<String>>(SPEC + SPEC_COLUMNS).map(Json::stored),
        due_at: StoreTime(row.get(SPEC + SPEC_COLUMNS + 1)),
    })
}

/// Reads the columns of a spec that begin at `first`.
pub(super) fn spec_cells(row: &Row, first: usize) -> SpecCells {
    SpecCells {
        kind: row.get(first),
        task: row.get(first + 1),
        queue: row.get(first + 2),
        priority: i16::try_from(row.get::<_, i32>(first + 3)).unwrap_or(0),
        input: row.get(first + 4),
        policy: row.get(first + 5),
        unique_key: row.get(first + 6),
        args: row.get(first + 7),
        execution_id: row.get(first + 8),
        node: row.get(first + 9),
        host: row.get(first + 10),
        session: row.get(first + 11),
        schedule_id: row.get(first + 12),
        due_at: row.get(first + 13),
    }
}

pub(super) fn int_at(row: &Row, column: usize) -> i64 {
    i64::from(row.get::<_, i32>(column))
}
