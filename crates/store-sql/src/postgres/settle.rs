//! Endings, a batch in one statement. A lease that is not the one shown is simply not found, and
//! nothing else happens to that run.

use super::chunk::chunks;
use super::fault::{Fault, Outcome};
use super::link::Link;
use super::sql::{append_event, now};
use super::verdicts::Columns;
use crate::columns::lane;
use crate::encode::{int, micros, unstorable};
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{Json, Next, ReplicaId, Settled, Settlement, StoreTime, Verdict, VerdictId};
use everbeat_store::Result;
use std::collections::BTreeSet;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

/// Every execution whose run has finished is looked at soon. One note of each is enough.
macro_rules! noted {
    ($parent:literal, $finished:literal) => {
        concat!(
            "noted as (insert into agenda (execution_id, due_at) select distinct p.execution_id, 0 \
               from unnest($2::uuid[], ",
            $parent,
            "::uuid[]) as p(run_id, execution_id) join ended e on e.run_id = p.run_id \
               where p.execution_id is not null and ",
            $finished,
            "), "
        )
    };
}

/// For batches that only finish runs, without verdicts and unique keys, each lease shown once: nearly
/// all. The leases are reached by their keys, whatever the planner believes about the table; `or false`
/// keeps the proofs a hash table that each of them is looked up in.
macro_rules! finish {
    ($noted:expr) => {
        concat!(
            "with ",
            now!(),
            ", given as materialized (select * from unnest($1::int[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], \
                 $6::int[], $7::int[], $8::text[], $9::text[], $10::bigint[], $11::uuid[]) \
               as g(place, run_id, token, state, outcome, tries, losses, result, error, beat, owner)), \
             gone as (delete from lease l where l.run_id = any($2::uuid[]) \
                 and ((l.run_id, l.token, l.replica_id) in (select g.run_id, g.token, g.owner from given g) or false) \
               returning l.*), \
             ended as materialized (\
               select g.place, l.run_id, g.state, l.attempt, g.tries, g.losses, g.result, g.error, g.outcome, \
                 l.replica_id, l.worker_id, l.token, l.granted_at, coalesce(g.beat, l.last_heartbeat_at) as beat \
               from gone l join given g on g.run_id = l.run_id and g.token = l.token and g.owner = l.replica_id), \
             finished as (insert into done (run_id, state, finished_at, attempt, tries, losses, result, error, outcome, \
                 replica_id, worker_id, token, started_at, last_heartbeat_at) \
               select e.run_id, e.state, t.now, e.attempt, e.tries, e.losses, e.result, e.error, e.outcome, e.replica_id, \
                 e.worker_id, e.token, e.granted_at, e.beat from ended e, t), ",
                    $noted,
                    "logged as (",
            append_event!(),
            "t.now, string_agg('run.' || e.state || ' ' || e.run_id || ' ' || e.attempt, e'\\n' order by e.place) \
               from ended e, t group by t.now) \
             select place, true from ended"
        )
    };
}

const FINISH: &str = finish!("");

/// For the same, if there are runs of executions among them.
const FINISH_NODES: &str = finish!(noted!("$12", "true"));

