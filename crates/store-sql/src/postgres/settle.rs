//! Endings, a batch in one statement. A lease that is not the one shown is simply not found, and
//! nothing else happens to that run.

use super::arrays::{Column, after, array, arrays, given};
use super::chunk::chunks;
use super::fault::{Fault, Outcome};
use super::link::Link;
use super::sql::{append_event, now};
use crate::columns::lane;
use crate::encode::{int, micros, unstorable};
use crate::halves::Halves;
use everbeat_model::{Json, Next, Settled, Settlement};
use everbeat_store::Result;
use std::collections::BTreeSet;
use std::sync::LazyLock;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

arrays! {
    /// Endings, each under the lease that it shows.
    Endings of Row<'a> {
        place: i32 as "int",
        run_id: Uuid as "uuid",
        token: Uuid as "uuid",
        owner: Uuid as "uuid",
        state: &'static str as "text",
        outcome: &'static str as "text",
        tries: i32 as "int",
        losses: i32 as "int",
        result: Option<&'a str> as "text",
        error: Option<&'a str> as "text",
        beat: Option<i64> as "bigint",
        worker_id: Option<String> as "text",
    }
}

arrays! {
    /// Where runs go from their endings, and the verdicts upon them.
    Routes of Route<'a> {
        next: &'static str as "text",
        delay: i64 as "bigint",
        unique_key: Option<&'a str> as "text",
        verdict_id: Option<Uuid> as "uuid",
        subject_kind: Option<&'a str> as "text",
        subject_id: Option<&'a str> as "text",
        judgement: Option<&'a str> as "text",
        reason: Option<&'a str> as "text",
        evidence: Option<&'a str> as "text",
        judged_by: Option<Uuid> as "uuid",
        judged_run: Option<Uuid> as "uuid",
        judged_attempt: Option<i32> as "int",
        followed_by: Option<&'a str> as "text",
    }
}

/// Every execution and every schedule whose run has finished is looked at soon. One note of each is enough. The
/// executions of the runs and then their schedules follow the columns as two more arrays. A schedule is read to see whether
/// there still is one, and never locked: an ending waits for no look.
fn noted(columns: &[Column], finished: &str) -> String {
    format!(
        "noted as (insert into agenda (execution_id, due_at) select distinct p.execution_id, 0 \
           from unnest({run_ids}, {parents}::uuid[]) as p(run_id, execution_id) join ended e on e.run_id = p.run_id \
           where p.execution_id is not null and {finished}), \
         schedule_noted as (insert into schedule_note (schedule_id) select s.id from (\
             select distinct p.schedule_id from unnest({run_ids}, {schedules}::uuid[]) as p(run_id, schedule_id) \
             join ended e on e.run_id = p.run_id where p.schedule_id is not null and {finished}) g \
           cross join lateral (select s.id from schedule s where s.id = g.schedule_id offset 0) s), ",
        run_ids = array(columns, "run_id"),
        parents = after(columns),
        schedules = format_args!("${}", columns.len() + 2),
    )
}

/// For batches that only finish runs, without verdicts and unique keys, each lease shown once: nearly
/// all. The leases are reached by their keys, whatever the planner believes about the table; `or false`
/// keeps the proofs a hash table that each of them is looked up in.
fn finish(noted: &str) -> String {
    let columns = Endings::COLUMNS;
    format!(
        "with {now}, given as materialized ({given}), \
         gone as (delete from lease l where l.run_id = any({run_ids}) \
             and ((l.run_id, l.token, l.replica_id) in (select g.run_id, g.token, g.owner from given g) or false) \
           returning l.*), \
         ended as materialized (\
           select g.place, l.run_id, g.state, l.attempt, g.tries, g.losses, g.result, g.error, g.outcome, \
             l.replica_id, g.worker_id, l.token, l.granted_at, coalesce(g.beat, l.last_heartbeat_at) as beat \
           from gone l join given g on g.run_id = l.run_id and g.token = l.token and g.owner = l.replica_id), \
         finished as (insert into done (run_id, state, finished_at, attempt, tries, losses, result, error, outcome, \
             replica_id, worker_id, token, started_at, last_heartbeat_at) \
           select e.run_id, e.state, t.now, e.attempt, e.tries, e.losses, e.result, e.error, e.outcome, e.replica_id, \
             e.worker_id, e.token, e.granted_at, e.beat from ended e, t), \
         {noted}\
         logged as ({append} t.now, \
             string_agg('run.' || e.state || ' ' || e.run_id || ' ' || e.attempt, e'\\n' order by e.place) \
           from ended e, t group by t.now) \
         select place, true from ended",
        now = now!(),
        given = given(columns),
        run_ids = array(columns, "run_id"),
        append = append_event!(),
    )
}

static FINISH: LazyLock<String> = LazyLock::new(|| finish(""));

/// Finishes runs of which some compute nodes of executions, or stand for due times of schedules.
static FINISH_NOTED: LazyLock<String> = LazyLock::new(|| finish(&noted(Endings::COLUMNS, "true")));

