use super::Postgres;
use super::chunk::chunks;
use super::fault::{Fault, Outcome};
use super::link::TRIES;
use super::sql::{append_event, now};
use super::transaction::Transaction;
use crate::columns::lane;
use everbeat_model::event::{EventKind, line};
use everbeat_model::{Json, NewRun, Policy, RunId};
use everbeat_store::{Enqueue, Enqueued, Error, Idempotency, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

macro_rules! given {
    () => {
        concat!(
            "with ",
            now!(),
            ", given as materialized (select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], \
                 $5::int[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::text[], $11::uuid[], $12::text[], \
                 $13::text[]) with ordinality \
               as g(id, kind, task, queue, priority, input, policy, run_at, unique_key, args, execution_id, node, \
                 host, nth))"
        )
    };
}

/// For runs without keys, all of them new: one statement, without a transaction around it.
const ENQUEUE: &str = concat!(
    given!(),
    ", made as (insert into run (id, kind, task, queue, priority, input, policy, unique_key, created_at, run_at, \
         args, execution_id, node, host) \
       select g.id, g.kind, g.task, g.queue, g.priority, g.input, g.policy, g.unique_key, t.now, g.run_at, \
         g.args, g.execution_id, g.node, g.host \
       from given g, t), \
     waiting as (insert into scheduled (run_id, run_at, attempt, tries, losses, host) \
       select g.id, g.run_at, 0, 0, 0, g.host from given g, t where g.run_at > t.now), \
     open as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
       select g.queue, ",
    lane!("g"),
    ", -g.priority, g.id, 0, 0, 0 from given g, t \
       where g.run_at is null or g.run_at <= t.now), \
     logged as (",
    append_event!(),
    "t.now, string_agg('run.created ' || g.id || ' -', e'\\n' order by g.nth) from given g, t group by t.now) \
     select 1"
);

/// Inside a transaction: what is there already stays as it is.
pub(super) const INSERT: &str = concat!(
    given!(),
    ", made as (insert into run (id, kind, task, queue, priority, input, policy, unique_key, created_at, run_at, \
         args, execution_id, node, host) \
       select g.id, g.kind, g.task, g.queue, g.priority, g.input, g.policy, g.unique_key, t.now, g.run_at, \
         g.args, g.execution_id, g.node, g.host \
       from given g, t on conflict (id) do nothing returning id, queue, task, priority, run_at, host), \
     waiting as (insert into scheduled (run_id, run_at, attempt, tries, losses, host) \
       select m.id, m.run_at, 0, 0, 0, m.host from made m, t where m.run_at > t.now), \
     open as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
       select m.queue, ",
    lane!("m"),
    ", -m.priority, m.id, 0, 0, 0 from made m, t \
       where m.run_at is null or m.run_at <= t.now) \
     select id from made"
);

/// In the order of the keys, so that two requests lock in one order.
const TAKE_KEYS: &str = "\
    insert into unique_key (key, run_id) select g.key, g.run_id from unnest($1::text[], $2::uuid[]) as g(key, run_id) \
    order by g.key on conflict (key) do nothing returning key";

const KEY_HOLDERS: &str = "select key, run_id from unique_key where key = any($1::text[])";

/// Waits for another request with the same key to end.
pub(super) const TAKE_IDEMPOTENCY: &str = concat!(
    "with ",
    now!(),
    " insert into idempotency (key, fingerprint, run_ids, created_at) select $1, $2, '{}', now from t \
      on conflict (key) do nothing returning 1"
);

pub(super) const APPEND: &str = concat!("with ", now!(), " ", append_event!(), "t.now, $1 from t");

pub(super) async fn enqueue(store: &Postgres, request: &Enqueue) -> Result<Vec<Enqueued>> {
    let plain = request.idempotency.is_none() && request.runs.iter().all(|run| run.spec.unique_key.is_none());
    if request.runs.is_empty() && request.idempotency.is_none() {
        return Ok(Vec::new());
    }
    if plain && chunks(&request.runs, NewRun::bytes).len() == 1 {
        match store.command.query(ENQUEUE, &Columns::of(request.runs.iter()).params()).await {
            Ok(_) => return Ok(request.runs.iter().map(|run| Enqueued::Created(run.id)).collect()),
            // Perhaps some of them were enqueued before; the slow way tells.
            Err(Fault::Data(_)) => {}
            Err(fault) => return Err(fault.into()),
        }
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let transaction = store.exclusive.begin().await?;
        match attempt(transaction, request).await {
            Err(Fault::Again(_)) if tries < TRIES => {}
            Ok(answer) => return answer,
            Err(fault) => return Err(fault.into()),
        }
    }
}

/// The inner result is the request's; the outer one is the transaction's.
async fn attempt(transaction: Transaction<'_>, request: &Enqueue) -> Outcome<Result<Vec<Enqueued>>> {
    if let Some(idempotency) = &request.idempotency {
        let taken = transaction.query(TAKE_IDEMPOTENCY, &[&idempotency.key, &idempotency.fingerprint]).await?;
        if taken.is_empty() {
            let seen = seen(&transaction, idempotency).await?;
            transaction.rollback().await?;
            return Ok(seen.map(|ids| ids.into_iter().map(|id| Enqueued::Exists(RunId(id))).collect()));
        }
    }
    let holders = take_keys(&transaction, &request.runs).await?;
    let fresh: Vec<&NewRun> = request.runs.iter().filter(|run| !stood_for(run, &holders)).collect();
    let mut made = BTreeSet::new();
    for chunk in chunks(&fresh, |run| run.bytes()) {
        let rows = transaction.query(INSERT, &Columns::of(chunk.iter().copied()).params()).await?;
        made.extend(rows.iter().map(|row| row.get::<_, Uuid>(0)));
    }
    let answers: Vec<Enqueued> = request
        .runs
        .iter()
        .map(|run| match run.spec.unique_key.as_ref().and_then(|key| holders.get(key.as_str())) {
            Some(holder) if *holder != run.id.0 => Enqueued::Exists(RunId(*holder)),
            _ if made.remove(&run.id.0) => Enqueued::Created(run.id),
            _ => Enqueued::Exists(run.id),
        })
        .collect();
    if let Some(idempotency) = &request.idempotency {
        let ids: Vec<Uuid> = answers.iter().map(|answer| answer.id().0).collect();
        transaction.query("update idempotency set run_ids = $2 where key = $1", &[&idempotency.key, &ids]).await?;
    }
    let created = answers.iter().filter_map(|answer| match answer {
        Enqueued::Created(id) => Some(line(EventKind::RunCreated, &id.to_string(), None, None)),
        Enqueued::Exists(_) => None,
    });
    let body = created.collect::<Vec<_>>().join("\n");
    if !body.is_empty() {
        transaction.query(APPEND, &[&body]).await?;
    }
    transaction.commit().await?;
    Ok(Ok(answers))
}

/// What an earlier request with this key made.
pub(super) async fn seen(transaction: &Transaction<'_>, idempotency: &Idempotency) -> Outcome<Result<Vec<Uuid>>> {
    let sql = "select fingerprint, run_ids from idempotency where key = $1";
    let rows = transaction.query(sql, &[&idempotency.key]).await?;
    // Forgotten between the two statements: then it is ours after all.
    let Some(row) = rows.first() else { return Err(Fault::Again("an idempotency key just expired".to_string())) };
    if row.get::<_, &str>(0) != idempotency.fingerprint {
        return Ok(Err(Error::KeyReused { key: idempotency.key.clone() }));
    }
    Ok(Ok(row.get(1)))
}

/// Who holds each key of the request from now on. Of several runs with one key the first takes it.
async fn take_keys<'a>(transaction: &Transaction<'_>, runs: &'a [NewRun]) -> Outcome<BTreeMap<&'a str, Uuid>> {
    let mut wanted: BTreeMap<&str, Uuid> = BTreeMap::new();
    for run in runs {
        if let Some(key) = &run.spec.unique_key {
            wanted.entry(key).or_insert(run.id.0);
        }
    }
    if wanted.is_empty() {
        return Ok(wanted);
    }
    let keys: Vec<&str> = wanted.keys().copied().collect();
    let ids: Vec<Uuid> = wanted.values().copied().collect();
    let rows = transaction.query(TAKE_KEYS, &[&keys, &ids]).await?;
    let taken: BTreeSet<&str> = rows.iter().map(|row| row.get(0)).collect();
    let held: Vec<&str> = keys.into_iter().filter(|key| !taken.contains(key)).collect();
    if held.is_empty() {
        return Ok(wanted);
    }
    let rows = transaction.query(KEY_HOLDERS, &[&held]).await?;
    let holders: BTreeMap<&str, Uuid> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for key in held {
        // Its holder has just finished: the key is free after all.
        let Some(holder) = holders.get(key) else { return Err(Fault::Again(format!("the key {key:?} became free"))) };
        wanted.insert(key, *holder);
    }
    Ok(wanted)
}

fn stood_for(run: &NewRun, holders: &BTreeMap<&str, Uuid>) -> bool {
    run.spec.unique_key.as_ref().and_then(|key| holders.get(key.as_str())).is_some_and(|holder| *holder != run.id.0)
}

/// Runs as one array per column.
#[derive(Default)]
pub(super) struct Columns<'a> {
    id: Vec<Uuid>,
    kind: Vec<&'static str>,
    task: Vec<&'a str>,
    queue: Vec<&'a str>,
    priority: Vec<i32>,
    input: Vec<&'a str>,
    policy: Vec<String>,
    run_at: Vec<Option<i64>>,
    unique_key: Vec<Option<&'a str>>,
    args: Vec<Option<&'a str>>,
    execution_id: Vec<Option<Uuid>>,
    node: Vec<Option<&'a str>>,
    host: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(runs: impl Iterator<Item = &'a NewRun>) -> Columns<'a> {
        let mut columns = Columns::default();
        // Runs enqueued together mostly share one policy; writing it out once is enough.
        let mut written: Option<(&Arc<Policy>, String)> = None;
        for run in runs {
            let spec = &run.spec;
            let policy = match &written {
                Some((policy, text)) if Arc::ptr_eq(policy, &spec.policy) => text.clone(),
                _ => spec.policy.to_stored(),
            };
            written = Some((&spec.policy, policy.clone()));
            columns.id.push(run.id.0);
            columns.kind.push(spec.kind.as_str());
            columns.task.push(&spec.task);
            columns.queue.push(&spec.queue);
            columns.priority.push(i32::from(spec.priority));
            columns.input.push(spec.input.as_str());
            columns.policy.push(policy);
            columns.run_at.push(run.run_at.map(|at| at.0));
            columns.unique_key.push(spec.unique_key.as_deref());
            columns.args.push(spec.args.as_ref().map(Json::as_str));
            columns.execution_id.push(spec.parent.as_ref().map(|parent| parent.execution.0));
            columns.node.push(spec.parent.as_ref().map(|parent| parent.node.as_str()));
            columns.host.push(spec.host.as_deref());
        }
        columns
    }

    pub(super) fn params(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 13] {
        [
            &self.id,
            &self.kind,
            &self.task,
            &self.queue,
            &self.priority,
            &self.input,
            &self.policy,
            &self.run_at,
            &self.unique_key,
            &self.args,
            &self.execution_id,
            &self.node,
            &self.host,
        ]
    }
}