/// For everything. A run that goes back to its lane, now or later, takes it from its own row; where a
/// detached one belongs may have been written since the statement began, so its row is locked to be read as it is now.
/// One that somebody asked to cancel does not go back. Of several endings of one lease the first that may
/// end it does.
const SETTLE: &str = concat!(
    "with ",
    now!(),
    ", given as materialized (select * from unnest($1::int[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], \
         $6::int[], $7::int[], $8::text[], $9::text[], $10::bigint[], $11::text[], $12::bigint[], $13::text[], \
         $14::uuid[], $15::text[], $16::text[], $17::text[], $18::text[], $19::text[], $20::uuid[], $21::uuid[], \
         $22::int[], $23::text[], $25::uuid[]) \
       as g(place, run_id, token, state, outcome, tries, losses, result, error, beat, next, delay, unique_key, \
         verdict_id, subject_kind, subject_id, judgement, reason, evidence, judged_by, judged_run, judged_attempt, \
         followed_by, owner)), \
     gone as (delete from lease l where l.run_id = any($2::uuid[]) \
         and ((l.run_id, l.token, l.replica_id) in (\
             select g.run_id, g.token, g.owner from given g where g.next = 'finish') \
           or (l.cancel_requested_at is null \
             and (l.run_id, l.token, l.replica_id) in (select g.run_id, g.token, g.owner from given g))) \
       returning l.*), \
     ended as materialized (\
       select distinct on (g.run_id) g.*, l.attempt, l.replica_id, l.worker_id, l.granted_at, \
         coalesce(g.beat, l.last_heartbeat_at) as last_beat \
       from gone l join given g on g.run_id = l.run_id and g.token = l.token and g.owner = l.replica_id \
       where g.next = 'finish' or l.cancel_requested_at is null order by g.run_id, g.place), \
     finished as (insert into done (run_id, state, finished_at, attempt, tries, losses, result, error, outcome, \
         replica_id, worker_id, token, started_at, last_heartbeat_at, verdict_id) \
       select e.run_id, e.state, t.now, e.attempt, e.tries, e.losses, e.result, e.error, e.outcome, e.replica_id, \
         e.worker_id, e.token, e.granted_at, e.last_beat, e.verdict_id from ended e, t where e.next = 'finish'), \
     freed as (delete from unique_key k where k.key = any($13::text[]) \
       and ((k.key, k.run_id) in (select e.unique_key, e.run_id from ended e \
         where e.next = 'finish' and e.unique_key is not null) or false)), \
     kept as (insert into attempt (run_id, attempt, outcome, replica_id, worker_id, token, started_at, ended_at, \
         last_heartbeat_at, error, verdict_id) \
       select e.run_id, e.attempt, e.outcome, e.replica_id, e.worker_id, e.token, e.granted_at, t.now, e.last_beat, \
         e.error, e.verdict_id from ended e, t where e.next <> 'finish' on conflict do nothing), \
     back as materialized (select e.run_id, e.attempt, e.tries, e.losses, e.next, e.delay, r.* \
       from ended e cross join lateral (\
         select r.queue, r.task, r.priority, case when r.task = 'command' \
             then (select p.host from run p where p.id = r.id for share) else r.host end as host \
         from run r where r.id = e.run_id offset 0) r where e.next <> 'finish'), \
     again as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
       select b.queue, ",
    lane!("b"),
    ", -b.priority, b.run_id, b.attempt, b.tries, b.losses from back b where b.next = 'ready'), \
     later as (insert into scheduled (run_id, run_at, attempt, tries, losses, host) \
       select b.run_id, t.now + b.delay, b.attempt, b.tries, b.losses, b.host from back b, t where b.next = 'after'), \
     judged as (insert into verdict (id, at, subject_kind, subject_id, judgement, reason, evidence, judged_by, \
         run_id, attempt, followed_by) \
       select e.verdict_id, t.now, e.subject_kind, e.subject_id, e.judgement, e.reason, e.evidence, e.judged_by, \
         e.judged_run, e.judged_attempt, e.followed_by from ended e, t where e.verdict_id is not null \
       on conflict (id) do nothing), ",
    noted!("$24", "e.next = 'finish'"),
    "logged as (",
    append_event!(),
    "t.now, string_agg(case e.next when 'finish' then 'run.' || e.state else 'attempt.' || e.outcome end \
         || ' ' || e.run_id || ' ' || e.attempt, e'\\n' order by e.place) \
       from ended e, t group by t.now) \
     select place, true from ended \
     union all \
     select g.place, false from given g cross join lateral (\
       select l.token, l.replica_id from lease l \
       where l.run_id = g.run_id and l.cancel_requested_at is not null offset 0) l \
     where g.next <> 'finish' and l.token = g.token and l.replica_id = g.owner"
);

const CANCEL_ASKED: &str = "\
    select g.place from unnest($1::int[], $2::uuid[], $3::uuid[], $4::uuid[]) as g(place, run_id, token, owner) \
    cross join lateral (select l.token, l.replica_id from lease l \
      where l.run_id = g.run_id and l.cancel_requested_at is not null offset 0) l \
    where l.token = g.token and l.replica_id = g.owner";

pub(super) async fn settle(link: &Link, settlements: &[Settlement]) -> Result<Vec<Settled>> {
    let mut answers = vec![Settled::Fenced; settlements.len()];
    // By run, so that two servers lock in one order; the same lease shown twice keeps its order, and
    // the first one that may end it does.
    let mut order: Vec<usize> = (0..settlements.len()).collect();
    order.sort_by_key(|index| (settlements[*index].shown.run_id, *index));
    for chunk in chunks(&order, |index| size(&settlements[*index])) {
        settle_chunk(link, settlements, chunk.to_vec(), &mut answers).await?;
    }
    Ok(answers)
}