/// For every batch. A run that goes back to its lane, now or later, takes it from its own row; where a
/// detached one belongs may have been written since the statement began, so its row is locked to be read as it is now.
/// A run that somebody asked to cancel does not go back. Of several endings of one lease the first that may
/// end it does.
static SETTLE: LazyLock<String> = LazyLock::new(|| {
    let columns = [Endings::COLUMNS, Routes::COLUMNS].concat();
    format!(
        "with {now}, given as materialized ({given}), \
         gone as (delete from lease l where l.run_id = any({run_ids}) \
             and ((l.run_id, l.token, l.replica_id) in (\
                 select g.run_id, g.token, g.owner from given g where g.next = 'finish') \
               or (l.cancel_requested_at is null \
                 and (l.run_id, l.token, l.replica_id) in (select g.run_id, g.token, g.owner from given g))) \
           returning l.*), \
         ended as materialized (\
           select distinct on (g.run_id) g.*, l.attempt, l.replica_id, l.granted_at, \
             coalesce(g.beat, l.last_heartbeat_at) as last_beat \
           from gone l join given g on g.run_id = l.run_id and g.token = l.token and g.owner = l.replica_id \
           where g.next = 'finish' or l.cancel_requested_at is null order by g.run_id, g.place), \
         finished as (insert into done (run_id, state, finished_at, attempt, tries, losses, result, error, outcome, \
             replica_id, worker_id, token, started_at, last_heartbeat_at, verdict_id) \
           select e.run_id, e.state, t.now, e.attempt, e.tries, e.losses, e.result, e.error, e.outcome, e.replica_id, \
             e.worker_id, e.token, e.granted_at, e.last_beat, e.verdict_id from ended e, t where e.next = 'finish'), \
         freed as (delete from unique_key k where k.key = any({unique_keys}) \
           and ((k.key, k.run_id) in (select e.unique_key, e.run_id from ended e \
             where e.next = 'finish' and e.unique_key is not null) or false)), \
         kept as (insert into attempt (run_id, attempt, outcome, replica_id, worker_id, token, started_at, ended_at, \
             last_heartbeat_at, error, verdict_id) \
           select e.run_id, e.attempt, e.outcome, e.replica_id, e.worker_id, e.token, e.granted_at, t.now, \
             e.last_beat, e.error, e.verdict_id from ended e, t where e.next <> 'finish' on conflict do nothing), \
         back as materialized (select e.run_id, e.attempt, e.tries, e.losses, e.next, e.delay, r.* \
           from ended e cross join lateral (\
             select r.queue, r.task, r.priority, case when r.task = 'command' \
                 then (select p.host from run p where p.id = r.id for share) else r.host end as host \
             from run r where r.id = e.run_id offset 0) r where e.next <> 'finish'), \
         again as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
           select b.queue, {lane}, -b.priority, b.run_id, b.attempt, b.tries, b.losses from back b \
           where b.next = 'ready'), \
         later as (insert into scheduled (run_id, run_at, attempt, tries, losses, host) \
           select b.run_id, t.now + b.delay, b.attempt, b.tries, b.losses, b.host from back b, t \
           where b.next = 'after'), \
         judged as (insert into verdict (id, at, subject_kind, subject_id, judgement, reason, evidence, judged_by, \
             run_id, attempt, followed_by) \
           select e.verdict_id, t.now, e.subject_kind, e.subject_id, e.judgement, e.reason, e.evidence, e.judged_by, \
             e.judged_run, e.judged_attempt, e.followed_by from ended e, t where e.verdict_id is not null \
           on conflict (id) do nothing), \
         {noted}\
         logged as ({append} t.now, string_agg(\
             case e.next when 'finish' then 'run.' || e.state else 'attempt.' || e.outcome end \
             || ' ' || e.run_id || ' ' || e.attempt, e'\\n' order by e.place) \
           from ended e, t group by t.now) \
         select place, true from ended \
         union all \
         select g.place, false from given g cross join lateral (\
           select l.token, l.replica_id from lease l \
           where l.run_id = g.run_id and l.cancel_requested_at is not null offset 0) l \
         where g.next <> 'finish' and l.token = g.token and l.replica_id = g.owner",
        now = now!(),
        given = given(&columns),
        run_ids = array(&columns, "run_id"),
        unique_keys = array(&columns, "unique_key"),
        lane = lane!("b"),
        noted = noted(&columns, "e.next = 'finish'"),
        append = append_event!(),
    )
});

/// So many of the columns of an ending say whose it is: its place, and the lease that it shows.
const PROOF: usize = 4;

static CANCEL_ASKED: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select g.place from ({}) g \
         cross join lateral (select l.token, l.replica_id from lease l \
           where l.run_id = g.run_id and l.cancel_requested_at is not null offset 0) l \
         where l.token = g.token and l.replica_id = g.owner",
        given(&Endings::COLUMNS[..PROOF])
    )
});

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