/// Settles a chunk; one that cannot be stored is halved until the bad item stands alone. That one ends
/// with the reason, so that it neither blocks the others nor is tried for ever.
async fn settle_chunk(
    link: &Link,
    settlements: &[Settlement],
    chunk: Vec<usize>,
    answers: &mut [Settled],
) -> Result<()> {
    let mut open = vec![chunk];
    while let Some(mut chunk) = open.pop() {
        if chunk.is_empty() {
            continue;
        }
        let batch: Vec<(usize, &Settlement)> = chunk.iter().map(|index| (*index, &settlements[*index])).collect();
        match write(link, &batch, answers).await {
            Ok(()) => {}
            Err(Fault::Data(_)) if chunk.len() > 1 => {
                let second = chunk.split_off(chunk.len() / 2);
                open.extend([second, chunk]);
            }
            Err(Fault::Data(reason)) => {
                let index = chunk[0];
                let instead = unstorable(&settlements[index], &reason);
                write(link, &[(index, &instead)], answers).await?;
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(())
}

async fn write(link: &Link, batch: &[(usize, &Settlement)], answers: &mut [Settled]) -> Outcome<()> {
    let place: Vec<i32> = batch.iter().map(|(index, _)| i32::try_from(*index).unwrap_or(i32::MAX)).collect();
    let run_id: Vec<Uuid> = batch.iter().map(|(_, settlement)| settlement.shown.run_id.0).collect();
    let token: Vec<Uuid> = batch.iter().map(|(_, settlement)| settlement.shown.token.0).collect();
    let owner: Vec<Uuid> = batch.iter().map(|(_, settlement)| settlement.shown.replica_id.0).collect();
    let endings = Endings::of(batch);
    let plain = batch.iter().all(|(_, settlement)| {
        !settlement.unless_cancelled() && settlement.verdict.is_none() && settlement.spec.unique_key.is_none()
    });
    let lean = plain && run_id.windows(2).all(|pair| pair[0] != pair[1]);
    let parent: Vec<Option<Uuid>> =
        batch.iter().map(|(_, settlement)| settlement.spec.parent.as_ref().map(|parent| parent.execution.0)).collect();
    let rows = if lean {
        let nodes = parent.iter().any(Option::is_some);
        let params: [&(dyn ToSql + Sync); 12] = [
            &place,
            &run_id,
            &token,
            &endings.state,
            &endings.outcome,
            &endings.tries,
            &endings.losses,
            &endings.result,
            &endings.error,
            &endings.beat,
            &owner,
            &parent,
        ];
        if nodes { link.query(FINISH_NODES, &params).await? } else { link.query(FINISH, &params[..11]).await? }
    } else {
        let routes = Routes::of(batch);
        let none = no_verdict();
        let verdicts = Columns::of(batch.iter().map(|(_, settlement)| settlement.verdict.as_ref().unwrap_or(&none)));
        let verdict_id: Vec<Option<Uuid>> =
            batch.iter().map(|(_, settlement)| settlement.verdict.as_ref().map(|verdict| verdict.id.0)).collect();
        link.query(
            SETTLE,
            &[
                &place,
                &run_id,
                &token,
                &endings.state,
                &endings.outcome,
                &endings.tries,
                &endings.losses,
                &endings.result,
                &endings.error,
                &endings.beat,
                &routes.next,
                &routes.delay,
                &routes.unique_key,
                &verdict_id,
                &verdicts.subject_kind,
                &verdicts.subject_id,
                &verdicts.judgement,
                &verdicts.reason,
                &verdicts.evidence,
                &verdicts.judged_by,
                &verdicts.run_id,
                &verdicts.attempt,
                &verdicts.followed_by,
                &parent,
                &owner,
            ],
        )
        .await?
    };
    let (done, cancelled): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.get(1));
    let done: BTreeSet<i32> = done.iter().map(|row| row.get(0)).collect();
    let leases: Vec<_> = (0..batch.len()).map(|at| (run_id[at], token[at], owner[at])).collect();
    let mut answered: BTreeSet<i32> = cancelled.iter().map(|row| row.get(0)).collect();
    for place in ended_before(&place, &leases, &done) {
        answered.remove(&place);
    }
    answered.iter().for_each(|place| answer(answers, *place, Settled::CancelAsked));
    done.iter().for_each(|place| answer(answers, *place, Settled::Done));
    answered.extend(done);
    // What would have gone back and did not was fenced, or cancelled just after the statement's snapshot.
    let open = |at: &usize| batch[*at].1.unless_cancelled() && !answered.contains(&place[*at]);
    let open: Vec<usize> = (0..batch.len()).filter(open).collect();
    if !open.is_empty() {
        let place: Vec<i32> = open.iter().map(|at| place[*at]).collect();
        let run_id: Vec<Uuid> = open.iter().map(|at| run_id[*at]).collect();
        let token: Vec<Uuid> = open.iter().map(|at| token[*at]).collect();
        let owner: Vec<Uuid> = open.iter().map(|at| owner[*at]).collect();
        let rows = link.query(CANCEL_ASKED, &[&place, &run_id, &token, &owner]).await?;
        rows.iter().for_each(|row| answer(answers, row.get(0), Settled::CancelAsked));
    }
    Ok(())
}

/// Places that show a lease which an earlier place of the same batch has ended.
fn ended_before<'a>(
    place: &'a [i32],
    leases: &'a [(Uuid, Uuid, Uuid)],
    done: &'a BTreeSet<i32>,
) -> impl Iterator<Item = i32> + 'a {
    let mut ended = None;
    place.iter().zip(leases).filter_map(move |(place, lease)| {
        let repeated = ended == Some(lease);
        if done.contains(place) {
            ended = Some(lease);
        }
        repeated.then_some(*place)
    })
}