/// Settles a chunk. An ending that cannot be stored gives way to a failure with the reason, so that it neither
/// blocks the others nor is tried for ever.
async fn settle_chunk(
    link: &Link,
    settlements: &[Settlement],
    chunk: Vec<usize>,
    answers: &mut [Settled],
) -> Result<()> {
    let mut open = Halves::of(chunk);
    while let Some(chunk) = open.next() {
        let batch: Vec<(usize, &Settlement)> = chunk.iter().map(|index| (*index, &settlements[*index])).collect();
        match write(link, &batch, answers).await {
            Ok(()) => {}
            Err(Fault::Data(reason)) => {
                if let Some(index) = open.halve(chunk) {
                    let instead = unstorable(&settlements[index], &reason);
                    write(link, &[(index, &instead)], answers).await?;
                }
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(())
}

async fn write(link: &Link, batch: &[(usize, &Settlement)], answers: &mut [Settled]) -> Outcome<()> {
    let mut endings = Endings::default();
    batch.iter().for_each(|(index, settlement)| endings.push(Row::of(*index, settlement)));
    let parents: Vec<Option<Uuid>> =
        batch.iter().map(|(_, settlement)| settlement.spec.parent.as_ref().map(|parent| parent.execution.0)).collect();
    let schedules: Vec<Option<Uuid>> =
        batch.iter().map(|(_, settlement)| settlement.spec.occurrence.map(|of| of.schedule.0)).collect();
    let noted: [&(dyn ToSql + Sync); 2] = [&parents, &schedules];
    let rows = if is_lean(batch) {
        let awaited = parents.iter().chain(&schedules).any(Option::is_some);
        let mut params = endings.params();
        params.extend(awaited.then_some(noted).into_iter().flatten());
        link.query(if awaited { &FINISH_NOTED } else { &FINISH }, &params).await?
    } else {
        let mut routes = Routes::default();
        batch.iter().for_each(|(_, settlement)| routes.push(Route::of(settlement)));
        let mut params = endings.params();
        params.extend(routes.params());
        params.extend(noted);
        link.query(&SETTLE, &params).await?
    };
    let Endings { place, run_id, token, owner, .. } = endings;
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
    let mut unanswered = Endings::default();
    (0..batch.len()).filter(open).for_each(|at| unanswered.push(Row::of(batch[at].0, batch[at].1)));
    if !unanswered.place.is_empty() {
        let rows = link.query(&CANCEL_ASKED, &unanswered.params()[..PROOF]).await?;
        rows.iter().for_each(|row| answer(answers, row.get(0), Settled::CancelAsked));
    }
    Ok(())
}

/// Whether the batch only finishes runs, without verdicts and unique keys, and shows each lease once.
fn is_lean(batch: &[(usize, &Settlement)]) -> bool {
    let plain = |settlement: &Settlement| {
        !settlement.unless_cancelled() && settlement.verdict.is_none() && settlement.spec.unique_key.is_none()
    };
    let run = |at: usize| batch[at].1.shown.run_id;
    batch.iter().all(|(_, settlement)| plain(settlement)) && (1..batch.len()).all(|at| run(at - 1) != run(at))
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

impl<'a> Row<'a> {
    fn of(index: usize, settlement: &'a Settlement) -> Row<'a> {
        Row {
            place: i32::try_from(index).unwrap_or(i32::MAX),
            run_id: settlement.shown.run_id.0,
            token: settlement.shown.token.0,
            owner: settlement.shown.replica_id.0,
            state: match settlement.next {
                Next::Finish(state) => state.as_str(),
                Next::Ready | Next::After(_) => "",
            },
            outcome: settlement.ending.outcome.as_str(),
            tries: int(settlement.standing.tries),
            losses: int(settlement.standing.losses),
            result: settlement.ending.result.as_ref().map(Json::as_str),
            error: settlement.ending.error.as_ref().map(Json::as_str),
            beat: settlement.last_heartbeat_at.map(|at| at.0),
            worker_id: settlement.worker_id.map(|worker| worker.to_string()),
        }
    }
}

impl<'a> Route<'a> {
    fn of(settlement: &'a Settlement) -> Route<'a> {
        let (next, delay) = match settlement.next {
            Next::Finish(_) => ("finish", 0),
            Next::Ready => ("ready", 0),
            Next::After(delay) => ("after", micros(delay)),
        };
        let verdict = settlement.verdict.as_ref();
        Route {
            next,
            delay,
            unique_key: settlement.spec.unique_key.as_deref(),
            verdict_id: verdict.map(|verdict| verdict.id.0),
            subject_kind: verdict.map(|verdict| verdict.subject.kind.as_str()),
            subject_id: verdict.map(|verdict| verdict.subject.id.as_str()),
            judgement: verdict.map(|verdict| verdict.judgement.as_str()),
            reason: verdict.map(|verdict| verdict.reason.as_str()),
            evidence: verdict.map(|verdict| verdict.evidence.as_str()),
            judged_by: verdict.map(|verdict| verdict.judged_by.0),
            judged_run: verdict.and_then(|verdict| verdict.run_id).map(|run| run.0),
            judged_attempt: verdict.and_then(|verdict| verdict.attempt).map(int),
            followed_by: verdict.map(|verdict| verdict.then.as_str()),
        }
    }
}

fn size(settlement: &Settlement) -> usize {
    let verdict = settlement.verdict.as_ref().map_or(0, |verdict| verdict.evidence.as_str().len());
    settlement.ending.bytes() + verdict
}