fn answer(answers: &mut [Settled], place: i32, settled: Settled) {
    if let Some(answer) = usize::try_from(place).ok().and_then(|place| answers.get_mut(place)) {
        *answer = settled;
    }
}

#[derive(Default)]
struct Endings<'a> {
    state: Vec<&'static str>,
    outcome: Vec<&'static str>,
    tries: Vec<i32>,
    losses: Vec<i32>,
    result: Vec<Option<&'a str>>,
    error: Vec<Option<&'a str>>,
    beat: Vec<Option<i64>>,
}

impl<'a> Endings<'a> {
    fn of(batch: &[(usize, &'a Settlement)]) -> Endings<'a> {
        let mut endings = Endings::default();
        for (_, settlement) in batch {
            endings.state.push(match settlement.next {
                Next::Finish(state) => state.as_str(),
                Next::Ready | Next::After(_) => "",
            });
            endings.outcome.push(settlement.ending.outcome.as_str());
            endings.tries.push(int(settlement.standing.tries));
            endings.losses.push(int(settlement.standing.losses));
            endings.result.push(settlement.ending.result.as_ref().map(Json::as_str));
            endings.error.push(settlement.ending.error.as_ref().map(Json::as_str));
            endings.beat.push(settlement.last_heartbeat_at.map(|at| at.0));
        }
        endings
    }
}

#[derive(Default)]
struct Routes<'a> {
    next: Vec<&'static str>,
    delay: Vec<i64>,
    unique_key: Vec<Option<&'a str>>,
}

impl<'a> Routes<'a> {
    fn of(batch: &[(usize, &'a Settlement)]) -> Routes<'a> {
        let mut routes = Routes::default();
        for (_, settlement) in batch {
            let (next, delay) = match settlement.next {
                Next::Finish(_) => ("finish", 0),
                Next::Ready => ("ready", 0),
                Next::After(delay) => ("after", micros(delay)),
            };
            routes.next.push(next);
            routes.delay.push(delay);
            routes.unique_key.push(settlement.spec.unique_key.as_deref());
        }
        routes
    }
}

fn size(settlement: &Settlement) -> usize {
    let verdict = settlement.verdict.as_ref().map_or(0, |verdict| verdict.evidence.as_str().len());
    settlement.ending.bytes() + verdict
}

/// Fills the columns of a settlement that has none; its id is not written.
fn no_verdict() -> Verdict {
    Verdict {
        id: VerdictId(Uuid::nil()),
        at: StoreTime(0),
        subject: Subject { kind: SubjectKind::Run, id: String::new() },
        judgement: Judgement::Lost,
        reason: String::new(),
        evidence: Json::null(),
        judged_by: ReplicaId(Uuid::nil()),
        run_id: None,
        attempt: None,
        then: String::new(),
    }
}
